"""Group commit, scans, leases and the other promises of `storage.contract` (F16, F22, F23, section 3)."""

from __future__ import annotations

import pytest
from store_builders import LEASE_MS, Clock, Conversation, Maker, admit_ready, append_of, note, raised

from laneway.storage import machine
from laneway.storage.commands import Accepted, Claim, Fence, Rejected, RequestAbort, Unit
from laneway.storage.contract import Store
from laneway.storage.errors import InvalidInput
from laneway.storage.failpoints import Failpoints, Point, SimulatedCrash
from laneway.storage.ledger import State
from laneway.storage.open_store import open_store


@pytest.mark.parametrize("make", ["memory", "duckdb"], indirect=True)
@pytest.mark.requirement("DUR-007")
def test_a_rejected_unit_never_hurts_its_neighbours(store: Store) -> None:
    """Design 4: many units of many conversations, each answered on its own, in order, in one commit."""
    lanes = [Conversation(store, f"c{number}") for number in range(5)]
    for lane in lanes:
        lane.start(f"sub_{lane.id}")
    before = store.info()
    units = [lane.unit(append_of(f"sub_{lane.id}", note(f"n{lane.id}"))) for lane in lanes]
    units[1] = lanes[1].unit(append_of("sub_none", note("x")))
    units[3] = Unit(conversation_id="c3", commands=units[3].commands)
    answers = store.commit(units)
    assert [isinstance(answer, Accepted) for answer in answers] == [True, False, True, False, True]
    after = store.info()
    assert (after.commits - before.commits, after.rejected - before.rejected) == (1, 2)
    assert (after.units - before.units, after.batches - before.batches) == (5, 3)


def test_units_of_one_conversation_are_applied_in_order(store: Store) -> None:
    """Contract: a unit sees what the units before it in the same group did."""
    lane = Conversation(store)
    lane.start("sub_1")
    assert lane.grant is not None
    token = lane.grant.token
    units = [
        lane.unit(append_of("sub_1", note(name)), fence=Fence(token=token, epoch=1, expected_tail=tail))
        for name, tail in (("a", 1), ("b", 2), ("c", 2))
    ]
    answers = store.commit(units)
    assert [type(answer) for answer in answers] == [Accepted, Accepted, Rejected]
    assert raised(answers[2]).details["tail_sequence"] == 3
    lane.check_chain()


def test_an_empty_group_and_an_unknown_command(store: Store) -> None:
    """Contract: no units, no answers; a command that nobody knows is refused, not a crash of the group."""

    class Strange(RequestAbort, tag="strange"):
        pass

    assert store.commit([]) == []
    strange = Strange(submission_id="s", abort_id="a", author="a", reason="r")
    answers = store.commit(
        [
            Unit(conversation_id="c1", commands=admit_ready("sub_1", "key")),
            Unit(conversation_id="c2", commands=(strange,)),
            Unit(conversation_id="", commands=admit_ready("sub_2")),
            Unit(conversation_id="c1", commands=admit_ready("sub_3", "key")),
        ]
    )
    assert [type(answer) for answer in answers] == [Accepted, Rejected, Rejected, Accepted]
    assert all(isinstance(raised(answers[number]), InvalidInput) for number in (1, 2))


