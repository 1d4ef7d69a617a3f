"""What a tool is handed, without a lane: steps in its own unit tests, a copy in another process, the signal to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import threading
from typing import Any

import pytest

from laneway import InvalidInput, ToolContext, ToolError
from laneway.actors.lane.steps import CallSteps


def a_context(**more: Any) -> ToolContext:
    values: dict[str, Any] = {
        "conversation_id": "c",
        "submission_id": "sub_1",
        "run_id": "run_1",
        "call_id": "call_1",
        "idempotency_key": "key_1",
        "queue_sequence": 1,
        "turn": 1,
        "position": 0,
        "attempt": 1,
        **more,
    }
    return ToolContext(**values)


@dataclasses.dataclass
class Money:
    amount: int


async def test_a_context_made_by_hand_runs_each_step_and_keeps_none() -> None:
    """A tool's own unit test needs no lane; what a step gives is JSON there, too."""
    ctx, ran = a_context(), list[str]()

    async def charge() -> Money:
        ran.append("async")
        return Money(3)

    def book() -> tuple[int, ...]:
        ran.append(threading.current_thread().name)
        return (1, 2)

    assert await ctx.step("charge", charge) == {"amount": 3}
    assert await ctx.step("charge", charge) == {"amount": 3}
    assert await ctx.step("book", book) == [1, 2]
    assert await ctx.step("late", lambda: charge()) == {"amount": 3}
    assert ctx.step_sync("book", book) == [1, 2]
    here = threading.current_thread().name
    assert ran == ["async", "async", "laneway-book", "async", here]


@pytest.mark.parametrize(
    ("name", "version", "field"),
    [
        ("", 1, "the name of a step"),
        ("n" * 257, 1, "the name of a step"),
        ("\ud800", 1, "the name of a step"),
        (7, 1, "the name of a step"),
        ("pay", 0, "version"),
        ("pay", True, "version"),
        ("pay", "1", "version"),
        ("pay", 2**63, "version"),
    ],
)
async def test_a_step_is_checked_before_it_runs(name: Any, version: Any, field: str) -> None:
    ran: list[str] = []
    with pytest.raises(InvalidInput) as caught:
        await a_context().step(name, lambda: ran.append("x"), version=version)
    with pytest.raises(InvalidInput) as caught_sync:
        a_context().step_sync(name, lambda: ran.append("x"), version=version)
    assert caught.value.details["field"] == caught_sync.value.details["field"] == field
    assert ran == []


@pytest.mark.parametrize("value", [float("nan"), object(), "\ud800", 2**64, "x" * (1 << 20)])
async def test_a_result_that_cannot_be_recorded_names_its_step(value: Any) -> None:
    """F25."""
    with pytest.raises(InvalidInput, match="'charge'") as caught:
        await a_context().step("charge", lambda: value)
    assert (caught.value.code, caught.value.details["field"]) == ("step_result_invalid", "charge")


async def test_a_sync_step_is_no_place_for_async_functions() -> None:
    async def charge() -> str:
        raise AssertionError("unreachable")

    for function in (charge, lambda: charge()):
        with pytest.raises(InvalidInput, match=r"ctx\.step"):
            a_context().step_sync("charge", function)


async def test_a_pickled_context_knows_its_call_and_runs_no_step() -> None:
    """A step that nobody can record must not look like one: a copy of a lane's context refuses it."""
    plain = pickle.loads(pickle.dumps(a_context()))
    assert plain == a_context()
    assert await plain.step("x", lambda: 1) == 1
    held: CallSteps = CallSteps.__new__(CallSteps)
    live = a_context(recorder=held)
    live.aborted.set()
    copy = pickle.loads(pickle.dumps(live))
    assert copy == live
    assert copy.aborted.is_set()
    assert dataclasses.replace(live, attempt=2).recorder is held
    ran: list[str] = []
    with pytest.raises(ToolError) as caught:
        await copy.step("x", lambda: ran.append("x"))
    with pytest.raises(ToolError) as caught_sync:
        copy.step_sync("x", lambda: ran.append("x"))
    assert caught.value.code == caught_sync.value.code == "step_detached"
    assert ran == []


async def test_the_signal_reaches_tasks_and_threads() -> None:
    signal = a_context().aborted
    assert not signal.watched
    assert not signal
    assert signal.watched
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(signal.wait_blocking(10)))
    thread.start()
    waiting = [asyncio.create_task(signal.wait()) for _ in range(3)]
    waiting[0].cancel()
    await asyncio.sleep(0)
    signal.set()
    signal.set()
    await asyncio.gather(*waiting[1:])
    await asyncio.to_thread(thread.join)
    assert seen == [True]
    assert signal
    await signal.wait()
    assert not a_context().aborted.wait_blocking(0)
