"""Scenarios, section 3, settlement, abort and Unknown (DUR-002, DUR-009, DUR-011, DUR-012, DUR-017)."""

from __future__ import annotations

import math

import msgspec
import pytest
from store_builders import (
    Clock,
    Conversation,
    Maker,
    append_of,
    body_of,
    input_record,
    note,
    reserve,
    settlement,
    settling,
)

from laneway.storage.commands import (
    Finalize,
    MarkUnknown,
    NotClaimed,
    RequestAbort,
    ReserveSettlement,
    ResolveUnknown,
    Resume,
)
from laneway.storage.errors import Fenced, InvalidInput, Refused
from laneway.storage.ledger import State
from laneway.storage.records import ErrorFact, RecoveryDecided, SubmissionSettled, ToolCallUnknown


def abort(submission_id: str, abort_id: str = "abt_1") -> RequestAbort:
    return RequestAbort(submission_id=submission_id, abort_id=abort_id, author="alice", reason="changed my mind")


def unknown(*calls: str, park: bool = False) -> MarkUnknown:
    return MarkUnknown(submission_id="sub_1", calls=dict.fromkeys(calls, "no proof"), park=park)


def resolve(call_id: str, resolution: str = "never_started", result: object = None) -> ResolveUnknown:
    return ResolveUnknown(
        submission_id="sub_1",
        call_id=call_id,
        resolution=resolution,
        author="operator",
        reason="looked it up",
        result=result,
    )


# --- settlement ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("DUR-002", "DUR-011")
def test_reserve_append_finalize(make: Maker, lane: Conversation, clock: Clock) -> None:
    """Section 3 settlement: each step is idempotent, finalize keeps the first time, the row is closed for good."""
    lane.start("sub_1")
    record = settlement("sub_1", output={"text": "done"})
    assert lane.do(reserve(record))[0].state is State.TERMINALIZING
    assert lane.do(reserve(record))[0].replayed
    assert lane.refused(Finalize(submission_id="sub_1")).code == "settlement_not_canonical"
    lane.append("sub_1", record)
    assert lane.do(Finalize(submission_id="sub_1"))[0].state is State.COMPLETED
    first = lane.row("sub_1")
    clock.advance(1000)
    assert lane.do(Finalize(submission_id="sub_1"))[0].replayed
    lane = Conversation(make.reopen(lane.store))
    assert lane.do(Finalize(submission_id="sub_1"))[0].replayed
    row = lane.row("sub_1")
    assert (row.outcome, row.settled_at_ms, row.settlement_sequence) == ("completed", first.settled_at_ms, 2)
    assert (row.owner_id, row.input) == (None, "")
    assert lane.store.scan_nonterminal().rows == ()


@pytest.mark.requirement("DUR-011")
def test_another_settlement_is_refused(make: Maker, lane: Conversation) -> None:
    """Section 3 settlement: other outcome or other content, before and after the append and the finalization."""
    lane.start("sub_1")
    record = settlement("sub_1", output=1)
    lane.do(reserve(record))
    others = [settlement("sub_1", output=2), settlement("sub_1", "failed"), settlement("sub_1", "aborted")]
    for other in others:
        assert lane.refused(reserve(other)).code == "settlement_conflict"
        assert lane.refused(append_of("sub_1", other)).code == "settlement_conflict"
    lane.append("sub_1", record)
    lane.do(Finalize(submission_id="sub_1"))
    lane = Conversation(make.reopen(lane.store), grant=lane.grant)
    for other in others:
        assert lane.refused(reserve(other)).code == "settlement_conflict"
        assert isinstance(lane.refused(append_of("sub_1", other, batch_id="other")), Fenced)


@pytest.mark.requirement("DUR-011")
def test_the_final_unit_again_gets_its_first_answer(make: Maker, lane: Conversation) -> None:
    """F16: the answer to reserve+append+finalize is lost; its repeat is accepted as a replay, whatever came between."""
    lane.start("sub_1")
    unit = lane.unit(*settling(settlement("sub_1", output="x")))
    first = lane.store.commit([unit])[0]
    again = lane.store.commit([unit])[0]
    lane = Conversation(make.reopen(lane.store))
    lane.submit("sub_2")
    state = lane.state()
    restarted = lane.store.commit([unit])[0]
    for answer in (again, restarted):
        assert all(result.replayed for result in answer.results)
        assert answer.results[1].digest == first.results[1].digest
    assert lane.state() == state


