"""The vocabulary of the store: ids, JSON values, errors, the transition table, and the bytes of every record."""

from __future__ import annotations

import json
import math
import pickle
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_builders import Clock, Conversation, admission, note

from laneway.storage.commands import Rejected, decode_answers, decode_units, encode_answers, encode_units
from laneway.storage.errors import ERRORS, IllegalTransition, InvalidInput, LanewayError, StoreCorrupt
from laneway.storage.ids import derive_id, new_id, new_token
from laneway.storage.ledger import SETTLE_EVENTS, TERMINAL, TRANSITIONS, Event, Row, State, transition
from laneway.storage.memory_store import MemoryStore
from laneway.storage.records import (
    AbortRequested,
    AnyRecord,
    ApprovalDecided,
    ApprovalRequested,
    CompactionCreated,
    ConversationCreated,
    ErrorFact,
    InputRecorded,
    ModelDeltaRecorded,
    ModelInterrupted,
    ModelResponded,
    RecoveryDecided,
    RepairAnnotated,
    RetryOf,
    RunCompleted,
    RunStarted,
    StepSettled,
    SubmissionSettled,
    ToolCall,
    ToolCallPrepared,
    ToolCallResolved,
    ToolCallSettled,
    ToolCallUnknown,
    decode_records,
    encode_records,
    input_record_id,
    record_id,
    settlement_record_id,
    tag_of,
)
from laneway.storage.values import check_json, check_text, decode, encode
from laneway.storage.work import Work

GOLDEN = Path(__file__).parent / "golden" / "storage_records.jsonl"

# --- the table -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_each_pair_of_state_and_event(state: State, event: Event) -> None:
    """Listed moves move; every other pair raises and changes nothing."""
    row = Row(
        submission_id="sub",
        receipt_id="rcp",
        conversation_id="c",
        principal="p",
        idempotency_key="k",
        input_digest="d",
        queue_sequence=1,
        agent="a",
        input="",
        state=state,
        admitted_at_ms=1,
        updated_at_ms=1,
    )
    work = _work(row)
    if (state, event) in TRANSITIONS:
        assert transition(state, event) is TRANSITIONS[state, event]
        assert work.move(row, event).state is TRANSITIONS[state, event]
        return
    with pytest.raises(IllegalTransition) as caught:
        work.move(row, event)
    assert caught.value.details == {"state": state.value, "event": event.value}
    assert work.changes().rows == ()
    assert row.state is state


def _work(row: Row) -> Work:
    from laneway.storage.header import Header
    from laneway.storage.values import DEFAULT_LIMITS

    return Work(Header(conversation_id="c", rows={"sub": row}), None, 2, {}, DEFAULT_LIMITS)


def test_the_table_has_the_specifications_shape() -> None:
    """Specification 3: nothing leaves a terminal state, every state is reached, each outcome has its event."""
    assert not [state for state, _ in TRANSITIONS if state in TERMINAL]
    assert {State.PROPOSED, *TRANSITIONS.values()} == set(State)
    assert {TRANSITIONS[State.TERMINALIZING, event] for event in SETTLE_EVENTS.values()} == TERMINAL
    assert {event for _, event in TRANSITIONS} == set(Event)


# --- records ---------------------------------------------------------------------------------------------------------

