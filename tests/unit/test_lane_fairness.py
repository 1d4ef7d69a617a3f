"""A long queue beside short ones: lanes share the store by commits, whatever stands behind each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from lane_world import Gate, Script, World, agent_of

QUEUED = 5_000
OTHERS = 100


@pytest.mark.timeout(120)
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
async def test_a_long_queue_does_not_hold_up_its_neighbours(adapter: str, tmp_path: Path) -> None:
    """F15: a hundred lanes with one row each settle while the long one has got through a few of its own.

    Counted in work, not in time: between them, all lanes share each commit.
    """
    world = World(adapter, tmp_path)
    gate = Gate()

    async def answer(request: Any) -> str:
        if request.conversation_id == "long" and request.queue_sequence == 1:
            await gate.wait()
        return "done"

    process = await world.process(agent_of(Script(answer)))
    first = await process.submit("q", conversation="long")
    await gate.reached()
    for start in range(0, QUEUED, 1_000):
        await asyncio.gather(*(process.submit("q", conversation="long") for _ in range(start, start + 1_000)))
    gate.open()
    await process.settled(first)
    before = process.host.stats()["settled:completed"]
    commits = world.store.info().commits
    await asyncio.gather(*(process.run("q", conversation=f"c{number}") for number in range(OTHERS)))
    of_the_long_one = process.host.stats()["settled:completed"] - before - OTHERS
    spent = world.store.info().commits - commits
    assert of_the_long_one <= spent  # one of its rows a commit at most: never a burst of its own
    assert spent < OTHERS / 2  # the hundred share their commits, too
    await world.close()
