"""Durable steps in a lane: recorded once under the attempt's fence, committed before they are returned (DUR-010)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from lane_world import Gate, Script, Trouble, World, agent_of, call, calls, until

from laneway import Completed, SafeToRetry, Tool, ToolContext, tool
from laneway.actors.lane import facts
from laneway.storage.commands import Append, Unit
from laneway.storage.ledger import State
from laneway.storage.records import RepairAnnotated, StepSettled, ToolCallSettled
from laneway.storage.values import DEFAULT_LIMITS


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World("memory", tmp_path)
    yield world
    await world.close()


def steps(world: World) -> list[StepSettled]:
    return [record for record in world.records() if isinstance(record, StepSettled)]


def results(world: World) -> list[ToolCallSettled]:
    return [record for record in world.records() if isinstance(record, ToolCallSettled)]


def working(function: Callable[..., Any], effect: Any = "idempotent", **more: Any) -> Any:
    work = Tool.raw("work", function, effect=effect, version="1", **more)
    return agent_of(Script(calls(call("work")), "done"), work)


@pytest.mark.requirement("DUR-010")
async def test_a_step_is_committed_before_its_value_is_returned(stored: World) -> None:
    seen: list[list[Any]] = []

    async def work(ctx: ToolContext, arguments: Any) -> Any:
        first = await ctx.step("charge", lambda: (1, {"b": 2, "a": None}))
        seen.append([record.result for record in steps(stored)])
        first[1]["a"] = "the tool's own copy"
        again = await ctx.step("charge", lambda: stored.supplier.book("charge", "again"))
        other = await ctx.step("charge", lambda: "of another version", version=2)
        return [again, other]

    process = await stored.process(working(work))
    assert (await process.run("go")).outcome == "completed"
    assert seen == [[[1, {"a": None, "b": 2}]]]
    assert results(stored)[0].result == [[1, {"a": None, "b": 2}], "of another version"]
    assert stored.supplier.count("charge") == 0
    found = [(step.name, step.version, step.step_id) for step in steps(stored)]
    call_id = results(stored)[0].call_id
    assert found == [("charge", version, facts.step_id_of(call_id, "charge", version)) for version in (1, 2)]
    stored.converged()


@pytest.mark.requirement("DUR-010")
async def test_sync_tools_record_steps_from_their_thread(world: World) -> None:
    threads: list[str] = []

    def one() -> str:
        threads.append(threading.current_thread().name)
        return "one"

    @tool(effect="idempotent")
    def work(ctx: ToolContext) -> list[str]:
        threads.append(threading.current_thread().name)
        first, again = ctx.step_sync("one", one), ctx.step_sync("one", one)
        other_loop = asyncio.run(ctx.step("two", lambda: "two"))
        return [first, again, other_loop]

    process = await world.process(agent_of(Script(calls(call("work")), "done"), work))
    assert (await process.run("go")).outcome == "completed"
    assert results(world)[0].result == ["one", "one", "two"]
    assert threads == ["laneway-work"] * 2
    assert [step.result for step in steps(world)] == ["one", "two"]


async def test_a_sync_step_on_the_event_loop_says_what_to_do(world: World) -> None:
    async def work(ctx: ToolContext, arguments: Any) -> Any:
        return ctx.step_sync("one", lambda: 1)

    process = await world.process(working(work))
    await process.run("go")
    error = results(world)[0].error
    assert error is not None
    assert error.code == "step_would_block"
    assert steps(world) == []


@pytest.mark.requirement("DUR-010")
async def test_only_success_is_recorded(world: World) -> None:
    """A failing body comes out in the tool, which may try the step again; nothing of the failure is kept."""
    tries: list[int] = []

    def charge() -> str:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ConnectionError("busy")
        return "charged"

    async def work(ctx: ToolContext, arguments: Any) -> Any:
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await ctx.step("charge", charge)
        assert steps(world) == []
        return await ctx.step("charge", charge)

    process = await world.process(working(work))
    await process.run("go")
    assert (results(world)[0].result, len(tries), len(steps(world))) == ("charged", 3, 1)


@pytest.mark.requirement("DUR-010")
async def test_of_concurrent_executions_the_first_committed_one_wins(stored: World) -> None:
    """F17: each one runs, one result stands, and all of them get that one; another one is refused and on record."""
    gates = [Gate(), Gate()]

    async def work(ctx: ToolContext, arguments: Any) -> Any:
        async def body(number: int) -> str:
            stored.supplier.book("step", str(number))
            await gates[number].wait()
            return f"result {number}"

        racing = [asyncio.create_task(ctx.step("race", lambda n=n: body(n))) for n in (0, 1)]
        for gate in gates:
            await gate.reached()
        gates[1].open()
        second = await racing[1]
        gates[0].open()
        return [await racing[0], second]

    process = await stored.process(working(work))
    await process.run("go")
    assert results(stored)[0].result == ["result 1", "result 1"]
    assert [step.result for step in steps(stored)] == ["result 1"]
    assert stored.supplier.count("step") == 2
    assert process.host.stats()["step_results_dropped"] == 1
    (dropped,) = [record for record in stored.records() if isinstance(record, RepairAnnotated)]
    assert (dropped.subject, "was dropped" in dropped.note) == (steps(stored)[0].step_id, True)
    stored.converged()


@pytest.mark.requirement("DUR-010")
@pytest.mark.parametrize("how", ["before", "after"])
async def test_the_commit_of_a_step_fails_once(stored: World, how: str) -> None:
    """F10: the same result is written on retry; the step and its tool run once."""
    trouble = Trouble(at=3, how=how)  # the submission, then the declared call with its preparation, then the step

    async def work(ctx: ToolContext, arguments: Any) -> Any:
        stored.supplier.book("work", "x")
        return await ctx.step("charge", lambda: stored.supplier.book("charge", "x"))

    process = await stored.process(working(work), trouble=trouble)
    assert (await process.run("go")).outcome == "completed"
    assert trouble.lost == 1
    assert any(
        "step_settled" in command.body
        for unit in process.link.units
        for command in unit.commands
        if isinstance(command, Append)
    )
    assert (stored.supplier.count("work"), stored.supplier.count("charge"), len(steps(stored))) == (1, 1, 1)
    await process.at_rest()
    stored.converged()


@pytest.mark.requirement("DUR-006", "DUR-010")
async def test_a_fenced_attempt_records_no_step_and_ends(stored: World) -> None:
    """K22 for steps: the stale attempt's result is refused; the new owner's is the recorded one."""
    gate = Gate()

    def agent(name: str, wait: bool) -> Any:
        async def work(ctx: ToolContext, arguments: Any) -> Any:
            async def charge() -> str:
                stored.supplier.book("charge", name)
                if wait:
                    await gate.wait()
                return name

            try:
                return await ctx.step("charge", charge)
            except Exception as error:
                stored.supplier.book("refused", type(error).__name__)
                await Gate().wait()  # a tool may swallow what it likes, and its attempt ends all the same
                raise AssertionError("unreachable") from error

        return working(work)

    held = await stored.process(agent("stale", True))
    receipt = await held.submit("go")
    await gate.reached()
    stored.store.retire_owner(held.host.owner_id)
    owner = await stored.process(agent("fresh", False))
    await owner.recover()
    assert (await owner.settled(receipt)).outcome == "completed"
    finished = stored.batches()
    gate.open()
    await held.at_rest()
    assert stored.batches() == finished
    assert [step.result for step in steps(stored)] == ["fresh"]
    assert results(stored)[0].result == "fresh"
    assert stored.supplier.keys("refused") == {"Fenced": 1}
    stored.converged()


@pytest.mark.requirement("DUR-010")
async def test_a_call_that_is_over_records_no_more_steps(world: World) -> None:
    """Its thread outlived its time: what it does then changes nothing, and the run goes on undisturbed."""
    gate, late = Gate(), list[str]()

    @tool(effect="idempotent", timeout_s=0.02)
    def work(ctx: ToolContext) -> str:
        gate.block()
        try:
            return ctx.step_sync("late", lambda: "late")
        except Exception as error:
            late.append(getattr(error, "code", "?"))
            raise

    process = await world.process(agent_of(Script(calls(call("work")), "sorry"), work))
    assert (await process.run("go")).text == "sorry"
    gate.open()
    await until(lambda: late)
    assert late == ["call_over"]
    assert steps(world) == []
    world.converged()


@pytest.mark.requirement("DUR-010")
async def test_a_commit_that_its_caller_no_longer_awaits_is_whole(world: World) -> None:
    """The tool's time is up while its step is on the way to the store: the record stands, once, and the view knows."""
    held = Gate()

    async def hold(units: list[Unit]) -> None:
        if any("step_settled" in getattr(c, "body", "") for unit in units for c in unit.commands):
            await held.wait()

    async def work(ctx: ToolContext, arguments: Any) -> Any:
        return await ctx.step("charge", lambda: "charged")

    process = await world.process(working(work, timeout_s=0.05))
    process.link.before_commit = hold
    receipt = await process.submit("go")
    await held.reached()
    lane = process.host._lanes["c"]
    await until(lambda: any(isinstance(s, ToolCallSettled) for s in lane._attempt._claimed.outbox._steps))  # type: ignore[union-attr]
    held.open()
    assert (await process.settled(receipt)).outcome == "completed"
    assert [step.result for step in steps(world)] == ["charged"]
    world.converged()


