"""What the turn machine may do first after each decision of the classifier: the table that holds the two together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from laneway.actors.lane import turn
from laneway.actors.lane.attempt import Attempt
from laneway.recovery.classify import Decision
from laneway.storage.ledger import Row, State
from laneway.storage.projection import ConversationView

FIRST_ACTIONS: dict[str, frozenset[str]] = {
    "finalize": frozenset({"Finalize"}),
    "append_reservation": frozenset({"AppendReserved"}),
    "settle_with_host": frozenset({"SettleWithHost"}),
    "wait_for_host": frozenset({"WaitForHost"}),
    "finish": frozenset({"Settle as recorded"}),
    "settle_aborted": frozenset({"CloseForAbort", "Settle aborted", "Complete aborted"}),
    "apply_resolutions": frozenset({"ApplyResolutions"}),
    "settle_proven": frozenset({"SettleProven"}),
    "reconcile": frozenset({"Reconcile"}),
    "resume_decided": frozenset({"ApplyDecisions"}),
    "repair_suspension": frozenset({"AwaitApproval"}),
    "resume_batch": frozenset({"RunCalls"}),
    "apply_input": frozenset({"ApplyInput"}),
    "repair_input_marker": frozenset({"StartRun", "MarkApplied"}),
    "resume_turn": frozenset({"StartRun", "CallModel", "Join", "Complete completed", "Complete failed"}),
}
"""A Settle of the outcome that stands on record is "as recorded"; other endings name their outcome."""

NOBODY_DRIVES: dict[str, frozenset[State]] = {
    "nothing": frozenset({State.COMPLETED, State.FAILED, State.ABORTED}),
    "wait_unknown": frozenset({State.UNKNOWN}),
    "wait_approval": frozenset({State.SUSPENDED}),
    "finish_materialization": frozenset({State.ADMITTED}),
    "revert_joining": frozenset({State.JOINING}),
    "repair_joined": frozenset({State.JOINING}),
}
"""Decisions that no attempt at the submission carries out, and the states that they are for: none is granted there."""


def name_of(action: turn.Action, view: ConversationView, submission_id: str) -> str:
    if not isinstance(action, turn.Settle | turn.Complete):
        return type(action).__name__
    run = view.run_of(submission_id)
    if isinstance(action, turn.Settle) and run is not None and run.completed is not None:
        done = run.completed
        same = (action.outcome, action.output, action.error) == (done.outcome, done.output, done.error)
        return "Settle as recorded" if same else "Settle otherwise"
    return f"{type(action).__name__} {action.outcome}"


def disagreement(decision: str, action: turn.Action, row: Row, view: ConversationView) -> str | None:
    """What is wrong when `action` is the first thing done after `decision`, or None."""
    if decision in NOBODY_DRIVES:
        fits = row.state in NOBODY_DRIVES[decision]
        return None if fits else f"{decision} was decided of {row.submission_id}, which is {row.state}"
    done = name_of(action, view, row.submission_id)
    if done in FIRST_ACTIONS[decision]:
        return None
    return f"{decision} was decided of {row.submission_id}, which is {row.state}, and {done} was done"


@contextmanager
def watched_recoveries() -> Iterator[list[str]]:
    """Hold every recovery of lanes of this process to what it put on record: gives the list of those that differ."""
    decided: dict[str, str] = {}
    found: list[str] = []
    recover, next_action = Attempt.recover, turn.next_action

    def recovering(attempt: Attempt, decision: Decision, *args: Any, **more: Any) -> None:
        decided[attempt.attempt_id] = decision.name
        recover(attempt, decision, *args, **more)

    def acting(row: Row, view: ConversationView, *args: Any, **more: Any) -> turn.Action:
        action = next_action(row, view, *args, **more)
        decision = decided.pop(row.attempt_id or "", None)
        if decision is not None:
            if decision in NOBODY_DRIVES:
                found.append(f"{decision} was decided of {row.submission_id}, and an attempt at it was granted")
            else:
                problem = disagreement(decision, action, row, view)
                found.extend([problem] if problem else [])
        return action

    with patch.object(Attempt, "recover", recovering), patch.object(turn, "next_action", acting):
        yield found
