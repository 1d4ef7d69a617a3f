"""The loss of everything: a cluster with thousands of open submissions is killed, and a new one takes its file.

A program of its own (`python -m laneway.benchmarks.recovery_cluster`) starts a cluster, has all submissions accepted
and all places taken by model calls that wait at a gate. Then every process of it gets SIGKILL. From the start of the
new runtime, on a Ray that has just come up (`ray_start_s`):

all moving         as many conversations as there are places have begun a model call in the new processes, gate closed
every one moved    every conversation has begun one; the gate opens when all are moving, since a conversation without a
                   place can only begin when another one has ended
all settled        every submission has its outcome
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import laneway
from laneway import Agent, FunctionModel

from ..cluster.ray_cluster import connect_ray
from ..cluster.settings import load_settings
from .gates import Gated, Noted, until
from .processes import family, kill_all, lives
from .result import NotDone, Progress
from .turns import all_settled

SUBMISSIONS, CONVERSATIONS = 10_000, 2_000
MOVING_BOUND_S = 10.0
CLIENTS = 64
LOOK_S = 0.5  # thousands of calls look at the gate
ACCEPTED_S = 120.0
RECOVERED_S = 120.0
_OPEN = "SELECT count(*) FROM submissions WHERE state NOT IN ('completed', 'failed', 'aborted')"


def whole_cluster(folder: Path, submissions: int, conversations: int, progress: Progress) -> dict[str, Any]:
    """Kill a cluster with that much open work, and recover it in a new one."""
    gate, calls = folder / "gate", folder / "calls.jsonl"
    gate.touch()
    noted = Noted(calls)
    progress("a cluster with open submissions", 0, submissions)
    with _victim(folder, submissions, conversations) as (pid, told):
        progress("a cluster with open submissions", submissions, submissions)
        processes = family(pid)
        kill_all(processes)
        until(lambda: not any(lives(one) for one in processes), "the end of the cluster")
    before = noted.more()
    if len({line["conversation"] for line in before}) != told["places"]:
        raise NotDone(f"not all places were taken before the kill: {len(before)} of {told['places']}")
    return _recovered(folder, submissions, conversations, told, {line["pid"] for line in before}, progress)


def _recovered(
    folder: Path, submissions: int, conversations: int, told: dict[str, Any], dead: set[int], progress: Progress
) -> dict[str, Any]:
    gate, noted = folder / "gate", Noted(folder / "calls.jsonl")
    noted.more()
    places = told["places"]
    first: dict[str, tuple[float, int]] = {}

    def moving(count: int) -> bool:
        for line in noted.more():
            if line["pid"] in dead:
                raise NotDone("a process of the dead cluster made a call")
            first.setdefault(line["conversation"], (line["at"], line["pid"]))
        progress("conversations that move again", len(first), conversations)
        return len(first) >= count

    ray_began = time.monotonic()
    release = connect_ray(None, None)
    try:
        began = time.monotonic()
        with laneway.start([gated_agent(folder)], store=folder / "cluster.duckdb") as runtime:
            runtime_up = time.monotonic()
            until(lambda: moving(places), "calls in all places", RECOVERED_S, 0.02)
            active = sorted(first.values())[:places]
            gate.unlink()
            opened = time.monotonic()
            until(lambda: moving(conversations), "a call in every conversation", RECOVERED_S, 0.02)
            until(lambda: _open_now(runtime) == 0 or None, "all settled", RECOVERED_S, 0.25)
            settled = time.monotonic()
            recoveries = runtime.query("SELECT count(*) FROM records WHERE type = 'recovery_decided'").rows[0][0]
            all_settled(runtime, submissions)
    finally:
        release()
    if recoveries < places:
        raise NotDone(f"{recoveries} recoveries for {places} places")
    return {
        "open_submissions": submissions,
        "conversations": conversations,
        "places": places,
        "recoveries": recoveries,
        "ray_start_s": round(began - ray_began, 2),
        "runtime_up_s": round(runtime_up - began, 2),
        "first_call_s": round(active[0][0] - began, 2),
        "all_moving_s": round(active[-1][0] - began, 2),
        "every_one_moved_s": round(max(first.values())[0] - began, 2),
        "all_settled_s": round(settled - began, 2),
        "settled_a_second": round(submissions / (settled - opened)),
        "moving_by_process": by_process(active, began),
    }


def by_process(active: list[tuple[float, int]], began: float) -> list[dict[str, float]]:
    """How many conversations moved in each process, and when its first and its last one did; by that order."""
    moments: dict[int, list[float]] = {}
    for at, pid in active:
        moments.setdefault(pid, []).append(round(at - began, 2))
    return [{"moving": len(found), "first_s": found[0], "last_s": found[-1]} for found in moments.values()]


def _open_now(runtime: laneway.Runtime) -> int:
    return int(runtime.query(_OPEN).rows[0][0])


def gated_agent(folder: Path) -> Agent:
    model = Gated(str(folder / "calls.jsonl"), str(folder / "gate"), LOOK_S)
    return Agent(name="bench", model=FunctionModel(model, name="gated"))


@contextmanager
def _victim(folder: Path, submissions: int, conversations: int) -> Generator[tuple[int, dict[str, Any]]]:
    """The program, once its work stands where it is to be killed; whatever happens, nothing of it is left."""
    command = [sys.executable, "-m", "laneway.benchmarks.recovery_cluster", str(folder)]
    process = subprocess.Popen(
        [*command, str(submissions), str(conversations)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise NotDone("the cluster that was to be killed did not get ready")
        yield process.pid, json.loads(line)
    finally:
        kill_all(family(process.pid))
        process.wait()
        process.stdin.close()
        process.stdout.close()


async def _submit_all(runtime: laneway.Runtime, submissions: int, conversations: int) -> None:
    handles = [runtime.conversation(f"c{number}", agent="bench") for number in range(conversations)]
    numbers = iter(range(submissions))

    async def client() -> None:
        for number in numbers:
            await handles[number % conversations].asubmit("Go on.", idempotency_key=f"message-{number}")

    await asyncio.gather(*(client() for _ in range(CLIENTS)))


def _main(folder: Path, submissions: int, conversations: int) -> None:
    noted, seen = Noted(folder / "calls.jsonl"), set[str]()
    release = connect_ray(None, None)
    import ray

    settings = load_settings()
    places = settings.actors_for(float(ray.cluster_resources().get("CPU", 1.0))) * settings.lanes_per_actor
    places = min(places, conversations)
    runtime = laneway.start([gated_agent(folder)], store=folder / "cluster.duckdb")
    asyncio.run(_submit_all(runtime, submissions, conversations))

    def all_taken() -> bool:
        seen.update(line["conversation"] for line in noted.more())
        return len(seen) >= places

    until(all_taken, "calls in all places", ACCEPTED_S, 0.05)
    accepted = _open_now(runtime)
    if accepted != submissions:
        raise NotDone(f"{accepted} of {submissions} submissions are open")
    print(json.dumps({"places": places}), flush=True)
    sys.stdin.readline()
    runtime.stop()
    release()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
