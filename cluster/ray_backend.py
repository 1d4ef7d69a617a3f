"""The runtime on Ray: detached actors in one namespace, found by their names."""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import ActorDiedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..actors.ray_calls import (
    RAY_FAILURES,
    answered,
    drop_agents,
    keep_agents,
    named_actors,
    node_id,
    store_link,
    to_pickle,
)
from ..actors.sharded_client import store_client
from ..actors.store_client import StoreClient, StoreLink
from ..actors.supervisor_actor import RemoteSupervisorActor, RuntimePlan
from ..agents.agent import Agent
from ..agents.authority import Authorize
from ..agents.registry import Registry
from ..storage.errors import RuntimeUnreachable, StoreUnavailable
from ..storage.values import DEFAULT_LIMITS, Limits
from .backend import ActorInfo, Description, HostGone, quarantined_count
from .ray_host import ANSWER_S, RayHost
from .ray_stores import STORE_NAME, RayStores
from .settings import Settings

SUPERVISOR_NAME = "supervisor"
_READ_PATIENCE_S = 60.0
_STOP_ASKED_S = 10.0  # what a live supervisor needs to answer at all, beyond the grace that calls in flight get
_NAMES_FREE_S = 15.0


class RayBackend:
    """Reaches a runtime by namespace; with a plan it makes one first."""

    def __init__(self, namespace: str, plan: RuntimePlan | None, agents: bytes, limits: Limits) -> None:
        self.limits = limits
        self._agents = agents
        self._namespace = namespace
        self._plan = plan
        self._supervisor: Any = None
        self._stores = RayStores(namespace)
        self._link: StoreLink | None = None
        self._reads: StoreClient | None = None
        self._hosts: dict[str, RayHost] = {}
        self._places: dict[str, RayHost] = {}
        self._agent_names = plan.agent_names if plan is not None else None

    @classmethod
    def launching(
        cls, agents: Sequence[Agent], store_path: Path, settings: Settings, authorize: Authorize | None = None
    ) -> RayBackend:
        """A runtime that `start` makes. Raises: InvalidInput for agents that do not fit together."""
        cpus = float(ray.cluster_resources().get("CPU", 1.0))
        plan = RuntimePlan(
            namespace=settings.namespace,
            agent_names=Registry(agents, authorize).names(),
            import_paths=[os.path.abspath(path) for path in sys.path],
            lane=settings.lane_settings(),
            max_actors=settings.actors_for(cpus),
            spare_actors=settings.spare_actors,
            sweep_s=settings.sweep_s,
            alerts=settings.alert_settings(),
            store_path=str(store_path),
            shards=settings.shards,
            has_check=authorize is not None,
        )
        return cls(settings.namespace, plan, to_pickle((list(agents), authorize)), plan.lane.limits)

    @classmethod
    def joining(cls, namespace: str) -> RayBackend:
        """A runtime that is up."""
        return cls(namespace, None, b"", DEFAULT_LIMITS)

    async def start(self) -> None:
        if self._plan is not None:
            await self._launch(self._plan)
        else:
            self._supervisor = self._named(SUPERVISOR_NAME)
            self._stores.find(self._named)
        self._link = store_link(self._stores.handle)
        self._reads = store_client(self._link, random.Random())

    async def stop(self, *, shut_down: bool) -> None:
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()
        self._places.clear()
        if self._reads is not None:
            await self._reads.close()
        if self._link is not None:
            self._link.close()
        await asyncio.sleep(0)  # an event loop that ends must have let go of the connections first
        if not shut_down or self._supervisor is None:
            return
        try:
            async with asyncio.timeout(_STOP_ASKED_S):
                stop_s = await self._supervisor.stop_s.remote()
            async with asyncio.timeout(stop_s + _STOP_ASKED_S):
                await self._supervisor.stop.remote()
        except (TimeoutError, *RAY_FAILURES):
            pass  # what does not end by itself is ended below, by name
        await self._stores.close()
        for name in sorted(named_actors(self._namespace), key=lambda name: name != STORE_NAME):  # found by it, or not
            try:
                ray.kill(ray.get_actor(name, namespace=self._namespace))
            except ValueError:
                continue  # gone meanwhile
        drop_agents(self._namespace)
        await _until(lambda: not named_actors(self._namespace), _NAMES_FREE_S)

    async def host_of(self, conversation_id: str) -> RayHost:
        host = self._places.get(conversation_id)
        if host is None:
            try:
                name, handle = answered(await self._supervisor.locate.remote(conversation_id))
            except RAY_FAILURES as error:
                raise HostGone(f"the supervisor does not answer: {type(error).__name__}") from error
            host = self._hosts.get(name)
            if host is None:
                host = self._hosts[name] = RayHost(name, handle)
            self._places[conversation_id] = host
        return host

    async def lost(self, conversation_id: str, host: Any) -> None:
        if self._places.get(conversation_id) is host:
            del self._places[conversation_id]

    async def read(self, method: str, *args: Any) -> Any:
        assert self._reads is not None, "the runtime is not started"
        try:
            async with asyncio.timeout(_READ_PATIENCE_S):
                return await self._reads.read(method, *args)
        except TimeoutError as error:
            raise StoreUnavailable(f"the store gave no answer within {_READ_PATIENCE_S:.0f} s") from error

    async def agent_names(self) -> tuple[str, ...]:
        if self._agent_names is None:
            self._agent_names = tuple(await self._ask_supervisor("agent_names"))
        return self._agent_names

    async def describe(self) -> Description:
        found = await self._ask_supervisor("describe")
        store_pids = await self._stores.pids()
        return Description(
            kind="ray",
            namespace=self._namespace,
            agents=tuple(found["agents"]),
            store=msgspec.to_builtins(await self.read("info")),
            actors=tuple(ActorInfo(**actor) for actor in found["actors"]),
            store_pid=store_pids[0],
            store_pids=store_pids,
            supervisor_pid=found["pid"],
            counts={**found["counts"], "quarantined": await quarantined_count(self.read)},
            has_check=found["has_check"],
        )

    async def drain(self, process: str, author: str, reason: str) -> bool:
        return await self._ask_supervisor("drain", process, author, reason)

    async def _ask_supervisor(self, method: str, *args: Any) -> Any:
        """A question to the supervisor, which Ray starts again when it dies. Raises: RuntimeUnreachable."""
        deadline = time.monotonic() + _READ_PATIENCE_S
        while True:
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic()) + ANSWER_S):
                    return answered(await getattr(self._supervisor, method).remote(*args))
            except (TimeoutError, *RAY_FAILURES) as error:
                gone = isinstance(error, ActorDiedError)
                if gone or time.monotonic() >= deadline:
                    message = f"the supervisor does not answer: {type(error).__name__}"
                    raise RuntimeUnreachable(message, namespace=self._namespace) from error
                await asyncio.sleep(0.1)

    def actor_handle(self, conversation_id: str, host: Any) -> Any:
        return host.handle

    async def _launch(self, plan: RuntimePlan) -> None:
        here = NodeAffinitySchedulingStrategy(node_id=_home_node(), soft=False)
        options = {"namespace": self._namespace, "lifetime": "detached", "scheduling_strategy": here}
        self._stores.claim(plan, options)
        try:
            await self._stores.open(plan, options)
            keep_agents(self._namespace, self._agents)
            supervisor = RemoteSupervisorActor.options(name=SUPERVISOR_NAME, **options)
            self._supervisor = supervisor.remote(plan, self._stores.handle)
            await self._supervisor.start.remote()
        except BaseException as error:
            for actor in (self._supervisor, *self._stores.actors):
                if actor is not None:
                    ray.kill(actor)
            await _until(lambda: not named_actors(self._namespace), _NAMES_FREE_S)
            if isinstance(error, RAY_FAILURES):
                raise RuntimeUnreachable(f"the runtime did not come up: {error}") from error
            raise

    def _named(self, name: str) -> Any:
        try:
            return ray.get_actor(name, namespace=self._namespace)
        except ValueError as error:
            raise RuntimeUnreachable(
                f"no runtime is up in namespace {self._namespace}; start one with `laneway up --agents module:name`",
                namespace=self._namespace,
            ) from error


def _home_node() -> str:
    """The node that holds the store's file: this program's, or the cluster's head where it is only a client."""
    client: Any = importlib.import_module("ray.util.client")
    if client.ray.is_connected():
        nodes: list[Any] = ray.nodes()
        for node in nodes:
            if node["Alive"] and "node:__internal_head__" in node["Resources"]:
                return str(node["NodeID"])
    return node_id()


async def _until(holds: Any, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() >= deadline:
            raise RuntimeUnreachable(f"the names of the runtime were not free after {timeout_s:.0f} s")
        await asyncio.sleep(0.02)
