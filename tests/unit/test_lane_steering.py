"""Steering: what is said to a run that is under way, on the memory store and on DuckDB (Specification 5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lane_world import NOTE, Told, World, call, calls

from laneway import Tool
from laneway.actors.lane import facts
from laneway.actors.lane.feed import Cursor
from laneway.storage.commands import ClaimJoining
from laneway.storage.errors import AdmissionConflict, Refused
from laneway.storage.ledger import State
from laneway.storage.records import InputRecorded


def inputs(world: World) -> list[InputRecorded]:
    return [record for record in world.records() if isinstance(record, InputRecorded)]


def kinds(world: World) -> list[tuple[str, Any]]:
    return [(record.kind, record.content) for record in inputs(world)]


@pytest.mark.requirement("DUR-004", "DUR-016")
@pytest.mark.parametrize("join", [False, True])
async def test_steering_passes_the_queue_and_enters_at_the_next_boundary(
    setting: tuple[World, bool], join: bool
) -> None:
    """Specification 5: a stream of its own, in the log before the model reads it; the agent need not join."""
    world, stepwise = setting
    told = Told(calls(call("note")), "steered", "two")
    process = await world.process(told.agent(NOTE, join=join), stepwise=stepwise)
    one = await process.submit("one")
    await told.gates[0].reached()
    two = await process.submit("two")
    steering = [await process.steer(text) for text in ("left", "no, right")]
    assert kinds(world) == [("user", "one")]
    told.let(0)
    await told.gates[1].reached()
    run_id = facts.run_id_of(one.submission_id)
    expected = [("user", "one"), ("steering", "left"), ("steering", "no, right")]
    assert sorted(kinds(world)) == sorted([*expected, ("follow_up", "two")] if join else expected)
    assert [text for role, text in told.prompts[1] if role == "user"] == (
        ["one", "two", "left", "no, right"] if join else ["one", "left", "no, right"]
    )
    assert {record.run_id for record in inputs(world) if record.kind == "steering"} == {run_id}
    told.let(1, 2)
    found = [await process.settled(receipt) for receipt in (one, *steering)]
    assert {(item.outcome, item.text, item.run_id) for item in found} == {("completed", "steered", run_id)}
    assert (await process.settled(two)).text == ("steered" if join else "two")
    await process.at_rest()
    world.converged()


async def test_steering_keeps_a_run_going_that_has_answered(setting: tuple[World, bool]) -> None:
    """What is accepted before the run has decided to finish is served by it."""
    world, stepwise = setting
    told = Told("first", "second")
    process = await world.process(told.agent(), stepwise=stepwise)
    one = await process.submit("one")
    await told.gates[0].reached()
    steering = await process.steer("more")
    told.let(0, 1)
    assert [(await process.settled(item)).text for item in (one, steering)] == ["second", "second"]
    await process.at_rest()
    assert world.row(steering).steers == world.row(steering).host_id == one.submission_id
    world.converged()


async def test_where_nothing_runs_there_is_nothing_to_steer(setting: tuple[World, bool]) -> None:
    """Refused with a typed code before anything is stored."""
    world, stepwise = setting
    told = Told("first")
    told.let(0)
    process = await world.process(told.agent(), stepwise=stepwise)
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            await process.steer("hello?")
        assert (caught.value.code, caught.value.retryable) == ("nothing_to_steer", False)
        assert len(world.store.list_rows("c")) == world.tags().count("submission_settled")
        if not world.tags():
            await process.run("one")
            await process.at_rest()
    world.converged()


@pytest.mark.requirement("DUR-001")
async def test_steering_is_admitted_once_a_key(setting: tuple[World, bool]) -> None:
    """The same key gives the same receipt, also when its run is long over; another payload is refused."""
    world, stepwise = setting
    told = Told("first", "second")
    process = await world.process(told.agent(), stepwise=stepwise)
    one = await process.submit("one", key="k1")
    await told.gates[0].reached()
    first = await process.steer("left", key="k2")
    again = await process.steer("left", key="k2")
    assert (again.submission_id, again.queue_sequence, again.replayed) == (first.submission_id, 2, True)
    for key, text in (("k2", "right"), ("k1", "one")):
        with pytest.raises(AdmissionConflict):
            await process.steer(text, key=key)
    with pytest.raises(AdmissionConflict):
        await process.submit("left", key="k2")
    told.let(0, 1)
    await process.settled(one)
    await process.at_rest()
    late = await process.steer("left", key="k2")
    assert (late.submission_id, late.replayed) == (first.submission_id, True)
    assert kinds(world) == [("user", "one"), ("steering", "left")]
    world.converged()


@pytest.mark.requirement("DUR-002", "DUR-004")
async def test_steering_that_its_run_can_no_longer_serve_becomes_queued_work(setting: tuple[World, bool]) -> None:
    """Nothing acknowledged is lost: it runs by itself in its place, and its record names whom it was to steer."""
    world, stepwise = setting
    told = Told("first", "two", "late")
    told.let(1, 2)
    process = await world.process(told.agent(turns_max=1), stepwise=stepwise)
    one = await process.submit("one")
    await told.gates[0].reached()
    two = await process.submit("two")
    late = await process.steer("late")
    told.let(0)
    assert [(await process.settled(item)).text for item in (one, two, late)] == ["first", "two", "late"]
    assert [(record.kind, record.content, record.steers) for record in inputs(world)] == [
        ("user", "one", None),
        ("user", "two", None),
        ("user", "late", one.submission_id),
    ]
    assert (await process.settled(late)).run_id == facts.run_id_of(late.submission_id)
    await process.at_rest()
    world.converged()


async def test_steering_through_another_process_reaches_the_run(setting: tuple[World, bool]) -> None:
    """The owner learns of it with the next answer of the store."""
    world, stepwise = setting
    told = Told(calls(call("note")), "steered")
    owner = await world.process(told.agent(NOTE), stepwise=stepwise)
    other = await world.process(told.agent(NOTE), stepwise=stepwise)
    one = await owner.submit("one")
    await told.gates[0].reached()
    steering = await other.steer("left")
    told.let(0, 1)
    assert [(await owner.settled(item)).text for item in (one, steering)] == ["steered", "steered"]
    assert kinds(world) == [("user", "one"), ("steering", "left")]
    await owner.at_rest()
    await other.at_rest()
    world.converged()


async def test_steering_waits_for_a_run_that_is_unknown(setting: tuple[World, bool]) -> None:
    """A held run is under way: it takes the steering in when somebody has said what became of its call."""
    import asyncio

    world, stepwise = setting

    async def lose(ctx: Any, arguments: dict[str, Any]) -> str:
        return await asyncio.get_running_loop().create_future()

    told = Told(calls(call("pay")), "steered")
    told.let(0, 1)
    tool = Tool.raw("pay", lose, effect="uncertain", version="1", timeout_s=0.01)
    process = await world.process(told.agent(tool), stepwise=stepwise)
    one = await process.submit("one")
    await process.at_rest()
    assert world.row(one).state is State.UNKNOWN
    steering = await process.steer("left")
    await process.at_rest()
    assert world.row(steering).state is State.READY
    await world.resolve(one, "completed_with_result", "paid")
    await process.recover()
    assert [(await process.settled(item)).text for item in (one, steering)] == ["steered", "steered"]
    assert told.prompts[1][-2:] == [("tool", "paid"), ("user", "left")]
    await process.at_rest()
    world.converged()


@pytest.mark.requirement("DUR-012")
async def test_steering_that_was_not_delivered_is_aborted_like_queued_work(setting: tuple[World, bool]) -> None:
    world, stepwise = setting
    told = Told("first")
    process = await world.process(told.agent(), stepwise=stepwise)
    one = await process.submit("one")
    await told.gates[0].reached()
    steering = await process.steer("left")
    await process.abort(steering)
    told.let(0)
    assert [(await process.settled(item)).outcome for item in (one, steering)] == ["completed", "aborted"]
    assert kinds(world) == [("user", "one")]
    await process.at_rest()
    world.converged()


async def test_an_abort_of_the_run_lets_undelivered_steering_run_by_itself(setting: tuple[World, bool]) -> None:
    world, stepwise = setting
    told = Told("never", "by itself")
    told.let(1)
    process = await world.process(told.agent(), stepwise=stepwise)
    one = await process.submit("one")
    await told.gates[0].reached()
    steering = await process.steer("left")
    await process.abort(one)
    assert [(await process.settled(item)).outcome for item in (one, steering)] == ["aborted", "completed"]
    assert inputs(world)[1].steers == one.submission_id
    await process.at_rest()
    world.converged()


async def test_the_run_of_a_lost_process_is_steered_when_it_goes_on(setting: tuple[World, bool]) -> None:
    """The grant tells the next owner that steering waits."""
    world, stepwise = setting
    lost = Told(calls(call("note")), "never")
    first = await world.process(lost.agent(NOTE), stepwise=stepwise)
    one = await first.submit("one")
    await lost.gates[0].reached()
    steering = await first.steer("left")
    await world.kill(first)
    told = Told(calls(call("note")), "steered")
    told.let(0, 1)
    second = await world.process(told.agent(NOTE), stepwise=stepwise)
    await second.recover()
    assert [(await second.settled(item)).text for item in (one, steering)] == ["steered", "steered"]
    assert [text for role, text in told.prompts[1] if role == "user"] == ["one", "left"]
    await second.at_rest()
    world.converged()


async def test_queued_work_of_an_agent_that_does_not_join_is_not_looked_at(tmp_path: Path) -> None:
    """A run looks for steering only where some came: a queue behind it costs it nothing."""
    world = World("memory", tmp_path)
    told = Told(calls(call("note")), "first", "second")
    process = await world.process(told.agent(NOTE))
    one = await process.submit("one")
    await told.gates[0].reached()
    two = await process.submit("two")
    told.let(0, 1, 2)
    assert [(await process.settled(item)).text for item in (one, two)] == ["first", "second"]
    assert not [item for unit in process.link.units for item in unit.commands if isinstance(item, ClaimJoining)]
    await process.at_rest()
    world.converged()
    await world.close()


async def test_a_watcher_sees_steering_as_such(tmp_path: Path) -> None:
    world = World("memory", tmp_path)
    told = Told("first", "second")
    process = await world.process(told.agent())
    one = await process.submit("one")
    await told.gates[0].reached()
    await process.steer("left")
    told.let(0, 1)
    await process.settled(one)
    await process.at_rest()
    poll = await process.host.poll("c", Cursor(after=0), 0.0)
    seen = [(record.kind, record.content) for _, record in poll.records if isinstance(record, InputRecorded)]
    assert seen == [("user", "one"), ("steering", "left")]
    await world.close()
