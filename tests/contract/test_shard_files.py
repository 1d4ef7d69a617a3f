"""The files of a store of several shards: they belong together, and what does not fit is refused before it is used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from store_builders import Conversation

import laneway
from laneway.cluster.doctor import Verdict, examine
from laneway.cluster.offline import open_offline
from laneway.storage.errors import InvalidInput, StoreBusy
from laneway.storage.open_store import open_shard, open_store, prepare_shards
from laneway.storage.shard_names import files_found, shard_path
from laneway.storage.sharding import Shard, shard_of

NAMES = [f"c{number}" for number in range(8)]


def filled(path: Path, shards: int) -> None:
    with closing(open_store(path, shards=shards)) as store:
        for name in NAMES:
            Conversation(store, name).start(f"sub_{name}")


def refused(opening: Callable[[], object]) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        opening()
    return caught.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.duckdb"


def test_each_file_holds_its_conversations_and_all_together_the_store(path: Path) -> None:
    filled(path, 3)
    assert files_found(str(path)) == {3: {0, 1, 2}}
    for shard in range(3):
        with closing(open_store(shard_path(str(path), shard, 3), read_only=True)) as one:
            assert one.list_conversations() == [name for name in NAMES if shard_of(name, 3) == shard]
    for how in ({"shards": 3}, {}, {"read_only": True}):
        with closing(open_store(path, **how)) as store:
            assert store.list_conversations() == NAMES
            assert (store.info().path, store.info().shards) == (str(path), 3)
            counts = store.query("SELECT count(*) AS n FROM submissions")
            assert counts.columns == ("shard", "n")
            assert sum(row[1] for row in counts.rows) == len(NAMES)


@pytest.mark.parametrize(("stored", "asked"), [(4, 2), (4, 1), (1, 4)])
def test_another_number_of_shards_is_refused_and_changes_nothing(path: Path, stored: int, asked: int) -> None:
    filled(path, stored)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    for opening in (
        lambda: open_store(path, shards=asked),
        lambda: prepare_shards(path, asked),
    ):
        error = refused(opening)
        assert (error.code, error.details["stored"]) == ("shards_differ", [stored])
        assert f"made with {stored} shards, and {asked} are asked for" in error.message
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_files_of_two_stores_beside_each_other_are_refused(path: Path) -> None:
    filled(path, 2)
    (path.parent / "store.0-of-3.duckdb").touch()
    assert refused(lambda: open_store(path, read_only=True)).details["stored"] == [2, 3]


@pytest.mark.parametrize("used", [True, False])
def test_a_missing_file_is_made_only_while_nothing_was_admitted(path: Path, used: bool) -> None:
    """A start that was cut off goes on; a file that was lost is missed, and no empty one stands in for it."""
    if used:
        filled(path, 3)
    else:
        open_store(path, shards=3).close()
    lost = Path(shard_path(str(path), 1, 3))
    lost.unlink()
    if not used:
        open_store(path, shards=3).close()
        assert lost.exists()
        return
    for opening in (
        lambda: open_store(path, shards=3),
        lambda: open_store(path, read_only=True),
        lambda: open_shard(path, Shard(1, 3)),
    ):
        assert refused(opening).code == "shard_missing"
        assert not lost.exists()
    with closing(open_shard(path, Shard(0, 3))) as other:
        assert other.list_conversations()


def test_a_file_under_anothers_name_is_refused(path: Path) -> None:
    """The manifest tells, not the name alone: a conversation would be looked for where it is not."""
    filled(path, 2)
    first, second = (Path(shard_path(str(path), shard, 2)) for shard in range(2))
    second.unlink()
    first.rename(second)
    assert refused(lambda: open_shard(path, Shard(1, 2))).code == "shards_differ"
    second.rename(path)
    error = refused(lambda: open_store(path))
    assert (error.code, error.details["stored"]) == ("shards_differ", [2])


def test_a_store_that_is_held_is_busy_as_a_whole(path: Path) -> None:
    filled(path, 2)
    with closing(open_shard(path, Shard(1, 2))):
        for read_only in (False, True):
            with pytest.raises(StoreBusy):
                open_store(path, shards=2, read_only=read_only)
        with closing(open_shard(path, Shard(0, 2))) as other:  # what was opened before the refusal was let go of
            assert other.info().shards == 1


def test_commands_find_the_files_by_the_stores_path(path: Path) -> None:
    filled(path, 2)
    with open_offline(path) as runtime:
        assert runtime.conversations() == NAMES
        assert runtime.verify().passed
        assert runtime.describe().store["shards"] == 2
    (check,) = [check for check in examine("nobody", path, path.parent) if check.name == "store"]
    assert (check.verdict, check.found) == (Verdict.OK, f"{path} opens")


def test_a_runtime_in_one_process_has_shards_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an argument or the environment; open work goes on, and another number is refused."""
    agent = laneway.Agent(name="echo", model=laneway.FunctionModel(lambda request: "yes"))
    with laneway.local(agent, store=path, shards=3) as runtime:
        receipts = [runtime.conversation(name).submit("hello") for name in NAMES]
        assert {receipt.result(timeout=30).text for receipt in receipts} == {"yes"}
        assert runtime.describe().store["shards"] == 3
    monkeypatch.setenv("LANEWAY_SHARDS", "3")
    with laneway.local(agent, store=path) as runtime:
        assert runtime.conversations() == NAMES
        assert runtime.verify(require_settled=True).passed
    assert refused(lambda: laneway.local(agent, store=path, shards=2).stop()).code == "shards_differ"
    too_many = refused(lambda: laneway.local(agent, store=path, shards=65).stop())
    assert (too_many.details["field"], too_many.details["limit"]) == ("shards", 64)
