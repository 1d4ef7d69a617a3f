"""Scenarios, section 3, append, and F10, F16, F17, F25 (DUR-006, DUR-007, DUR-015)."""

from __future__ import annotations

import json

import msgspec
import pytest
from store_builders import Conversation, Maker, append_of, body_of, input_record, note, raised, settlement, settling

from laneway.actors.lane.facts import step_id_of
from laneway.storage.commands import Accepted, Append, Fence, MarkInputApplied, SaveCheckpoint
from laneway.storage.contract import Store
from laneway.storage.errors import InvalidInput, NotFound, Refused, StaleTail
from laneway.storage.records import (
    ConversationCreated,
    InputRecorded,
    ModelDeltaRecorded,
    StepSettled,
    ToolCallSettled,
    chained_digest,
    decode_records,
    input_record_id,
)
from laneway.storage.values import Limits, encode


@pytest.mark.requirement("DUR-007")
def test_a_batch_replay_returns_the_first_result(make: Maker, lane: Conversation) -> None:
    """Section 3 append, F10, F16: the same batch again gets its place and says so; nothing is stored twice."""
    lane.start("sub_1")
    command = append_of("sub_1", note("a"), note("b"))
    first = lane.do(command)[0]
    assert (first.first_sequence, first.last_sequence, first.replayed) == (2, 3, False)
    lane.append("sub_1", note("c"))
    old_tail = Fence(token=lane.grant.token, epoch=lane.grant.epoch, expected_tail=1)
    again = lane.do(command, fence=old_tail)[0]
    assert (again.first_sequence, again.last_sequence, again.digest, again.replayed) == (2, 3, first.digest, True)
    lane = Conversation(make.reopen(lane.store), grant=lane.grant)
    assert lane.do(command)[0].replayed
    assert [record.id for record in lane.records()] == [
        input_record("sub_1").id,
        note("a").id,
        note("b").id,
        note("c").id,
    ]
    lane.check_chain()


@pytest.mark.requirement("DUR-007")
def test_the_same_batch_id_with_other_content_conflicts(lane: Conversation) -> None:
    """Section 3 append, F17: an equal result is idempotent, a different one is refused; both digests are told."""
    lane.start("sub_1")
    settled = ToolCallSettled(id="rec_1", run_id="run", call_id="call", outcome="succeeded", result={"b": 1, "a": [2]})
    lane.append("sub_1", settled, batch_id="bat_1")
    assert lane.append("sub_1", settled, batch_id="bat_1").replayed
    other = msgspec.structs.replace(settled, result={"b": 2, "a": [2]})
    error = lane.refused(append_of("sub_1", other, batch_id="bat_1"))
    assert (error.code, type(error)) == ("batch_conflict", Refused)
    assert error.details["stored_digest"] != error.details["given_digest"]


@pytest.mark.requirement("DUR-010")
def test_one_result_of_a_step_stands(make: Maker, lane: Conversation) -> None:
    """F17, K12: equal again under its batch is idempotent; another result is refused, also after a restart."""
    lane.start("sub_1")
    step_id = step_id_of("call", "pay", 1)
    step = StepSettled(
        id="rec_1", run_id="run", call_id="call", step_id=step_id, name="pay", version=1, result={"paid": 7}
    )
    lane.append("sub_1", step, batch_id="bat_1")
    other = msgspec.structs.replace(step, result={"paid": 8})
    for _ in range(2):
        assert lane.append("sub_1", step, batch_id="bat_1").replayed
        assert lane.refused(append_of("sub_1", other, batch_id="bat_1")).code == "batch_conflict"
        assert lane.refused(append_of("sub_1", other, batch_id="bat_2")).code == "record_reused"
        lane = Conversation(make.reopen(lane.store), grant=lane.grant)
    assert lane.records()[1:] == [step]


def test_replays_are_compared_by_value_not_by_key_order(make: Maker, lane: Conversation) -> None:
    """Section 3: compare replays by JSON value; the stored bytes stay the first ones."""
    lane.start("sub_1")
    record = json.loads(body_of(note("a", "text")))[0]
    bodies = [json.dumps([dict(pairs)]) for pairs in (sorted(record.items()), sorted(record.items(), reverse=True))]
    assert bodies[0] != bodies[1]
    commands = [Append(submission_id="sub_1", batch_id="bat", producer_id="prd", body=body) for body in bodies]
    assert not lane.do(commands[1])[0].replayed
    assert lane.do(commands[0])[0].replayed
    lane = Conversation(make.reopen(lane.store), grant=lane.grant)
    assert lane.do(commands[0])[0].replayed
    assert lane.batches()[1].body == bodies[1]


