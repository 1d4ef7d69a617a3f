"""Submissions that join a run while it is under way, on the memory store and on DuckDB (Specification 5, DUR-016)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from lane_world import NOTE, Process, Told, Trouble, World, call, calls
from store_builders import admission

from laneway import Tool
from laneway.actors.lane import facts
from laneway.recovery.classify import evidence_of
from laneway.storage.commands import (
    Append,
    ClaimJoining,
    Finalize,
    MarkJoined,
    MarkReady,
    Materialize,
    RequestAbort,
    ReserveSettlement,
    Unit,
)
from laneway.storage.errors import ModelError, Refused
from laneway.storage.ledger import Receipt, State
from laneway.storage.records import InputRecorded, SubmissionSettled, encode_records


async def a_pair(process: Process, told: Told) -> tuple[Receipt, Receipt]:
    """A run that is under way, and another submission that waits at its first boundary."""
    one = await process.submit("one")
    await told.gates[0].reached()
    two = await process.submit("two")
    told.let(0)
    return one, two


def inputs(world: World) -> list[tuple[str, Any, str | None]]:
    return [
        (record.kind, record.content, record.run_id) for record in world.records() if isinstance(record, InputRecorded)
    ]


def settled(world: World) -> list[SubmissionSettled]:
    return [record for record in world.records() if isinstance(record, SubmissionSettled)]


@pytest.mark.requirement("DUR-004", "DUR-016")
async def test_what_waits_joins_behind_a_complete_turn(setting: tuple[World, bool]) -> None:
    """Design 5: the contiguous prefix enters in order, after the calls' results and before the next model call."""
    world, stepwise = setting
    told = Told(calls(call("note")), "for all three")
    told.let(1)
    process = await world.process(told.agent(NOTE, join=True), stepwise=stepwise)
    receipts = [await process.submit("one")]
    await told.gates[0].reached()
    receipts += [await process.submit(text) for text in ("two", "three")]
    told.let(0)
    outcomes = [await process.settled(receipt) for receipt in receipts]
    run_id = facts.run_id_of(receipts[0].submission_id)
    assert {(found.outcome, found.text, found.run_id) for found in outcomes} == {("completed", "for all three", run_id)}
    assert told.prompts[1] == [
        ("user", "one"),
        ("assistant", None),
        ("tool", "noted"),
        ("user", "two"),
        ("user", "three"),
    ]
    assert inputs(world) == [("user", "one", None), ("follow_up", "two", run_id), ("follow_up", "three", run_id)]
    await process.at_rest()
    assert [world.row(receipt).host_id for receipt in receipts[1:]] == [receipts[0].submission_id] * 2
    assert world.tags().count("run_started") == 1
    assert world.decisions() == []
    world.converged()


async def test_what_waits_at_the_last_answer_goes_on_with_the_run(setting: tuple[World, bool]) -> None:
    """Before run_completed is recorded the run can still serve; each boundary takes in what came meanwhile."""
    world, stepwise = setting
    told = Told("first", "second", "third")
    process = await world.process(told.agent(join=True), stepwise=stepwise)
    receipts = [await process.submit("one")]
    for number, text in ((0, "two"), (1, "three")):
        await told.gates[number].reached()
        receipts.append(await process.submit(text))
        told.let(number)
    told.let(2)
    outcomes = [await process.settled(receipt) for receipt in receipts]
    assert [found.text for found in outcomes] == ["third"] * 3
    assert told.prompts[2] == [
        ("user", "one"),
        ("assistant", "first"),
        ("user", "two"),
        ("assistant", "second"),
        ("user", "three"),
    ]
    await process.at_rest()
    assert world.tags().count("run_completed") == 1
    world.converged()


