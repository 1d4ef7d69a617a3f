"""A support agent with two tools, and a function in place of a language model, so it runs without a network.

laneway up --agents support_agent:agents --store support.duckdb
laneway submit order-42 "Where is order 42?"
laneway submit order-42 "Please refund order 42."
laneway log order-42
laneway down
"""

import json
import re
from typing import Any

from laneway import Agent, FunctionModel, ModelRequest, ToolContext, tool

ORDERS = {"41": "delivered", "42": "on its way", "43": "delivered"}


@tool(effect="readonly")
def order_status(order: str) -> str:
    """Where an order is."""
    return ORDERS.get(order, "not known")


@tool(effect="idempotent", timeout_s=10.0)
def refund(ctx: ToolContext, order: str) -> dict[str, Any]:
    """Pay an order back. The key stays the same when the call runs again, so the bank pays once."""
    return {"order": order, "refunded": True, "reference": ctx.idempotency_key}


def answer(request: ModelRequest) -> dict[str, Any] | str:
    """Stands for a model. With one of a provider, say Agent(model="openai:gpt-4o", ...) instead."""
    last = request.messages[-1]
    if last["role"] == "tool":
        return f"Here is what I found: {last['content']}"
    order = re.search(r"\d+", str(last["content"]))
    if order is None:
        return "Which order is it about?"
    name = "refund" if "refund" in str(last["content"]).lower() else "order_status"
    arguments = json.dumps({"order": order.group()})
    return {"tool_calls": [{"id": "call_1", "function": {"name": name, "arguments": arguments}}]}


support = Agent(
    name="support",
    model=FunctionModel(answer),
    tools=[order_status, refund],
    instructions="Help customers with their orders.",
)
agents = [support]
