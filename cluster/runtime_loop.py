"""The event loop behind a runtime's calls: a thread of its own, and an end that leaves no caller waiting."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from ..storage.errors import RuntimeUnreachable

_T = TypeVar("_T")
_JOIN_S = 10.0  # foreign code that blocks the loop must not hold up whoever ends it
_ROUNDS = 10  # of the loop, in which cancelled calls clear up behind themselves; what ignores that is left


class RuntimeLoop:
    """Runs coroutines for blocking callers, and for callers on other event loops."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="laneway-runtime", daemon=True)
        self._calls = set[Future[Any]]()
        self._lock = threading.Lock()
        self._ended = False
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` and wait for it. Raises: RuntimeUnreachable with code "runtime_stopped" when the loop ends first,
        or has ended; the call may have been carried out then."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call of Laneway was made on its own event loop; use the async form")
        future = self._begun(work)
        try:
            return future.result()
        except CancelledError:
            raise _stopped() from None
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` and await it on the caller's own loop. Raises: as `run`."""
        try:
            return await asyncio.wrap_future(self._begun(work))
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
            raise _stopped() from None

    def end(self) -> None:
        """Stop the loop. Whoever still waits for a call is told so; nothing is begun any more. Idempotent."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        for future in list(self._calls):
            future.cancel()  # before the stop, so that its task hears of it
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
        self._thread.join(timeout=_JOIN_S)
        with contextlib.suppress(RuntimeError):
            self._loop.close()

    async def _stop(self) -> None:
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        self._loop.stop()

    def _begun(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        with self._lock:  # a call is either known to `end` or refused
            if self._ended:
                work.close()
                raise _stopped()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future


def _stopped() -> RuntimeUnreachable:
    message = "the runtime was stopped; a call that was under way may have been carried out"
    return RuntimeUnreachable(message, code="runtime_stopped", retryable=False)
