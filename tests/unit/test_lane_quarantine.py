"""Poison conversations: what nobody can read or drive is set aside with its reason, and the others go on (F4, F23)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from lane_world import Gate, Process, Script, World, agent_of, until
from store_builders import Conversation

from laneway.actors.lane import lane as lane_module
from laneway.recovery.classify import Evidence
from laneway.storage.errors import Refused, StaleTail
from laneway.storage.ledger import State
from laneway.storage.memory_store import MemoryStore


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World("memory", tmp_path)
    yield world
    await world.close()


def agent(gate: Gate | None = None) -> Any:
    async def answer(request: Any) -> str:
        if gate is not None:
            await gate.wait()
        return f"done {request.conversation_id}"

    return agent_of(Script(answer))


async def stopped(world: World, *names: str) -> list[Any]:
    """Submissions of these conversations whose process was killed while the model was asked."""
    gate = Gate()
    process = await world.process(agent(gate))
    receipts = [await process.submit("go", conversation=name) for name in names]
    await gate.reached()
    await world.kill(process)
    return receipts


@pytest.mark.requirement("DUR-013", "DUR-014")
async def test_a_conversation_without_a_decision_is_quarantined_and_the_others_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F4: classification raises for one conversation; released, it goes on where it stood."""
    bad, good = await stopped(world, "bad", "good")
    real = lane_module.classify

    def broken(evidence: Evidence) -> Any:
        if evidence.row.conversation_id == "bad":
            raise ZeroDivisionError("no such case")
        return real(evidence)

    process = await world.process(agent())
    with monkeypatch.context() as patch:
        patch.setattr(lane_module, "classify", broken)
        await process.recover()
        assert (await process.settled(good)).text == "done good"
        await process.at_rest("bad")
    (held,) = world.store.quarantined()
    assert (held.conversation_id, held.author) == ("bad", "lane")
    assert held.reason.startswith("classification_failed: ")
    assert "ZeroDivisionError: no such case" in held.reason
    assert process.host.stats()["quarantined"] == 1
    attempts = world.row(bad).attempts
    await process.recover()
    await process.host.activate(["bad"])
    await process.at_rest("bad")
    assert process.host._lanes["bad"].nothing_to_do == "quarantined"
    assert world.row(bad).attempts == attempts
    later = await process.submit("more", conversation="bad")
    assert world.row(later).state is State.READY
    world.store.release_quarantine("bad", "ann")
    await process.recover()
    assert (await process.settled(bad)).text == "done bad"
    assert (await process.settled(later)).text == "done bad"
    world.converged()


@pytest.mark.requirement("DUR-014")
async def test_a_released_conversation_is_claimed_by_any_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane gave its claim back, whatever the state of the work: its process lives and holds no lane."""
    (bad,) = await stopped(world, "bad")

    def broken(evidence: Evidence) -> Any:
        raise ZeroDivisionError

    process = await world.process(agent())
    with monkeypatch.context() as patch:
        patch.setattr(lane_module, "classify", broken)
        await process.recover()
        await until(world.store.quarantined)
        await process.at_rest("bad")
    assert (world.row(bad).state, world.row(bad).owner_id) == (State.RECOVERY, None)
    world.store.release_quarantine("bad", "ann")
    other = await world.process(agent())
    await other.recover()
    assert (await other.settled(bad)).text == "done bad"
    world.converged()


def change_body(store: Any, conversation: str, **fields: Any) -> None:
    assert isinstance(store, MemoryStore)
    store._logs[conversation][0] = msgspec.structs.replace(store._logs[conversation][0], **fields)
    store.close()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ({"body": '[{"type":"nonsense"}]'}, "does not match its digest"),
        ({"digest": "0" * 64}, "does not match its digest"),
        ({"schema_version": 99}, "has schema 99"),
    ],
)
async def test_a_damaged_log_is_quarantined_with_its_place(world: World, damage: dict[str, Any], told: str) -> None:
    """F23: the reason names what is wrong; submissions are admitted or refused with a typed error; others run."""
    bad, good = await stopped(world, "bad", "good")
    change_body(world.store, "bad", **damage)
    process = await world.process(agent())
    await process.recover()
    assert (await process.settled(good)).text == "done good"
    await until(world.store.quarantined)
    (held,) = world.store.quarantined()
    assert held.reason.startswith("store_corrupt: ")
    assert told in held.reason
    assert world.row(bad).state is State.RUNNING
    assert len(world.batches("bad")) == 1


async def test_a_batch_that_stands_twice_is_quarantined(tmp_path: Path) -> None:
    """F23: each copy matches its digest. What is folded twice has another tail than the store, and a lane that takes
    that for another's write would try again for ever."""
    world = World("duckdb", tmp_path)
    await (await world.process(agent())).run("go", conversation="bad")
    bad, good = await stopped(world, "bad", "good")
    await world.kill(world.processes[0])
    world.store.close()
    with duckdb.connect(tmp_path / "store.duckdb") as file:
        file.execute(
            "INSERT INTO batch_log FROM batch_log WHERE conversation_id = 'bad' AND first_sequence > 1 LIMIT 1"
        )
    world.store = world._open()
    process = await world.process(agent())
    await process.recover()
    assert (await process.settled(good)).text == "done good"
    await until(world.store.quarantined)
    (held,) = world.store.quarantined()
    assert held.conversation_id == "bad"
    assert "and the log before it ends at" in held.reason
    assert not world.row(bad).settled
    await world.close()


