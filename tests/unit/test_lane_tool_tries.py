"""A tool's own budget: a call that fails is tried again before the model reads of it (Specification 16)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lane_world import Script, World, agent_of, call, calls, until

from laneway import Tool, ToolError
from laneway.agents.tools import Effect
from laneway.storage.records import ToolCallSettled

FOREVER = {"tool_backoff_first_s": 1000.0, "tool_backoff_most_s": 1000.0}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World("memory", tmp_path)
    yield world
    await world.close()


def failing(world: World, failures: int, attempts_max: int, effect: Effect = "idempotent", **more: Any) -> Tool:
    """Fails so many times, each time with a message of its own."""

    async def book(ctx: Any, arguments: dict[str, Any]) -> str:
        world.supplier.book("book", ctx.idempotency_key)
        await ctx.step("ask", lambda: world.supplier.book("ask", ctx.call_id))
        if world.supplier.count("book") <= failures:
            raise ToolError(f"away ({world.supplier.count('book')})", code="supplier_away")
        return "booked"

    return Tool.raw("book", book, effect=effect, attempts_max=attempts_max, **more)


def settled_call(world: World) -> ToolCallSettled:
    (found,) = [record for record in world.records() if isinstance(record, ToolCallSettled)]
    return found


@pytest.mark.requirement("DUR-010", "DUR-014")
@pytest.mark.parametrize("effect", ["readonly", "idempotent"])
async def test_a_call_that_fails_is_tried_again_under_its_key(world: World, effect: Effect) -> None:
    process = await world.process(agent_of(Script(calls(call("book")), "done"), failing(world, 2, 3, effect)))
    assert (await process.run("go")).outcome == "completed"
    assert settled_call(world).result == "booked"
    assert list(world.supplier.keys("book").values()) == [3]
    assert world.supplier.count("ask") == 1
    stats = process.host.stats()
    assert (stats["tool_executions"], stats["tool_retries"]) == (3, 2)
    assert world.tags().count("tool_call_prepared") == 1
    world.converged()


@pytest.mark.requirement("DUR-014")
@pytest.mark.parametrize("attempts_max", [1, 2])
async def test_the_last_failure_is_told_when_the_budget_is_used_up(world: World, attempts_max: int) -> None:
    script = Script(calls(call("book")), "sorry")
    process = await world.process(agent_of(script, failing(world, 9, attempts_max)))
    assert (await process.run("go")).text == "sorry"
    error = settled_call(world).error
    assert error is not None
    assert (error.code, error.message) == ("supplier_away", f"away ({attempts_max})")
    assert f"away ({attempts_max})" in str(script.requests[-1].messages[-1]["content"])
    assert process.host.stats()["tool_executions"] == attempts_max
    world.converged()


async def test_a_call_without_an_answer_in_time_is_tried_again(world: World) -> None:
    async def look(ctx: Any, arguments: dict[str, Any]) -> str:
        world.supplier.book("look", ctx.idempotency_key)
        if world.supplier.count("look") == 1:
            await asyncio.Event().wait()
        return "found"

    tool = Tool.raw("look", look, effect="readonly", timeout_s=0.02, attempts_max=2)
    process = await world.process(agent_of(Script(calls(call("look")), "done"), tool))
    assert (await process.run("go")).outcome == "completed"
    assert settled_call(world).result == "found"
    world.converged()


@pytest.mark.requirement("DUR-012")
async def test_an_abort_ends_the_wait_between_two_tries(world: World) -> None:
    agent = agent_of(Script(calls(call("book")), "done"), failing(world, 9, 3))
    process = await world.process(agent, **FOREVER)
    receipt = await process.submit("go")
    await until(lambda: process.host.stats().get("tool_retries") == 1)
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    assert world.supplier.count("book") == 1
    world.converged()


async def test_the_deadline_of_the_run_ends_the_wait_between_two_tries(world: World) -> None:
    agent = agent_of(Script(calls(call("book")), "done"), failing(world, 9, 3), run_timeout_s=0.1)
    process = await world.process(agent, **FOREVER)
    settled = await process.run("go")
    assert settled.error is not None
    assert settled.error["code"] == "run_timeout"
    assert world.supplier.count("book") == 1
    world.converged()


@pytest.mark.requirement("DUR-014")
async def test_a_planned_stop_ends_the_wait_and_the_call_goes_on_elsewhere(world: World) -> None:
    agent = agent_of(Script(calls(call("book")), "done"), failing(world, 1, 2))
    first = await world.process(agent, drain_grace_s=1000.0, **FOREVER)
    receipt = await first.submit("go")
    await until(lambda: first.host.stats().get("tool_retries") == 1)
    await first.host.close()
    second = await world.process(agent)
    await second.recover()
    assert (await second.settled(receipt)).outcome == "completed"
    assert list(world.supplier.keys("book").values()) == [2]
    assert world.decisions() == []
    world.converged()


def test_a_budget_is_part_of_the_definition_only_where_it_is_set() -> None:
    async def book(ctx: Any, arguments: dict[str, Any]) -> str:
        return "booked"

    def digest(**more: Any) -> str:
        return Tool.raw("book", book, effect="idempotent", **more).digest

    assert digest() == digest(attempts_max=1)
    assert digest() != digest(attempts_max=2)