async def test_without_join_each_has_a_run_of_its_own(setting: tuple[World, bool]) -> None:
    world, stepwise = setting
    told = Told("first", "second")
    process = await world.process(told.agent(), stepwise=stepwise)
    one = await process.submit("one")
    await told.gates[0].reached()
    two = await process.submit("two")
    told.let(0, 1)
    assert [(await process.settled(receipt)).text for receipt in (one, two)] == ["first", "second"]
    assert [kind for kind, _, _ in inputs(world)] == ["user", "user"]
    await process.at_rest()
    world.converged()


async def test_rows_that_waited_before_this_process_came_join_too(setting: tuple[World, bool]) -> None:
    """The grant tells a lane of what it has not admitted itself."""
    world, stepwise = setting
    early = await world.process(Told("never").agent(join=True), stepwise=stepwise)
    one = await early.submit("one")
    two = await early.submit("two")
    await world.kill(early)
    told = Told("first", "second")
    told.let(0, 1)
    process = await world.process(told.agent(join=True), stepwise=stepwise)
    await process.recover()
    assert [(await process.settled(receipt)).text for receipt in (one, two)] == ["second", "second"]
    assert inputs(world)[1][0] == "follow_up"
    await process.at_rest()
    world.converged()


async def test_a_run_without_turns_left_takes_nothing_in(setting: tuple[World, bool]) -> None:
    """Joining happens only while the run can still serve it: `turns_max` bounds a run with all that joined."""
    world, stepwise = setting
    told = Told("first", "second")
    told.let(1)
    process = await world.process(told.agent(turns_max=1, join=True), stepwise=stepwise)
    one = await process.submit("one")
    await told.gates[0].reached()
    two = await process.submit("two")
    told.let(0)
    assert [(await process.settled(receipt)).text for receipt in (one, two)] == ["first", "second"]
    assert [kind for kind, _, _ in inputs(world)] == ["user", "user"]
    await process.at_rest()
    world.converged()


async def test_a_run_without_time_left_takes_nothing_in(setting: tuple[World, bool]) -> None:
    world, stepwise = setting

    async def slow(ctx: Any, arguments: dict[str, Any]) -> str:
        if ctx.queue_sequence == 1:
            world.clock.advance(61_000)
        return "noted"

    told = Told(calls(call("note")), "second")
    told.let(1)
    tool = Tool.raw("note", slow, effect="idempotent", version="1")
    process = await world.process(
        told.agent(tool, run_timeout_s=60.0, join=True), stepwise=stepwise, lease_ttl_s=3600.0
    )
    one = await process.submit("one")
    await told.gates[0].reached()
    two = await process.submit("two")
    told.let(0)
    first = await process.settled(one)
    assert first.error is not None
    assert first.error["code"] == "run_timeout"
    assert (await process.settled(two)).text == "second"
    await process.at_rest()
    world.converged()


async def test_another_agents_work_is_not_taken_in(setting: tuple[World, bool]) -> None:
    """It ends the prefix: what is behind it would overtake it."""
    world, stepwise = setting
    told, other = Told("first", "third"), Told("second")
    told.let(1)
    other.let(0)
    agents = [told.agent(join=True), other.agent(name="other", join=True)]
    process = await world.process(agents, stepwise=stepwise)
    receipts = [await process.submit("one")]
    await told.gates[0].reached()
    receipts += [await process.submit("two", agent="other"), await process.submit("three")]
    told.let(0)
    assert [(await process.settled(receipt)).text for receipt in receipts] == ["first", "second", "third"]
    await process.at_rest()
    world.converged()


@pytest.mark.requirement("DUR-012")
async def test_an_abort_of_the_host_aborts_what_joined(setting: tuple[World, bool]) -> None:
    """Specification 5: joined submissions settle with the host run."""
    world, stepwise = setting
    told = Told("first", "second")
    process = await world.process(told.agent(join=True), stepwise=stepwise)
    one, two = await a_pair(process, told)
    await told.gates[1].reached()
    await process.abort(one)
    assert [(await process.settled(receipt)).outcome for receipt in (one, two)] == ["aborted", "aborted"]
    assert {record.run_id for record in settled(world)} == {facts.run_id_of(one.submission_id)}
    await process.at_rest()
    world.converged()


