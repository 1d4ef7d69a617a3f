"""Planned stops: released at a safe boundary they use no budget; what nobody can prove is left to recovery."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lane_world import SECONDS, Gate, Process, Script, Trouble, World, agent_of, call, calls, until

from laneway import SafeToRetry, Tool, tool
from laneway.storage.commands import Admit
from laneway.storage.ledger import State
from laneway.storage.records import ModelInterrupted, RecoveryDecided

STEPS = 20


@pytest.fixture(params=["memory", "duckdb"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(request.param, tmp_path)
    yield world
    await world.close()


async def restart(world: World, process: Process, agent: Any, **settings: Any) -> Process:
    """A planned restart: the process is asked to end, and another one is started and told to look."""
    await process.host.close()
    process.link.close()
    world.processes.remove(process)
    assert world.store.owners() == {}
    following = await world.process(agent, **settings)
    await following.recover()
    return following


@pytest.mark.requirement("DUR-003", "DUR-014")
async def test_a_turn_of_twenty_tools_survives_a_restart_after_each_one(world: World) -> None:
    """F3: it completes; finished tools never run again; planned restarts use no budget."""
    free = asyncio.Semaphore(0)
    finished = Counter[str]()

    async def step(ctx: Any, arguments: dict[str, Any]) -> str:
        await free.acquire()
        finished[ctx.call_id] += 1
        return "done"

    declared = [call("step", {"n": number}, id=f"call_{number}") for number in range(STEPS)]
    agent = agent_of(
        Script(calls(*declared), "all done", supplier=world.supplier), Tool.raw("step", step, effect="idempotent")
    )
    settings = {"recoveries_max": 1}
    process = await world.process(agent, **settings)
    receipt = await process.submit("go")
    for number in range(1, STEPS):
        free.release()
        await until(lambda number=number: world.tags().count("tool_call_settled") == number)
        process = await restart(world, process, agent, **settings)
        assert world.row(receipt).state in (State.READY, State.RUNNING)
    free.release()
    assert (await process.settled(receipt)).text == "all done"
    assert set(finished.values()) == {1}
    assert len(finished) == STEPS
    assert world.decisions() == []
    assert world.row(receipt).attempts == STEPS
    assert world.supplier.count("model") == 2
    world.converged()


@pytest.mark.requirement("DUR-009")
async def test_an_uncertain_call_in_flight_gets_its_grace(world: World) -> None:
    """It finishes, its result is recorded, and the rest goes on elsewhere: nothing is unknown."""
    gate = Gate()

    async def charge(ctx: Any, arguments: dict[str, Any]) -> str:
        world.supplier.book("charge", ctx.call_id)
        await gate.wait()
        return "charged"

    agent = agent_of(
        Script(calls(call("charge")), "paid", supplier=world.supplier), Tool.raw("charge", charge, effect="uncertain")
    )
    process = await world.process(agent, drain_grace_s=10.0)
    receipt = await process.submit("pay")
    await gate.reached()
    closing = asyncio.ensure_future(process.host.close())
    await until(lambda: process.host._lanes["c"]._closing)
    gate.open()
    await closing
    assert world.row(receipt).state is State.READY
    assert world.tags()[-1] == "tool_call_settled"
    world.processes.remove(process)
    process.link.close()
    other = await world.process(agent)
    await other.recover()
    assert (await other.settled(receipt)).text == "paid"
    assert world.supplier.count("charge") == 1
    assert world.decisions() == []
    world.converged()


@pytest.mark.requirement("DUR-009")
async def test_an_uncertain_call_that_outlasts_its_grace_is_left_to_recovery(world: World) -> None:
    gate = Gate()

    async def charge(ctx: Any, arguments: dict[str, Any]) -> str:
        world.supplier.book("charge", ctx.call_id)
        await gate.wait()
        return "charged"

    agent = agent_of(Script(calls(call("charge")), "paid"), Tool.raw("charge", charge, effect="uncertain"))
    process = await world.process(agent)
    receipt = await process.submit("pay")
    await gate.reached()
    await process.host.close()
    assert (world.row(receipt).state, world.row(receipt).owner_id) == (State.RUNNING, None)
    process.link.close()
    world.processes.remove(process)
    other = await world.process(agent)
    await other.recover()
    await until(lambda: world.row(receipt).state is State.UNKNOWN)
    assert world.decisions() == ["reconcile"]
    assert world.supplier.count("charge") == 1


@pytest.mark.requirement("DUR-009", "DUR-014")
async def test_planned_stops_with_an_uncertain_call_in_flight_use_no_budget(world: World) -> None:
    """F3: the reconciler proves each time that the call may run again; no recovery is counted against the run."""
    gate = Gate()

    async def charge(ctx: Any, arguments: dict[str, Any]) -> str:
        world.supplier.book("charge", ctx.call_id)
        await gate.wait()
        return "charged"

    async def prove(ctx: Any, arguments: dict[str, Any]) -> Any:
        return SafeToRetry(evidence="the provider knows the key")

    charging = Tool.raw("charge", charge, effect="uncertain", reconcile=prove)
    agent = agent_of(Script(calls(call("charge")), "paid"), charging)
    process = await world.process(agent, recoveries_max=0)
    receipt = await process.submit("pay")
    for _ in range(3):
        await gate.reached()
        gate._reached.clear()
        process = await restart(world, process, agent, recoveries_max=0)
    gate.open()
    assert (await process.settled(receipt)).text == "paid"
    decided = [record for record in world.records() if isinstance(record, RecoveryDecided)]
    assert [(record.decision, record.planned) for record in decided] == [("reconcile", True)] * 3
    assert world.supplier.count("charge") == 4
    world.converged()


@pytest.mark.requirement("DUR-008")
async def test_a_model_that_is_asked_at_the_stop_is_asked_again_and_that_is_on_record(world: World) -> None:
    """Specification 9: the attempt is recorded as interrupted; the budget of recoveries is not used."""
    gate = Gate()

    async def answer(request: Any) -> Any:
        await gate.wait()
        return "fine"

    agent = agent_of(Script(answer, supplier=world.supplier))
    process = await world.process(agent, recoveries_max=0)
    receipt = await process.submit("go")
    for _ in range(3):
        await gate.reached()
        gate._reached.clear()
        process = await restart(world, process, agent, recoveries_max=0)
    gate.open()
    assert (await process.settled(receipt)).text == "fine"
    interruptions = [record for record in world.records() if isinstance(record, ModelInterrupted)]
    assert [record.reason for record in interruptions] == ["its process was stopped as planned"] * 3
    assert len({record.id for record in interruptions}) == 3
    assert world.supplier.count("model") == 4
    assert world.decisions() == []
    world.converged()


async def test_a_model_gets_no_grace(world: World) -> None:
    """It can be asked again, and its answer may take longer than any grace."""
    gate = Gate()

    async def answer(request: Any) -> Any:
        await gate.wait()
        return "fine"

    process = await world.process(agent_of(Script(answer)), drain_grace_s=60.0)
    receipt = await process.submit("go")
    await gate.reached()
    async with asyncio.timeout(SECONDS):
        await process.host.close()
    assert world.row(receipt).state is State.READY
    assert world.tags()[-1] == "model_interrupted"


async def test_nobody_waits_out_a_pause_between_recoveries_at_a_stop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from laneway.actors.lane import attempt

    gate = Gate()

    async def answer(request: Any) -> Any:
        await gate.wait()
        return "fine"

    agent = agent_of(Script(answer))
    process = await world.process(agent)
    receipt = await process.submit("go")
    monkeypatch.setattr(attempt, "backoff_s", lambda tries, chance: 3600.0)
    for _ in range(2):
        await gate.reached()
        gate._reached.clear()
        await world.kill(process)
        process = await world.process(agent, drain_grace_s=60.0)
        await process.recover()
    await until(lambda: len(world.decisions()) == 2)
    async with asyncio.timeout(SECONDS):
        await process.host.close()
    assert world.row(receipt).state is State.READY


async def test_a_claim_that_is_on_its_way_at_the_stop_is_given_back(world: World) -> None:
    process = await world.process(agent_of(Script("done")))
    held, go = asyncio.Event(), asyncio.Event()

    async def hold(units: list[Any]) -> None:
        if any(isinstance(command, Admit) for unit in units for command in unit.commands):
            held.set()
            await go.wait()

    process.link.before_commit = hold
    submitting = asyncio.ensure_future(process.submit("go"))
    await held.wait()
    closing = asyncio.ensure_future(process.host.close())
    await until(lambda: process.host._draining)
    go.set()
    receipt = await submitting
    await closing
    assert world.row(receipt).owner_id not in world.store.owners()
    process.link.close()
    world.processes.remove(process)
    other = await world.process(agent_of(Script("done")))
    await other.recover()
    assert (await other.settled(receipt)).text == "done"


async def test_a_submission_to_a_process_that_ends_is_admitted_and_runs_elsewhere(world: World) -> None:
    gate = Gate()

    @tool(effect="idempotent")
    async def slow() -> str:
        await gate.wait()
        return "done"

    process = await world.process(agent_of(Script(calls(call("slow")), "done"), slow), drain_grace_s=10.0)
    await process.submit("go")
    await gate.reached()
    closing = asyncio.ensure_future(process.host.close())
    await until(lambda: process.host._draining)
    later = [await process.submit("go", conversation=name) for name in ("c", "d")]
    assert [world.row(receipt).state for receipt in later] == [State.READY, State.READY]
    gate.open()
    await closing
    process.link.close()
    world.processes.remove(process)
    other = await world.process(agent_of(Script(calls(call("slow")), "done"), slow))
    await other.recover()
    for receipt in later:
        assert (await other.settled(receipt)).outcome == "completed"
    world.converged()


async def test_a_stop_does_not_wait_for_a_store_that_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from laneway.actors.lane import lane

    monkeypatch.setattr(lane, "_HAND_OVER_S", 0.05)
    gate, trouble = Gate(), Trouble()

    async def answer(request: Any) -> Any:
        await gate.wait()
        return "done"

    process = await world.process(agent_of(Script(answer)), trouble=trouble)
    receipt = await process.submit("go")
    await gate.reached()
    trouble.down = True
    async with asyncio.timeout(5):
        await process.host._lanes["c"].close()
    assert world.row(receipt).state is State.RUNNING
    trouble.down = False


async def test_a_tool_that_refuses_to_end_does_not_hold_the_stop_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from laneway.actors.lane import lane

    monkeypatch.setattr(lane, "_HAND_OVER_S", 0.05)
    gate = Gate()

    @tool(effect="idempotent")
    async def stubborn() -> str:
        while True:
            try:
                await gate.wait()
                return "at last"
            except asyncio.CancelledError:
                continue

    process = await world.process(agent_of(Script(calls(call("stubborn")), "done"), stubborn))
    receipt = await process.submit("go")
    await gate.reached()
    async with asyncio.timeout(5):
        await process.host.close()
    assert world.row(receipt).state is State.RUNNING
    assert world.store.owners() == {}
    gate.open()
    await until(lambda: process.host._lanes["c"]._task is None)
