"""Fairness: what one lane with thousands of queued rows does to a hundred lanes with one row each, beside it.

Each of the hundred submits one input, waits for its outcome and submits the next one; 20 times a round. Rounds
alternate: alone, then beside a lane whose queue is filled while its model waits at a gate and works when the round
begins. That queue is worked off before the next round. The medians of the rounds' p99s are compared.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import laneway
from laneway import Agent, FunctionModel, ModelRequest

from .gates import until
from .result import NotDone, Options, Progress, Result, Target, milliseconds, percentile, spread
from .turns import INPUT, all_settled, run_turns, turn_agent

LANES = 100
RATIO_MAX = 1.2
DRAINED_S = 180.0


class Held:
    """A model's function that waits while the gate's file exists."""

    def __init__(self, gate: str) -> None:
        self._gate = gate

    async def __call__(self, request: ModelRequest) -> str:
        while Path(self._gate).exists():  # noqa: ASYNC110, ASYNC240 (a file is what every process sees)
            await asyncio.sleep(0.005)
        return "a" * 300


def measure(options: Options, progress: Progress) -> Result:
    turns, queued, rounds = (5, 300, 1) if options.short else (20, 5_000, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        gate = Path(folder) / "gate"
        agents = [turn_agent(), Agent(name="busy", model=FunctionModel(Held(str(gate)), name="held"))]
        launch: Callable[..., laneway.Runtime] = laneway.local if options.local else laneway.start
        with launch(agents, store=Path(folder) / "bench.duckdb") as runtime:
            lanes = [runtime.conversation(f"lane-{number}", agent="bench") for number in range(LANES)]
            asyncio.run(run_turns(lanes, 2 * LANES, LANES))
            alone: list[list[float]] = []
            beside: list[list[float]] = []
            left: list[int] = []
            for number in range(rounds):
                progress("rounds alone and beside a long queue", number, rounds)
                alone.append(asyncio.run(_round(lanes, turns)))
                gate.touch()
                busy = runtime.conversation(f"busy-{number}", agent="busy")
                asyncio.run(_fill(busy, queued))
                gate.unlink()
                beside.append(asyncio.run(_round(lanes, turns)))
                left.append(_open_rows(runtime, busy.id))
                if not 0 < left[-1] < queued:
                    raise NotDone(f"the long queue had {left[-1]} of {queued} rows left: it did not work all the time")
                until(lambda name=busy.id: not _open_rows(runtime, name), "the end of the queue", DRAINED_S, 0.1)
            progress("rounds alone and beside a long queue", rounds, rounds)
            all_settled(runtime, 2 * LANES + rounds * (2 * LANES * turns + queued))
    alone_ms, beside_ms = [[_p99_ms(one) for one in many] for many in (alone, beside)]
    ratio = round(statistics.median(beside_ms) / statistics.median(alone_ms), 3)
    return Result(
        measure="fairness",
        configuration={
            "class": options.deployment,
            "lanes": LANES,
            "turns_a_lane_and_round": turns,
            "queued_rows": queued,
            "rounds": rounds,
        },
        figures={
            "alone": _figures(alone, alone_ms),
            "beside": _figures(beside, beside_ms),
            "queued_rows_settled_meanwhile": [queued - rows for rows in left],
            "p99_ratio": ratio,
            "p50_ratio": round(_pooled(beside)["p50_ms"] / _pooled(alone)["p50_ms"], 3),
        },
        targets=(Target(what="p99 of one-row lanes beside a long queue, times alone", value=ratio, bound=RATIO_MAX),),
    )


async def _round(lanes: list[laneway.Conversation], turns: int) -> list[float]:
    """Every lane, one turn after the other; the seconds of each turn."""
    seconds: list[float] = []

    async def one(lane: laneway.Conversation) -> None:
        for _ in range(turns):
            began = time.perf_counter()
            settlement = await (await lane.asubmit(INPUT)).aresult(120)
            if settlement.outcome != "completed":
                raise NotDone(f"a turn did not complete: {settlement}")
            seconds.append(time.perf_counter() - began)

    await asyncio.gather(*(one(lane) for lane in lanes))
    return seconds


async def _fill(busy: laneway.Conversation, rows: int) -> None:
    numbers = iter(range(rows))

    async def client() -> None:
        for _ in numbers:
            await busy.asubmit(INPUT)

    await asyncio.gather(*(client() for _ in range(16)))


def _open_rows(runtime: laneway.Runtime, name: str) -> int:
    sql = f"SELECT count(*) FROM submissions WHERE conversation_id = '{name}' AND state <> 'completed'"
    return int(runtime.query(sql).rows[0][0])


def _p99_ms(seconds: list[float]) -> float:
    return percentile(sorted(seconds), 0.99) * 1000


def _pooled(rounds: list[list[float]]) -> dict[str, float]:
    return milliseconds([one for many in rounds for one in many])


def _figures(rounds: list[list[float]], p99_ms: list[float]) -> dict[str, Any]:
    return {**_pooled(rounds), "p99_of_rounds_ms": spread(p99_ms, 2)}
