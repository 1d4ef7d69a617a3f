"""The supervisor's work without Ray: directory, death watch, sweep. All of its state can be rebuilt."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ..agents.authority import Act
from ..recovery.alerts import Alerts, AlertSettings
from ..storage.errors import LanewayError, Refused
from .placement import Placement
from .sharded_client import store_client
from .store_client import StoreClient, StoreLink
from .sweep import SWEEP_ROWS, Sweep

_log = logging.getLogger("laneway.supervisor")
_START_TRIES = 3
_SILENT_SWEEPS = 2  # after an outage of the store, leases are renewed within one


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A live process that hosts lanes; `handle` is how to call it."""

    name: str
    owner_id: str
    pid: int
    node: str
    handle: Any


class Crew(Protocol):
    """How the supervisor starts, finds and watches processes; on Ray, or simulated in a test."""

    async def start(self) -> Member:
        """A new process with its lease taken."""
        ...

    async def found(self) -> list[tuple[Member, list[str]]]:
        """Processes that are alive and that this crew has not told of, each with the conversations resident in it."""
        ...

    async def present(self) -> set[str]:
        """The owner ids of all processes that nobody has seen end, whether or not they answer."""
        ...

    async def until_death(self, member: Member) -> None:
        """Returns when the process has ended."""
        ...

    async def activate(self, member: Member, conversation_ids: list[str]) -> None: ...

    async def end(self, member: Member) -> None:
        """Ask the process to come to safe boundaries and to give its lanes back; then end it, answer or not."""
        ...

    async def stats(self, member: Member) -> dict[str, Any]: ...

    async def permit(self, member: Member, act: Act) -> bool:
        """Let the process ask the runtime's check; False when it gives no answer.

        Raises: Refused with code "not_authorised".
        """
        ...

    async def retire(self, member: Member) -> bool:
        """Let the process take nothing new, and end it once nothing is at work in it; whether it was ended."""
        ...


class _Shard:
    """What is looked at by itself: a shard that is away must not hold up the recovery of what the others hold."""

    def __init__(self, store: StoreClient, look: Sweep) -> None:
        self.store = store
        self.look = look
        self.due = asyncio.Event()
        self.silent: Counter[str] = Counter()


