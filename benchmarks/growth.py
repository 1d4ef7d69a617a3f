"""What grows with a conversation's history, and what must not: the cost of a turn, the bytes of the store, its file.

Turn: each size has a DuckDB file of its own. The history is written in bulk; then one process takes a turn, which
compacts the prompt and saves a checkpoint, and everything is measured where nothing of it is in memory, in medians:

activation   a lane that is not in memory looks for work: header, checkpoint, suffix, claim
cold turn    a submission to such a lane, from its admission to its settlement: activation, prompt, model, two commits
warm turn    the next submission to the same lane
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from laneway import Agent, Compaction, FunctionModel, ModelRequest

from ..actors.host import LaneHost
from ..actors.lane.settings import LaneSettings
from ..actors.store_client import LocalLink
from ..agents.registry import Registry
from ..cluster.inputs import check_admission
from ..storage.duckdb_store import DuckDBStore
from ..storage.values import DEFAULT_LIMITS
from . import growth_file, history
from .result import NotDone, Options, Progress, Result, Target, spread

_T = TypeVar("_T")
CONVERSATION = "c"
WARM_TURNS = 5
RATIO_MAX = 1.3
BYTES_RATIO_MAX = 2.0


def measure(options: Options, progress: Progress) -> Result:
    sizes = (100, 5_000) if options.short else (100, 100_000)
    rounds = 3 if options.short else 5 * options.rounds
    with tempfile.TemporaryDirectory() as folder:
        turns = asyncio.run(turn_costs(Path(folder), sizes, rounds, progress))
        stored = growth_file.bytes_of_turns(Path(folder), 200 if options.short else 5_000, progress)
        moved = growth_file.ledger_moves(Path(folder), 20_000 if options.short else 1_000_000, progress)
    least, most = turns[0], turns[-1]
    bound = growth_file.FILE_BYTES_MAX + growth_file.WAL_BYTES_MAX
    return Result(
        measure="growth",
        configuration={"class": "DR/duckdb in one process", "rounds": rounds, "turns": stored["turns"]},
        figures={"turn": turns, "bytes": stored, "ledger": moved},
        targets=(
            Target(
                what=f"warm turn at {most['records']:,} records, times that at {least['records']:,}",
                value=most["warm_turn_ratio"],
                bound=RATIO_MAX,
            ),
            Target(what="bytes in the store a byte of content", value=stored["ratio"], bound=BYTES_RATIO_MAX),
            Target(
                what=f"bytes of file and WAL at most, over {moved['transitions']:,} ledger transitions",
                value=moved["file_bytes_most"] + moved["wal_bytes_most"],
                bound=bound,
            ),
        ),
    )


def answer(request: ModelRequest) -> str:
    return "a" * 300


AGENT = Agent(name=history.AGENT, model=FunctionModel(answer), compaction=Compaction())


class Size:
    """A store with one conversation of that many records, and what was measured on it."""

    def __init__(self, folder: Path, records: int) -> None:
        self._path = folder / f"{records}.duckdb"
        store = DuckDBStore(self._path)
        self.records = history.grow(store, CONVERSATION, records)
        store.close()
        self.first_ms = 0.0
        self.stats: dict[str, Any] = {}
        self.activations: list[float] = []
        self.colds: list[float] = []
        self.warms: list[float] = []

    async def begin(self) -> None:
        """The first turn finds no checkpoint, and leaves one."""
        self.first_ms = await self._fresh(lambda host: timed(turn(host)))

    async def round(self) -> None:
        self.activations.append(await self._fresh(lambda host: timed(look_for_work(host))))
        await self._fresh(self._cold_and_warm)

    async def _cold_and_warm(self, host: LaneHost) -> None:
        self.colds.append(await timed(turn(host)))
        self.stats = host.stats()
        self.warms.append(statistics.median([await timed(turn(host)) for _ in range(WARM_TURNS)]))

    async def _fresh(self, work: Callable[[LaneHost], Awaitable[_T]]) -> _T:
        """Run `work` on a host and a store that have just been opened."""
        store = DuckDBStore(self._path)
        store.lookup("nobody")  # the first read of a file is slower, whatever it reads
        link = LocalLink(store)
        host = LaneHost(link, Registry([AGENT]), LaneSettings())
        await host.start()
        try:
            return await work(host)
        finally:
            await host.close()
            link.close()

    def figures(self) -> dict[str, Any]:
        if self.stats.get("checkpoint_loaded") != 1 or self.stats.get("checkpoint_rejected"):
            raise NotDone(f"no checkpoint was used: {self.stats}")
        return {
            "records": self.records,
            "activation_ms": round(statistics.median(self.activations), 2),
            "cold_turn_ms": round(statistics.median(self.colds), 2),
            "warm_turn_ms": round(statistics.median(self.warms), 2),
            "warm_turn_spread_ms": spread(self.warms, 2),
            "without_checkpoint_ms": round(self.first_ms, 2),
            "records_read": self.stats["records_read"],
            "bytes_read": self.stats["log_bytes_read"] + self.stats["checkpoint_bytes_read"],
        }


async def turn_costs(folder: Path, sizes: tuple[int, ...], rounds: int, progress: Progress) -> list[dict[str, Any]]:
    """Each round measures every size, so that what the machine does meanwhile is the same for all."""
    stores = [Size(folder, records) for records in sizes]
    for store in stores:
        await store.begin()
    for number in range(rounds):
        progress("turns at each size", number, rounds)
        for store in stores:
            await store.round()
    progress("turns at each size", rounds, rounds)
    found = [store.figures() for store in stores]
    for row in found:
        for name in ("activation", "cold_turn", "warm_turn"):
            row[f"{name}_ratio"] = round(row[f"{name}_ms"] / found[0][f"{name}_ms"], 2)
    return found


async def turn(host: LaneHost) -> None:
    """One submission, from admission to settlement."""
    admission = check_admission(
        agent=AGENT.name,
        content="Where is my order?",
        idempotency_key=None,
        principal="alice",
        extra=None,
        limits=DEFAULT_LIMITS,
    )
    receipt = await host.submit(CONVERSATION, admission)
    settlement = await host.settlement(CONVERSATION, receipt.submission_id, 60)
    if settlement is None or settlement.outcome != "completed":
        raise NotDone(f"a turn did not complete: {settlement}")


async def look_for_work(host: LaneHost) -> None:
    """Activate the lane, and wait until it has found that nothing is owed."""
    await host.activate([CONVERSATION])
    lane = host._lanes[CONVERSATION]  # pyright: ignore[reportPrivateUsage]
    while not lane.quiet:
        await lane.feed.changed(60, lane.feed.version)


async def timed(work: Awaitable[Any]) -> float:
    """How long it takes, in ms."""
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000
