"""The event loop behind a runtime: its end leaves no caller waiting."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import laneway
from laneway import Agent, FunctionModel, RuntimeUnreachable
from laneway.cluster.runtime_loop import RuntimeLoop


def _never_answers() -> tuple[Agent, threading.Event]:
    entered = threading.Event()

    async def never(request: Any) -> str:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    return Agent(name="a", model=FunctionModel(never)), entered


def test_whoever_waits_for_an_outcome_hears_that_the_runtime_was_stopped() -> None:
    """Threads in `result()` used to wait for ever, and kept their process from ending."""
    agent, entered = _never_answers()
    runtime = laneway.local(agent)
    receipt = runtime.conversation("c").submit("hi")
    assert entered.wait(10)
    with ThreadPoolExecutor(3) as threads:
        waits = [threads.submit(receipt.result) for _ in range(3)]
        runtime.stop()
        for wait in waits:
            with pytest.raises(RuntimeUnreachable) as told:
                wait.result(10)
            assert told.value.code == "runtime_stopped"


async def test_whoever_awaits_an_outcome_is_not_cancelled_by_a_stop() -> None:
    agent, entered = _never_answers()
    runtime = laneway.local(agent)
    receipt = await runtime.conversation("c").asubmit("hi")
    await asyncio.to_thread(entered.wait, 10)
    wait = asyncio.create_task(receipt.aresult())
    await asyncio.sleep(0)
    runtime.stop()
    with pytest.raises(RuntimeUnreachable, match="stopped"):
        async with asyncio.timeout(10):
            await wait


async def test_a_caller_that_is_cancelled_is_just_that() -> None:
    agent, _ = _never_answers()
    with laneway.local(agent) as runtime:
        receipt = await runtime.conversation("c").asubmit("hi")
        wait = asyncio.create_task(receipt.aresult())
        await asyncio.sleep(0)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait


def test_a_stopped_runtime_refuses_calls() -> None:
    runtime = laneway.local(_never_answers()[0])
    runtime.stop()
    with pytest.raises(RuntimeUnreachable, match="stopped"):
        runtime.conversation("c").submit("hi")


def test_calls_that_race_with_the_end_all_return() -> None:
    """Each call is carried out, ended or refused, wherever the end meets it."""
    for _ in range(50):
        loop = RuntimeLoop()
        start = threading.Barrier(5)

        def call(loop: RuntimeLoop = loop, start: threading.Barrier = start) -> bool:
            start.wait(10)
            try:
                loop.run(asyncio.Event().wait())
            except RuntimeUnreachable:
                return True
            return False

        with ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(call) for _ in range(4)]
            start.wait(10)
            loop.end()
            assert all(item.result(10) for item in calls)
