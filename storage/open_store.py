"""The composition root of a store: which adapter an address means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .contract import Store
from .failpoints import NO_FAILPOINTS, Failpoints
from .memory_store import MemoryStore
from .readback import wall_clock_ms
from .values import DEFAULT_LIMITS, Limits

_MEMORY = ("memory", "memory://", ":memory:")
_DUCKDB = ("duckdb://", "duckdb:")


def open_store(
    address: str | Path | None,
    *,
    now_ms: Callable[[], int] = wall_clock_ms,
    limits: Limits = DEFAULT_LIMITS,
    failpoints: Failpoints = NO_FAILPOINTS,
    read_only: bool = False,
) -> Store:
    """Open the store at `address`: None or "memory" is class E, a path or "duckdb:<path>" is class DR.

    Raises: what the adapter raises when its file is busy, full or no store.
    """
    if address is None or address in _MEMORY:
        return MemoryStore(now_ms=now_ms, limits=limits, failpoints=failpoints)
    from .duckdb_store import DuckDBStore  # lazily: class E needs no DuckDB

    path = str(address)
    for prefix in _DUCKDB:
        path = path.removeprefix(prefix)
    return DuckDBStore(path, now_ms=now_ms, limits=limits, failpoints=failpoints, read_only=read_only)
