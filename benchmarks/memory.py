"""Memory of a resident idle lane: each conversation takes one turn, and its lane stays.

On Ray, one process hosts all of them; what it has grown by, divided by their number, is a lane's share. The store is
another process there. Without Ray, in a fresh process, that is measured again with lanes and store together, and once
more while Python's own allocations are traced: what is free again after the lanes are dropped is what they held.
Memory is that of anonymous pages (RssAnon) for a share, and all of it (VmRSS) for a whole process.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import laneway

from .processes import all_resident_bytes, resident_bytes
from .result import NotDone, Options, Progress, Result, Target
from .turns import all_settled, run_turns, turn_agent

LANES = 10_000
TRACED = 2_000
LONG = 20
"""Turns of a lane with some history."""
LANE_BYTES_MAX = 30 << 10
PROCESS_BYTES_MAX = 600 << 20
WARMING = 64
CONCURRENCY = 64
_NEVER_S = 1e6
_CHILD_S = 240.0


def measure(options: Options, progress: Progress) -> Result:
    lanes = 300 if options.short else LANES
    figures: dict[str, Any] = {}
    targets: list[Target] = []
    if not options.local:
        figures["ray"] = on_ray(lanes, progress)
    few = min(lanes, TRACED)  # tracing costs time, and a lane's share does not depend on their number
    children = {"one_process": (lanes, 1, False), "traced": (few, 1, True), "traced_long": (few // 10, LONG, True)}
    for number, (name, (count, turns, traced)) in enumerate(children.items()):
        progress("fresh processes", number, len(children))
        figures[name] = in_a_fresh_process(count, turns, traced=traced)
    progress("fresh processes", len(children), len(children))
    found = figures["one_process"] if options.local else figures["ray"]
    targets.append(Target(what="bytes a resident idle lane", value=found["bytes_a_lane"], bound=LANE_BYTES_MAX))
    targets.append(
        Target(
            what=f"bytes of a process with {lanes:,} resident lanes",
            value=found["process_bytes"],
            bound=PROCESS_BYTES_MAX,
        )
    )
    return Result(
        measure="memory",
        configuration={
            "class": options.deployment,
            "lanes": lanes,
            "turns_a_lane": 1,
            "max_actors": 1,
        },
        figures=figures,
        targets=tuple(targets),
    )


def on_ray(lanes: int, progress: Progress) -> dict[str, Any]:
    """All lanes in one ConversationActor."""
    with (
        tempfile.TemporaryDirectory() as folder,
        laneway.start(
            turn_agent(),
            store=Path(folder) / "bench.duckdb",
            max_actors=1,
            spare_actors=0,
            lanes_per_actor=lanes + WARMING,
            idle_s=_NEVER_S,
        ) as runtime,
    ):
        _turns(runtime, "warming", WARMING, 4 * WARMING)
        (actor,) = runtime.describe().actors
        before = resident_bytes(actor.pid)
        _turns(runtime, "lane", lanes, lanes, progress)
        found = _grown(before, actor.pid, lanes)
        _check(runtime, lanes, lanes, actor.pid)
    return found


def in_a_fresh_process(lanes: int, turns: int, *, traced: bool) -> dict[str, Any]:
    """The same without Ray, in a process that does nothing else; each lane takes `turns` turns."""
    command = [sys.executable, "-m", "laneway.benchmarks.memory", str(lanes), str(turns)]
    done = subprocess.run(
        [*command, "traced" if traced else "plain"], stdout=subprocess.PIPE, text=True, timeout=_CHILD_S, check=False
    )
    if done.returncode:
        raise NotDone(f"the process with the lanes ended with {done.returncode}")
    return json.loads(done.stdout)


def _turns(
    runtime: laneway.Runtime, name: str, conversations: int, turns: int, progress: Progress = lambda *_: None
) -> None:
    handles = [runtime.conversation(f"{name}-{number}", agent="bench") for number in range(conversations)]
    asyncio.run(run_turns(handles, turns, CONCURRENCY, lambda count: progress("lanes", count, turns)))


def _grown(before: int, pid: int, lanes: int) -> dict[str, Any]:
    after = resident_bytes(pid)
    return {
        "bytes_before": before,
        "bytes_after": after,
        "bytes_a_lane": round((after - before) / lanes),
        "process_bytes": all_resident_bytes(pid),
    }


def _check(runtime: laneway.Runtime, lanes: int, turns: int, pid: int) -> None:
    """All lanes are in memory, and all turns are settled."""
    (actor,) = runtime.describe().actors
    if actor.pid != pid or actor.stats["lanes"] != lanes + WARMING or actor.stats.get("passivated"):
        raise NotDone(f"not all lanes are resident: {actor}")
    all_settled(runtime, turns + 4 * WARMING)


# --- the fresh process -----------------------------------------------------------------------------------------------


def _main(lanes: int, turns: int, traced: bool) -> None:
    from .memory_traced import freed_by, started

    trace = started() if traced else None
    with (
        tempfile.TemporaryDirectory() as folder,
        laneway.local(
            turn_agent(),
            store=Path(folder) / "bench.duckdb",
            lanes_per_actor=lanes + WARMING,
            idle_s=_NEVER_S,
        ) as runtime,
    ):
        pid = runtime.describe().actors[0].pid
        _turns(runtime, "warming", WARMING, 4 * WARMING)
        before = resident_bytes(pid)
        held = trace() if trace is not None else 0
        _turns(runtime, "lane", lanes, lanes * turns)
        if trace is None:
            found = _grown(before, pid, lanes)
            _check(runtime, lanes, lanes * turns, pid)
        else:
            grown = round((trace() - held) / lanes)
            _check(runtime, lanes, lanes * turns, pid)
            host = runtime.run(runtime.client.backend.host_of("lane-0"))
            found = {"turns_a_lane": turns, "lanes": lanes, "bytes_a_lane_store_included": grown}
            found |= freed_by(runtime, host)
    print(json.dumps(found))


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "traced")
