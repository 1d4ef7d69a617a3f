"""Calls to the store that fail, before they arrive or after they were carried out: the same ids, written once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lane_world import Gate, Script, Trouble, World, agent_of, call, calls, until

from laneway import Tool
from laneway.storage.ledger import State
from laneway.storage.records import tag_of

COMMITS = 4  # of one fused turn with a tool


@pytest.fixture(params=["memory", "duckdb"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(request.param, tmp_path)
    yield world
    await world.close()


def agent(world: World) -> Any:
    async def charge(ctx: Any, arguments: dict[str, Any]) -> str:
        world.supplier.book("charge", ctx.call_id)
        return "charged"

    return agent_of(
        Script(calls(call("charge")), "done", supplier=world.supplier), Tool.raw("charge", charge, effect="uncertain")
    )


@pytest.mark.requirement("DUR-003", "DUR-007")
@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("at", range(1, COMMITS + 1))
async def test_a_commit_that_is_lost_is_written_once(world: World, at: int, how: str) -> None:
    """F10, F16: the unit is repeated by its ids; no second execution, no orphan call, no recovery."""
    trouble = Trouble(at, how)
    process = await world.process(agent(world), trouble=trouble)
    receipt = await process.submit("pay", key="k")
    assert (await process.settled(receipt)).outcome == "completed"
    await process.at_rest()
    assert trouble.lost == 1
    assert (world.supplier.count("charge"), world.supplier.count("model")) == (1, 2)
    assert [tag for tag in world.tags() if tag != "conversation_created"] == [
        *("input_recorded", "run_started", "model_responded", "tool_call_prepared", "tool_call_settled"),
        *("model_responded", "run_completed", "submission_settled"),
    ]
    assert world.row(receipt).attempts == 1
    assert (await process.run("again")).outcome == "completed"
    world.converged()


@pytest.mark.requirement("DUR-003")
async def test_an_outage_uses_no_retry_budget(world: World) -> None:
    """F2: the store is away for many calls in the middle of a turn; all settles later, by the same attempt."""
    trouble = Trouble()
    gate = Gate()

    async def answer(request: Any) -> Any:
        await gate.wait()
        return "done"

    process = await world.process(agent_of(Script(answer, supplier=world.supplier)), trouble=trouble)
    receipts = [await process.submit(f"q{number}", conversation=f"c{number}") for number in range(10)]
    await gate.reached()
    trouble.down = True
    gate.open()
    await until(lambda: trouble.lost >= 4)
    assert all(world.row(receipt).state is State.RUNNING for receipt in receipts)
    trouble.down = False
    for receipt in receipts:
        assert (await process.settled(receipt)).outcome == "completed"
        assert world.row(receipt).attempts == 1
    assert world.supplier.count("model") == 10
    world.converged()


async def test_a_waiter_gives_up_in_time_while_the_store_is_away(world: World) -> None:
    trouble, gate = Trouble(), Gate()

    async def answer(request: Any) -> Any:
        await gate.wait()
        return "done"

    process = await world.process(agent_of(Script(answer)))
    other = await world.process(agent_of(Script(answer)), trouble=trouble)  # it has to ask the store
    receipt = await process.submit("go")
    await gate.reached()
    trouble.down = True
    async with asyncio.timeout(9):
        assert await other.host.settlement("c", receipt.submission_id, 0.01) is None
    assert trouble.lost > 0
    trouble.down = False
    gate.open()
    assert (await process.settled(receipt)).outcome == "completed"


async def test_an_admission_whose_answer_was_lost_is_the_same_admission(world: World) -> None:
    """F1: repeated by the client, too."""
    process = await world.process(agent(world), trouble=Trouble(1, "after"))
    first = await process.submit("pay", key="k")
    again = await process.submit("pay", key="k")
    assert (first.submission_id, first.receipt_id) == (again.submission_id, again.receipt_id)
    await process.settled(first)
    assert len(world.store.list_rows("c")) == 1
    assert sum(tag_of(record) == "input_recorded" for record in world.records()) == 1
