"""The actors of a runtime's store, one for each shard, all on the node that has the files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..actors.ray_calls import RAY_FAILURES, answered, named_actors
from ..actors.store_actor import RemoteStoreActor
from ..actors.supervisor_actor import RuntimePlan
from ..storage.errors import LanewayError
from ..storage.sharding import Shard, all_shards

STORE_NAME = "store"
_NAME = re.compile(rf"{STORE_NAME}(-\d+)?")
_PID_S = 15.0  # longer than the restart of a store's process
_CLOSE_S = 10.0


def store_names(taken: list[str]) -> list[str]:
    """The names of a runtime's stores among those that are taken in its namespace, in the order of the shards."""
    names = [name for name in taken if _NAME.fullmatch(name)]
    return sorted(names, key=lambda name: (len(name), name))


class RayStores:
    """The handles of all shards' actors."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.actors: list[Any] = []

    @property
    def handle(self) -> Any:
        """What other processes are given (`ray_calls.store_link`)."""
        return self.actors[0] if len(self.actors) == 1 else list(self.actors)

    def claim(self, plan: RuntimePlan, options: Mapping[str, Any]) -> None:
        """Create the first actor; its name is the runtime's, so that there is one in a namespace.

        Raises: LanewayError with code "runtime_exists".
        """
        try:
            self.actors = [_created(plan, Shard(0, plan.shards), options)]
        except ValueError as error:
            raise LanewayError(
                f"namespace {self._namespace} has a runtime already: use it, end it with `laneway down`, "
                "or name another namespace",
                code="runtime_exists",
                namespace=self._namespace,
            ) from error

    async def open(self, plan: RuntimePlan, options: Mapping[str, Any]) -> None:
        """Open all files. Raises: what opening a store raises; RayError."""
        answered(await self.actors[0].prepare.remote())
        self.actors.extend(_created(plan, shard, options) for shard in all_shards(plan.shards)[1:])
        for info in await asyncio.gather(*(actor.call.remote("info") for actor in self.actors)):
            answered(info)

    def find(self, named: Callable[[str], Any]) -> None:
        """The actors of a runtime that is up, by their names: all of them are there before its supervisor is."""
        self.actors = [named(name) for name in store_names(named_actors(self._namespace)) or [STORE_NAME]]

    async def pids(self) -> tuple[int | None, ...]:
        """Their processes; None for one that is being started again."""
        return tuple(await asyncio.gather(*(self._pid(actor) for actor in self.actors)))

    async def close(self) -> None:
        await asyncio.gather(*(self._close(actor) for actor in self.actors))

    async def _pid(self, actor: Any) -> int | None:
        try:
            async with asyncio.timeout(_PID_S):
                return await actor.pid.remote()
        except (TimeoutError, *RAY_FAILURES):
            return None

    async def _close(self, actor: Any) -> None:
        try:
            async with asyncio.timeout(_CLOSE_S):
                await actor.close.remote()
        except (TimeoutError, *RAY_FAILURES):
            pass  # its file is consistent at any moment; closing only shortens the next opening


def _created(plan: RuntimePlan, shard: Shard, options: Mapping[str, Any]) -> Any:
    name = f"{STORE_NAME}-{shard.index}" if shard.index else STORE_NAME
    return RemoteStoreActor.options(name=name, **options).remote(plan.store_path, plan.lane.limits, shard)
