"""The outbox of one attempt: commands gather while no effect stands between them, and travel as one unit."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ...storage.commands import (
    AbortAnswer,
    Accepted,
    Admitted,
    AnyCommand,
    Append,
    Appended,
    Claim,
    Command,
    Fence,
    Finalize,
    Grant,
    Joining,
    MarkInputApplied,
    MarkJoined,
    Moved,
    NotClaimed,
    Release,
    ReserveSettlement,
    Result,
    Resume,
    SaveCheckpoint,
    Unit,
)
from ...storage.contract import LogPage
from ...storage.errors import LanewayError, StaleTail
from ...storage.failpoints import Failpoints, Point
from ...storage.ids import new_id
from ...storage.ledger import Abort, Receipt, State
from ...storage.projection import ConversationView
from ...storage.records import (
    AnyRecord,
    InputRecorded,
    ToolCallSettled,
    chained_digest,
    decode_records,
    encode_records,
)
from ...storage.values import Limits
from .arrivals import Arrivals

Published = Callable[[int, tuple[AnyRecord, ...]], None]
"""Told of committed records: the first one's sequence, and the records."""

_POINT_AFTER: dict[str, Point] = {
    "admit": Point.AFTER_ADMISSION,
    "claim": Point.AFTER_CLAIM,
    "input_recorded": Point.AFTER_INPUT_APPENDED,
    "claim_joining": Point.AFTER_JOIN_CLAIMED,
    "input_joined": Point.AFTER_JOIN_INPUT_APPENDED,
    "mark_joined": Point.AFTER_JOINED,
    "revert_joining": Point.AFTER_JOIN_REVERTED,
    "run_started": Point.AFTER_RUN_STARTED,
    "model_responded": Point.AFTER_MODEL_RESPONDED,
    "approval_requested": Point.AFTER_APPROVAL_REQUESTED,
    "suspend": Point.AFTER_SUSPENDED,
    "approval_decided": Point.AFTER_APPROVAL_DECIDED,
    "tool_call_prepared": Point.AFTER_PREPARED,
    "step_settled": Point.AFTER_STEP_SETTLED,
    "tool_call_settled": Point.AFTER_TOOL_SETTLED,
    "run_completed": Point.AFTER_RUN_COMPLETED,
    "reserve_settlement": Point.AFTER_RESERVATION,
    "submission_settled": Point.AFTER_SETTLEMENT_APPENDED,
    "finalize": Point.AFTER_FINALIZE,
}


MakeCheckpoint = Callable[[int, str], SaveCheckpoint | None]
"""Given the log's tail, sequence and digest, a checkpoint of it or None."""


@dataclass(frozen=True, slots=True)
class _LateCheckpoint:
    make: MakeCheckpoint


_Step = AnyCommand | AnyRecord | _LateCheckpoint


class LogStore(Protocol):
    """What an outbox needs of the store's client."""

    async def commit(self, unit: Unit) -> Accepted: ...

    async def read_log(self, conversation_id: str, after: int, limit: int) -> LogPage: ...


