"""One attempt at one submission: the loop *project, decide, do, commit*, the same for live and recovered work."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import assert_never

import msgspec

from ...recovery.backoff import backoff_s
from ...recovery.classify import Decision
from ...storage.commands import (
    Abandon,
    AbortAnswer,
    Claim,
    Finalize,
    Grant,
    MarkInputApplied,
    NotClaimed,
    Release,
    RequestAbort,
    Resume,
)
from ...storage.errors import StoreCorrupt
from ...storage.ledger import Abort, Row, State
from ...storage.records import ErrorFact, decode_records
from . import approvals, calls, compaction, facts, history, joining, model_turn, turn
from .claimed import Claimed

_log = logging.getLogger("laneway.lane")
_AGENT_MISSING_WAIT_MS = 15_000  # work whose agent nobody knows is offered again after this


class Attempt:
    """Owns one submission under one epoch. A refused write ends it; nothing that it does later can count (DUR-006)."""

    def __init__(self, claimed: Claimed) -> None:
        self._claimed = claimed
        self._pause_s = 0.0
        self.over = False

    @property
    def submission_id(self) -> str:
        return self._claimed.submission_id

    @property
    def attempt_id(self) -> str:
        return self._claimed.attempt_id

    # --- beginnings --------------------------------------------------------------------------------------------------

    def prepare_start(self) -> None:
        """Put the input and the run's start into the outbox, to travel with the admission."""
        self._apply_input()
        self._start_run()
        self._mark_applied()

    def recover(
        self, decision: Decision, left_joining: tuple[Row, ...] = (), *, planned: bool = False, replaces: str = ""
    ) -> None:
        """An earlier owner left the work open: put the decision on record and go on under this epoch (DUR-013).

        After a planned stop that uses no budget, and nobody waits. `left_joining` are the rows that the earlier owner
        claimed for this run and did not mark as joined; `replaces` is its attempt, which a lost model call is laid to.
        """
        claimed, run = self._claimed, self._claimed.run
        claimed.services.counts[f"recovered:{decision.name}"] += 1
        if claimed.row.state is State.RECOVERY:
            claimed.outbox.command(Resume(submission_id=self.submission_id))
            claimed.change(state=State.RUNNING)
        claimed.outbox.record(facts.recovery_decided(claimed.row, claimed.outbox.epoch, decision, planned=planned))
        last = run.last_turn if run else None
        if decision.name == "resume_turn" and run is not None and (last is None or last.calls or run.unanswered):
            lost = facts.model_interrupted(run.run_id, len(run.turns) + 1, self.attempt_id, 0, "its owner was lost")
            claimed.outbox.record(msgspec.structs.replace(lost, attempt_id=replaces))
        joining.repair(claimed, left_joining)
        if run is not None and run.stalled > 1 and not planned:
            self._pause_s = backoff_s(run.stalled - 1, claimed.services.chance)
        _log.info("%s: recovering %s: %s", claimed.row.conversation_id, self.submission_id, decision.name)

    async def abort(self, abort_id: str, author: str, reason: str) -> AbortAnswer:
        """The command is canonical before anything is interrupted (Specification 13)."""
        claimed = self._claimed
        asked_before = claimed.row.abort is not None
        if not asked_before:
            claimed.change(
                abort=Abort(abort_id=abort_id, author=author, reason=reason, at_ms=claimed.services.now_ms())
            )
            claimed.outbox.command(
                RequestAbort(submission_id=self.submission_id, abort_id=abort_id, author=author, reason=reason)
            )
            claimed.outbox.record(facts.abort_requested(claimed.row))
        await claimed.outbox.flush()  # a second abort, too, is answered when the first one is durable
        claimed.interrupt()
        assert claimed.row.abort is not None
        answer = claimed.outbox.abort_answer
        answer = answer or AbortAnswer(abort=claimed.row.abort, state=State.RUNNING, replayed=True)
        return msgspec.structs.replace(answer, replayed=answer.replayed or asked_before)

    async def look_for_abort(self) -> None:
        """Somebody says that another process asked for an abort: read the ledger, and carry it out."""
        claimed = self._claimed
        if self.over or claimed.row.abort is not None:
            return
        row = await claimed.services.store.lookup(self.submission_id)
        if row is not None and not self.over and row.attempt_id == self.attempt_id:
            await claimed.carry_out_abort(row.abort)

    # --- endings that are not its own ---------------------------------------------------------------------------------

    def drain(self) -> None:
        """Come to the next safe boundary and give the lane back there (Specification 6)."""
        self._claimed.drain()

    def stop(self) -> None:
        """The same, and calls in flight are interrupted."""
        self._claimed.stop()

    async def _hand_over(self, *, proven: bool) -> None:
        """A planned stop: released at a safe boundary it costs no budget; what nobody can prove is for recovery."""
        claimed = self._claimed
        self.over = claimed.ended = True
        if proven and claimed.row.state is State.RUNNING:
            claimed.outbox.command(Release(submission_id=self.submission_id))
            claimed.services.counts["released"] += 1
        else:
            claimed.outbox.command(Abandon(submission_id=self.submission_id, planned=True))
            claimed.services.counts["abandoned"] += 1
        await claimed.outbox.flush()

    # --- the loop ----------------------------------------------------------------------------------------------------

    async def drive(self, next_claim: Callable[[], Claim | None]) -> Grant | NotClaimed | None:
        """Run to an end: settled, unknown, or released. The answer to the next claim where one travelled with the end.

        Raises: Fenced and what else the store refuses with; the attempt is then over.
        """
        claimed = self._claimed
        if claimed.registered is None and claimed.row.state is not State.JOINED:
            return await self._release_without_agent()
        while True:
            await claimed.carry_out_abort(claimed.outbox.abort_seen)
            turns_max = claimed.registered.turns_max if claimed.registered else 0
            waiting = claimed.input_waits and self._no_more() is None
            action = turn.next_action(claimed.row, claimed.view, turns_max, waiting=waiting)
            if claimed.draining and isinstance(action, turn.CallModel | turn.RunCalls | turn.Reconcile | turn.Join):
                return await self._hand_over(proven=not isinstance(action, turn.Reconcile))
            if isinstance(action, turn.CallModel | turn.RunCalls):
                over = self._no_more()
                if over is not None:
                    action = turn.Complete("failed", error=over)
                elif self._pause_s:
                    await self._pause()
                    continue
            match action:
                case turn.ApplyInput():
                    self._apply_input()
                case turn.StartRun():
                    self._start_run()
                case turn.MarkApplied():
                    self._mark_applied()
                case turn.Join():
                    await joining.join(claimed)
                case turn.CallModel(number):
                    if not await compaction.compact(claimed):
                        self.over = not await model_turn.call_model(claimed, number)
                case turn.RunCalls(open_calls):
                    await calls.run_calls(claimed, open_calls)
                case turn.Reconcile(uncertain):
                    if not await calls.reconcile(claimed, uncertain):
                        return None
                case turn.AwaitApproval(asked):
                    if not await approvals.wait(claimed, asked):
                        return None
                case turn.ApplyDecisions(decided):
                    approvals.apply_decisions(claimed, decided)
                case turn.ApplyResolutions(resolved):
                    calls.apply_resolutions(claimed, resolved)
                case turn.SettleProven(proven):
                    calls.settle_proven(claimed, proven)
                case turn.CloseForAbort():
                    claimed.outbox.record(*facts.abort_evidence(claimed.row, claimed.view))
                case turn.Complete(outcome, output, error):
                    self.over = True
                    claimed.outbox.record(facts.run_completed(claimed.run_id, outcome, output, error))
                case turn.WaitForHost():
                    raise StoreCorrupt(
                        f"{self.submission_id} joined {claimed.row.host_id}, whose settlement is not in the log",
                        conversation_id=claimed.row.conversation_id,
                        submission_id=self.submission_id,
                    )
                case turn.Settle() | turn.SettleWithHost() | turn.AppendReserved() | turn.Finalize():
                    return await self._settle(action, next_claim())
                case _:
                    assert_never(action)

    async def _settle(
        self, action: turn.Settle | turn.SettleWithHost | turn.AppendReserved | turn.Finalize, next_claim: Claim | None
    ) -> Grant | NotClaimed | None:
        """Reserve, append, finalize; each step is idempotent (DUR-011). What joined settles in the same unit."""
        claimed = self._claimed
        self.over = claimed.ended = True
        match action:
            case turn.Settle(outcome, output, error):
                run_id = claimed.run_id if claimed.run else None
                record, reserve = facts.settlement(self.submission_id, run_id, outcome, output, error)
                claimed.outbox.command(reserve)
                claimed.outbox.record(record)
            case turn.SettleWithHost(host):
                joining.settle_likewise(claimed, self.submission_id, host)
            case turn.AppendReserved():
                assert claimed.row.reservation is not None
                claimed.outbox.record(*decode_records(claimed.row.reservation.body, where="the reservation"))
            case turn.Finalize():
                pass
            case _:
                assert_never(action)
        joined = joining.joined_ids(claimed)  # the view may fold the run away with its settlement
        await joining.settle_joined(claimed, claimed.view.settlements[self.submission_id])
        if history.checkpoint_due(claimed.view, claimed.services):
            make = functools.partial(history.make_checkpoint, self.submission_id, claimed.services, claimed.view)
            claimed.outbox.checkpoint(make)
        claimed.outbox.command(Finalize(submission_id=self.submission_id))
        joining.finalize_joined(claimed, joined)
        if next_claim is not None:
            claimed.outbox.command(next_claim)
        await claimed.outbox.flush()
        for submission_id in (self.submission_id, *joining.joined_ids(claimed)):
            claimed.services.settled(submission_id)
        return claimed.outbox.next_claim

    async def _release_without_agent(self) -> None:
        claimed = self._claimed
        _log.warning("%s: no agent named %r is registered; parked", self.submission_id, claimed.row.agent)
        not_before_ms = claimed.services.now_ms() + _AGENT_MISSING_WAIT_MS
        claimed.outbox.command(Release(submission_id=self.submission_id, not_before_ms=not_before_ms))
        await claimed.outbox.flush()

    # --- input and run -----------------------------------------------------------------------------------------------

    def _apply_input(self) -> None:
        claimed = self._claimed
        claimed.outbox.record(*facts.input_records(claimed.row, claimed.view))

    def _start_run(self) -> None:
        claimed = self._claimed
        claimed.outbox.record(facts.run_started(claimed.row, claimed.agent, claimed.services.now_ms()))

    def _mark_applied(self) -> None:
        claimed = self._claimed
        claimed.outbox.command(MarkInputApplied(submission_id=self.submission_id, run_id=claimed.run_id))
        claimed.change(input_sequence=claimed.view.tail_sequence, run_id=claimed.run_id)

    # --- bounds ------------------------------------------------------------------------------------------------------

    def _no_more(self) -> ErrorFact | None:
        """Why nothing more may be tried: the run is out of time, or it takes down every process that runs it."""
        claimed, run = self._claimed, self._claimed.run
        if claimed.out_of_time:
            return ErrorFact(code="run_timeout", message=f"the run took more than {claimed.agent.run_timeout_s} s")
        most = claimed.services.settings.recoveries_max
        if run is not None and run.stalled > most:
            message = f"its owner was lost {run.stalled} times without anything new; the limit is {most}"
            return ErrorFact(code="recoveries_exhausted", message=message)
        return None

    async def _pause(self) -> None:
        """Work that takes its process down again and again waits longer each time, and its neighbours get on."""
        pause_s, self._pause_s = self._pause_s, 0.0
        await self._claimed.outbox.flush()
        if not self._claimed.draining:
            await self._claimed.pause(pause_s)
