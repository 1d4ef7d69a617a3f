"""What a lane is given: its store, its agents, its clock, and whom to tell."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ...agents.registry import Registry
from ...storage.commands import Accepted, Unit
from ...storage.contract import LogPage, Snapshot
from ...storage.failpoints import Failpoints
from ...storage.header import Checkpoint
from ...storage.ledger import Row
from ...storage.records import AnyRecord
from .settings import LaneSettings
from .stopping import Adrift


class LaneStore(Protocol):
    """The store as a lane sees it. A call returns when the store has answered; outages are waited out behind it."""

    async def commit(self, unit: Unit) -> Accepted:
        """Raises: the error that the store refused the unit with."""
        ...

    async def read_log(self, conversation_id: str, after: int, limit: int) -> LogPage: ...

    async def load_checkpoint(self, conversation_id: str) -> Checkpoint | None: ...

    async def snapshot(self, submission_id: str) -> Snapshot: ...

    async def lookup(self, submission_id: str) -> Row | None: ...

    async def aborts_owed(self, conversation_id: str) -> list[str]:
        """Submissions whose abort was asked for and that nobody runs, so that nobody else will settle them."""
        ...

    async def quarantine(self, conversation_id: str, reason: str, author: str) -> object:
        """Keep the conversation's lane from being claimed by anybody, until an operator releases it."""
        ...


@dataclass(frozen=True, kw_only=True)
class LaneServices:
    """Everything that is not the lane's own; clocks and chance are handed in (`now_ms` wall clock, `monotonic` s)."""

    store: LaneStore
    registry: Registry
    owner_id: str
    settings: LaneSettings
    now_ms: Callable[[], int]
    monotonic: Callable[[], float]
    chance: random.Random
    recorded: Callable[[str, tuple[AnyRecord, ...]], None]
    settled: Callable[[str], None]
    lane_idle: Callable[[], None]
    failpoints: Failpoints
    counts: Counter[str]
    adrift: Adrift
