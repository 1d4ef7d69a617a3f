"""The asynchronous client: finds owners, repeats what is ambiguous under the same ids, reads logs."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from ..actors.decisions import Decision
from ..actors.lane.feed import Cursor
from ..actors.lane.values import Admission, Settlement
from ..actors.operations import Operation
from ..recovery.classify import evidence_of
from ..recovery.convergence import Report
from ..recovery.explain import Explanation, explain
from ..storage.commands import AbortAnswer, Decided, Moved
from ..storage.contract import LogPage, Snapshot, Table
from ..storage.errors import InvalidInput, LanewayError, NotFound, StoreCorrupt, StoreUnavailable
from ..storage.header import Batch
from ..storage.ids import new_id
from ..storage.ledger import Receipt, Row, State
from ..storage.projection import ConversationView, chat_messages
from ..storage.readback import owner_is_live, wall_clock_ms
from ..storage.readback import records_of as checked_records
from ..storage.records import AnyRecord, ConversationCreated, decode_records, tag_of
from .backend import Backend, Host, HostGone
from .looks import open_rows, quarantined

_T = TypeVar("_T")
_POLL_S = 10.0  # how long one waiting call stays at its owner before it is made again
_PATIENCE_S = 60.0  # how long a call that changes something looks for an owner before it gives up
_GRACE_S = 15.0  # a call that was made in time may still be answered; beyond it, its silence is an answer, too
_RETRY_S = (0.02, 1.0)
_LOOK_S = 2.0  # an explanation is a courtesy: it must not hold up the answer that nothing is settled
_VERIFIED_AT_ONCE = 8
_VERIFY_LOOKS = 3
_AGENTS_KNOWN_MAX = 10_000


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What a watcher sees. Canonical events carry their `sequence`; provisional ones may be superseded."""

    type: str
    data: dict[str, Any]
    sequence: int | None = None
    provisional: bool = False


