"""How an effect is ended whose result nobody wants any more: asked, then cancelled, then left behind (design 5)."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from ...agents.context import AbortSignal
from ...agents.threads import contained, left_behind
from .settings import LaneSettings

_log = logging.getLogger("laneway.lane")
_T = TypeVar("_T")


class SelfCancelled(Exception):
    """An effect cancelled its own task. Nobody asked for that: it is a failure like any other."""


class OutOfTime(Exception):
    """The effect was ended since its own time was up: not the TimeoutError that it may raise itself."""


class Adrift:
    """Effects that were ended and still run in this process: nobody waits for them, and nothing of them counts.

    `abandoned_effects` in the counts says how many there ever were. A process with some is to be replaced.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads: set[threading.Thread] = set()

    @property
    def running(self) -> int:
        """How many still run now."""
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        return len(self._tasks) + len(self._threads)

    def let_go(self, task: asyncio.Task[Any]) -> None:
        """The task ignored its cancellation for as long as it may."""
        self._count(task.get_name())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def watch(self, thread: threading.Thread, after_s: float) -> None:
        """Nothing can cancel a thread: it is counted when it still runs `after_s` from now."""
        asyncio.get_running_loop().call_later(after_s, self._look_at, thread)

    def _look_at(self, thread: threading.Thread) -> None:
        if thread.is_alive():
            self._count(thread.name)
            self._threads.add(thread)

    def _count(self, name: str) -> None:
        self._counts["abandoned_effects"] += 1
        _log.warning("%s ignores that it was ended; the lane goes on without it", name)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        _drop_outcome(task)


class Leash:
    """Holds effects that share one signal, and ends them when their time is up or when whoever holds is cancelled."""

    def __init__(self, settings: LaneSettings, adrift: Adrift, signal: AbortSignal | None = None) -> None:
        self._settings = settings
        self._adrift = adrift
        self._signal = AbortSignal() if signal is None else signal

    async def hold(self, work: Coroutine[Any, Any, _T], timeout_s: float, name: str) -> _T:
        """What `work` returns or raises; it waits no longer than the time, the grace and the bound of a cancellation.

        What it returns in spite of being ended is a fact and is told; what it raises then is nobody's failure.
        Raises: OutOfTime, SelfCancelled.
        """
        threads: list[threading.Thread] = []
        context = contextvars.copy_context()
        context.run(left_behind.set, threads)
        task = asyncio.get_running_loop().create_task(_held(work), name=name, context=context)
        try:
            await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            if await self._end(task, threads):
                return task.result()
            raise
        finally:
            if task.done():
                work.close()  # it never began where its task was cancelled first
        if not task.done() and not await self._end(task, threads):
            raise OutOfTime
        if task.cancelled():
            raise SelfCancelled("the call cancelled its own task")
        return task.result()

    async def _end(self, task: asyncio.Task[Any], threads: list[threading.Thread]) -> bool:
        """Ask, cancel, let go. Whether the outcome counts: it ended by itself, or gave its result all the same."""
        settings = self._settings
        try:
            if not task.done():
                self._signal.set()
                if self._signal.watched:
                    await asyncio.wait({task}, timeout=settings.abort_grace_s)
            if task.done():
                return not task.cancelled()
            task.cancel()
            await asyncio.wait({task}, timeout=settings.abandon_after_s)
            return task.done() and not task.cancelled() and task.exception() is None
        finally:
            if not task.done():
                self._adrift.let_go(task)
            else:
                _drop_outcome(task)
            for thread in threads:
                self._adrift.watch(thread, settings.abandon_after_s)


async def _held(work: Coroutine[Any, Any, _T]) -> _T:
    try:
        return await work
    except (KeyboardInterrupt, SystemExit) as error:  # out of a task of its own, either would end the event loop
        raise contained(error) from error


def _drop_outcome(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
