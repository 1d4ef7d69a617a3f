"""The host: places for lanes, waiting, passivation, callers that go away, work without an agent, watchers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lane_world import Gate, Script, World, agent_of, call, calls, until

from laneway import InvalidInput, NotFound, Tool
from laneway.actors.lane.feed import Cursor
from laneway.storage.commands import Admit, Unit
from laneway.storage.ledger import State
from laneway.storage.memory_store import MemoryStore


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World("memory", tmp_path)
    yield world
    await world.close()


def gated(gates: dict[str, Gate]) -> Any:
    async def answer(request: Any) -> str:
        if request.conversation_id in gates:
            await gates[request.conversation_id].wait()
        return f"done {request.conversation_id}"

    return agent_of(Script(answer))


@pytest.mark.requirement("DUR-001")
async def test_with_one_place_the_others_wait_and_go_on(world: World) -> None:
    """They are admitted, not refused; nothing of them runs before there is a place."""
    gates = {"c0": Gate()}
    process = await world.process(gated(gates), lanes_per_actor=1)
    receipts = [await process.submit("go", conversation=f"c{number}") for number in range(4)]
    await gates["c0"].reached()
    assert process.host.resident() == ["c0"]
    assert [world.row(receipt).state for receipt in receipts] == [State.RUNNING, *[State.READY] * 3]
    gates["c0"].open()
    for number, receipt in enumerate(receipts):
        assert (await process.settled(receipt)).text == f"done c{number}"
    assert len(process.host.resident()) == 1
    world.converged()


async def test_those_who_look_on_take_no_place(world: World) -> None:
    """A poll, an abort and a waiter of a conversation without a place run nothing; its work waits for its turn."""
    gates = {"c0": Gate()}
    process = await world.process(gated(gates), lanes_per_actor=1)
    first = await process.submit("go", conversation="c0")
    await gates["c0"].reached()
    second = await process.submit("go", conversation="c1")
    third = await process.submit("go", conversation="c1")
    poll = await process.host.poll("c1", Cursor(), 0)
    assert (poll.records, poll.quiet) == ([], False)
    assert await process.host.settlement("c1", second.submission_id, 0) is None
    assert (await process.host.abort("c1", third.submission_id, "abt_1", "bob", "")).abort.abort_id == "abt_1"
    await asyncio.sleep(0)
    assert world.row(second).state is State.READY
    assert world.row(third).state is State.ABORTED
    assert process.host.stats()["model_calls"] == 1
    gates["c0"].open()
    assert (await process.settled(first)).outcome == "completed"
    assert (await process.settled(second)).text == "done c1"
    world.converged()


async def test_a_watcher_holds_no_place(world: World) -> None:
    """An idle conversation that somebody watches makes room; the watcher sees what comes later all the same."""
    gate = Gate()

    async def first(request: Any) -> Any:
        return calls(call("charge")) if request.conversation_id == "held" else "done"

    async def never(ctx: Any, arguments: dict[str, Any]) -> str:
        await gate.wait()
        raise AssertionError("unreachable")

    charge = Tool.raw("charge", never, effect="uncertain", timeout_s=0.01)
    process = await world.process(agent_of(Script(first), charge), lanes_per_actor=1)
    held = await process.submit("go", conversation="held")
    await process.at_rest("held")
    assert world.row(held).state is State.UNKNOWN
    after = len(world.records("held"))
    watching = asyncio.create_task(process.host.poll("held", Cursor(after=after), 10))
    await until(lambda: process.host._lanes["held"].feed.watched)
    assert (await process.run("go", conversation="other")).text == "done"
    await process.host.abort("held", held.submission_id, "abt_1", "bob", "")
    assert (await watching).records
    world.converged()


async def test_an_idle_lane_leaves_memory_and_comes_back(world: World) -> None:
    script = Script("done")
    process = await world.process(agent_of(script), lanes_per_actor=2)
    for number in range(5):
        await process.run("go", conversation=f"c{number}")
        await process.at_rest(f"c{number}")
    assert len(process.host.resident()) == 2
    assert process.host.stats()["passivated"] == 3
    await process.run("again", conversation="c0")
    assert [message["role"] for message in script.requests[-1].messages] == ["user", "assistant", "user"]
    world.converged()


async def test_a_lane_that_is_idle_long_enough_leaves_memory(world: World) -> None:
    now = [0.0]
    process = await world.process(agent_of(Script("done")), idle_s=0.01, monotonic=lambda: now[0])
    await process.run("go")
    await process.at_rest()
    assert process.host.resident() == ["c"]
    now[0] = 1.0
    await until(lambda: not process.host.resident())
    assert (await process.run("again")).outcome == "completed"


@pytest.mark.requirement("DUR-001")
@pytest.mark.parametrize("stepwise", [False, True])
async def test_a_caller_that_goes_away_leaves_no_lane_behind(world: World, stepwise: bool) -> None:
    """What its submit claimed is driven to its end, whoever waits for it."""
    held = Gate()

    async def hold(units: list[Unit]) -> None:
        if any(isinstance(command, Admit) for unit in units for command in unit.commands):
            await held.wait()

    process = await world.process(agent_of(Script("done")), stepwise=stepwise)
    process.link.before_commit = hold
    submitting = asyncio.create_task(process.submit("go", key="k"))
    await held.reached()
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    held.open()
    receipt = await process.submit("go", key="k")
    assert receipt.replayed
    assert (await process.settled(receipt)).outcome == "completed"
    await process.at_rest()
    world.converged()


async def test_a_look_for_work_during_an_admission_loses_nothing(world: World) -> None:
    """The admission claims in its own commit; whoever wakes the lane meanwhile must not take its attempt's place."""
    held = Gate()

    async def hold(units: list[Unit]) -> None:
        if any(isinstance(command, Admit) for unit in units for command in unit.commands):
            await held.wait()

    process = await world.process(agent_of(Script("done", supplier=world.supplier)))
    await process.run("warm up")
    await process.at_rest()
    process.link.before_commit = hold
    submitting = asyncio.create_task(process.submit("go"))
    await held.reached()
    await process.host.activate(["c"])
    for _ in range(20):
        await asyncio.sleep(0)
    held.open()
    receipt = await submitting
    assert (await process.settled(receipt)).outcome == "completed"
    assert (world.supplier.count("model"), world.row(receipt).attempts, world.decisions()) == (2, 1, [])
    world.converged()


