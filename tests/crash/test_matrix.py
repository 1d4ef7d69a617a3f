"""The crash matrix over memory and DuckDB, stepwise: each row ends in the convergence check and the exact number of
executions that the world outside has seen. `test_process_kills.py` drives the same rows with killed processes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from crash_matrix import MATRIX, OPERATOR, RETRY, Row, charging, check_history, same_receipt
from lane_world import Process, Script, World, agent_of, call, calls

from laneway import Agent, Tool
from laneway.recovery.classify import classify, evidence_of
from laneway.storage.errors import AdmissionConflict
from laneway.storage.failpoints import Point, SimulatedCrash
from laneway.storage.ledger import State, receipt_of
from laneway.storage.records import SubmissionSettled, encode_records, tag_of

NOT_YET: dict[str, str] = {
    "K23": "a store process that dies needs Ray: tests/cluster/test_store_kills.py",
    "K24": "a supervisor process that dies needs Ray: tests/cluster/test_operations_on_ray.py",
    "K25": "a whole cluster that dies needs Ray: tests/cluster/test_cluster_losses.py",
    "K26": "a node that dies needs Ray: tests/cluster/test_cluster_losses.py",
}
"""Scenarios of the crash matrix that no test of this folder reaches, and why."""


@pytest.mark.requirement("DUR-001", "DUR-003", "DUR-006", "DUR-009", "DUR-011", "DUR-013", "DUR-015")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
@pytest.mark.parametrize("row", MATRIX, ids=str)
async def test_crash(row: Row, adapter: str, tmp_path: Path) -> None:
    """Kill at the row's point; a second process recovers; K1 to K11 and K16 to K18."""
    world = World(adapter, tmp_path)
    first = await world.process(charging(world.supplier, world.failpoints, row), stepwise=True)
    world.failpoints.plan({row.point: row.at})
    submitting = first.begin_submit("pay", key="k")
    await first.crashed()
    before = world.batches()
    await world.kill(first, how=row.how)
    submitting.close()
    known = world.store.lookup_key("c", "alice", "k")
    assert known is not None
    assert classify(evidence_of(world.store.snapshot(known.submission_id))).name == row.decided

    second = await world.process(charging(world.supplier, world.failpoints, row), stepwise=True)
    if row.then == RETRY:
        receipt = await second.submit("pay", key="k")
        assert receipt.replayed
        assert same_receipt(receipt, known)
    else:
        receipt = receipt_of(known, replayed=True)
    await second.recover()
    await check_conflict(second)
    if row.outcome == "unknown":
        await second.at_rest()
        found = world.row(receipt)
        assert found.state is State.UNKNOWN
        assert (world.supplier.count("charge"), world.supplier.count("model")) == (row.tool, row.model)
        await second.recover()  # a sweep grants nothing, and asks no model
        await second.at_rest()
        assert (world.supplier.count("charge"), world.supplier.count("model")) == (row.tool, row.model)
        world.converged(require_settled=False)
        if row.then == OPERATOR:
            held = world.batches()
            await world.resolve(receipt, "never_started")
            await second.recover()
            assert (await second.settled(receipt)).outcome == "completed"
            assert (world.supplier.count("charge"), world.supplier.count("model")) == (row.tool + 1, row.model + 1)
            assert world.batches()[: len(held)] == held
    else:
        assert (await second.settled(receipt)).outcome == row.outcome
        await second.at_rest()
        assert (world.supplier.count("charge"), world.supplier.count("model")) == (row.tool, row.model)
    check_history(row, known, before, world.batches(), world.supplier)
    again = await second.submit("pay", key="k")
    assert again.replayed
    assert same_receipt(again, known)
    # A last submission shows that the lane is free, and keeps its place behind the first one (K4).
    if row.outcome != "unknown" or row.then == OPERATOR:
        assert (await second.run("again")).outcome == "completed"
        await second.at_rest()  # stepwise, the outcome is told before the ledger follows
        report = world.converged()
        assert report.conversations == 1
    await world.close()


async def check_conflict(process: Process) -> None:
    """K1: the same key with another payload is refused, before and after a crash."""
    with pytest.raises(AdmissionConflict):
        await process.submit("something else", key="k")


