"""Aborts: durable first, canonical before anything is interrupted, idempotent, never against an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lane_world import Gate, Script, World, agent_of, call, calls

from laneway import NotFound, Refused, Tool
from laneway.storage.commands import MarkUnknown, RequestAbort, Unit
from laneway.storage.ledger import State
from laneway.storage.records import AbortRequested


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World("memory", tmp_path)
    yield world
    await world.close()


def waiting(world: World, gate: Gate, name: str = "charge", effect: Any = "uncertain", **more: Any) -> Tool:
    async def wait(ctx: Any, arguments: dict[str, Any]) -> str:
        world.supplier.book(name, ctx.call_id)
        await gate.wait()
        return "paid"

    return Tool.raw(name, wait, effect=effect, **more)


@pytest.mark.requirement("DUR-012", "DUR-004")
async def test_queued_work_settles_at_once_and_leaves_no_input(stored: World) -> None:
    """K20: without waiting for the head of its lane; the head goes on; a second abort of settled work is refused."""
    gate = Gate()

    async def answer(request: Any) -> str:
        if request.queue_sequence == 1:
            await gate.wait()
        return "done"

    script = Script(answer)
    process = await stored.process(agent_of(script))
    head, queued, last = [await process.submit(f"q{number}") for number in (1, 2, 3)]
    await gate.reached()
    await process.abort(queued)
    assert (await process.settled(queued)).outcome == "aborted"
    assert stored.row(head).state is State.RUNNING
    with pytest.raises(Refused) as caught:
        await process.abort(queued, "abt_2")
    assert caught.value.code == "already_settled"
    gate.open()
    assert (await process.settled(head)).outcome == "completed"
    assert (await process.settled(last)).outcome == "completed"
    assert [request.messages[-1]["content"] for request in script.requests] == ["q1", "q3"]
    inputs = [record.content for record in stored.records() if hasattr(record, "queue_sequence")]
    assert inputs == ["q1", "q3"]
    stored.converged()


@pytest.mark.requirement("DUR-012")
async def test_an_abort_of_active_work_is_canonical_before_it_is_carried_out(stored: World) -> None:
    """K21: abort_requested precedes submission_settled, and no model response comes after it."""
    gate = Gate()
    at_interruption: list[str] = []

    async def answer(request: Any) -> str:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            at_interruption.extend(stored.tags())
            raise
        return "too late"

    process = await stored.process(agent_of(Script(answer)))
    receipt = await process.submit("go")
    await gate.reached()
    await process.abort(receipt)
    settlement = await process.settled(receipt)
    assert (settlement.outcome, settlement.output) == ("aborted", None)
    assert at_interruption[-1] == "abort_requested"
    tags = stored.tags()
    assert tags.index("abort_requested") < tags.index("run_completed") < tags.index("submission_settled")
    assert "model_responded" not in tags
    stored.converged()


@pytest.mark.requirement("DUR-012")
async def test_a_response_that_arrives_behind_an_abort_is_dropped(world: World) -> None:
    """K21: the model answers while the abort is being committed; its answer stands nowhere behind the abort."""
    gate, answered = Gate(), asyncio.Event()

    async def answer(request: Any) -> str:
        await gate.wait()
        answered.set()
        return "just in time"

    async def hold(units: list[Unit]) -> None:
        if any(isinstance(command, RequestAbort) for unit in units for command in unit.commands):
            gate.open()
            await answered.wait()
            await asyncio.sleep(0)  # the lane takes the answer in

    process = await world.process(agent_of(Script(answer)))
    process.link.before_commit = hold
    receipt = await process.submit("go")
    await gate.reached()
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    assert "model_responded" not in world.tags()


@pytest.mark.requirement("DUR-009", "DUR-012")
@pytest.mark.parametrize(("effect", "evidence"), [("uncertain", 1), ("idempotent", 0), ("readonly", 0)])
async def test_a_tool_in_flight_leaves_its_evidence(world: World, effect: Any, evidence: int) -> None:
    """An abort does not mean that the effect was rolled back."""
    gate = Gate()
    process = await world.process(agent_of(Script(calls(call("charge")), "no"), waiting(world, gate, effect=effect)))
    receipt = await process.submit("go")
    await gate.reached()
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    tags = world.tags()
    assert tags.count("tool_call_unknown") == evidence
    assert "tool_call_settled" not in tags
    assert tags.index("abort_requested") > tags.index("tool_call_prepared")
    assert world.supplier.count("charge") == 1
    gate.open()
    assert (await process.run("next")).outcome == "completed"
    world.converged()


@pytest.mark.requirement("DUR-012")
async def test_the_first_abort_counts_and_repeats_are_idempotent(world: World) -> None:
    gate = Gate()
    process = await world.process(agent_of(Script(calls(call("charge")), "no"), waiting(world, gate)))
    receipt = await process.submit("go")
    await gate.reached()
    answers = await asyncio.gather(*(process.abort(receipt, f"abt_{number}") for number in range(5)))
    assert {answer.abort.abort_id for answer in answers} == {"abt_0"}
    assert [answer.replayed for answer in answers] == [False, True, True, True, True]
    assert world.row(receipt).abort is not None  # durable before any of them was answered
    await process.settled(receipt)
    again = await process.abort(receipt, "abt_0")
    assert (again.replayed, again.state) == (True, State.ABORTED)
    assert sum(isinstance(record, AbortRequested) for record in world.records()) == 1
    world.converged()


@pytest.mark.requirement("DUR-012")
async def test_a_second_abort_is_answered_only_when_the_first_is_durable(world: World) -> None:
    gate, held = Gate(), Gate()

    async def hold(units: list[Unit]) -> None:
        if any(isinstance(command, RequestAbort) for unit in units for command in unit.commands):
            await held.wait()

    process = await world.process(agent_of(Script(calls(call("charge")), "no"), waiting(world, gate)))
    process.link.before_commit = hold
    receipt = await process.submit("go")
    await gate.reached()
    first = asyncio.create_task(process.abort(receipt, "abt_1"))
    await held.reached()
    second = asyncio.create_task(process.abort(receipt, "abt_2"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.done()
    held.open()
    assert (await second).abort.abort_id == (await first).abort.abort_id == "abt_1"
    await process.settled(receipt)


@pytest.mark.requirement("DUR-012")
@pytest.mark.parametrize("outcome", ["completed", "failed"])
async def test_an_outcome_never_changes(world: World, outcome: str) -> None:
    script = Script("done" if outcome == "completed" else RuntimeError("broken"))
    process = await world.process(agent_of(script))
    receipt = await process.submit("go")
    await process.settled(receipt)
    before = world.batches()
    with pytest.raises(Refused) as caught:
        await process.abort(receipt)
    assert caught.value.code == "already_settled"
    assert world.batches() == before
    assert (await process.settled(receipt)).outcome == outcome
    with pytest.raises(NotFound):
        await process.host.abort("c", "sub_nobody", "abt", "bob", "")


@pytest.mark.requirement("DUR-012")
@pytest.mark.parametrize("effect", ["idempotent", "uncertain"])
async def test_an_abort_through_another_process_reaches_the_owner(world: World, effect: str) -> None:
    """K21: the intent is in the ledger alone; the owner learns of it with its next append."""
    gate, asked = Gate(), Gate()

    async def again(request: Any) -> str:
        await asked.wait()
        return "not any more"

    script = Script(calls(call("note")), again, supplier=world.supplier)
    agent = agent_of(script, waiting(world, gate, "note", effect))
    owner, other = await world.process(agent), await world.process(agent)
    receipt = await owner.submit("go")
    await gate.reached()
    answer = await other.abort(receipt)
    assert answer.state is State.RUNNING
    gate.open()
    assert (await owner.settled(receipt)).outcome == "aborted"
    tags = world.tags()
    assert tags.index("abort_requested") < tags.index("submission_settled")
    # The result of an idempotent call is committed beside the next model call, which the abort interrupts.
    assert world.supplier.count("model") == (2 if effect == "idempotent" else 1)
    assert "not any more" not in "".join(batch.body for batch in world.batches())
    world.converged()


@pytest.mark.requirement("DUR-012")
async def test_unknown_work_can_be_aborted_and_keeps_its_evidence(world: World) -> None:
    gate = Gate()
    charge = waiting(world, gate, timeout_s=0.01)
    process = await world.process(agent_of(Script(calls(call("charge")), "no"), charge))
    receipt = await process.submit("go")
    await process.at_rest()
    assert world.row(receipt).state is State.UNKNOWN
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    assert world.tags().count("tool_call_unknown") == 1
    world.converged()


@pytest.mark.requirement("DUR-009", "DUR-012")
@pytest.mark.parametrize("when", ["while proof is sought", "while unknown is committed"])
async def test_an_abort_that_meets_a_call_becoming_unknown_settles(world: World, when: str) -> None:
    """Neither may leave work that is Unknown, aborted, and that nobody settles."""
    seeking, marking, stuck = Gate(), Gate(), Gate()

    async def no_proof(ctx: Any, arguments: dict[str, Any]) -> None:
        if when == "while proof is sought":
            await seeking.wait()

    async def hold(units: list[Unit]) -> None:
        marks = any(isinstance(command, MarkUnknown) for unit in units for command in unit.commands)
        if when == "while unknown is committed" and marks:
            await marking.wait()

    process = await world.process(
        agent_of(Script(calls(call("charge")), "no"), waiting(world, stuck, timeout_s=0.2, reconcile=no_proof))
    )
    process.link.before_commit = hold
    receipt = await process.submit("go")
    gate = seeking if when == "while proof is sought" else marking
    await gate.reached()
    aborting = asyncio.create_task(process.abort(receipt))
    await asyncio.sleep(0)
    gate.open()
    await aborting
    assert (await process.settled(receipt)).outcome == "aborted"
    assert world.tags().count("tool_call_unknown") == 1
    world.converged()


@pytest.mark.requirement("DUR-012")
async def test_an_abort_whose_process_ended_is_carried_out_by_the_sweep(world: World) -> None:
    """K20: the intent on queued work is durable, its process is gone; the head is held and the row behind settles."""
    gate = Gate()

    async def first(request: Any) -> Any:
        return calls(call("charge")) if request.queue_sequence == 1 else "done"

    agent = agent_of(Script(first), waiting(world, gate, timeout_s=0.01))
    process = await world.process(agent)
    held, queued = await process.submit("one"), await process.submit("two")
    await process.at_rest()
    assert world.row(held).state is State.UNKNOWN
    request = RequestAbort(submission_id=queued.submission_id, abort_id="abt_1", author="bob", reason="")
    world.store.commit([Unit(conversation_id="c", commands=(request,))])
    await world.kill(process)
    second = await world.process(agent)
    await second.recover()
    assert (await second.settled(queued)).outcome == "aborted"
    assert world.row(held).state is State.UNKNOWN
    world.converged(require_settled=False)


async def test_a_watcher_sees_the_abort_of_queued_work(world: World) -> None:
    """F13: records that were written past the lane's own attempt are no gap in the stream."""
    from laneway.actors.lane.feed import Cursor

    gate = Gate()

    async def answer(request: Any) -> str:
        if request.queue_sequence == 1:
            await gate.wait()
        return "done"

    process = await world.process(agent_of(Script(answer)))
    receipts = [await process.submit(f"q{number}") for number in (1, 2, 3)]
    await gate.reached()
    first = await process.host.poll("c", Cursor(), 5)
    await process.abort(receipts[1])
    seen = list(first.records)
    cursor, quiet = first.cursor, False
    gate.open()
    async with asyncio.timeout(10):
        while not quiet:
            poll = await process.host.poll("c", cursor, 5)
            seen.extend(poll.records)
            cursor, quiet = poll.cursor, poll.quiet and not poll.records
    assert [sequence for sequence, _ in seen] == list(range(1, len(world.records()) + 1))
    assert [record for _, record in seen] == world.records()


async def test_what_others_wrote_is_in_the_stream_before_it_ends(world: World) -> None:
    """F14: the lane of this process has seen nothing of it, and still the stream is whole."""
    from laneway.actors.lane.feed import Cursor

    agent = agent_of(Script("done"))
    first, other = await world.process(agent), await world.process(agent)
    await first.run("one")
    await first.at_rest()
    seen = len(world.records())
    await other.run("two")
    poll = await first.host.poll("c", Cursor(after=seen), 5)
    assert [record for _, record in poll.records] == world.records()[seen:]
    assert len(poll.records) > 0
