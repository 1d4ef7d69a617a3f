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
from typing import Any

import laneway
from laneway import Agent, FunctionModel, ModelRequest, tool


@tool(effect="idempotent")
async def look_up(item: str) -> str:
    """Answers at once with 200 bytes."""
    return "r" * 200


def answer(request: ModelRequest) -> Any:
    if request.messages[-1]["role"] == "tool":
        return "a" * 300
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"item": "x"}'}}
    return {"role": "assistant", "content": "m" * 300, "tool_calls": [call]}


async def run_turns(runtime: laneway.Runtime, turns: int, conversations: int, concurrency: int) -> list[float]:
    """Drive `turns` turns over the conversations, `concurrency` at a time; the seconds that each one took."""
    latencies: list[float] = []
    waiting = iter(range(turns))

    async def worker() -> None:
        for number in waiting:
            began = time.perf_counter()
            receipt = await runtime.conversation(f"bench-{number % conversations}").asubmit("Where is my order?")
            settlement = await receipt.aresult(120)
            assert settlement.outcome == "completed", settlement
            latencies.append(time.perf_counter() - began)

    await asyncio.gather(*(worker() for _ in range(min(concurrency, turns))))
    return latencies


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
    agent = Agent(name="bench", model=FunctionModel(answer), tools=[look_up])
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "bench.duckdb"
        launch = laneway.local if chosen.local else laneway.start
        with launch([agent], store=store, lanes_per_actor=chosen.lanes_per_actor) as runtime:
            warm = min(chosen.conversations, chosen.turns)
            asyncio.run(run_turns(runtime, warm, chosen.conversations, chosen.concurrency))
            before = runtime.describe().store
            began = time.perf_counter()
            latencies = asyncio.run(run_turns(runtime, chosen.turns, chosen.conversations, chosen.concurrency))
            seconds = time.perf_counter() - began
            after = runtime.describe().store
            report = runtime.verify(require_settled=True)
    if not report.passed or report.outcomes != {"completed": warm + chosen.turns}:
        print(f"the work was not done: {report.outcomes} {report.problems[:3]}", file=sys.stderr)
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
