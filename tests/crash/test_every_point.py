"""A crash at every hit of every failpoint that some work passes; recovery always ends in the one right state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from approval_acts import asking, decide, suspended
from joining_world import Hosted
from lane_world import Crash, Script, World, agent_of, call, calls

from laneway import Agent, Tool
from laneway.storage.failpoints import Failpoints, Point
from laneway.storage.ledger import State
from laneway.storage.projection import ConversationView

NOT_REACHED: dict[Point, str] = {}
"""Failpoints that no test of this folder reaches, and why."""

ADAPTERS = ("memory", "duckdb")
SIDE_WRITES = (Point.BEFORE_SIDE_WRITE, Point.AFTER_SIDE_WRITE)
"""Both sides of an owner, a quarantine and what ends them: `test_side_writes.py` crashes there."""

WRITING = (Point.APPEND_BEGUN, Point.APPEND_BATCHES_WRITTEN, Point.APPEND_ROWS_WRITTEN)
"""Inside of one write: only an adapter with a file has these."""


def working(world: World, effect: Any) -> Agent:
    supplier = world.supplier

    def charged(name: str) -> Tool:
        async def charge(ctx: Any, arguments: dict[str, Any]) -> str:
            supplier.book("charge", ctx.call_id)
            world.failpoints.hit(Point.DURING_TOOL)
            if name == "b":
                await ctx.step("book", book)
            return name

        async def book() -> None:  # no thread: each run passes the same points in the same order
            supplier.book("step", name)

        return Tool.raw(name, charge, effect=effect, version="1")

    script = Script(calls(call("a"), call("b")), "done", supplier=supplier)
    return agent_of(script, charged("a"), charged("b"))


async def approving(folder: Path, *, stepwise: bool) -> dict[Point, int]:
    """How often work that waits for an approval passes each point."""
    world = World("memory", folder)
    process = await world.process(asking(world, call("charge")), stepwise=stepwise)
    receipt = await process.submit("pay", key="k")
    await suspended(world, receipt)
    await decide(process, receipt)
    await process.settled(receipt)
    await process.at_rest()
    await world.close()
    return dict(world.failpoints.hits)


async def passed(folder: Path, adapter: str, *, stepwise: bool) -> dict[Point, int]:
    """How often the work passes each point when nothing goes wrong."""
    world = World(adapter, folder)
    process = await world.process(working(world, "idempotent"), stepwise=stepwise)
    before = world.failpoints.hits.copy()
    await process.run("pay", key="k")
    await process.at_rest()
    hits = world.failpoints.hits - before
    await world.close()
    return dict(hits)


async def crash_and_recover(folder: Path, adapter: str, point: Point, at: int, effect: Any, *, stepwise: bool) -> None:
    world = World(adapter, folder)
    first = await world.process(working(world, effect), stepwise=stepwise)
    world.failpoints.plan({point: at})
    begun = first.begin_submit("pay", key="k")
    await first.crashed()
    acknowledged = world.batches()
    await world.kill(first)
    begun.close()
    before = world.batches()
    if point in (*WRITING, Point.BEFORE_COMMIT):
        assert before == acknowledged  # no prefix of the write is left
    owed = executions_owed(world)
    recorded = world.tags().count("step_settled")
    steps = world.supplier.count("step")

    second = await world.process(working(world, effect), stepwise=stepwise)
    receipt = await second.submit("pay", key="k")
    await second.recover()
    await second.at_rest()
    where = f"{point} hit {at}, {effect}, stepwise={stepwise}"
    if effect == "uncertain" and owed["in doubt"]:
        assert world.row(receipt).state is State.UNKNOWN, where
        assert world.supplier.count("charge") == owed["seen"], where
        world.converged(require_settled=False)
        await world.resolve(receipt, "completed_with_result", "a result that the operator read")
        await second.recover()
        expected = owed["seen"] + owed["undeclared or unprepared"]
    else:
        expected = owed["seen"] + owed["in doubt"] + owed["undeclared or unprepared"]
    assert (await second.settled(receipt)).outcome == "completed", where
    await second.at_rest()
    assert world.supplier.count("charge") == expected, where
    if recorded:  # a recorded step never runs again, whatever becomes of its call
        assert world.supplier.count("step") == steps, where
    assert world.batches()[: len(before)] == before, where
    assert world.tags().count("submission_settled") == world.tags().count("input_recorded") == 1, where
    world.converged()
    await world.close()


def executions_owed(world: World) -> dict[str, int]:
    """From what is durable at the crash: executions seen, calls in doubt, and calls that were never prepared."""
    view = ConversationView()
    view.extend(world.records())
    calls_known = list(view.calls.values())
    in_doubt = sum(1 for item in calls_known if item.open and item.prepared is not None)
    fresh = sum(1 for item in calls_known if item.open and item.prepared is None)
    return {
        "seen": world.supplier.count("charge"),
        "in doubt": in_doubt,
        "undeclared or unprepared": fresh if calls_known else 2,
    }


@pytest.mark.requirement("DUR-003", "DUR-007", "DUR-009", "DUR-011", "DUR-015")
@pytest.mark.parametrize(
    ("adapter", "stepwise", "effect"),
    [
        ("memory", True, "idempotent"),
        ("memory", True, "uncertain"),
        ("memory", False, "idempotent"),
        ("memory", False, "uncertain"),
        ("duckdb", False, "uncertain"),
    ],
)
async def test_every_hit_of_every_point(adapter: str, stepwise: bool, effect: str, tmp_path: Path) -> None:
    """K1 to K12 and K16 to K18 at once, and whatever lies between them.

    A file is opened three times for each crash, so over DuckDB the fused run alone, which has a quarter of the writes,
    and with the effect that recovery may not repeat; the other one crashes in each of its writes in the next test.
    """
    hits = await passed(tmp_path / "whole", adapter, stepwise=stepwise)
    for point, count in hits.items():
        for at in range(1, count + 1):
            folder = tmp_path / f"{point}-{at}"
            await crash_and_recover(folder, adapter, point, at, effect, stepwise=stepwise)


@pytest.mark.requirement("DUR-007")
@pytest.mark.parametrize("point", [*WRITING, Point.BEFORE_COMMIT, Point.AFTER_COMMIT])
async def test_a_crash_inside_a_write_leaves_no_prefix(point: Point, tmp_path: Path) -> None:
    """Three failpoints inside of the append, and one on both sides of the commit, at each write of a fused run."""
    hits = await passed(tmp_path / "whole", "duckdb", stepwise=False)
    assert hits[point] == 5  # the last result shares a write with the answer that it led to
    for at in range(1, hits[point] + 1):
        await crash_and_recover(tmp_path / f"{at}", "duckdb", point, at, "idempotent", stepwise=False)


async def test_every_failpoint_is_reached_or_pinned(tmp_path: Path) -> None:
    """A new one cannot vanish unseen."""
    stepwise = await passed(tmp_path / "stepwise", "memory", stepwise=True)
    fused = await passed(tmp_path / "fused", "duckdb", stepwise=False)
    approved = await approving(tmp_path / "approved", stepwise=True)
    joining = await passed_in_a_join(tmp_path / "joining")
    beside = {adapter: await passed_beside(tmp_path / f"beside-{adapter}", adapter) for adapter in ADAPTERS}
    # An owner, a quarantine, its release, the owner's end: the adapters have the same points on the same occasions.
    assert list(beside.values()) == [[4, 4], [4, 4]]
    reached = set(stepwise) | set(fused) | set(approved) | joining | set(SIDE_WRITES)
    assert reached.isdisjoint(NOT_REACHED)
    assert reached | set(NOT_REACHED) == set(Point)


async def passed_beside(folder: Path, adapter: str) -> list[int]:
    """How often a process that sets a conversation aside and ends passes what is written beside the ledger."""
    world = World(adapter, folder)
    process = await world.process(working(world, "idempotent"))
    await process.link.call("quarantine", "c", "looking", "ann")
    await process.link.call("release_quarantine", "c", "ann")
    await world.close()
    return [world.failpoints.hits[point] for point in SIDE_WRITES]


async def passed_in_a_join(folder: Path) -> set[Point]:
    """What a run passes that takes others in, is lost in the middle of that, and is recovered."""
    world = World("memory", folder)
    hosted = Hosted(world, stepwise=True)
    first, gate = await hosted.begin()
    world.failpoints.plan({Point.AFTER_JOIN_CLAIMED: 1})
    gate.open()
    await first.crashed()
    await world.kill(first)
    second = await hosted.process()
    await second.recover()
    await hosted.check(second)
    await world.close()
    return set(world.failpoints.hits)


def test_failpoints_stop_at_the_planned_hit_alone() -> None:
    crash = Crash({Point.AFTER_CLAIM: 2})
    crash.hit(Point.AFTER_CLAIM)
    crash.hit(Point.AFTER_PREPARED)
    with pytest.raises(BaseException, match="after_claim"):
        crash.hit(Point.AFTER_CLAIM)
    assert Failpoints().hits == {}
