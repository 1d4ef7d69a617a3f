"""The service that Restate calls: a virtual object, keyed by the conversation, whose turn has three durable steps."""

from __future__ import annotations

from typing import Any

import restate

from . import workload

conversation = restate.VirtualObject("Conversation")


async def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A coroutine: the SDK runs plain functions in threads, which is slower."""
    return workload.model(messages)


async def look_up(item: str) -> str:
    return workload.look_up(item)


@conversation.handler()
async def turn(ctx: restate.ObjectContext, text: str) -> str:
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    messages.append(await ctx.run_typed("ask", model, messages=messages))
    result = await ctx.run_typed("look_up", look_up, item="x")
    messages.append({"role": "tool", "tool_call_id": "call_1", "content": result})
    return (await ctx.run_typed("answer", model, messages=messages))["content"]


app = restate.app([conversation])
