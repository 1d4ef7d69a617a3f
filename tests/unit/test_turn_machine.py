"""The turn machine as a table: what is recorded in, the one next action out; the first match wins."""

from __future__ import annotations

from typing import Any

import pytest
from lane_records import (
    ABORT,
    a_row,
    a_view,
    asked_abort,
    asked_approval,
    began,
    call_id,
    decided,
    ended,
    joined,
    prepared,
    reserved,
    resolved,
    responded,
    returned,
    said,
    settled,
    unknown,
)

from laneway.actors.lane import turn
from laneway.storage.ledger import Approval, State, UnknownCall
from laneway.storage.records import AnyRecord

CALL, SECOND = call_id(1, 0), call_id(1, 1)
MARKED: dict[str, Any] = {"input_sequence": 1}
HELD: tuple[AnyRecord, ...] = (said(), began(), responded(1, "charge"), prepared(CALL))
"""A call that was prepared and not settled."""


def approvals(*call_ids: str) -> dict[str, Approval]:
    return {
        f"apr_{call_id}": Approval(call_id=call_id, input_digest="d", requested=True, decision="approved", author="ann")
        for call_id in call_ids
    }


def known(resolution: str | None = None) -> dict[str, UnknownCall]:
    return {CALL: UnknownCall(reason="?", since_ms=1, resolution=resolution, author="ann")}


