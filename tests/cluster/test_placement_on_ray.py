"""Where conversations live: one actor each, many in one, two nodes, two runtimes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_agents import noted

import laneway

Start = Callable[..., laneway.Runtime]

MEMORY_BYTES_MAX = 2 << 30  # of all ConversationActors together
CONVERSATIONS = 2_000


def submit_to_all(runtime: laneway.Runtime, names: list[str], text: str) -> list[str]:
    """One submission each, at most 64 of them under way; their outcomes."""

    async def run() -> list[str]:
        places = asyncio.Semaphore(64)

        async def one(name: str) -> str:
            async with places:
                receipt = await runtime.conversation(name).asubmit(text)
                return (await receipt.aresult(60)).outcome

        return await asyncio.gather(*(one(name) for name in names))

    return asyncio.run(run())


def resident_bytes(pid: int) -> int:
    """The process's memory, shared pages counted by their share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss line")


def test_one_actor_for_each_conversation(start: Start) -> None:
    runtime = start(lanes_per_actor=1)
    names = [f"c{index}" for index in range(8)]
    assert submit_to_all(runtime, names, "look shoes") == ["completed"] * 8
    used = [actor for actor in runtime.describe().actors if actor.conversations]
    assert [actor.conversations for actor in used] == [1] * 8
    assert len({actor.pid for actor in used}) == 8
    assert len({runtime.conversation(name).actor for name in names}) == 8


@pytest.mark.timeout(240)
def test_thousands_of_conversations_share_a_few_actors(start: Start) -> None:
    """More conversations than lanes fit: idle lanes make room, nothing is refused."""
    runtime = start()
    names = [f"c{index}" for index in range(CONVERSATIONS)]
    assert submit_to_all(runtime, names, "look shoes") == ["completed"] * CONVERSATIONS
    actors = runtime.describe().actors
    assert sum(actor.conversations for actor in actors) == CONVERSATIONS
    assert len(actors) <= 2 * (os.cpu_count() or 1)
    assert all(actor.stats["lanes"] <= 256 for actor in actors)
    assert sum(resident_bytes(actor.pid) for actor in actors) < MEMORY_BYTES_MAX
    assert len(noted("look_up")) == CONVERSATIONS
    report = runtime.verify(require_settled=True)
    assert report.passed, report.problems
    assert report.outcomes == {"completed": CONVERSATIONS}


def test_two_runtimes_side_by_side(start: Start, tmp_path: Path) -> None:
    first = start(namespace="left", store=tmp_path / "left.duckdb")
    second = start(namespace="right", store=tmp_path / "right.duckdb")
    assert first.conversation("same").submit("hello", idempotency_key="k").result(timeout=30).text == "you said hello"
    assert second.conversations() == []
    assert not second.conversation("same").submit("hello", idempotency_key="k").replayed
    with pytest.raises(laneway.LanewayError) as refused:
        start(namespace="left", store=tmp_path / "third.duckdb")
    assert refused.value.code == "runtime_exists"
    with laneway.connect(namespace="left") as joined:
        assert joined.conversations() == ["same"]
    assert first.conversation("same").submit("still up").result(timeout=30).outcome == "completed"


def test_a_file_that_is_held_names_its_owner(start: Start, tmp_path: Path) -> None:
    """F24: the message has the pid of the process that holds the file."""
    runtime = start(store=tmp_path / "held.duckdb")
    with pytest.raises(laneway.StoreBusy) as refused:
        laneway.local([], store=tmp_path / "held.duckdb")
    assert refused.value.details["pid"] == runtime.describe().store_pid
