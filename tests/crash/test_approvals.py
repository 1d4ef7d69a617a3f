"""K13: a kill on both sides of a suspension; what was asked is asked once, and decided from another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from approval_acts import asking, decide, suspended
from lane_world import Supplier, World, call, until

from laneway.actors.decisions import ApprovalDecision
from laneway.storage.errors import Refused
from laneway.storage.failpoints import Point
from laneway.storage.ledger import State

VICTIM = Path(__file__).parents[1] / "support" / "approval_victim.py"


@pytest.mark.requirement("DUR-013", "DUR-015")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
@pytest.mark.parametrize("point", [Point.AFTER_APPROVAL_REQUESTED, Point.AFTER_SUSPENDED, Point.AFTER_APPROVAL_DECIDED])
async def test_a_kill_on_both_sides_of_a_suspension(adapter: str, point: Point, tmp_path: Path) -> None:
    """K13: suspended after recovery, nothing executed; the decision, then the tool once; one request, one decision."""
    world = World(adapter, tmp_path)
    agent = asking(world, call("charge"))
    process = await world.process(agent, stepwise=True)
    process.failpoints.plan({point: 1})
    begun = process.begin_submit("pay", key="k")
    if point is Point.AFTER_APPROVAL_DECIDED:
        await until(lambda: [row for row in world.store.list_rows() if row.state is State.SUSPENDED])
        (row,) = world.store.list_rows()
        asked = ApprovalDecision(submission_id=row.submission_id, decision="approved", author="ann")
        await process.host.decide("c", asked)
    await process.crashed()
    before = world.batches()
    await world.kill(process)
    begun.close()
    process = await world.process(agent, stepwise=True)
    receipt = await process.submit("pay", key="k")
    await process.recover()
    if point is not Point.AFTER_APPROVAL_DECIDED:
        await suspended(world, receipt)
        assert world.supplier.count("charge") == 0
        await decide(process, receipt)
    assert (await process.settled(receipt)).outcome == "completed"
    await process.at_rest()
    assert world.supplier.count("charge") == 1
    assert world.tags().count("approval_requested") == world.tags().count("approval_decided") == 1
    assert world.batches()[: len(before)] == before
    expected = {Point.AFTER_APPROVAL_REQUESTED: ["repair_suspension"], Point.AFTER_SUSPENDED: []}
    assert world.decisions() == expected.get(point, ["resume_batch"])
    world.converged()
    await world.close()


async def test_a_decision_on_other_arguments_is_refused_before_the_suspension_too(tmp_path: Path) -> None:
    """K13, rule: the digest binds. The request stands in the log, its suspension is lost, and somebody misreads it."""
    world = World("memory", tmp_path)
    agent = asking(world, call("charge"))
    process = await world.process(agent, stepwise=True)
    process.failpoints.plan({Point.AFTER_APPROVAL_REQUESTED: 1})
    begun = process.begin_submit("pay", key="k")
    await process.crashed()
    await world.kill(process)
    begun.close()
    process = await world.process(agent, stepwise=True)
    (row,) = world.store.list_rows()
    misread = ApprovalDecision(
        submission_id=row.submission_id, decision="approved", author="bob", arguments_digest="0" * 64
    )
    with pytest.raises(Refused) as caught:
        await process.host.decide("c", misread)
    assert caught.value.code == "approval_digest_mismatch"
    receipt = await process.submit("pay", key="k")
    await process.recover()
    await suspended(world, receipt)
    await decide(process, receipt)
    assert (await process.settled(receipt)).outcome == "completed"
    await process.at_rest()
    assert world.supplier.count("charge") == 1
    world.converged()
    await world.close()


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(VICTIM), str(folder / "store.duckdb"), str(folder / "supplier.jsonl"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.requirement("DUR-003", "DUR-013")
@pytest.mark.parametrize("point", [Point.AFTER_APPROVAL_REQUESTED, Point.AFTER_SUSPENDED])
def test_a_killed_process_leaves_its_request_to_the_next_ones(point: Point, tmp_path: Path) -> None:
    """K13 with real processes: one is killed, one finds the work suspended, a third decides and it runs once."""
    killed = run(tmp_path, "submit", point)
    assert killed.returncode == 137, killed.stderr
    supplier = Supplier(tmp_path / "supplier.jsonl")
    found = run(tmp_path, "look", "none")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == {"state": "suspended", "requests": 1}
    assert (supplier.count("model"), supplier.count("charge")) == (1, 0)
    decided = run(tmp_path, "approve", "none")
    assert decided.returncode == 0, decided.stderr
    told = json.loads(decided.stdout)
    assert (told["outcome"], told["requests"], told["decisions"], told["passed"]) == ("completed", 1, 1, True)
    assert (supplier.count("model"), supplier.count("charge")) == (2, 1)
