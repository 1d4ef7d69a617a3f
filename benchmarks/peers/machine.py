"""What the figures were measured on: the machine, the cost of an fsync on its disk, versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FSYNC_BYTES = 3_000
FSYNC_COUNT = 200


def machine(folder: Path) -> dict[str, Any]:
    """The machine, and the file system of the folder that holds the data."""
    return {
        "cpu": _value("/proc/cpuinfo", "model name") or platform.processor(),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(folder),
        "write_and_fdatasync_of_3_kb_ms": fsync_ms(folder),
        "date": datetime.now(UTC).date().isoformat(),
    }


def fsync_ms(folder: Path) -> float:
    """The median of a write of 3 kB at the end of a file, and its fdatasync."""
    times: list[float] = []
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(FSYNC_COUNT):
            began = time.perf_counter()
            file.write(b"x" * FSYNC_BYTES)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return round(statistics.median(times) * 1000, 3)


def packages() -> dict[str, str]:
    """Every package of this environment."""
    found = {each.metadata["Name"].lower(): each.version for each in importlib.metadata.distributions()}
    return {"python": platform.python_version()} | dict(sorted(found.items()))


def _value(path: str, key: str) -> str | None:
    if not os.path.exists(path):
        return None
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _file_system(folder: Path) -> str | None:
    """The type of the mount that holds the folder: fsync on a tmpfs would cost nothing."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return None
    held = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    inside = [(point, kind) for point, kind in held if folder.resolve().is_relative_to(point)]
    return max(inside, key=lambda each: len(each[0]))[1] if inside else None
