"""Checkpoints as lanes save and load them; without a good one the log gives the same result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lane_world import Gate, Script, World, agent_of, call, calls

from laneway import Tool
from laneway.storage.checkpoint import checkpoint_body
from laneway.storage.commands import SaveCheckpoint
from laneway.storage.header import Checkpoint
from laneway.storage.ledger import State
from laneway.storage.memory_store import MemoryStore
from laneway.storage.projection import ConversationView
from laneway.storage.records import tag_of


async def test_a_checkpoint_travels_with_a_settlement(tmp_path: Path) -> None:
    """No commit of its own, one every `checkpoint_records` records, and none that would change nothing."""
    world = World("memory", tmp_path)
    process = await world.process(agent_of(Script("done")), checkpoint_records=10)
    for number in range(6):
        before = len(process.link.units)
        await process.run(f"turn {number}")
        assert len(process.link.units) - before == 2
    saved = [
        index
        for index, unit in enumerate(process.link.units)
        if any(isinstance(command, SaveCheckpoint) for command in unit.commands)
    ]
    assert saved == [3, 7, 11]  # five records a turn, and one for the creation
    checkpoint = world.store.load_checkpoint("c")
    assert checkpoint is not None
    assert checkpoint.tail_sequence == len(world.records())
    assert tag_of(world.records()[-1]) == "submission_settled"
    await world.close()


async def two_runs(world: World, **settings: Any) -> Checkpoint:
    process = await world.process(agent_of(Script("done")), **{"checkpoint_records": 1, **settings})
    for number in range(2):
        await process.run(f"question {number}")
    await process.at_rest()
    await world.kill(process)
    checkpoint = world.store.load_checkpoint("c")
    assert checkpoint is not None
    return checkpoint


def put(world: World, checkpoint: Checkpoint | None) -> None:
    """What a backup, another version or a damaged disk may leave behind."""
    assert isinstance(world.store, MemoryStore)
    if checkpoint is None:
        world.store._checkpoints.clear()
    else:
        world.store._checkpoints["c"] = checkpoint


def of_another_log(checkpoint: Checkpoint) -> Checkpoint:
    """A sound checkpoint, bound to a digest that this log does not have."""
    view = ConversationView(keep="open", tail_sequence=checkpoint.tail_sequence)
    return msgspec.structs.replace(checkpoint, tail_digest="d" * 64, body=checkpoint_body(view, "d" * 64))


def inside_a_batch(checkpoint: Checkpoint) -> Checkpoint:
    """Bound to a sequence at which no batch ends."""
    sequence = checkpoint.tail_sequence - 1
    body = checkpoint_body(ConversationView(keep="open", tail_sequence=sequence), checkpoint.tail_digest)
    return msgspec.structs.replace(checkpoint, tail_sequence=sequence, body=body)


def from_the_future(checkpoint: Checkpoint) -> Checkpoint:
    """The log was restored to an earlier state than the checkpoint saw."""
    sequence = checkpoint.tail_sequence + 100
    body = checkpoint_body(ConversationView(keep="open", tail_sequence=sequence), checkpoint.tail_digest)
    return msgspec.structs.replace(checkpoint, tail_sequence=sequence, body=body)


SPOILED: list[Callable[[Checkpoint], Checkpoint | None]] = [
    lambda checkpoint: None,
    lambda checkpoint: msgspec.structs.replace(checkpoint, body=""),
    lambda checkpoint: msgspec.structs.replace(checkpoint, body=checkpoint.body.replace("sub_", "bus_")),
    lambda checkpoint: msgspec.structs.replace(checkpoint, body=checkpoint.body.replace('"format":1', '"format":2')),
    of_another_log,
    inside_a_batch,
    from_the_future,
]


@pytest.mark.parametrize("spoil", SPOILED)
async def test_without_a_good_checkpoint_the_log_gives_the_same_result(spoil: Any, tmp_path: Path) -> None:
    """Missing, damaged, of another version or of another log: it is counted, the log is read, and nothing differs."""
    seen: list[Any] = []
    for name in ("sound", "spoiled"):
        world = World("memory", tmp_path / name)
        checkpoint = await two_runs(world)
        spoiled = checkpoint if name == "sound" else spoil(checkpoint)
        put(world, spoiled)
        script = Script("done")
        process = await world.process(agent_of(script))
        assert (await process.run("again")).text == "done"
        await process.at_rest()
        counts = process.host.stats()
        assert counts.get("checkpoint_loaded", 0) == (name == "sound")
        assert counts.get("checkpoint_rejected", 0) == (name == "spoiled" and spoiled is not None)
        seen.append((script.requests[0].messages, script.requests[0].responses, world.tags()))
        world.converged()
        await world.close()
    assert seen[0] == seen[1]


async def test_an_old_checkpoint_has_a_longer_suffix_and_nothing_else(tmp_path: Path) -> None:
    world = World("memory", tmp_path)
    old = await two_runs(world)
    await two_runs(world)
    put(world, old)
    script = Script("done")
    process = await world.process(agent_of(script))
    await process.run("again")
    assert len(script.requests[0].messages) == 9
    assert process.host.stats()["checkpoint_loaded"] == 1
    await process.at_rest()
    world.converged()
    await world.close()


async def test_a_checkpoint_that_is_too_large_is_not_saved(tmp_path: Path) -> None:
    world = World("memory", tmp_path)
    process = await world.process(agent_of(Script("done")), checkpoint_records=1, checkpoint_bytes_max=100)
    await process.run("hello")
    assert process.host.stats()["checkpoint_too_large"] == 1
    assert world.store.load_checkpoint("c") is None
    await world.close()


@pytest.mark.requirement("DUR-009", "DUR-017")
async def test_parked_work_is_carried_by_a_checkpoint(tmp_path: Path) -> None:
    """Its run, its calls and what is known of them: it goes on in another process when somebody has resolved it."""
    world = World("memory", tmp_path)

    def agent(gate: Gate | None = None) -> Any:
        async def held(ctx: Any, arguments: dict[str, Any]) -> str:
            world.supplier.book("charge", ctx.call_id)
            if gate is not None:
                await gate.wait()
            return "paid"

        tool = Tool.raw("charge", held, effect="uncertain", version="1")
        return agent_of(Script(calls(call("charge")), "done"), tool, on_unknown="park")

    gate = Gate()
    first = await world.process(agent(gate))
    parked = await first.submit("pay")
    await gate.reached()
    await world.kill(first)

    def plain() -> Any:
        return agent_of(Script("done"), on_unknown="park")

    second = await world.process(agent())
    await second.recover()
    await second.at_rest()
    assert world.row(parked).state is State.UNKNOWN
    await world.kill(second)
    third = await world.process(plain(), checkpoint_records=1)
    for number in range(3):
        await third.run(f"question {number}")
    await third.at_rest()
    await world.kill(third)
    fourth = await world.process(agent())
    await world.resolve(parked, "completed_with_result", "paid after all")
    await fourth.recover()
    assert (await fourth.settled(parked)).text == "done"
    assert fourth.host.stats()["checkpoint_loaded"] >= 1
    assert world.supplier.count("charge") == 1
    assert "tool_call_resolved" in world.tags()
    await fourth.at_rest()
    world.converged()
    await world.close()


async def test_an_abort_by_another_process_keeps_the_checkpoint_out(tmp_path: Path) -> None:
    """The tail moved between the making and the commit: the settlement goes on without, and the next one is good."""
    world = World("memory", tmp_path)
    gate = Gate()

    async def waits(request: Any) -> str:
        await gate.wait()
        return "done"

    process = await world.process(agent_of(Script(waits)), checkpoint_records=1)
    running = await process.submit("first")
    queued = await process.submit("second")
    await gate.reached()
    other = await world.process(agent_of(Script("never")))
    await other.abort(queued)
    gate.open()
    assert (await process.settled(running)).outcome == "completed"
    await process.at_rest()
    assert process.host.stats()["checkpoint_made"] == 1
    assert world.store.load_checkpoint("c") is None
    world.converged()
    await world.kill(process)
    script = Script("done")
    third = await world.process(agent_of(script), checkpoint_records=1)
    await third.run("third")
    assert len(script.requests[0].messages) == 3
    await third.at_rest()
    await world.close()
