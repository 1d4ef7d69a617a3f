"""The agents of the simulation: a model that follows the plan in its prompt, and one tool of each kind."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulation.faults import Fault

from laneway import Agent, Compaction, FunctionModel, Tool
from laneway.agents import leave_out
from laneway.agents.protocol import Delta
from laneway.agents.reconcile import Completed, NeverStarted, SafeToRetry
from laneway.storage.errors import ModelError, ToolError
from laneway.storage.failpoints import Point
from laneway.storage.records import ToolCall

if TYPE_CHECKING:
    from simulation.world import World

WORLD: contextvars.ContextVar[World] = contextvars.ContextVar("world")
"""The world that the running code lives in: agents are made once, worlds come and go."""

TOOL_TIMEOUT_S = 8.0
MODEL_TIMEOUT_S = 10.0
_LONG_S = 1_000.0
MUCH = 500


@dataclass(frozen=True)
class ToolKind:
    """A tool of the simulation; `keyed` ones take the idempotency key to the supplier, which then acts once.

    `steps` are durable and come before the act; `approval` and `expires_s` are as the tool declares them.
    """

    name: str
    effect: Any
    keyed: bool = False
    reconcile: Callable[..., Any] | None = None
    steps: tuple[str, ...] = ()
    approval: Any = False
    expires_s: float | None = None


def _is_much(arguments: dict[str, Any]) -> bool:
    return arguments["amount"] > MUCH / 2


async def _look_up(ctx: Any, arguments: dict[str, Any]) -> Any:
    """A reconciler that sees what was done, and knows nothing when nothing was."""
    await WORLD.get().network.travel()
    done = WORLD.get().supplier.last(ctx.call_id)
    return Completed(done.value, "found") if done is not None else None


async def _close_books(ctx: Any, arguments: dict[str, Any]) -> Any:
    """A reconciler that can say so when nothing was done."""
    await WORLD.get().network.travel()
    done = WORLD.get().supplier.last(ctx.call_id)
    return Completed(done.value, "found") if done is not None else NeverStarted("not found")


async def _trust_key(ctx: Any, arguments: dict[str, Any]) -> Any:
    return SafeToRetry("the supplier keeps keys")


TOOL_KINDS: tuple[ToolKind, ...] = (
    ToolKind("read", "readonly"),
    ToolKind("put", "idempotent", keyed=True),
    ToolKind("charge", "uncertain"),
    ToolKind("order", "uncertain", reconcile=_look_up),
    ToolKind("book", "uncertain", reconcile=_close_books),
    ToolKind("pay", "uncertain", keyed=True, reconcile=_trust_key),
    ToolKind("ship", "idempotent", keyed=True, steps=("pick", "pack")),
    ToolKind("wire", "uncertain", reconcile=_close_books, steps=("quote", "lock")),
    ToolKind("release", "uncertain", approval=True),
    ToolKind("refund", "idempotent", keyed=True, approval=_is_much, expires_s=10.0),
)
"""The tools that plans may name; a new kind is one more line."""

PLANNED = (*((kind.name, 1) for kind in TOOL_KINDS), ("refund", MUCH), ("missing", 1))
"""What a model may ask for, with the amount: "missing" is a tool that no agent has."""


def _tool(kind: ToolKind) -> Tool:
    async def run(ctx: Any, arguments: dict[str, Any]) -> Any:
        world = WORLD.get()
        fault = world.faults.first_of(Fault.TOOL_FAILED, Fault.TOOL_HUNG)
        await world.network.travel()
        for step in kind.steps:
            await _step(ctx, step)
        if fault is Fault.TOOL_FAILED:
            raise ToolError("the supplier says no")
        if fault is Fault.TOOL_HUNG and world.chance.random() < 0.5:
            await asyncio.sleep(_LONG_S)
        key = ctx.idempotency_key if kind.keyed else None
        value = world.supplier.perform(ctx.conversation_id, ctx.call_id, kind.name, key=key)
        world.hit(Point.DURING_TOOL)
        await world.network.travel()
        if fault is Fault.TOOL_HUNG:
            await asyncio.sleep(_LONG_S)
        return value

    return Tool.raw(
        kind.name,
        run,
        effect=kind.effect,
        timeout_s=TOOL_TIMEOUT_S,
        reconcile=kind.reconcile,
        approval=kind.approval,
        approval_expires_s=kind.expires_s,
        version="1",
    )


async def _step(ctx: Any, name: str) -> None:
    """A durable step; what it gives is what is recorded."""
    supplier = WORLD.get().supplier

    async def body() -> Any:
        value = supplier.enter_step(ctx, name)
        await WORLD.get().network.travel()
        return value

    supplier.step_gave(ctx, name, await ctx.step(name, body))


async def _respond(request: Any, emit: Callable[[Delta], None]) -> Any:
    """Follow the plan in the last thing that a user said, one entry a turn; then say so."""
    world = WORLD.get()
    fault = world.faults.first_of(Fault.MODEL_FAILED, Fault.MODEL_BROKEN, Fault.MODEL_HUNG)
    await world.network.travel()
    said = next(message["content"] for message in reversed(request.messages) if message["role"] == "user")
    turn = request.turn - 1
    text = f"answer {world.chance.randrange(1000)}"  # asked again, a model says something else
    for piece in (text[:3], text[3:]):
        emit(Delta(kind="text", text=piece))
        await world.network.travel()
    if fault is Fault.MODEL_HUNG:
        await asyncio.sleep(_LONG_S)
    if fault is not None:
        raise ModelError("the provider stumbled", retryable=fault is Fault.MODEL_FAILED)
    plan: list[list[tuple[str, int]]] = json.loads(said)["plan"]
    if turn >= len(plan):
        return text
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": name, "arguments": f'{{"amount":{amount}}}'},
            }
            for index, (name, amount) in enumerate(plan[turn])
        ],
    }


async def _compacted(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As slow as anything else outside; what was asked last stays."""
    await WORLD.get().network.travel()
    return leave_out(messages)


_TOOLS = tuple(_tool(kind) for kind in TOOL_KINDS)
_BY_NAME = {tool.name: tool for tool in _TOOLS}
_MODEL = FunctionModel(_respond, name="planned")


def _agent(name: str, **more: Any) -> Agent:
    return Agent(name=name, model=_MODEL, tools=_TOOLS, model_timeout_s=MODEL_TIMEOUT_S, **more)


AGENTS: tuple[Agent, ...] = (
    _agent("holds"),
    _agent(
        "parks",
        on_unknown="park",
        compaction=Compaction(after_messages=4, keep_messages=1, compactor=_compacted),
    ),
    _agent("hurries", run_timeout_s=15.0),
    _agent("brief", turns_max=2),
    _agent("joins", join=True),
)


def asks(call: ToolCall) -> bool:
    """Whether a person has to decide on the call before it runs."""
    tool = _BY_NAME.get(call.name)
    return tool is not None and tool.needs_approval(json.loads(call.arguments))
