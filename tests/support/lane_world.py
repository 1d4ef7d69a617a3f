"""A small world for tests of lanes: a store that outlives its processes, processes that can be killed, a supplier that
keeps count, and agents whose model and tools tell what they do."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from store_builders import Clock

from laneway import Agent, FunctionModel, Tool
from laneway.actors.host import LaneHost
from laneway.actors.lane.settings import LaneSettings
from laneway.actors.lane.values import Settlement
from laneway.actors.store_client import LocalLink
from laneway.agents.protocol import Delta
from laneway.agents.registry import Registry
from laneway.cluster.client import records_of
from laneway.cluster.inputs import check_admission
from laneway.recovery.attention import attention
from laneway.recovery.convergence import Report
from laneway.storage.commands import Accepted, Answer, ResolveUnknown, Unit
from laneway.storage.contract import Store
from laneway.storage.errors import StoreUnavailable
from laneway.storage.failpoints import Failpoints, Point, SimulatedCrash
from laneway.storage.header import Batch
from laneway.storage.ledger import Receipt, Row
from laneway.storage.memory_store import MemoryStore
from laneway.storage.records import AnyRecord, RecoveryDecided, tag_of
from laneway.storage.values import DEFAULT_LIMITS

QUICK = {
    "model_backoff_first_s": 0.001,
    "model_backoff_most_s": 0.002,
    "tool_backoff_first_s": 0.001,
    "tool_backoff_most_s": 0.002,
    "fault_backoff_first_s": 0.001,
    "drain_grace_s": 0.0,
}
SECONDS = 10.0  # how long a test waits for what must come; it fails then, and never sleeps before


class Supplier:
    """The world outside, backed by a file: what was really done, line by line, whoever did it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def book(self, kind: str, key: str) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([kind, key]) + "\n")

    def lines(self) -> list[tuple[str, str]]:
        return [tuple(json.loads(line)) for line in self.path.read_text().splitlines()]

    def count(self, kind: str) -> int:
        return sum(1 for found, _ in self.lines() if found == kind)

    def keys(self, kind: str) -> Counter[str]:
        return Counter(key for found, key in self.lines() if found == kind)


class Crash(Failpoints):
    """Failpoints that stop the whole process: from the crash on, nothing of it gets past any point."""

    def __init__(self, plan: Mapping[Point, int] | None = None, *, exit_code: int | None = None) -> None:
        super().__init__(plan, exit_code=exit_code)
        self.dead = False
        self._told: list[Callable[[], None]] = []

    def tell(self, told: Callable[[], None]) -> None:
        self._told.append(told)

    def hit(self, point: Point) -> None:
        if self.dead:
            raise SimulatedCrash(f"the process is dead at {point}")
        try:
            super().hit(point)
        except SimulatedCrash:
            self.dead = True
            for told in self._told:
                told()
            raise

    def plan(self, plan: Mapping[Point, int]) -> None:
        """From now on: stop at the n-th hit of a point, counted from here."""
        self._plan = {point: self.hits[point] + number for point, number in plan.items()}

    def disarm(self) -> None:
        """What a new process has: nothing is planned."""
        self._plan = {}
        self.dead = False


class Trouble:
    """Loses the `at`-th commit: on its way, or its answer; or every call while `down`."""

    def __init__(self, at: int = 0, how: str = "before") -> None:
        self.at = at
        self.how = how
        self.down = False
        self.commits = 0
        self.lost = 0

    def __call__(self, kind: str) -> str | None:
        if kind == "commit":
            self.commits += 1
        if self.down or (kind == "commit" and self.commits == self.at):
            self.lost += 1
            return self.how
        return None