@pytest.mark.requirement("DUR-011")
def test_the_reserved_record_is_the_one_in_the_log_byte_for_byte(lane: Conversation) -> None:
    """K17: another attempt appends the reserved record; its bytes equal the reservation's."""
    lane.start("sub_1")
    record = settlement("sub_1", output={"b": 1, "a": [1.5, "é\u0000"]})
    lane.do(reserve(record))
    lane.store.retire_owner("o1")
    grant = lane.claim("o2")
    assert grant.recovering
    assert grant.row.state is State.TERMINALIZING
    assert grant.row.reservation is not None
    lane.do(append_of("sub_1", record), Finalize(submission_id="sub_1"))
    assert lane.batches()[-1].body == grant.row.reservation.body == body_of(record)


def test_a_reservation_is_compared_by_value(lane: Conversation) -> None:
    """Section 3: by JSON value, not by key order; what is appended is the canonical form."""
    lane.start("sub_1")
    record = settlement("sub_1", output={"a": 1, "b": 2})
    turned = body_of(record).replace('{"a":1,"b":2}', '{"b": 2, "a": 1}')
    assert turned != body_of(record)
    command = reserve(record)
    lane.do(msgspec.structs.replace(command, body=turned))
    assert lane.do(command)[0].replayed
    lane.do(append_of("sub_1", record), Finalize(submission_id="sub_1"))


@pytest.mark.parametrize(
    ("outcome", "record", "code"),
    [
        ("failed", settlement("sub_1"), "settlement_invalid"),
        ("completed", settlement("sub_2"), "settlement_invalid"),
        ("aborted", settlement("sub_1", "aborted", output="x"), "settlement_invalid"),
        ("completed", settlement("sub_1", error=ErrorFact(code="x", message="x")), "settlement_invalid"),
        (
            "failed",
            settlement("sub_1", "failed", error=ErrorFact(code="x", message="x" * 20_000)),
            "settlement_invalid",
        ),
        ("completed", note("x"), "settlement_invalid"),
    ],
    ids=["outcome", "submission", "aborted-output", "completed-error", "large-error", "no-settlement"],
)
def test_a_settlement_keeps_to_its_form(lane: Conversation, outcome: str, record: SubmissionSettled, code: str) -> None:
    """Section 3 settlement: failed carries a bounded error, aborted carries no result."""
    lane.start("sub_1")
    command = ReserveSettlement(
        submission_id="sub_1",
        settlement_id="set_sub_1",
        outcome=outcome,
        body=body_of(record),
    )
    assert lane.refused(command).code == code


def test_a_settlement_that_does_not_decode_is_bad_input(lane: Conversation) -> None:
    """F25: what the caller broke is the caller's error, never `store_corrupt`."""
    lane.start("sub_1")
    for body in ("nonsense", "[]", "[" * 100_000):
        command = ReserveSettlement(submission_id="sub_1", settlement_id="s", outcome="completed", body=body)
        assert isinstance(lane.refused(command), InvalidInput)


def test_nothing_but_notes_follows_a_settlement(lane: Conversation) -> None:
    """DUR-002: once the settlement stands, no record of the work; a recovery decision and a note may."""
    lane.start("sub_1")
    record = settlement("sub_1")
    lane.do(reserve(record), append_of("sub_1", record))
    late = ToolCallUnknown(id="late", run_id="r", call_id="c", reason="x")
    assert lane.refused(append_of("sub_1", late)).code == "already_settled"
    decided = RecoveryDecided(id="d", submission_id="sub_1", attempt_id="a", epoch=1, decision="finalize", evidence="")
    lane.do(append_of("sub_1", decided), Finalize(submission_id="sub_1"))
    assert isinstance(lane.refused(append_of("sub_1", note("later"))), Fenced)


def test_work_that_is_not_running_is_not_settled(lane: Conversation) -> None:
    """Section 3 settlement: ready work has no outcome but by its abort."""
    lane.submit("sub_1")
    assert isinstance(lane.refused(reserve(settlement("sub_1"))), Fenced)
    assert isinstance(lane.refused(reserve(settlement("sub_1", "aborted"))), Fenced)