@pytest.mark.requirement("DUR-005", "DUR-006")
async def test_a_live_owner_is_never_preempted(world: World) -> None:
    """However long its work takes: another process that looks for work there gets nothing, and says so."""
    gates = {"c": Gate()}
    owner, other = await world.process(gated(gates)), await world.process(gated(gates))
    receipt = await owner.submit("go")
    await gates["c"].reached()
    world.clock.advance(3_600_000)
    for process in (owner, other):
        world.store.renew_lease(process.host.owner_id, 10_000)
    await other.host.activate(["c"])
    await other.at_rest()
    assert other.host._lanes["c"].nothing_to_do == "owned"
    assert world.store.inspect_tail("c").epoch == 1
    behind = await other.submit("and then?")
    await other.at_rest()
    assert world.row(behind).state is State.READY
    gates["c"].open()
    assert (await owner.settled(receipt)).outcome == "completed"
    assert (await owner.settled(behind)).outcome == "completed"
    assert owner.host.stats()["model_calls"] == 2
    assert "model_calls" not in other.host.stats()
    world.converged()


async def test_work_that_was_admitted_and_not_made_ready_goes_on_behind_other_work(world: World) -> None:
    """K1: the end of the work before it finds it, without any sweep."""
    gates = {"c": Gate()}
    process = await world.process(gated(gates))
    head = await process.submit("go")
    await gates["c"].reached()
    admit = Admit(
        submission_id="sub_cut_off",
        receipt_id="rcp_x",
        principal="alice",
        idempotency_key="x",
        agent="support",
        input='{"content":"cut off"}',
        input_digest="d",
    )
    world.store.commit([Unit(conversation_id="c", commands=(admit,))])
    assert world.row("sub_cut_off").state is State.ADMITTED
    gates["c"].open()
    await process.settled(head)
    await process.at_rest()
    assert world.row("sub_cut_off").state is State.COMPLETED
    world.converged()


async def test_work_without_its_agent_is_parked_and_goes_on_when_it_is_there(world: World) -> None:
    gates = {"c": Gate()}
    first = await world.process([gated(gates), agent_of(Script("hello"), name="other")])
    receipt = await first.submit("go", agent="support")
    await gates["c"].reached()
    await world.kill(first)
    without = await world.process(agent_of(Script("hello"), name="other"))
    await without.recover()
    await without.at_rest()
    row = world.row(receipt)
    assert (row.state, row.not_before_ms > world.clock()) == (State.READY, True)
    with pytest.raises(InvalidInput) as caught:
        await without.submit("go", agent="support")
    assert caught.value.details["field"] == "agent"
    world.clock.advance(15_001)
    gates["c"].open()
    again = await world.process(gated(gates))
    await again.recover()
    assert (await again.settled(receipt)).text == "done c"
    world.converged()


