"""What ignores that it was ended: asked, then cancelled, then left behind; the lane goes on (Specification 13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lane_world import Gate, Script, World, agent_of, call, calls, until

from laneway import FunctionModel, Tool, ToolContext, tool
from laneway.agents.protocol import Delta
from laneway.storage.ledger import State
from laneway.storage.records import ToolCallSettled

QUICK = {"abort_grace_s": 0.02, "abandon_after_s": 0.02}
NEVER = {"abort_grace_s": 1000.0, "abandon_after_s": 1000.0}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World("memory", tmp_path)
    yield world
    await world.close()


async def stubborn(gate: Gate) -> None:
    """Waits at the gate, whoever cancels."""
    while not gate._open.is_set():
        try:
            await gate.wait()
        except asyncio.CancelledError:
            continue


def results(world: World) -> list[ToolCallSettled]:
    return [record for record in world.records() if isinstance(record, ToolCallSettled)]


def raw(function: Any, effect: Any = "uncertain", **more: Any) -> Tool:
    return Tool.raw("charge", function, effect=effect, **more)


@pytest.mark.requirement("DUR-009", "DUR-012")
@pytest.mark.parametrize(("effect", "evidence"), [("uncertain", 1), ("idempotent", 0)])
async def test_a_tool_that_swallows_its_cancellation_is_left_behind(stored: World, effect: Any, evidence: int) -> None:
    """F18: the submission settles aborted with its evidence, later work runs, and a late result changes nothing."""
    gate = Gate()

    async def charge(ctx: ToolContext, arguments: Any) -> str:
        await stubborn(gate)
        stored.supplier.book("late", ctx.call_id)
        return "too late"

    script = Script(calls(call("charge")), "no")
    process = await stored.process(agent_of(script, raw(charge, effect)), **QUICK)
    receipt, behind = await process.submit("go"), await process.submit("next")
    await gate.reached()
    assert (process.host.stats()["stained"], process.host.stats()["adrift"]) == (False, 0)
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    assert stored.tags().count("tool_call_unknown") == evidence
    stats = process.host.stats()
    assert (stats["abandoned_effects"], stats["adrift"], stats["stained"]) == (1, 1, True)
    before = stored.batches()
    gate.open()
    assert (await process.settled(behind)).outcome == "completed"
    await until(lambda: stored.supplier.count("late") == 2)
    await process.at_rest()
    assert stored.batches()[: len(before)] == before
    (settled,) = results(stored)  # of the submission behind, which nobody ended
    assert settled.result == "too late"
    await until(lambda: not process.host.stats()["stained"])
    assert process.host.stats()["abandoned_effects"] == 1
    stored.converged()


@pytest.mark.requirement("DUR-012")
async def test_a_tool_that_blocks_its_thread_holds_up_no_abort(world: World) -> None:
    """F18: it never looks at the signal, so the abort waits for nothing; that it runs on is seen and counted later."""
    gate = Gate()

    @tool(effect="uncertain")
    def block() -> str:
        gate.block()
        return "woken"

    process = await world.process(
        agent_of(Script(calls(call("block")), "no"), block), abort_grace_s=1000.0, abandon_after_s=0.02
    )
    receipt = await process.submit("go")
    await gate.reached()
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    assert world.tags().count("tool_call_unknown") == 1
    await until(lambda: process.host.stats()["stained"])
    assert process.host.stats()["abandoned_effects"] == 1
    gate.open()
    await until(lambda: not process.host.stats()["stained"])
    assert results(world) == []
    world.converged()


@pytest.mark.requirement("DUR-012")
@pytest.mark.parametrize("how", ["awaits", "blocks", "looks"])
async def test_a_tool_that_looks_at_the_signal_ends_by_itself_and_its_result_is_kept(world: World, how: str) -> None:
    """It is set when the abort is durable, and what the tool says before its grace is over is no unknown outcome."""
    seen: list[str] = []
    started = Gate()

    async def awaits(ctx: ToolContext, arguments: Any) -> str:
        started._reached.set()
        await ctx.aborted.wait()
        seen.extend(world.tags())
        return "cancelled at the bank"

    def blocks(ctx: ToolContext, arguments: Any) -> str:
        started._loop.call_soon_threadsafe(started._reached.set)
        assert ctx.aborted.wait_blocking(10)
        seen.extend(world.tags())
        return "cancelled at the bank"

    async def looks(ctx: ToolContext, arguments: Any) -> str:
        while not ctx.aborted:
            started._reached.set()
            await asyncio.sleep(0)
        seen.extend(world.tags())
        await asyncio.sleep(0)
        return "cancelled at the bank"

    function = {"awaits": awaits, "blocks": blocks, "looks": looks}[how]
    process = await world.process(agent_of(Script(calls(call("charge")), "no"), raw(function)), **NEVER)
    receipt = await process.submit("go")
    await started.reached()
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    assert seen[-1] == "abort_requested"
    assert [result.result for result in results(world)] == ["cancelled at the bank"]
    assert "tool_call_unknown" not in world.tags()
    assert not process.host.stats()["stained"]
    world.converged()


async def test_a_tool_that_looks_and_does_not_end_is_cancelled_after_its_grace(world: World) -> None:
    gate, cancelled = Gate(), list[str]()

    async def charge(ctx: ToolContext, arguments: Any) -> str:
        assert not ctx.aborted
        try:
            await gate.wait()
        except asyncio.CancelledError:
            cancelled.append("aborted" if ctx.aborted else "?")
            raise
        return "paid"

    process = await world.process(
        agent_of(Script(calls(call("charge")), "no"), raw(charge)), abort_grace_s=0.02, abandon_after_s=1000.0
    )
    receipt = await process.submit("go")
    await gate.reached()
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    assert cancelled == ["aborted"]
    assert not process.host.stats()["stained"]


async def test_what_is_raised_at_a_cancellation_is_nobodys_failure(world: World) -> None:
    """An uncertain call whose client turns a cancellation into its own error is unknown, not failed."""
    gate = Gate()

    async def charge(ctx: ToolContext, arguments: Any) -> str:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            raise ConnectionError("the stream was closed") from None
        return "paid"

    process = await world.process(agent_of(Script(calls(call("charge")), "no"), raw(charge)), **NEVER)
    receipt = await process.submit("go")
    await gate.reached()
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    assert world.tags().count("tool_call_unknown") == 1
    assert results(world) == []


@pytest.mark.requirement("DUR-012")
async def test_a_model_that_swallows_its_cancellation_is_left_behind(world: World) -> None:
    """Neither its answer nor what it still streams reaches anybody."""
    gate, late = Gate(), asyncio.Event()

    async def respond(request: Any, emit: Any) -> str:
        if request.queue_sequence == 2:
            return "the next one"
        await stubborn(gate)
        emit(Delta(kind="text", text="late"))
        late.set()
        return "too late"

    agent = agent_of(Script(), model=FunctionModel(respond, name="stubborn"))
    process = await world.process(agent, record_deltas=True, **QUICK)
    receipt = await process.submit("go")
    await gate.reached()
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    assert process.host.stats()["stained"]
    deltas = process.host._lanes["c"].feed.version
    gate.open()
    async with asyncio.timeout(10):
        await late.wait()
    await asyncio.sleep(0)
    assert process.host._lanes["c"].feed.version == deltas
    assert (await process.run("next")).text == "the next one"
    assert "model_delta_recorded" not in world.tags()
    world.converged()


@pytest.mark.parametrize("what", ["tool", "model", "run"])
async def test_what_ignores_that_its_time_is_up_is_left_behind(world: World, what: str) -> None:
    """A timeout, the run's and the call's own, ends as an abort does: the lane never waits for good."""
    gate = Gate()

    async def charge(ctx: ToolContext, arguments: Any) -> str:
        await stubborn(gate)
        return "too late"

    async def respond(request: Any) -> Any:
        await stubborn(gate)
        return "too late"

    timeout_s = 0.02
    if what == "model":
        agent = agent_of(Script(respond), model_timeout_s=timeout_s, model_attempts_max=2)
    elif what == "run":
        agent = agent_of(Script(calls(call("charge")), "no"), raw(charge, "idempotent"), run_timeout_s=timeout_s)
    else:
        agent = agent_of(Script(calls(call("charge")), "sorry"), raw(charge, "idempotent", timeout_s=timeout_s))
    process = await world.process(agent, **QUICK)
    settlement = await process.run("go")
    codes = {"tool": None, "model": "model_timeout", "run": "run_timeout"}
    assert (settlement.error or {}).get("code") == codes[what]
    assert settlement.text == ("sorry" if what == "tool" else None)
    assert process.host.stats()["abandoned_effects"] == (2 if what == "model" else 1)
    before = world.batches()
    gate.open()
    await until(lambda: not process.host.stats()["stained"])
    await process.at_rest()
    assert world.batches() == before
    world.converged()


@pytest.mark.requirement("DUR-009")
async def test_an_uncertain_tool_that_ignores_its_timeout_is_unknown(world: World) -> None:
    gate = Gate()

    async def charge(ctx: ToolContext, arguments: Any) -> str:
        await stubborn(gate)
        return "too late"

    agent = agent_of(Script(calls(call("charge")), "no"), raw(charge, timeout_s=0.02))
    process = await world.process(agent, **QUICK)
    receipt = await process.submit("go")
    await process.at_rest()
    assert world.row(receipt).state is State.UNKNOWN
    gate.open()
    await until(lambda: not process.host.stats()["stained"])
    assert results(world) == []
    world.converged(require_settled=False)


@pytest.mark.requirement("DUR-009", "DUR-012")
async def test_an_abort_does_not_wait_for_proof(world: World) -> None:
    """The reconciler may ask a slow provider: the call is unknown to the abort, and its evidence stays."""
    seeking, cancelled = Gate(), list[str]()

    async def charge(ctx: ToolContext, arguments: Any) -> str:
        await Gate().wait()
        raise AssertionError("unreachable")

    async def prove(ctx: ToolContext, arguments: Any) -> None:
        try:
            await seeking.wait()
        except asyncio.CancelledError:
            cancelled.append(ctx.call_id)
            raise

    slow = raw(charge, timeout_s=1000.0, reconcile=prove)
    agent = agent_of(Script(calls(call("charge")), "no"), slow)
    first = await world.process(agent)
    receipt = await first.submit("go")
    await until(lambda: "tool_call_prepared" in world.tags())
    await world.kill(first)
    second = await world.process(agent)
    await second.recover()
    await seeking.reached()
    await second.abort(receipt)
    assert (await second.settled(receipt)).outcome == "aborted"
    assert len(cancelled) == 1
    assert world.tags().count("tool_call_unknown") == 1
    world.converged()


async def test_a_lane_that_is_closed_waits_for_nobody_for_good(world: World) -> None:
    gate = Gate()

    async def charge(ctx: ToolContext, arguments: Any) -> str:
        await stubborn(gate)
        return "too late"

    process = await world.process(agent_of(Script(calls(call("charge")), "no"), raw(charge)), **QUICK)
    receipt = await process.submit("go")
    await gate.reached()
    async with asyncio.timeout(10):
        await process.host.close()
    assert world.row(receipt).state is State.RUNNING
    gate.open()


async def test_a_result_that_comes_in_spite_of_the_close_is_recorded_and_not_driven_on(world: World) -> None:
    """It is a fact, and the work is released behind it; a closing lane asks no model."""
    gate = Gate()

    async def charge(ctx: ToolContext, arguments: Any) -> str:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            return "paid all the same"
        return "paid"

    script = Script(calls(call("charge")), "no", supplier=world.supplier)
    process = await world.process(agent_of(script, raw(charge, "idempotent")), **QUICK)
    receipt = await process.submit("go")
    await gate.reached()
    await process.host.close()
    assert world.supplier.count("model") == 1
    assert [found.result for found in results(world)] == ["paid all the same"]
    assert world.row(receipt).state is State.READY


# --- an abort that another process asked for --------------------------------------------------------------------------


@pytest.mark.requirement("DUR-012")
@pytest.mark.parametrize("what", ["tool", "model"])
async def test_the_sweep_tells_an_owner_of_an_abort_that_others_asked_for(stored: World, what: str) -> None:
    """K21: the owner does not wait for its next append, which may be a minute away."""
    gate, at_interruption = Gate(), list[str]()

    async def wait(*_: Any) -> str:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            at_interruption.extend(stored.tags())
            raise
        return "unreachable"

    steps = [wait] if what == "model" else [calls(call("charge")), "no"]
    agent = agent_of(Script(*steps), raw(wait, "idempotent"))
    owner, other = await stored.process(agent), await stored.process(agent)
    receipt = await owner.submit("go")
    await gate.reached()
    await owner.recover()  # a sweep with nothing to tell
    answer = await other.abort(receipt)
    assert answer.state is State.RUNNING
    await owner.recover()
    assert (await owner.settled(receipt)).outcome == "aborted"
    assert at_interruption[-1] == "abort_requested"
    assert stored.tags().count("abort_requested") == 1
    await owner.at_rest()
    stored.converged()


@pytest.mark.requirement("DUR-012")
async def test_an_abort_that_one_result_brings_ends_its_neighbours(world: World) -> None:
    """The answer to an append tells of it: a call that runs beside that one is not waited for."""
    gates = {"a": Gate(), "b": Gate()}

    async def wait(name: str) -> str:
        await gates[name].wait()
        return name

    def waiting(name: str) -> Tool:
        return Tool.raw(name, lambda ctx, arguments: wait(name), effect="idempotent", version="1")

    agent = agent_of(Script(calls(call("a"), call("b")), "no"), waiting("a"), waiting("b"))
    owner, other = await world.process(agent), await world.process(agent)
    receipt = await owner.submit("go")
    for gate in gates.values():
        await gate.reached()
    await other.abort(receipt)
    gates["a"].open()
    assert (await owner.settled(receipt)).outcome == "aborted"
    assert [result.result for result in results(world)] == ["a"]
    world.converged()


# --- a process that is to be replaced ---------------------------------------------------------------------------------


async def test_a_retired_host_ends_what_it_runs_and_claims_no_more(stored: World) -> None:
    """A planned end: nothing is interrupted, what is queued goes on elsewhere, and no attempt is spent on it."""
    gate = Gate()

    async def answer(request: Any) -> str:
        if request.queue_sequence == 1:
            await gate.wait()
        return f"answer {request.queue_sequence}"

    agent = agent_of(Script(answer))
    process, other = await stored.process(agent), await stored.process(agent)
    head, queued = await process.submit("one"), await process.submit("two")
    await gate.reached()
    assert process.host.retire() is False
    gate.open()
    assert (await process.settled(head)).text == "answer 1"
    await process.at_rest()
    await until(process.host.retire)
    visitor = await process.submit("three", conversation="new")
    assert [stored.row(receipt).state for receipt in (queued, visitor)] == [State.READY] * 2
    await process.recover()
    assert [stored.row(receipt).state for receipt in (queued, visitor)] == [State.READY] * 2
    await other.recover()
    assert (await process.settled(queued)).text == "answer 2"
    assert (await other.settled(visitor)).text == "answer 1"
    assert stored.row(queued).attempts == 1
    assert stored.decisions() == []
    stored.converged()
