"""The world of one seed: a store, processes that host lanes, a supervisor, and what breaks them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulation.agents import AGENTS, WORLD
from simulation.audit import Auditor
from simulation.faults import Fault, Faults
from simulation.loop import PROCESS, SimulatedProcess, SimulationLoop
from simulation.network import Lost, Network, SimulatedLink, StoreProcess, call_process
from simulation.promises import Violation
from simulation.supplier import Supplier

from laneway.actors.host import LaneHost
from laneway.actors.lane.settings import LaneSettings
from laneway.actors.store_client import StoreClient
from laneway.actors.supervisor import Member, Supervisor
from laneway.agents.registry import Registry
from laneway.cluster.backend import HostGone
from laneway.storage.errors import LanewayError, StoreUnavailable
from laneway.storage.failpoints import Failpoints, Point, SimulatedCrash
from laneway.storage.values import DEFAULT_LIMITS

START_MS = 1_700_000_000_000
MAX_ACTORS = 3
SWEEP_S = 5.0
_ANSWER_S = 15.0  # as the client of the runtime on Ray


class ProcessPoints(Failpoints):
    """Failpoints of one process: it may be killed at any of them, and then nothing of it gets past another one."""

    def __init__(self, world: World, process: SimulatedProcess) -> None:
        super().__init__()
        self._world = world
        self._process = process

    def hit(self, point: Point) -> None:
        self._world.reached[f"point:{point}"] += 1
        if self._process.alive and self._world.faults.happens(Fault.KILLED_AT_POINT):
            self._world.reached[f"killed_at:{point}"] += 1
            self._process.kill()
        if not self._process.alive:
            raise SimulatedCrash(f"{self._process.name} died at {point}")


class HostProcess(SimulatedProcess):
    """A process that hosts lanes."""

    def __init__(self, name: str, world: World, settings: LaneSettings) -> None:
        super().__init__(name, world.loop)
        wrong_ms = int(world.faults.between(-2_000, 2_000)) if world.faults.happens(Fault.CLOCK_WRONG) else 0
        self.points = ProcessPoints(world, self)
        self.link = SimulatedLink(world)
        self.host = LaneHost(
            self.link,
            world.registry,
            settings,
            failpoints=self.points,
            chance=random.Random(world.chance.random()),
            now_ms=lambda: world.now_ms() + wrong_ms,
            monotonic=world.loop.time,
        )
        self._lease_s = settings.lease_ttl_s / 3

    async def start(self) -> None:
        await self.host.start(keep_lease=False)
        self.spawn(self._keep_lease())

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s)
            await self.host.renew_lease()


class SupervisorProcess(SimulatedProcess):
    """The process of the supervisor; another one takes over when it dies."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world.loop)
        self.supervisor = Supervisor(
            SimulatedCrew(world),
            SimulatedLink(world),
            max_actors=MAX_ACTORS,
            spare_actors=1,
            strict=False,
            sweep_s=SWEEP_S,
            now_ms=world.now_ms,
            chance=random.Random(world.chance.random()),
        )
        self._ready = self.spawn(self.supervisor.start())

    async def locate(self, conversation_id: str) -> Member:
        await asyncio.shield(self._ready)
        return await self.supervisor.locate(conversation_id)