ERROR = ErrorFact(code="broken", message="it broke", details={"n": 1})
EXAMPLES: tuple[AnyRecord, ...] = (
    ConversationCreated(id="r01", conversation_id="c", agent="support"),
    InputRecorded(
        id="r02", submission_id="s", queue_sequence=1, content="hé\u0000", principal="alice", extra={"k": [1]}
    ),
    InputRecorded(id="r03", submission_id="s", queue_sequence=2, content=[{"type": "text"}], kind="steering"),
    RunStarted(id="r04", run_id="run", submission_id="s", agent="support", agent_digest="d", started_at_ms=5),
    ModelDeltaRecorded(id="r05", run_id="run", turn=1, kind="reasoning", text="hm"),
    ModelResponded(id="r06", run_id="run", turn=1),
    ModelResponded(
        id="r07",
        run_id="run",
        turn=2,
        content="ok",
        tool_calls=(ToolCall(id="call", provider_id="p1", name="pay", arguments='{"a": 1}'),),
        finish_reason="tool_calls",
        model="m-1",
        reasoning="because",
        usage={"input_tokens": 3},
        extra={"signature": "x"},
    ),
    ModelInterrupted(id="r08", run_id="run", turn=2, attempt_id="att", reason="killed"),
    ToolCallPrepared(
        id="r09",
        run_id="run",
        call_id="call",
        tool="pay",
        tool_digest="d",
        input_digest="i",
        effect="uncertain",
        idempotency_key="key",
    ),
    ToolCallSettled(id="r10", run_id="run", call_id="call", outcome="succeeded", result={"paid": True}),
    ToolCallSettled(id="r11", run_id="run", call_id="call", outcome="failed", error=ERROR, author="reconciler"),
    ToolCallUnknown(id="r12", run_id="run", call_id="call", reason="no proof"),
    ToolCallResolved(
        id="r13", run_id="run", call_id="call", resolution="completed_with_result", author="op", reason="saw", result=5
    ),
    StepSettled(id="r14", run_id="run", call_id="call", step_id="step", name="fetch", version=1, result=[1.5]),
    ApprovalRequested(id="r15", run_id="run", approval_id="a", call_id="call", tool="pay", input_digest="i"),
    ApprovalDecided(id="r16", run_id="run", approval_id="a", decision="denied", author="boss", reason="no"),
    CompactionCreated(id="r17", run_id="run", covers_sequence=9, artifact={"summary": "short"}),
    CompactionCreated(id="r17b", run_id="run", covers_sequence=9, covers_responses=4, artifact="short"),
    AbortRequested(id="r18", submission_id="s", abort_id="abt", author="alice", reason="stop"),
    RecoveryDecided(id="r19", submission_id="s", attempt_id="att", epoch=2, decision="resume", evidence="tail 7"),
    RunCompleted(id="r20", run_id="run", outcome="completed", output="done"),
    RunCompleted(id="r21", run_id="run", outcome="failed", error=ERROR),
    SubmissionSettled(
        id="r22", settlement_id="set", submission_id="s", outcome="completed", run_id="run", output={"a": 1}
    ),
    SubmissionSettled(id="r23", settlement_id="set", submission_id="s", outcome="aborted"),
    RepairAnnotated(id="r24", subject="call", note="checked by hand"),
    InputRecorded(id="r25", submission_id="s", queue_sequence=3, content="and", kind="follow_up", run_id="run"),
    InputRecorded(id="r26", submission_id="s", queue_sequence=4, content="late", steers="s1"),
    InputRecorded(
        id="r27",
        submission_id="s",
        queue_sequence=3,
        content="hi",
        retry_of=RetryOf(submission_id="s0", number=1, author="ann", reason="again"),
    ),
)


def test_every_record_type_has_an_example() -> None:
    """A new record type needs its golden bytes."""
    assert {type(record) for record in EXAMPLES} == set(typing.get_args(AnyRecord))


def test_the_bytes_of_records_are_pinned() -> None:
    """Tags and field names are stored data: these lines were stored by somebody and must decode for ever."""
    golden = GOLDEN.read_text(encoding="utf-8").splitlines()
    encoded = [encode_records((record,)).decode() for record in EXAMPLES]
    assert encoded == golden
    assert tuple(decode_records(line)[0] for line in golden) == EXAMPLES


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: f"{record.id}-{tag_of(record)}")
def test_records_refuse_unknown_and_missing_fields(record: AnyRecord) -> None:
    """Parse, don't validate: another field, a missing id, another type of a field is no record."""
    fields = json.loads(encode_records((record,)))[0]
    for broken in ({**fields, "new": 1}, {k: v for k, v in fields.items() if k != "id"}, {**fields, "id": 5}):
        with pytest.raises(StoreCorrupt):
            decode_records(json.dumps([broken]))


# --- ids -------------------------------------------------------------------------------------------------------------


