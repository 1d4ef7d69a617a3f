"""Ways between processes: calls travel, come late, get lost or arrive twice; stores die in the middle of a write."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from simulation.faults import STORE_POINTS, Fault, Faults
from simulation.loop import PROCESS, SimulatedProcess

from laneway.actors.deliveries import Deliveries
from laneway.storage.commands import (
    AbortAnswer,
    Accepted,
    Admitted,
    Answer,
    Append,
    Appended,
    Claim,
    Command,
    Grant,
    NotClaimed,
    Rejected,
    Unit,
    decode_answers,
    decode_units,
    encode_answers,
    encode_units,
)
from laneway.storage.contract import Store
from laneway.storage.errors import StoreFull, StoreUnavailable
from laneway.storage.failpoints import Failpoints, Point, SimulatedCrash
from laneway.storage.ids import new_id
from laneway.storage.memory_store import MemoryStore
from laneway.storage.records import decode_records, tag_of

if TYPE_CHECKING:
    from simulation.world import World

_LATENCY_S = (0.0002, 0.004)
_SLOW_S = (0.02, 3.0)
_NOTICED_S = (0.005, 0.5)  # a caller learns after this that its call was lost
_LATE_S = (0.001, 6.0)
_REPEATED = 0.1  # how many groups are sent again at once, to see whether the answer stays


class Network:
    """How long a way takes."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    async def travel(self) -> None:
        await asyncio.sleep(self.faults.between(*(_SLOW_S if self.faults.happens(Fault.SLOW) else _LATENCY_S)))