@pytest.mark.requirement("DUR-011")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
async def test_the_appended_settlement_is_the_reserved_one_byte_for_byte(adapter: str, tmp_path: Path) -> None:
    """K17."""
    world = World(adapter, tmp_path)
    row = Row("K17", Point.AFTER_RESERVATION)
    first = await world.process(charging(world.supplier, world.failpoints, row), stepwise=True)
    world.failpoints.plan({Point.AFTER_RESERVATION: 1})
    submitting = first.begin_submit("pay", key="k")
    await first.crashed()
    await world.kill(first)
    submitting.close()
    (found,) = world.store.list_rows("c")
    assert found.reservation is not None
    reserved = found.reservation.body
    second = await world.process(charging(world.supplier, world.failpoints, row), stepwise=True)
    await second.recover()
    await second.settled(receipt_of(found, replayed=True))
    (settled,) = [record for record in world.records() if isinstance(record, SubmissionSettled)]
    assert encode_records((settled,)).decode() == reserved
    await world.close()


@pytest.mark.requirement("DUR-004")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
@pytest.mark.parametrize("point", [Point.AFTER_INPUT_APPENDED, Point.AFTER_TOOL_SETTLED, Point.AFTER_RESERVATION])
async def test_what_was_queued_keeps_its_order(point: Point, adapter: str, tmp_path: Path) -> None:
    """K4: two queued inputs keep FIFO over a crash of the one before them."""
    world = World(adapter, tmp_path)
    row = Row("K4", point)
    first = await world.process(charging(world.supplier, world.failpoints, row), stepwise=True)
    world.failpoints.plan({point: 1})
    submits = [first.begin_submit(f"pay {number}", key=f"k{number}") for number in (1, 2, 3)]
    await first.crashed()
    await world.kill(first)
    for submitting in submits:
        submitting.close()
    second = await world.process(charging(world.supplier, world.failpoints, row), stepwise=True)
    receipts = [await second.submit(f"pay {number}", key=f"k{number}") for number in (1, 2, 3)]
    await second.recover()
    for receipt in receipts:
        assert (await second.settled(receipt)).outcome == "completed"
    inputs = [record.content for record in world.records() if tag_of(record) == "input_recorded"]
    assert inputs == [f"pay {number}" for number in (1, 2, 3)]
    assert world.supplier.count("charge") == 3
    await second.at_rest()
    world.converged()
    await world.close()


@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
async def test_deadlines_keep_their_origin(adapter: str, tmp_path: Path) -> None:
    """K5: a run that is recovered has what is left of its time, not all of it."""
    world = World(adapter, tmp_path)
    row = Row("K5", Point.AFTER_TOOL_SETTLED)

    def agent() -> Agent:
        import dataclasses

        return dataclasses.replace(charging(world.supplier, world.failpoints, row), run_timeout_s=60.0)

    first = await world.process(agent(), stepwise=True)
    world.failpoints.plan({row.point: 1})
    submitting = first.begin_submit("pay", key="k")
    await first.crashed()
    await world.kill(first)
    submitting.close()
    world.clock.advance(61_000)
    second = await world.process(agent(), stepwise=True)
    await second.recover()
    (found,) = world.store.list_rows("c")
    settlement = await second.settled(receipt_of(found, replayed=True))
    assert settlement.error is not None
    assert (settlement.outcome, settlement.error["code"]) == ("failed", "run_timeout")
    assert (world.supplier.count("model"), world.supplier.count("charge")) == (1, 1)
    await second.at_rest()
    world.converged()
    await world.close()


