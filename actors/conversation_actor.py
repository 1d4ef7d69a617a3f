"""ConversationActor: a process that hosts lanes. A thin shell round `LaneHost`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from ..agents.authority import Act
from ..agents.registry import Registry
from ..storage.ids import derive_id, new_id
from .channel import ChannelAddress, ChannelServer
from .host import LaneHost
from .lane.settings import LaneSettings
from .quiet import quiet_process
from .ray_calls import actor_class, answering, from_pickle, kept_agents, node_address, node_id, store_link


def owner_of(name: str) -> str:
    """The owner id of the process of that name: a name is one process, so whom Ray still lists can be told from the
    owners that the store knows, whether or not they answer."""
    return derive_id("own", name)


CALLS: dict[str, Callable[..., Awaitable[Any]]] = {
    "submit": LaneHost.submit,
    "steer": LaneHost.steer,
    "settlement": LaneHost.settlement,
    "poll": LaneHost.poll,
    "abort": LaneHost.abort,
    "operate": LaneHost.operate,
    "decide": LaneHost.decide,
}
"""What a runtime's clients may call, over a channel or over Ray."""


class ConversationActor:
    """Hosts lanes for as long as its process lives; what it leaves open is recovered elsewhere."""

    def __init__(self, store: Any, namespace: str, import_paths: list[str], settings: LaneSettings) -> None:
        quiet_process()
        sys.path.extend(path for path in import_paths if path not in sys.path and os.path.isdir(path))
        name = ray.get_runtime_context().get_actor_name()
        registry = Registry(*from_pickle(kept_agents(namespace)))
        owner_id = owner_of(name) if name else new_id("own")
        self._host = LaneHost(store_link(store), registry, settings, owner_id=owner_id)
        self._ended = asyncio.Event()
        self._started: asyncio.Task[None] | None = None
        self._server = ChannelServer(self._carry_out)
        self._served: asyncio.Task[ChannelAddress] | None = None

    async def start(self) -> tuple[str, int]:
        """Take the lease, once however often it is asked; the owner's id and the process's pid.

        A supervisor that finds the process asks again: the one that created it may have died before it could.
        """
        if self._started is None:
            self._started = asyncio.get_running_loop().create_task(self._host.start())
        await asyncio.shield(self._started)
        return self._host.owner_id, os.getpid()

    async def identity(self) -> tuple[str, int, list[str]]:
        """Owner, pid and the conversations that are resident here."""
        return self._host.owner_id, os.getpid(), self._host.resident()

    async def node(self) -> str:
        return node_id()

    async def until_end(self) -> None:
        """Stays pending while the process lives: its failure is how a death is noticed."""
        await self._ended.wait()

    async def channel(self) -> ChannelAddress:
        """Where this process serves its channel; the secret goes to whom Ray lets in."""
        if self._served is None:
            self._served = asyncio.get_running_loop().create_task(self._server.start(node_address()))
        return await self._served

    async def _carry_out(self, method: str, args: tuple[Any, ...]) -> Any:
        return await CALLS[method](self._host, *args)

    @answering
    async def call(self, method: str, *args: Any) -> Any:
        """One of `CALLS`, for whom no channel can be had."""
        return await self._carry_out(method, args)

    @answering
    async def activate(self, conversation_ids: list[str]) -> None:
        await self._host.activate(conversation_ids)

    @answering
    async def permit(self, act: Act) -> None:
        await self._host.permit(act)

    async def stats(self) -> dict[str, Any]:
        return {"pid": os.getpid(), **self._host.stats()}

    async def retire(self) -> bool:
        """Take nothing new; whether nothing is at work any longer."""
        return self._host.retire()

    async def close(self) -> None:
        """Release the lanes at safe boundaries and give the lease back."""
        await self._host.close()
        self._server.close()
        self._ended.set()


RemoteConversationActor: Any = actor_class(ConversationActor, max_restarts=0, max_concurrency=100_000)
"""`ConversationActor` as Ray creates it; each waiting caller is one of its concurrent calls."""
