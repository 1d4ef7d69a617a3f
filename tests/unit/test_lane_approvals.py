"""Approvals on the lane: asked once, waited for without a permit, bound to the arguments, honoured once."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from approval_acts import approval_ids, asking, booking, decide, suspended
from lane_world import Script, World, agent_of, call, calls, until

from laneway import InvalidInput, Refused
from laneway.actors.decisions import ApprovalDecision, carry_out
from laneway.actors.store_client import LocalLink, StoreClient
from laneway.storage.commands import Suspend, Unit
from laneway.storage.ledger import State
from laneway.storage.records import ApprovalDecided, ToolCallSettled


@pytest.fixture(params=["memory", "duckdb"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(request.param, tmp_path)
    yield world
    await world.close()


@pytest.mark.requirement("DUR-013")
async def test_nothing_runs_before_a_person_has_decided(world: World) -> None:
    """K13, F5: the other call of the batch waits too; approved, each runs once, without another model call before."""
    tools = (booking(world), booking(world, "note", effect="idempotent", approval=False))
    process = await world.process(asking(world, call("note"), call("charge", {"eur": 9}), tools=tools))
    receipt = await process.submit("pay")
    await suspended(world, receipt)
    await process.at_rest()
    row = world.row(receipt)
    assert (row.owner_id, world.supplier.count("charge"), world.supplier.count("note")) == (None, 0, 0)
    other = await world.process(asking(world, call("note"), call("charge", {"eur": 9}), tools=tools))
    decided = await decide(other, receipt, reason="invoice checked")
    assert (decided.decision, decided.author, decided.state) == ("approved", "ann", State.READY)
    settlement = await other.settled(receipt)
    assert (settlement.outcome, settlement.text) == ("completed", "done")
    assert [world.supplier.count(kind) for kind in ("charge", "note", "model")] == [1, 1, 2]
    tags = world.tags()
    assert tags.count("approval_requested") == tags.count("approval_decided") == 1
    assert tags.index("approval_decided") < tags.index("tool_call_prepared")
    world.converged()


async def test_a_denial_ends_the_call_and_not_the_conversation(world: World) -> None:
    process = await world.process(asking(world, call("charge")))
    receipt = await process.submit("pay")
    await suspended(world, receipt)
    await decide(process, receipt, "denied", reason="too much")
    assert (await process.settled(receipt)).outcome == "completed"
    (settled,) = [record for record in world.records() if isinstance(record, ToolCallSettled)]
    assert settled.error is not None
    assert (settled.error.code, settled.error.message) == ("approval_denied", "ann denied this call: too much")
    assert world.supplier.count("charge") == 0
    assert "tool_call_prepared" not in world.tags()
    world.converged()


async def test_three_approvals_in_one_turn_are_each_asked_and_used_once(world: World) -> None:
    """F6: nothing runs before the last one is decided; one denied, two run."""
    declared = [call("charge", {"eur": number}, id=f"c{number}") for number in (1, 2, 3)]
    process = await world.process(asking(world, *declared))
    receipt = await process.submit("pay")
    await suspended(world, receipt)
    with pytest.raises(InvalidInput, match="several approvals are open"):
        await decide(process, receipt)
    first, second, third = approval_ids(world)
    await decide(process, receipt, approval=first)
    await decide(process, receipt, "denied", approval=second)
    assert (world.row(receipt).state, world.supplier.count("charge")) == (State.SUSPENDED, 0)
    await decide(process, receipt, approval=third)
    await process.settled(receipt)
    assert world.supplier.count("charge") == 2
    assert world.tags().count("approval_requested") == world.tags().count("approval_decided") == 3
    world.converged()


async def test_approvals_in_three_turns_in_a_row(world: World) -> None:
    """F6: each turn asks for its own."""
    turns = [calls(call("charge", {"turn": number})) for number in (1, 2, 3)]
    process = await world.process(agent_of(Script(*turns, "done"), booking(world)))
    receipt = await process.submit("pay")
    for number in (1, 2, 3):
        await until(lambda number=number: len(approval_ids(world)) == number)
        await suspended(world, receipt)
        assert world.supplier.count("charge") == number - 1
        await decide(process, receipt)
    assert (await process.settled(receipt)).outcome == "completed"
    assert world.supplier.count("charge") == 3
    world.converged()


@pytest.mark.requirement("DUR-012")
async def test_an_abort_closes_what_is_open_and_frees_the_lane(world: World) -> None:
    """F7: approval pending, abort, next submit: the approval is closed, the lane free, the next one runs."""
    process = await world.process(asking(world, call("charge")))
    receipt = await process.submit("pay")
    await suspended(world, receipt)
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    (decided,) = [record for record in world.records() if isinstance(record, ApprovalDecided)]
    assert (decided.decision, decided.author) == ("closed", "bob")
    with pytest.raises(Refused) as caught:
        await decide(process, receipt)
    assert caught.value.code == "approval_not_open"
    second = await process.submit("again")
    await suspended(world, second)
    await decide(process, second)
    assert (await process.settled(second)).outcome == "completed"
    assert world.supplier.count("charge") == 1
    world.converged()


@pytest.mark.requirement("DUR-013")
async def test_recovery_of_suspended_work_asks_nobody_again(world: World) -> None:
    """F8: recovery runs five times on suspended work: one request record, nothing executed."""
    agent = asking(world, call("charge"))
    process = await world.process(agent)
    receipt = await process.submit("pay")
    await suspended(world, receipt)
    for _ in range(5):
        await world.kill(process)
        process = await world.process(agent)
        await process.recover()
        await process.host.activate(["c"])
        await process.at_rest()
    assert (world.row(receipt).state, world.tags().count("approval_requested")) == (State.SUSPENDED, 1)
    await decide(process, receipt)
    await process.settled(receipt)
    assert world.supplier.count("charge") == 1
    world.converged()


async def test_code_that_changed_since_is_not_run_for_the_old_call(world: World) -> None:
    """F9: redeployed with a changed tool, then with none, and approved: a typed result, visible to the model."""
    for version, code in (("2", "tool_changed"), (None, "tool_missing")):
        process = await world.process(asking(world, call("charge"), tools=(booking(world, version="1"),)))
        receipt = await process.submit("pay", conversation=code)
        await suspended(world, receipt)
        await world.kill(process)
        tools = (booking(world, version=version),) if version else (booking(world, "other"),)
        process = await world.process(asking(world, call("charge"), tools=tools))
        await decide(process, receipt)
        assert (await process.settled(receipt)).outcome == "completed"
        (settled,) = [record for record in world.records(code) if isinstance(record, ToolCallSettled)]
        assert settled.error is not None
        assert settled.error.code == code
    assert world.supplier.count("charge") == 0
    world.converged()


async def test_the_first_decision_counts(world: World) -> None:
    """Section 3 approval: the same again is idempotent, another one is refused and names the first."""
    two = asking(world, call("charge", {"n": 1}, id="a"), call("charge", {"n": 2}, id="b"))
    process = await world.process(two)
    receipt = await process.submit("pay")
    await suspended(world, receipt)
    first, second = approval_ids(world)
    await decide(process, receipt, approval=first)
    assert (await decide(process, receipt, approval=first)).replayed
    with pytest.raises(Refused) as caught:
        await decide(process, receipt, "denied", approval=first, author="bob")
    assert caught.value.code == "already_decided"
    assert (caught.value.details["decision"], caught.value.details["author"]) == ("approved", "ann")
    with pytest.raises(Refused) as caught:
        await decide(process, receipt, approval=second, arguments_digest="0" * 64)
    assert caught.value.code == "approval_digest_mismatch"
    with pytest.raises(Refused) as caught:
        await decide(process, receipt, approval="apr_unheard")
    assert caught.value.code == "approval_not_open"
    await decide(process, receipt, approval=second)
    await process.settled(receipt)
    with pytest.raises(Refused) as caught:
        await decide(process, receipt, "denied", approval=second)
    assert caught.value.code == "already_decided"
    with pytest.raises(Refused) as caught:
        await decide(process, receipt)
    assert caught.value.code == "approval_not_open"
    world.converged()


async def test_nobodys_decision_is_a_denial_when_its_time_is_over(world: World) -> None:
    """The expiry is recorded with the request; a later approval comes too late, and the model reads why."""
    agent = asking(world, call("charge"), tools=(booking(world, approval_expires_s=60.0),))
    process = await world.process(agent)
    receipt = await process.submit("pay")
    await suspended(world, receipt)
    await process.recover()
    await process.at_rest()
    assert world.row(receipt).state is State.SUSPENDED
    world.clock.advance(60_000)
    world.store.renew_lease(process.host.owner_id, 10_000)
    await process.recover()
    assert (await process.settled(receipt)).outcome == "completed"
    (decided,) = [record for record in world.records() if isinstance(record, ApprovalDecided)]
    assert (decided.decision, decided.author) == ("denied", "expiry")
    assert world.supplier.count("charge") == 0
    late = await process.submit("again")
    await suspended(world, late)
    world.clock.advance(60_000)
    world.store.renew_lease(process.host.owner_id, 10_000)
    with pytest.raises(Refused) as caught:
        await decide(process, late)
    assert (caught.value.code, caught.value.details["author"]) == ("already_decided", "expiry")
    await process.settled(late)
    assert world.supplier.count("charge") == 0
    world.converged()


async def test_a_rule_over_the_arguments_asks_where_it_must_and_when_it_fails(world: World) -> None:
    """`approval` may be a function; one that raises lets nothing pass by itself."""
    tool = booking(world, approval=lambda arguments: arguments["eur"] > 100)
    declared = [call("charge", {"eur": 5}), call("charge", {"eur": 500}), call("charge", {})]
    process = await world.process(asking(world, *declared, tools=(tool,)))
    receipt = await process.submit("pay")
    await suspended(world, receipt)
    assert len(approval_ids(world)) == 2
    for approval in approval_ids(world):
        await decide(process, receipt, approval=approval)
    await process.settled(receipt)
    assert world.supplier.count("charge") == 3
    world.converged()


async def test_time_that_a_run_waits_is_no_running_time(world: World) -> None:
    """Section 16: the run's deadline does not count it, and what is left of its time goes on counting."""
    turns = [calls(call("charge"), call("charge")), calls(call("charge")), "done"]
    process = await world.process(agent_of(Script(*turns), booking(world), run_timeout_s=5.0))
    receipt = await process.submit("pay")
    decided = 0
    for asked in (2, 3):
        await until(lambda asked=asked: len(approval_ids(world)) == asked)
        await suspended(world, receipt)
        world.clock.advance(3_600_000)
        world.store.renew_lease(process.host.owner_id, 10_000)
        for approval in approval_ids(world)[decided:]:
            await decide(process, receipt, approval=approval)
        decided = asked
    assert (await process.settled(receipt)).outcome == "completed"
    waited = [record.waited_ms for record in world.records() if isinstance(record, ApprovalDecided)]
    assert waited == [3_600_000, 0, 3_600_000]
    world.converged()