class Outbox:
    """Writes of one attempt, in order, under its fence.

    Records enter the view when they are put here; an effect may start only after `flush` has returned. With `stepwise`
    each command is a commit of its own, so that every row of the crash matrix is a state that a kill can leave behind.
    """

    def __init__(
        self,
        conversation_id: str,
        submission_id: str,
        store: LogStore,
        view: ConversationView,
        *,
        token: str,
        epoch: int | None,
        tail_digest: str | None,
        producer_id: str,
        published: Published,
        stepwise: bool,
        limits: Limits,
        arrivals: Arrivals,
        failpoints: Failpoints,
    ) -> None:
        self._conversation_id = conversation_id
        self._submission_id = submission_id
        self._store = store
        self._view = view
        self._token = token
        self._epoch = epoch
        self._producer_id = producer_id
        self._published = published
        self._stepwise = stepwise
        self._limits = limits
        self._arrivals = arrivals
        self._failpoints = failpoints
        self._failure: LanewayError | None = None
        self._tail = view.tail_sequence
        self._tail_digest = tail_digest  # None where the store has not told it yet
        self._steps: list[_Step] = []
        self._lock = asyncio.Lock()
        self._carried: set[asyncio.Task[None]] = set()
        self.receipt: Receipt | None = None
        self.abort_answer: AbortAnswer | None = None
        self.abort_seen: Abort | None = None
        self.next_claim: Grant | NotClaimed | None = None
        self.suspended = False
        self.joining: Joining | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the store gave this attempt."""
        assert self._epoch is not None
        return self._epoch

    def record(self, *records: AnyRecord) -> None:
        """Put records into the log with the next flush; the view knows them at once."""
        self._steps.extend(records)
        self._view.extend(records)

    @property
    def waits(self) -> bool:
        """Whether anything waits for the next flush."""
        return bool(self._steps)

    @property
    def waits_with_results_alone(self) -> bool:
        """Whether nothing waits but results of calls: the next model call may begin beside their commit."""
        return not self._stepwise and all(isinstance(step, ToolCallSettled) for step in self._steps)

    def command(self, *commands: AnyCommand) -> None:
        """Put ledger commands into the next flush."""
        self._steps.extend(commands)

    def checkpoint(self, make: MakeCheckpoint) -> None:
        """Let a checkpoint travel with the records before it, if `make` gives one; it is asked when the tail is known.

        It costs no commit of its own, and must come before the command that gives the lane back.
        """
        self._steps.append(_LateCheckpoint(make))

    async def flush(self) -> None:
        """Commit all that gathered, in order; return when it is durable.

        Raises: Fenced when a newer attempt owns the lane, and whatever else the store refuses with; then for good,
        since the view holds what the log does not.
        """
        async with self._lock:
            if self._failure is not None:
                raise self._failure
            while self._steps:
                count = self._next_count()
                steps, self._steps = self._steps[:count], self._steps[count:]
                try:
                    await self._commit(steps)
                except LanewayError as error:
                    self._failure = error
                    raise

    async def flush_whole(self) -> None:
        """`flush` from inside of an effect: when that is cancelled, the commit goes on, since the view holds it."""
        task = asyncio.get_running_loop().create_task(self.flush())
        self._carried.add(task)
        task.add_done_callback(self._carried_out)
        await asyncio.shield(task)

    def _carried_out(self, task: asyncio.Task[None]) -> None:
        self._carried.discard(task)
        if not task.cancelled():
            task.exception()  # a refusal is raised again by every later flush

    def _next_count(self) -> int:
        """How many steps go together: all, or stepwise one, with a checkpoint that follows it."""
        if not self._stepwise:
            return len(self._steps)
        rest = (index for index in range(1, len(self._steps)) if not isinstance(self._steps[index], _LateCheckpoint))
        return next(rest, len(self._steps))

    async def _commit(self, steps: list[_Step]) -> None:
        before: list[AnyCommand] = []
        after: list[AnyCommand | _LateCheckpoint] = []
        records: list[AnyRecord] = []
        names: list[str] = []
        for step in steps:
            if isinstance(step, _LateCheckpoint):
                after.append(step)
                continue
            names.append(_name_of(step))
            if isinstance(step, Command):
                (after if _follows_records(step, records) else before).append(step)
            else:
                records.append(step)
        batches = self._batches(tuple(records))
        appends = [
            Append(
                submission_id=self._subject(batch[0]),
                batch_id=new_id("bat"),
                producer_id=self._producer_id,
                body=body,
            )
            for batch, body in batches
        ]
        commands = (*before, *appends, *self._with_checkpoint(after, batches))
        if not commands:
            return
        accepted = await self._send(commands)
        published = iter(batch for batch, _ in batches)
        for result in accepted.results:
            self._take(result, next(published) if isinstance(result, Appended) else ())
        for name in names:
            if name in _POINT_AFTER:
                self._failpoints.hit(_POINT_AFTER[name])

    def _subject(self, record: AnyRecord) -> str:
        """The submission that a record is a fact of: this one, or one that joined its run."""
        return getattr(record, "submission_id", self._submission_id)

    def _batches(self, records: tuple[AnyRecord, ...]) -> list[tuple[tuple[AnyRecord, ...], str]]:
        """One batch a submission where the limits allow it; else one a record, still in the same unit."""
        batches: list[tuple[tuple[AnyRecord, ...], str]] = []
        for _, group in itertools.groupby(records, self._subject):
            batch = tuple(group)
            body = encode_records(batch).decode()
            if len(batch) <= self._limits.batch_records_max and len(body.encode()) <= self._limits.record_bytes_max:
                batches.append((batch, body))
            else:
                batches.extend(((record,), encode_records((record,)).decode()) for record in batch)
        return batches

    def _with_checkpoint(
        self, commands: list[AnyCommand | _LateCheckpoint], batches: list[tuple[tuple[AnyRecord, ...], str]]
    ) -> list[AnyCommand]:
        """A checkpoint is made of the tail that this unit's batches leave, and never travels without them: their fence
        on the tail is what keeps a stale one from spoiling the unit."""
        tail, digest = self._tail, self._tail_digest
        for records, body in batches:
            tail += len(records)
            digest = None if digest is None else chained_digest(digest, body)
        found: list[AnyCommand] = []
        for command in commands:
            if not isinstance(command, _LateCheckpoint):
                found.append(command)
            elif batches and digest is not None and (made := command.make(tail, digest)) is not None:
                found.append(made)
        return found

    def _take(self, result: Result, batch: tuple[AnyRecord, ...]) -> None:
        match result:
            case Grant() if result.token == self._token:
                self._epoch = result.epoch
                self._arrivals.learn(result.arrived)
            case Grant() | NotClaimed():
                self.next_claim = result
            case Appended():
                self._tail, self._tail_digest = result.last_sequence, result.digest
                if not batch or self._subject(batch[0]) == self._submission_id:
                    self.abort_seen = self.abort_seen or result.abort
                self._arrivals.learn(result.arrived)
                self._published(result.first_sequence, batch)
            case Joining():
                self.joining = result
                self.abort_seen = self.abort_seen or result.abort
            case Admitted():
                self.receipt = result.receipt
            case AbortAnswer():
                self.abort_answer = result
            case Moved(state=State.SUSPENDED):
                self.suspended = True
            case _:
                pass

    async def _send(self, commands: tuple[AnyCommand, ...]) -> Accepted:
        while True:
            fence = Fence(token=self._token, epoch=self._epoch, expected_tail=self._tail)
            try:
                return await self._store.commit(
                    Unit(conversation_id=self._conversation_id, commands=commands, fence=fence)
                )
            except StaleTail as stale:
                claims = self._epoch is None  # what was prepared for a claim was prepared for that very tail
                if claims or stale.details["tail_sequence"] <= self._tail:
                    raise
                await self._catch_up()
                commands = tuple(command for command in commands if not isinstance(command, SaveCheckpoint))

    async def _catch_up(self) -> None:
        """Somebody settled queued work by its abort meanwhile: take those records in and go on behind them."""
        page = await self._store.read_log(self._conversation_id, self._tail, 1024)
        for batch in page.batches:
            records = decode_records(batch.body, where=f"{self._conversation_id} at {batch.first_sequence}")
            self._view.insert(self._tail, records)
            self._tail, self._tail_digest = batch.last_sequence, batch.digest


def _follows_records(command: AnyCommand, records: list[AnyRecord]) -> bool:
    """Whether the command must come behind the unit's records. A reservation comes before all of them: reserve, then
    one batch with the last response and the settlement, then finalize."""
    if isinstance(command, MarkInputApplied | Finalize | Release):
        return True
    if isinstance(command, ReserveSettlement | Resume):
        return False
    if isinstance(command, MarkJoined):  # a repair goes ahead, since the settlement may be reserved in the same unit
        return any(isinstance(item, InputRecorded) and item.submission_id == command.submission_id for item in records)
    return bool(records) or (isinstance(command, Claim) and not command.submission_id)


def _name_of(step: AnyCommand | AnyRecord) -> str:
    """What a failpoint is found by: the stored name, and a name of its own for input that enters another's run."""
    if isinstance(step, InputRecorded) and step.run_id is not None:
        return "input_joined"
    return str(type(step).__struct_config__.tag)
