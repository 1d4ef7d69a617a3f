"""Recovery time: from SIGKILL to the next useful step, for a process that hosts lanes and for the store.

    python benchmarks/recovery.py                          # 20 kills of each
    python benchmarks/recovery.py --kills 5 --only store   # 5 kills of the store's process
    python benchmarks/recovery.py --json

An actor is killed while a model call of its lane is under way; its time ends when the next call of the same turn, in
another process and under a higher epoch, begins. The model writes both moments into a file. The store is killed and a
submission is sent at once; its time ends with the receipt. All clocks are one: the monotonic clock of this machine.
Between two kills of actors, a spare process is up again, as it is while nothing goes wrong. It fails loudly when a
recovery was not what it should be, when the convergence check does not pass, or when a bound does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import laneway
from laneway import Agent, FunctionModel, ModelRequest
from laneway.cluster.executions import append_line, read_lines

ACTOR_BOUNDS_S = (0.5, 2.0)
"""Median and worst, for an actor."""
STORE_BOUND_S = 5.0
PEER_S = 12.0
"""The best time to resume after the loss of a worker that a comparable system has published."""
PATIENCE_S = 60.0


class Gated:
    """A model's function: notes each call with the moment, then waits while the gate's file exists."""

    def __init__(self, calls: str, gate: str) -> None:
        self._calls = calls
        self._gate = gate

    async def __call__(self, request: ModelRequest) -> str:
        append_line(self._calls, {"run": request.run_id, "pid": os.getpid(), "at": time.monotonic()})
        while self._closed():  # noqa: ASYNC110 (a file is what every process sees)
            await asyncio.sleep(0.005)
        return "done"

    def _closed(self) -> bool:
        return os.path.exists(self._gate)


def until(holds: Callable[[], Any], what: str) -> Any:
    """Wait until `holds` gives something, and return that."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {PATIENCE_S:.0f} s")
        time.sleep(0.002)
    return found


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
        raise SystemExit(f"the recovery was not what it should be: {settled} {made} {decided}")
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
        raise SystemExit("the store was not started again")
    return seconds


def figures(times: list[float], bounds: dict[str, float]) -> dict[str, Any]:
    median, worst = statistics.median(times), max(times)
    return {
        "kills": len(times),
        "median_s": round(median, 3),
        "worst_s": round(worst, 3),
        **bounds,
        "within_bounds": median <= bounds.get("bound_median_s", float("inf")) and worst <= bounds["bound_worst_s"],
        "times_s": [round(seconds, 3) for seconds in times],
    }


def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"class": "DR/duckdb on Ray"}
    with tempfile.TemporaryDirectory() as folder:
        calls, gate = Path(folder) / "calls.jsonl", Path(folder) / "gate"
        agent = Agent(name="bench", model=FunctionModel(Gated(str(calls), str(gate)), name="gated"))
        with laneway.start([agent], store=Path(folder) / "bench.duckdb") as runtime:
            if chosen.only != "store":
                times = repeated("actor", chosen, lambda number: kill_actor(runtime, calls, gate, number))
                bounds = {"bound_median_s": ACTOR_BOUNDS_S[0], "bound_worst_s": ACTOR_BOUNDS_S[1]}
                result["actor"] = figures(times, bounds)
                result["actor"] |= {"peer_s": PEER_S, "times_faster": round(PEER_S / statistics.median(times), 1)}
            if chosen.only != "actor":
                runtime.conversation("store").submit("Begin.").result(timeout=PATIENCE_S)
                times = repeated("store", chosen, lambda number: kill_store(runtime, number))
                result["store"] = figures(times, {"bound_worst_s": STORE_BOUND_S})
            report = runtime.verify(require_settled=True)
    result["converged"] = report.passed
    result["passed"] = report.passed and all(
        result[name]["within_bounds"] for name in ("actor", "store") if name in result
    )
    return result


def repeated(what: str, chosen: argparse.Namespace, once: Callable[[int], float]) -> list[float]:
    """The seconds of each kill; one line of progress each, on standard error."""
    times: list[float] = []
    for number in range(1, chosen.kills + 1):
        times.append(once(number))
        if not chosen.json:
            print(f"{what} {number}/{chosen.kills}: {times[-1]:.3f} s", file=sys.stderr, flush=True)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="kills of each kind (default: 20)")
    parser.add_argument("--only", choices=("actor", "store"), help="kill only these")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    if chosen.kills < 1:
        parser.error("--kills must be 1 or more")
    result = measure(chosen)
    if chosen.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if result["passed"] else 1


def show(result: dict[str, Any]) -> None:
    if found := result.get("actor"):
        print(f"SIGKILL of an actor in mid-turn until the next model call, {found['kills']} kills:")
        print(f"  median {found['median_s']:.3f} s   bound {found['bound_median_s']} s", end="")
        print(f"   best published peer {found['peer_s']:.0f} s: {found['times_faster']:.0f} times faster")
        print(f"  worst  {found['worst_s']:.3f} s   bound {found['bound_worst_s']} s")
    if found := result.get("store"):
        print(f"SIGKILL of the store until the next commit is accepted, {found['kills']} kills:")
        print(f"  median {found['median_s']:.3f} s")
        print(f"  worst  {found['worst_s']:.3f} s   bound {found['bound_worst_s']} s")
    print("the convergence check passed" if result["converged"] else "THE CONVERGENCE CHECK DID NOT PASS")


if __name__ == "__main__":
    raise SystemExit(main())
