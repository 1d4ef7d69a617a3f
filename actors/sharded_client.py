"""The shards of one store as one: each with its own commits under way, so that one which is away holds up no other."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from typing import Any

from ..storage.commands import Accepted, Answer, Unit
from ..storage.errors import NotFound, StoreUnavailable
from ..storage.sharding import BY_SUBMISSION, merged, places_by_shard, shard_asked, shard_of
from .store_client import StoreClient, StoreLink

_log = logging.getLogger("laneway.store")
_HOMES_MAX = 65_536  # submissions whose shard is remembered, about 100 bytes each; the others are looked for
_OTHERS_S = 1.0  # a shard that answers takes milliseconds; one that does not is told when it is back


class ShardedLink:
    """Links to all shards, in the order of their numbers, as a `StoreLink`."""

    def __init__(self, links: Sequence[StoreLink]) -> None:
        self.links = tuple(links)
        self._threads = ThreadPoolExecutor(len(self.links), thread_name_prefix="laneway-shards")
        self._under_way: dict[int, Future[Any]] = {}

    async def commit(self, units: list[Unit]) -> list[Answer]:
        places = places_by_shard(units, len(self.links))
        calls = (self.links[index].commit([units[place] for place in theirs]) for index, theirs in places.items())
        answers: dict[int, Answer] = {}
        for theirs, found in zip(places.values(), await asyncio.gather(*calls), strict=True):
            answers.update(zip(theirs, found, strict=True))
        return [answers[place] for place in range(len(units))]

    async def call(self, method: str, *args: Any) -> Any:
        """Every shard that is concerned is asked, whatever another one answers."""
        asked = shard_asked(method, args, len(self.links))
        if asked is not None:
            return await self.links[asked].call(method, *args)
        answers = await asyncio.gather(*(link.call(method, *args) for link in self.links), return_exceptions=True)
        return _settled(method, args, answers)

    def call_blocking(self, method: str, *args: Any) -> Any:
        """As `call`. A shard that still owes its answer to an earlier call is left out: a lease must not run out in
        the others for it."""
        asked = shard_asked(method, args, len(self.links))
        if asked is not None:
            return self.links[asked].call_blocking(method, *args)
        for index, link in enumerate(self.links):
            if index not in self._under_way or self._under_way[index].done():
                self._under_way[index] = self._threads.submit(link.call_blocking, method, *args)
        futures = [self._under_way[index] for index in range(len(self.links))]
        wait_for_futures(futures, timeout=_OTHERS_S)
        return _settled(method, args, [_outcome(index, future) for index, future in enumerate(futures)])

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for link in self.links:
            link.close()


class ShardedClient(StoreClient):
    """A `StoreClient` for each shard. What names a conversation goes to its shard; the rest is asked of all."""

    def __init__(self, link: ShardedLink, chance: random.Random) -> None:
        super().__init__(link, chance)
        self._clients = tuple(StoreClient(each, chance) for each in link.links)
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._behind = set[asyncio.Task[Any]]()

    @property
    def shards(self) -> tuple[StoreClient, ...]:
        return self._clients

    async def commit(self, unit: Unit) -> Accepted:
        index = shard_of(unit.conversation_id, len(self._clients))
        if unit.commands:
            self._remember(unit.commands[0].submission_id, index)
        return await self._clients[index].commit(unit)

    async def aborts_owed(self, conversation_id: str) -> list[str]:
        return await self._clients[shard_of(conversation_id, len(self._clients))].aborts_owed(conversation_id)

    async def read(self, method: str, *args: Any) -> Any:
        asked = shard_asked(method, args, len(self._clients))
        if asked is not None:
            return await self._clients[asked].read(method, *args)
        if method in BY_SUBMISSION:
            return await self._find(method, args[0])
        if method == "renew_lease":
            return await self._renew(*args)
        return merged(method, args, await asyncio.gather(*(client.read(method, *args) for client in self._clients)))

    async def close(self) -> None:
        for task in self._behind:
            task.cancel()
        await asyncio.gather(*self._behind, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients))

    async def _find(self, method: str, submission_id: str) -> Any:
        """The answer of the shard that knows the submission; that nobody knows it takes an answer of each."""
        home = self._homes.get(submission_id)
        if home is not None:
            return await self._clients[home].read(method, submission_id)
        tasks = [asyncio.ensure_future(self._asked(index, method, submission_id)) for index in self._indices()]
        try:
            for answer in asyncio.as_completed(tasks):
                index, found = await answer
                if found is not None:
                    self._remember(submission_id, index)
                    return found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return _not_found(method, submission_id)

    async def _asked(self, index: int, method: str, submission_id: str) -> tuple[int, Any]:
        try:
            return index, await self._clients[index].read(method, submission_id)
        except NotFound:
            return index, None

    async def _renew(self, owner_id: str, ttl_ms: int) -> int:
        """The lease in each shard; one that is away hears of the owner as soon as it is back."""
        reads = (client.read("renew_lease", owner_id, ttl_ms) for client in self._clients)
        tasks = [asyncio.get_running_loop().create_task(read) for read in reads]
        self._behind.update(tasks)
        for task in tasks:
            task.add_done_callback(self._heard)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        done, _ = await asyncio.wait(tasks, timeout=_OTHERS_S)
        ends = [task.result() for task in done if not task.cancelled() and task.exception() is None]
        return min(ends) if ends else next(iter(done)).result()

    def _heard(self, task: asyncio.Task[Any]) -> None:
        self._behind.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("a shard did not take the lease: %s", error)

    def _indices(self) -> range:
        return range(len(self._clients))

    def _remember(self, submission_id: str, index: int) -> None:
        self._homes[submission_id] = index
        if len(self._homes) > _HOMES_MAX:
            self._homes.popitem(last=False)


def store_client(link: StoreLink, chance: random.Random) -> StoreClient:
    """The client for a link, whether to one store or to the shards of one."""
    return ShardedClient(link, chance) if isinstance(link, ShardedLink) else StoreClient(link, chance)


def _outcome(index: int, future: Future[Any]) -> Any:
    if not future.done():
        return StoreUnavailable(f"shard {index} gives no answer")
    return future.exception() or future.result()


def _settled(method: str, args: Sequence[Any], answers: Sequence[Any]) -> Any:
    """One answer from all, errors among them. Raises: the first of these, where it matters."""
    if method in BY_SUBMISSION:
        found = [answer for answer in answers if answer is not None and not isinstance(answer, BaseException)]
        if found:
            return found[0]
        answers = [answer for answer in answers if not isinstance(answer, NotFound)]
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return _not_found(method, args[0]) if method in BY_SUBMISSION else merged(method, args, answers)


def _not_found(method: str, submission_id: str) -> None:
    if method == "snapshot":
        raise NotFound(f"no submission {submission_id}", submission_id=submission_id)
