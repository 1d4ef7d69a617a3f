"""The turn that is measured: user input, model, one tool, model, settled; model and tool answer at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from laneway import Agent, FunctionModel, ModelRequest, tool

from ..cluster.runtime import Conversation, Runtime
from ..recovery.convergence import Report
from .result import NotDone

INPUT = "Where is my order?"


@tool(effect="idempotent")
async def look_up(item: str) -> str:
    """Answers at once with 200 bytes."""
    return "r" * 200


def answer(request: ModelRequest) -> Any:
    """300 bytes, and first a call of the tool."""
    if request.messages[-1]["role"] == "tool":
        return "a" * 300
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"item": "x"}'}}
    return {"role": "assistant", "content": "m" * 300, "tool_calls": [call]}


def turn_agent() -> Agent:
    return Agent(name="bench", model=FunctionModel(answer), tools=[look_up])


def all_settled(runtime: Runtime, submissions: int) -> Report:
    """See that just so many submissions are in the store, all completed, and that it converges. Raises: NotDone."""
    report = runtime.verify(require_settled=True)
    if not report.passed or report.outcomes != {"completed": submissions}:
        raise NotDone(f"{report.outcomes} of {submissions} submissions: {report.problems[:3]}")
    return report


async def run_turns(
    conversations: Sequence[Conversation],
    turns: int,
    concurrency: int,
    done: Callable[[int], None] = lambda count: None,
    input_of: Callable[[int], str] = lambda number: INPUT,
) -> list[float]:
    """Drive `turns` turns over the conversations, `concurrency` at a time; the seconds that each one took."""
    seconds: list[float] = []
    waiting = iter(range(turns))

    async def worker() -> None:
        for number in waiting:
            began = time.perf_counter()
            receipt = await conversations[number % len(conversations)].asubmit(input_of(number))
            settlement = await receipt.aresult(120)
            assert settlement.outcome == "completed", settlement
            seconds.append(time.perf_counter() - began)
            done(len(seconds))

    await asyncio.gather(*(worker() for _ in range(min(concurrency, turns))))
    return seconds