class SimulatedCrew:
    """How a supervisor starts and watches simulated processes."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def start(self) -> Member:
        process = self._world.new_process()
        if self._world.faults.happens(Fault.START_FAILED):
            process.kill()
        try:
            await call_process(self._world.network, process, process.start, noticed=True)
        except (Lost, SimulatedCrash):
            process.kill()
            raise StoreUnavailable("a process did not come up", code="actor_not_started") from None
        return self._member(process)

    async def found(self) -> list[tuple[Member, list[str]]]:
        await self._world.network.travel()
        return [(self._member(process), process.host.resident()) for process in self._world.hosts()]

    async def present(self) -> set[str]:
        await self._world.network.travel()
        return {process.host.owner_id for process in self._world.hosts()}

    async def until_death(self, member: Member) -> None:
        await asyncio.shield(member.handle.death)
        await self._world.network.travel()

    async def activate(self, member: Member, conversation_ids: list[str]) -> None:
        process: HostProcess = member.handle
        with contextlib.suppress(TimeoutError, Lost, SimulatedCrash):
            async with asyncio.timeout(5.0):
                await call_process(
                    self._world.network, process, lambda: process.host.activate(conversation_ids), noticed=True
                )

    async def end(self, member: Member) -> None:
        process: HostProcess = member.handle
        with contextlib.suppress(TimeoutError, Lost, SimulatedCrash):
            async with asyncio.timeout(10.0):
                await call_process(self._world.network, process, process.host.close, noticed=True)
        process.kill()

    async def stats(self, member: Member) -> dict[str, Any]:
        return member.handle.host.stats()

    def _member(self, process: HostProcess) -> Member:
        return Member(name=process.name, owner_id=process.host.owner_id, pid=1, node="node", handle=process)


class SimulatedHost:
    """A process as a client calls it."""

    def __init__(self, world: World, process: HostProcess) -> None:
        self._world = world
        self.process = process

    def __getattr__(self, method: str) -> Callable[..., Any]:
        async def ask(*args: Any) -> Any:
            within_s = _ANSWER_S + (args[-1] if method in ("settlement", "poll") else 0.0)
            try:
                async with asyncio.timeout(within_s):
                    return await call_process(
                        self._world.network,
                        self.process,
                        lambda: getattr(self.process.host, method)(*args),
                        noticed=True,
                    )
            except (TimeoutError, Lost, SimulatedCrash) as error:
                raise HostGone(f"{self.process.name} does not answer: {error!r}") from None

        return ask


class SimulatedBackend:
    """What the runtime's own client stands on: it asks the supervisor where a conversation lives."""

    limits = DEFAULT_LIMITS

    def __init__(self, world: World) -> None:
        self._world = world
        self._hosts: dict[str, SimulatedHost] = {}

    async def host_of(self, conversation_id: str) -> SimulatedHost:
        host = self._hosts.get(conversation_id)
        if host is None:
            supervisor = self._world.supervisor
            try:
                async with asyncio.timeout(_ANSWER_S):
                    member = await call_process(
                        self._world.network, supervisor, lambda: supervisor.locate(conversation_id), noticed=True
                    )
            except (TimeoutError, Lost) as error:
                raise HostGone(f"the supervisor does not answer: {error!r}") from None
            host = self._hosts[conversation_id] = SimulatedHost(self._world, member.handle)
        return host

    async def lost(self, conversation_id: str, host: Any) -> None:
        if self._hosts.get(conversation_id) is host:
            del self._hosts[conversation_id]

    async def read(self, method: str, *args: Any) -> Any:
        return await self._world.reads.read(method, *args)


