"""Processes of this machine as the kernel shows them: who descends from whom, who lives, what memory one has."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def family(pid: int) -> set[int]:
    """The process and all that descend from it and live."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended meanwhile
        if state != "Z":
            children.setdefault(int(parent), []).append(int(path.parent.name))
    found, waiting = {pid}, [pid]
    while waiting:
        more = children.get(waiting.pop(), [])
        found.update(more)
        waiting.extend(more)
    return found


def lives(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_all(pids: set[int]) -> None:
    """SIGKILL for each of them that lives."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def resident_bytes(pid: int) -> int:
    """Bytes of memory that the process holds alone: anonymous pages, without shared libraries and files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def all_resident_bytes(pid: int) -> int:
    """Bytes of memory that the process holds, shared libraries and files included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)
