"""Agents for tests on real processes: files count what a tool does, and are the gates that it waits at."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from laneway import Act, Agent, FunctionModel, ModelRequest, ToolContext, tool

FOLDER = "LANEWAY_TEST_FOLDER"


def folder() -> Path:
    return Path(os.environ[FOLDER])


def note(name: str, line: str) -> None:
    """One write with O_APPEND: lines of many processes never mix."""
    descriptor = os.open(folder() / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def noted(name: str) -> list[str]:
    path = folder() / name
    return path.read_text().splitlines() if path.exists() else []


async def passes(item: str) -> None:
    """Wait while the gate is closed; only a file can be seen from every process."""
    while (folder() / f"gate-{item}").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@tool(effect="idempotent")
async def look_up(ctx: ToolContext, item: str) -> dict[str, str]:
    """Look an item up; waits at the gate `item` where a test has closed one."""
    note("look_up", f"{ctx.call_id} {os.getpid()}")
    await passes(item)
    return {"item": item, "status": "shipped"}


@tool(effect="uncertain")
async def charge(ctx: ToolContext, item: str) -> str:
    """Charge a card; waits at the gate `item` where a test has closed one."""
    note("charge", f"{ctx.call_id} {os.getpid()}")
    await passes(item)
    return "charged"


@tool(effect="uncertain", approval=True)
async def refund(ctx: ToolContext, item: str) -> str:
    """Pay back, once somebody has said yes."""
    note("refund", f"{ctx.call_id} {os.getpid()}")
    return "paid back"


def only_ann(act: Act) -> bool:
    """Whom a test lets intervene."""
    note("acts", f"{act.action} {act.author} {os.getpid()}")
    return act.author == "ann"


@tool(effect="uncertain")
async def cling(ctx: ToolContext, item: str) -> str:
    """Hold on to an item while the gate is closed, whoever asks for the end of it."""
    note("cling", f"{ctx.call_id} {os.getpid()}")
    while (folder() / f"gate-{item}").exists():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)
    return "held on"


@tool(effect="idempotent")
async def stall(ctx: ToolContext, item: str) -> str:
    """Hold up the event loop of its process while the gate is closed: alive, and silent."""
    note("stall", f"{ctx.call_id} {os.getpid()}")
    while (folder() / f"gate-{item}").exists():
        time.sleep(0.01)  # noqa: ASYNC251
    return "went on"


def answer(request: ModelRequest) -> object:
    """A verb and an item, "look X", call the verb's tool; its result is told, and anything else is echoed."""
    note("model", f"{request.conversation_id} {request.queue_sequence} {request.turn} {os.getpid()}")
    last = request.messages[-1]
    if last["role"] == "tool":
        return f"the result is {last['content']}"
    verb, _, item = str(last["content"]).partition(" ")
    name = {"look": "look_up", "charge": "charge", "refund": "refund", "cling": "cling", "stall": "stall"}.get(verb)
    if name is None:
        return f"you said {last['content']}"
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": f'{{"item": "{item}"}}'}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


tools = [look_up, charge, refund, cling, stall]
agents = [Agent(name="desk", model=FunctionModel(answer), tools=tools, instructions="Be brief.")]


def until(holds: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait on a condition that other processes bring about; it fails loudly when it never holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.01)
