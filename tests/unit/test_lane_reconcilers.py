"""Reconcilers that fail: they are asked again, and what they failed with is on record (Specification 10, 16)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from lane_world import Process, Script, World, agent_of, call, calls

from laneway import Tool
from laneway.actors.lane.calls import RECONCILE_TRIES_MAX, UNPROVEN
from laneway.agents.reconcile import Completed
from laneway.storage.failpoints import Point
from laneway.storage.ledger import Receipt, State
from laneway.storage.records import ToolCallUnknown


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World("memory", tmp_path)
    yield world
    await world.close()


async def recovered(world: World, prove: Callable[..., Any], **more: Any) -> tuple[Process, Receipt]:
    """A charge whose process was lost inside of it, and the process that seeks proof with `prove`."""

    async def charge(ctx: Any, arguments: dict[str, Any]) -> str:
        world.supplier.book("charge", ctx.call_id)
        world.failpoints.hit(Point.DURING_TOOL)
        return "charged"

    async def reconcile(ctx: Any, arguments: dict[str, Any]) -> Any:
        world.supplier.book("prove", ctx.idempotency_key)
        return await prove(world.supplier.count("prove"))

    tool = Tool.raw("charge", charge, effect="uncertain", reconcile=reconcile, version="1", **more)
    agent = agent_of(Script(calls(call("charge")), "done"), tool)
    first = await world.process(agent)
    world.failpoints.plan({Point.DURING_TOOL: 1})
    begun = first.begin_submit("pay", key="k")
    await first.crashed()
    await world.kill(first)
    begun.close()
    second = await world.process(agent)
    receipt = await second.submit("pay", key="k")
    await second.recover()
    return second, receipt


def reasons(world: World, receipt: Receipt) -> list[str]:
    """Why the call is unknown: in the log and in the ledger, which say the same."""
    told = [record.reason for record in world.records() if isinstance(record, ToolCallUnknown)]
    assert told == [known.reason for known in world.row(receipt).unknown_calls.values()]
    return told


@pytest.mark.requirement("DUR-009")
async def test_what_a_reconciler_failed_with_is_on_record(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def prove(number: int) -> Any:
        raise ConnectionError(f"the bank is away ({number})")

    with caplog.at_level(logging.WARNING, "laneway.lane"):
        process, receipt = await recovered(world, prove)
        await process.at_rest()
    assert world.row(receipt).state is State.UNKNOWN
    assert RECONCILE_TRIES_MAX == 3
    assert list(world.supplier.keys("prove").values()) == [3]
    (reason,) = reasons(world, receipt)
    assert reason.startswith(UNPROVEN)
    assert "the bank is away (3)" in reason
    assert [number for number in (1, 2, 3) if f"the bank is away ({number})" in caplog.text] == [1, 2, 3]
    await world.resolve(receipt, "completed_with_result", "charged")
    await process.recover()
    assert (await process.settled(receipt)).outcome == "completed"
    assert world.supplier.count("charge") == 1
    world.converged()


@pytest.mark.requirement("DUR-009")
async def test_a_reconciler_that_is_away_for_a_moment_leaves_nothing_to_a_person(world: World) -> None:
    async def prove(number: int) -> Any:
        if number < 3:
            raise ConnectionError("away")
        return Completed("charged", "in the books")

    process, receipt = await recovered(world, prove)
    assert (await process.settled(receipt)).outcome == "completed"
    assert "tool_call_unknown" not in world.tags()
    assert world.supplier.count("charge") == 1
    world.converged()


async def test_a_reconciler_without_an_answer_in_time_has_failed(world: World) -> None:
    async def prove(number: int) -> Any:
        await asyncio.Event().wait()

    process, receipt = await recovered(world, prove, timeout_s=0.02)
    await process.at_rest()
    assert world.supplier.count("prove") == 3
    (reason,) = reasons(world, receipt)
    assert "reconcile_timeout: no answer within 0.02 s" in reason
    world.converged(require_settled=False)


async def test_a_reconciler_that_has_no_proof_is_asked_once(world: World) -> None:
    async def prove(number: int) -> Any:
        return None

    process, receipt = await recovered(world, prove)
    await process.at_rest()
    assert world.supplier.count("prove") == 1
    assert reasons(world, receipt) == [UNPROVEN]
    world.converged(require_settled=False)
