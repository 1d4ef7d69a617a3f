"""The turn that every peer does, the three workloads, and how a turn's time is taken."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Protocol

CONCURRENCY_MAX = 64
INPUT = "Where is my order?"
FINAL = "a" * 300
TURN_S_MAX = 60.0


def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Answers at once with 300 bytes: first it asks for a tool, then it is done."""
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": FINAL}
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"item": "x"}'}}
    return {"role": "assistant", "content": "m" * 300, "tool_calls": [call]}


def look_up(item: str) -> str:
    """Answers at once with 200 bytes."""
    return "r" * 200


@dataclass(frozen=True)
class Workload:
    name: str
    conversations: int
    concurrency: int
    turns: int


def workloads(turns: int, lone_turns: int) -> list[Workload]:
    """The lone conversation first, while the store is still small."""
    return [
        Workload("lone", conversations=1, concurrency=1, turns=lone_turns),
        Workload("eight", conversations=8, concurrency=8, turns=turns),
        Workload("many", conversations=200, concurrency=CONCURRENCY_MAX, turns=turns),
    ]


class Peer(Protocol):
    """One peer with its server, if it has one, and its store."""

    async def turn(self, conversation: str, text: str) -> str:
        """Do one turn; returns the final text when the turn is durable."""
        ...

    async def settled(self) -> int:
        """How many turns the peer's own store holds as finished."""
        ...

    async def store(self) -> dict[str, str]:
        """What the store says of itself: its version and its fsync settings; raises when they are not on."""
        ...


@dataclass(frozen=True)
class Figures:
    turns_per_second: float
    p50_ms: float
    p99_ms: float


async def run_turns(peer: Peer, workload: Workload, turns: int) -> list[float]:
    """The seconds of each turn. A conversation is in one worker's hands at a time: its turns follow one another."""
    latencies: list[float] = []
    waiting = iter(range(turns))
    idle = deque(f"{workload.name}-{number}" for number in range(workload.conversations))

    async def worker() -> None:
        for _ in waiting:
            conversation = idle.popleft()
            began = time.perf_counter()
            text = await asyncio.wait_for(peer.turn(conversation, INPUT), TURN_S_MAX)
            latencies.append(time.perf_counter() - began)
            idle.append(conversation)
            if text != FINAL:
                raise RuntimeError(f"a turn of {conversation} ended with {text[:100]!r}")

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(workload.concurrency, turns)):
            workers.create_task(worker())
    return latencies


async def measure(peer: Peer, workload: Workload) -> dict[str, Any]:
    """Warm up with a turn for each conversation, measure, and see in the peer's store that the work was done."""
    before = await peer.settled()
    warm = min(workload.conversations, workload.turns)
    await run_turns(peer, workload, warm)
    began = time.perf_counter()
    latencies = sorted(await run_turns(peer, workload, workload.turns))
    seconds = time.perf_counter() - began
    done = await peer.settled() - before
    if done != warm + workload.turns or len(latencies) != workload.turns:
        raise RuntimeError(f"{workload.name}: {warm + workload.turns} turns were asked for, the store holds {done}")
    return asdict(
        Figures(
            turns_per_second=round(workload.turns / seconds, 1),
            p50_ms=round(statistics.median(latencies) * 1000, 2),
            p99_ms=round(latencies[max(0, int(len(latencies) * 0.99) - 1)] * 1000, 2),
        )
    )
