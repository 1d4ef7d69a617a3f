"""K12: kills round the results of durable steps, over every adapter; what is recorded never runs again (DUR-010)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lane_world import Script, World, agent_of, call, calls

from laneway import Agent, Tool, ToolContext
from laneway.storage.failpoints import Point
from laneway.storage.records import StepSettled, ToolCallSettled

# point, hit, executions of the handler, of step 1, of step 2
KILLS = [
    (Point.AFTER_STEP, 1, 2, 2, 1),
    (Point.AFTER_STEP_SETTLED, 1, 2, 1, 1),
    (Point.AFTER_STEP, 2, 2, 1, 2),
    (Point.AFTER_STEP_SETTLED, 2, 2, 1, 1),
    (Point.AFTER_TOOL, 1, 2, 1, 1),
    (Point.AFTER_TOOL_SETTLED, 1, 1, 1, 1),
]


def stepping(world: World, *, sync: bool) -> Agent:
    """A tool of two steps; each of the three counts with the supplier."""
    supplier = world.supplier

    def told(number: int, ctx: ToolContext) -> str:
        supplier.book(f"step {number}", ctx.idempotency_key)
        return f"step {number} of attempt {ctx.attempt}"

    async def work(ctx: ToolContext, arguments: Any) -> Any:
        supplier.book("handler", ctx.call_id)
        return [await ctx.step(f"step {number}", lambda n=number: told(n, ctx)) for number in (1, 2)]

    def work_in_a_thread(ctx: ToolContext, arguments: Any) -> Any:
        supplier.book("handler", ctx.call_id)
        return [ctx.step_sync(f"step {number}", lambda n=number: told(n, ctx)) for number in (1, 2)]

    tool = Tool.raw("work", work_in_a_thread if sync else work, effect="idempotent", version="1")
    return agent_of(Script(calls(call("work")), "done", supplier=supplier), tool)


@pytest.mark.requirement("DUR-003", "DUR-010", "DUR-013")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("sync", [False, True], ids=["async", "thread"])
@pytest.mark.parametrize("kill", KILLS, ids=[f"{kill[0]}-{kill[1]}" for kill in KILLS])
async def test_a_recorded_step_does_not_run_again(
    kill: tuple[Point, int, int, int, int], sync: bool, stepwise: bool, adapter: str, tmp_path: Path
) -> None:
    """K12: after a step's result the handler is entered twice, step 1 ran once, step 2 once."""
    point, at, handler, one, two = kill
    world = World(adapter, tmp_path)
    world.failpoints.plan({point: at})
    first = await world.process(stepping(world, sync=sync), stepwise=stepwise)
    begun = first.begin_submit("go", key="k")
    await first.crashed()
    await world.kill(first)
    begun.close()
    before = world.batches()
    second = await world.process(stepping(world, sync=sync), stepwise=stepwise)
    receipt = await second.submit("go", key="k")
    await second.recover()
    assert (await second.settled(receipt)).outcome == "completed"
    await second.at_rest()
    counted = [world.supplier.count(kind) for kind in ("handler", "step 1", "step 2")]
    assert counted == [handler, one, two]
    assert world.batches()[: len(before)] == before
    records = world.records()
    recorded = [record.result for record in records if isinstance(record, StepSettled)]
    (settled,) = [record for record in records if isinstance(record, ToolCallSettled)]
    assert settled.result == recorded
    attempts = {Point.AFTER_STEP: at, Point.AFTER_STEP_SETTLED: at + 1}.get(point, 3)
    expected = [f"step {number} of attempt {1 if number < attempts else 2}" for number in (1, 2)]
    assert recorded == expected  # rule f: the value of the execution whose commit came first
    assert len(set(world.supplier.keys("step 1")) | set(world.supplier.keys("step 2"))) == 1  # one key for all of them
    assert world.supplier.count("model") == 2
    world.converged()
    await world.close()