class StorePoints(Failpoints):
    """The failpoints of the store's process: it dies at the one that is armed, or finds its disk full."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.armed: Point | None = None
        self.full = False

    def hit(self, point: Point) -> None:
        self._world.reached[f"point:{point}"] += 1
        if self.full and point is Point.BEFORE_COMMIT:  # a write that needs space, and there is none
            raise StoreFull("no space is left")
        if point is self.armed:
            raise SimulatedCrash(f"the store died at {point}")


class StoreProcess:
    """The one process that holds the store. It dies and comes back with what was committed."""

    def __init__(self, world: World, adapter: str, folder: Path | None) -> None:
        self._world = world
        self._adapter = adapter
        self._folder = folder
        self._points = StorePoints(world)
        self.down = False
        self.lives = 1
        self._deliveries = Deliveries()
        self.store = self._open()

    def commit(self, sender: str, number: int, data: bytes) -> bytes:
        """Units in, answers out. Raises: StoreUnavailable, also when it dies before or after the commit; StoreFull."""
        self._require_up()
        self._deliveries.take(sender, number)
        world = self._world
        units = decode_units(data)
        weight = world.faults.rarity(tuple(name for unit in units for name in named(unit)))
        self._points.full = world.faults.happens(Fault.STORE_FULL, weight)
        fault = world.faults.first_of(*STORE_POINTS, weight=weight)
        if fault is not None:
            self._points.armed = world.faults.choose(STORE_POINTS[fault])  # type: ignore[assignment]
        world.trace(data)
        try:
            answers = self.store.commit(units)
            world.narrate(lambda: told(units, answers))
            if world.chance.random() < _REPEATED:
                self._repeat(units, answers)
        except SimulatedCrash as crash:
            where = str(crash)
            world.narrate(lambda: f"{where}: {told(units, [])}")
            self.die()
            raise StoreUnavailable("the store died") from None
        finally:
            self._points.armed, self._points.full = None, False
            world.auditor.observe(self.store, dict.fromkeys(unit.conversation_id for unit in units))
        sender_process = PROCESS.get()
        if sender_process is not None and world.faults.happens(Fault.KILLED_AT_COMMIT, weight):
            sender_process.kill()
        return encode_answers(answers)

    def _repeat(self, units: list[Unit], answers: list[Answer]) -> None:
        """The contract: an accepted unit that is sent again gets the answer that it got before, and changes nothing."""
        accepted = [pair for pair in zip(units, answers, strict=True) if isinstance(pair[1], Accepted)]
        conversations = [unit.conversation_id for unit, _ in accepted]
        for unit, answer in accepted:
            if conversations.count(unit.conversation_id) > 1:
                continue  # what came behind it in the same group may have moved on
            rows = self.store.list_rows(unit.conversation_id, limit=1_000_000)
            (again,) = self.store.commit([unit])
            if _facts(again) != _facts(answer):
                self._world.fail(
                    f"a unit got {_facts(answer)} and, repeated, {_facts(again)}: {told([unit], [answer])}"
                )
            if self.store.list_rows(unit.conversation_id, limit=1_000_000) != rows:
                self._world.fail(f"a repeated unit changed the ledger: {told([unit], [answer])}")

    def call(self, method: str, *args: Any) -> Any:
        self._require_up()
        return getattr(self.store, method)(*args)

    def die(self) -> None:
        """End here; it is started again a little later, whoever asks."""
        if self.down:
            return
        self.down = True
        loop = asyncio.get_running_loop()
        loop.call_later(self._world.faults.between(0.05, 8.0), self.start_again, context=contextvars.Context())

    def start_again(self) -> None:
        if not self.down:
            return
        self.down = False
        self.lives += 1
        self._deliveries = Deliveries()
        if isinstance(self.store, MemoryStore):
            self.store._engine.forget()  # a new process reads what is stored
        else:
            self.store.close()
            self.store = self._open()
        self._world.auditor.observe(self.store, self._world.auditor.conversations())

    def _require_up(self) -> None:
        if self.down:
            raise StoreUnavailable("the store is down")

    def _open(self) -> Store:
        if self._folder is None:
            return MemoryStore(now_ms=self._world.now_ms, failpoints=self._points)
        from laneway.storage.duckdb_store import DuckDBStore

        return DuckDBStore(self._folder / "store.duckdb", now_ms=self._world.now_ms, failpoints=self._points)


def _facts(answer: Answer) -> list[Any]:
    """What an answer says for good: without where things stand meanwhile."""
    if isinstance(answer, Rejected):
        return [answer.code]
    said: list[Any] = []
    for result in answer.results:
        match result:
            case Admitted():
                said.append(msgspec.structs.replace(result.receipt, replayed=False))
            case Grant():
                said.append((result.row.submission_id, result.attempt_id, result.epoch, result.recovering))
            case Appended():
                said.append((result.first_sequence, result.last_sequence, result.digest))
            case AbortAnswer():
                said.append(result.abort)
            case NotClaimed():
                said.append(result.reason)
            case _:
                said.append(type(result).__name__)
    return said


def named(unit: Unit) -> list[str]:
    """What a unit does: its commands and the records that it appends, by name."""
    names: list[str] = []
    for command in unit.commands:
        names.append(str(type(command).__struct_config__.tag))
        if isinstance(command, Append):
            names.extend(tag_of(record) for record in decode_records(command.body))
    return names


def told(units: list[Unit], answers: list[Answer]) -> str:
    """Units and their answers in one line, for people."""
    lines: list[str] = []
    for number, unit in enumerate(units):
        commands = ", ".join(_command(command) for command in unit.commands)
        answer = answers[number] if number < len(answers) else None
        said = answer.code if isinstance(answer, Rejected) else ", ".join(_result(answer)) if answer else "no answer"
        lines.append(f"{unit.conversation_id} epoch {unit.fence.epoch if unit.fence else '-'}: {commands} -> {said}")
    return " | ".join(lines)


def _command(command: Command) -> str:
    tag = str(type(command).__struct_config__.tag)
    about = command.submission_id[-4:]
    if isinstance(command, Append):
        return f"append {about}[{' '.join(tag_of(record) for record in decode_records(command.body))}]"
    if isinstance(command, Claim):
        return f"claim {about} as {command.attempt_id[-4:]} for {(command.replaces or '')[-4:]}"
    return f"{tag} {about}"


def _result(answer: Accepted) -> list[str]:
    said: list[str] = []
    for result in answer.results:
        match result:
            case NotClaimed():
                said.append(f"not claimed: {result.reason}")
            case Grant():
                said.append(f"granted {result.row.submission_id[-4:]} at epoch {result.epoch}")
            case _ if getattr(result, "replayed", False):
                said.append("again")
            case _:
                said.append("ok")
    return said


class SimulatedLink:
    """One process's way to the store: what is lost may have been carried out, and may still be."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sender = new_id("snd")
        self._numbers = itertools.count(1)

    async def commit(self, units: list[Unit]) -> list[Answer]:
        data, number = encode_units(units), next(self._numbers)
        return decode_answers(await self._ask(lambda: self._world.store.commit(self._sender, number, data)))

    async def call(self, method: str, *args: Any) -> Any:
        return await self._ask(lambda: self._world.store.call(method, *args))

    def call_blocking(self, method: str, *args: Any) -> Any:
        raise AssertionError("the simulation has no threads")

    def close(self) -> None:
        return

    async def _ask(self, deliver: Callable[[], Any]) -> Any:
        network, faults = self._world.network, self._world.faults
        fault = faults.first_of(Fault.CALL_LOST, Fault.CALL_LATE, Fault.CALL_DOUBLED, Fault.ANSWER_LOST)
        await network.travel()
        if fault in (Fault.CALL_LATE, Fault.CALL_DOUBLED):
            self._deliver_later(deliver)
        if fault in (Fault.CALL_LOST, Fault.CALL_LATE):
            await asyncio.sleep(faults.between(*_NOTICED_S))
            raise StoreUnavailable(f"{fault}")
        answer = deliver()
        await network.travel()
        if fault is Fault.ANSWER_LOST:
            raise StoreUnavailable(f"{fault}")
        return answer

    def _deliver_later(self, deliver: Callable[[], Any]) -> None:
        life = self._world.store.lives

        def arrive() -> None:
            if self._world.store.lives != life:
                return  # a call is for the process that it was sent to, not for the one after it
            with contextlib.suppress(Exception):  # nobody waits for this answer any more
                deliver()

        delay_s = self._world.faults.between(*_LATE_S)
        asyncio.get_running_loop().call_later(delay_s, arrive, context=contextvars.Context())


class Lost(Exception):
    """A call between processes has no answer; it may have been carried out."""


async def call_process(network: Network, target: SimulatedProcess, work: Callable[[], Any], *, noticed: bool) -> Any:
    """Run `work()` in `target` and bring its answer back. Raises: Lost; and what `work` raises.

    `noticed` says whether the caller learns of the target's death; otherwise it waits for what never comes.
    """
    fault = network.faults.first_of(Fault.CALL_LOST, Fault.CALL_DOUBLED, Fault.ANSWER_LOST)
    await network.travel()
    if fault is Fault.CALL_LOST or not target.alive:
        raise Lost(target.name)
    task = target.spawn(work())
    if fault is Fault.CALL_DOUBLED:
        target.spawn(_quietly(network, work))
    await asyncio.wait({task, target.death} if noticed else {task}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done() or not target.alive:
        raise Lost(target.name)
    await network.travel()
    if fault is Fault.ANSWER_LOST:
        raise Lost(target.name)
    return task.result()


async def _quietly(network: Network, work: Callable[[], Any]) -> None:
    await network.travel()
    with contextlib.suppress(Exception):
        await work()
