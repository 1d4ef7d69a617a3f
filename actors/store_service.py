"""The store's side of its channel: what arrives while a commit is on its way is committed together by the next one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..storage.commands import Answer, Unit, decode_units, encode_answers
from ..storage.contract import Store
from ..storage.errors import LanewayError
from .channel import ChannelAddress, ChannelServer
from .deliveries import Deliveries
from .event_loop import new_event_loop

_GROUP_UNITS_MAX = 1024  # bounds one transaction to some ten milliseconds
_LINGER_S = 0.003
_AT_WORK_S = 0.05
_READERS = 4

_Call = tuple[list[Unit], asyncio.Future[list[Answer]]]


class StoreService:
    """Serves one store from a thread of its own.

    Commits are made in the event loop itself: while one is written, the calls of others gather in their sockets, and
    a commit of many units costs little more than one of a single unit.
    """

    def __init__(self, store: Callable[[], Store], deliveries: Deliveries, host: str) -> None:
        self._store = store
        self._deliveries = deliveries
        self._host = host
        self._waiting: list[_Call] = []
        self._due: asyncio.TimerHandle | None = None
        self._soon = False
        self._heard: dict[str, float] = {}
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="laneway-store-read")
        self._server = ChannelServer(self._carry_out)
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="laneway-store-channel", daemon=True)

    def start(self) -> ChannelAddress:
        """Begin to serve, from this thread; where."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._server.start(self._host), self._loop).result()

    def close(self) -> None:
        """Serve no more; what is being committed is committed."""
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()
        self._readers.shutdown()
        self._loop.close()

    def _stop(self) -> None:
        self._server.close()
        self._loop.call_soon(self._loop.stop)

    async def _carry_out(self, method: str, args: tuple[Any, ...]) -> Any:
        if method == "commit":
            sender, number, units = args
            self._deliveries.take(sender, number)
            return encode_answers(await self._commit(sender, decode_units(units)))
        name, given = args
        return await self._loop.run_in_executor(self._readers, lambda: getattr(self._store(), name)(*given))

    def _expected(self, sender: str) -> int:
        """How many senders are at work now, this one included."""
        now = self._loop.time()
        self._heard.pop(sender, None)
        self._heard[sender] = now
        for other, at in list(self._heard.items()):
            if at > now - _AT_WORK_S:
                break
            del self._heard[other]
        return len(self._heard)

    async def _commit(self, sender: str, units: list[Unit]) -> list[Answer]:
        future: asyncio.Future[list[Answer]] = self._loop.create_future()
        self._waiting.append((units, future))
        if self._due is None:
            self._due = self._loop.call_later(_LINGER_S, self._commit_waiting)
        if len(self._waiting) >= self._expected(sender) and not self._soon:
            self._soon = True
            self._loop.call_soon(self._commit_waiting)  # behind all calls that have arrived by now
        return await future

    def _commit_waiting(self) -> None:
        """Commit what waits; called when all senders that are at work wait, or a moment after the first one."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        self._soon = False
        if not self._waiting:
            return
        count = units = 0
        for given, _ in self._waiting:
            units += len(given)
            if count and units > _GROUP_UNITS_MAX:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        if self._waiting:
            self._soon = True
            self._loop.call_soon(self._commit_waiting)
        self._commit_group(group)

    def _commit_group(self, group: list[_Call]) -> None:
        try:
            answers = iter(self._store().commit([unit for given, _ in group for unit in given]))
        except Exception as error:
            if len(group) > 1 and not isinstance(error, LanewayError):
                for call in group:  # a fault of one of them must not become the others'
                    self._commit_group([call])
                return
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for given, future in group:
            found = [next(answers) for _ in given]
            if not future.done():
                future.set_result(found)
