"""Scenarios, section 3, admission (DUR-001, DUR-004)."""

from __future__ import annotations

import threading

import pytest
from store_builders import Conversation, Maker, admission, admit_ready, one, raised, settlement, settling

from laneway.storage.commands import Accepted, Admitted, MarkReady, Materialize, Unit
from laneway.storage.contract import Store
from laneway.storage.errors import AdmissionConflict, InvalidInput, Refused
from laneway.storage.ledger import State
from laneway.storage.values import Limits


@pytest.mark.requirement("DUR-001")
def test_a_key_is_admitted_once(lane: Conversation) -> None:
    """Section 3 admission, F1: the reply is lost, the client retries under a fresh id, and gets the same receipt."""
    first = lane.submit("sub_1", "key")
    again = lane.submit("sub_2", "key")
    assert again.replayed
    assert not first.replayed
    assert (again.submission_id, again.receipt_id, again.queue_sequence) == ("sub_1", "rcp_sub_1", 1)
    assert lane.store.lookup("sub_2") is None
    assert len(lane.store.list_rows(lane.id)) == 1


def test_another_payload_under_the_same_key_conflicts(lane: Conversation) -> None:
    """Section 3 admission, K1: other content → AdmissionConflict that carries both digests."""
    lane.submit("sub_1", "key", digest="one")
    error = lane.refused(*admit_ready("sub_2", "key", digest="two"))
    assert isinstance(error, AdmissionConflict)
    assert (error.details["stored_digest"], error.details["given_digest"]) == ("one", "two")


def test_keys_of_two_principals_and_of_two_conversations_are_apart(store: Store) -> None:
    """Section 3 admission: idempotent by (principal, conversation, key)."""
    one_lane, other = Conversation(store, "c1"), Conversation(store, "c2")
    assert not one_lane.submit("sub_1", "key", principal="alice").replayed
    assert not one_lane.submit("sub_2", "key", principal="bob").replayed
    assert not other.submit("sub_3", "key", principal="alice").replayed
    assert store.lookup_key("c1", "bob", "key").submission_id == "sub_2"
    assert store.lookup_key("c2", "bob", "key") is None


@pytest.mark.parametrize(
    ("left", "right"), [(("a", "b:c"), ("a:b", "c")), (("a\0", "b"), ("a", "\0b")), (("", "ab"), ("a", "b"))]
)
def test_separators_never_collide(lane: Conversation, left: tuple[str, str], right: tuple[str, str]) -> None:
    """Section 3 admission: separators in ids never collide."""
    lane.submit("sub_1", left[1], principal=left[0])
    assert not lane.submit("sub_2", right[1], principal=right[0]).replayed
    for (principal, key), submission_id in ((left, "sub_1"), (right, "sub_2")):
        found = lane.store.lookup_key(lane.id, principal, key)
        assert found is not None
        assert found.submission_id == submission_id


@pytest.mark.requirement("DUR-001", "DUR-004")
def test_fifty_concurrent_submits_of_one_key_give_one_row(store: Store, make: Maker) -> None:
    """Section 3 admission: 50 concurrent submits of one key give one row."""
    answers: list[Admitted] = []
    guard = threading.Lock()

    def submit(number: int) -> None:
        unit = Unit(conversation_id="c", commands=admit_ready(f"sub_{number}", "key"))
        with guard if make.adapter == "memory" else threading.Lock():  # class E is used by one thread
            answer = store.commit([unit])[0]
        assert isinstance(answer, Accepted)
        answers.append(one(answer.results, Admitted))

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 50
    assert len({answer.receipt.submission_id for answer in answers}) == 1
    assert sum(not answer.receipt.replayed for answer in answers) == 1
    assert len(store.list_rows("c")) == 1


@pytest.mark.requirement("DUR-004")
def test_concurrent_admissions_get_distinct_gap_free_order(store: Store) -> None:
    """Section 3 admission: distinct, gap-free order; a refused admission takes no number."""
    units = [
        Unit(conversation_id="c", commands=admit_ready(f"sub_{n}", f"key-{n % 20}", digest=str(n))) for n in range(30)
    ]
    answers = store.commit(units)
    assert sum(isinstance(answer, Accepted) for answer in answers) == 20
    assert [row.queue_sequence for row in store.list_rows("c")] == list(range(1, 21))