async def test_one_damaged_conversation_stands_still_and_the_others_go_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """F4, F23: no endless loop, no model call; the damage is named."""
    gates = {"bad": Gate()}
    process = await world.process(gated(gates))
    bad = await process.submit("go", conversation="bad")
    await gates["bad"].reached()
    await world.kill(process)
    store = world.store
    assert isinstance(store, MemoryStore)
    log = store._logs["bad"]
    log[0] = msgspec.structs.replace(log[0], body='[{"type":"nonsense"}]')
    store.close()
    second = await world.process(gated(gates))
    await second.recover()
    await second.at_rest("bad")
    assert (await second.run("go", conversation="good")).text == "done good"
    assert world.row(bad).state is not State.COMPLETED
    assert second.host._lanes["bad"].at_rest
    assert "bad" in caplog.text


async def test_a_write_that_the_store_refuses_does_not_spin(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that ends by a refusal is tried again after a pause, by the same lane, and never in a hot loop."""
    from laneway.actors.lane import facts

    real, refusals = facts.run_completed, [1, 2]

    def broken(run_id: str, *args: Any) -> Any:
        record = real(run_id, *args)
        taken = world.records()[0].id  # a record id that stands in the log already
        return msgspec.structs.replace(record, id=taken) if refusals and refusals.pop() else record

    monkeypatch.setattr(facts, "run_completed", broken)
    process = await world.process(agent_of(Script("done", supplier=world.supplier)))
    receipt = await process.submit("go")
    assert (await process.settled(receipt)).text == "done"
    assert (world.row(receipt).attempts, refusals) == (3, [])
    world.converged()


async def test_nobody_waits_for_a_submission_that_does_not_exist(world: World) -> None:
    process = await world.process(agent_of(Script("done")))
    with pytest.raises(NotFound):
        await process.host.settlement("c", "sub_nobody", 5)


async def test_a_closed_host_gives_its_lanes_back(world: World) -> None:
    """A planned end costs nothing: the next process goes on at once, and no attempt is counted as lost twice."""
    gates = {"c": Gate()}
    process = await world.process(gated(gates))
    receipt = await process.submit("go")
    await gates["c"].reached()
    await process.host.close()
    assert world.store.owners() == {}
    gates["c"].open()
    second = await world.process(gated(gates))
    await second.recover()
    assert (await second.settled(receipt)).text == "done c"
    world.converged()


# --- watchers -------------------------------------------------------------------------------------------------------


async def test_a_stream_resumes_after_any_record_and_ends(world: World) -> None:
    """F13, F14: every record after n once, then the end; after the end, after a restart, and for nobody's work."""
    process = await world.process(agent_of(Script(calls(call("nobody")), "done")))
    await process.run("go")
    await process.at_rest()
    records = world.records()
    for host in (process.host, (await world.process(agent_of(Script("done")))).host):
        for after in range(len(records) + 1):
            poll = await host.poll("c", Cursor(after=after), 5)
            assert [record for _, record in poll.records] == records[after:]
        end = await host.poll("c", Cursor(after=len(records)), 5)
        assert (end.records, end.quiet) == ([], True)
    assert (await process.host.poll("nothing", Cursor(), 5)).quiet


async def test_a_watcher_is_woken_by_what_comes_while_it_reads(world: World) -> None:
    """It reads the store, a record is committed meanwhile: it is told at once, not at its next look."""
    gates = {"c": Gate()}
    process = await world.process(gated(gates))
    await process.submit("go")
    await gates["c"].reached()
    after = len(world.records())
    lane = process.host._lanes["c"]
    version = lane.feed.version
    gates["c"].open()
    await process.at_rest()
    async with asyncio.timeout(1):  # far below the two seconds after which it looks anyway
        await lane.feed.changed(10, version)
    assert (await process.host.poll("c", Cursor(after=after), 5)).records


@pytest.mark.requirement("DUR-008")
async def test_deltas_are_seen_before_their_response_and_are_never_stored(world: World) -> None:
    gate = Gate()

    async def answer(request: Any) -> str:
        return "hello"

    async def slow(units: list[Unit]) -> None:
        if world.supplier.count("model"):
            await gate.wait()

    process = await world.process(agent_of(Script(answer, supplier=world.supplier)))
    process.link.before_commit = slow
    await process.submit("go")
    await gate.reached()
    poll = await process.host.poll("c", Cursor(after=len(world.records())), 5)
    assert "".join(delta.text for delta in poll.deltas) == "hello"
    again = await process.host.poll("c", poll.cursor, 0)
    assert again.deltas == []
    gate.open()
    await process.at_rest()
    assert "model_delta_recorded" not in world.tags()
