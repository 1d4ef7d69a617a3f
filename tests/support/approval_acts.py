"""Agents whose tools need approval, and people who decide."""

from __future__ import annotations

from typing import Any

from lane_world import Process, Script, World, agent_of, calls, until

from laneway import Agent, Tool
from laneway.actors.decisions import ApprovalDecision
from laneway.storage.ledger import Receipt, State
from laneway.storage.records import ApprovalRequested


def booking(world: World, name: str = "charge", **more: Any) -> Tool:
    async def book(ctx: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        world.supplier.book(name, ctx.call_id)
        return {"booked": arguments}

    return Tool.raw(name, book, **{"effect": "uncertain", "approval": True, **more})


def asking(world: World, *declared: dict[str, Any], tools: tuple[Tool, ...] = (), **more: Any) -> Agent:
    script = Script(calls(*declared), "done", supplier=world.supplier)
    return agent_of(script, *(tools or (booking(world),)), **more)


async def suspended(world: World, receipt: Receipt) -> None:
    await until(lambda: world.row(receipt).state is State.SUSPENDED)


async def decide(process: Process, receipt: Receipt, decision: Any = "approved", **more: Any) -> Any:
    asked = ApprovalDecision(submission_id=receipt.submission_id, decision=decision, **{"author": "ann", **more})
    return await process.host.decide(receipt.conversation_id, asked)


def approval_ids(world: World) -> list[str]:
    return [record.approval_id for record in world.records() if isinstance(record, ApprovalRequested)]
