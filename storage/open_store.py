"""The composition root of a store: which adapter an address means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from .contract import Store
from .failpoints import NO_FAILPOINTS, Failpoints
from .memory_store import MemoryStore
from .readback import wall_clock_ms
from .shard_names import shard_path
from .sharded_store import ShardedStore
from .sharding import Shard, all_shards
from .values import DEFAULT_LIMITS, Limits

_MEMORY = ("memory", "memory://", ":memory:")
_DUCKDB = ("duckdb://", "duckdb:")


def open_store(
    address: str | Path | None,
    *,
    shards: int | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
    limits: Limits = DEFAULT_LIMITS,
    failpoints: Failpoints = NO_FAILPOINTS,
    read_only: bool = False,
) -> Store:
    """Open the store at `address`: None or "memory" is class E, a path or "duckdb:<path>" is class DR.

    `shards` is how many it has; None takes what is there, and makes a new one with one.
    Raises: what the adapter raises when its file is busy, full or no store; InvalidInput with code "shards_differ".
    """
    path = _path_of(address)
    if path is None:
        places = all_shards(shards or 1)
        return _together([MemoryStore(now_ms=now_ms, limits=limits, failpoints=failpoints) for _ in places])
    from .shard_files import make_shards, shards_at

    count = shards_at(path) if shards is None else shards
    if not read_only:
        make_shards(path, count, now_ms=now_ms)
    opened: list[Store] = []
    try:
        for shard in all_shards(count):
            opened.append(
                open_shard(path, shard, now_ms=now_ms, limits=limits, failpoints=failpoints, read_only=read_only)
            )
    except BaseException:
        for store in opened:
            store.close()
        raise
    return _together(opened)


def open_shard(
    address: str | Path,
    shard: Shard,
    *,
    now_ms: Callable[[], int] = wall_clock_ms,
    limits: Limits = DEFAULT_LIMITS,
    failpoints: Failpoints = NO_FAILPOINTS,
    read_only: bool = False,
) -> Store:
    """Open one shard of the store at `address`, for a process of its own; several are made by `make_shards` before."""
    path = _path_of(address)
    if path is None:
        return MemoryStore(now_ms=now_ms, limits=limits, failpoints=failpoints)
    from .duckdb_store import DuckDBStore  # lazily: class E needs no DuckDB

    name = shard_path(path, shard.index, shard.of)
    return DuckDBStore(name, shard=shard, now_ms=now_ms, limits=limits, failpoints=failpoints, read_only=read_only)


def prepare_shards(address: str | Path, shards: int) -> None:
    """Once, before the processes that hold one shard each open them. Raises: as `shard_files.make_shards`."""
    path = _path_of(address)
    if path is not None:
        from .shard_files import make_shards

        make_shards(path, shards)


def _path_of(address: str | Path | None) -> str | None:
    """The path of a DuckDB store, None for memory."""
    if address is None or address in _MEMORY:
        return None
    path = str(address)
    for prefix in _DUCKDB:
        path = path.removeprefix(prefix)
    return path


def _together(stores: Sequence[Store]) -> Store:
    return stores[0] if len(stores) == 1 else ShardedStore(stores)