class Supervisor:
    """Knows where each conversation lives, notices deaths at once, and looks for work that nobody owns.

    Two supervisors are safe: what they decide about ownership counts only through the store's fence.
    """

    def __init__(
        self,
        crew: Crew,
        link: StoreLink,
        *,
        max_actors: int,
        spare_actors: int,
        strict: bool,
        sweep_s: float,
        now_ms: Callable[[], int],
        alerts: AlertSettings | None = None,
        sweep_rows: int = SWEEP_ROWS,
        chance: random.Random | None = None,
    ) -> None:
        self._crew = crew
        self._store = store_client(link, chance or random.Random())
        self._placement = Placement(max_actors)
        self._members: dict[str, Member] = {}
        self._spare_actors = spare_actors
        self._strict = strict  # one conversation an actor: recovery, too, waits for a process of its own
        self._sweep_s = sweep_s
        self._now_ms = now_ms
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = 0
        self._changed = asyncio.Condition()
        self.counts: Counter[str] = Counter()
        self._stained: set[str] = set()
        self._replacing: asyncio.Task[None] | None = None
        self._drained = set[str]()
        alerts = alerts or AlertSettings()
        self._shards = [
            _Shard(store, Sweep(store, Alerts(alerts), self.counts, now_ms, rows_max=sweep_rows))
            for store in self._store.shards
        ]
        self._closed = False

    async def start(self) -> None:
        """Find who is alive, declare dead whose process is gone, and begin to watch."""
        await self._adopt()
        if len(self._shards) == 1:  # else each shard's sweep does: one that is away must not hold the start up
            await self._retire_gone(self._shards[0])
        self._keep_spares()
        for shard in self._shards:
            self._spawn(self._sweep(shard))
            shard.due.set()

    async def locate(self, conversation_id: str, *, patient: bool = True) -> Member:
        """The process that the conversation lives in; it is given one if it has none.

        `patient` waits for a process of its own that is being started; recovery takes what is there.
        """
        while True:
            name = self._placement.actor_of(conversation_id)
            if name is not None and name in self._members:
                return self._members[name]
            self._keep_spares()
            if self._placement.actors and not (patient and self._placement.wants_new_actor() and self._starting > 0):
                member = self._members[self._placement.place(conversation_id)]
                self._keep_spares()  # the process that was kept warm may be in use now
                return member
            started = self.counts["started"]
            async with self._changed:
                await self._changed.wait_for(lambda was=started: self.counts["started"] > was or self._starting == 0)

    async def drain(self, name: str, author: str, reason: str = "") -> bool:
        """Replace a process as planned; returns when it has ended. False for one that is gone or is being drained.

        Nothing is placed there any more, tool calls in flight get `drain_grace_s`, and open work goes on elsewhere.
        Raises: Refused with code "not_authorised", where no process can be asked, too.
        """
        await self._permit(Act(action="drain", author=author, reason=reason, details={"process": name}), name)
        member = self._members.get(name)
        if member is None or name in self._drained:
            return False
        _log.info("%s is to be drained, says %s: %s", name, author, reason)
        await self._drain(member)
        return True

    async def _permit(self, act: Act, last: str) -> None:
        """The check runs where lanes do; whatever is to be drained may have trouble, and is asked when no other is."""
        for member in sorted(self.members(), key=lambda member: member.name == last):
            if await self._crew.permit(member, act):
                return
        if self._members:
            raise Refused(f"{act.author} may not drain {last}: no process answers the check", code="not_authorised")

    async def _drain(self, member: Member) -> None:
        self._drained.add(member.name)
        moved = self._placement.remove(member.name)
        self.counts["drained"] += 1
        _log.info("%s (pid %d) is drained; its %d conversations move", member.name, member.pid, len(moved))
        self._keep_spares()
        await self._crew.end(member)

    def members(self) -> list[Member]:
        return list(self._members.values())

    def loads(self) -> dict[str, int]:
        return self._placement.loads()

    async def close(self) -> None:
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.close()

    # --- processes ---------------------------------------------------------------------------------------------------

    def _keep_spares(self) -> None:
        """Start what is missing: an unused process for the next conversation, within `max_actors`."""
        unused = sum(1 for load in self._placement.loads().values() if load == 0)
        room = self._placement.max_actors - len(self._placement.actors) - self._starting
        for _ in range(min(max(1, self._spare_actors) - unused - self._starting, room)):
            self._starting += 1
            self._spawn(self._start_member())

    async def _start_member(self) -> None:
        try:
            for attempt in range(1, _START_TRIES + 1):
                try:
                    self._join(await self._crew.start(), [])
                    return
                except LanewayError as error:
                    _log.warning("a process did not start (try %d): %s", attempt, error)
        finally:
            self._starting -= 1
            async with self._changed:
                self._changed.notify_all()

    def _join(self, member: Member, conversation_ids: list[str]) -> None:
        self._members[member.name] = member
        self._placement.learn(member.name, conversation_ids)
        self.counts["started"] += 1
        self._spawn(self._watch(member))

    async def _watch(self, member: Member) -> None:
        """A dead process's lease ends now, and its open lanes go on elsewhere under a higher epoch."""
        await self._crew.until_death(member)
        if self._closed:
            return
        self.counts["ended" if member.name in self._drained else "died"] += 1
        self._drained.discard(member.name)
        self._members.pop(member.name, None)
        for shard in self._shards:
            shard.silent.pop(member.name, None)
        self._stained.discard(member.name)
        lost = self._placement.remove(member.name)
        _log.info("%s (pid %d) has ended with %d conversations", member.name, member.pid, len(lost))
        self._keep_spares()
        first, *others = self._shards
        for shard in others:
            self._spawn(self._retire(shard, member.owner_id))
        await self._retire(first, member.owner_id)

    async def _retire(self, shard: _Shard, owner_id: str) -> None:
        await shard.store.read("retire_owner", owner_id)
        shard.due.set()

    # --- the sweep ---------------------------------------------------------------------------------------------------

    async def _sweep(self, shard: _Shard) -> None:
        while True:
            shard.due.clear()
            try:
                await self._sweep_once(shard)
            except Exception as error:  # recovery is a loop: whatever stops one pass, the next goes on behind it
                _log.warning("the sweep goes on later: %s", error, exc_info=not isinstance(error, LanewayError))
            try:
                async with asyncio.timeout(self._sweep_s):
                    await shard.due.wait()
            except TimeoutError:
                pass

    async def _adopt(self) -> None:
        """Take in the processes of a supervisor before this one; what did not answer yet joins with a later sweep."""
        for member, conversation_ids in await self._crew.found():
            self._join(member, conversation_ids)

    async def _retire_gone(self, shard: _Shard) -> None:
        """End the leases of owners whose process is gone. One that is silent keeps its lease for as long as it runs:
        a slow but live owner is never preempted for its age (design 6)."""
        owners: dict[str, int] = await shard.store.read("owners")  # first: a process is listed before it has a lease
        unknown = owners.keys() - {member.owner_id for member in self._members.values()}
        present = await self._crew.present() if unknown else set[str]()
        now_ms = self._now_ms()
        for owner_id in sorted(unknown):
            if owner_id not in present or owners[owner_id] <= now_ms:
                await shard.store.read("retire_owner", owner_id)

    async def _set_silent_aside(self, shard: _Shard) -> None:
        """A process whose lease stays over gets no conversations until it renews it; it may live, and is not ended."""
        owners = await shard.store.read("owners")
        now_ms = self._now_ms()
        for name, member in self._members.items():
            if name in self._drained:
                continue
            if owners.get(member.owner_id, 0) > now_ms:
                was_silent = shard.silent.pop(name, 0) >= _SILENT_SWEEPS
                if was_silent and not self._is_silent(name) and name not in self._stained:
                    self._placement.learn(name, [])
                continue
            known = self._is_silent(name)
            shard.silent[name] += 1
            if not known and self._is_silent(name):
                self.counts["silent"] += 1
                lost = self._placement.remove(name)
                _log.warning("%s (pid %d) is silent; its %d conversations move", name, member.pid, len(lost))
        self._keep_spares()

    def _is_silent(self, name: str) -> bool:
        return any(shard.silent[name] >= _SILENT_SWEEPS for shard in self._shards)

    async def _replace_stained(self) -> None:
        """A process in which an ended effect still runs is not counted on: its conversations move as they come to
        their ends, and then it is ended itself."""
        members = self.members()
        for member, stats in zip(
            members, await asyncio.gather(*(self._crew.stats(member) for member in members)), strict=True
        ):
            if stats.get("draining") and member.name not in self._drained:
                self._spawn(self._drain(member))  # whoever began this did not live to end it
                continue
            if member.name not in self._stained and (stats.get("stained") or stats.get("retired")):
                self._stained.add(member.name)
                self.counts["stained"] += 1
                self._placement.remove(member.name)
                self._keep_spares()
                _log.warning("%s (pid %d) has effects that cannot be ended; it is replaced", member.name, member.pid)
            if member.name in self._stained and await self._crew.retire(member):
                self.counts["replaced"] += 1

    async def _sweep_once(self, shard: _Shard) -> None:
        await self._adopt()
        await self._retire_gone(shard)
        await self._set_silent_aside(shard)
        if self._replacing is None or self._replacing.done():
            self._replacing = self._spawn(self._replace_stained())  # a stopped process must not hold the sweep up
        await shard.look.run(self._activate)

    async def _activate(self, conversation_ids: list[str]) -> None:
        groups: dict[str, list[str]] = {}
        for conversation_id in conversation_ids:
            groups.setdefault((await self.locate(conversation_id, patient=self._strict)).name, []).append(
                conversation_id
            )
        await asyncio.gather(
            *(
                self._crew.activate(self._members[name], theirs)
                for name, theirs in groups.items()
                if name in self._members
            )
        )

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a task of the supervisor failed", exc_info=task.exception())
