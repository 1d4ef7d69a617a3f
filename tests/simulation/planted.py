"""Known bugs, planted one at a time: a simulation that does not find them would find no others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any
from unittest import mock

import msgspec
from simulation import faults

from laneway.actors import deliveries, sweep
from laneway.actors.lane import calls, joining, steps, turn
from laneway.recovery import classify
from laneway.recovery.classify import Decision
from laneway.storage import machine, moves_log, moves_outcome, moves_queue
from laneway.storage.commands import Append, Finalize, Moved, ReserveSettlement, Resume, RevertJoining
from laneway.storage.ledger import SETTLE_EVENTS, Event, State
from laneway.storage.work import Work


def _no_fence() -> Any:
    """Any attempt may write: the token and the epoch are not looked at."""
    return mock.patch.object(Work, "require_fence", lambda work, submission_id: work.owner() or work.row(submission_id))


@contextlib.contextmanager
def _settled_before_append() -> Generator[None, None, None]:
    """The ledger is closed with the reservation, before the settlement stands in the log."""

    def reserve(work: Work, command: ReserveSettlement) -> Any:
        moved = moves_outcome.reserve_settlement(work, command)
        row = work.row(command.submission_id)
        if not row.settled:
            event = SETTLE_EVENTS[command.outcome]
            work.move(row, event, outcome=command.outcome, settlement_sequence=work.tail_sequence + 1)
        return moved

    def check_records(work: Work, row: Any, trace: Any, records: Any) -> None:
        checked = msgspec.structs.replace(row, state="terminalizing") if row.settled else row
        _check_records(work, checked, trace, records)

    _check_records = moves_log._check_records
    with (
        mock.patch.dict(machine.MOVES, {ReserveSettlement: reserve}),
        mock.patch.object(moves_log, "_check_records", check_records),
    ):
        yield


@contextlib.contextmanager
def _twice_in_the_log() -> Generator[None, None, None]:
    """A repeated batch is appended again: its writer is not told that it stands there."""

    def append(work: Work, command: Append) -> Any:
        with mock.patch.object(Work, "trace", return_value=moves_log.Trace()):
            return moves_log.append(work, command)

    with (
        mock.patch.dict(machine.MOVES, {Append: append}),
        mock.patch.object(Work, "require_tail", return_value=None),
    ):
        yield


def _same_epoch() -> Any:
    """A claim forgets to raise the epoch."""
    take = moves_queue._take

    def forgetful(work: Work, row: Any, command: Any, **more: Any) -> Any:
        work.epoch -= 1 if work.epoch else 0
        return take(work, row, command, **more)

    return mock.patch.object(moves_queue, "_take", forgetful)


def _blind_replay() -> Any:
    """An uncertain call without a result simply runs again."""
    return mock.patch.object(classify, "is_uncertain", return_value=False)


def _admitted_twice() -> Any:
    """A key that was admitted is admitted again."""
    return mock.patch.object(Work, "by_key", return_value=None)


def _resume_not_repeated() -> Any:
    """A repeated resume is refused, so that a writer whose answer was lost never learns what it was granted."""

    def resume(work: Work, command: Resume) -> Any:
        work.require_fence(command.submission_id)
        return moves_queue.resume(work, command)

    return mock.patch.dict(machine.MOVES, {Resume: resume})


def _late_calls_taken() -> Any:
    """A commit that arrives late, or twice, is carried out all the same."""
    return mock.patch.object(deliveries.Deliveries, "take", return_value=None)


def _nobody_recovers() -> Any:
    """The supervisor's sweep sees no work that lost its owner."""
    return mock.patch.object(sweep, "attention", return_value=([], None))


def _finalize_unseen() -> Any:
    """Work is closed as completed whatever its reservation says."""

    def finalize(work: Work, command: Finalize) -> Any:
        moved = moves_outcome.finalize(work, command)
        work.put(work.row(command.submission_id), outcome="completed")
        return moved

    return mock.patch.dict(machine.MOVES, {Finalize: finalize})


def _head_ignored() -> Any:
    """The newest submission is claimed first."""

    def newest(work: Work) -> Any:
        rows = [row for row in work.open_rows() if not row.parked]
        return rows[-1] if rows else None

    return mock.patch.object(moves_queue, "head_of", newest)


def _invented_result() -> Any:
    """A call that may have run is settled with a result that nobody produced."""

    async def invent(claimed: Any, uncertain: Any) -> bool:
        for call in uncertain:
            claimed.outbox.record(calls.facts.call_succeeded(call, "all is well"))
        return True

    return mock.patch.object(calls, "reconcile", invent)


@contextlib.contextmanager
def _joined_is_reverted() -> Generator[None, None, None]:
    """What a lost attempt left joining is made ready again, also when its input stands in the log."""

    def revert(work: Work, command: RevertJoining) -> Any:
        row = work.row(command.submission_id)
        if row.state is not State.JOINING:
            return moves_queue.revert_joining(work, command)
        row = work.move(row, Event.REVERT_JOINING, host_id=None)
        return Moved(submission_id=row.submission_id, state=row.state)

    with (
        mock.patch.dict(machine.MOVES, {RevertJoining: revert}),
        mock.patch.object(joining, "classify", return_value=Decision("revert_joining", "It was joining.")),
    ):
        yield


def _approval_not_awaited() -> Any:
    """A call runs while its approval is open."""
    return mock.patch.object(turn, "AwaitApproval", turn.RunCalls)


def _step_again() -> Any:
    """A recorded step runs again when its call does."""

    async def forgetful(recorder: steps.CallSteps, name: str, version: int) -> None:
        recorder._require_open(name)

    return mock.patch.object(steps.CallSteps, "_recorded", forgetful)


def _often(planted: Callable[[], Any], **rates: float) -> Callable[[], Any]:
    """The bug in a world where what shows it happens often."""

    @contextlib.contextmanager
    def plant() -> Generator[None, None, None]:
        with planted(), mock.patch.dict(faults.RATES, {faults.Fault(name): rate for name, rate in rates.items()}):
            yield

    return plant


PLANTED: dict[str, Callable[[], Any]] = {
    "no_fence": _no_fence,
    "settled_before_append": _settled_before_append,
    "twice_in_the_log": _twice_in_the_log,
    "same_epoch": _same_epoch,
    "blind_replay": _blind_replay,
    "admitted_twice": _admitted_twice,
    "resume_not_repeated": _often(_resume_not_repeated, store_died_after_commit=0.5),
    "late_calls_taken": _often(_late_calls_taken, call_late=0.3, call_doubled=0.3),
    "nobody_recovers": _nobody_recovers,
    "finalize_unseen": _finalize_unseen,
    "head_ignored": _head_ignored,
    "invented_result": _invented_result,
    "joined_is_reverted": _often(_joined_is_reverted, killed_at_point=0.15),
    "approval_not_awaited": _approval_not_awaited,
    "step_again": _step_again,
}
"""Each bug by name: a context in which the runtime has it."""