# One row an action, in the order of the machine, then rows where two could match and the first wins.
TABLE: dict[str, tuple[dict[str, Any], tuple[AnyRecord, ...], Any]] = {
    "a settlement in the log is finalized": ({}, (said(), began(), settled()), turn.Finalize()),
    "a reservation is appended": ({"reservation": reserved()}, (said(), began()), turn.AppendReserved()),
    "a run that ended is settled": (MARKED, (said(), began(), ended("completed", "x")), turn.Settle("completed", "x")),
    "a failed run is settled with its error": (MARKED, (said(), began(), ended("failed")), "failed"),
    "an abort of work without a run settles": ({"abort": ABORT}, (asked_abort(),), turn.Settle("aborted")),
    "an abort goes on record first": ({"abort": ABORT}, (), turn.CloseForAbort(())),
    "an abort ends a run": ({"abort": ABORT}, (said(), began(), asked_abort()), turn.Complete("aborted")),
    "an abort puts unproven calls on record": ({"abort": ABORT}, (*HELD, asked_abort()), "close"),
    "an abort waits for no call that is known to be unknown": (
        {"abort": ABORT},
        (*HELD, asked_abort(), unknown(CALL)),
        turn.Complete("aborted"),
    ),
    "an input enters the log": ({}, (), turn.ApplyInput()),
    "a run is started": ({}, (said(),), turn.StartRun()),
    "a marker follows the input": ({}, (said(), began()), turn.MarkApplied()),
    "a call that an operator aborts ends the run": (
        MARKED,
        (*HELD, unknown(CALL), resolved(CALL, "abort")),
        turn.Complete("aborted"),
    ),
    "answers to unknown calls enter the log": (
        {**MARKED, "unknown_calls": known("never_started")},
        (*HELD, unknown(CALL)),
        "resolutions",
    ),
    "an unknown call without an answer seeks proof": (
        {**MARKED, "unknown_calls": known()},
        (*HELD, unknown(CALL)),
        "reconcile",
    ),
    "a prepared uncertain call seeks proof": (MARKED, HELD, "reconcile"),
    "a prepared idempotent call runs again": (
        MARKED,
        (said(), began(), responded(1, "note"), prepared(CALL, "idempotent")),
        "run",
    ),
    "a call that never started runs": (MARKED, (*HELD, unknown(CALL), resolved(CALL, "never_started")), "run"),
    "a declared call runs without the model": (MARKED, (said(), began(), responded(1, "charge")), "run"),
    "a response without calls completes": (
        MARKED,
        (said(), began(), responded(1, content="bye")),
        turn.Complete("completed", "bye"),
    ),
    "a request without a decision is waited for": (
        MARKED,
        (said(), began(), responded(1, "charge"), asked_approval(CALL)),
        "wait",
    ),
    "one open request holds the batch": (
        {**MARKED, "approvals": approvals(CALL)},
        (said(), began(), responded(1, "charge", "charge"), asked_approval(CALL), asked_approval(SECOND)),
        "wait",
    ),
    "decisions enter the log before they are honoured": (
        {**MARKED, "approvals": approvals(CALL)},
        (said(), began(), responded(1, "charge"), asked_approval(CALL)),
        "decide",
    ),
    "a decided call runs": (
        MARKED,
        (said(), began(), responded(1, "charge"), asked_approval(CALL), decided(CALL)),
        "run",
    ),
    "the first turn asks the model": (MARKED, (said(), began()), turn.CallModel(1)),
    "a finished batch asks for the next turn": (
        MARKED,
        (said(), began(), responded(1, "charge"), returned(CALL)),
        turn.CallModel(2),
    ),
    "input that waits joins behind a complete turn": (
        {**MARKED, "waiting": True},
        (said(), began(), responded(1, "note"), returned(CALL)),
        turn.Join(),
    ),
    "input that waits joins before the run decides to finish": (
        {**MARKED, "waiting": True},
        (said(), began(), responded(1)),
        turn.Join(),
    ),
    "input that joined is answered": (
        MARKED,
        (said(), began(), responded(1), joined("sub_2", 2)),
        turn.CallModel(2),
    ),
    "joined work settles with a host that has settled": (
        {"submission_id": "sub_2", "state": State.JOINED, "host_id": "sub_1"},
        (said(), began(), responded(1), joined("sub_2", 2), ended(), settled()),
        turn.SettleWithHost(settled()),
    ),
    "joined work waits for its host": (
        {"submission_id": "sub_2", "state": State.JOINED, "host_id": "sub_1"},
        (said(), began(), responded(1), joined("sub_2", 2)),
        turn.WaitForHost(),
    ),
    # the first match wins
    "nothing joins before the first turn": ({**MARKED, "waiting": True}, (said(), began()), turn.CallModel(1)),
    "nothing joins while calls are open": (
        {**MARKED, "waiting": True},
        (said(), began(), responded(1, "note", "note"), returned(CALL)),
        "second",
    ),
    "nothing joins a run that has decided to finish": (
        {**MARKED, "waiting": True},
        (said(), began(), responded(1), ended()),
        turn.Settle("completed"),
    ),
    "nothing joins a run whose abort was asked for": (
        {**MARKED, "waiting": True, "abort": ABORT},
        (said(), began(), responded(1), asked_abort()),
        "aborted",
    ),
    "nothing joins where no turn is left to serve it": (
        {**MARKED, "waiting": True},
        (said(), began(), *(responded(number) for number in range(1, 6))),
        turn.Complete("completed", "answer 5"),
    ),
    "joined work's own settlement beats its host": (
        {"submission_id": "sub_2", "state": State.JOINED, "host_id": "sub_1"},
        (said(), began(), responded(1), joined("sub_2", 2), settled(), settled(submission_id="sub_2")),
        turn.Finalize(),
    ),
    "joined work's reservation beats its host": (
        {"submission_id": "sub_2", "state": State.JOINED, "host_id": "sub_1", "reservation": reserved()},
        (said(), began(), responded(1), joined("sub_2", 2), settled()),
        turn.AppendReserved(),
    ),
    "history beats a reservation": ({"reservation": reserved("failed")}, (said(), began(), settled()), turn.Finalize()),
    "a reservation beats an abort": ({"reservation": reserved(), "abort": ABORT}, HELD, turn.AppendReserved()),
    "an outcome on record beats an abort": ({"abort": ABORT}, (said(), began(), ended()), turn.Settle("completed")),
    "an abort beats the input": ({"abort": ABORT}, (), turn.CloseForAbort(())),
    "an abort beats open calls": ({"abort": ABORT, **MARKED}, (said(), began(), responded(1, "charge")), "close"),
    "an abort beats a finished response": ({"abort": ABORT}, (said(), began(), responded(1), asked_abort()), "aborted"),
    "unproven calls come before the others": (
        MARKED,
        (said(), began(), responded(1, "charge", "note"), prepared(CALL)),
        "reconcile",
    ),
}