def test_drawn_ids_differ_and_sort_by_time() -> None:
    """UUIDv7 with a short prefix."""
    ids = [new_id("sub") for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(name.startswith("sub_") and name[16] == "7" for name in ids)
    assert ids[0][:16] <= ids[-1][:16]
    assert new_token() != new_token()


PARTS = st.lists(st.one_of(st.text(), st.integers()), max_size=4)


@given(PARTS, PARTS)
def test_separators_never_collide(left: list[str | int], right: list[str | int]) -> None:
    """Derived ids are composed from a tuple encoding: equal parts give equal ids, and no others do."""
    same = [(type(part), part) for part in left] == [(type(part), part) for part in right]
    assert (derive_id("x", *left) == derive_id("x", *right)) is same


def test_derived_ids_are_pinned() -> None:
    """Recovery computes them again: a change would orphan what is stored."""
    assert derive_id("rec", "a", "b:c") != derive_id("rec", "a:b", "c")
    assert derive_id("rec", "1") != derive_id("rec", 1)
    assert input_record_id("sub_1") == record_id("input", "sub_1") == "rec_Jo_FBU36a3JUKtH4Rq2H"
    assert settlement_record_id("sub_1") == "rec_HsN0bKGwMCASJuoBnBcq"


# --- values ----------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_accepted_values_come_back_exactly(value: Any) -> None:
    """F25: what is accepted is stored and returned exactly."""
    data = check_json(value, "value", bytes_max=1 << 20, depth_max=64)
    assert decode(data) == value
    assert encode(decode(data)) == data


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (math.nan, "value"),
        (math.inf, "value"),
        ([1, [-math.inf]], "value[1][0]"),
        (2**64, "value"),
        (-(2**63) - 1, "value"),
        ("\ud800", "value"),
        ({"a": {"b": "x\udfff"}}, "value.a.b"),
        ({"\ud800": 1}, "value"),
        ({1: 2}, "value"),
        ({"a": b"bytes"}, "value.a"),
        ({"a": {1, 2}}, "value.a"),
        ("x" * 100, "value"),
        ([[[[[[1]]]]]], "value[0][0][0][0][0]"),
    ],
    ids=repr,
)
def test_other_values_are_refused_by_name(value: Any, field: str) -> None:
    """F25: refused with the field's name before anything is stored."""
    with pytest.raises(InvalidInput) as caught:
        check_json(value, "value", bytes_max=100, depth_max=5)
    assert caught.value.details["field"] == field


def test_a_value_that_holds_itself_is_refused() -> None:
    """F25: depth is bounded before anything recurses into it."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidInput):
        check_json(loop, "value", bytes_max=100, depth_max=64)


@pytest.mark.parametrize("value", ["", 5, None, b"x", "x" * 11, "\udcff"], ids=repr)
def test_text_is_checked(value: Any) -> None:
    """Ids and keys: text, not empty, bounded, UTF-8."""
    with pytest.raises(InvalidInput) as caught:
        check_text(value, "key", length_max=10)
    assert caught.value.details["field"] == "key"
    assert check_text("é" * 10, "key", length_max=10) == "é" * 10


# --- errors and the wire ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ERRORS.values(), ids=lambda cls: cls.__name__)
def test_errors_survive_pickling_and_the_wire(cls: type[LanewayError]) -> None:
    """Every class crosses a process boundary unchanged."""
    error = cls("what went wrong", code="own_code", retryable=True, field="x", limit=5)
    for copy in (pickle.loads(pickle.dumps(error)), Rejected.from_error(error).error()):
        assert type(copy) is cls
        assert (copy.as_dict(), str(copy)) == (error.as_dict(), "what went wrong")
    plain = cls("x")
    assert (plain.code, plain.retryable) == (cls.default_code, cls.default_retryable)


def test_every_error_class_has_a_code_of_its_own() -> None:
    """A new class is found on the other side of a wire."""
    found = [LanewayError]
    for cls in found:
        found += [sub for sub in cls.__subclasses__() if sub.__module__ == "laneway.storage.errors"]
    assert set(ERRORS.values()) == set(found)
    assert len(ERRORS) == len(found)


def test_units_and_answers_cross_the_wire() -> None:
    """One bytes value, whatever their number; answers come back as the same types."""
    lane = Conversation(MemoryStore(now_ms=Clock()))
    units = [lane.unit(admission("sub_1")), lane.unit(admission("sub_2", "key-sub_1", digest="other"))]
    assert decode_units(encode_units(units)) == units
    answers = lane.store.commit(units)
    assert decode_answers(encode_answers(answers)) == answers
    assert note("x").id == note("x").id