async def test_a_call_has_a_bounded_number_of_steps(world: World) -> None:
    async def work(ctx: ToolContext, arguments: Any) -> Any:
        done = [await ctx.step(f"step {number}", lambda n=number: n) for number in range(3)]
        assert await ctx.step("step 0", lambda: "not run") == 0
        await ctx.step("one more", lambda: world.supplier.book("step", "x"))
        return done

    limits = type(DEFAULT_LIMITS)(steps_per_call_max=3)
    process = await world.process(working(work), limits=limits)
    await process.run("go")
    error = results(world)[0].error
    assert error is not None
    assert "'one more'" in error.message
    assert "at most 3" in error.message
    assert (len(steps(world)), world.supplier.count("step")) == (3, 0)


@pytest.mark.requirement("DUR-009", "DUR-010")
@pytest.mark.parametrize("proof", ["none", "safe to retry", "completed"])
async def test_an_uncertain_tool_with_steps_is_entered_again_only_with_proof(world: World, proof: str) -> None:
    """A recorded step proves itself and nothing of what came behind it."""
    from laneway.storage.failpoints import Point

    async def work(ctx: ToolContext, arguments: Any) -> Any:
        world.supplier.book("work", ctx.call_id)
        charged = await ctx.step("charge", lambda: world.supplier.book("charge", "x") or "charged")
        mailed = await ctx.step("mail", lambda: world.supplier.book("mail", "x") or "mailed")
        return [charged, mailed]

    async def prove(ctx: ToolContext, arguments: Any) -> Any:
        return {"none": None, "safe to retry": SafeToRetry("by its key"), "completed": Completed("as it says")}[proof]

    world.failpoints.plan({Point.AFTER_STEP_SETTLED: 1})
    first = await world.process(working(work, "uncertain", reconcile=prove))
    begun = first.begin_submit("go")
    await first.crashed()
    await world.kill(first)
    begun.close()
    second = await world.process(working(work, "uncertain", reconcile=prove))
    await second.recover()
    await second.at_rest()
    (row,) = world.store.list_rows("c")
    assert world.decisions() == ["reconcile"]
    assert world.supplier.count("charge") == 1
    assert world.supplier.count("mail") == (1 if proof == "safe to retry" else 0)
    assert world.supplier.count("work") == (2 if proof == "safe to retry" else 1)
    assert row.state is (State.UNKNOWN if proof == "none" else State.COMPLETED)
    world.converged(require_settled=proof != "none")


@pytest.mark.requirement("DUR-010", "DUR-014")
async def test_a_recorded_step_is_progress(world: World) -> None:
    """F3: a tool of many steps survives more losses than a run may have without anything new."""
    from laneway.storage.failpoints import Point

    async def work(ctx: ToolContext, arguments: Any) -> Any:
        for number in range(5):
            await ctx.step(f"{number}", lambda n=number: world.supplier.book("step", str(n)))
        return "all"

    agent = working(work)
    process = await world.process(agent, recoveries_max=1)
    world.failpoints.plan({Point.AFTER_STEP_SETTLED: 1})
    receipt = await process.submit("go", key="k")
    for _ in range(5):
        await process.crashed()
        await world.kill(process)
        world.failpoints.plan({Point.AFTER_STEP_SETTLED: 1})
        process = await world.process(agent, recoveries_max=1)
        await process.recover()
    assert (await process.settled(receipt)).outcome == "completed"
    assert world.supplier.keys("step") == {str(number): 1 for number in range(5)}
    world.converged()
