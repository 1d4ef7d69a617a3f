"""Owners that are lost between two writes of one thought: what they left half-said is taken up, not said again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from lane_world import Begun, Gate, Process, Script, World, agent_of, call, calls, until

from laneway import Agent, Tool
from laneway.agents.reconcile import Completed
from laneway.storage.commands import Append, Claim, MarkUnknown, Unit
from laneway.storage.failpoints import Point
from laneway.storage.ledger import State
from laneway.storage.records import ToolCallSettled, decode_records


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World("memory", tmp_path)
    yield world
    await world.close()


def charging(world: World, reconcile: Any = None) -> Agent:
    async def charge(ctx: Any, arguments: dict[str, Any]) -> str:
        world.supplier.book("charge", ctx.call_id)
        world.failpoints.hit(Point.DURING_TOOL)
        return "charged"

    tool = Tool.raw("charge", charge, effect="uncertain", reconcile=reconcile, version="1")
    return agent_of(Script(calls(call("charge")), "done", supplier=world.supplier), tool)


async def crashed_inside_its_tool(world: World, agent: Agent) -> None:
    first = await world.process(agent, stepwise=True)
    world.failpoints.plan({Point.DURING_TOOL: 1})
    begun = first.begin_submit("pay", key="k")
    await first.crashed()
    await world.kill(first)
    begun.close()


async def dies_before(world: World, agent: Agent, told: Callable[[Any], bool]) -> None:
    """A process that recovers, and is lost before the first unit with a command that `told` names."""
    process = await world.process(agent, stepwise=True)
    reached = asyncio.Event()

    async def before_commit(units: list[Unit]) -> None:
        if any(told(command) for unit in units for command in unit.commands):
            process.link.cut = True
            reached.set()

    process.link.before_commit = before_commit
    await process.recover()
    async with asyncio.timeout(10):
        await reached.wait()
    await world.kill(process)


@pytest.mark.requirement("DUR-009", "DUR-013")
async def test_an_unknown_that_is_on_record_and_not_in_the_ledger_is_marked(world: World) -> None:
    """K8 once more: the recoverer dies between the record and the ledger; the next one does not record it again."""
    agent = charging(world)
    await crashed_inside_its_tool(world, agent)
    await dies_before(world, agent, lambda command: isinstance(command, MarkUnknown))
    assert world.tags()[-1] == "tool_call_unknown"

    last = await world.process(agent, stepwise=True)
    receipt = await last.submit("pay", key="k")
    await last.recover()
    await last.at_rest()
    assert world.row(receipt).state is State.UNKNOWN
    assert world.tags().count("tool_call_unknown") == 1
    await world.resolve(receipt, "completed_with_result", "charged")
    await last.recover()
    assert (await last.settled(receipt)).outcome == "completed"
    assert world.supplier.count("charge") == 1
    await last.at_rest()
    world.converged()


@pytest.mark.requirement("DUR-009")
async def test_a_proof_on_record_gives_the_result_and_nothing_runs_again(world: World) -> None:
    """K9 once more: the recoverer dies between the proof and the result, which is then taken from the proof."""

    async def find(ctx: Any, arguments: dict[str, Any]) -> Completed:
        return Completed("charged", "in the books")

    def settles(command: Any) -> bool:
        return isinstance(command, Append) and any(
            isinstance(record, ToolCallSettled) for record in decode_records(command.body)
        )

    agent = charging(world, find)
    await crashed_inside_its_tool(world, agent)
    await dies_before(world, agent, settles)
    assert world.tags()[-1] == "tool_call_resolved"

    last = await world.process(agent, stepwise=True)
    receipt = await last.submit("pay", key="k")
    await last.recover()
    assert (await last.settled(receipt)).outcome == "completed"
    assert world.supplier.count("charge") == 1
    (result,) = [record for record in world.records() if isinstance(record, ToolCallSettled)]
    assert (result.result, result.author) == ("charged", "reconciler")
    await last.at_rest()
    world.converged()


@pytest.mark.requirement("DUR-006")
async def test_a_next_claim_that_was_overtaken_looks_at_the_log_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the end of one submission and the claim of the next, another owner has begun that one and was lost."""
    gate = Gate()

    async def second(request: Any) -> str:
        if request.messages[-1]["content"] == "two" and request.attempt == 1:
            await gate.wait()
        return "done"

    agent = agent_of(Script(second, supplier=world.supplier))
    slow = await world.process(agent, stepwise=True)
    other = await world.process(agent, stepwise=True)
    begun: list[Begun] = []

    async def overtake(units: list[Unit]) -> None:
        rows = world.store.list_rows("c")
        ended = bool(rows) and rows[0].settled
        if ended and not begun and any(isinstance(command, Claim) for unit in units for command in unit.commands):
            begun.append(other.begin_submit("two", key="two"))
            await gate.reached()
            await lost(other)

    async def lost(process: Process) -> None:
        process.link.cut = True
        world.store.retire_owner(process.host.owner_id)

    slow.link.before_commit = overtake
    with caplog.at_level(logging.ERROR, logger="laneway"):
        receipt = await slow.submit("one", key="one")
        await slow.settled(receipt)
        await slow.recover()
        again = await slow.submit("two", key="two")
        assert (await slow.settled(again)).outcome == "completed"
    assert caplog.records == []
    assert world.tags().count("run_started") == 2
    assert world.row(again).attempts == 2
    await slow.at_rest()
    await world.kill(other)
    begun[0].close()
    world.converged()


@pytest.mark.requirement("DUR-006")
async def test_a_lane_that_was_superseded_in_a_batch_is_not_left_as_cancelled(world: World) -> None:
    """Its refused write ends the batch, and the others of it; claimed again, the same lane goes on to the end."""
    gates = [Gate(), Gate()]
    entered: list[str] = []

    def wanted(name: str, gate: Gate) -> Tool:
        async def work(ctx: Any, arguments: dict[str, Any]) -> str:
            entered.append(name)
            if len(entered) <= len(gates):
                await gate.wait()
            return name

        return Tool.raw(name, work, effect="idempotent", version="1")

    script = Script(calls(call("a"), call("b")), "done")
    held = await world.process(agent_of(script, wanted("a", gates[0]), wanted("b", gates[1])))
    receipt = await held.submit("go")
    for gate in gates:
        await gate.reached()
    world.store.retire_owner(held.host.owner_id)  # or so somebody believed
    claim = Claim(submission_id=receipt.submission_id, owner_id="own_other", attempt_id="att_other", token="t" * 32)
    world.store.commit([Unit(conversation_id="c", commands=(claim,))])
    gates[0].open()
    await until(lambda: world.row(receipt).settled)  # by itself: whoever asked for the outcome would wake the lane
    assert world.row(receipt).outcome == "completed"
    assert sorted(entered) == ["a", "a", "b", "b"]
    await held.at_rest()
    world.converged()
