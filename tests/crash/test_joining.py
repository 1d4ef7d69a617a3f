"""The crash matrix of joining: K14, K15 and K19, over both adapters; then a crash at every hit of every point."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from joining_world import Hosted
from lane_world import Told, World, call, calls

from laneway import Tool
from laneway.storage.failpoints import Point
from laneway.storage.ledger import State
from laneway.storage.records import tag_of

CLAIMED, APPENDED, JOINED = Point.AFTER_JOIN_CLAIMED, Point.AFTER_JOIN_INPUT_APPENDED, Point.AFTER_JOINED
JOINING_POINTS = (CLAIMED, APPENDED, JOINED)


@dataclass(frozen=True)
class Row:
    """Kill at the `at`-th hit of `point`: how the two others stand then, and what recovery decides."""

    scenario: str
    point: Point
    at: int
    states: tuple[State, State]
    decisions: tuple[str, ...]
    model: int = 2


RESUMED = "resume_turn"
MATRIX = [
    Row("K14", CLAIMED, 1, (State.JOINING, State.JOINING), (RESUMED, "revert_joining", "revert_joining")),
    Row("K15", APPENDED, 1, (State.JOINING, State.JOINING), (RESUMED, "repair_joined", "revert_joining")),
    Row("K14", JOINED, 1, (State.JOINED, State.JOINING), (RESUMED, "revert_joining")),
    Row("K15", APPENDED, 2, (State.JOINED, State.JOINING), (RESUMED, "repair_joined")),
    Row("K15", JOINED, 2, (State.JOINED, State.JOINED), (RESUMED,)),
    Row("K15", Point.AFTER_MODEL_RESPONDED, 2, (State.JOINED, State.JOINED), (RESUMED,)),
    Row("K16", Point.AFTER_RUN_COMPLETED, 1, (State.JOINED, State.JOINED), ("finish",)),
    Row("K17", Point.AFTER_RESERVATION, 1, (State.JOINED, State.JOINED), ("append_reservation",)),
    Row("K17", Point.AFTER_RESERVATION, 2, (State.JOINED, State.JOINED), ("finalize",)),
    Row("K18", Point.AFTER_SETTLEMENT_APPENDED, 1, (State.JOINED, State.JOINED), ("finalize",)),
    Row("K18", Point.AFTER_SETTLEMENT_APPENDED, 2, (State.JOINED, State.JOINED), ("finalize",)),
    Row("K19", Point.AFTER_FINALIZE, 1, (State.JOINED, State.JOINED), ("finalize", "finalize")),
    Row("K19", Point.AFTER_FINALIZE, 2, (State.COMPLETED, State.JOINED), ("finalize",)),
]


@pytest.mark.requirement("DUR-004", "DUR-011", "DUR-013", "DUR-015", "DUR-016")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
@pytest.mark.parametrize("how", ["retire", "expire"])
@pytest.mark.parametrize("row", MATRIX, ids=[f"{row.scenario}-{row.point}-{row.at}" for row in MATRIX])
async def test_crash(row: Row, how: str, adapter: str, tmp_path: Path) -> None:
    """K14: back to ready, delivered once. K15: joined, one input record. K19: settled under the host's run."""
    world = World(adapter, tmp_path)
    hosted = Hosted(world, stepwise=True)
    first, gate = await hosted.begin()
    world.failpoints.plan({row.point: row.at})
    gate.open()
    await first.crashed()
    before = world.batches()
    await world.kill(first, how=how)
    assert tuple(world.row(receipt).state for receipt in hosted.receipts[1:]) == row.states
    second = await hosted.process()
    await second.recover()
    await hosted.check(second)
    assert world.batches()[: len(before)] == before
    assert tuple(world.decisions()) == row.decisions
    assert (world.supplier.count("model"), world.supplier.count("charge")) == (row.model, 1)
    await world.close()