@pytest.mark.requirement("DUR-006", "DUR-007")
def test_a_stale_tail_is_answered_with_the_true_tail(lane: Conversation) -> None:
    """Section 3 append: expected tail too low, too high, or not given."""
    lane.start("sub_1")
    tail = lane.append("sub_1", note("a"))
    for expected in (0, 1, 3, None):
        fence = Fence(token=lane.grant.token, epoch=lane.grant.epoch, expected_tail=expected)
        error = lane.refused(append_of("sub_1", note("b")), fence=fence)
        assert isinstance(error, StaleTail)
        assert error.retryable
        assert (error.details["tail_sequence"], error.details["tail_digest"]) == (2, tail.digest)


@pytest.mark.requirement("DUR-007")
@pytest.mark.parametrize(
    "bad",
    [
        '{"type":"repair_annotated","id":"x","subject":"s","note":""}',
        '[{"type":"no_such_record","id":"x"}]',
        '[{"type":"repair_annotated","id":"x","subject":"s","note":"","extra":1}]',
        '[{"type":"repair_annotated","id":"x","subject":"s"}]',
        "[]",
        "not json",
        "",
        "[" * 100_000,
        '[{"type":"repair_annotated","id":"x","subject":"s","note":"\ud800"}]',
        '[{"type":"tool_call_settled","id":"x","run_id":"r","call_id":"c","outcome":"succeeded","result":NaN}]',
        '[{"type":"tool_call_settled","id":"x","run_id":"r","call_id":"c","outcome":"succeeded","result":1e999}]',
    ],
    ids=["object", "tag", "field", "missing", "empty", "text", "nothing", "deep", "surrogate", "nan", "infinity"],
)
def test_a_batch_that_does_not_decode_is_refused(lane: Conversation, bad: str) -> None:
    """Section 3 append, F25: refused with a clear error before anything is stored, and the neighbours are not hurt."""
    lane.start("sub_1")
    neighbour = Conversation(lane.store, "other")
    neighbour.start("sub_9")
    bad_unit = lane.unit(Append(submission_id="sub_1", batch_id="bat", producer_id="prd", body=bad))
    before = lane.state()
    answers = lane.store.commit([bad_unit, neighbour.unit(append_of("sub_9", note("fine")))])
    assert isinstance(raised(answers[0]), InvalidInput)
    assert isinstance(answers[1], Accepted)
    assert lane.state() == before


@pytest.mark.requirement("DUR-007")
def test_one_bad_record_or_command_leaves_nothing(lane: Conversation) -> None:
    """Section 3 append: a batch, and a unit, are atomic."""
    lane.start("sub_1")
    lane.append("sub_1", note("a"))
    error = lane.refused(append_of("sub_1", note("b"), note("a")))
    assert error.code == "record_reused"
    error = lane.refused(
        append_of("sub_1", note("b")), append_of("sub_1", note("c")), append_of("sub_1", note("b"), batch_id="z")
    )
    assert error.code == "record_reused"
    error = lane.refused(append_of("sub_1", note("b")), MarkInputApplied(submission_id="sub_7"))
    assert isinstance(error, NotFound)
    assert lane.append("sub_1", note("b")).first_sequence == 3


def test_a_record_id_is_not_used_twice(make: Maker, lane: Conversation) -> None:
    """Section 3 append: within a batch, across batches, and after a restart."""
    lane.start("sub_1")
    assert lane.refused(append_of("sub_1", note("a"), note("a"))).code == "record_reused"
    lane.append("sub_1", note("a"))
    lane = Conversation(make.reopen(lane.store), grant=lane.grant)
    assert lane.refused(append_of("sub_1", note("a"), batch_id="other")).code == "record_reused"


def test_limits_of_a_batch_are_named(make: Maker) -> None:
    """F25: 256 records a batch, bytes a record, bytes a batch; each error names field and limit."""
    lane = Conversation(make(limits=Limits(record_bytes_max=1000, batch_records_max=3)))
    lane.start("sub_1")
    many = lane.refused(append_of("sub_1", *(note(str(n)) for n in range(4))))
    large_record = lane.refused(append_of("sub_1", note("a", "x" * 1100)))
    large_batch = lane.refused(append_of("sub_1", note("a", "x" * 900), note("b", "é" * 500)))
    for error, limit in ((many, 3), (large_record, 1000), (large_batch, 2000)):
        assert isinstance(error, InvalidInput)
        assert (error.details["field"], error.details["limit"]) == ("body", limit)
    lane.append("sub_1", note("a", "x" * 600), note("b", "x" * 600))


