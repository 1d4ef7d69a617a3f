"""What watchers of one conversation see: committed records, and deltas that are labelled provisional."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import msgspec

from ...agents.protocol import Delta
from ...storage.records import AnyRecord

_RECENT_RECORDS = 256  # what a watcher that keeps up never has to read from the store


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """Where a watcher stands: the last record that it saw, and its place among the deltas of one generation."""

    after: int = 0
    generation: int = 0
    delta: int = 0


class Feed:
    """Wakes watchers and hands out what came since their cursor; it never holds the lane up."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, AnyRecord]] = deque(maxlen=_RECENT_RECORDS)
        self._deltas: list[Delta] = []
        self.generation = random.getrandbits(53) | 1  # a watcher comes from another process's feed, too
        self.watched = 0
        self.version = 0
        self._change = asyncio.Event()

    def committed(self, first_sequence: int, records: tuple[AnyRecord, ...]) -> None:
        """Records are durable; what was provisional before them is superseded."""
        if self._recent and self._recent[-1][0] + 1 != first_sequence:
            self._recent.clear()  # others have written in between: watchers read that from the store
        self._recent.extend((first_sequence + index, record) for index, record in enumerate(records))
        self.turn_over()

    def delta(self, delta: Delta) -> None:
        self._deltas.append(delta)
        self.stirred()

    def turn_over(self) -> None:
        """Deltas so far belong to the past: complete, interrupted or superseded."""
        if self._deltas:
            self._deltas = []
            self.generation += 1
        self.stirred()

    def stirred(self) -> None:
        self.version += 1
        self._change.set()
        self._change = asyncio.Event()

    def forget(self) -> None:
        """Records were committed past this feed: watchers look into the store."""
        self._recent.clear()
        self.stirred()

    def close(self) -> None:
        self.stirred()

    def records_after(self, after: int) -> list[tuple[int, AnyRecord]] | None:
        """Records behind `after`, or None when they have to be read from the store."""
        if not self._recent or self._recent[0][0] > after + 1:
            return None
        return [(sequence, record) for sequence, record in self._recent if sequence > after]

    def deltas_after(self, cursor: Cursor) -> tuple[list[Delta], int]:
        """Deltas that this cursor has not seen, and how many there are now."""
        start = cursor.delta if cursor.generation == self.generation else 0
        return self._deltas[start:], len(self._deltas)

    async def changed(self, timeout_s: float, version: int) -> None:
        """Wait until something came since `version`, `timeout_s` at most."""
        if self.version != version:
            return
        change = self._change
        self.watched += 1
        try:
            async with asyncio.timeout(timeout_s):
                await change.wait()
        except TimeoutError:
            pass
        finally:
            self.watched -= 1