@pytest.mark.requirement("DUR-001")
def test_admission_readiness_and_restart(make: Maker, lane: Conversation) -> None:
    """K1: killed after the admission commit; readiness is completed later, the receipt stays the same."""
    receipt = one(lane.do(admission("sub_1", "key")), Admitted).receipt
    assert lane.row("sub_1").state is State.ADMITTED
    assert lane.refused(MarkReady(submission_id="sub_1")).code == "not_materialized"
    assert lane.store.list_conversations() == ["c"], "what is owed is looked at, materialized or not"
    store = make.reopen(lane.store)
    lane = Conversation(store)
    again = one(lane.do(*admit_ready("sub_2", "key")), Admitted)
    assert again.receipt.submission_id == receipt.submission_id
    assert again.receipt.queue_sequence == receipt.queue_sequence
    assert lane.row("sub_1").state is State.READY
    assert store.list_conversations() == ["c"]
    assert lane.do(Materialize(submission_id="sub_1"), MarkReady(submission_id="sub_1"))[1].replayed


@pytest.mark.requirement("DUR-001")
def test_each_step_of_an_admission_is_durable_alone(make: Maker, lane: Conversation) -> None:
    """K1: each command committed alone, the store opened again in between."""
    steps = (admission("sub_1"), Materialize(submission_id="sub_1"), MarkReady(submission_id="sub_1"))
    for step in steps:
        lane.do(step)
        lane = Conversation(make.reopen(lane.store))
    assert lane.row("sub_1").state is State.READY
    assert lane.store.list_conversations() == ["c"]


def test_the_queue_has_a_bound(make: Maker) -> None:
    """Limits: a full queue refuses, retryable, and settled work makes room; other conversations are not hurt."""
    lane = Conversation(make(limits=Limits(queue_length_max=2)))
    lane.start("sub_1")
    lane.submit("sub_2")
    error = lane.refused(*admit_ready("sub_3"))
    assert (error.code, error.retryable) == ("queue_full", True)
    assert isinstance(error, Refused)
    Conversation(lane.store, "other").submit("sub_4")
    lane.settle("sub_1")
    assert lane.submit("sub_3").queue_sequence == 3


@pytest.mark.parametrize(
    "broken",
    [
        {"key": "k" * 257},
        {"principal": "p" * 257},
        {"digest": ""},
        {"text": '"' + "x" * (5 << 20) + '"'},
        {"text": '"\ud800"'},
        {"key": "\udfff"},
    ],
    ids=["key", "principal", "digest", "input", "surrogate-input", "surrogate-key"],
)
def test_bad_admissions_are_refused_before_anything_is_stored(store: Store, broken: dict[str, str]) -> None:
    """F25: a clear error that names the field; the neighbours of the same group are stored."""
    good, bad = Conversation(store, "good"), Conversation(store, "bad")
    answers = store.commit([bad.unit(*admit_ready("sub_1", **broken)), good.unit(*admit_ready("sub_2"))])
    error = raised(answers[0])
    assert isinstance(error, InvalidInput)
    assert error.details["field"]
    assert isinstance(answers[1], Accepted)
    assert [row.submission_id for row in store.list_rows()] == ["sub_2"]


def test_a_settled_submission_still_answers_its_key(make: Maker, lane: Conversation) -> None:
    """F1: a retry long after the settlement, also in the very group that settles, and after a restart."""
    lane.start("sub_1")
    record_unit = lane.unit(*settling(settlement("sub_1")))
    answers = lane.store.commit([record_unit, lane.unit(*admit_ready("sub_2", "key-sub_1")), record_unit])
    for answer in answers:
        assert isinstance(answer, Accepted), answer
    lane = Conversation(make.reopen(lane.store))
    again = one(lane.do(*admit_ready("sub_3", "key-sub_1")), Admitted)
    assert (again.receipt.submission_id, again.receipt.replayed, again.state) == ("sub_1", True, State.COMPLETED)
