"""Counting what an agent really does: one line in a file for each execution, whichever process made it."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from ..agents.agent import Agent
from ..agents.protocol import Emit, Model, ModelRequest, ModelResponse
from ..agents.tools import Effect, Tool, ToolContext, ToolFunction

EFFECTS: tuple[Effect, ...] = get_args(Effect)
"""The effect classes, in the order in which they are reported."""


class CountedTool:
    """A tool's function, `async` and called with (ctx, arguments), that notes its execution before it answers."""

    def __init__(self, function: ToolFunction, effect: Effect, path: str) -> None:
        self._function = function
        self._effect = effect
        self._path = path

    async def __call__(self, ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        append_line(self._path, {"call_id": ctx.call_id, "effect": self._effect, **_here_and_now()})
        return await self._function(ctx, arguments)


class CountedModel:
    """A model that notes each call before it answers; to a definition it is the model that it wraps."""

    def __init__(self, model: Model, path: str) -> None:
        self._model = model
        self._path = path

    def identity(self) -> dict[str, Any]:
        return self._model.identity()

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        append_line(self._path, {"model_turn": f"{request.run_id}/{request.turn}", **_here_and_now()})
        return await self._model.respond(request, emit)


def _here_and_now() -> dict[str, int]:
    return {"pid": os.getpid(), "at_ms": time.time_ns() // 1_000_000}


def append_line(path: str, value: dict[str, Any]) -> None:
    """Append a JSON line in one write, so that lines of several processes never mix and a killed one leaves no half."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, json.dumps(value).encode() + b"\n")
    finally:
        os.close(descriptor)


def counted(agent: Agent, path: Path) -> Agent:
    """The same agent, whose model and tools note what they do in the file at `path`; its definition stays the same."""
    tools = [
        dataclasses.replace(tool, function=CountedTool(tool.function, tool.effect, str(path)))
        for tool in agent.tools
        if isinstance(tool, Tool)
    ]
    assert not isinstance(agent.model, str)  # a name was made a model when the agent was
    return dataclasses.replace(agent, model=CountedModel(agent.model, str(path)), tools=tools)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What was appended to the file, in order; nothing when there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclasses.dataclass(frozen=True)
class Executions:
    """What the file says, in exact numbers: a call that ran three times was repeated twice.

    `after_commit` must be 0: nothing runs whose result is committed. `model_calls_repeated` counts the calls beyond the
    first of each turn of a run.
    """

    total: int
    repeated: int
    after_commit: int
    repeated_by_effect: dict[str, int]
    model_calls: int
    model_calls_repeated: int


def read_executions(path: Path, committed_at_ms: Mapping[str, int]) -> Executions:
    """Count the executions in the file. `committed_at_ms` is when the result of each call was committed.

    An execution that began later than its call's result was committed is one that must not happen.
    """
    calls, turns, by_effect = Counter[str](), Counter[str](), Counter[str]()
    after_commit = 0
    for execution in read_lines(path):
        turn = execution.get("model_turn")
        if turn is not None:
            turns[turn] += 1
            continue
        call_id = execution["call_id"]
        calls[call_id] += 1
        if calls[call_id] > 1:
            by_effect[execution["effect"]] += 1
        after_commit += execution["at_ms"] > committed_at_ms.get(call_id, execution["at_ms"])
    return Executions(
        total=calls.total(),
        repeated=by_effect.total(),
        after_commit=after_commit,
        repeated_by_effect={effect: by_effect[effect] for effect in EFFECTS},
        model_calls=turns.total(),
        model_calls_repeated=turns.total() - len(turns),
    )