class ProcessLink:
    """A process's way to the store. Cut, no call of it arrives and no answer comes back; `trouble` is asked first.

    `trouble(kind)` returns "before", "after" or None: the call is lost on its way, or its answer is.
    """

    def __init__(self, store: Store, trouble: Callable[[str], str | None] = lambda kind: None) -> None:
        self._inner = LocalLink(store)
        self._trouble = trouble
        self.cut = False
        self.units: list[Unit] = []
        self.before_commit: Callable[[list[Unit]], Awaitable[None]] | None = None
        self.renewed = threading.Event()
        self.renewed_until: list[int] = []
        self.reads = Counter[str]()

    async def commit(self, units: list[Unit]) -> list[Answer]:
        await self._alive()
        trouble = self._trouble("commit")
        if trouble == "before":
            raise StoreUnavailable("lost on its way")
        if self.before_commit is not None:
            await self.before_commit(units)
            await self._alive()
        self.units.extend(units)
        answers = await self._inner.commit(units)
        await self._alive()
        if trouble == "after":
            raise StoreUnavailable("the answer was lost")
        return answers

    async def call(self, method: str, *args: Any) -> Any:
        await self._alive()
        self.reads[method] += 1
        if self._trouble(method) is not None:
            raise StoreUnavailable("lost on its way")
        return await self._inner.call(method, *args)

    def call_blocking(self, method: str, *args: Any) -> Any:
        if self.cut:
            raise StoreUnavailable("the process is dead")
        answer = self._inner.call_blocking(method, *args)
        if method == "renew_lease":
            self.renewed_until.append(answer)
            self.renewed.set()
        return answer

    def close(self) -> None:
        self._inner._thread.shutdown()
        self._inner._readers.shutdown()

    async def _alive(self) -> None:
        if self.cut:
            await asyncio.get_running_loop().create_future()


class Begun:
    """A call whose answer may never come; `close` forgets it, whatever became of it."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def close(self) -> None:
        assert self._task.done()
        if not self._task.cancelled():
            self._task.exception()


class Process:
    """One process that hosts lanes. `kill` ends it where it stands: it gives nothing back and says nothing more."""

    def __init__(self, world: World, link: ProcessLink, host: LaneHost, failpoints: Crash) -> None:
        self.world = world
        self.link = link
        self.host = host
        self.failpoints = failpoints
        self._others = asyncio.all_tasks()
        self._crashed = asyncio.Event()
        loop = asyncio.get_running_loop()
        failpoints.tell(lambda: loop.call_soon_threadsafe(self._stopped))

    def _stopped(self) -> None:
        self.link.cut = True
        self._crashed.set()

    async def crashed(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self._crashed.wait()

    async def crashed_or_at_rest(self, conversation: str = "c") -> bool:
        """Wait for what comes first; True when it is the crash."""
        tasks = [asyncio.ensure_future(self.crashed()), asyncio.ensure_future(self.at_rest(conversation))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self._crashed.is_set() or self.failpoints.dead

    async def kill(self) -> None:
        self.link.cut = True
        self.host._closed.set()  # a dead process has no lease thread, and tells nobody
        tasks = asyncio.all_tasks() - self._others - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.link.close()

    async def submit(self, content: Any, *, conversation: str = "c", key: str | None = None, **more: Any) -> Receipt:
        admission = check_admission(
            agent=more.pop("agent", "support"),
            content=content,
            idempotency_key=key,
            principal=more.pop("principal", "alice"),
            extra=None,
            limits=DEFAULT_LIMITS,
        )
        return await self.host.submit(conversation, admission)

    async def steer(
        self, content: Any, *, conversation: str = "c", key: str | None = None, principal: str = "alice"
    ) -> Receipt:
        admission = check_admission(
            agent="",
            content=content,
            idempotency_key=key,
            principal=principal,
            extra=None,
            limits=DEFAULT_LIMITS,
            steering=True,
        )
        return await self.host.steer(conversation, admission)

    def begin(self, work: Coroutine[Any, Any, Any]) -> Begun:
        """Start what the process may not live to answer."""
        return Begun(asyncio.get_running_loop().create_task(work))

    def begin_submit(self, content: Any, **more: Any) -> Begun:
        return self.begin(self.submit(content, **more))

    async def settled(self, receipt: Receipt, timeout_s: float = SECONDS) -> Settlement:
        found = await self.host.settlement(receipt.conversation_id, receipt.submission_id, timeout_s)
        assert found is not None, f"still open: {self.world.row(receipt)}"
        return found

    async def run(self, content: Any, **more: Any) -> Settlement:
        return await self.settled(await self.submit(content, **more))

    async def abort(self, receipt: Receipt, abort_id: str = "abt_1", reason: str = "enough") -> Any:
        return await self.host.abort(receipt.conversation_id, receipt.submission_id, abort_id, "bob", reason)

    async def recover(self) -> None:
        """What a supervisor's sweep does."""
        rows = self.world.store.scan_nonterminal().rows
        await self.host.activate(attention(rows, self.world.clock())[0])

    async def at_rest(self, conversation: str = "c") -> None:
        """Wait until the lane of this process has nothing more to do."""
        async with asyncio.timeout(SECONDS):
            while (lane := self.host._lanes.get(conversation)) is not None and not lane.at_rest:
                await lane.feed.changed(SECONDS, lane.feed.version)