class World:
    """Everything that one seed is made of. `chance` is for the world itself; each concern has a child of the seed."""

    def __init__(
        self, seed: int, loop: SimulationLoop, folder: Path | None, listener: Callable[[str], None] | None = None
    ) -> None:
        WORLD.set(self)  # first of all: every process that is started from here on lives in it
        self.loop = loop
        self._listener = listener
        self.chance = child_of(seed, "world")
        self.reached: Counter[str] = Counter()
        self.faults = Faults(child_of(seed, "faults"), self.reached)
        self.network = Network(self.faults)
        self.auditor = Auditor(self.fail, self.reached)
        self.supplier = Supplier(self.auditor, self.fail)
        self.auditor.supplier = self.supplier
        self.registry = Registry(AGENTS)
        self._digest = hashlib.sha256()
        self._number = 0
        self._settings = LaneSettings(
            stepwise=self.chance.random() < 0.5,
            record_deltas=self.chance.random() < 0.3,
            lanes_per_actor=self.chance.choice((1, 2, 256)),
            idle_s=self.chance.choice((2.0, 300.0)),
            checkpoint_records=child_of(seed, "checkpoints").choice((1, 7, 64)),
        )
        self._processes: list[HostProcess] = []
        self.store = StoreProcess(self, "memory" if folder is None else "duckdb", folder)
        self.reads = StoreClient(SimulatedLink(self), child_of(seed, "reads"))
        self.supervisor = SupervisorProcess("supervisor-1", self)

    def now_ms(self) -> int:
        return START_MS + int(self.loop.time() * 1000)

    def fail(self, message: str) -> None:
        """A promise is broken: the run ends here."""
        self.loop.fail(Violation(f"at {self.loop.time():.3f} s: {message}"))

    def hit(self, point: Point) -> None:
        """A failpoint inside of a tool, which belongs to the process that runs it."""
        process = PROCESS.get()
        if isinstance(process, HostProcess):
            process.points.hit(point)

    def trace(self, *parts: Any) -> None:
        """What makes two runs of a seed the same."""
        process = PROCESS.get()
        name = process.name if process is not None else ""
        self._digest.update(repr((self.loop.steps, self.loop.time(), name, parts)).encode())

    def narrate(self, line: Callable[[], str]) -> None:
        """Tell whoever listens what happens, with the time and the process."""
        if self._listener is not None:
            process = PROCESS.get()
            self._listener(f"{self.loop.time():9.4f} {process.name if process else 'world':12} {line()}")

    def digest(self) -> str:
        self.trace("end")
        return self._digest.hexdigest()

    def hosts(self) -> list[HostProcess]:
        return [process for process in self._processes if process.alive]

    def new_process(self) -> HostProcess:
        self._number += 1
        process = HostProcess(f"host-{self._number}", self, self._settings)
        process.on_end = lambda: self.narrate(lambda: f"{process.name} is dead")
        self._processes.append(process)
        return process

    # --- breaking things ---------------------------------------------------------------------------------------------

    async def break_things(self) -> None:
        """Until the faults are calm: processes die or stop for a while, the store goes away."""
        loop, faults = self.loop, self.faults
        while not faults.calm:
            await asyncio.sleep(faults.between(0.1, 4.0))
            victims = self.hosts()
            if victims and faults.happens(Fault.PROCESS_KILLED):
                faults.choose(victims).fuse = 1 + int(faults.between(0, 150))  # type: ignore[attr-defined]
            if victims and faults.happens(Fault.PROCESS_PAUSED):
                victim: Any = faults.choose(victims)
                victim.pause()
                self.narrate(lambda name=victim.name: f"{name} stops for a while")
                loop.call_later(faults.between(0.5, 25.0), victim.go_on)
            if faults.happens(Fault.SUPERVISOR_KILLED):
                self.supervisor.fuse = 1 + int(faults.between(0, 60))
            if faults.happens(Fault.STORE_DOWN):
                self.store.die()

    async def keep_supervisor(self) -> None:
        """What Ray does: a supervisor that died is started again."""
        number = 1
        while True:
            await asyncio.shield(self.supervisor.death)
            await asyncio.sleep(self.faults.between(0.1, 3.0))
            number += 1
            self.supervisor = SupervisorProcess(f"supervisor-{number}", self)

    def calm_down(self) -> None:
        """No more faults: whatever is stopped goes on, whatever was about to end lives."""
        self.faults.calm = True
        self.narrate(lambda: "calm")
        for process in (*self.hosts(), self.supervisor):
            process.fuse = None
            process.go_on()
        self.store.start_again()


class LogWatch(logging.Handler):
    """An error in the runtime's own log is a finding: it expects neither what fails there nor that it goes on."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        if process is not None and not process.alive:
            return
        if record.levelno >= logging.ERROR:
            error = record.exc_info[1] if record.exc_info else None
            self._world.fail(f"logged: {record.getMessage()}{f': {error!r}' if error else ''}")


def child_of(seed: int, concern: str) -> random.Random:
    """The chance of one concern: another concern's use of its own does not move it."""
    return random.Random(f"{seed}/{concern}")


__all__ = ["LanewayError", "LogWatch", "SimulatedBackend", "World", "child_of"]