# --- abort -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("DUR-012")
def test_the_first_abort_wins(lane: Conversation) -> None:
    """Section 3, K21: abort needs no fence, the same again is idempotent, another is answered with the first."""
    lane.start("sub_1")
    lane.grant, grant = None, lane.grant
    first = lane.do(abort("sub_1"))[0]
    assert not first.replayed
    for again in (abort("sub_1"), abort("sub_1", "abt_2")):
        result = lane.do(again)[0]
        assert (result.replayed, result.abort) == (True, first.abort)
    row = lane.row("sub_1")
    assert row.abort == first.abort
    assert lane.store.scan_nonterminal().rows[0].abort_requested
    lane.grant = grant
    lane.settle("sub_1", "aborted")
    assert lane.do(abort("sub_1"))[0].replayed
    assert lane.refused(abort("sub_1", "abt_2")).code == "already_settled"


@pytest.mark.requirement("DUR-012")
def test_settled_work_is_never_aborted(make: Maker, lane: Conversation) -> None:
    """DUR-012: a completed or failed submission cannot later become aborted."""
    lane.start("sub_1")
    lane.settle("sub_1", "failed")
    lane = Conversation(make.reopen(lane.store))
    error = lane.refused(abort("sub_1"))
    assert (error.code, error.details["outcome"]) == ("already_settled", "failed")
    assert lane.refused(reserve(settlement("sub_1", "aborted"))).code == "settlement_conflict"


@pytest.mark.requirement("DUR-012")
def test_an_abort_authorises_exactly_an_aborted_settlement(lane: Conversation) -> None:
    """Specification 13: the intent alone settles work that nobody runs, as aborted, with its evidence and no more."""
    lane.submit("sub_1")
    lane.do(abort("sub_1"))
    assert lane.refused(reserve(settlement("sub_1"))).code == "not_authorised"
    assert lane.refused(append_of("sub_1", input_record("sub_1"))).code == "not_authorised"
    lane.settle("sub_1", "aborted")
    assert lane.row("sub_1").state is State.ABORTED


def test_a_running_submission_is_aborted_by_its_owner_alone(lane: Conversation) -> None:
    """Specification 13: active work is not settled under its owner's feet."""
    lane.start("sub_1")
    lane.do(abort("sub_1"))
    lane.grant = None
    assert isinstance(lane.refused(reserve(settlement("sub_1", "aborted"))), Fenced)


def test_an_abort_that_stopped_half_way_is_finished(make: Maker, lane: Conversation) -> None:
    """K20: reserved by the intent, then a crash: anyone finishes it, with or without a claim."""
    for number, with_claim in ((1, False), (2, True)):
        name = f"sub_{number}"
        record = settlement(name, "aborted")
        lane.submit(name)
        lane.do(abort(name))
        lane.do(reserve(record))
        lane = Conversation(make.reopen(lane.store))
        assert lane.row(name).state is State.TERMINALIZING
        if with_claim:
            assert lane.claim("o2").row.submission_id == name
        lane.do(append_of(name, record))
        lane.do(Finalize(submission_id=name))
        assert lane.row(name).state is State.ABORTED
        lane.grant = None
    lane.check_chain()


# --- Unknown ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("DUR-009", "DUR-017")
def test_unknown_work_holds_its_lane(make: Maker, lane: Conversation) -> None:
    """Section 3 Unknown, K8: the obligation stays open and visible, takes no permit, and claims grant nothing."""
    lane.start("sub_1")
    lane.do(unknown("call_1"))
    lane.submit("sub_2")
    lane = Conversation(make.reopen(lane.store))
    assert lane.try_claim("o2") == NotClaimed(reason="unknown", submission_id="sub_1")
    control = lane.store.scan_nonterminal().rows[0]
    assert (control.state, control.owner_live) == (State.UNKNOWN, False)


@pytest.mark.requirement("DUR-009")
def test_marking_is_idempotent_and_can_extend(lane: Conversation, clock: Clock) -> None:
    """Section 3 Unknown: mark again changes nothing, another call is added, the first time is kept."""
    lane.start("sub_1")
    lane.do(unknown("call_1"))
    first = lane.row("sub_1").unknown_calls["call_1"]
    clock.advance(5)
    assert lane.do(unknown("call_1"))[0].replayed
    assert not lane.do(unknown("call_1", "call_2"))[0].replayed
    calls = lane.row("sub_1").unknown_calls
    assert (set(calls), calls["call_1"]) == ({"call_1", "call_2"}, first)
    assert isinstance(lane.refused(unknown()), InvalidInput)


