"""The turn machine: from what is recorded to the lane's next action. Pure: no clock, no store, no Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...recovery.classify import (
    answered_calls,
    asked_calls,
    given_up_calls,
    is_decided,
    proven_calls,
    uncertain_calls,
    unproven_calls,
)
from ...storage.ledger import Row, State
from ...storage.projection import CallView, ConversationView, RunView
from ...storage.records import ErrorFact, Outcome, SubmissionSettled


@dataclass(frozen=True, slots=True)
class Finalize:
    """The settlement stands in the log: close the row."""


@dataclass(frozen=True, slots=True)
class AppendReserved:
    """The settlement is reserved: append that very record."""


@dataclass(frozen=True, slots=True)
class Settle:
    """The run is over: reserve, append, finalize."""

    outcome: Outcome
    output: Any = None
    error: ErrorFact | None = None


@dataclass(frozen=True, slots=True)
class Complete:
    """The run has an outcome that is not recorded yet."""

    outcome: Outcome
    output: Any = None
    error: ErrorFact | None = None


@dataclass(frozen=True, slots=True)
class CloseForAbort:
    """Put the abort and the calls that nobody can prove on record."""

    unproven: tuple[CallView, ...]


@dataclass(frozen=True, slots=True)
class ApplyInput:
    """Bring the admitted input into the log."""


@dataclass(frozen=True, slots=True)
class MarkApplied:
    """The input stands in the log and the ledger does not know."""


@dataclass(frozen=True, slots=True)
class StartRun:
    """Record that the run begins; its deadlines count from here."""


@dataclass(frozen=True, slots=True)
class ApplyResolutions:
    """Bring the answers to unknown calls into the log."""

    calls: tuple[CallView, ...]


@dataclass(frozen=True, slots=True)
class SettleProven:
    """These calls are on record as completed, with their results: each result is the call's own."""

    calls: tuple[CallView, ...]


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Seek proof for calls that an earlier attempt prepared; without it they are unknown."""

    calls: tuple[CallView, ...]


@dataclass(frozen=True, slots=True)
class ApplyDecisions:
    """Every approval that was asked for is decided: bring the decisions into the log, before they are honoured."""

    calls: tuple[CallView, ...]


@dataclass(frozen=True, slots=True)
class AwaitApproval:
    """Approvals were asked for and not decided: wait without holding the lane's permit (Specification 8)."""

    calls: tuple[CallView, ...]


@dataclass(frozen=True, slots=True)
class RunCalls:
    """Run the open calls of the last response."""

    calls: tuple[CallView, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """Others wait that this run may serve: claim them and bring their inputs into the log."""


@dataclass(frozen=True, slots=True)
class SettleWithHost:
    """The run that this submission joined ended without it: settle likewise, under that run's id."""

    host: SubmissionSettled


@dataclass(frozen=True, slots=True)
class WaitForHost:
    """The run that this submission joined is open and settles it: there is nothing to do here."""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model for turn `turn`, from 1."""

    turn: int


Action = (
    Finalize
    | AppendReserved
    | Settle
    | Complete
    | CloseForAbort
    | ApplyInput
    | MarkApplied
    | StartRun
    | ApplyResolutions
    | SettleProven
    | Reconcile
    | ApplyDecisions
    | AwaitApproval
    | RunCalls
    | Join
    | SettleWithHost
    | WaitForHost
    | CallModel
)


def next_action(row: Row, view: ConversationView, turns_max: int, *, waiting: bool = False) -> Action:
    """The one thing that the owner of `row` does next; first match wins, in the order of the classifier.

    `waiting` says that input may wait that this run could take in. It enters behind a complete turn and before the next
    model call, and only while a model call is left to serve it (Specification 5, 8).
    """
    submission_id = row.submission_id
    run = view.run_of(submission_id)
    if submission_id in view.settlements:
        return Finalize()
    if row.reservation is not None:
        return AppendReserved()
    if row.state in (State.JOINING, State.JOINED):
        host = view.settlements.get(row.host_id) if row.host_id else None
        return SettleWithHost(host) if host is not None else WaitForHost()
    if run is not None and run.completed is not None:
        return Settle(run.completed.outcome, run.completed.output, run.completed.error)
    if row.abort is not None:
        return _abort(row, view)
    if run is not None and run.open_calls:
        return _calls(row, run)
    if submission_id not in view.inputs:
        return ApplyInput()
    if run is None:
        return StartRun()
    if row.input_sequence is None:
        return MarkApplied()
    if waiting and run.at_boundary and len(run.turns) < turns_max:
        return Join()
    last = run.last_turn
    if last is not None and not last.calls and not run.unanswered:
        return Complete("completed", output=last.response.content)
    if len(run.turns) >= turns_max:
        error = ErrorFact(code="turn_limit", message=f"the run reached its limit of {turns_max} model turns")
        return Complete("failed", error=error)
    return CallModel(len(run.turns) + 1)


def _abort(row: Row, view: ConversationView) -> Action:
    run = view.run_of(row.submission_id)
    unproven = unproven_calls(run)
    if row.submission_id not in view.aborts or unproven:
        return CloseForAbort(unproven)
    return Settle("aborted") if run is None else Complete("aborted")


def _calls(row: Row, run: RunView) -> Action:
    if given_up_calls(run):
        return Complete("aborted")
    answered = answered_calls(row, run)
    if answered:
        return ApplyResolutions(answered)
    proven = proven_calls(run)
    if proven:
        return SettleProven(proven)
    uncertain = uncertain_calls(run)
    if uncertain:
        return Reconcile(uncertain)
    asked = asked_calls(run)
    if asked:
        return ApplyDecisions(asked) if all(is_decided(row, call) for call in asked) else AwaitApproval(asked)
    return RunCalls(tuple(run.open_calls))
