"""A crash at every hit of every failpoint of a run that compacts its prompt and saves a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lane_world import Process, Script, World, agent_of

from laneway.agents import Compaction
from laneway.recovery.convergence import prompt_fault
from laneway.storage.failpoints import Point

QUESTIONS = ("question 1", "question 2")


def shorten(messages: list[dict[str, Any]]) -> str:
    return f"{len(messages)} messages"


async def begun(world: World, script: Script, *, stepwise: bool) -> Process:
    compaction = Compaction(after_messages=3, keep_messages=1, compactor=shorten)
    return await world.process(agent_of(script, compaction=compaction), stepwise=stepwise, checkpoint_records=5)


async def prepared(folder: Path, adapter: str, *, stepwise: bool) -> tuple[World, Process]:
    world = World(adapter, folder)
    process = await begun(world, Script("done"), stepwise=stepwise)
    for question in QUESTIONS:
        await process.run(question)
    await process.at_rest()
    return world, process


async def crash_and_recover(folder: Path, adapter: str, point: Point, at: int, *, stepwise: bool) -> None:
    world, first = await prepared(folder, adapter, stepwise=stepwise)
    world.failpoints.plan({point: at})
    work = first.begin_submit("question 3", key="k")
    await first.crashed()
    await world.kill(first)
    work.close()
    before = world.batches()
    known = world.tags().count("compaction_created")

    script = Script("done")
    second = await begun(world, script, stepwise=stepwise)
    receipt = await second.submit("question 3", key="k")
    await second.recover()
    where = f"{point} hit {at}, stepwise={stepwise}"
    assert (await second.settled(receipt)).text == "done", where
    await second.at_rest()
    for request in script.requests:
        assert [message["content"] for message in request.messages] == ["4 messages", "question 3"], where
        assert request.responses == 2
        assert prompt_fault(request.messages) is None
    assert world.tags().count("compaction_created") == 1, where
    assert second.host.stats().get("compactions", 0) == 1 - known, where
    assert "checkpoint_rejected" not in second.host.stats(), where
    assert world.batches()[: len(before)] == before, where
    world.converged()
    await world.close()


@pytest.mark.requirement("DUR-007", "DUR-013")
@pytest.mark.parametrize(("adapter", "stepwise"), [("memory", True), ("memory", False), ("duckdb", False)])
async def test_every_hit_of_every_point_of_a_run_that_compacts(adapter: str, stepwise: bool, tmp_path: Path) -> None:
    """Specification 8: a committed compaction is a boundary. It is made once, committed before it is read, and a
    checkpoint is whole or not there. Over DuckDB the fused run alone, for the time that opening a file takes."""
    world, process = await prepared(tmp_path / "whole", adapter, stepwise=stepwise)
    before = world.failpoints.hits.copy()
    await process.run("question 3", key="k")
    await process.at_rest()
    assert process.host.stats()["compactions"] == 1
    assert process.host.stats()["checkpoint_made"] == 3
    hits = world.failpoints.hits - before
    await world.close()
    assert hits[Point.AFTER_COMMIT] >= 3
    for point, count in hits.items():
        for at in range(1, count + 1):
            await crash_and_recover(tmp_path / f"{point}-{at}", adapter, point, at, stepwise=stepwise)
