"""Obligations in an operator's words: every open state says why it is open and whom it waits for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from local_crew import control

from laneway.recovery.obligations import Obligation, obligations, wants_look
from laneway.storage.contract import ControlRow, Quarantine
from laneway.storage.ledger import TERMINAL, Approval, Row, State, UnknownCall

NOW = 100_000


def look(row: ControlRow, **more: Any) -> Row:
    return Row(
        submission_id=row.submission_id,
        receipt_id="rcp",
        conversation_id=row.conversation_id,
        principal="alice",
        idempotency_key="key",
        input_digest="digest",
        queue_sequence=row.queue_sequence,
        input="",
        state=row.state,
        admitted_at_ms=0,
        updated_at_ms=0,
        **{"agent": "support", **more},
    )


def told(row: ControlRow, found: Row | None = None, **more: Any) -> Obligation:
    looks = {row.submission_id: found} if found is not None or more.pop("damaged", False) else {}
    (obligation,) = obligations([row], looks, more.get("quarantined", {}), more.get("agents", ("support",)), NOW)
    return obligation


@pytest.mark.requirement("DUR-014", "DUR-017")
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("state", [state for state in State if state not in {*TERMINAL, State.PROPOSED}])
def test_each_open_state_has_a_reason(state: State, live: bool) -> None:
    row = control(state, owner_live=live, owner_id="own", attempts=1)
    found = told(row, look(row) if wants_look(row, NOW) else None)
    assert found.why.endswith(".")
    expected = {
        State.UNKNOWN: "operator",
        State.SUSPENDED: "approver",
        State.JOINING: "host",
        State.JOINED: "host",
    }.get(state, "owner" if live else "supervisor")
    assert found.waits_for == expected


def test_what_is_behind_waits_for_the_head() -> None:
    rows = [
        control(State.UNKNOWN, 1, parked=True),
        control(State.RUNNING, 2, owner_live=True),
        control(State.READY, 3),
        control(State.READY, 4, not_before_ms=NOW + 1),
        control(State.READY, 1, "d"),
    ]
    found = obligations(rows, {}, {}, None, NOW)
    assert [item.waits_for for item in found] == ["operator", "owner", "queue", "queue", "supervisor"]
    assert [item.behind for item in found] == [None, None, "s2", "s2", None]
    assert "behind s2" in found[2].why


def test_work_that_waits_says_for_what() -> None:
    row = control(State.READY, not_before_ms=NOW + 9_000)
    assert wants_look(row, NOW)
    missing = told(row, look(row, agent="gone"))
    assert (missing.waits_for, missing.agent) == ("agent", "gone")
    assert missing.why == "No agent is named 'gone' in this runtime; it is offered again in 9 s."
    assert told(row, look(row)).waits_for == "time"
    assert told(row, look(row, agent="gone"), agents=None).waits_for == "time"
    due = control(State.READY, not_before_ms=NOW)
    assert not wants_look(due, NOW)
    assert told(due).waits_for == "supervisor"


def test_unknown_calls_and_approvals_are_named() -> None:
    unknown = control(State.UNKNOWN)
    calls = {
        "call_1": UnknownCall(reason="lost", since_ms=0),
        "call_2": UnknownCall(reason="lost", since_ms=0, resolution="abort"),
    }
    assert told(unknown, look(unknown, unknown_calls=calls)).why == (
        "The outcome is unknown of call_1; somebody has to resolve it."
    )
    asked = control(State.SUSPENDED)
    approvals = {
        "apr_1": Approval(call_id="call_1", input_digest="d", requested=True),
        "apr_2": Approval(call_id="call_2", input_digest="d", requested=True, decision="approved"),
        "apr_3": Approval(call_id="call_3", input_digest="d"),
    }
    assert told(asked, look(asked, approvals=approvals)).why == "A person has to decide on apr_1."


def test_damage_and_quarantine_come_first() -> None:
    row = control(State.UNKNOWN)
    assert told(row, damaged=True).why == "Its row in the ledger cannot be read."
    held = Quarantine(conversation_id="c", reason="broken", author="lane", since_ms=1)
    found = told(control(State.RUNNING, owner_live=True), quarantined={"c": held})
    assert (found.waits_for, found.quarantined) == ("operator", True)
    assert found.why == "Its conversation is quarantined by lane: broken"


def test_ages_count_from_admission_and_from_the_last_change() -> None:
    found = told(control(State.READY, admitted_at_ms=NOW - 5_000, updated_at_ms=NOW - 2_000))
    assert (found.age_s, found.unchanged_s) == (5.0, 2.0)
    early = told(control(State.READY, admitted_at_ms=NOW + 5_000, updated_at_ms=NOW + 5_000))
    assert (early.age_s, early.unchanged_s) == (0.0, 0.0)
    assert msgspec.json.encode(found)
