"""Processes of a test's world as a supervisor sees them, and control rows made by hand."""

from __future__ import annotations

import asyncio
from typing import Any

from lane_world import Process, ProcessLink, Script, World, agent_of

from laneway import Agent
from laneway.actors.supervisor import Member, Supervisor
from laneway.agents.authority import Act
from laneway.storage.contract import ControlRow
from laneway.storage.errors import StoreUnavailable
from laneway.storage.ledger import State

AGENT = agent_of(Script("done"))


class LocalCrew:
    """Processes of a test's world; `die` ends one as a SIGKILL would."""

    def __init__(self, world: World, *, failures: int = 0, agent: Agent = AGENT, **settings: Any) -> None:
        self.world = world
        self.agent = agent
        self.settings = settings
        self.trouble: Any = lambda kind: None
        self.failures = failures
        self.alive: dict[str, tuple[Member, Process, asyncio.Event]] = {}
        self.mute = set[str]()
        self.asked: list[tuple[str, Act]] = []
        self._told = set[str]()
        self.activated: list[tuple[str, tuple[str, ...]]] = []

    async def start(self) -> Member:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("no process", code="actor_not_started")
        process = await self.world.process(self.agent, trouble=self.trouble, **self.settings)
        name = f"p{len(self.world.processes)}"
        member = Member(name=name, owner_id=process.host.owner_id, pid=1, node="n", handle=process.host)
        self.alive[name] = member, process, asyncio.Event()
        self._told.add(name)
        return member

    def for_another(self) -> LocalCrew:
        """The same processes, as another supervisor's crew finds them."""
        crew = LocalCrew(self.world, agent=self.agent)
        crew.alive = self.alive
        return crew

    async def found(self) -> list[tuple[Member, list[str]]]:
        new = [name for name in self.alive if name not in self._told | self.mute]
        self._told.update(new)
        return [(self.alive[name][0], self.alive[name][1].host.resident()) for name in new]

    async def present(self) -> set[str]:
        ended = {member.owner_id for member, _, ended in self.alive.values() if ended.is_set()}
        return {process.host.owner_id for process in self.world.processes} - ended

    async def until_death(self, member: Member) -> None:
        await self.alive[member.name][2].wait()

    async def activate(self, member: Member, conversation_ids: list[str]) -> None:
        self.activated.append((member.name, tuple(conversation_ids)))
        await member.handle.activate(conversation_ids)

    async def end(self, member: Member) -> None:
        await member.handle.close()
        self.alive[member.name][2].set()

    async def stats(self, member: Member) -> dict[str, Any]:
        return member.handle.stats()

    async def permit(self, member: Member, act: Act) -> bool:
        self.asked.append((member.name, act))
        if member.name in self.mute:
            return False
        await member.handle.permit(act)
        return True

    async def retire(self, member: Member) -> bool:
        at_rest: bool = member.handle.retire()
        if at_rest:
            await member.handle.close()
            self.alive[member.name][2].set()
        return at_rest

    def die(self, name: str) -> None:
        _, process, ended = self.alive[name]
        process.link.cut = True
        ended.set()


def a_supervisor(world: World, crew: LocalCrew, trouble: Any = lambda kind: None, **more: Any) -> Supervisor:
    values = {"max_actors": 3, "spare_actors": 1, "strict": False, "sweep_s": 60.0, **more}
    return Supervisor(crew, ProcessLink(world.store, trouble), now_ms=world.clock, **values)


def control(state: State, sequence: int = 1, conversation: str = "c", **more: Any) -> ControlRow:
    values: dict[str, Any] = {
        "owner_id": None,
        "owner_live": False,
        "parked": False,
        "abort_requested": False,
        "attempts": 0,
        "not_before_ms": 0,
        "updated_at_ms": 0,
        **more,
    }
    return ControlRow(
        submission_id=f"s{sequence}", conversation_id=conversation, queue_sequence=sequence, state=state, **values
    )
