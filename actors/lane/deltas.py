"""Deltas as canonical records: text and reasoning, coalesced, while the model still streams (DUR-008)."""

from __future__ import annotations

import asyncio

from ...agents.protocol import Delta
from ...storage.ids import new_id
from ...storage.records import ModelDeltaRecorded
from .outbox import Outbox

_CHARACTERS = 1_000  # a commit for about 250 tokens: seconds of a stream, and one record in place of hundreds


class DeltaLog:
    """Records what one model call streams. Partial tool arguments never reach it: a `Delta` has none.

    What is recorded is audit content and forms no turn: when the call dies, recovery asks the model again.
    """

    def __init__(self, outbox: Outbox, run_id: str, turn: int) -> None:
        self._outbox = outbox
        self._run_id = run_id
        self._turn = turn
        self._kind: str = "text"
        self._texts: list[str] = []
        self._length = 0
        self._flushing: asyncio.Task[None] | None = None

    def add(self, delta: Delta) -> None:
        """Take a delta at once; what has gathered is committed beside the stream."""
        if delta.kind != self._kind:
            self._cut()
            self._kind = delta.kind
        self._texts.append(delta.text)
        self._length += len(delta.text)
        if self._length >= _CHARACTERS:
            self._cut()
            if self._flushing is None or self._flushing.done():
                self._flushing = asyncio.get_running_loop().create_task(self._outbox.flush())

    async def close(self) -> None:
        """The call has ended: put the rest into the outbox. Raises: what the store refused a flush with."""
        self._cut()
        if self._flushing is not None:
            await self._flushing

    def _cut(self) -> None:
        text = "".join(self._texts)
        self._texts, self._length = [], 0
        if text:
            self._outbox.record(
                ModelDeltaRecorded(
                    id=new_id("rec"),
                    run_id=self._run_id,
                    turn=self._turn,
                    kind="reasoning" if self._kind == "reasoning" else "text",
                    text=text,
                )
            )
