"""One attempt at one submission: the loop *project, decide, do, commit*, the same for live and recovered work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from ...agents.agent import Agent
from ...agents.protocol import Delta, ModelRequest
from ...agents.reconcile import Completed, Reconciliation, SafeToRetry
from ...agents.tools import Tool, ToolContext
from ...recovery.backoff import backoff_s
from ...recovery.classify import Decision
from ...storage.commands import (
    AbortAnswer,
    Claim,
    Finalize,
    Grant,
    MarkInputApplied,
    MarkUnknown,
    NotClaimed,
    Release,
    RequestAbort,
    Resume,
)
from ...storage.errors import InvalidInput, ModelError
from ...storage.failpoints import Point
from ...storage.ledger import Abort, Row, State
from ...storage.projection import CallView, ConversationView, chat_messages
from ...storage.records import ErrorFact, decode_records
from . import effects, facts, turn
from .deltas import DeltaLog
from .feed import Feed
from .outbox import Outbox
from .services import LaneServices

_log = logging.getLogger("laneway.lane")
_T = TypeVar("_T")
_AGENT_MISSING_WAIT_MS = 15_000  # work whose agent nobody knows is offered again after this


class Interrupted(Exception):
    """An effect was ended from outside: by an abort or by the run's deadline."""


class SelfCancelled(Exception):
    """An effect cancelled its own task. Nobody asked for that: it is a failure like any other."""


