"""What an operator reads of a submission: state, evidence, and what comes next, from stored facts alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from lane_records import (
    ABORT,
    a_row,
    a_view,
    asked_approval,
    began,
    call_id,
    ended,
    prepared,
    responded,
    said,
    settled,
    unknown,
)
from local_crew import control

from laneway.recovery.classify import Evidence
from laneway.recovery.explain import explain
from laneway.storage.contract import ControlRow, Quarantine
from laneway.storage.ledger import Approval, State, UnknownCall
from laneway.storage.records import AnyRecord, ErrorFact, SubmissionSettled

CALL = call_id(1, 0)
NOW = 100_000
MARKED: dict[str, Any] = {"input_sequence": 1}
DECLARED: tuple[AnyRecord, ...] = (said(), began(), responded(1, "charge"))
LOST = {CALL: UnknownCall(reason="the answer was lost", since_ms=NOW - 60_000)}
PENDING = {f"apr_{CALL}": Approval(call_id=CALL, input_digest="d", requested=True)}

DONE: dict[str, Any] = {"state": State.COMPLETED, "outcome": "completed"}


def ahead_of(state: State, name: str = "sub_0", **more: Any) -> ControlRow:
    return msgspec.structs.replace(control(state, 0, **more), submission_id=name)


# row, log, behind another, a live owner: what `why` and `next` must hold
TABLE: list[tuple[dict[str, Any], tuple[AnyRecord, ...], bool, bool, str, str]] = [
    (
        {"state": State.COMPLETED, "outcome": "completed"},
        (said(), settled()),
        False,
        False,
        "settled as completed",
        "Nothing",
    ),
    (
        {"state": State.RUNNING, **MARKED},
        (said(), began()),
        False,
        True,
        "asks the model for turn 1",
        "process be lost",
    ),
    ({"state": State.RUNNING, **MARKED}, DECLARED, False, True, "it runs charge of turn 1", "goes on"),
    ({"state": State.RUNNING, **MARKED}, (said(), began(), ended()), False, True, "being settled", "goes on"),
    ({"state": State.RUNNING}, (), False, True, "its input enters the log", "goes on"),
    ({"state": State.RUNNING, "attempts": 1, **MARKED}, DECLARED, False, False, "is lost", "next sweep claims it"),
    ({"state": State.READY}, (), True, False, "behind 1 open submission; the first, sub_0, is running", "It runs when"),
    (
        {"state": State.READY, "steers": "sub_0"},
        (),
        True,
        False,
        "for the run of sub_0, which has come to no boundary",
        "behind its next complete turn",
    ),
    ({"state": State.READY, "steers": "sub_9"}, (), True, False, "behind 1 open submission", "It runs when"),
    ({"state": State.READY}, (), False, False, "Nobody has claimed it yet", "next sweep"),
    ({"state": State.READY, "not_before_ms": NOW + 9_000, "attempts": 1}, (), False, False, "again in 9 s", "input"),
    (
        {"state": State.UNKNOWN, "unknown_calls": LOST, **MARKED},
        (*DECLARED, prepared(CALL), unknown(CALL)),
        False,
        False,
        "somebody has to resolve it",
        "the conversation waits with it",
    ),
    (
        {"state": State.UNKNOWN, "unknown_calls": LOST, "parked": True, **MARKED},
        (*DECLARED, prepared(CALL), unknown(CALL)),
        False,
        False,
        "somebody has to resolve it",
        "later submissions go on meanwhile",
    ),
    (
        {"state": State.SUSPENDED, "approvals": PENDING, "not_before_ms": NOW + 5_000, **MARKED},
        (*DECLARED, asked_approval(CALL)),
        False,
        False,
        "waits for somebody's approval",
        "counts as a denial in 5 s",
    ),
]


@pytest.mark.requirement("DUR-013")
@pytest.mark.parametrize("index", range(len(TABLE)))
def test_explain(index: int) -> None:
    changes, records, behind, live, why, after = TABLE[index]
    ahead = [ahead_of(State.RUNNING)] if behind else []
    told = explain(Evidence(a_row(**changes), None, a_view(*records)), ahead, owner_live=live, now_ms=NOW)
    assert why in told.why
    assert after in told.next
    assert told.state == str(changes["state"])


def test_an_unknown_call_is_named_with_its_tool_and_the_ways_out() -> None:
    row = a_row(state=State.UNKNOWN, unknown_calls=LOST, **MARKED)
    view = a_view(*DECLARED, prepared(CALL), unknown(CALL))
    told = explain(Evidence(row, None, view), [], owner_live=False, now_ms=NOW)
    (waiting,) = told.waits_for
    assert waiting == {
        "kind": "unknown",
        "tool": "charge",
        "arguments": "{}",
        "call_id": CALL,
        "turn": 1,
        "reason": "the answer was lost",
        "since_ms": NOW - 60_000,
    }
    assert [action.split()[1] for action in told.actions] == ["resolve"] * 4 + ["abort"]


def test_an_abort_that_was_asked_for_is_part_of_the_evidence() -> None:
    told = explain(Evidence(a_row(abort=ABORT), None, a_view()), [], owner_live=False, now_ms=NOW)
    assert "bob asked for its abort: enough" in told.evidence
    assert told.decision == "settle_aborted"


def test_settled_work_offers_nothing_to_do() -> None:
    row = a_row(state=State.ABORTED, outcome="aborted", abort=ABORT)
    told = explain(Evidence(row, None, a_view(settled("aborted"))), [], owner_live=False, now_ms=NOW)
    assert (told.actions, told.waits_for) == ((), ())


def test_joined_work_is_ended_through_its_host() -> None:
    """An abort of it alone is refused, so none is offered."""
    row = a_row("sub_2", state=State.JOINED, host_id="sub_1", queue_sequence=2)
    told = explain(Evidence(row, a_row(state=State.RUNNING), a_view(said("sub_2", 2))), (), owner_live=True, now_ms=NOW)
    assert told.actions == ("laneway abort sub_1",)
    assert told.decision == "wait_for_host"


def test_failed_work_tells_its_error_and_the_retry() -> None:
    error = ErrorFact(code="model_failed", message="no answer")
    record = SubmissionSettled(id="rec_s", settlement_id="s", submission_id="sub_1", outcome="failed", error=error)
    row = a_row(state=State.FAILED, outcome="failed")
    told = explain(Evidence(row, None, a_view(said(), record)), [], owner_live=False, now_ms=NOW)
    assert told.why == "It is settled as failed, model_failed: no answer"
    assert told.actions == ("laneway retry sub_1 --author NAME",)
    unsure = a_row(state=State.FAILED, outcome="failed", unknown_calls=LOST)
    told = explain(Evidence(unsure, None, a_view(said(), record)), [], owner_live=False, now_ms=NOW)
    assert told.actions == ()  # a retry is refused while nobody knows what became of the call


def test_quarantined_work_names_the_quarantine_and_its_release() -> None:
    held = Quarantine(conversation_id="an order", reason="looking", author="ann", since_ms=1)
    row = a_row(state=State.READY, conversation_id="an order")
    told = explain(Evidence(row, None, a_view()), [], owner_live=False, now_ms=NOW, quarantine=held)
    assert told.why == "Its conversation is quarantined by ann: looking"
    assert "before its quarantine is released" in told.next
    assert told.actions[0] == "laneway quarantine release 'an order' --author NAME"
    running = a_row(state=State.RUNNING, conversation_id="an order", **MARKED)
    told = explain(Evidence(running, None, a_view()), [], owner_live=True, now_ms=NOW, quarantine=held)
    assert told.actions == ("laneway abort sub_1",)  # what runs already comes to its end


def test_parked_work_is_nobodys_head() -> None:
    ahead = [ahead_of(State.UNKNOWN, parked=True)]
    row = Evidence(a_row(state=State.READY), None, a_view())
    told = explain(row, ahead, owner_live=False, now_ms=NOW)
    assert (told.behind, "Nobody has claimed it yet" in told.why) == ((), True)
    told = explain(row, [*ahead, ahead_of(State.RUNNING, "sub_7")], owner_live=False, now_ms=NOW)
    assert told.behind == ("sub_7",)
    assert "behind 1 open submission; the first, sub_7, is running" in told.why


def test_a_missing_agent_is_named() -> None:
    row = a_row(state=State.READY, not_before_ms=NOW + 9_000, attempts=1, agent="gone")
    told = explain(Evidence(row, None, a_view()), [], owner_live=False, now_ms=NOW, agents=("support",))
    assert told.why == "No agent is named 'gone' in this runtime; it is offered again in 9 s."
    assert "is registered" in told.next
    told = explain(Evidence(row, None, a_view()), [], owner_live=False, now_ms=NOW, agents=None)
    assert "may be claimed again in 9 s" in told.why