@pytest.mark.requirement("DUR-003", "DUR-007", "DUR-016")
@pytest.mark.parametrize(("adapter", "stepwise"), [("memory", True), ("memory", False), ("duckdb", False)])
async def test_every_hit_of_every_point(adapter: str, stepwise: bool, tmp_path: Path) -> None:
    """K14 to K19 at once, and whatever lies between them. Stepwise over DuckDB: the points of the join alone, below."""
    world = World(adapter, tmp_path / "whole")
    hosted = Hosted(world, stepwise=stepwise)
    process, gate = await hosted.begin()
    before = world.failpoints.hits.copy()
    gate.open()
    await process.at_rest()
    hits = world.failpoints.hits - before
    await hosted.check(process)
    await world.close()
    assert set(JOINING_POINTS) <= set(hits)
    for point, count in hits.items():
        for at in range(1, count + 1):
            assert await crash_and_recover(tmp_path / f"{point}-{at}", adapter, point, at, stepwise=stepwise)


@pytest.mark.requirement("DUR-007", "DUR-016")
@pytest.mark.parametrize("stepwise", [True, False])
@pytest.mark.parametrize("point", [*JOINING_POINTS, Point.BEFORE_COMMIT, Point.APPEND_ROWS_WRITTEN])
async def test_the_points_of_a_join_on_disk(point: Point, stepwise: bool, tmp_path: Path) -> None:
    """K14, K15: each side of each durable step of a join, on a file."""
    at = 1
    while await crash_and_recover(tmp_path / f"{at}", "duckdb", point, at, stepwise=stepwise):
        at += 1
    assert at > 1


async def crash_and_recover(folder: Path, adapter: str, point: Point, at: int, *, stepwise: bool) -> bool:
    """Whether the point was passed so often that there was a crash."""
    world = World(adapter, folder)
    hosted = Hosted(world, stepwise=stepwise)
    first, gate = await hosted.begin()
    world.failpoints.plan({point: at})
    gate.open()
    if not await first.crashed_or_at_rest():
        world.failpoints.disarm()
        await hosted.check(first)
        await world.close()
        return False
    await world.kill(first)
    before = world.batches()
    second = await hosted.process()
    await second.recover()
    await hosted.check(second)
    assert world.batches()[: len(before)] == before
    await world.close()
    return True


@pytest.mark.requirement("DUR-016")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
@pytest.mark.parametrize(
    ("point", "at"),
    [(Point.AFTER_JOIN_REVERTED, 1), (Point.AFTER_JOIN_REVERTED, 2), (Point.AFTER_COMMIT, 2), (CLAIMED, 1)],
)
async def test_a_recovery_that_crashes_is_recovered(point: Point, at: int, adapter: str, tmp_path: Path) -> None:
    """K14 twice: between two reverts, and in the second join."""
    world = World(adapter, tmp_path)
    hosted = Hosted(world, stepwise=True)
    first, gate = await hosted.begin()
    world.failpoints.plan({CLAIMED: 1})
    gate.open()
    await first.crashed()
    await world.kill(first)
    second = await hosted.process()
    world.failpoints.plan({point: at})
    await second.recover()
    await second.crashed()
    await world.kill(second)
    third = await hosted.process()
    await third.recover()
    await hosted.check(third)
    await world.close()


@pytest.mark.requirement("DUR-009", "DUR-012", "DUR-016")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
async def test_a_crash_behind_the_abort_of_a_host_that_nobody_ran(adapter: str, tmp_path: Path) -> None:
    """K19: the host has settled by its abort alone, and what joined it has no settlement; the next owner settles it."""
    world = World(adapter, tmp_path)

    async def lose(ctx: Any, arguments: dict[str, Any]) -> str:
        return await asyncio.get_running_loop().create_future()

    told = Told("first", calls(call("pay")))
    told.let(1)
    agent = told.agent(Tool.raw("pay", lose, effect="uncertain", version="1", timeout_s=0.01), join=True)
    first = await world.process(agent)
    host = await first.submit("one")
    await told.gates[0].reached()
    others = [await first.submit("two"), await first.steer("three")]
    told.let(0)
    await first.at_rest()
    assert [world.row(item).state for item in (host, *others)] == [State.UNKNOWN, State.JOINED, State.JOINED]
    world.failpoints.plan({Point.AFTER_COMMIT: 2})
    aborting = first.begin(first.abort(host))
    await first.crashed()
    await world.kill(first)
    aborting.close()
    assert [world.row(item).state for item in (host, *others)] == [State.ABORTED, State.JOINED, State.JOINED]
    second = await world.process(agent)
    await second.recover()
    outcomes = [await second.settled(item) for item in (host, *others)]
    await second.at_rest()
    assert {(item.outcome, item.run_id) for item in outcomes} == {("aborted", outcomes[0].run_id)}
    assert outcomes[0].run_id is not None
    assert world.decisions() == ["settle_with_host", "settle_with_host"]
    world.converged()
    await world.close()


