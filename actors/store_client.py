"""The store as the lanes of one process use it: one call in flight, the next one carries what gathered meanwhile."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from ..recovery.attention import owes_abort
from ..recovery.backoff import backoff_s
from ..storage.commands import Accepted, Admit, Answer, Rejected, Unit
from ..storage.contract import LogPage, Quarantine, ScanPage, Snapshot, Store
from ..storage.errors import StoreFull, StoreUnavailable
from ..storage.header import Checkpoint
from ..storage.ledger import Row

_log = logging.getLogger("laneway.store")
_RETRY_S = (0.05, 1.0)  # Ray needs about 2.4 s to start a store's process again; a longer pause would add to that
_GROUP_UNITS_MAX = 512  # bounds one transaction to a few milliseconds
_GATHER_ROUNDS = 4  # of the event loop: the lanes that one answer woke have their next units ready by then
_T = TypeVar("_T")


class StoreLink(Protocol):
    """One way to a store. Every failed call is ambiguous: it may have been carried out."""

    async def commit(self, units: list[Unit]) -> list[Answer]:
        """Raises: StoreUnavailable when there was no answer; StoreFull when nothing was stored."""
        ...

    async def call(self, method: str, *args: Any) -> Any:
        """Any other method of the contract, by name."""
        ...

    def call_blocking(self, method: str, *args: Any) -> Any:
        """The same from a thread without an event loop."""
        ...

    def close(self) -> None: ...


class LocalLink:
    """A store in this process; its work is done in one thread of its own, so the lanes never wait on the disk."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="laneway-store")
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="laneway-store-read")

    async def commit(self, units: list[Unit]) -> list[Answer]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._store.commit, units)

    async def call(self, method: str, *args: Any) -> Any:
        threads = self._readers if method == "query" else self._thread
        return await asyncio.get_running_loop().run_in_executor(threads, getattr(self._store, method), *args)

    def call_blocking(self, method: str, *args: Any) -> Any:
        return self._thread.submit(getattr(self._store, method), *args).result()

    def close(self) -> None:
        self._thread.shutdown()
        self._readers.shutdown()
        self._store.close()


class StoreClient:
    """Group commit and patience: an outage is waited out with the same ids, and uses no one's retry budget."""

    def __init__(self, link: StoreLink, chance: random.Random) -> None:
        self._link = link
        self._chance = chance
        self._pending: list[tuple[Unit, asyncio.Future[Answer]]] = []
        self._sender: asyncio.Task[None] | None = None
        self._singly = 0

    @property
    def shards(self) -> tuple[StoreClient, ...]:
        """A client for each shard of the store, in order: this one, where there is one."""
        return (self,)

    async def commit(self, unit: Unit) -> Accepted:
        """Commit one unit together with whatever else waits. Raises: the error that the store refused it with."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending.append((unit, future))
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())
        answer = await asyncio.shield(future)
        if isinstance(answer, Rejected):
            raise answer.error()
        return answer

    async def read_log(self, conversation_id: str, after: int, limit: int) -> LogPage:
        return await self.read("read_log", conversation_id, after, limit)

    async def load_checkpoint(self, conversation_id: str) -> Checkpoint | None:
        return await self.read("load_checkpoint", conversation_id)

    async def snapshot(self, submission_id: str) -> Snapshot:
        return await self.read("snapshot", submission_id)

    async def lookup(self, submission_id: str) -> Row | None:
        return await self.read("lookup", submission_id)

    async def quarantine(self, conversation_id: str, reason: str, author: str) -> Quarantine:
        return await self.read("quarantine", conversation_id, reason, author)

    async def aborts_owed(self, conversation_id: str) -> list[str]:
        owed: list[str] = []
        cursor: tuple[str, int] | None = (conversation_id, 0)
        while cursor is not None:
            page: ScanPage = await self.read("scan_nonterminal", cursor, 1024)
            mine = [row for row in page.rows if row.conversation_id == conversation_id]
            owed.extend(row.submission_id for row in mine if owes_abort(row))
            cursor = page.cursor if len(mine) == len(page.rows) else None
        return owed

    async def read(self, method: str, *args: Any) -> Any:
        """Any read of the contract; an outage is waited out."""
        return await self._patiently(lambda: self._link.call(method, *args))

    async def close(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        for _, future in self._pending:
            future.cancel()

    async def _send(self) -> None:
        try:
            while self._pending:
                for _ in range(_GATHER_ROUNDS):
                    await asyncio.sleep(0)
                count = 1 if self._singly else _GROUP_UNITS_MAX
                self._singly = max(0, self._singly - 1)
                group, self._pending = self._pending[:count], self._pending[count:]
                await self._send_group(group)
        finally:
            self._sender = None

    async def _send_group(self, group: Sequence[tuple[Unit, asyncio.Future[Answer]]]) -> None:
        units = [unit for unit, _ in group]
        try:
            answers = await self._patiently(lambda: self._link.commit(units))
        except StoreFull as full:
            if len(group) > 1:
                # One by one: what landed at an earlier try, whose answer was lost, needs no space and gets its answer.
                self._pending, self._singly = [*group, *self._pending], len(group)
                return
            # Admissions are refused; what was acknowledged before waits for space, since it must reach its end.
            answers = [Rejected.from_error(full) if _admits(unit) else None for unit in units]
            asyncio.get_running_loop().call_later(1.0, self._retry, [pair for pair in group if not _admits(pair[0])])
        except Exception as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        except asyncio.CancelledError:
            for _, future in group:
                future.cancel()
            raise
        for (_, future), answer in zip(group, answers, strict=True):
            if answer is not None and not future.done():
                future.set_result(answer)

    def _retry(self, group: list[tuple[Unit, asyncio.Future[Answer]]]) -> None:
        self._pending.extend(group)
        if self._pending and self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def _patiently(self, call: Callable[[], Any]) -> Any:
        tries = 0
        while True:
            try:
                return await call()
            except StoreUnavailable as error:
                tries += 1
                if tries == 1 or tries % 20 == 0:
                    _log.warning("the store gives no answer (try %d): %s", tries, error)
                await asyncio.sleep(backoff_s(tries, self._chance, first_s=_RETRY_S[0], most_s=_RETRY_S[1]))


def _admits(unit: Unit) -> bool:
    return any(isinstance(command, Admit) for command in unit.commands)
