"""Agents for tests of the command line: `--agents cli_agents:agents`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from laneway import Agent, FunctionModel, ModelError, ModelRequest, tool


async def _silence(request: ModelRequest) -> str:
    await asyncio.Event().wait()
    return ""


async def _words(request: ModelRequest) -> AsyncIterator[str]:
    for word in ("slow ", "and ", "steady"):
        await asyncio.sleep(0.05)
        yield word


@tool(effect="readonly")
def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


@tool(effect="idempotent", approval=True)
def pay(eur: int) -> str:
    """Pay, once somebody has said yes."""
    return f"paid {eur}"


@tool(effect="uncertain", timeout_s=0.05)
async def charge(eur: int) -> str:
    """A charge that nobody hears of again."""
    await asyncio.Event().wait()
    return ""


def _asks_for(name: str, count: int) -> FunctionModel:
    def answer(request: ModelRequest) -> str | dict[str, Any]:
        last = request.messages[-1]
        if last["role"] == "tool":
            return f"it says {last['content']}"
        function = {"name": name, "arguments": json.dumps({"eur": 9})}
        return {"tool_calls": [{"id": f"call_{index}", "function": function} for index in range(count)]}

    return FunctionModel(answer, name=name)


def _answer(request: ModelRequest) -> str | dict[str, Any]:
    last = request.messages[-1]
    if last["role"] == "tool":
        return f"it is {last['content']}"
    said = str(last["content"])
    if said.isdigit():
        function = {"name": "double", "arguments": json.dumps({"number": int(said)})}
        return {"tool_calls": [{"id": "call_1", "function": function}]}
    if said == "fail":
        raise ModelError("it does not want to", code="model_refused", retryable=False)
    return f"you said {said}"


echo = Agent(name="echo", model=FunctionModel(_answer), tools=[double])
other = Agent(name="other", model=FunctionModel(_answer, name="other"))
never = Agent(name="never", model=FunctionModel(_silence))
words = Agent(name="words", model=FunctionModel(_words))
careful = Agent(name="careful", model=_asks_for("pay", 2), tools=[pay])
lost = Agent(name="lost", model=_asks_for("charge", 1), tools=[charge])
agents = [echo, other, never, words, careful, lost]
one = [echo]