@pytest.mark.requirement("DUR-012")
async def test_joined_work_cannot_be_aborted_alone(setting: tuple[World, bool]) -> None:
    """What the model has read cannot be taken back: the abort is refused, and says whom to abort instead."""
    world, stepwise = setting
    told = Told("first", "second")
    process = await world.process(told.agent(join=True), stepwise=stepwise)
    one, two = await a_pair(process, told)
    await told.gates[1].reached()
    with pytest.raises(Refused) as caught:
        await process.abort(two)
    assert (caught.value.code, caught.value.details["host_id"]) == ("joined", one.submission_id)
    assert world.row(two).abort is None
    told.let(1)
    assert [(await process.settled(receipt)).outcome for receipt in (one, two)] == ["completed", "completed"]
    await process.at_rest()
    world.converged()


async def test_work_that_was_aborted_while_it_waited_is_walked_over(setting: tuple[World, bool]) -> None:
    """Specification 5 and 13: a closed obligation is no gap; it never enters the log."""
    world, stepwise = setting
    told = Told("first", "second")
    told.let(1)
    process = await world.process(told.agent(join=True), stepwise=stepwise)
    receipts = [await process.submit("one")]
    await told.gates[0].reached()
    receipts += [await process.submit(text) for text in ("two", "three")]
    await process.abort(receipts[1])
    told.let(0)
    outcomes = [(await process.settled(receipt)).outcome for receipt in receipts]
    assert outcomes == ["completed", "aborted", "completed"]
    assert [content for _, content, _ in inputs(world)] == ["one", "three"]
    await process.at_rest()
    world.converged()


async def test_joined_work_fails_with_its_host(setting: tuple[World, bool]) -> None:
    world, stepwise = setting
    told = Told("first", ModelError("no more", retryable=False))
    told.let(1)
    process = await world.process(told.agent(join=True), stepwise=stepwise)
    one, two = await a_pair(process, told)
    outcomes = [await process.settled(receipt) for receipt in (one, two)]
    assert {(found.outcome, (found.error or {})["code"]) for found in outcomes} == {("failed", "model_failed")}
    await process.at_rest()
    world.converged()


@pytest.mark.requirement("DUR-009", "DUR-016")
async def test_a_host_that_was_aborted_while_nobody_ran_it_takes_what_joined_along(setting: tuple[World, bool]) -> None:
    """K19: the host settles by its abort alone; the next claim of the lane settles the others with it."""
    world, stepwise = setting

    async def lose(ctx: Any, arguments: dict[str, Any]) -> str:
        return await asyncio.get_running_loop().create_future()

    told = Told("first", calls(call("pay")), "third")
    told.let(1, 2)
    tool = Tool.raw("pay", lose, effect="uncertain", version="1", timeout_s=0.01)
    process = await world.process(told.agent(tool, join=True), stepwise=stepwise)
    one, two = await a_pair(process, told)
    await process.at_rest()
    assert (world.row(one).state, world.row(two).state) == (State.UNKNOWN, State.JOINED)
    await process.abort(one)
    assert (await process.settled(two)).outcome == "aborted"
    await process.at_rest()
    assert world.decisions() == ["settle_with_host"]
    assert {record.run_id for record in settled(world)} == {facts.run_id_of(one.submission_id)}
    world.converged()
    assert (await process.run("three")).text == "third"


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("stepwise", [False, True])
async def test_a_join_survives_the_loss_of_any_commit(how: str, stepwise: bool, tmp_path: Path) -> None:
    """F10, F16: a commit is lost on its way, or its answer is; it is repeated, and nothing is twice."""
    at = 1
    while True:
        world = World("memory", tmp_path / str(at))
        trouble = Trouble(how=how)
        told = Told(calls(call("note")), "done")
        told.let(1)
        process = await world.process(told.agent(NOTE, join=True), trouble=trouble, stepwise=stepwise)
        receipts = [await process.submit("one")]
        await told.gates[0].reached()
        receipts += [await process.submit("two"), await process.steer("three")]
        trouble.at = trouble.commits + at
        told.let(0)
        assert {(await process.settled(receipt)).text for receipt in receipts} == {"done"}
        await process.at_rest()
        assert [kind for kind, _, _ in inputs(world)] == ["user", "follow_up", "steering"]
        assert (world.tags().count("submission_settled"), world.decisions()) == (3, [])
        world.converged()
        await world.close()
        if not trouble.lost:
            break
        at += 1
    assert at > 5


