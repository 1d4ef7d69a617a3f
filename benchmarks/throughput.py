"""Turns a second: user input, model, one tool, model, settled; a turn counts when its settlement is durable.

    python benchmarks/throughput.py                        # Ray, default placement, 200 conversations, 64 at a time
    python benchmarks/throughput.py --local --turns 1000   # the same in one process
    python benchmarks/throughput.py --lanes-per-actor 1 --conversations 8 --json

The model and the tool answer at once (300 and 200 bytes). It fails loudly when the work was not done: settlements are
counted in the store and the convergence check runs over all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import laneway
from laneway.benchmarks.result import NotDone
from laneway.benchmarks.turns import all_settled, run_turns, turn_agent


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=2_000, help="turns that are measured")
    parser.add_argument("--conversations", type=int, default=200, help="conversations that they are spread over")
    parser.add_argument("--concurrency", type=int, default=64, help="turns under way at a time")
    parser.add_argument("--lanes-per-actor", type=int, default=256)
    parser.add_argument("--local", action="store_true", help="one process, without Ray")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "bench.duckdb"
        launch = laneway.local if chosen.local else laneway.start
        with launch(turn_agent(), store=store, lanes_per_actor=chosen.lanes_per_actor) as runtime:
            conversations = [runtime.conversation(f"bench-{number}") for number in range(chosen.conversations)]
            warm = min(chosen.conversations, chosen.turns)
            asyncio.run(run_turns(conversations, warm, chosen.concurrency))
            before = runtime.describe().store
            began = time.perf_counter()
            latencies = asyncio.run(run_turns(conversations, chosen.turns, chosen.concurrency))
            seconds = time.perf_counter() - began
            after = runtime.describe().store
            try:
                all_settled(runtime, warm + chosen.turns)
            except NotDone as error:
                print(f"the work was not done: {error}", file=sys.stderr)
                return 1
    latencies.sort()
    result = {
        "class": "DR/duckdb" + (" in one process" if chosen.local else " on Ray"),
        "turns": chosen.turns,
        "conversations": chosen.conversations,
        "concurrency": chosen.concurrency,
        "lanes_per_actor": chosen.lanes_per_actor,
        "turns_per_second": round(chosen.turns / seconds, 1),
        "p50_ms": round(statistics.median(latencies) * 1000, 1),
        "p99_ms": round(latencies[int(len(latencies) * 0.99) - 1] * 1000, 1),
        "commits": after["commits"] - before["commits"],
        "units_per_turn": round((after["units"] - before["units"]) / chosen.turns, 2),
        "body_bytes_per_turn": round((after["body_bytes"] - before["body_bytes"]) / chosen.turns),
    }
    if chosen.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name.replace('_', ' '):>22}  {value}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
