"""Unknown outcomes: held or parked, told to the model, resolved by an author with a reason, never guessed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lane_world import Gate, Process, Script, World, agent_of, call, calls, until

from laneway import Agent, InvalidInput, Refused, Tool
from laneway.actors.decisions import UnknownResolution
from laneway.cluster.inputs import check_resolution
from laneway.storage.ledger import Receipt, State
from laneway.storage.records import ToolCallResolved, ToolCallSettled
from laneway.storage.values import DEFAULT_LIMITS


@pytest.fixture(params=["memory", "duckdb"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(request.param, tmp_path)
    yield world
    await world.close()


def charging(world: World, script: Script, gate: Gate | None = None, **more: Any) -> Agent:
    """An uncertain charge that hangs in the first process; a later one executes it at once."""

    async def charge(ctx: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        world.supplier.book("charge", ctx.call_id)
        if gate is not None:
            await gate.wait()
        return {"charged": ctx.call_id}

    return agent_of(script, Tool.raw("charge", charge, effect="uncertain", version="1"), **more)


async def left_unknown(world: World, script: Script, **more: Any) -> tuple[Process, Receipt]:
    """A charge whose process died in its middle, marked unknown by the next process, which is returned."""
    gate = Gate()
    process = await world.process(charging(world, script, gate, **more))
    receipt = await process.submit("pay")
    await gate.reached()
    await world.kill(process)
    process = await world.process(charging(world, script, **more))
    await process.recover()
    await until(lambda: world.row(receipt).state is State.UNKNOWN)
    return process, receipt


async def resolve(process: Process, receipt: Receipt, resolution: Any, **more: Any) -> Any:
    asked = UnknownResolution(
        submission_id=receipt.submission_id,
        resolution=resolution,
        **{"author": "ann", "reason": "read the statement", **more},
    )
    return await process.host.decide(receipt.conversation_id, asked)


@pytest.mark.requirement("DUR-009")
@pytest.mark.parametrize(
    ("resolution", "result", "charges", "author"),
    [
        ("completed_with_result", {"charged": "by hand"}, 1, "ann"),
        ("never_started", None, 2, "tool"),
        ("safe_to_retry", None, 2, "tool"),
    ],
)
async def test_a_resolution_carries_the_run_on(
    world: World, resolution: str, result: Any, charges: int, author: str
) -> None:
    """K8, section 3 Unknown: with author and reason on record; only what allows it runs the tool again."""
    process, receipt = await left_unknown(world, Script(calls(call("charge")), "done"))
    before = world.batches()
    moved = await resolve(process, receipt, resolution, result=result)
    assert (moved.state, moved.replayed) == (State.READY, False)
    assert (await process.settled(receipt)).outcome == "completed"
    assert world.supplier.count("charge") == charges
    records = world.records()
    (resolved,) = [record for record in records if isinstance(record, ToolCallResolved)]
    assert (resolved.resolution, resolved.author, resolved.reason) == (resolution, "ann", "read the statement")
    (settled,) = [record for record in records if isinstance(record, ToolCallSettled)]
    assert settled.author == author
    assert world.batches()[: len(before)] == before
    world.converged()


@pytest.mark.requirement("DUR-009", "DUR-012")
async def test_an_operator_may_end_the_run_instead(world: World) -> None:
    """The evidence stays: the call is unknown for good, and no result is invented for it."""
    process, receipt = await left_unknown(world, Script(calls(call("charge")), "done"))
    await resolve(process, receipt, "abort")
    assert (await process.settled(receipt)).outcome == "aborted"
    tags = world.tags()
    assert ("tool_call_unknown" in tags, "tool_call_settled" in tags) == (True, False)
    assert (await process.run("again")).outcome == "completed"
    world.converged()


@pytest.mark.requirement("DUR-009")
async def test_parked_work_lets_later_input_run_and_the_model_is_told(world: World) -> None:
    """DUR-009: the later run reads that nobody knows; the parked one goes on later, its own request last."""
    script = Script(calls(call("charge")), "done")
    process, receipt = await left_unknown(world, script, on_unknown="park")
    assert world.row(receipt).parked
    script.steps = ("what else?", "done")
    later = await process.run("and now?")
    assert (later.outcome, later.text) == ("completed", "what else?")
    told = script.requests[-1].messages
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "user"]
    assert "nobody knows yet whether this call took effect" in told[2]["content"]
    assert world.row(receipt).state is State.UNKNOWN
    world.converged(require_settled=False)
    script.steps = (calls(call("charge")), "paid, it turns out")
    await resolve(process, receipt, "completed_with_result", result="ch_1")
    assert (await process.settled(receipt)).text == "paid, it turns out"
    prompt = script.requests[-1].messages
    assert [(message["role"], message["content"]) for message in prompt] == [
        ("user", "and now?"),
        ("assistant", "what else?"),
        ("user", "pay"),
        ("assistant", None),
        ("tool", "ch_1"),
    ]
    assert world.supplier.count("charge") == 1
    world.converged()


@pytest.mark.requirement("DUR-009")
async def test_parked_work_that_is_aborted_leaves_no_declaration_in_the_prompt(world: World) -> None:
    """Specification 10: the orphan declaration of an aborted run is replayed to no later run."""
    script = Script(calls(call("charge")), "done")
    process, receipt = await left_unknown(world, script, on_unknown="park")
    await process.abort(receipt)
    script.steps = ("fine",)
    assert (await process.run("and now?")).outcome == "completed"
    assert [message["role"] for message in script.requests[-1].messages] == ["user", "user"]
    world.converged()


@pytest.mark.requirement("DUR-009", "DUR-004")
async def test_held_work_keeps_its_lane(world: World) -> None:
    """The default: what comes later waits, in order, and runs after the resolution."""
    process, receipt = await left_unknown(world, Script(calls(call("charge")), "done"))
    later = await process.submit("and now?")
    await process.at_rest()
    assert world.row(later).state is State.READY
    assert world.row(receipt).owner_id is None or world.row(receipt).state is State.UNKNOWN
    await resolve(process, receipt, "never_started")
    for expected in (receipt, later):
        assert (await process.settled(expected)).outcome == "completed"
    world.converged()


async def test_what_does_not_apply_is_refused_and_names_the_fact(world: World) -> None:
    """Resolution for a call that is not open; a second one that differs; the same one again."""
    process, receipt = await left_unknown(world, Script(calls(call("charge"), call("charge")), "done"))
    first, second = world.row(receipt).unknown_calls
    with pytest.raises(InvalidInput, match="several calls are unknown"):
        await resolve(process, receipt, "never_started")
    with pytest.raises(Refused) as caught:
        await resolve(process, receipt, "never_started", call_id="call_unheard")
    assert caught.value.code == "call_not_unknown"
    moved = await resolve(process, receipt, "completed_with_result", result="ch_1", call_id=first)
    assert moved.state is State.UNKNOWN
    assert (await resolve(process, receipt, "completed_with_result", result="ch_1", call_id=first)).replayed
    for other in ({"resolution": "never_started"}, {"resolution": "completed_with_result", "result": "ch_2"}):
        with pytest.raises(Refused) as caught:
            await resolve(process, receipt, call_id=first, **other)
        assert caught.value.code == "already_resolved"
        assert (caught.value.details["resolution"], caught.value.details["author"]) == ("completed_with_result", "ann")
    assert (await resolve(process, receipt, "never_started")).state is State.READY
    assert (await process.settled(receipt)).outcome == "completed"
    with pytest.raises(Refused) as caught:
        await resolve(process, receipt, "never_started")
    assert (caught.value.code, caught.value.details["outcome"]) == ("call_not_unknown", "completed")
    assert world.supplier.keys("charge")[second] == 2
    world.converged()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"resolution": "maybe"}, "resolution"),
        ({"resolution": "never_started", "result": 1}, "result"),
        ({"result": "x" * (2 << 20)}, "result"),
        ({"result": float("nan")}, "result"),
        ({"author": ""}, "author"),
        ({"reason": "x" * 100_000}, "reason"),
    ],
)
def test_a_resolution_is_checked_before_anything_is_stored(changes: dict[str, Any], field: str) -> None:
    given: dict[str, Any] = {
        "submission_id": "sub_1",
        "resolution": "completed_with_result",
        "call_id": None,
        "result": "ch_1",
        "author": "ann",
        "reason": "",
        "limits": DEFAULT_LIMITS,
    }
    with pytest.raises(InvalidInput) as caught:
        check_resolution(**{**given, **changes})
    assert caught.value.details["field"] == field