def test_a_bug_in_the_middle_of_a_group_leaves_nothing_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: an exception that is no answer leaves neither rows nor half-known keys of the units before it."""

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setitem(machine.MOVES, RequestAbort, broken)
        abort = RequestAbort(submission_id="sub_1", abort_id="a", author="a", reason="r")
        units = [
            Unit(conversation_id="c", commands=admit_ready("sub_1", "key")),
            Unit(conversation_id="c", commands=(abort,)),
        ]
        with pytest.raises(ZeroDivisionError):
            store.commit(units)
    lane = Conversation(store)
    receipt = lane.submit("sub_2", "key")
    assert (receipt.submission_id, receipt.queue_sequence, receipt.replayed) == ("sub_2", 1, False)


@pytest.mark.parametrize("make", ["memory", "duckdb"], indirect=True)
@pytest.mark.requirement("DUR-007")
@pytest.mark.parametrize(
    "point",
    [
        Point.BEFORE_COMMIT,
        Point.APPEND_BEGUN,
        Point.APPEND_BATCHES_WRITTEN,
        Point.APPEND_ROWS_WRITTEN,
        Point.AFTER_COMMIT,
    ],
)
@pytest.mark.parametrize("reopened", [False, True], ids=["goes on", "reopened"])
def test_a_crash_in_a_group_is_all_or_nothing(make: Maker, point: Point, reopened: bool) -> None:
    """K23, F10, F16: stopped on either side of COMMIT and inside the write: no prefix, one copy after the repeat."""
    if make.adapter == "memory" and point not in (Point.BEFORE_COMMIT, Point.AFTER_COMMIT):
        pytest.skip("the memory adapter has nothing inside its write")
    group = 3
    failpoints = Failpoints({point: group})
    store = make(failpoints=failpoints)
    lanes = [Conversation(store, f"c{number}") for number in range(4)]
    store.renew_lease("o1", LEASE_MS)
    store.commit([lane.unit(*admit_ready(f"sub_{lane.id}")) for lane in lanes])
    claims = [
        lane.unit(Claim(submission_id="", owner_id="o1", attempt_id=f"att{lane.id}", token=f"tok{lane.id}"))
        for lane in lanes
    ]
    for lane, answer in zip(lanes, store.commit(claims), strict=True):
        assert isinstance(answer, Accepted)
        lane.grant = answer.results[0]
    units = [lane.unit(append_of(f"sub_{lane.id}", note(f"n{lane.id}"))) for lane in lanes]
    with pytest.raises(SimulatedCrash):
        store.commit(units)
    assert failpoints.hits[point] == group
    if reopened:
        store = make.reopen(store)
    landed = point is Point.AFTER_COMMIT
    for lane in lanes:
        assert len(store.read_log(lane.id).batches) == landed
    answers = store.commit(units)
    for answer in answers:
        assert isinstance(answer, Accepted)
        assert answer.results[0].replayed is landed
    for lane in lanes:
        lane.store = store
        assert len(lane.batches()) == 1
        lane.check_chain()


def test_a_scan_pages_through_open_work(store: Store, clock: Clock) -> None:
    """Section 3 scan: by (conversation, queue sequence); settled rows are left out; the cursor resumes."""
    for name in ("b", "a", "c"):
        lane = Conversation(store, name)
        lane.start(f"sub_{name}1")
        lane.submit(f"sub_{name}2")
        if name == "b":
            lane.settle("sub_b1")
    seen: list[tuple[str, int]] = []
    cursor = None
    while True:
        page = store.scan_nonterminal(cursor, limit=2)
        seen += [(row.conversation_id, row.queue_sequence) for row in page.rows]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [("a", 1), ("a", 2), ("b", 2), ("c", 1), ("c", 2)]
    rows = store.scan_nonterminal().rows
    assert [row.owner_live for row in rows] == [True, False, False, True, False]
    assert [row.state for row in rows] == [State.RUNNING, State.READY, State.READY, State.RUNNING, State.READY]
    clock.advance(LEASE_MS)
    assert not any(row.owner_live for row in store.scan_nonterminal().rows)


def test_rows_are_listed_by_conversation_and_state(store: Store, clock: Clock) -> None:
    """Reads: newest admission last; the limit keeps the newest."""
    for number in range(4):
        lane = Conversation(store, f"c{number % 2}")
        lane.submit(f"sub_{number}")
        clock.advance(1)
    Conversation(store, "c0").claim()
    assert [row.submission_id for row in store.list_rows()] == ["sub_0", "sub_1", "sub_2", "sub_3"]
    assert [row.submission_id for row in store.list_rows(limit=2)] == ["sub_2", "sub_3"]
    assert [row.submission_id for row in store.list_rows("c1")] == ["sub_1", "sub_3"]
    assert [row.submission_id for row in store.list_rows(state="running")] == ["sub_0"]
    assert [row.submission_id for row in store.list_rows("c1", "running")] == []
    assert store.list_conversations() == ["c0", "c1"]
    assert store.list_conversations(after="c0", limit=1) == ["c1"]


def test_leases(make: Maker, store: Store, clock: Clock) -> None:
    """Contract: renew, retire; after a restart of the store every lease runs its length anew."""
    assert store.renew_lease("o1", 1000) == clock() + 1000
    store.renew_lease("o2", 500)
    store.renew_lease("o3", 500)
    store.retire_owner("o3")
    clock.advance(800)
    assert store.owners() == {"o1": clock() + 200, "o2": clock() - 300}
    store.renew_lease("o1", 2000)
    clock.advance(10_000)
    reopened = make.reopen(store)
    if make.adapter == "duckdb":
        assert reopened.owners() == {"o1": clock() + 2000, "o2": clock() + 500}
    reopened.renew_lease("o2", 500)
    assert reopened.owners()["o2"] == clock() + 500


def test_info_tells_adapter_class_and_counts(make: Maker, store: Store) -> None:
    """Contract: the word durable stands beside its class and adapter."""
    info = store.info()
    expected = ("duckdb", "DR", str(make.path)) if make.adapter == "duckdb" else ("memory", "E", None)
    assert (info.adapter, info.deployment_class, info.path) == expected
    assert info.shards == (3 if make.adapter == "shards" else 1)
    assert (info.commits, info.units, info.rejected, info.batches, info.rows, info.body_bytes) == (0,) * 6


def test_the_address_chooses_the_adapter(make: Maker) -> None:
    """Composition root: memory, or a file."""
    folder = make.folder
    for address in (None, "memory", "memory://"):
        assert open_store(address).info().adapter == "memory"
    for address in (
        folder / "a.duckdb",
        str(folder / "b.duckdb"),
        f"duckdb:{folder}/c.duckdb",
        f"duckdb://{folder}/d.duckdb",
    ):
        store = open_store(address)
        assert (store.info().adapter, store.info().path) == ("duckdb", str(folder / f"{str(address)[-8]}.duckdb"))
        store.close()
        store.close()
