"""Quarantine, dead letters and work that is made due by hand: what operators change beside the lanes (section 16)."""

from __future__ import annotations

import duckdb
import pytest
from store_builders import Clock, Conversation, Maker, admit_ready, raised

from laneway.storage.commands import Abandon, Admitted, MakeDue, MarkUnknown, Moved, NotClaimed, Release, ResolveUnknown
from laneway.storage.contract import Quarantine, Store
from laneway.storage.errors import Fenced, InvalidInput, Refused, StoreCorrupt
from laneway.storage.ledger import State
from laneway.storage.records import ErrorFact


@pytest.mark.requirement("DUR-014")
def test_a_quarantined_lane_is_claimed_by_nobody_and_admission_goes_on(store: Store, lane: Conversation) -> None:
    """F4: its neighbours are not touched."""
    lane.submit("sub_1")
    since = store.quarantine("c", "it does not decode", "lane")
    assert lane.try_claim("o1") == NotClaimed(reason="quarantined")
    assert lane.submit("sub_2").queue_sequence == 2
    other = Conversation(store, "d")
    other.start("sub_d")
    assert [row.quarantined for row in store.scan_nonterminal().rows] == [True, True, False]
    assert store.release_quarantine("c", "ann") == since
    assert lane.claim("o1").row.submission_id == "sub_1"
    assert not any(row.quarantined for row in store.scan_nonterminal().rows)


def test_the_first_reason_stands_until_it_is_released(store: Store, clock: Clock) -> None:
    """Contract: idempotent; a release tells what was released; the next quarantine is a new one."""
    first = store.quarantine("b", "broken", "lane")
    clock.advance(10)
    assert store.quarantine("b", "broken again", "ann") == first
    later = store.quarantine("a", "poison", "ann")
    assert store.quarantined() == [later, first]
    assert store.quarantined(after="a") == [first]
    assert store.quarantined(limit=1) == [later]
    assert store.release_quarantine("b", "ann") == first
    assert store.release_quarantine("nobody", "ann") is None
    assert store.quarantine("b", "broken again", "ann") == Quarantine(
        conversation_id="b", reason="broken again", author="ann", since_ms=clock()
    )


def test_a_release_whose_answer_was_lost_is_the_same_release(make: Maker, store: Store, clock: Clock) -> None:
    """Contract: idempotent for whoever released it, across a restart; nobody else released anything."""
    first = store.quarantine("c", "broken", "lane")
    assert store.release_quarantine("c", "ann") == first
    store = make.reopen(store)
    assert store.release_quarantine("c", "ann") == first
    assert store.release_quarantine("c", "bob") is None
    clock.advance(10)
    second = store.quarantine("c", "broken again", "lane")
    assert store.release_quarantine("c", "bob") == second
    assert store.release_quarantine("c", "ann") is None
    assert store.quarantined() == []


