"""What measures of deaths share: a model that waits at a gate, files that several processes note moments in, waits."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from laneway import ModelRequest

from ..cluster.executions import append_line
from .result import NotDone

_T = TypeVar("_T")
PATIENCE_S = 60.0


class Gated:
    """A model's function: notes each call with the moment, then waits while the gate's file exists.

    It looks at the gate every `look_s`: seldom, where thousands of calls wait at the same time.
    """

    def __init__(self, calls: str, gate: str, look_s: float = 0.005) -> None:
        self._calls = calls
        self._gate = gate
        self._look_s = look_s

    async def __call__(self, request: ModelRequest) -> str:
        noted = {"run": request.run_id, "conversation": request.conversation_id}
        append_line(self._calls, {**noted, "pid": os.getpid(), "at": time.monotonic()})
        while os.path.exists(self._gate):  # noqa: ASYNC110, ASYNC240 (a file is what every process sees)
            await asyncio.sleep(self._look_s)
        return "done"


class Noted:
    """The lines of a file that grows, each read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def more(self) -> list[dict[str, Any]]:
        """What was appended since the last time."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def until(holds: Callable[[], _T | None], what: str, patience_s: float = PATIENCE_S, pause_s: float = 0.002) -> _T:
    """Wait until `holds` gives something, and return that. Raises: NotDone after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise NotDone(f"{what}: not within {patience_s:.0f} s")
        time.sleep(pause_s)
    return found
