"""What activation and a turn cost as a conversation grows: it should be the same at 100 and at 100,000 records.

    python benchmarks/growth.py                       # 100, 1,000, 10,000 and 100,000 records
    python benchmarks/growth.py --sizes 100 1000 --json

Each size has a DuckDB file of its own. The history is written in bulk; then one process takes a turn, which compacts
the prompt and saves a checkpoint, and everything is measured where nothing of it is in memory, in medians:

activation   a lane that is not in memory looks for work: header, checkpoint, suffix, claim
cold turn    a submission to such a lane, from its admission to its settlement: activation, prompt, model, two commits
warm turn    the next submission to the same lane
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from laneway import Agent, Compaction, FunctionModel
from laneway.actors.host import LaneHost
from laneway.actors.lane.settings import LaneSettings
from laneway.actors.store_client import LocalLink
from laneway.agents.registry import Registry
from laneway.cluster.inputs import check_admission
from laneway.storage.duckdb_store import DuckDBStore
from laneway.storage.values import DEFAULT_LIMITS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))  # the same histories as the tests have
from long_conversations import grow

NAME = "c"


def answer(request: Any) -> str:
    return "a" * 300


AGENT = Agent(name="support", model=FunctionModel(answer), compaction=Compaction())


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
    receipt = await host.submit(NAME, admission)
    settlement = await host.settlement(NAME, receipt.submission_id, 60)
    assert settlement is not None
    assert settlement.outcome == "completed", settlement


async def look_for_work(host: LaneHost) -> None:
    """Activate the lane, and wait until it has found that nothing is owed."""
    await host.activate([NAME])
    lane = host._lanes[NAME]
    while not lane.quiet:
        await lane.feed.changed(60, lane.feed.version)


async def fresh(path: Path, work: Callable[[LaneHost], Awaitable[Any]]) -> Any:
    """Run `work` on a host and a store that have just been opened."""
    store = DuckDBStore(path)
    store.lookup("nobody")  # the first read of a file is slower, whatever it reads
    host = LaneHost(LocalLink(store), Registry([AGENT]), LaneSettings())
    await host.start()
    try:
        return await work(host)
    finally:
        await host.close()
        host._link.close()


async def timed(work: Awaitable[Any]) -> float:
    """How long it takes, in ms."""
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000


async def measure(folder: Path, records: int, rounds: int) -> dict[str, Any]:
    path = folder / f"{records}.duckdb"
    store = DuckDBStore(path)
    written = grow(store, NAME, records)
    store.close()
    first_ms = await fresh(path, lambda host: timed(turn(host)))
    activations: list[float] = []
    colds: list[float] = []
    warms: list[float] = []

    async def cold_and_warm(host: LaneHost) -> dict[str, Any]:
        colds.append(await timed(turn(host)))
        stats = host.stats()
        warms.extend([await timed(turn(host)) for _ in range(5)])
        return stats

    stats: dict[str, Any] = {}
    for _ in range(rounds):
        activations.append(await fresh(path, lambda host: timed(look_for_work(host))))
        stats = await fresh(path, cold_and_warm)
    if stats.get("checkpoint_loaded") != 1 or stats.get("checkpoint_rejected"):
        raise SystemExit(f"no checkpoint was used: {stats}")
    return {
        "records": written,
        "activation_ms": round(statistics.median(activations), 2),
        "cold_turn_ms": round(statistics.median(colds), 2),
        "warm_turn_ms": round(statistics.median(warms), 2),
        "without_checkpoint_ms": round(first_ms, 2),
        "records_read": stats["records_read"],
        "bytes_read": stats["log_bytes_read"] + stats["checkpoint_bytes_read"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000], help="records")
    parser.add_argument("--rounds", type=int, default=15, help="processes that are measured for each size")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = [asyncio.run(measure(Path(folder), size, chosen.rounds)) for size in chosen.sizes]
    for row in found:
        for name in ("activation", "cold_turn", "warm_turn"):
            row[f"{name}_ratio"] = round(row[f"{name}_ms"] / found[0][f"{name}_ms"], 2)
    if chosen.json:
        print(json.dumps({"class": "DR/duckdb in one process", "rounds": chosen.rounds, "sizes": found}))
        return 0
    print("   ".join(f"{name.replace('_', ' '):>16}" for name in found[0]))
    for row in found:
        print("   ".join(f"{value:>16,}" for value in row.values()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
