"""What an attempt holds while it drives one submission: the claimed row, its log, and the effects in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from ...agents.agent import Agent
from ...agents.tools import ToolContext
from ...recovery.backoff import backoff_s
from ...storage.errors import LanewayError
from ...storage.ledger import Abort, Row
from ...storage.projection import CallView, ConversationView, RunView
from . import facts
from .arrivals import Arrivals
from .feed import Feed
from .outbox import Outbox
from .services import LaneServices
from .steps import CallSteps
from .stopping import Leash, SelfCancelled

_T = TypeVar("_T")
_GATHER_ROUNDS = 24  # of the event loop: what a model that answers at once needs; another one takes far longer


class Interrupted(Exception):
    """An effect was ended from outside: by an abort or by the run's deadline."""


@dataclass(slots=True)
class Claimed:
    """One claimed submission. `row` is the ledger row as this attempt's own writes leave it."""

    row: Row
    attempt_id: str
    registered: Agent | None
    outbox: Outbox
    view: ConversationView
    services: LaneServices
    feed: Feed
    arrivals: Arrivals
    looked_after_turn: int = 0
    """The boundary at which this run last claimed what waits: it looks once a boundary."""
    deadline_passed: bool = False
    compaction_failed: bool = False
    ended: bool = False
    """Its settlement, or the lane's return, is in the outbox: nothing may follow that, whoever flushes it."""
    draining: bool = False
    """The process is to end: no effect is begun any more."""
    stopped: bool = False
    """Effects in flight had their time: they are interrupted."""
    run_id: str = field(init=False)
    _effects: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    _commits: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    _ended_at_drain: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    def __post_init__(self) -> None:
        self.run_id = facts.run_id_of(self.row.submission_id)

    @property
    def submission_id(self) -> str:
        return self.row.submission_id

    @property
    def run(self) -> RunView | None:
        return self.view.run_of(self.row.submission_id)

    @property
    def agent(self) -> Agent:
        assert self.registered is not None  # without one nothing is driven
        return self.registered

    @property
    def input_waits(self) -> bool:
        """Whether input may wait at this boundary that the run has not looked for."""
        run = self.run
        if run is None or self.looked_after_turn == len(run.turns):
            return False
        return self.arrivals.may_wait(join=self.agent.join)

    def change(self, **fields: Any) -> None:
        """The row after a command that is on its way to the ledger."""
        self.row = msgspec.structs.replace(self.row, **fields)

    @contextmanager
    def context(self, call: CallView) -> Generator[ToolContext, None, None]:
        """What one execution of the call is handed; when it is over, nothing that it left behind is recorded."""
        services = self.services
        limits, counts = services.settings.limits, services.counts
        steps = CallSteps(call, self.outbox, limits, services.failpoints, counts, refused=self.interrupt)
        context = ToolContext(
            conversation_id=self.row.conversation_id,
            submission_id=self.submission_id,
            run_id=call.run_id,
            call_id=call.call.id,
            idempotency_key=facts.idempotency_key_of(call.call.id),
            queue_sequence=self.row.queue_sequence,
            turn=call.turn,
            position=call.position,
            attempt=self.row.attempts,
            principal=self.row.principal,
            recorder=steps,
        )
        try:
            yield context
        finally:
            steps.close()
            context.aborted.set()

    def leash(self, context: ToolContext | None = None) -> Leash:
        """What holds the effects of a call, or of a model turn."""
        return Leash(self.services.settings, self.services.adrift, context.aborted if context else None)

    # --- commits beside an effect ------------------------------------------------------------------------------------

    def commit_beside(self) -> None:
        """Let results of calls be committed while the next model call runs: nothing acts on its answer before.

        They begin their way in a moment, together with what gathers until then. A refusal ends the effects in flight
        and is raised by the next flush; an abort that the store tells of is carried out.
        """
        task = asyncio.get_running_loop().create_task(self._commit_beside())
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    async def _commit_beside(self) -> None:
        for _ in range(_GATHER_ROUNDS):
            await asyncio.sleep(0)
            if not self.outbox.waits:
                break
        try:
            await self.commit_results()
        except LanewayError:
            self.interrupt()

    async def commit_results(self) -> None:
        """Commit results of calls before anything else happens."""
        await self.outbox.flush()
        await self.carry_out_abort(self.outbox.abort_seen)  # neighbours of the call may run for long yet

    # --- interruption ------------------------------------------------------------------------------------------------

    async def carry_out_abort(self, abort: Abort | None) -> None:
        """Take in an abort that stands in the ledger: it is canonical before anything is interrupted."""
        if abort is None or self.row.abort is not None or self.ended:
            return
        self.change(abort=abort)
        if self.submission_id not in self.view.aborts:
            self.outbox.record(facts.abort_requested(self.row))
        await self.outbox.flush()
        self.interrupt()

    def interrupt(self) -> None:
        for task in list(self._effects):
            task.cancel()

    def drain(self) -> None:
        """Begin no effect any more. Tool calls in flight go on; a model can be asked again, and pauses are over."""
        self.draining = True
        for task in list(self._ended_at_drain):
            task.cancel()

    def stop(self) -> None:
        """End the effects in flight, too."""
        self.draining = self.stopped = True
        self.interrupt()

    def _to_be_interrupted(self, at_drain: bool) -> bool:
        return self.row.abort is not None or self.stopped or (at_drain and self.draining)

    @property
    def out_of_time(self) -> bool:
        remaining = self._remaining_s()
        return self.deadline_passed or (remaining is not None and remaining <= 0)

    def _remaining_s(self) -> float | None:
        """Seconds until the run's deadline: from its recorded start, without the time that it waited for people."""
        run = self.run
        if self.agent.run_timeout_s is None or run is None:
            return None
        running_ms = self.services.now_ms() - run.started.started_at_ms - run.waited_ms
        return self.agent.run_timeout_s - running_ms / 1000

    async def interruptible(self, work: Coroutine[Any, Any, _T], *, timed: bool = True, at_drain: bool = False) -> _T:
        """Await an effect that an abort, a stop or the run's deadline may end. Raises: Interrupted, SelfCancelled.

        It must end soon after it is cancelled: what foreign code does is held by a `Leash`. Only what is `timed` is
        ended by the deadline, and only what is `at_drain` by the very beginning of a planned stop.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._effects.add(task)
        if at_drain:
            self._ended_at_drain.add(task)
        if self._to_be_interrupted(at_drain):
            task.cancel()
        deadline = asyncio.timeout(self._remaining_s() if timed else None)
        try:
            async with deadline:
                outcome = await task
            if deadline.expired():
                self.deadline_passed = True
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise asyncio.CancelledError  # the effect gave its result all the same, and nobody can record it
            return outcome
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self._to_be_interrupted(at_drain) and current is not None and not current.cancelling():
                raise Interrupted from None
            if current is not None and not current.cancelling():
                raise SelfCancelled("the call cancelled its own task") from None
            raise
        except TimeoutError:
            if deadline.expired():
                self.deadline_passed = True  # whatever a wall clock that was set back says
                raise Interrupted from None
            raise
        finally:
            self._effects.discard(task)
            self._ended_at_drain.discard(task)

    async def pause(self, pause_s: float, *, timed: bool = True) -> None:
        """Wait between two tries; an abort, a drain and, where it is `timed`, the run's deadline end it at once."""
        with suppress(Interrupted):
            await self.interruptible(asyncio.sleep(pause_s), timed=timed, at_drain=True)

    async def back_off(self, failures: int, *, timed: bool = True) -> None:
        """The pause after so many failures of a tool or of its reconciler."""
        settings = self.services.settings
        first_s, most_s = settings.tool_backoff_first_s, settings.tool_backoff_most_s
        await self.pause(backoff_s(failures, self.services.chance, first_s=first_s, most_s=most_s), timed=timed)

    @property
    def may_begin(self) -> bool:
        """Whether another effect of this run may begin: no abort, no planned stop and no deadline stands against it."""
        return not self.draining and self.row.abort is None and not self.out_of_time
