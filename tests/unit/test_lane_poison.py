"""Work that takes down every process that runs it is not tried for ever (Specification 16)."""

from __future__ import annotations

from pathlib import Path

import pytest
from lane_world import Script, World, agent_of, call, calls

from laneway import tool
from laneway.storage.failpoints import Point


@pytest.mark.requirement("DUR-014")
async def test_a_run_that_loses_every_owner_fails_and_the_lane_goes_on(tmp_path: Path) -> None:
    world = World("memory", tmp_path / "world")

    @tool(effect="idempotent")
    async def poison() -> str:
        world.supplier.book("poison", "x")
        return "never recorded"

    agent = agent_of(Script(calls(call("poison")), "fine"), poison)
    world.failpoints.plan({Point.AFTER_TOOL: 1})
    process = await world.process(agent, recoveries_max=2)
    receipt = await process.submit("go", key="k")
    for _ in range(3):
        await process.crashed()
        await world.kill(process)
        world.failpoints.plan({Point.AFTER_TOOL: 1})
        process = await world.process(agent, recoveries_max=2)
        await process.recover()
    settlement = await process.settled(receipt)
    assert settlement.outcome == "failed"
    assert settlement.error is not None
    assert settlement.error["code"] == "recoveries_exhausted"
    (letter,) = world.store.dead_letters(["recoveries_exhausted"])
    assert (letter.submission_id, letter.attempts) == (receipt.submission_id, 4)
    assert world.supplier.count("poison") == 3
    assert world.decisions() == ["resume_batch"] * 3
    world.failpoints.disarm()
    await process.at_rest()
    assert (await process.run("go")).outcome == "completed"
    world.converged()
    await world.close()


@pytest.mark.requirement("DUR-014")
async def test_progress_makes_earlier_losses_count_no_more(tmp_path: Path) -> None:
    """F3: a run of many tools survives more losses than the limit, since each process gets something done."""
    world = World("memory", tmp_path / "world")

    @tool(effect="idempotent")
    async def step() -> str:
        world.supplier.book("step", "x")
        return "done"

    agent = agent_of(Script(*[calls(call("step"))] * 6, "fine"), step)
    world.failpoints.plan({Point.AFTER_TOOL_SETTLED: 1})
    process = await world.process(agent, recoveries_max=1)
    receipt = await process.submit("go", key="k")
    for _ in range(5):
        await process.crashed()
        await world.kill(process)
        world.failpoints.plan({Point.AFTER_TOOL_SETTLED: 1})
        process = await world.process(agent, recoveries_max=1)
        await process.recover()
    await process.crashed()
    await world.kill(process)
    process = await world.process(agent, recoveries_max=1)
    await process.recover()
    assert (await process.settled(receipt)).outcome == "completed"
    assert world.supplier.count("step") == 6
    world.converged()
    await world.close()
