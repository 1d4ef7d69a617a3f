"""Counting what recorded tools really do: one line in a file for each execution, whichever process made it."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..agents.agent import Agent
from ..agents.tools import Tool, ToolContext, ToolFunction


class CountedTool:
    """A recorded tool's function that notes its execution before it answers."""

    def __init__(self, function: ToolFunction, path: str) -> None:
        self._function = function
        self._path = path

    async def __call__(self, ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        append_line(self._path, {"call_id": ctx.call_id, "pid": os.getpid(), "at_ms": time.time_ns() // 1_000_000})
        return await self._function(ctx, arguments)


def append_line(path: str, value: dict[str, Any]) -> None:
    """Append a JSON line in one write, so that lines of several processes never mix and a killed one leaves no half."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, json.dumps(value).encode() + b"\n")
    finally:
        os.close(descriptor)


def counted(agent: Agent, path: Path) -> Agent:
    """The same agent, whose tools note their executions in the file at `path`; its definition stays the same."""
    tools = [
        dataclasses.replace(tool, function=CountedTool(tool.function, str(path)))
        for tool in agent.tools
        if isinstance(tool, Tool)
    ]
    return dataclasses.replace(agent, tools=tools)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What was appended to the file, in order; nothing when there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclasses.dataclass(frozen=True)
class Executions:
    """What the file says, in numbers. `after_commit` must be 0: nothing runs whose result is committed."""

    total: int
    repeated: int
    after_commit: int


def read_executions(path: Path, committed_at_ms: Mapping[str, int]) -> Executions:
    """Count the executions in the file. `committed_at_ms` is when the result of each call was committed.

    An execution that began later than its call's result was committed is one that must not happen.
    """
    counts: dict[str, int] = {}
    after_commit = 0
    executions = read_lines(path)
    for execution in executions:
        call_id = execution["call_id"]
        counts[call_id] = counts.get(call_id, 0) + 1
        after_commit += execution["at_ms"] > committed_at_ms.get(call_id, execution["at_ms"])
    return Executions(len(executions), sum(count - 1 for count in counts.values()), after_commit)