@pytest.mark.requirement("DUR-009", "DUR-017")
def test_the_lane_reopens_when_every_call_is_covered(make: Maker, lane: Conversation) -> None:
    """Section 3 Unknown: a partial resolution keeps it closed; the resolution has an author and a reason."""
    lane.start("sub_1")
    lane.do(unknown("call_1", "call_2"))
    lane.grant = None
    assert lane.do(resolve("call_1", "completed_with_result", {"paid": True}))[0].state is State.UNKNOWN
    assert lane.try_claim("o2") == NotClaimed(reason="unknown", submission_id="sub_1")
    assert lane.do(resolve("call_1", "completed_with_result", {"paid": True}))[0].replayed
    assert lane.refused(resolve("call_1", "never_started")).code == "already_resolved"
    assert lane.refused(resolve("call_1", "completed_with_result", {"paid": 1})).code == "already_resolved"
    assert lane.refused(resolve("call_9")).code == "call_not_unknown"
    assert lane.do(resolve("call_2"))[0].state is State.READY
    lane = Conversation(make.reopen(lane.store))
    call = lane.claim("o2").row.unknown_calls["call_1"]
    assert (call.resolution, call.author, call.note, call.result) == (
        "completed_with_result",
        "operator",
        "looked it up",
        {"paid": True},
    )


@pytest.mark.parametrize(
    "result", [math.nan, math.inf, "\ud800", 2**64, {1: 2}, object()], ids=lambda value: type(value).__name__
)
def test_a_resolution_carries_a_json_value(lane: Conversation, result: object) -> None:
    """F25: NaN, lone surrogates and integers beyond 64 bits are refused, never changed in silence."""
    lane.start("sub_1")
    lane.do(unknown("call_1"))
    assert isinstance(lane.refused(resolve("call_1", "completed_with_result", result)), InvalidInput)


@pytest.mark.requirement("DUR-009")
def test_a_call_that_is_lost_again_is_unknown_again(lane: Conversation) -> None:
    """DUR-009: resolved as safe to retry, run again, lost again: it needs a new resolution, and can get one."""
    lane.start("sub_1")
    lane.do(unknown("call_1"))
    lane.do(resolve("call_1", "safe_to_retry"))
    lane.claim("o2")
    lane.do(unknown("call_1"))
    assert lane.row("sub_1").unknown_calls["call_1"].resolution is None
    assert lane.try_claim("o3") == NotClaimed(reason="unknown", submission_id="sub_1")
    assert lane.do(resolve("call_1", "never_started"))[0].state is State.READY


@pytest.mark.requirement("DUR-017")
def test_parked_unknown_work_lets_later_rows_pass(make: Maker, lane: Conversation) -> None:
    """Design 5: parked: later input runs, the stale attempt is fenced off, and the parked row comes back first."""
    lane.start("sub_1")
    lane.do(unknown("call_1", park=True))
    stale = lane.fence()
    lane.submit("sub_2")
    lane.submit("sub_3")
    lane = Conversation(make.reopen(lane.store))
    assert lane.claim("o2").row.submission_id == "sub_2"
    assert isinstance(lane.refused(append_of("sub_1", note("late")), fence=stale), Fenced)
    lane.apply_input("sub_2", 2)
    lane.do(resolve("call_1"))
    assert lane.try_claim("o3") == NotClaimed(reason="owned")
    lane.settle("sub_2")
    assert lane.claim("o3").row.submission_id == "sub_1"
    lane.check_chain()


@pytest.mark.requirement("DUR-012", "DUR-017")
def test_an_abort_of_unknown_work_keeps_the_evidence(lane: Conversation) -> None:
    """Section 3 Unknown: it settles as aborted without an attempt, and the call stays on record as unknown."""
    lane.start("sub_1")
    evidence = ToolCallUnknown(id="rec_u", run_id="run_sub_1", call_id="call_1", reason="no proof")
    lane.do(append_of("sub_1", evidence), unknown("call_1"))
    lane.grant = None
    lane.do(abort("sub_1"))
    lane.settle("sub_1", "aborted")
    assert evidence in lane.records()
    row = lane.row("sub_1")
    assert (row.state, set(row.unknown_calls)) == (State.ABORTED, {"call_1"})
    assert isinstance(lane.refused(resolve("call_1")), Refused)


def test_a_recovering_attempt_goes_on_once(lane: Conversation) -> None:
    """Specification 3: Running, Recovery, then Running under the higher epoch; resume again changes nothing."""
    lane.start("sub_1")
    lane.recover("o2")
    assert lane.do(Resume(submission_id="sub_1"))[0].replayed
    assert lane.row("sub_1").state is State.RUNNING
