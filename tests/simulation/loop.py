"""A deterministic event loop: virtual time, no threads, no sockets, and the next callback drawn by a seeded chance."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import itertools
import random
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

STEPS_AT_ONE_TIME_MAX = 20_000  # far beyond what any seed needs: more is a loop that waits for nothing


class Stuck(Exception):
    """Nothing can happen any more, or too much happens while no time passes."""


class SimulatedTask(asyncio.Task[Any]):
    """A task whose hash does not depend on its address, so that sets of tasks have one order in every process."""

    def __init__(self, coro: Any, *, number: int, **more: Any) -> None:
        self.number = number
        super().__init__(coro, **more)

    def __hash__(self) -> int:
        return self.number


class SimulatedFuture(asyncio.Future[Any]):
    """The same for futures."""

    def __init__(self, *, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class Scheduled:
    """A callback and when it is due: what asyncio needs of its handles, which cost twice as much."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "loop", "process", "time_s")

    def __init__(
        self,
        callback: Any,
        args: tuple[Any, ...],
        loop: SimulationLoop,
        context: contextvars.Context | None,
        time_s: float,
    ) -> None:
        self.callback = callback
        self.args = args
        self.loop = loop
        self.context = contextvars.copy_context() if context is None else context
        self.process: SimulatedProcess | None = self.context.get(PROCESS)
        self.is_cancelled = False
        self.time_s = time_s

    def run(self) -> None:
        try:
            self.context.run(self.callback, *self.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.loop.call_exception_handler({"message": f"exception in {self.callback!r}", "exception": error})

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.time_s


class SimulatedProcess:
    """A process as the loop knows it: killed, none of its callbacks runs any more; paused, they run later.

    `fuse` counts its steps down to its end, so that it ends at any await.
    """

    def __init__(self, name: str, loop: SimulationLoop) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.fuse: int | None = None
        self.death: asyncio.Future[None] = loop.create_future()
        self.on_end: Callable[[], None] = lambda: None
        self._loop = loop
        self._held: list[Scheduled] = []

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` as a task of this process; so is whatever it starts."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return self._loop.create_task(work, context=context)

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self._held.clear()
            self.death.set_result(None)
            self.on_end()

    def pause(self) -> None:
        self.paused = self.alive

    def go_on(self) -> None:
        self.paused = False
        held, self._held = self._held, []
        self._loop.ready.extend(held)

    def hold(self, handle: Scheduled) -> None:
        self._held.append(handle)


PROCESS: contextvars.ContextVar[SimulatedProcess | None] = contextvars.ContextVar("process", default=None)
"""The process that the running code belongs to; None for the world around all processes."""


class SimulationLoop(asyncio.AbstractEventLoop):
    """Enough of an event loop for asyncio's tasks, timeouts and locks. Time passes when nothing else can happen."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._numbers = itertools.count(1)
        self._timers: list[tuple[float, int, Scheduled]] = []
        self._now = 0.0
        self._steps_now = 0
        self._tasks: list[SimulatedTask] = []  # all are kept: none may be closed by the collector in mid-run
        self.ready: list[Scheduled] = []
        self.steps = 0
        self.failure: BaseException | None = None

    # --- running -----------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run to the end of `main`. Raises: what `main` raises, what `fail` was told, Stuck."""
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(main)
            while not task.done():
                self._step()
                if self.failure is not None:
                    raise self.failure
            return task.result()
        finally:
            asyncio._set_running_loop(None)
            self._abandon()

    def fail(self, failure: BaseException) -> None:
        """End the run with the first failure, whatever the code under test makes of exceptions."""
        self.failure = self.failure or failure

    def _step(self) -> None:
        ready = self.ready
        if not ready:
            self._pass_time()
        index = int(self._chance.random() * len(ready))
        ready[index], ready[-1] = ready[-1], ready[index]
        handle = ready.pop()
        if handle.is_cancelled:
            return
        process = handle.process
        if process is None:
            self._run_handle(handle)
        elif process.paused:
            process.hold(handle)
        elif process.alive:
            self._run_handle(handle)
            if process.fuse is not None:
                process.fuse -= 1
                if process.fuse <= 0:
                    process.kill()

    def _run_handle(self, handle: Scheduled) -> None:
        self.steps += 1
        self._steps_now += 1
        if self._steps_now > STEPS_AT_ONE_TIME_MAX:
            raise Stuck(f"{self._steps_now} steps at {self._now:.3f} s, and no end: {handle.callback!r}")
        handle.run()

    def _pass_time(self) -> None:
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            raise Stuck(f"nothing can happen any more at {self._now:.3f} s")
        self._now = self._timers[0][0]
        self._steps_now = 0
        while self._timers and self._timers[0][0] <= self._now:
            handle = heapq.heappop(self._timers)[2]
            if not handle.is_cancelled:
                self.ready.append(handle)

    def _abandon(self) -> None:
        """Close what never came to its end, here and not by the collector inside of another run."""
        self.ready.clear()
        self._timers.clear()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False
                with contextlib.suppress(BaseException), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of what it was about to await when its process ended
                    task.get_coro().close()
            elif not task.cancelled():
                task.exception()
        self._tasks.clear()
        self.ready.clear()
        self._timers.clear()

    # --- what asyncio asks of a loop ---------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        handle = Scheduled(callback, args, self, context, self._now)
        self.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        handle = Scheduled(callback, args, self, context, when)
        heapq.heappush(self._timers, (max(when, self._now), next(self._numbers), handle))
        return handle

    def create_future(self) -> SimulatedFuture:
        return SimulatedFuture(number=next(self._numbers), loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> SimulatedTask:
        task = SimulatedTask(coro, number=next(self._numbers), loop=self, name=name or "task", context=context)
        self._tasks.append(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and "never retrieved" not in context.get("message", ""):
            self.fail(error)

    async def shutdown_asyncgens(self) -> None:
        return