@pytest.mark.requirement("DUR-013", "DUR-015")
@pytest.mark.parametrize("name", TABLE)
def test_next_action(name: str) -> None:
    changes, records, expected = TABLE[name]
    changes = dict(changes)
    waiting = changes.pop("waiting", False)
    action = turn.next_action(a_row(**changes), a_view(*records), turns_max=5, waiting=waiting)
    match expected:
        case "failed":
            assert isinstance(action, turn.Settle)
            assert (action.outcome, action.error is not None) == ("failed", True)
        case "aborted":
            assert action == turn.Complete("aborted")
        case "second":
            assert isinstance(action, turn.RunCalls)
            assert [call.call.id for call in action.calls] == [SECOND]
        case "close":
            assert isinstance(action, turn.CloseForAbort)
        case "resolutions" | "reconcile" | "run" | "wait" | "decide":
            kinds = {
                "resolutions": turn.ApplyResolutions,
                "reconcile": turn.Reconcile,
                "run": turn.RunCalls,
                "wait": turn.AwaitApproval,
                "decide": turn.ApplyDecisions,
            }
            assert type(action) is kinds[expected]
            assert CALL in [call.call.id for call in action.calls]
        case _:
            assert action == expected


def test_every_action_has_a_row() -> None:
    named = {type(expected).__name__ for _, _, expected in TABLE.values()} | {
        "ApplyResolutions",
        "Reconcile",
        "RunCalls",
        "AwaitApproval",
        "ApplyDecisions",
        "SettleProven",
    }
    assert named >= {kind.__name__ for kind in turn.Action.__args__}


def test_an_abort_names_exactly_the_unproven_calls() -> None:
    records = (
        said(),
        began(),
        responded(1, "charge", "note", "charge"),
        prepared(CALL),
        prepared(SECOND, "idempotent"),
    )
    action = turn.next_action(a_row(abort=ABORT), a_view(*records), turns_max=5)
    assert isinstance(action, turn.CloseForAbort)
    assert [call.call.id for call in action.unproven] == [CALL]


def test_only_open_calls_run_and_all_of_them() -> None:
    """Results that are there are kept; a batch goes on where it stands (scenario K7)."""
    records = (said(), began(), responded(1, "a", "b", "c"), prepared(SECOND, "readonly"), returned(SECOND))
    action = turn.next_action(a_row(**MARKED), a_view(*records), turns_max=5)
    assert isinstance(action, turn.RunCalls)
    assert [call.position for call in action.calls] == [0, 2]


def test_one_missing_answer_holds_the_others_back() -> None:
    records = (
        said(),
        began(),
        responded(1, "a", "b"),
        prepared(CALL),
        prepared(SECOND),
        unknown(CALL),
        unknown(SECOND),
    )
    answered = {**known("never_started"), SECOND: UnknownCall(reason="?", since_ms=1)}
    action = turn.next_action(a_row(**MARKED, unknown_calls=answered), a_view(*records), turns_max=5)
    assert isinstance(action, turn.Reconcile)


@pytest.mark.requirement("DUR-009")
def test_a_call_that_is_proven_completed_is_settled_and_never_run() -> None:
    records = (said(), began(), responded(1, "charge"), prepared(CALL), resolved(CALL, "completed_with_result"))
    action = turn.next_action(a_row(**MARKED), a_view(*records), turns_max=5)
    assert isinstance(action, turn.SettleProven)
    assert [item.call.id for item in action.calls] == [CALL]


@pytest.mark.parametrize(("turns_max", "asks"), [(1, False), (2, True)])
def test_the_turn_limit_ends_a_run_with_a_typed_error(turns_max: int, asks: bool) -> None:
    records = (said(), began(), responded(1, "note"), returned(CALL))
    action = turn.next_action(a_row(**MARKED), a_view(*records), turns_max=turns_max)
    if asks:
        assert action == turn.CallModel(2)
    else:
        assert isinstance(action, turn.Complete)
        assert action.error is not None
        assert (action.outcome, action.error.code) == ("failed", "turn_limit")


def test_a_last_response_without_calls_completes_even_at_the_limit() -> None:
    action = turn.next_action(a_row(**MARKED), a_view(said(), began(), responded(1)), turns_max=1)
    assert action == turn.Complete("completed", "answer 1")


def test_another_submission_of_the_conversation_changes_nothing() -> None:
    before = (said("sub_0", 1), began("sub_0"), responded(1, "charge", submission_id="sub_0"))
    first = turn.next_action(a_row(state=State.RUNNING), a_view(*before), turns_max=5)
    assert first == turn.ApplyInput()
