"""The files of a store as a set: whether they fit the number of shards that is asked for, and making new ones."""

from __future__ import annotations

from collections.abc import Callable

from .duckdb_file import DuckDBFile
from .duckdb_store import DuckDBStore
from .errors import InvalidInput
from .readback import wall_clock_ms
from .shard_names import files_found, shard_path
from .sharding import Shard, all_shards


def shards_at(path: str) -> int:
    """How many shards the store at `path` has, by the names of its files; 1 where there are none.

    Raises: InvalidInput with code "shards_differ" where files of several numbers lie beside each other.
    """
    found = files_found(path)
    if len(found) > 1:
        raise _differ(path, sorted(found), f"files of {' and of '.join(map(str, sorted(found)))} shards lie there")
    return next(iter(found), 1)


def make_shards(path: str, shards: int, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
    """See that the store at `path` has all files of `shards` shards, for the first process that opens it.

    Missing ones are made only while nothing was admitted to any of the others: later on, one that is missing is lost.
    A store of one shard makes its file itself when it is opened.
    Raises: InvalidInput with code "shards_differ" or "shard_missing"; what opening a store raises.
    """
    wanted = all_shards(shards)
    found = files_found(path)
    if stored := sorted(found.keys() - {shards}):
        why = f"it was made with {stored[0]} shards, and {shards} are asked for"
        raise _differ(path, stored, f"{why}; pass shards={stored[0]}, or --shards {stored[0]}")
    present = found.get(shards, set[int]())
    missing = [shard for shard in wanted if shard.index not in present]
    if not missing or shards == 1:
        return
    used = [index for index in sorted(present) if _is_used(path, Shard(index, shards))]
    if used:
        raise _missing(path, [shard_path(path, shard.index, shards) for shard in missing])
    for shard in missing:
        name = shard_path(path, shard.index, shards)
        DuckDBFile(name, read_only=False, now_ms=now_ms(), shard=shard, make=True).close()


def _is_used(path: str, shard: Shard) -> bool:
    store = DuckDBStore(shard_path(path, shard.index, shard.of), shard=shard, read_only=True)
    try:
        return bool(store.list_conversations(limit=1))
    finally:
        store.close()


def _differ(path: str, stored: list[int], why: str) -> InvalidInput:
    message = f"{path} cannot be opened as a store: {why}"
    return InvalidInput(message, code="shards_differ", field="shards", path=path, stored=stored)


def _missing(path: str, names: list[str]) -> InvalidInput:
    message = f"{path} cannot be opened as a store: {', '.join(names)} is missing, and other shards hold conversations"
    return InvalidInput(message, code="shard_missing", field="shards", path=path, missing=names)
