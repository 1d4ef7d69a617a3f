"""The runtime in one process, without Ray: lanes are tasks, the store is memory or a DuckDB file."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from ..actors.host import LaneHost
from ..actors.lane.settings import LaneSettings
from ..actors.store_client import LocalLink
from ..actors.sweep import Sweep
from ..agents.agent import Agent
from ..agents.authority import Authorize
from ..agents.registry import Registry
from ..recovery.alerts import Alerts, AlertSettings
from ..storage.contract import Store
from ..storage.errors import LanewayError, Refused
from ..storage.failpoints import NO_FAILPOINTS, Failpoints
from ..storage.readback import wall_clock_ms
from .backend import ActorInfo, Description, HostGone, quarantined_count

_log = logging.getLogger("laneway.local")


class LocalBackend:
    """Hosts every conversation in this process. What an earlier process left open goes on at `start`."""

    def __init__(
        self,
        agents: Sequence[Agent],
        store: Store,
        settings: LaneSettings,
        failpoints: Failpoints = NO_FAILPOINTS,
        sweep_s: float = 5.0,
        authorize: Authorize | None = None,
        alerts: AlertSettings | None = None,
    ) -> None:
        self.limits = settings.limits
        self._registry = Registry(agents, authorize)
        self._store = store
        self._link = LocalLink(store)
        self._settings = settings
        self._failpoints = failpoints
        self._sweep_s = sweep_s
        self._host: LaneHost | None = None
        self._alerts = Alerts(alerts or AlertSettings())
        self._counts: Counter[str] = Counter()
        self._pass: Sweep | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for owner_id in await self._link.call("owners"):
            # The file has one process, and that is this one: every earlier owner is gone.
            await self._link.call("retire_owner", owner_id)
        self._host = LaneHost(self._link, self._registry, self._settings, failpoints=self._failpoints)
        await self._host.start()
        self._pass = Sweep(self._host.store, self._alerts, self._counts, wall_clock_ms)
        await self._pass.run(self._host.activate)
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def stop(self, *, shut_down: bool) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        if self._host is not None:
            await self._host.close()
            self._host = None
            self._link.close()

    async def host_of(self, conversation_id: str) -> LaneHost:
        if self._host is None:
            raise HostGone("the runtime is stopping")
        return self._host

    async def lost(self, conversation_id: str, host: object) -> None:
        return

    async def read(self, method: str, *args: Any) -> Any:
        return await self._link.call(method, *args)

    async def agent_names(self) -> tuple[str, ...]:
        return self._registry.names()

    async def describe(self) -> Description:
        stats = self._host.stats() if self._host else {}
        return Description(
            kind="local",
            namespace="",
            agents=self._registry.names(),
            store=msgspec.to_builtins(self._store.info()),
            actors=(
                ActorInfo(
                    name="local",
                    node="localhost",
                    pid=os.getpid(),
                    conversations=int(stats.get("lanes", 0)),
                    stats=stats,
                ),
            ),
            store_pid=os.getpid(),
            counts={**self._counts, "quarantined": await quarantined_count(self.read)},
            has_check=self._registry.authorize is not None,
        )

    async def drain(self, process: str, author: str, reason: str) -> bool:
        raise Refused("this runtime is one process: stop it and start it again", code="drain_not_supported")

    def actor_handle(self, conversation_id: str, host: object) -> None:
        return None

    async def _sweep(self) -> None:
        """What waited for its time, or was left by a fault, goes on: recovery is a loop, never one shot."""
        while True:
            await asyncio.sleep(self._sweep_s)
            try:
                assert self._pass is not None
                assert self._host is not None
                await self._pass.run(self._host.activate)
            except Exception as error:
                _log.warning("the sweep goes on later: %s", error, exc_info=not isinstance(error, LanewayError))