async def test_a_warm_turn_costs_no_commit_more(tmp_path: Path) -> None:
    """What nothing waits for is not looked for; what joins costs two commits a boundary, however many join."""
    counts: dict[str, int] = {}
    for name, join, waiting in (("off", False, 0), ("on", True, 0), ("one", True, 1), ("five", True, 5)):
        world = World("memory", tmp_path / name)
        told = Told("warm", calls(call("note")), "done", "unused")
        told.let(0, 2)
        process = await world.process(told.agent(NOTE, join=join))
        await process.run("zero")
        await process.at_rest()
        first = await process.submit("one")
        await told.gates[1].reached()
        receipts = [first, *[await process.submit(f"more {number}") for number in range(waiting)]]
        before = world.store.info().commits
        told.let(1)
        for receipt in receipts:
            assert (await process.settled(receipt)).text == "done"
        await process.at_rest()
        looks = sum(isinstance(item, ClaimJoining) for unit in process.link.units for item in unit.commands)
        assert looks == min(waiting, 1)
        counts[name] = world.store.info().commits - before
        world.converged()
        await world.close()
    assert counts["off"] == counts["on"] == 2
    assert counts["one"] == counts["five"] == 4


async def test_what_is_not_ready_yet_joins_at_a_later_boundary(setting: tuple[World, bool]) -> None:
    """An admitted row breaks the prefix and hides nothing for good: the run looks again at its next boundary."""
    world, stepwise = setting
    told = Told(calls(call("note")), calls(call("note")), "done")
    told.let(2)
    process = await world.process(told.agent(NOTE, join=True), stepwise=stepwise)
    one = await process.submit("one")
    await told.gates[0].reached()
    admitted = admission("sub_late", text='{"content":"late"}')
    world.store.commit([Unit(conversation_id="c", commands=(admitted,))])
    two = await process.submit("two")
    told.let(0)
    await told.gates[1].reached()
    assert [content for _, content, _ in inputs(world)] == ["one"]
    ready = (Materialize(submission_id="sub_late"), MarkReady(submission_id="sub_late"))
    world.store.commit([Unit(conversation_id="c", commands=ready)])
    told.let(1)
    assert (await process.settled(two)).text == "done"
    assert (await process.settled(one)).text == "done"
    assert [content for _, content, _ in inputs(world)] == ["one", "late", "two"]
    await process.at_rest()
    world.converged()


def joins_input(units: list[Unit]) -> bool:
    return any(isinstance(command, MarkJoined) for unit in units for command in unit.commands)


async def test_an_abort_that_meets_a_join_comes_before_or_after_it(setting: tuple[World, bool]) -> None:
    """In one process the abort waits for the join, and is then refused; the run goes on undisturbed."""
    world, stepwise = setting
    told = Told("first", "second")
    told.let(1)
    process = await world.process(told.agent(join=True), stepwise=stepwise)
    one = await process.submit("one")
    await told.gates[0].reached()
    two = await process.submit("two")
    aborting: list[Any] = []

    async def abort_now(units: list[Unit]) -> None:
        if not aborting and any(isinstance(command, ClaimJoining) for unit in units for command in unit.commands):
            aborting.append(asyncio.get_running_loop().create_task(process.abort(two)))

    process.link.before_commit = abort_now
    told.let(0)
    assert (await process.settled(one)).text == "second"
    with pytest.raises(Refused) as caught:
        await aborting[0]
    assert caught.value.code in ("joined", "already_settled")
    assert (await process.settled(two)).text == "second"
    assert world.decisions() == []
    await process.at_rest()
    world.converged()


