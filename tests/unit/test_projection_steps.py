"""Recorded steps in the projection, and what recovery makes of a call that has some (Specification 8 and 11)."""

from __future__ import annotations

from typing import Any

import pytest
from lane_records import (
    SUBMISSION,
    a_row,
    a_view,
    began,
    call_id,
    prepared,
    resolved,
    responded,
    returned,
    said,
    stepped,
    unknown,
)

from laneway.actors.lane import turn
from laneway.actors.lane.facts import step_id_of
from laneway.recovery.classify import Evidence, classify
from laneway.storage.projection import chat_messages
from laneway.storage.records import RecoveryDecided

CALL = call_id()
BEGUN = (said(), began(), responded(1, "charge"))


def test_steps_stand_with_their_call_until_it_is_settled() -> None:
    log = (*BEGUN, prepared(CALL), stepped(CALL), stepped(CALL, "mail", None))
    view = a_view(*log)
    held = view.calls[CALL].steps
    assert [(step.name, step.result) for step in held.values()] == [("pay", "paid"), ("mail", None)]
    assert list(held) == [step_id_of(CALL, "pay", 1), step_id_of(CALL, "mail", 1)]
    assert chat_messages(view) == [{"role": "user", "content": "hello"}]
    again = a_view(*log, unknown(CALL), resolved(CALL, "safe_to_retry"), prepared(CALL, number=2))
    assert again.calls[CALL].steps == held  # whoever enters the call again finds them
    assert a_view(*log, returned(CALL)).calls[CALL].steps == {}


def test_a_step_is_progress() -> None:
    lost = RecoveryDecided(id="rec_9", submission_id=SUBMISSION, attempt_id="a", epoch=2, decision="d", evidence="")
    run = a_view(*BEGUN, prepared(CALL), lost).run_of(SUBMISSION)
    assert run is not None
    assert run.stalled == 1
    run = a_view(*BEGUN, prepared(CALL), lost, stepped(CALL)).run_of(SUBMISSION)
    assert run is not None
    assert run.stalled == 0


@pytest.mark.requirement("DUR-009", "DUR-010", "DUR-013")
@pytest.mark.parametrize(
    ("effect", "decision", "action"),
    [
        ("uncertain", "reconcile", turn.Reconcile),
        ("idempotent", "resume_batch", turn.RunCalls),
        ("readonly", "resume_batch", turn.RunCalls),
    ],
)
def test_a_recorded_step_changes_no_decision(effect: Any, decision: str, action: type) -> None:
    """A committed step is a boundary: what it proves is itself, and the call is entered again as without it."""
    row = a_row(input_sequence=1)
    for steps in ((), (stepped(CALL),)):
        view = a_view(*BEGUN, prepared(CALL, effect=effect), *steps)
        assert classify(Evidence(row, None, view)).name == decision
        assert isinstance(turn.next_action(row, view, 10), action)