@pytest.mark.requirement("DUR-006")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
@pytest.mark.parametrize("stepwise", [False, True])
async def test_a_stale_attempt_is_refused_and_ends_itself(
    adapter: str, stepwise: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """K22: it is held back while a new owner finishes, then released; nothing of it is in the log."""
    from lane_world import Gate

    world = World(adapter, tmp_path)
    gate = Gate()

    async def stale(ctx: Any, arguments: dict[str, Any]) -> str:
        world.supplier.book("charge", ctx.call_id)
        await gate.wait()
        return "of the stale attempt"

    async def fresh(ctx: Any, arguments: dict[str, Any]) -> str:
        world.supplier.book("charge", ctx.call_id)
        return "of the new owner"

    def agent(function: Callable[..., Awaitable[Any]]) -> Agent:
        tool = Tool.raw("charge", function, effect="idempotent", version="1")
        return agent_of(Script(calls(call("charge")), "done", supplier=world.supplier), tool)

    held = await world.process(agent(stale), stepwise=stepwise)
    receipt = await held.submit("pay")
    await gate.reached()
    world.store.retire_owner(held.host.owner_id)  # or so somebody believed
    owner = await world.process(agent(fresh), stepwise=stepwise)
    await owner.recover()
    assert (await owner.settled(receipt)).outcome == "completed"
    await owner.at_rest()  # stepwise, the outcome is told before the ledger follows
    finished = world.batches()
    epoch = world.store.inspect_tail("c").epoch
    gate.open()
    await held.at_rest()
    assert world.batches() == finished
    assert world.store.inspect_tail("c").epoch == epoch
    assert "of the stale attempt" not in "".join(batch.body for batch in finished)
    assert held.host._lanes["c"].nothing_to_do == "empty"
    assert "the lane failed" not in caplog.text  # to be superseded is no fault
    asked = 2 if stepwise else 3  # fused, the model is asked beside the commit that is refused
    assert (world.supplier.count("charge"), world.supplier.count("model")) == (2, asked)
    assert (await held.run("again")).outcome == "completed"  # and it may claim anew
    await held.at_rest()
    world.converged()
    await world.close()


@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
@pytest.mark.requirement("DUR-012")
@pytest.mark.parametrize("after", [Point.BEFORE_COMMIT, Point.AFTER_COMMIT])
async def test_a_crash_in_the_abort_of_queued_work(adapter: str, after: Point, tmp_path: Path) -> None:
    """K20: the intent alone is durable, or nothing is; what was accepted settles aborted and leaves no input."""
    from lane_world import Gate

    world = World(adapter, tmp_path)
    gate = Gate()

    async def answer(request: Any) -> str:
        if request.queue_sequence == 1 and request.attempt == 1:
            await gate.wait()
        return "done"

    agent = agent_of(Script(answer, supplier=world.supplier))
    first = await world.process(agent)
    head, queued = await first.submit("one"), await first.submit("two")
    await gate.reached()
    world.failpoints.plan({after: 1})
    aborting = first.begin(first.abort(queued))
    await first.crashed()
    await world.kill(first)
    aborting.close()
    asked = world.row(queued).abort is not None
    assert asked == (after is Point.AFTER_COMMIT)
    second = await world.process(agent)
    await second.recover()
    assert (await second.settled(head)).outcome == "completed"
    assert (await second.settled(queued)).outcome == ("aborted" if asked else "completed")
    assert world.tags().count("input_recorded") == (1 if asked else 2)
    await second.at_rest()
    world.converged()
    await world.close()


@pytest.mark.requirement("DUR-012")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
async def test_a_crash_in_the_abort_of_active_work(adapter: str, tmp_path: Path) -> None:
    """K21: the intent is canonical and the process is gone; recovery settles aborted and asks no model."""
    from lane_world import Gate

    world = World(adapter, tmp_path)
    gate = Gate()

    async def answer(request: Any) -> str:
        await gate.wait()
        raise AssertionError("unreachable")

    agent = agent_of(Script(answer, supplier=world.supplier))
    first = await world.process(agent)
    receipt = await first.submit("one")
    await gate.reached()
    world.failpoints.plan({Point.AFTER_COMMIT: 1})
    aborting = first.begin(first.abort(receipt))
    await first.crashed()
    await world.kill(first)
    aborting.close()
    second = await world.process(agent)
    await second.recover()
    assert (await second.settled(receipt)).outcome == "aborted"
    tags = world.tags()
    assert tags.index("abort_requested") < tags.index("submission_settled")
    assert world.supplier.count("model") == 1
    assert world.decisions() == ["settle_aborted"]
    await second.at_rest()
    world.converged()
    await world.close()


def test_every_scenario_of_the_matrix_is_here_or_pinned() -> None:
    joining = set(re.findall(r'Row\("(K\d+)"', Path(__file__).with_name("test_joining.py").read_text()))
    own = {"K12", "K13", "K20", "K21", "K22"}  # tests of their own, beside the table
    here = {row.scenario for row in MATRIX} | own | joining
    assert here | set(NOT_YET) == {f"K{number}" for number in range(1, 27)}
    assert not here & set(NOT_YET)


def test_what_needs_ray_is_where_the_pin_says() -> None:
    root = Path(__file__).parents[2]
    for scenario, why in NOT_YET.items():
        _, needs_ray, file = why.partition("needs Ray: ")
        if needs_ray:
            assert scenario in (root / file).read_text()


def test_a_simulated_crash_is_no_exception_that_the_product_could_handle() -> None:
    assert not issubclass(SimulatedCrash, Exception)