class Attempt:
    """Owns one submission under one epoch. A refused write ends it; nothing that it does later can count (DUR-006)."""

    def __init__(
        self,
        row: Row,
        attempt_id: str,
        outbox: Outbox,
        view: ConversationView,
        services: LaneServices,
        feed: Feed,
    ) -> None:
        self.submission_id = row.submission_id
        self.attempt_id = attempt_id
        self.over = False
        self._deadline_passed = False
        self._row = row
        self._outbox = outbox
        self._view = view
        self._services = services
        self._feed = feed
        self._run_id = facts.run_id_of(row.submission_id)
        self._agent: Agent | None = services.registry.get(row.agent)
        self._pause_s = 0.0
        self._effects: set[asyncio.Task[Any]] = set()

    # --- beginnings --------------------------------------------------------------------------------------------------

    def prepare_start(self) -> None:
        """Put the input and the run's start into the outbox, to travel with the admission."""
        self._apply_input()
        self._start_run()
        self._mark_applied()

    def recover(self, decision: Decision) -> None:
        """An earlier owner was lost: put the decision on record and go on under this epoch (DUR-013)."""
        self._services.counts[f"recovered:{decision.name}"] += 1
        if self._row.state is State.RECOVERY:
            self._outbox.command(Resume(submission_id=self.submission_id))
            self._row = msgspec.structs.replace(self._row, state=State.RUNNING)
        self._outbox.record(facts.recovery_decided(self._row, self._outbox.epoch, decision))
        run = self._view.run_of(self.submission_id)
        last = run.last_turn if run else None
        if decision.name == "resume_turn" and run is not None and (last is None or last.calls):
            self._outbox.record(
                facts.model_interrupted(self._run_id, len(run.turns) + 1, self.attempt_id, 0, "its owner was lost")
            )
        if run is not None and run.stalled > 1:
            self._pause_s = backoff_s(run.stalled - 1, self._services.chance)
        _log.info("%s: recovering %s: %s", self._row.conversation_id, self.submission_id, decision.name)

    async def abort(self, abort_id: str, author: str, reason: str) -> AbortAnswer:
        """The command is canonical before anything is interrupted (Specification 13)."""
        asked_before = self._row.abort is not None
        if not asked_before:
            abort = Abort(abort_id=abort_id, author=author, reason=reason, at_ms=self._services.now_ms())
            self._row = msgspec.structs.replace(self._row, abort=abort)
            self._outbox.command(
                RequestAbort(submission_id=self.submission_id, abort_id=abort_id, author=author, reason=reason)
            )
            self._outbox.record(facts.abort_requested(self._row))
        await self._outbox.flush()  # a second abort, too, is answered when the first one is durable
        self._interrupt()
        assert self._row.abort is not None
        answer = self._outbox.abort_answer or AbortAnswer(abort=self._row.abort, state=State.RUNNING, replayed=True)
        return msgspec.structs.replace(answer, replayed=answer.replayed or asked_before)

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def drive(self, next_claim: Claim | None) -> Grant | NotClaimed | None:
        """Run to an end: settled, unknown, or released. The answer to `next_claim` where it travelled with the end.

        Raises: Fenced and what else the store refuses with; the attempt is then over.
        """
        agent = self._agent
        if agent is None:
            return await self._release_without_agent()
        while True:
            self._notice_abort()
            action = turn.next_action(self._row, self._view, agent.turns_max)
            if isinstance(action, turn.CallModel | turn.RunCalls):
                over = self._no_more(agent)
                if over is not None:
                    action = turn.Complete("failed", error=over)
                elif self._pause_s:
                    await self._pause(agent)
                    continue
            match action:
                case turn.ApplyInput():
                    self._apply_input()
                case turn.StartRun():
                    self._start_run()
                case turn.MarkApplied():
                    self._mark_applied()
                case turn.CallModel(number):
                    await self._call_model(agent, number)
                case turn.RunCalls(calls):
                    await self._run_calls(agent, calls)
                case turn.Reconcile(calls):
                    if not await self._reconcile(agent, calls):
                        return None
                case turn.ApplyResolutions(calls):
                    self._apply_resolutions(calls)
                case turn.CloseForAbort(unproven):
                    self._close_for_abort(unproven)
                case turn.Complete(outcome, output, error):
                    self.over = True
                    self._outbox.record(facts.run_completed(self._run_id, outcome, output, error))
                case turn.Settle() | turn.AppendReserved() | turn.Finalize():
                    return await self._settle(action, next_claim)

    async def _settle(
        self, action: turn.Settle | turn.AppendReserved | turn.Finalize, next_claim: Claim | None
    ) -> Grant | NotClaimed | None:
        """Reserve, append, finalize; each step is idempotent (DUR-011)."""
        self.over = True
        match action:
            case turn.Settle(outcome, output, error):
                run = self._view.run_of(self.submission_id)
                record, reserve = facts.settlement(
                    self.submission_id, run.run_id if run else None, outcome, output, error
                )
                self._outbox.command(reserve)
                self._outbox.record(record)
            case turn.AppendReserved():
                assert self._row.reservation is not None
                self._outbox.record(*decode_records(self._row.reservation.body, where="the reservation"))
            case turn.Finalize():
                pass
        self._outbox.command(Finalize(submission_id=self.submission_id))
        if next_claim is not None:
            self._outbox.command(next_claim)
        await self._outbox.flush()
        self._services.settled(self.submission_id)
        return self._outbox.next_claim

    async def _release_without_agent(self) -> None:
        _log.warning("%s: no agent named %r is registered; parked", self.submission_id, self._row.agent)
        not_before_ms = self._services.now_ms() + _AGENT_MISSING_WAIT_MS
        self._outbox.command(Release(submission_id=self.submission_id, not_before_ms=not_before_ms))
        await self._outbox.flush()

    # --- input and run -----------------------------------------------------------------------------------------------

    def _apply_input(self) -> None:
        self._outbox.record(*facts.input_records(self._row, self._view))

    def _start_run(self) -> None:
        assert self._agent is not None
        self._outbox.record(facts.run_started(self._row, self._agent, self._services.now_ms()))

    def _mark_applied(self) -> None:
        self._outbox.command(MarkInputApplied(submission_id=self.submission_id, run_id=self._run_id))
        self._row = msgspec.structs.replace(self._row, input_sequence=self._view.tail_sequence, run_id=self._run_id)

    # --- the model ---------------------------------------------------------------------------------------------------

    async def _call_model(self, agent: Agent, number: int) -> None:
        await self._outbox.flush()
        request = ModelRequest(
            conversation_id=self._row.conversation_id,
            submission_id=self.submission_id,
            run_id=self._run_id,
            queue_sequence=self._row.queue_sequence,
            turn=number,
            attempt=self._row.attempts,
            operation_id=f"{self._run_id}:{number}",
            messages=chat_messages(self._view),
            instructions=agent.instructions,
            tools=[tool.schema() for tool in agent.tools if isinstance(tool, Tool)],
        )

        async def interrupted(tries: int, error: ModelError) -> None:
            self._feed.turn_over()
            fact = effects.error_fact(error)
            reason = f"{fact.code}: {fact.message}"
            self._outbox.record(facts.model_interrupted(self._run_id, number, self.attempt_id, tries, reason))
            await self._outbox.flush()

        deltas = DeltaLog(self._outbox, self._run_id, number) if self._services.settings.record_deltas else None

        def emit(delta: Delta) -> None:
            self._services.failpoints.hit(Point.DURING_MODEL)
            self._feed.delta(delta)
            if deltas is not None:
                deltas.add(delta)

        call = effects.call_model(
            agent,
            request,
            emit,
            chance=self._services.chance,
            settings=self._services.settings,
            count=lambda: self._services.counts.update(("model_calls",)),
            interrupted=interrupted,
        )
        try:
            try:
                response = await self._interruptible(call, agent)
            finally:
                if deltas is not None:
                    await deltas.close()
        except Interrupted:
            return
        except (ModelError, SelfCancelled) as error:
            code = error.code if isinstance(error, ModelError) else "model_failed"
            self._outbox.record(facts.run_completed(self._run_id, "failed", None, effects.error_fact(error, code)))
            self.over = True
            return
        if self._row.abort is None:  # what arrives behind an abort is no part of the conversation (DUR-012)
            self._outbox.record(facts.model_responded(self._run_id, number, response))

    # --- tools -------------------------------------------------------------------------------------------------------

    async def _run_calls(self, agent: Agent, calls: tuple[CallView, ...]) -> None:
        """Prepare all, then run all at once; each result is committed when it is there (Specification 10)."""
        ready: list[tuple[CallView, Tool, dict[str, Any]]] = []
        for call in calls:
            found = self._checked_call(agent, call)
            if isinstance(found, ErrorFact):
                self._outbox.record(facts.call_failed(call, found))
                continue
            tool, arguments = found
            ready.append((call, tool, arguments))
            if call.prepared is None or call.resolved is not None:
                self._outbox.record(facts.call_prepared(call, tool))
        await self._outbox.flush()
        try:
            async with asyncio.TaskGroup() as group:
                for call, tool, arguments in ready:
                    group.create_task(self._run_call(agent, call, tool, arguments))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # a refused write ends the attempt, whichever call it was for

    def _checked_call(self, agent: Agent, call: CallView) -> tuple[Tool, dict[str, Any]] | ErrorFact:
        tool = agent.tool(call.call.name)
        if tool is None:
            return ErrorFact(code="tool_missing", message=f"agent {agent.name} has no tool {call.call.name}")
        if call.prepared is not None and call.prepared.tool_digest != tool.digest:
            message = f"tool {tool.name} has changed since this call was prepared; it was not run"
            return ErrorFact(code="tool_changed", message=message)
        try:
            return tool, tool.parse(call.call.arguments)
        except InvalidInput as error:
            return effects.error_fact(error)

    async def _run_call(self, agent: Agent, call: CallView, tool: Tool, arguments: dict[str, Any]) -> None:
        self._services.counts["tool_executions"] += 1
        context = self._context(call)
        try:
            outcome = await self._interruptible(
                effects.call_tool(tool, context, arguments, self._services.settings), agent
            )
        except Interrupted:
            return
        except SelfCancelled as error:
            outcome = effects.Failed(effects.error_fact(error))
        self._services.failpoints.hit(Point.AFTER_TOOL)
        match outcome:
            case effects.Succeeded(result, keys):
                self._outbox.record(facts.call_succeeded(call, result, message_keys=keys))
            case effects.Failed(error):
                self._outbox.record(facts.call_failed(call, error))
            case effects.Unproven():
                return
        await self._outbox.flush()

    def _context(self, call: CallView) -> ToolContext:
        return ToolContext(
            conversation_id=self._row.conversation_id,
            submission_id=self.submission_id,
            run_id=call.run_id,
            call_id=call.call.id,
            idempotency_key=facts.idempotency_key_of(call.call.id),
            queue_sequence=self._row.queue_sequence,
            turn=call.turn,
            position=call.position,
            attempt=self._row.attempts,
            principal=self._row.principal,
        )

    # --- what nobody can prove ---------------------------------------------------------------------------------------

    async def _reconcile(self, agent: Agent, calls: tuple[CallView, ...]) -> bool:
        """Seek proof for each call; False when one stays unproven and the submission is Unknown (DUR-009)."""
        await self._outbox.flush()
        unproven: dict[str, str] = {}
        for call in calls:
            proof = await self._proof(agent, call)
            if proof is None:
                reason = "prepared and not settled, and nothing proves what became of it"
                unproven[call.call.id] = reason
                self._outbox.record(facts.call_unknown(call, reason))
            elif isinstance(proof, Completed):
                self._outbox.record(
                    facts.call_resolved(call, "completed_with_result", "reconciler", proof.evidence, proof.result),
                    facts.call_succeeded(call, proof.result, author="reconciler"),
                )
            else:
                resolution = "safe_to_retry" if isinstance(proof, SafeToRetry) else "never_started"
                self._outbox.record(facts.call_resolved(call, resolution, "reconciler", proof.evidence))
        if not unproven or self._row.abort is not None:
            await self._outbox.flush()
            return True  # aborted work does not wait for a resolution: it settles, and the evidence stays
        self._outbox.command(
            MarkUnknown(submission_id=self.submission_id, calls=unproven, park=agent.on_unknown == "park")
        )
        await self._outbox.flush()
        self._services.counts["unknown"] += 1
        _log.warning("%s: the outcome of %s is unknown", self.submission_id, ", ".join(unproven))
        return False

    async def _proof(self, agent: Agent, call: CallView) -> Reconciliation | None:
        tool = agent.tool(call.call.name)
        if tool is None or tool.reconcile is None:
            return None
        try:
            arguments = tool.parse(call.call.arguments)
        except InvalidInput:
            return None
        return await effects.reconcile(tool, self._context(call), arguments)

    def _apply_resolutions(self, calls: tuple[CallView, ...]) -> None:
        for call in calls:
            known = self._row.unknown_calls[call.call.id]
            assert known.resolution is not None
            author, reason = known.author or "", known.note or ""
            self._outbox.record(facts.call_resolved(call, known.resolution, author, reason, known.result))
            if known.resolution == "completed_with_result":
                self._outbox.record(facts.call_succeeded(call, known.result, author=author))

    def _close_for_abort(self, unproven: tuple[CallView, ...]) -> None:
        if self.submission_id not in self._view.aborts:
            self._outbox.record(facts.abort_requested(self._row))
        for call in unproven:
            self._outbox.record(facts.call_unknown(call, "aborted before its outcome was known"))

    # --- interruption ------------------------------------------------------------------------------------------------

    def _no_more(self, agent: Agent) -> ErrorFact | None:
        """Why nothing more may be tried: the run is out of time, or it takes down every process that runs it."""
        if self._out_of_time(agent):
            return ErrorFact(code="run_timeout", message=f"the run took more than {agent.run_timeout_s} s")
        run = self._view.run_of(self.submission_id)
        most = self._services.settings.recoveries_max
        if run is not None and run.stalled > most:
            message = f"its owner was lost {run.stalled} times without anything new; the limit is {most}"
            return ErrorFact(code="recoveries_exhausted", message=message)
        return None

    async def _pause(self, agent: Agent) -> None:
        """Work that takes its process down again and again waits longer each time, and its neighbours get on."""
        pause_s, self._pause_s = self._pause_s, 0.0
        await self._outbox.flush()
        with contextlib.suppress(Interrupted):
            await self._interruptible(asyncio.sleep(pause_s), agent)

    def _out_of_time(self, agent: Agent) -> bool:
        remaining = self._remaining_s(agent)
        return self._deadline_passed or (remaining is not None and remaining <= 0)

    def _remaining_s(self, agent: Agent) -> float | None:
        """Seconds until the run's deadline, counted from the recorded start, whoever runs it now."""
        run = self._view.run_of(self.submission_id)
        if agent.run_timeout_s is None or run is None:
            return None
        return agent.run_timeout_s - (self._services.now_ms() - run.started.started_at_ms) / 1000

    async def _interruptible(self, work: Coroutine[Any, Any, _T], agent: Agent) -> _T:
        """Await an effect that an abort or the run's deadline may end. Raises: Interrupted."""
        task = asyncio.get_running_loop().create_task(work)
        self._effects.add(task)
        if self._row.abort is not None:
            task.cancel()
        deadline = asyncio.timeout(self._remaining_s(agent))
        try:
            async with deadline:
                return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self._row.abort is not None and current is not None and not current.cancelling():
                raise Interrupted from None
            if current is not None and not current.cancelling():
                raise SelfCancelled("the call cancelled its own task") from None
            raise
        except TimeoutError:
            if deadline.expired():
                self._deadline_passed = True  # whatever a wall clock that was set back says
                raise Interrupted from None
            raise
        finally:
            self._effects.discard(task)

    def _notice_abort(self) -> None:
        """Take in an abort that another process asked for: the store tells of it with each append."""
        if self._row.abort is None and self._outbox.abort_seen is not None:
            self._row = msgspec.structs.replace(self._row, abort=self._outbox.abort_seen)

    def _interrupt(self) -> None:
        for task in list(self._effects):
            task.cancel()