class World:
    """A store, a clock and a supplier; processes come and go."""

    def __init__(self, adapter: str, folder: Path, *, failpoints: Crash | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.adapter = adapter
        self.folder = folder
        self.clock = Clock()
        self.supplier = Supplier(folder / "supplier.jsonl")
        self.failpoints = failpoints or Crash()
        self.store = self._open()
        self.processes: list[Process] = []

    def _open(self) -> Store:
        if self.adapter == "memory":
            return MemoryStore(now_ms=self.clock, failpoints=self.failpoints)
        from laneway.storage.duckdb_store import DuckDBStore

        return DuckDBStore(self.folder / "store.duckdb", now_ms=self.clock, failpoints=self.failpoints)

    async def process(
        self,
        agents: Sequence[Agent] | Agent,
        *,
        trouble: Callable[[str], str | None] = lambda kind: None,
        monotonic: Callable[[], float] | None = None,
        **settings: Any,
    ) -> Process:
        """A new process on this store."""
        link = ProcessLink(self.store, trouble)
        host = LaneHost(
            link,
            Registry([agents] if isinstance(agents, Agent) else agents),
            LaneSettings(**{**QUICK, **settings}),
            failpoints=self.failpoints,
            chance=random.Random(7),
            now_ms=self.clock,
            **({} if monotonic is None else {"monotonic": monotonic}),
        )
        process = Process(self, link, host, self.failpoints)
        self.processes.append(process)
        await host.start()
        return process

    async def kill(self, process: Process, *, how: str = "retire") -> None:
        """The process is gone. Its owner is retired, as when its death was seen, or its lease runs out."""
        await process.kill()
        self.processes.remove(process)
        self.failpoints.disarm()
        if self.adapter != "memory":
            self.store.close()
            self.store = self._open()
        if how == "retire":
            self.store.retire_owner(process.host.owner_id)
        else:
            self.clock.advance(60_000)

    async def close(self) -> None:
        for process in self.processes:
            if process.link.cut:
                await process.kill()
            else:
                await process.host.close()
                process.link.close()
        self.store.close()

    # --- looking -----------------------------------------------------------------------------------------------------

    def row(self, receipt: Receipt | str) -> Row:
        row = self.store.lookup(receipt if isinstance(receipt, str) else receipt.submission_id)
        assert row is not None
        return row

    async def resolve(self, receipt: Receipt, resolution: Any, result: Any = None) -> None:
        """An operator answers for every unknown call of the submission."""
        for call_id in self.row(receipt).unknown_calls:
            command = ResolveUnknown(
                submission_id=receipt.submission_id,
                call_id=call_id,
                resolution=resolution,
                author="ann",
                reason="saw the statement",
                result=result,
            )
            (answer,) = self.store.commit([Unit(conversation_id=receipt.conversation_id, commands=(command,))])
            assert isinstance(answer, Accepted), answer

    def batches(self, conversation: str = "c") -> list[Batch]:
        return list(self.store.read_log(conversation, 0, 100_000).batches)

    def records(self, conversation: str = "c") -> list[AnyRecord]:
        return [record for _, record in records_of(self.batches(conversation))]

    def tags(self, conversation: str = "c") -> list[str]:
        return [tag_of(record) for record in self.records(conversation)]

    def decisions(self, conversation: str = "c") -> list[str]:
        return [record.decision for record in self.records(conversation) if isinstance(record, RecoveryDecided)]

    def converged(self, *, require_settled: bool = True) -> Report:
        """The convergence check over the whole store; it must pass."""
        report = Report(outcomes={}, open={}, problems=[])
        for conversation in self.store.list_conversations():
            rows = self.store.list_rows(conversation, limit=100_000)
            report.add(rows, self.batches(conversation), require_settled=require_settled)
        assert report.passed, report.problems
        return report


# --- agents --------------------------------------------------------------------------------------------------------


def call(name: str, arguments: Any = None, *, id: str = "call_1") -> dict[str, Any]:
    """A tool call as a provider writes it; arguments that are text go as they are."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def calls(*declared: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(declared)}


def answers_since_user(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many responses follow the last thing that a user said."""
    count = 0
    for message in reversed(messages):
        if message["role"] == "user":
            return count
        count += message["role"] == "assistant"
    return count


class Script:
    """A model: for each submission the same steps. A step is a message, text, an exception, or `step(request)`.

    Each request is booked with the supplier; text is streamed in two pieces.
    """

    def __init__(self, *steps: Any, supplier: Supplier | None = None) -> None:
        self.steps = steps
        self.supplier = supplier
        self.requests: list[Any] = []

    def model(self) -> FunctionModel:
        async def respond(request: Any, emit: Callable[[Delta], None]) -> Any:
            self.requests.append(request)
            if self.supplier is not None:
                self.supplier.book("model", request.operation_id)
            step = self.steps[answers_since_user(request.messages)]
            if callable(step):
                step = await step(request)
            if isinstance(step, BaseException):
                raise step
            text = step if isinstance(step, str) else "let me see"
            emit(Delta(kind="text", text=text[:2]))
            emit(Delta(kind="text", text=text[2:]))
            return step

        return FunctionModel(respond, name="script")


def agent_of(script: Script, *tools: Tool, **more: Any) -> Agent:
    return Agent(**{"name": "support", "model": script.model(), "tools": tools, **more})


async def until(condition: Callable[[], Any]) -> None:
    """Wait for what nobody tells of: a condition that threads or foreign tasks make true."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110  (there is no event to wait on)
            await asyncio.sleep(0.001)


class Gate:
    """A place where a coroutine or a thread waits until the test lets it go; the test knows when it has come there."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reached = asyncio.Event()
        self._open = asyncio.Event()
        self._thread_open = threading.Event()

    async def wait(self) -> None:
        self._reached.set()
        await self._open.wait()

    def block(self) -> None:
        """The same from a thread, which blocks."""
        self._loop.call_soon_threadsafe(self._reached.set)
        self._thread_open.wait(SECONDS)

    async def reached(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self._reached.wait()

    def open(self) -> None:
        self._open.set()
        self._thread_open.set()


async def _note(ctx: Any, arguments: dict[str, Any]) -> str:
    return "noted"


NOTE = Tool.raw("note", _note, effect="idempotent", version="1")
"""A tool that may run again."""


class Told:
    """A model that is told, call by call, what to answer; each call can be held at its gate."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.gates = [Gate() for _ in answers]
        self.prompts: list[list[tuple[str, Any]]] = []

    def let(self, *numbers: int) -> None:
        for number in numbers:
            self.gates[number].open()

    def model(self) -> FunctionModel:
        async def respond(request: Any, emit: Any) -> Any:
            number = len(self.prompts)
            self.prompts.append([(message["role"], message["content"]) for message in request.messages])
            await self.gates[number].wait()
            answer = self.answers[number]
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return FunctionModel(respond, name="told")

    def agent(self, *tools: Tool, **more: Any) -> Agent:
        return Agent(**{"name": "support", "model": self.model(), "tools": tools, **more})