def test_what_the_caller_does_later_changes_nothing(lane: Conversation) -> None:
    """Section 3 append: a caller that mutates its payload after handing it over changes nothing."""
    lane.start("sub_1")
    payload = {"answer": [1, 2]}
    result = ToolCallSettled(id="rec", run_id="run", call_id="call", outcome="succeeded", result=payload)
    lane.append("sub_1", result)
    payload["answer"].append(3)
    stored = lane.records()[-1]
    assert isinstance(stored, ToolCallSettled)
    assert stored.result == {"answer": [1, 2]}


VALUES = [
    "\U0001f6e4\ufe0f emoji, \u202e, \u0000 NUL, \x7f, \ufffe",
    {"\u0000": {"": []}, "ключ": None, 'quote " \\': "</script>"},
    [2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0, -0.0, 1e308, 5e-324, 0.1, True, False, None],
    "x" * (1 << 20),
    [[[[[[[[[[[[[[[[[[[[[[[[[[[[[["deep"]]]]]]]]]]]]]]]]]]]]]]]]]]]]]],
]


@pytest.mark.parametrize("value", VALUES, ids=["text", "keys", "numbers", "large", "nested"])
def test_values_come_back_exactly(make: Maker, lane: Conversation, value: object) -> None:
    """F25: emoji, NUL bytes, 2^63, deep nesting are stored and returned exactly, input and result alike."""
    receipt = lane.submit("sub_1", text=encode(value).decode())
    assert lane.claim().row.input == encode(value).decode()
    lane = Conversation(make.reopen(lane.store), grant=lane.grant)
    assert json.loads(lane.row("sub_1").input) == value
    lane.do(append_of("sub_1", input_record("sub_1", receipt.queue_sequence, value)))
    lane.append("sub_1", ToolCallSettled(id="rec", run_id="run", call_id="c", outcome="succeeded", result=value))
    lane = Conversation(make.reopen(lane.store))
    records = lane.records()
    assert isinstance(records[0], InputRecorded)
    assert isinstance(records[1], ToolCallSettled)
    for stored in (records[0].content, records[1].result):
        assert stored == value
        assert encode(stored) == encode(value)
    lane.check_chain()


@pytest.mark.requirement("DUR-015")
def test_the_marker_follows_the_log(lane: Conversation) -> None:
    """K4: input in the log, marker missing: it is repaired from the log; without the record it is refused."""
    receipt = lane.submit("sub_1", text='"payload"')
    lane.claim()
    error = lane.refused(MarkInputApplied(submission_id="sub_1", run_id="run"))
    assert error.code == "input_not_canonical"
    lane.do(append_of("sub_1", input_record("sub_1", receipt.queue_sequence)))
    assert lane.row("sub_1").input == '"payload"'
    lane.recover()
    assert lane.refused(append_of("sub_1", input_record("sub_1"), batch_id="again")).code == "record_reused"
    lane.do(MarkInputApplied(submission_id="sub_1", run_id="run"))
    assert lane.do(MarkInputApplied(submission_id="sub_1", run_id="run"))[0].replayed
    row = lane.row("sub_1")
    assert (row.input_sequence, row.run_id, row.input) == (1, "run", "")


@pytest.mark.requirement("DUR-004")
def test_an_input_carries_its_own_queue_sequence(lane: Conversation) -> None:
    """DUR-004: the log shows the order of admission; an input under another's number is refused."""
    lane.submit("sub_1")
    lane.claim()
    assert lane.refused(append_of("sub_1", input_record("sub_1", 2))).code == "input_conflict"


@pytest.mark.requirement("DUR-008")
def test_deltas_are_canonical_and_tool_arguments_are_not_among_them(lane: Conversation) -> None:
    """DUR-008: text and reasoning deltas may be canonical; there is no record for partial tool arguments."""
    lane.start("sub_1")
    lane.append("sub_1", ModelDeltaRecorded(id="d1", run_id="run", turn=1, kind="reasoning", text="hm"))
    text = body_of(ModelDeltaRecorded(id="d2", run_id="run", turn=1, kind="text", text="x"))
    bad = text.replace('"kind":"text"', '"kind":"tool_arguments"')
    assert bad != text
    error = lane.refused(Append(submission_id="sub_1", batch_id="b", producer_id="p", body=bad))
    assert isinstance(error, InvalidInput)


