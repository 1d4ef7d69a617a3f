"""A store's shards behind one client: what one of them answers late, or not at all, concerns nobody else."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from store_builders import admission

from laneway.actors.sharded_client import ShardedClient, ShardedLink, store_client
from laneway.actors.store_client import LocalLink, StoreClient
from laneway.storage.commands import Answer, MarkReady, Materialize, Unit
from laneway.storage.errors import NotFound, StoreUnavailable
from laneway.storage.memory_store import MemoryStore
from laneway.storage.sharding import shard_of

SHARDS = 3
NAMES = [f"c{number}" for number in range(9)]
ABSENT = next(name for name in NAMES if shard_of(name, SHARDS) == 0)
PRESENT = next(name for name in NAMES if shard_of(name, SHARDS) == 1)


class ShardLink:
    """One shard in memory, which a test takes away and gives back."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.back = asyncio.Event()
        self.back.set()
        self.thread_may_go = threading.Event()
        self.thread_may_go.set()
        self.calls: Counter[str] = Counter()
        self.groups: list[int] = []

    async def commit(self, units: list[Unit]) -> list[Answer]:
        self.groups.append(len(units))
        await self.back.wait()
        return self.store.commit(units)

    async def call(self, method: str, *args: Any) -> Any:
        self.calls[method] += 1
        await self.back.wait()
        return getattr(self.store, method)(*args)

    def call_blocking(self, method: str, *args: Any) -> Any:
        self.calls[method] += 1
        self.thread_may_go.wait(30)
        return getattr(self.store, method)(*args)

    def close(self) -> None:
        self.thread_may_go.set()


class Shards:
    def __init__(self) -> None:
        self.links = [ShardLink() for _ in range(SHARDS)]
        self.link = ShardedLink(self.links)
        self.client = ShardedClient(self.link, random.Random(1))


@pytest.fixture
async def shards() -> AsyncIterator[Shards]:
    found = Shards()
    yield found
    await found.client.close()
    found.link.close()


def unit(name: str) -> Unit:
    ready = (Materialize(submission_id=f"sub_{name}"), MarkReady(submission_id=f"sub_{name}"))
    return Unit(conversation_id=name, commands=(admission(f"sub_{name}"), *ready))


async def test_each_unit_is_committed_in_its_shard_together_with_its_neighbours_there(shards: Shards) -> None:
    await asyncio.gather(*(shards.client.commit(unit(name)) for name in NAMES))
    for index, link in enumerate(shards.links):
        assert link.store.list_conversations() == [name for name in NAMES if shard_of(name, SHARDS) == index]
        assert len(link.groups) == 1
    assert await shards.client.read("list_conversations", "", 100) == NAMES
    assert [row.conversation_id for row in await shards.client.read("list_rows", ABSENT)] == [ABSENT]
    assert [link.calls["list_rows"] for link in shards.links] == [1, 0, 0]


async def test_a_shard_that_is_away_holds_up_its_own_conversations_alone(shards: Shards) -> None:
    shards.links[0].back.clear()
    waiting = asyncio.create_task(shards.client.commit(unit(ABSENT)))
    await asyncio.gather(*(shards.client.commit(unit(name)) for name in NAMES if shard_of(name, SHARDS) != 0))
    assert not waiting.done()
    shards.links[0].back.set()
    await waiting
    assert await shards.client.aborts_owed(ABSENT) == []


async def test_a_submission_is_found_whichever_shard_is_away(shards: Shards) -> None:
    """Who has committed it knows its shard; another process asks all of them, and the first that knows it is enough."""
    await asyncio.gather(*(shards.client.commit(unit(name)) for name in NAMES))
    shards.links[0].back.clear()
    other = ShardedClient(shards.link, random.Random(2))
    for client, asked in ((shards.client, 0), (other, 1), (other, 1)):
        row = await client.lookup(f"sub_{PRESENT}")
        assert row is not None
        assert row.conversation_id == PRESENT
        assert shards.links[2].calls["lookup"] == asked
    nobody = asyncio.create_task(other.snapshot("sub_unheard"))
    missing = asyncio.create_task(other.lookup("sub_unheard"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not nobody.done()
    assert not missing.done()
    shards.links[0].back.set()
    with pytest.raises(NotFound):
        await nobody
    assert await missing is None
    await other.close()


async def test_a_lease_is_taken_where_it_can_be_and_where_not_it_is_told_later(shards: Shards) -> None:
    shards.links[0].back.clear()
    await shards.client.read("renew_lease", "own_1", 10_000)
    assert [list(link.store.owners()) for link in shards.links] == [[], ["own_1"], ["own_1"]]
    shards.links[0].back.set()
    while not shards.links[0].store.owners():  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert set(await shards.client.read("owners")) == {"own_1"}


async def test_a_lease_is_renewed_by_a_thread_while_a_shard_owes_its_answer(shards: Shards) -> None:
    first = shards.links[0]
    first.thread_may_go.clear()
    for times in (1, 2):
        with pytest.raises(StoreUnavailable):
            await asyncio.to_thread(shards.link.call_blocking, "renew_lease", "own_1", 10_000)
        assert [link.calls["renew_lease"] for link in shards.links] == [1, times, times]
    first.thread_may_go.set()
    while not first.store.owners():  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert await asyncio.to_thread(shards.link.call_blocking, "renew_lease", "own_1", 10_000) > 0


async def test_a_link_to_all_shards_is_a_link(shards: Shards) -> None:
    answers = await shards.link.commit([unit(name) for name in NAMES])
    assert len(answers) == len(NAMES)
    row = await shards.link.call("lookup", f"sub_{PRESENT}")
    assert row.conversation_id == PRESENT
    assert await shards.link.call("lookup", "sub_unheard") is None
    with pytest.raises(NotFound):
        await shards.link.call("snapshot", "sub_unheard")
    assert (await shards.link.call("snapshot", f"sub_{ABSENT}")).row.conversation_id == ABSENT
    await shards.link.call("quarantine", ABSENT, "looks odd", "ann")
    assert [held.conversation_id for held in await shards.link.call("quarantined")] == [ABSENT]
    assert len(shards.link.call_blocking("list_rows", PRESENT)) == 1


async def test_one_shard_has_a_client_as_ever() -> None:
    link = LocalLink(MemoryStore())
    client = store_client(link, random.Random(1))
    assert type(client) is StoreClient
    assert client.shards == (client,)
    assert type(store_client(ShardedLink([link, link]), random.Random(1))) is ShardedClient
    link.close()
