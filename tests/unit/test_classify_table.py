"""The classifier as a table: one row a decision, first match wins, and total over everything reachable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from agreement import FIRST_ACTIONS, NOBODY_DRIVES, disagreement
from lane_records import (
    ABORT,
    a_row,
    a_view,
    asked_approval,
    began,
    call_id,
    ended,
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
from laneway.recovery import classify as module
from laneway.recovery.classify import Evidence, classify
from laneway.storage.ledger import Approval, State, UnknownCall
from laneway.storage.records import AnyRecord

CALL, SECOND = call_id(1, 0), call_id(1, 1)
MARKED: dict[str, Any] = {"input_sequence": 1}
DECLARED: tuple[AnyRecord, ...] = (said(), began(), responded(1, "charge"))
HELD = (*DECLARED, prepared(CALL))
TWO: tuple[AnyRecord, ...] = (said(), began(), responded(1, "charge", "charge"), prepared(CALL))
WAITING = {CALL: UnknownCall(reason="?", since_ms=1)}
ANSWERED = {CALL: UnknownCall(reason="?", since_ms=1, resolution="never_started", author="ann")}
PENDING = {f"apr_{CALL}": Approval(call_id=CALL, input_digest="d", requested=True)}
DECIDED = {f"apr_{CALL}": Approval(call_id=CALL, input_digest="d", requested=True, decision="approved")}
HOST = a_row("sub_0", state=State.RUNNING)
HOST_SETTLED = a_row("sub_0", state=State.COMPLETED)

TABLE: list[tuple[str, dict[str, Any], Any, tuple[AnyRecord, ...]]] = [
    ("nothing", {"state": State.COMPLETED, "outcome": "completed"}, None, (said(), settled())),
    ("nothing", {"state": State.FAILED, "outcome": "failed"}, None, (said(), settled("failed"))),
    ("nothing", {"state": State.ABORTED, "outcome": "aborted", "abort": ABORT}, None, (settled("aborted"),)),
    ("finalize", {"state": State.TERMINALIZING}, None, (said(), began(), settled())),
    ("append_reservation", {"state": State.TERMINALIZING, "reservation": reserved()}, None, (said(), began(), ended())),
    ("revert_joining", {"state": State.JOINING, "host_id": "sub_0"}, HOST, ()),
    ("repair_joined", {"state": State.JOINING, "host_id": "sub_0"}, HOST, (said(),)),
    ("settle_with_host", {"state": State.JOINED, "host_id": "sub_0"}, HOST_SETTLED, (said(),)),
    ("wait_for_host", {"state": State.JOINED, "host_id": "sub_0"}, HOST, (said(),)),
    ("settle_aborted", {"state": State.READY, "abort": ABORT}, None, ()),
    (
        "settle_aborted",
        {"state": State.RECOVERY, **MARKED},
        None,
        (*HELD, unknown(CALL), resolved(CALL, "abort")),
    ),
    (
        "settle_proven",
        {"state": State.RECOVERY, **MARKED},
        None,
        (*HELD, resolved(CALL, "completed_with_result")),
    ),
    ("wait_unknown", {"state": State.UNKNOWN, "unknown_calls": WAITING}, None, (*HELD, unknown(CALL))),
    ("apply_resolutions", {"state": State.READY, "unknown_calls": ANSWERED}, None, (*HELD, unknown(CALL))),
    ("reconcile", {"state": State.RECOVERY, **MARKED}, None, HELD),
    ("wait_approval", {"state": State.SUSPENDED, "approvals": PENDING}, None, (*DECLARED, asked_approval(CALL))),
    ("resume_decided", {"state": State.READY, "approvals": DECIDED}, None, (*DECLARED, asked_approval(CALL))),
    ("repair_suspension", {"state": State.RECOVERY, "approvals": {}}, None, (*DECLARED, asked_approval(CALL))),
    ("finish_materialization", {"state": State.ADMITTED}, None, ()),
    ("apply_input", {"state": State.RECOVERY}, None, ()),
    ("repair_input_marker", {"state": State.RECOVERY}, None, (said(),)),
    ("resume_batch", {"state": State.RECOVERY, **MARKED}, None, DECLARED),
    ("finish", {"state": State.RECOVERY, **MARKED}, None, (said(), began(), ended())),
    ("resume_turn", {"state": State.RECOVERY, **MARKED}, None, (said(), began())),
    ("resume_turn", {"state": State.RECOVERY, **MARKED}, None, (*DECLARED, returned(CALL))),
    # the first match wins
    ("nothing", {"state": State.COMPLETED, "reservation": reserved(), "abort": ABORT}, None, HELD),
    (
        "finalize",
        {"state": State.RECOVERY, "reservation": reserved("failed"), "abort": ABORT},
        None,
        (said(), settled()),
    ),
    ("append_reservation", {"state": State.TERMINALIZING, "reservation": reserved(), "abort": ABORT}, None, HELD),
    ("append_reservation", {"state": State.JOINED, "host_id": "sub_0", "reservation": reserved()}, HOST, (said(),)),
    (
        "append_reservation",
        {"state": State.JOINED, "host_id": "sub_0", "reservation": reserved()},
        HOST_SETTLED,
        (said(),),
    ),
    ("revert_joining", {"state": State.JOINING, "host_id": "sub_0", "abort": ABORT}, HOST, ()),
    ("settle_aborted", {"state": State.UNKNOWN, "abort": ABORT, "unknown_calls": WAITING}, None, HELD),
    ("settle_aborted", {"state": State.SUSPENDED, "abort": ABORT}, None, (*DECLARED, asked_approval(CALL))),
    ("settle_aborted", {"state": State.ADMITTED, "abort": ABORT}, None, ()),
    ("finish", {"state": State.RECOVERY, "abort": ABORT, **MARKED}, None, (said(), began(), ended())),  # K16
    ("finish", {"state": State.RECOVERY, **MARKED}, None, (*HELD, ended("failed"))),
    (
        "finish",
        {"state": State.RECOVERY, **MARKED},
        None,
        (*HELD, unknown(CALL), resolved(CALL, "abort"), ended("aborted")),
    ),
    ("append_reservation", {"state": State.TERMINALIZING, "reservation": reserved()}, None, (*HELD, ended())),
    ("resume_batch", {"state": State.RECOVERY}, None, DECLARED),  # before the marker, which changes nothing for it
    (
        "settle_proven",
        {"state": State.RECOVERY, **MARKED},
        None,
        (*TWO, prepared(SECOND), resolved(CALL, "completed_with_result")),
    ),
    (
        "reconcile",  # an answer to one of two calls waits for the other
        {"state": State.RECOVERY, **MARKED, "unknown_calls": ANSWERED},
        None,
        (*TWO, prepared(SECOND), unknown(CALL), unknown(SECOND)),
    ),
    ("wait_unknown", {"state": State.UNKNOWN, "unknown_calls": WAITING}, None, HELD),
    ("reconcile", {"state": State.RECOVERY}, None, HELD),  # before the marker: nothing may run meanwhile
    (
        "resume_batch",
        {"state": State.RECOVERY, **MARKED},
        None,
        (*HELD, unknown(CALL), resolved(CALL, "never_started")),
    ),
]


@pytest.mark.requirement("DUR-009", "DUR-013", "DUR-015")
@pytest.mark.parametrize("index", range(len(TABLE)), ids=[f"{i}-{row[0]}" for i, row in enumerate(TABLE)])
def test_classify(index: int) -> None:
    expected, changes, host, records = TABLE[index]
    evidence = Evidence(a_row(**changes), host, a_view(*records))
    decision = classify(evidence)
    assert decision.name == expected
    assert decision.sentence.endswith(".")
    assert classify(evidence) == decision  # F19: the same snapshot, the same decision


def test_every_decision_has_a_row() -> None:
    source = Path(module.__file__).read_text()
    names = set(re.findall(r'Decision\(\s*"([a-z_]+)"', source))
    assert names == {row[0] for row in TABLE}
    assert names == {*FIRST_ACTIONS, *NOBODY_DRIVES}


@pytest.mark.requirement("DUR-013")
@pytest.mark.parametrize("index", range(len(TABLE)), ids=[f"{i}-{row[0]}" for i, row in enumerate(TABLE)])
def test_the_turn_machine_does_what_was_decided(index: int) -> None:
    decided, changes, host, records = TABLE[index]
    row = a_row(**changes)
    if host is HOST_SETTLED and host is not None:
        records = (settled(submission_id=host.submission_id), *records)  # a host's row is closed from the log
    view = a_view(*records)
    assert disagreement(decided, turn.next_action(row, view, turns_max=3), row, view) is None


def test_uncertain_calls_are_named() -> None:
    """K8, K11: an operator reads which calls are in doubt."""
    decision = classify(Evidence(a_row(state=State.RECOVERY, **MARKED), None, a_view(*HELD)))
    assert decision.calls == (CALL,)


@pytest.mark.requirement("DUR-009")
@pytest.mark.parametrize(
    ("effect", "more", "uncertain"),
    [
        ("uncertain", (), True),
        ("uncertain", (unknown(CALL),), True),
        ("idempotent", (), False),
        ("readonly", (), False),
        ("uncertain", (returned(CALL),), False),
        ("uncertain", (unknown(CALL), resolved(CALL, "safe_to_retry")), False),
        ("uncertain", (unknown(CALL), resolved(CALL, "never_started"), prepared(CALL, number=2)), True),
    ],
)
def test_what_makes_a_call_uncertain(effect: Any, more: tuple[AnyRecord, ...], uncertain: bool) -> None:
    """A new preparation makes it uncertain again: the call may be in flight once more."""
    view = a_view(*DECLARED, prepared(CALL, effect), *more)
    assert module.is_uncertain(view.calls[CALL]) is uncertain