class Client:
    """Everything that a runtime's user can ask, asynchronously."""

    def __init__(self, backend: Backend, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.backend = backend
        self._monotonic = monotonic
        self._agents_known: OrderedDict[str, str] = OrderedDict()

    async def submit(self, conversation_id: str, admission: Admission, timeout_s: float = _PATIENCE_S) -> Receipt:
        """Admit durably. Raises: AdmissionConflict, InvalidInput, Refused; StoreUnavailable after `timeout_s`."""
        return await self._with_owner(conversation_id, lambda host: host.submit(conversation_id, admission), timeout_s)

    async def steer(self, conversation_id: str, admission: Admission, timeout_s: float = _PATIENCE_S) -> Receipt:
        """Admit durably into the stream of the active run. Raises: as `submit`; Refused, code "nothing_to_steer"."""
        return await self._with_owner(conversation_id, lambda host: host.steer(conversation_id, admission), timeout_s)

    async def settlement(self, conversation_id: str, submission_id: str, timeout_s: float | None) -> Settlement:
        """Wait for the one outcome. Raises: TimeoutError when it is still open after `timeout_s` (None: no bound)."""
        deadline = None if timeout_s is None else self._monotonic() + timeout_s
        while True:
            remaining = _POLL_S if deadline is None else min(_POLL_S, deadline - self._monotonic())
            wait_s = max(0.0, remaining)

            async def ask(host: Host, wait_s: float = wait_s) -> Settlement | None:
                return await host.settlement(conversation_id, submission_id, wait_s)

            try:
                settled = await self._with_owner(conversation_id, ask, None if deadline is None else wait_s)
            except StoreUnavailable:
                settled = None  # nobody answered for so long: it is open as far as anybody can tell
            if settled is not None:
                return settled
            if deadline is not None and self._monotonic() >= deadline:
                raise TimeoutError(await self._still_open(submission_id, timeout_s))

    async def _still_open(self, submission_id: str, timeout_s: float | None) -> str:
        message = f"{submission_id} is still open after {timeout_s} s"
        try:
            async with asyncio.timeout(_LOOK_S):
                told = await self.explain(submission_id)
        except (TimeoutError, LanewayError):
            return message
        return f"{message}: it is {told.state}. {told.why}"

    async def abort(self, submission_id: str, reason: str, author: str, abort_id: str | None = None) -> AbortAnswer:
        """Ask durably for an abort. Raises: NotFound; Refused with code "already_settled"."""
        row = await self.row(submission_id)
        conversation_id, abort_id = row.conversation_id, abort_id or new_id("abt")
        return await self._with_owner(
            conversation_id,
            lambda host: host.abort(conversation_id, submission_id, abort_id, author, reason),
            _PATIENCE_S,
        )

    async def operate(self, conversation_id: str, operation: Operation) -> Any:
        """What an operator does. Raises: what `actors.operations.carry_out` raises."""
        return await self._with_owner(
            conversation_id, lambda host: host.operate(conversation_id, operation), _PATIENCE_S
        )

    async def decide(self, decision: Decision) -> Decided | Moved:
        """Record a person's decision. Raises: what `actors.decisions.carry_out` raises."""
        conversation_id = (await self.row(decision.submission_id)).conversation_id
        return await self._with_owner(conversation_id, lambda host: host.decide(conversation_id, decision), _PATIENCE_S)

    async def explain(self, submission_id: str) -> Explanation:
        """Why the submission stands where it stands. Raises: NotFound; StoreCorrupt."""
        snapshot: Snapshot = await self.backend.read("snapshot", submission_id)
        row, now_ms = snapshot.row, wall_clock_ms()
        owners: dict[str, int] = await self.backend.read("owners")
        conversation_id, sequence = row.conversation_id, row.queue_sequence
        rows = [] if row.settled else await open_rows(self.backend.read, conversation_id, sequence)
        held = await quarantined(self.backend.read) if any(other.quarantined for other in rows) else []
        return explain(
            evidence_of(snapshot),
            [other for other in rows if other.queue_sequence < sequence],
            owner_live=owner_is_live(row.state, row.owner_id, owners, now_ms),
            now_ms=now_ms,
            quarantine=next((found for found in held if found.conversation_id == conversation_id), None),
            agents=await self._agents() if row.state is State.READY and row.not_before_ms > now_ms else None,
        )

    async def _agents(self) -> tuple[str, ...] | None:
        """The agents of the runtime; None where nobody can tell, since an explanation needs the store alone."""
        try:
            return await self.backend.agent_names() or None
        except LanewayError:
            return None

    async def events(self, conversation_id: str, after: int, provisional: bool) -> AsyncIterator[Event]:
        """Events behind sequence `after`, each canonical one once, until nothing is owed in the conversation."""
        cursor = Cursor(after=after)
        while True:
            start = cursor

            async def ask(host: Host, start: Cursor = start) -> Any:
                return await host.poll(conversation_id, start, _POLL_S)

            poll = await self._with_owner(conversation_id, ask, None)
            for sequence, record in poll.records:
                yield Event(type=tag_of(record), data=as_dict(record), sequence=sequence)
            for delta in poll.deltas if provisional else ():
                yield Event(type=f"{delta.kind}_delta", data={"text": delta.text}, provisional=True)
            cursor = poll.cursor
            if poll.quiet and not poll.records:
                return

    async def row(self, submission_id: str) -> Row:
        """The ledger row. Raises: NotFound."""
        row = await self.backend.read("lookup", submission_id)
        if row is None:
            raise NotFound(f"no submission {submission_id}", submission_id=submission_id)
        return row

    async def batches(self, conversation_id: str, after: int = 0) -> list[Batch]:
        """All batches behind `after`."""
        found: list[Batch] = []
        while True:
            page: LogPage = await self.backend.read("read_log", conversation_id, after, 1024)
            found.extend(page.batches)
            if not page.more:
                return found
            after = found[-1].last_sequence

    async def agent_of(self, conversation_id: str) -> str | None:
        """The agent that the conversation began with, None for a new one. It never changes, so keys stay good."""
        agent = self._agents_known.get(conversation_id)
        if agent is None:
            agent = await self._agent_read(conversation_id)
            if agent is not None:
                self._agents_known[conversation_id] = agent
                if len(self._agents_known) > _AGENTS_KNOWN_MAX:
                    self._agents_known.popitem(last=False)
        return agent

    async def _agent_read(self, conversation_id: str) -> str | None:
        page: LogPage = await self.backend.read("read_log", conversation_id, 0, 1)
        for _, record in records_of(list(page.batches)):
            if isinstance(record, ConversationCreated):
                return record.agent
        rows = await self.rows(conversation_id, None, 1)
        return rows[0].agent if rows else None  # what was admitted has not begun yet

    async def log(self, conversation_id: str, after: int = 0) -> list[tuple[int, AnyRecord]]:
        """All records behind `after` with their sequence."""
        return records_of(await self.batches(conversation_id, after), after)

    async def messages(self, conversation_id: str) -> list[dict[str, Any]]:
        """The conversation in OpenAI's chat format. Raises: StoreCorrupt for a batch that does not match its digest."""
        view = ConversationView()
        for batch in await self.batches(conversation_id):
            view.extend(checked_records(batch))
        return chat_messages(view)

    async def conversations(self) -> list[str]:
        """Ids of all conversations."""
        found: list[str] = []
        while True:
            page = await self.backend.read("list_conversations", found[-1] if found else "", 1000)
            if not page:
                return found
            found.extend(page)

    async def rows(self, conversation_id: str | None, state: str | None, limit: int) -> list[Row]:
        if state is not None and limit < 1:
            raise InvalidInput("limit must be 1 or more", field="limit", limit=1)
        return await self.backend.read("list_rows", conversation_id, state, limit)

    async def query(self, sql: str, limit: int) -> Table:
        return await self.backend.read("query", sql, limit)

    async def verify(self, *, require_settled: bool, progress: Callable[[str], None] | None = None) -> Report:
        """The convergence check over every conversation."""
        report = Report()
        places = asyncio.Semaphore(_VERIFIED_AT_ONCE)

        async def check(conversation_id: str) -> None:
            async with places:
                report.merge(await self._verify_one(conversation_id, require_settled))
                if progress is not None:
                    progress(conversation_id)

        await asyncio.gather(*(check(conversation_id) for conversation_id in await self.conversations()))
        report.problems.sort(key=lambda problem: problem.conversation_id)
        return report

    async def _verify_one(self, conversation_id: str, require_settled: bool) -> Report:
        """Ledger and log are two reads, and work may go on between them: what does not fit is looked at again."""
        for _ in range(_VERIFY_LOOKS - 1):
            report = await self._look(conversation_id, require_settled)
            if report.passed:
                return report
        return await self._look(conversation_id, require_settled)

    async def _look(self, conversation_id: str, require_settled: bool) -> Report:
        report = Report()
        try:
            rows = await self.backend.read("list_rows", conversation_id, None, 1_000_000)
            report.add(rows, await self.batches(conversation_id), require_settled=require_settled)
        except StoreCorrupt as error:
            report.add_corrupt(conversation_id, error)
        return report

    async def _with_owner(
        self, conversation_id: str, call: Callable[[Host], Awaitable[_T]], timeout_s: float | None
    ) -> _T:
        deadline = None if timeout_s is None else self._monotonic() + timeout_s
        wait_s = _RETRY_S[0]
        while True:
            host: Host | None = None
            limit = asyncio.timeout(None if deadline is None else max(0.0, deadline - self._monotonic()) + _GRACE_S)
            try:
                async with limit:
                    host = await self.backend.host_of(conversation_id)
                    return await call(host)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise _indeterminate(HostGone("there was no answer in time")) from error
            except (HostGone, StoreUnavailable) as error:
                if host is not None:
                    await self.backend.lost(conversation_id, host)
                if deadline is not None and self._monotonic() + wait_s >= deadline:
                    raise _indeterminate(error) from error
                await asyncio.sleep(wait_s)
                wait_s = min(_RETRY_S[1], wait_s * 2)


def _indeterminate(error: LanewayError) -> LanewayError:
    message = f"no owner answered: {error.message}; the call may have been carried out, repeat it with the same key"
    return StoreUnavailable(message, code="indeterminate")


def records_of(batches: list[Batch], after: int = 0) -> list[tuple[int, AnyRecord]]:
    """The records of `batches` behind `after`, with their sequences. Raises: StoreCorrupt."""
    found: list[tuple[int, AnyRecord]] = []
    for batch in batches:
        where = f"{batch.conversation_id} at {batch.first_sequence}"
        for index, record in enumerate(decode_records(batch.body, where=where)):
            if batch.first_sequence + index > after:
                found.append((batch.first_sequence + index, record))
    return found


def as_dict(record: AnyRecord) -> dict[str, Any]:
    """A record as plain JSON values, `type` included, as it is stored."""
    return msgspec.to_builtins(record)