@pytest.mark.parametrize(
    ("values", "field"),
    [
        (("", "why", "ann"), "conversation_id"),
        (("c", "", "ann"), "reason"),
        (("c", "x" * 5000, "ann"), "reason"),
        (("c", "why", ""), "author"),
        (("c", "\ud800", "ann"), "reason"),
    ],
)
def test_a_quarantine_says_why_and_who(store: Store, values: tuple[str, str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        store.quarantine(*values)
    assert caught.value.details["field"] == field
    assert store.quarantined() == []


def test_a_live_owner_keeps_what_it_runs_and_gets_nothing_more(store: Store, lane: Conversation) -> None:
    """Contract: a quarantine is no fence; what runs comes to its end."""
    lane.start("sub_1")
    lane.submit("sub_2")
    store.quarantine("c", "stop", "ann")
    lane.settle("sub_1")
    assert lane.try_claim("o1") == NotClaimed(reason="quarantined")
    assert lane.row("sub_2").state is State.READY


def test_quarantine_survives_a_restart_of_the_store(duckdb_make: Maker) -> None:
    store = duckdb_make()
    Conversation(store).submit("sub_1")
    held = store.quarantine("c", "broken", "lane")
    store.quarantine("d", "broken", "lane")
    store.release_quarantine("d", "ann")
    reopened = duckdb_make.reopen(store)
    assert reopened.quarantined() == [held]
    assert Conversation(reopened).try_claim() == NotClaimed(reason="quarantined")
    table = reopened.query("SELECT conversation_id, reason, released_by FROM quarantines ORDER BY ALL")
    assert table.rows == (("c", "broken", None), ("d", "broken", "ann"))
    reopened.close()
    reader = duckdb_make(read_only=True)
    assert reader.quarantined() == [held]
    with pytest.raises(Refused) as caught:
        reader.quarantine("e", "why", "ann")
    assert caught.value.code == "read_only"


def test_a_file_that_is_older_than_the_table_gets_it(duckdb_make: Maker) -> None:
    """Stored format: nothing is asked of whoever has a store."""
    store = duckdb_make()
    Conversation(store).submit("sub_1")
    store.close()
    connection = duckdb.connect(str(duckdb_make.path))
    connection.execute("DROP VIEW quarantines")
    connection.execute("DROP TABLE quarantine")
    connection.execute("UPDATE manifest SET views_digest = 'of an older program'")
    connection.close()
    reader = duckdb_make(read_only=True)
    assert reader.quarantined() == []
    reader.close()
    store = duckdb_make()
    store.quarantine("c", "broken", "lane")
    assert Conversation(store).try_claim() == NotClaimed(reason="quarantined")


def test_a_conversation_whose_row_is_damaged_can_be_quarantined(duckdb_make: Maker) -> None:
    """F23: no header is loaded for it; an admission to it is refused, typed; the others go on."""
    store = duckdb_make()
    lane = Conversation(store)
    lane.start("sub_1")
    Conversation(store, "d").submit("sub_d")
    store.close()
    connection = duckdb.connect(str(duckdb_make.path))
    connection.execute("UPDATE ledger SET detail = '{' WHERE submission_id = 'sub_1'")
    connection.close()
    store = duckdb_make()
    held = store.quarantine("c", "its row does not decode", "lane")
    assert store.quarantined() == [held]
    assert [row.quarantined for row in store.scan_nonterminal().rows] == [True, False]
    lane = Conversation(store)
    assert isinstance(raised(lane.answer(*admit_ready("sub_2"))), StoreCorrupt)
    Conversation(store, "d").claim()
    assert store.release_quarantine("c", "ann") == held


# --- what an attempt gives up ----------------------------------------------------------------------------------------


def test_an_attempt_that_abandons_its_work_leaves_it_to_whoever_claims_next(store: Store, lane: Conversation) -> None:
    """Contract: the state stays, no owner is left, and the attempt is fenced from then on."""
    first = lane.start("sub_1", "o1")
    (moved,) = lane.do(Abandon(submission_id="sub_1"))
    assert moved == Moved(submission_id="sub_1", state=State.RUNNING)
    assert lane.row("sub_1").owner_id is None
    assert isinstance(lane.refused(Abandon(submission_id="sub_1")), Fenced)
    grant = lane.claim("o2")
    assert grant.recovering
    assert grant.epoch == first.epoch + 1
    assert grant.row.state is State.RECOVERY
    assert not grant.planned
    lane.do(Abandon(submission_id="sub_1", planned=True))
    assert lane.row("sub_1").handed_over
    again = lane.claim("o1")
    assert (again.row.state, again.planned, again.row.handed_over) == (State.RECOVERY, True, False)
    store.retire_owner("o1")
    assert not lane.claim("o2").planned


def test_work_that_waits_for_its_time_is_made_due(store: Store, lane: Conversation, clock: Clock) -> None:
    lane.start("sub_1")
    refusal = lane.refused(MakeDue(submission_id="sub_1"))
    assert (refusal.code, refusal.details["state"]) == ("not_waiting", "running")
    lane.do(Release(submission_id="sub_1", not_before_ms=clock() + 60_000))
    lane.grant = None
    assert lane.try_claim() == NotClaimed(reason="backoff")
    (moved,) = lane.do(MakeDue(submission_id="sub_1"))
    assert moved == Moved(submission_id="sub_1", state=State.READY)
    assert lane.do(MakeDue(submission_id="sub_1"))[0].replayed
    assert not lane.claim().recovering


# --- dead letters ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("DUR-014")
def test_dead_letters_are_failed_settlements_by_their_code(make: Maker, store: Store, clock: Clock) -> None:
    for name, outcome, code in (
        ("a", "failed", "recoveries_exhausted"),
        ("b", "completed", ""),
        ("c", "failed", "model_failed"),
        ("d", "aborted", ""),
    ):
        lane = Conversation(store, name)
        lane.start(f"sub_{name}")
        clock.advance(5)
        lane.settle(f"sub_{name}", outcome, error=ErrorFact(code=code, message="m") if code else None)
    Conversation(store, "e").start("sub_e")
    store = make.reopen(store)
    found = store.dead_letters()
    assert [(letter.submission_id, letter.code) for letter in found] == [
        ("sub_a", "recoveries_exhausted"),
        ("sub_c", "model_failed"),
    ]
    assert (found[0].agent, found[0].principal, found[0].attempts) == ("support", "alice", 1)
    assert found[1].settled_at_ms == clock() - 5
    assert [letter.submission_id for letter in store.dead_letters(["model_failed"])] == ["sub_c"]
    assert [letter.submission_id for letter in store.dead_letters(limit=1)] == ["sub_c"]
    assert store.dead_letters(["nothing"]) == []
    assert store.dead_letters([]) == []


@pytest.mark.requirement("DUR-009", "DUR-014")
def test_unknown_outcomes_are_dead_letters_until_they_are_resolved(make: Maker, store: Store, clock: Clock) -> None:
    """Contract: open, without a settlement, whatever codes are asked for; the newest comes last."""
    lane = Conversation(store, "a")
    lane.start("sub_a")
    clock.advance(5)
    lane.settle("sub_a", "failed", error=ErrorFact(code="model_failed", message="m"))
    lane = Conversation(store, "u")
    lane.start("sub_u")
    clock.advance(5)
    lane.do(MarkUnknown(submission_id="sub_u", calls={"call": "no proof"}))
    store = make.reopen(store)
    failed, unknown = store.dead_letters()
    assert (failed.kind, failed.submission_id, failed.settled_at_ms) == ("failed", "sub_a", clock() - 5)
    assert (unknown.kind, unknown.code, unknown.settled_at_ms) == ("unknown", "outcome_unknown", None)
    assert (unknown.submission_id, unknown.agent, unknown.principal) == ("sub_u", "support", "alice")
    assert [letter.submission_id for letter in store.dead_letters([])] == ["sub_u"]
    assert [letter.submission_id for letter in store.dead_letters(limit=1)] == ["sub_u"]
    lane = Conversation(store, "u")
    lane.do(
        ResolveUnknown(submission_id="sub_u", call_id="call", resolution="never_started", author="ann", reason="seen")
    )
    assert [letter.submission_id for letter in store.dead_letters()] == ["sub_a"]


def test_dead_letters_show_where_a_row_is_damaged(duckdb_make: Maker) -> None:
    store = duckdb_make()
    lane = Conversation(store)
    lane.start("sub_1")
    lane.settle("sub_1", "failed")
    store.close()
    connection = duckdb.connect(str(duckdb_make.path))
    connection.execute("UPDATE ledger SET detail = '{'")
    connection.close()
    (letter,) = duckdb_make().dead_letters()
    assert (letter.submission_id, letter.code) == ("sub_1", "")


def test_admission_to_a_quarantined_conversation_is_the_same_admission(store: Store, lane: Conversation) -> None:
    store.quarantine("c", "why", "ann")
    lane.submit("sub_1", "key")
    (admitted, *_) = lane.do(*admit_ready("sub_2", "key"))
    assert isinstance(admitted, Admitted)
    assert admitted.receipt.replayed