@pytest.mark.requirement("DUR-012", "DUR-016")
async def test_an_abort_from_elsewhere_between_claim_and_input_wins(tmp_path: Path) -> None:
    """Another process aborts and settles the row in the middle of the join: nothing of it enters the log."""
    world = World("memory", tmp_path)
    told = Told("first", "second")
    told.let(1)
    process = await world.process(told.agent(join=True))
    one = await process.submit("one")
    await told.gates[0].reached()
    two = await process.submit("two")

    async def abort_elsewhere(units: list[Unit]) -> None:
        if world.row(two).state is State.JOINING and joins_input(units):
            intent = RequestAbort(submission_id=two.submission_id, abort_id="abt", author="bob", reason="no")
            world.store.commit([Unit(conversation_id="c", commands=(intent,))])
            records, reserve = facts.aborted_unowned(evidence_of(world.store.snapshot(two.submission_id)))
            append = Append(
                submission_id=two.submission_id,
                batch_id="bat_elsewhere",
                producer_id="elsewhere",
                body=encode_records(records).decode(),
            )
            commands = (reserve, append, Finalize(submission_id=two.submission_id))
            world.store.commit([Unit(conversation_id="c", commands=commands)])

    process.link.before_commit = abort_elsewhere
    told.let(0)
    assert (await process.settled(two)).outcome == "aborted"
    assert (await process.settled(one)).outcome == "completed"
    assert [content for _, content, _ in inputs(world)] == ["one"]
    await process.at_rest()
    world.converged()
    await world.close()


@pytest.mark.requirement("DUR-016")
async def test_a_run_that_is_aborted_in_the_middle_of_a_join_gives_back_what_it_claimed(
    setting: tuple[World, bool],
) -> None:
    world, stepwise = setting
    told = Told("first", "second")
    told.let(1)
    process = await world.process(told.agent(join=True), stepwise=stepwise)
    one = await process.submit("one")
    await told.gates[0].reached()
    two = await process.submit("two")
    aborting: list[Any] = []

    async def abort_now(units: list[Unit]) -> None:
        if not aborting and any(isinstance(command, ClaimJoining) for unit in units for command in unit.commands):
            intent = RequestAbort(submission_id=one.submission_id, abort_id="abt", author="bob", reason="no")
            aborting.append(world.store.commit([Unit(conversation_id="c", commands=(intent,))]))

    process.link.before_commit = abort_now
    told.let(0)
    assert (await process.settled(one)).outcome == "aborted"
    assert (await process.settled(two)).text == "second"
    assert [kind for kind, _, _ in inputs(world)] == ["user", "user"]
    await process.at_rest()
    world.converged()


async def test_many_that_joined_settle_in_bounded_commits(tmp_path: Path) -> None:
    """One claim takes 64; the others join at the next boundaries, and the last commits carry 64 settlements each."""
    world = World("memory", tmp_path)
    told = Told("first", "second", "third", "fourth")
    process = await world.process(told.agent(join=True))
    receipts = [await process.submit("one")]
    await told.gates[0].reached()
    receipts += [await process.submit(f"more {number}") for number in range(130)]
    told.let(0, 1, 2, 3)
    outcomes = [await process.settled(receipt) for receipt in receipts]
    assert {item.text for item in outcomes} == {"fourth"}
    assert [len([role for role, _ in prompt if role == "user"]) for prompt in told.prompts] == [1, 65, 129, 131]
    most = max(sum(isinstance(item, ReserveSettlement) for item in unit.commands) for unit in process.link.units)
    assert most <= 65
    await process.at_rest()
    world.converged()
    await world.close()
