"""Activation: what a conversation costs whose lane is not in memory, on processes that are up and warm.

Each conversation has a history of 100 records in the store. One submission at a time, in ms from the submit to the
first model call (the model notes the moment in a file; all clocks are the monotonic clock of this machine) and to the
settlement:

first       nobody in this runtime has touched the conversation: no place, no header in the store's memory, no lane
warm        the next submission to the same conversation
cold        the same conversation again, after its lane was passivated: header and place are known, the lane is not

Activation is the difference of the medians to the first model call, cold and warm.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import laneway
from laneway import Agent, FunctionModel, ModelRequest

from ..cluster.executions import append_line
from .gates import Noted, until
from .result import NotDone, Options, Progress, Result, Target, milliseconds, percentile
from .turns import INPUT, all_settled, answer, look_up, run_turns

RECORDS = 100
RECORDS_A_TURN = 8
IDLE_S = 2.0
P50_MS_MAX = 10.0
WARMING = 16


class Noting:
    """The model of the measured turn, which notes the moment of each call."""

    def __init__(self, calls: str) -> None:
        self._calls = calls

    async def __call__(self, request: ModelRequest) -> Any:
        append_line(self._calls, {"run": request.run_id, "at": time.monotonic()})
        return answer(request)


class Waits:
    """Seconds to the first model call, and to the settlement."""

    def __init__(self) -> None:
        self.calls: list[float] = []
        self.settlements: list[float] = []

    def figures(self) -> dict[str, Any]:
        return {"to_model_call": milliseconds(self.calls), "to_settlement": milliseconds(self.settlements)}

    @property
    def p50_ms(self) -> float:
        return percentile(sorted(self.calls), 0.5) * 1000


def measure(options: Options, progress: Progress) -> Result:
    count = 20 if options.short else 200
    turns = -(-RECORDS // RECORDS_A_TURN)
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "calls.jsonl"
        agent = Agent(name="bench", model=FunctionModel(Noting(str(calls)), name="noting"), tools=[look_up])
        store = Path(folder) / "bench.duckdb"
        names = [f"old-{number}" for number in range(count)]
        with laneway.local(agent, store=store) as runtime:
            past = [runtime.conversation(name) for name in names]
            total = turns * count
            asyncio.run(run_turns(past, total, 64, lambda done: progress("histories", done, total)))
            records = len(past[0].log())
        launch: Callable[..., laneway.Runtime] = laneway.local if options.local else laneway.start
        with launch(agent, store=store, idle_s=IDLE_S) as runtime:
            warming = [runtime.conversation(f"new-{number}") for number in range(WARMING)]
            asyncio.run(run_turns(warming, 10 * WARMING, WARMING))
            first, cold, warm = _waits(runtime, names, Noted(calls), progress)
            all_settled(runtime, turns * count + 10 * WARMING + 3 * count)
    if records < RECORDS:
        raise NotDone(f"a conversation has {records} records, not {RECORDS}")
    activation_ms = round(cold.p50_ms - warm.p50_ms, 2)
    return Result(
        measure="activation",
        configuration={
            "class": options.deployment,
            "conversations": count,
            "records": records,
            "idle_s": IDLE_S,
        },
        figures={
            "first": first.figures(),
            "cold": cold.figures(),
            "warm": warm.figures(),
            "activation_p50_ms": activation_ms,
            "first_activation_p50_ms": round(first.p50_ms - warm.p50_ms, 2),
        },
        targets=(
            Target(what="activation: cold less warm, p50 ms", value=activation_ms, bound=P50_MS_MAX),
            Target(what="submit to model call, cold, p50 ms", value=round(cold.p50_ms, 2), bound=P50_MS_MAX),
            Target(what="submit to model call, first, p50 ms", value=round(first.p50_ms, 2), bound=P50_MS_MAX),
        ),
    )


def _waits(runtime: laneway.Runtime, names: list[str], noted: Noted, progress: Progress) -> tuple[Waits, Waits, Waits]:
    first, cold, warm = Waits(), Waits(), Waits()
    noted.more()
    _passivated(runtime)
    for number, name in enumerate(names):
        conversation = runtime.conversation(name, agent="bench")
        _turn(conversation, noted, first)
        _turn(conversation, noted, warm)
        progress("conversations nobody has touched", number + 1, len(names))
    _passivated(runtime)
    for number, name in enumerate(names):
        _turn(runtime.conversation(name, agent="bench"), noted, cold)
        progress("passivated conversations", number + 1, len(names))
    return first, cold, warm


def _turn(conversation: laneway.Conversation, noted: Noted, waits: Waits) -> None:
    began = time.monotonic()
    receipt = conversation.submit(INPUT)
    settlement = receipt.result(timeout=60)
    waits.settlements.append(time.monotonic() - began)
    made = noted.more()
    if settlement.outcome != "completed" or len({line["run"] for line in made}) != 1:
        raise NotDone(f"not one turn: {settlement} {made}")
    waits.calls.append(made[0]["at"] - began)


def _passivated(runtime: laneway.Runtime) -> None:
    """Wait until no lane is in memory."""

    def empty() -> bool:
        return not any(actor.stats.get("lanes") for actor in runtime.describe().actors)

    until(empty, "the passivation of all lanes", pause_s=0.1)