async def test_a_decision_that_races_ahead_of_the_suspension_counts(world: World) -> None:
    """Section 3 approval: suspend after a decision resumes at once."""
    process = await world.process(asking(world, call("charge")), stepwise=True)

    async def decide_first(units: list[Unit]) -> None:
        for unit in units:
            for command in unit.commands:
                if isinstance(command, Suspend):
                    process.link.before_commit = None
                    asked = ApprovalDecision(submission_id=command.submission_id, decision="approved", author="ann")
                    await carry_out(StoreClient(LocalLink(world.store), random.Random(1)), None, asked)

    process.link.before_commit = decide_first
    receipt = await process.submit("pay")
    assert (await process.settled(receipt)).outcome == "completed"
    assert process.host.stats().get("suspended", 0) == 0
    assert world.supplier.count("charge") == 1
    await process.at_rest()
    world.converged()


async def test_later_submissions_wait_behind_a_suspended_one(world: World) -> None:
    """DUR-004: the lane's order is kept; other conversations are not held up, and no worker waits."""
    process = await world.process(asking(world, call("charge")))
    first = await process.submit("pay")
    await suspended(world, first)
    second = await process.submit("more")
    other = await process.submit("elsewhere", conversation="d")
    await suspended(world, other)
    await until(lambda: process.host.stats()["suspended"] == 2)
    assert world.row(second).state is State.READY
    await decide(process, first)
    await process.settled(first)
    await suspended(world, second)
    for receipt in (second, other):
        await decide(process, receipt)
        assert (await process.settled(receipt)).outcome == "completed"
    world.converged()
