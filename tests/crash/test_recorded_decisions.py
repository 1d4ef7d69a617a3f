"""What a recovery puts on record is what it does, and it depends on nothing but what is stored."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from lane_world import Process, Script, World, agent_of, call, calls

from laneway import Agent, Completed, Tool
from laneway.storage.commands import Accepted, RequestAbort, ResolveUnknown, Unit
from laneway.storage.failpoints import Point
from laneway.storage.header import Batch
from laneway.storage.ids import IdSource, ids_from
from laneway.storage.ledger import State
from laneway.storage.records import RecoveryDecided, RunCompleted

POINTS = [
    (Point.AFTER_CLAIM, "idempotent"),
    (Point.AFTER_INPUT_APPENDED, "idempotent"),
    (Point.DURING_MODEL, "idempotent"),
    (Point.AFTER_MODEL_RESPONDED, "idempotent"),
    (Point.AFTER_PREPARED, "uncertain"),
    (Point.AFTER_TOOL, "uncertain"),
    (Point.AFTER_TOOL, "reconciled"),
    (Point.AFTER_TOOL_SETTLED, "idempotent"),
    (Point.AFTER_RUN_COMPLETED, "idempotent"),
    (Point.AFTER_RESERVATION, "idempotent"),
    (Point.AFTER_SETTLEMENT_APPENDED, "idempotent"),
]


def charging(world: World, effect: str) -> Agent:
    async def charge(ctx: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        world.supplier.book("charge", ctx.call_id)
        return {"charged": ctx.call_id}

    async def find(ctx: Any, arguments: dict[str, Any]) -> Completed | None:
        booked = world.supplier.keys("charge")[ctx.call_id]
        return Completed({"charged": ctx.call_id}, "found at the supplier") if booked else None

    reconciled = effect == "reconciled"
    tool = Tool.raw(
        "charge",
        charge,
        effect="uncertain" if reconciled else effect,  # type: ignore[arg-type]
        reconcile=find if reconciled else None,
    )
    return agent_of(Script(calls(call("charge", {"amount": 1})), "done", supplier=world.supplier), tool)


async def killed(world: World, point: Point, effect: str) -> None:
    """A process takes a submission up and is killed at `point`."""
    first = await world.process(charging(world, effect), stepwise=True)
    world.failpoints.plan({point: 1})
    submitting = first.begin_submit("pay", key="k")
    await first.crashed()
    await world.kill(first)
    submitting.close()


async def recovered(world: World, effect: str) -> Process:
    second = await world.process(charging(world, effect), stepwise=True)
    await second.recover()
    await second.at_rest()
    return second


async def recovered_copy(folder: Path, original: World, effect: str, seed: int) -> tuple[list[Batch], list[str], State]:
    """Recover a copy of what is stored, with ids drawn from `seed` at the same moment."""
    shutil.copytree(original.folder, folder)
    world = World("duckdb", folder)
    world.clock.now = original.clock.now
    with ids_from(IdSource(random.Random(seed).randbytes, world.clock)):
        await recovered(world, effect)
        (row,) = world.store.list_rows("c")
        told = world.batches(), world.decisions(), row.state
        await world.close()
    return told


@pytest.mark.requirement("DUR-013")
@pytest.mark.parametrize(("point", "effect"), POINTS, ids=[f"{point}-{effect}" for point, effect in POINTS])
async def test_one_snapshot_is_recovered_alike(point: Point, effect: str, tmp_path: Path) -> None:
    """F19: the store's file as a kill left it, recovered twice: the same decisions, the same bytes of every record."""
    world = World("duckdb", tmp_path / "first")
    await killed(world, point, effect)
    before = len(world.batches())
    await world.close()
    once = await recovered_copy(tmp_path / "once", world, effect, 1)
    again = await recovered_copy(tmp_path / "again", world, effect, 1)
    assert once == again
    assert [batch.body for batch in once[0]] == [batch.body for batch in again[0]]
    assert len(once[0]) > before
    assert len(once[1]) == 1
    other = await recovered_copy(tmp_path / "other", world, effect, 2)  # other ids are seen, and change no decision
    assert other[1:] == once[1:]
    assert [batch.body for batch in other[0]] != [batch.body for batch in once[0]]


def ask_abort(world: World) -> None:
    (row,) = world.store.list_rows("c")
    command = RequestAbort(submission_id=row.submission_id, abort_id="abt", author="bob", reason="enough")
    (answer,) = world.store.commit([Unit(conversation_id="c", commands=(command,))])
    assert isinstance(answer, Accepted)


@pytest.mark.requirement("DUR-012", "DUR-013")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
async def test_an_outcome_on_record_is_decided_before_an_abort(adapter: str, tmp_path: Path) -> None:
    """K16: the run was completed, and an abort is asked for before its recovery: it completes, and the log says so."""
    world = World(adapter, tmp_path)
    await killed(world, Point.AFTER_RUN_COMPLETED, "idempotent")
    ask_abort(world)
    await recovered(world, "idempotent")
    (row,) = world.store.list_rows("c")
    assert (world.decisions(), row.outcome) == (["finish"], "completed")
    world.converged()
    await world.close()


@pytest.mark.requirement("DUR-012", "DUR-013")
async def test_a_call_that_somebody_gave_up_is_decided_as_an_abort(tmp_path: Path) -> None:
    """K8: an operator answers abort, and the process is lost when that has entered the log: the decision says abort."""
    world = World("memory", tmp_path)
    await killed(world, Point.AFTER_TOOL, "uncertain")
    second = await recovered(world, "uncertain")
    (row,) = world.store.list_rows("c")
    assert row.state is State.UNKNOWN
    (call_id,) = row.unknown_calls
    answer = ResolveUnknown(
        submission_id=row.submission_id, call_id=call_id, resolution="abort", author="ann", reason="never mind"
    )
    world.store.commit([Unit(conversation_id="c", commands=(answer,))])
    await world.kill(second)

    third = await world.process(charging(world, "uncertain"), stepwise=True)
    world.failpoints.plan({Point.BEFORE_COMMIT: 3})  # the claim, the answer; then the run's end
    await third.recover()
    await third.crashed()
    assert world.tags()[-1] == "tool_call_resolved"
    await world.kill(third)
    await recovered(world, "uncertain")
    (row,) = world.store.list_rows("c")
    assert row.outcome == "aborted"
    assert world.decisions()[-1] == "settle_aborted"
    (ended,) = [record for record in world.records() if isinstance(record, RunCompleted)]
    assert ended.outcome == "aborted"
    last = [record for record in world.records() if isinstance(record, RecoveryDecided)][-1]
    assert "ann" in last.evidence
    world.converged()
    await world.close()
