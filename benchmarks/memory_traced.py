"""What Python's allocator says of lanes: bytes that are free again when they are dropped, by who took them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import laneway

PLACES_SHOWN = 20


def started() -> Callable[[], int]:
    """Trace from now on; returns what tells the bytes that are held."""
    tracemalloc.start()

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    return held


def freed_by(runtime: laneway.Runtime, host: Any) -> dict[str, Any]:
    """Drop the lanes of a host; bytes a lane that are free then, in all and by line."""
    lanes = len(host.resident())
    gc.collect()
    before = tracemalloc.take_snapshot()
    objects = len(gc.get_objects())
    runtime.run(_drop(host))
    gc.collect()
    freed_objects = objects - len(gc.get_objects())
    after = tracemalloc.take_snapshot()
    by_file = _freed(before, after, "filename", lanes)
    by_line = _freed(before, after, "lineno", lanes)
    return {
        "bytes_a_lane": round(sum(by_file.values())),
        "tracked_objects_a_lane": round(freed_objects / lanes, 1),
        "bytes_a_lane_by_file": _most(by_file),
        "bytes_a_lane_by_line": _most(by_line),
    }


async def _drop(host: Any) -> None:
    for name in host.resident():
        host._passivate(name)


def _freed(before: tracemalloc.Snapshot, after: tracemalloc.Snapshot, key: str, lanes: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for difference in after.compare_to(before, key):
        frame = difference.traceback[0]
        path = "/".join(Path(frame.filename).parts[-2:])
        name = path if key == "filename" else f"{path}:{frame.lineno}"
        found[name] = found.get(name, 0.0) - difference.size_diff / lanes
    return found


def _most(found: dict[str, float]) -> dict[str, int]:
    ordered = sorted(found.items(), key=lambda item: -item[1])[:PLACES_SHOWN]
    return {name: round(size) for name, size in ordered if size >= 1}
