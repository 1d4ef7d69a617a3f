"""Which shard holds what, names of files, and one answer from those of all shards."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.cluster.ray_stores import store_names
from laneway.storage import sharding
from laneway.storage.contract import ControlRow, DeadLetter, Quarantine, ScanPage, Store, StoreInfo, Table
from laneway.storage.errors import InvalidInput
from laneway.storage.ledger import State
from laneway.storage.shard_names import base_path, files_found, shard_path
from laneway.storage.sharding import Shard, all_shards, merged, shard_asked, shard_of


def test_a_conversation_keeps_its_shard_for_ever() -> None:
    """Stored data lies where these numbers say: they never change."""
    names = ("order-42", "", "ü/:1", "c0", "c2", "c4", "x" * 1000)
    assert [shard_of(name, 4) for name in names] == [3, 0, 3, 3, 1, 2, 3]
    assert [shard_of(name, 64) for name in names] == [47, 20, 47, 11, 29, 2, 3]
    assert {shard_of(name, 1) for name in names} == {0}
    assert shard_of("\ud800", 4) in range(4)  # the shard refuses it, with the name of the field


def test_conversations_are_spread_evenly() -> None:
    counts = Counter(shard_of(f"conversation-{number}", 4) for number in range(8000))
    assert sorted(counts) == [0, 1, 2, 3]
    assert all(abs(count - 2000) < 200 for count in counts.values())


@pytest.mark.parametrize(("index", "of"), [(0, 0), (1, 1), (-1, 2), (0, 65)])
def test_a_shard_that_cannot_be_is_refused(index: int, of: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        Shard(index, of)
    assert (caught.value.details["field"], caught.value.details["limit"]) == ("shards", sharding.SHARDS_MAX)


@pytest.mark.parametrize("path", ["laneway.duckdb", "/data/laneway", "a.b/c.d.duckdb", "run.1-of-2.duckdb"])
def test_names_of_files_lead_to_the_path_and_back(path: str) -> None:
    assert shard_path(path, 0, 1) == path
    names = [shard_path(path, shard.index, shard.of) for shard in all_shards(4)]
    assert len({*names, path}) == 5
    assert {base_path(name) for name in names} == {path}
    assert shard_path("x/laneway.duckdb", 3, 4) == "x/laneway.3-of-4.duckdb"


def test_the_files_of_a_store_are_found_and_no_others(tmp_path: Path) -> None:
    for name in ("s.0-of-4.duckdb", "s.3-of-4.duckdb", "s.3-of-4.duckdb.wal", "s.2-of-4", "other.1-of-4.duckdb"):
        (tmp_path / name).touch()
    path = str(tmp_path / "s.duckdb")
    assert files_found(path) == {4: {0, 3}}
    (tmp_path / "s.duckdb").touch()
    assert files_found(path) == {1: {0}, 4: {0, 3}}
    assert files_found("no/such/folder/s.duckdb") == {}
    assert files_found("a\0b") == {}


def control(conversation_id: str, sequence: int) -> ControlRow:
    return ControlRow(
        submission_id=f"sub_{conversation_id}_{sequence}",
        conversation_id=conversation_id,
        queue_sequence=sequence,
        state=State.READY,
        owner_id=None,
        owner_live=False,
        parked=False,
        abort_requested=False,
        attempts=0,
        not_before_ms=0,
        updated_at_ms=0,
    )


def pages_of(rows: list[ControlRow], cursor: tuple[str, int] | None, limit: int) -> ScanPage:
    """What one store answers."""
    behind = [row for row in rows if cursor is None or (row.conversation_id, row.queue_sequence) > cursor]
    page = tuple(behind[:limit])
    more = len(behind) > limit
    return ScanPage(rows=page, cursor=(page[-1].conversation_id, page[-1].queue_sequence) if more else None)


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 5)), unique=True),
    st.integers(1, 6),
    st.integers(1, 4),
)
def test_pages_of_a_scan_are_those_of_one_store(keys: list[tuple[str, int]], limit: int, shards: int) -> None:
    """Every row once, in the order of (conversation, queue sequence), however the pages of the shards fall."""
    rows = [control(*key) for key in sorted(keys)]
    held = [[row for row in rows if shard_of(row.conversation_id, shards) == shard] for shard in range(shards)]
    found: list[ControlRow] = []
    cursor: tuple[str, int] | None = None
    while True:
        page = merged("scan_nonterminal", (cursor, limit), [pages_of(theirs, cursor, limit) for theirs in held])
        found.extend(page.rows)
        assert len(page.rows) <= limit
        cursor = page.cursor
        if cursor is None:
            break
    assert found == rows


def test_lists_are_merged_in_their_order_and_cut_where_one_store_would() -> None:
    assert merged("list_conversations", ("", 3), [["a", "d"], ["b", "c", "e"]]) == ["a", "b", "c"]
    held = [[Quarantine(conversation_id=name, reason="r", author="a", since_ms=1)] for name in ("b", "a")]
    assert [found.conversation_id for found in merged("quarantined", (), held)] == ["a", "b"]

    def dead(name: str, settled_at_ms: int | None, changed_at_ms: int) -> DeadLetter:
        return DeadLetter(
            submission_id=name,
            conversation_id=name,
            queue_sequence=1,
            agent="a",
            principal="p",
            code="c",
            attempts=1,
            admitted_at_ms=1,
            settled_at_ms=settled_at_ms,
            changed_at_ms=changed_at_ms,
        )

    letters = [[dead("old", 1, 1), dead("newest", 9, 9)], [dead("open", None, 5)]]
    assert [found.submission_id for found in merged("dead_letters", (None, 2), letters)] == ["open", "newest"]
    assert merged("dead_letters", (None, 0), letters) == []


def test_owners_leases_and_counts_are_those_of_the_whole_store() -> None:
    assert merged("owners", (), [{"a": 5, "b": 1}, {"a": 3, "c": 2}]) == {"a": 5, "b": 1, "c": 2}
    assert merged("renew_lease", ("a", 10), [15, 12]) == 12
    assert merged("retire_owner", ("a",), [None, None]) is None
    infos = [
        StoreInfo(
            adapter="duckdb",
            deployment_class="DR",
            path=f"x/s.{index}-of-2.duckdb",
            commits=1 + index,
            units=2,
            rejected=0,
            batches=3,
            rows=4,
            body_bytes=5,
        )
        for index in range(2)
    ]
    whole = merged("info", (), infos)
    assert (whole.path, whole.shards, whole.commits, whole.units, whole.body_bytes) == ("x/s.duckdb", 2, 3, 4, 10)


def test_answers_in_sql_say_which_shard_they_are_of() -> None:
    found = merged(
        "query", ("SELECT ...", 3), [Table(columns=("n",), rows=((1,), (2,))), Table(columns=("n",), rows=((3,), (4,)))]
    )
    assert found == Table(columns=("shard", "n"), rows=((0, 1), (0, 2), (1, 3)))


def test_every_method_of_the_contract_has_its_way_to_the_shards() -> None:
    """A new method is refused here until somebody says which shards it asks."""
    methods = {name for name in vars(Store) if not name.startswith("_")} - {"commit", "close"}
    routed = sharding.BY_CONVERSATION | sharding.BY_SUBMISSION
    assert methods == routed | sharding.MERGED
    for method, (position, limit) in sharding.LIMITS.items():
        parameters = list(inspect.signature(getattr(Store, method)).parameters.values())[1:]
        assert (parameters[position].name, parameters[position].default) == ("limit", limit)
    for method in sharding.BY_CONVERSATION:
        assert shard_asked(method, ("order-42",), 4) == shard_of("order-42", 4)
    assert shard_asked("list_rows", ("order-42", None), 4) == shard_of("order-42", 4)
    assert [shard_asked("list_rows", args, 4) for args in ((), (None,))] == [None, None]
    assert shard_asked("lookup", ("sub_1",), 4) is None


def test_actors_of_shards_are_found_by_their_names_in_order() -> None:
    taken = ["supervisor", *(f"store-{index}" for index in (10, 2, 1)), "store", "store-x", "conversations-1"]
    assert store_names(taken) == ["store", "store-1", "store-2", "store-10"]
