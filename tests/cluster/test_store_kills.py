"""The StoreActor, killed while units are in flight; the file tells what each of them came to."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from failing_store import failing_store
from store_builders import Conversation, admit_ready, append_of, note

from laneway.actors.ray_calls import RayLink
from laneway.actors.store_client import StoreClient
from laneway.storage.commands import Accepted, Appended, Claim, Fence, Unit
from laneway.storage.duckdb_store import DuckDBStore
from laneway.storage.errors import StoreUnavailable
from laneway.storage.failpoints import Point

UNITS = 50
LANES = [f"c{number:02}" for number in range(UNITS)]
POINTS = {
    Point.APPEND_BEGUN: "out",
    Point.APPEND_BATCHES_WRITTEN: "out",
    Point.APPEND_ROWS_WRITTEN: "out",
    Point.BEFORE_COMMIT: "out",
    Point.AFTER_COMMIT: "in",
}
"""Where the store's process ends inside of a group commit, and whether the group's units are in then."""


def unit(lane: str, number: int) -> Unit:
    """The lane's batch `number`, from 0; its log ends there."""
    fence = Fence(token=f"tok_{lane}", epoch=1, expected_tail=number)
    append = append_of(f"sub_{lane}", note(f"{lane}/{number}", "x" * 500))
    return Unit(conversation_id=lane, commands=(append,), fence=fence)


@asynccontextmanager
async def store_of(path: Path, order: Path) -> AsyncIterator[tuple[Any, StoreClient]]:
    """A StoreActor with a claimed lane for each unit, and a client that is as patient as a lane's is."""
    actor = failing_store(path, order)
    client = StoreClient(RayLink(actor), random.Random(0))
    await client.read("renew_lease", "o1", 600_000)
    for lane in LANES:
        await client.commit(Unit(conversation_id=lane, commands=admit_ready(f"sub_{lane}")))
        claim = Claim(submission_id="", owner_id="o1", attempt_id=f"att_{lane}", token=f"tok_{lane}")
        await client.commit(Unit(conversation_id=lane, commands=(claim,)))
    try:
        yield actor, client
    finally:
        await client.close()
        await actor.close.remote()
        ray.kill(actor)


async def tails(client: StoreClient) -> set[int]:
    return {(await client.read("inspect_tail", lane)).sequence for lane in LANES}


def check_file(path: Path, length: int) -> None:
    """Each lane's log holds each of its batches once, in order, on an unbroken chain."""
    store = DuckDBStore(path)
    try:
        for lane in LANES:
            conversation = Conversation(store, lane)
            conversation.check_chain()
            bodies = [batch.body for batch in store.read_log(lane, limit=1024).batches]
            assert bodies == [append.body for append in (unit(lane, n).commands[0] for n in range(length))]
    finally:
        store.close()


@pytest.mark.requirement("DUR-007")
async def test_a_group_commit_is_wholly_in_or_wholly_out(ray_cluster: None, tmp_path: Path) -> None:
    """K23: SIGKILL inside of a group commit of 50 units, at each of its points; the callers repeat by batch id."""
    path, order = tmp_path / "store.duckdb", tmp_path / "order"
    async with store_of(path, order) as (actor, client):
        for number, (point, state) in enumerate(POINTS.items()):
            units = [unit(lane, number) for lane in LANES]
            order.write_text(point)
            with pytest.raises(StoreUnavailable):
                await RayLink(actor).commit(units)
            assert not order.exists(), point
            assert await tails(client) == {number + (state == "in")}, point
            answers = await asyncio.gather(*(client.commit(item) for item in units))
            appended = [answer.results[0] for answer in answers]
            assert all(isinstance(result, Appended) for result in appended)
            assert {result.replayed for result in appended if isinstance(result, Appended)} == {state == "in"}, point
            assert await tails(client) == {number + 1}, point
    check_file(path, len(POINTS))


@pytest.mark.requirement("DUR-007")
async def test_lanes_in_flight_go_on_when_the_store_is_killed(ray_cluster: None, tmp_path: Path) -> None:
    """K23: 50 lanes commit one batch after the other, while the store is killed from outside three times."""
    path = tmp_path / "store.duckdb"
    batches, kills = 120, (20, 50, 80)
    committed = dict.fromkeys(LANES, 0)
    async with store_of(path, tmp_path / "order") as (actor, client):

        async def work(lane: str) -> None:
            for number in range(batches):
                assert isinstance(await client.commit(unit(lane, number)), Accepted)
                committed[lane] = number + 1

        async def kill() -> list[int]:
            pids: list[int] = []
            for at in kills:
                while max(committed.values()) < at:  # noqa: ASYNC110 (what is waited for is a number)
                    await asyncio.sleep(0.001)
                pids.append(await actor.pid.remote())
                os.kill(pids[-1], signal.SIGKILL)
            return pids

        *_, pids = await asyncio.gather(*(work(lane) for lane in LANES), kill())
        assert len(set(pids)) == len(kills)
        assert await tails(client) == {batches}
    check_file(path, batches)