async def test_a_row_whose_state_is_damaged_keeps_nobody_else_from_starting(tmp_path: Path) -> None:
    """F23: the scan of all open work goes on past it, and its conversation alone is set aside."""
    world = World("duckdb", tmp_path)
    _, good = await stopped(world, "bad", "good")
    world.store.close()
    with duckdb.connect(tmp_path / "store.duckdb") as file:
        file.execute("UPDATE ledger SET state = 'runing' WHERE conversation_id = 'bad'")
    world.store = world._open()
    process = await world.process(agent())
    await process.recover()
    assert (await process.settled(good)).text == "done good"
    await until(world.store.quarantined)
    (held,) = world.store.quarantined()
    assert (held.conversation_id, "does not decode" in held.reason) == ("bad", True)
    assert not [row for row in world.store.scan_nonterminal().rows if not row.quarantined]
    await world.close()


async def test_damage_that_shows_behind_the_claim_leaves_no_owner(world: World) -> None:
    """The log grew while the lane was away, and what came is damaged: the claim is given back all the same."""
    first, second = [await world.process(agent()) for _ in range(2)]
    await first.run("go")
    await first.at_rest()
    assert first.host._lanes["c"]._view is not None
    await second.run("more")
    await second.at_rest()
    store = world.store
    assert isinstance(store, MemoryStore)
    store._logs["c"][-1] = msgspec.structs.replace(store._logs["c"][-1], body="[]")
    waiting = Conversation(store, "c")
    waiting.submit("sub_waiting", text='{"content":"hi"}')
    await first.host.activate(["c"])
    await until(store.quarantined)
    await first.at_rest()
    assert world.row("sub_waiting").attempts == 1
    assert world.row("sub_waiting").owner_id is None


@pytest.mark.requirement("DUR-001")
async def test_a_submission_to_a_log_that_cannot_be_read_is_admitted(world: World) -> None:
    """F23: settled history is damaged, the ledger is not: the receipt is durable, and the lane is set aside."""
    first = await world.process(agent())
    await first.run("go", conversation="bad")
    await first.host.close()
    first.link.close()
    world.processes.remove(first)
    change_body(world.store, "bad", body="[]")
    process = await world.process(agent())
    receipt = await process.submit("more", conversation="bad")
    await until(world.store.quarantined)
    await process.at_rest("bad")
    assert world.row(receipt).state is State.READY
    again = await process.submit("and more", conversation="bad")
    assert world.row(again).state is State.READY


@pytest.mark.requirement("DUR-014")
async def test_a_lane_that_fails_again_and_again_is_quarantined(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Specification 16: a named bound, and each try waits longer; the attempts of its neighbours are not touched."""
    failures = 0

    def broken(row: Any, view: Any, turns_max: int, **more: Any) -> Any:
        nonlocal failures
        if row.conversation_id == "bad":
            failures += 1
            raise RuntimeError("a bug")
        return real(row, view, turns_max, **more)

    from laneway.actors.lane import turn

    real = turn.next_action
    monkeypatch.setattr(turn, "next_action", broken)
    process = await world.process(agent(), faults_max=3)
    bad = await process.submit("go", conversation="bad")
    assert (await process.run("go", conversation="good")).outcome == "completed"
    await until(world.store.quarantined)
    await process.at_rest("bad")
    (held,) = world.store.quarantined()
    assert held.reason == "it failed 3 times in a row, at last with RuntimeError: a bug"
    assert failures == 3
    assert world.row(bad).attempts == 3
    monkeypatch.setattr(turn, "next_action", real)
    world.store.release_quarantine("bad", "ann")
    await process.recover()
    assert (await process.settled(bad)).outcome == "completed"
    world.converged()


async def failing(world: World, monkeypatch: pytest.MonkeyPatch, left: list[Exception]) -> Process:
    """A process whose lanes fail with each error that is `left`."""
    from laneway.actors.lane import turn

    real = turn.next_action

    def broken(row: Any, view: Any, turns_max: int, **more: Any) -> Any:
        if left:
            raise left.pop()
        return real(row, view, turns_max, **more)

    monkeypatch.setattr(turn, "next_action", broken)
    return await world.process(agent(), faults_max=2)


async def test_an_error_that_may_pass_is_no_poison(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    error = StaleTail("moved", tail_sequence=0, tail_digest="")
    process = await failing(world, monkeypatch, [error] * 4)
    assert (await process.run("go")).outcome == "completed"
    assert world.store.quarantined() == []


async def test_failures_that_are_not_in_a_row_are_no_poison(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Exception] = []
    process = await failing(world, monkeypatch, left)
    for _ in range(3):
        left.append(Refused("no"))
        assert (await process.run("go")).outcome == "completed"
        assert left == []
    assert world.store.quarantined() == []


@pytest.mark.requirement("DUR-012")
async def test_quarantined_work_can_be_aborted(world: World) -> None:
    """It needs no claim: the abort settles what nobody runs."""
    world.store.quarantine("c", "why", "ann")
    process = await world.process(agent())
    receipt = await process.submit("go")
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    world.converged()


async def test_an_operator_sets_a_conversation_aside(world: World) -> None:
    """What runs comes to its end; what is queued behind it waits for the release."""
    gate = Gate()
    process = await world.process(agent(gate))
    first = await process.submit("go")
    second = await process.submit("go")
    await gate.reached()
    world.store.quarantine("c", "looking at it", "ann")
    gate.open()
    assert (await process.settled(first)).outcome == "completed"
    await process.at_rest()
    assert world.row(second).state is State.READY
    await process.recover()
    world.store.release_quarantine("c", "ann")
    await process.recover()
    assert (await process.settled(second)).outcome == "completed"
