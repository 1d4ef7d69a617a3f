"""Recovery time: from SIGKILL to the next useful step, for a process that hosts lanes, for the store, for everything.

actor     A process is killed while a model call of its lane is under way; its time ends when the next call of the same
          turn, in another process and under a higher epoch, begins. Between two kills a spare process is up again, as
          it is while nothing goes wrong.
store     The store is killed and a submission is sent at once; its time ends with the receipt.
cluster   Every process of a cluster with many open submissions is killed; see `recovery_cluster`.

The model writes the moment of each call into a file. All clocks are one: the monotonic clock of this machine.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import laneway
from laneway import Agent, FunctionModel

from ..cluster.executions import read_lines
from .gates import PATIENCE_S, Gated, until
from .recovery_cluster import CONVERSATIONS, MOVING_BOUND_S, SUBMISSIONS, whole_cluster
from .result import NotDone, Options, Progress, Result, Target
from .turns import all_settled

ACTOR_BOUNDS_S = (0.5, 2.0)
"""Median and worst, for an actor."""
STORE_BOUND_S = 5.0
PEER_S = 12.0
"""The best time to resume after the loss of a worker that a comparable system has published."""


def measure(options: Options, progress: Progress) -> Result:
    kills, store_kills = (5, 2) if options.short else (20, 20)
    submissions, conversations = (200, 50) if options.short else (SUBMISSIONS, CONVERSATIONS)
    actor, store = kills_of_processes(kills, store_kills, progress)
    with tempfile.TemporaryDirectory() as folder:
        cluster = whole_cluster(Path(folder), submissions, conversations, progress)
    return Result(
        measure="recovery",
        configuration={
            "class": "DR/duckdb on Ray",
            "kills_of_actors": kills,
            "kills_of_the_store": store_kills,
            "open_submissions": submissions,
            "conversations": conversations,
        },
        figures={"actor": actor, "store": store, "cluster": cluster},
        targets=(
            Target(what="kill of an actor to the next model call, p50 s", value=actor["median_s"], bound=0.5),
            Target(what="the same, worst s", value=actor["worst_s"], bound=ACTOR_BOUNDS_S[1]),
            Target(what="kill of the store to the next receipt, worst s", value=store["worst_s"], bound=STORE_BOUND_S),
            Target(
                what=f"{submissions:,} open submissions after a whole-cluster kill, all moving, s",
                value=cluster["all_moving_s"],
                bound=MOVING_BOUND_S,
            ),
        ),
    )


def kills_of_processes(kills: int, store_kills: int, progress: Progress) -> tuple[dict[str, Any], dict[str, Any]]:
    """Kill an actor `kills` times, then the store `store_kills` times."""
    with tempfile.TemporaryDirectory() as folder:
        calls, gate = Path(folder) / "calls.jsonl", Path(folder) / "gate"
        agent = Agent(name="bench", model=FunctionModel(Gated(str(calls), str(gate)), name="gated"))
        with laneway.start([agent], store=Path(folder) / "bench.duckdb") as runtime:
            actors = _repeated(
                "kills of actors", kills, progress, lambda number: kill_actor(runtime, calls, gate, number)
            )
            runtime.conversation("store").submit("Begin.").result(timeout=PATIENCE_S)
            stores = _repeated("kills of the store", store_kills, progress, lambda number: kill_store(runtime, number))
            all_settled(runtime, kills + store_kills + 1)
    actor = figures(actors, {"bound_median_s": ACTOR_BOUNDS_S[0], "bound_worst_s": ACTOR_BOUNDS_S[1]})
    actor |= {"peer_s": PEER_S, "times_faster": round(PEER_S / statistics.median(actors), 1)}
    return actor, figures(stores, {"bound_worst_s": STORE_BOUND_S})


def kill_actor(runtime: laneway.Runtime, calls: Path, gate: Path, number: int) -> float:
    """Kill the process in the middle of a model call; the seconds until the next call."""
    until(lambda: any(not actor.conversations for actor in runtime.describe().actors), "a spare process")
    conversation = runtime.conversation(f"actor-{number}")
    gate.touch()
    before = len(read_lines(calls))
    receipt = conversation.submit("Go on.")
    first = until(lambda: read_lines(calls)[before:], "the model call")[0]
    began = time.monotonic()
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: read_lines(calls)[before + 1 :], "the next model call")
    gate.unlink()
    settled = receipt.result(timeout=PATIENCE_S)
    made = read_lines(calls)[before:]
    decided = [record for record in conversation.log() if record["type"] == "recovery_decided"]
    row = runtime.submission(receipt.submission_id)
    proven = (
        settled.outcome == "completed"
        and len(made) == 2
        and made[1]["run"] == first["run"]
        and made[1]["pid"] != first["pid"]
        and [record["decision"] for record in decided] == ["resume_turn"]
        and row.epoch == decided[0]["epoch"] > 1
    )
    if not proven:
        raise NotDone(f"the recovery was not what it should be: {settled} {made} {decided}")
    return made[1]["at"] - began


def kill_store(runtime: laneway.Runtime, number: int) -> float:
    """Kill the store's process; the seconds until a submission that is sent at once is accepted."""
    pid = until(lambda: runtime.describe().store_pid, "the store")
    conversation = runtime.conversation("store")
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    receipt = conversation.submit("Go on.", idempotency_key=f"store-{number}")
    seconds = time.monotonic() - began
    if receipt.result(timeout=PATIENCE_S).outcome != "completed" or runtime.describe().store_pid == pid:
        raise NotDone("the store was not started again")
    return seconds


def figures(times: list[float], bounds: dict[str, float]) -> dict[str, Any]:
    """Median and worst of some times, beside their bounds."""
    median, worst = statistics.median(times), max(times)
    return {
        "kills": len(times),
        "median_s": round(median, 3),
        "worst_s": round(worst, 3),
        **bounds,
        "within_bounds": median <= bounds.get("bound_median_s", float("inf")) and worst <= bounds["bound_worst_s"],
        "times_s": [round(seconds, 3) for seconds in times],
    }


def _repeated(what: str, kills: int, progress: Progress, once: Callable[[int], float]) -> list[float]:
    times: list[float] = []
    for number in range(1, kills + 1):
        times.append(once(number))
        progress(what, number, kills)
    return times
