"""The agent of `laneway demo`: it books tables, and streams its answers slowly enough to be killed in the middle."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from ..agents.agent import Agent
from ..agents.functions import FunctionModel
from ..agents.protocol import ModelRequest
from ..agents.tools import Tool, ToolContext
from .executions import append_line

AGENT_NAME = "host"
TOOL_NAME = "book_table"
_WORD_S = 0.08  # an answer of a dozen words takes about a second

_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"guests": {"type": "integer"}, "at": {"type": "string"}},
    "required": ["guests", "at"],
}


class BookTable:
    """Books a table, which is an effect in the outside world: a line in a file, one for each invocation."""

    def __init__(self, calls: str) -> None:
        self._calls = calls

    def __call__(self, ctx: ToolContext, arguments: dict[str, Any]) -> dict[str, Any]:
        append_line(self._calls, {"call_id": ctx.call_id, "attempt": ctx.attempt, **arguments})
        return {"table": 10 + int(arguments["guests"]), **arguments}


async def answer(request: ModelRequest) -> AsyncIterator[str | dict[str, Any]]:
    """What stands for a language model: asks for the booking, then tells of it word by word."""
    last = request.messages[-1]
    if last["role"] == "user":
        guests, at = re.findall(r"[\d:]+", str(last["content"]))
        arguments = json.dumps({"guests": int(guests), "at": at})
        function = {"name": TOOL_NAME, "arguments": arguments}
        yield {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
        return
    booked = json.loads(last["content"])
    told = f"Done. Table {booked['table']} is yours at {booked['at']}, laid for {booked['guests']}. See you then!"
    for word in re.findall(r"\S+\s*", told):
        await asyncio.sleep(_WORD_S)
        yield word


def demo_agent(calls: str) -> Agent:
    """The agent; its tool writes each invocation to the file `calls`."""
    book_table = Tool.raw(
        TOOL_NAME,
        BookTable(calls),
        effect="uncertain",
        parameters=_PARAMETERS,
        description="Book a table for some guests at a time of day.",
    )
    return Agent(name=AGENT_NAME, model=FunctionModel(answer, name="demo"), tools=[book_table])
