"""SupervisorActor: the shell round `Supervisor`, and how it starts and watches processes on Ray."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from typing import Any

import msgspec
import ray
from ray.exceptions import ActorUnavailableError

from ..agents.authority import CHECK_S, Act
from ..recovery.alerts import AlertSettings
from ..storage.errors import StoreUnavailable
from ..storage.ids import new_id
from ..storage.readback import wall_clock_ms
from .conversation_actor import RemoteConversationActor, owner_of
from .lane.settings import LaneSettings
from .placement import emptiest_node
from .quiet import quiet_process
from .ray_calls import RAY_FAILURES, actor_class, answered, answering, named_actors, nodes_alive, on_node, store_link
from .supervisor import Member, Supervisor

MEMBER_PREFIX = "conversations-"
END_MARGIN_S = (
    8.0  # beyond the graces: what a process may take to commit its releases, and to leave what refuses to end
)
_ANSWER_S = 5.0  # a live process answers within milliseconds; a stopped one would hold the sweep up for ever


class RuntimePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of one runtime is started with."""

    namespace: str
    agent_names: tuple[str, ...]
    import_paths: list[str]
    lane: LaneSettings
    max_actors: int
    spare_actors: int
    sweep_s: float
    alerts: AlertSettings
    store_path: str
    shards: int = 1
    has_check: bool = False
    """Whether operators' acts must pass a check of the runtime's owner."""


class RayCrew:
    """Named, detached actors in the runtime's namespace: they outlive a supervisor that dies."""

    def __init__(self, plan: RuntimePlan, store: Any) -> None:
        self._plan = plan
        self._store = store
        self._homes: dict[str, str] = {}
        self._known = set[str]()
        self._refusing: str | None = None  # the node of the last start, if that failed: Ray learns late of a lost node

    async def start(self) -> Member:
        name = new_id(MEMBER_PREFIX.rstrip("-")).replace("_", "-")
        alive = await asyncio.to_thread(nodes_alive)
        chosen = emptiest_node(alive, Counter(self._homes.values()), avoid=self._refusing)
        if chosen is not None:
            self._homes[name] = chosen  # counted from now on: several start at once
        self._known.add(name)
        handle = RemoteConversationActor.options(
            name=name,
            namespace=self._plan.namespace,
            lifetime="detached",
            scheduling_strategy=on_node(chosen) if chosen else "SPREAD",
        ).remote(self._store, self._plan.namespace, self._plan.import_paths, self._plan.lane)
        try:
            owner_id, pid = await handle.start.remote()
            node = self._homes[name] = await handle.node.remote()
        except RAY_FAILURES as error:
            self._forget(name)
            self._refusing = chosen
            with contextlib.suppress(*RAY_FAILURES):
                ray.kill(handle)  # it may live all the same, and nobody would know of it
            raise StoreUnavailable(f"a process did not come up: {error}", code="actor_not_started") from error
        self._refusing = None
        return Member(name=name, owner_id=owner_id, pid=pid, node=node, handle=handle)

    async def found(self) -> list[tuple[Member, list[str]]]:
        names = [name for name in await self._names() if name not in self._known]
        answers = await asyncio.gather(*(self._asked(name) for name in names))
        return [answer for answer in answers if answer is not None]

    async def present(self) -> set[str]:
        return {owner_of(name) for name in await self._names()}

    async def _names(self) -> list[str]:
        names = await asyncio.to_thread(named_actors, self._plan.namespace)
        return [name for name in names if name.startswith(MEMBER_PREFIX)]

    async def _asked(self, name: str) -> tuple[Member, list[str]] | None:
        """The process of that name with what is resident in it; None for a silent one, which the next sweep asks."""
        try:
            handle = ray.get_actor(name, namespace=self._plan.namespace)
            async with asyncio.timeout(_ANSWER_S):
                await handle.start.remote()  # whoever created it may have died before it was asked to
                owner_id, pid, resident = await handle.identity.remote()
                node = await handle.node.remote()
        except (TimeoutError, *RAY_FAILURES, ValueError):
            return None
        if name in self._known:
            return None  # another look was faster
        self._known.add(name)
        self._homes[name] = node
        return Member(name=name, owner_id=owner_id, pid=pid, node=node, handle=handle), resident

    async def until_death(self, member: Member) -> None:
        while True:
            try:
                await member.handle.until_end.remote()
                await self.end(member)  # it has closed; whoever asked it to may not live to end its process
                break
            except ActorUnavailableError:
                await asyncio.sleep(0.2)
            except RAY_FAILURES:
                break
        self._forget(member.name)

    def _forget(self, name: str) -> None:
        self._known.discard(name)
        self._homes.pop(name, None)

    async def activate(self, member: Member, conversation_ids: list[str]) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                answered(await member.handle.activate.remote(conversation_ids))
        except (TimeoutError, *RAY_FAILURES):
            return  # the watch notices its death, its lease its silence, and the next sweep looks again

    async def stats(self, member: Member) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await member.handle.stats.remote()
        except (TimeoutError, *RAY_FAILURES):
            return {}

    async def permit(self, member: Member, act: Act) -> bool:
        if not self._plan.has_check:
            return True
        try:
            async with asyncio.timeout(CHECK_S + _ANSWER_S):
                answered(await member.handle.permit.remote(act))
        except (TimeoutError, *RAY_FAILURES):
            return False
        return True

    async def retire(self, member: Member) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_S):
                at_rest = bool(await member.handle.retire.remote())
        except (TimeoutError, *RAY_FAILURES):
            return False
        if at_rest:
            await self.end(member)
        return at_rest

    async def end(self, member: Member) -> None:
        """End the process, gently first."""
        try:
            async with asyncio.timeout(stop_s(self._plan.lane)):
                await member.handle.close.remote()
        except (TimeoutError, *RAY_FAILURES):
            pass  # it is ended all the same, and its work goes on elsewhere or at the next start
        ray.kill(member.handle)