def test_pages_hold_whole_batches(lane: Conversation) -> None:
    """Reads: about `limit` records, whole batches, at least one; `after` inside a batch gives that batch."""
    lane.start("sub_1")
    for number in range(6):
        lane.append("sub_1", note(f"{number}a"), note(f"{number}b"))
    page = lane.store.read_log("c", after=0, limit=3)
    assert [(batch.first_sequence, batch.last_sequence) for batch in page.batches] == [(1, 1), (2, 3)]
    assert page.more
    assert [batch.first_sequence for batch in lane.store.read_log("c", after=4, limit=1).batches] == [4]
    rest = lane.store.read_log("c", after=11, limit=50)
    assert ([batch.first_sequence for batch in rest.batches], rest.more) == ([12], False)
    assert lane.store.read_log("c", after=13) == lane.store.read_log("nobody")
    lane.check_chain()


def test_a_conversation_that_nobody_knows_is_empty(store: Store) -> None:
    """Reads: zero, None, NotFound."""
    assert store.inspect_tail("nobody").sequence == 0
    assert store.lookup("sub") is None
    assert store.lookup_key("nobody", "alice", "key") is None
    assert store.list_rows("nobody") == []
    with pytest.raises(NotFound):
        store.snapshot("sub")


def test_a_checkpoint_belongs_to_a_tail(make: Maker, lane: Conversation) -> None:
    """Contract: a projection bound to a tail digest; the last one is kept; it is disposable."""
    lane.start("sub_1")
    tail = lane.store.inspect_tail("c")
    wrong = SaveCheckpoint(submission_id="sub_1", tail_sequence=tail.sequence, tail_digest="other", body="{}")
    assert lane.refused(wrong).code == "checkpoint_stale"
    for body in ('{"n":1}', '{"n":2}'):
        lane.do(SaveCheckpoint(submission_id="sub_1", tail_sequence=1, tail_digest=tail.digest, body=body))
    store = make.reopen(lane.store)
    checkpoint = store.load_checkpoint("c")
    assert checkpoint is not None
    assert (checkpoint.tail_sequence, checkpoint.tail_digest, checkpoint.body) == (1, tail.digest, '{"n":2}')
    assert store.load_checkpoint("nobody") is None


def test_a_snapshot_is_one_consistent_read_without_token(make: Maker, lane: Conversation) -> None:
    """Contract: everything the classifier needs; only this submission's batches; no token anywhere."""
    lane.start("sub_1")
    lane.settle("sub_1")
    receipt = lane.submit("sub_2")
    lane.claim()
    lane.apply_input("sub_2", receipt.queue_sequence)
    lane.append("sub_2", note("x"))
    store = make.reopen(lane.store)
    snapshot = store.snapshot("sub_2")
    assert [batch.first_sequence for batch in snapshot.batches] == [3, 4]
    assert snapshot.batches[0].previous_digest == store.snapshot("sub_1").batches[-1].digest
    assert snapshot.tail == store.inspect_tail("c")
    for row in (
        snapshot.row,
        store.lookup("sub_2"),
        store.lookup_key("c", "alice", "key-sub_2"),
        store.list_rows()[-1],
    ):
        assert row is not None
        assert row.token is None
        assert row.owner_id == "o1"


def test_the_first_record_may_create_the_conversation(lane: Conversation) -> None:
    """Records: every body decodes to the records that were handed over, in order."""
    lane.submit("sub_1")
    lane.claim()
    created = ConversationCreated(id="rec_created", conversation_id="c", agent="support")
    lane.append("sub_1", created, input_record("sub_1"))
    assert decode_records(lane.batches()[0].body) == (created, input_record("sub_1"))
    assert lane.records()[1].id == input_record_id("sub_1")


def test_a_checkpoint_that_travels_with_a_settlement_spoils_no_repeat(make: Maker, lane: Conversation) -> None:
    """F16: the answer was lost, and the same unit comes again: it gets the first answer and changes nothing."""
    lane.start("s1")
    tail = lane.store.inspect_tail("c")
    record = settlement("s1")
    digest = chained_digest(tail.digest, body_of(record))
    point = SaveCheckpoint(submission_id="s1", tail_sequence=tail.sequence + 1, tail_digest=digest, body="{}")
    reserved, appended, finalized = settling(record)
    unit = lane.unit(reserved, appended, point, finalized)
    (first,) = lane.store.commit([unit])
    assert isinstance(first, Accepted)
    state = lane.state()
    (again,) = lane.store.commit([unit])
    assert isinstance(again, Accepted)
    assert lane.state() == state
    stored = lane.store.load_checkpoint("c")
    assert stored is not None
    assert (stored.tail_sequence, stored.tail_digest) == (tail.sequence + 1, digest)
