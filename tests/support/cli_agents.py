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
agents = [echo, other, never, words]
one = [echo]