# --- killed processes -------------------------------------------------------------------------------------------------

VICTIM = Path(__file__).parents[1] / "support" / "joining_victim.py"

KILLS: list[tuple[str, Point, int, str, list[str]]] = [
    ("K14", CLAIMED, 1, "stepwise", [RESUMED, "revert_joining", "revert_joining"]),
    ("K14", CLAIMED, 1, "fused", [RESUMED, "revert_joining", "revert_joining"]),
    ("K15", APPENDED, 1, "stepwise", [RESUMED, "repair_joined", "revert_joining"]),
    ("K15", JOINED, 2, "fused", [RESUMED]),
    ("K19", Point.AFTER_FINALIZE, 1, "stepwise", ["finalize", "finalize"]),
]


def run(folder: Path, point: str, at: int, mode: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(VICTIM), str(folder / "store.duckdb"), str(folder / "supplier.jsonl")]
    return subprocess.run([*command, point, str(at), mode], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.requirement("DUR-001", "DUR-004", "DUR-016")
@pytest.mark.parametrize("kill", KILLS, ids=[f"{kill[0]}-{kill[1]}-{kill[3]}" for kill in KILLS])
def test_a_killed_process_is_recovered_by_the_next_one(kill: tuple[Any, ...], tmp_path: Path) -> None:
    """K14, K15, K19 with a process that ends as SIGKILL would end it."""
    _, point, at, mode, decisions = kill
    killed = run(tmp_path, point, at, mode)
    assert killed.returncode == 137, killed.stderr
    assert killed.stdout == ""
    recovered = run(tmp_path, "none", 0, mode)
    assert recovered.returncode == 0, recovered.stderr
    found = json.loads(recovered.stdout)
    assert found["outcomes"] == [["completed", "done"]] * 3
    assert found["replayed"] == [True, True, True]
    assert found["run_ids"] == 1
    assert found["inputs"] == [["user", "pay"], ["follow_up", "two"], ["steering", "three"]]
    assert found["decisions"] == decisions
    assert found["passed"], found["problems"]


@pytest.mark.requirement("DUR-011", "DUR-015", "DUR-016")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
@pytest.mark.parametrize(
    ("point", "at"),
    [(Point.AFTER_FINALIZE, 1), (Point.AFTER_FINALIZE, 2), (Point.AFTER_SETTLEMENT_APPENDED, 2)],
)
async def test_what_steered_a_run_is_closed_before_what_waited_ahead_of_it_runs(
    point: Point, at: int, adapter: str, tmp_path: Path
) -> None:
    """K19: steering stands in the queue behind work that it passed. When its run has ended and its row was not closed,
    that comes first: the runs ahead of it fold the ended one away, and its reserved record would be appended twice."""
    world = World(adapter, tmp_path)
    told = Told(calls(call("note")), "one", "two", "three", "four")

    async def note(ctx: Any, arguments: dict[str, Any]) -> str:
        return "noted"

    agent = told.agent(Tool.raw("note", note, effect="idempotent", version="1"))
    told.let(*range(1, 5))
    process = await world.process(agent, stepwise=True)
    receipts = [await process.submit("one")]
    await told.gates[0].reached()
    receipts += [await process.submit("two"), await process.submit("three")]
    receipts += [await process.steer("left"), await process.steer("right")]
    world.failpoints.plan({point: at})
    told.let(0)
    await process.crashed()
    await world.kill(process)
    process = await world.process(agent, stepwise=True, checkpoint_records=1)
    await process.recover()
    found = [await process.settled(receipt) for receipt in receipts]
    assert [item.text for item in found] == ["one", "two", "three", "one", "one"]
    await process.at_rest()
    assert process.host.stats().get("quarantined", 0) == 0
    settled = [record.submission_id for record in world.records() if tag_of(record) == "submission_settled"]
    assert settled == [receipts[index].submission_id for index in (0, 3, 4, 1, 2)]
    world.converged()
    await world.close()