def stop_s(lane: LaneSettings) -> float:
    """How long a process may take to end as planned."""
    return lane.drain_grace_s + lane.abort_grace_s + END_MARGIN_S


class SupervisorActor:
    """The directory of one runtime; it can die at any time and finds everything again."""

    def __init__(self, plan: RuntimePlan, store: Any) -> None:
        quiet_process()
        self._plan = plan
        self._crew = RayCrew(plan, store)
        self._supervisor = Supervisor(
            self._crew,
            store_link(store),
            max_actors=plan.max_actors,
            spare_actors=plan.spare_actors,
            strict=plan.lane.lanes_per_actor == 1,
            sweep_s=plan.sweep_s,
            alerts=plan.alerts,
            now_ms=wall_clock_ms,
        )
        self._started: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._ready()

    @answering
    async def locate(self, conversation_id: str) -> tuple[str, Any]:
        """The name and the handle of the actor that hosts the conversation."""
        await self._ready()
        member = await self._supervisor.locate(conversation_id)
        return member.name, member.handle

    async def pid(self) -> int:
        """The process, even while it has not found its members yet."""
        return os.getpid()

    async def agent_names(self) -> tuple[str, ...]:
        return self._plan.agent_names

    @answering
    async def describe(self) -> dict[str, Any]:
        await self._ready()
        loads = self._supervisor.loads()
        members = self._supervisor.members()
        stats = await asyncio.gather(*(self._crew.stats(member) for member in members))
        return {
            "pid": os.getpid(),
            "agents": self._plan.agent_names,
            "store_path": self._plan.store_path,
            "has_check": self._plan.has_check,
            "counts": dict(self._supervisor.counts),
            "actors": [
                {
                    "name": member.name,
                    "node": member.node,
                    "pid": member.pid,
                    "conversations": loads.get(member.name, 0),
                    "stats": found,
                }
                for member, found in zip(members, stats, strict=True)
            ],
        }

    async def stop(self) -> list[str]:
        """End every process that hosts lanes, gently first; the names that are to become free."""
        await self._supervisor.close()
        members = self._supervisor.members()
        await asyncio.gather(*(self._crew.end(member) for member in members))
        return [member.name for member in members]

    async def stop_s(self) -> float:
        """How long `stop` may take."""
        return stop_s(self._plan.lane)

    @answering
    async def drain(self, name: str, author: str, reason: str) -> bool:
        """Replace the process of that name as planned; False when there is none."""
        await self._ready()
        return await self._supervisor.drain(name, author, reason)

    async def _ready(self) -> None:
        """A supervisor that Ray started again was never asked to start: a call does it, until one has succeeded."""
        started = self._started
        if started is None or (started.done() and (started.cancelled() or started.exception() is not None)):
            started = self._started = asyncio.get_running_loop().create_task(self._supervisor.start())
        await asyncio.shield(started)


RemoteSupervisorActor: Any = actor_class(SupervisorActor, max_restarts=-1, max_concurrency=10_000)
"""`SupervisorActor` as Ray creates it."""
