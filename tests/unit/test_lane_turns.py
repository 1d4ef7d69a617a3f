"""The lane over both adapters: order, input at the claim, tools, results, and what a turn costs."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lane_world import Gate, Process, Script, World, agent_of, call, calls, until

from laneway import Tool, tool
from laneway.cluster.inputs import check_admission
from laneway.recovery.convergence import prompt_fault
from laneway.storage.commands import Append
from laneway.storage.errors import AdmissionConflict
from laneway.storage.ledger import State
from laneway.storage.records import ModelResponded, ToolCallSettled, encode_records, tag_of
from laneway.storage.values import DEFAULT_LIMITS


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World("memory", tmp_path)
    yield world
    await world.close()


@pytest.fixture(params=["memory", "duckdb"])
async def stored(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """Over both adapters: for what the store has a part in."""
    world = World(request.param, tmp_path)
    yield world
    await world.close()


def noted(world: World, name: str = "note", effect: Any = "idempotent", result: Any = "noted", **more: Any) -> Tool:
    async def note(ctx: Any, arguments: dict[str, Any]) -> Any:
        world.supplier.book(name, ctx.call_id)
        return await result(arguments) if callable(result) else result

    return Tool.raw(name, note, effect=effect, **more)


def results(world: World) -> list[ToolCallSettled]:
    return [record for record in world.records() if isinstance(record, ToolCallSettled)]


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("DUR-004", "DUR-005", "DUR-015")
async def test_submissions_run_one_at_a_time_in_the_order_of_admission(stored: World) -> None:
    """The input of queued work is not in the log before its claim."""
    gates = [Gate() for _ in range(3)]

    async def answer(request: Any) -> str:
        await gates[request.queue_sequence - 1].wait()
        return f"answer {request.queue_sequence}"

    script = Script(answer)
    process = await stored.process(agent_of(script))
    receipts = [await process.submit(f"question {number}") for number in (1, 2, 3)]
    assert [receipt.queue_sequence for receipt in receipts] == [1, 2, 3]
    for number, (gate, receipt) in enumerate(zip(gates, receipts, strict=True), 1):
        await gate.reached()
        states = [stored.row(other).state for other in receipts]
        assert states == [State.COMPLETED] * (number - 1) + [State.RUNNING] + [State.READY] * (3 - number)
        assert stored.tags().count("input_recorded") == number
        gate.open()
        assert (await process.settled(receipt)).text == f"answer {number}"
    asked = [request.messages[-1]["content"] for request in script.requests]
    assert asked == ["question 1", "question 2", "question 3"]
    stored.converged()


@pytest.mark.requirement("DUR-005")
async def test_other_conversations_do_not_wait(world: World) -> None:
    gate = Gate()

    async def answer(request: Any) -> str:
        if request.conversation_id == "slow":
            await gate.wait()
        return "done"

    process = await world.process(agent_of(Script(answer)))
    slow = await process.submit("a", conversation="slow")
    await gate.reached()
    assert (await process.run("b", conversation="quick")).text == "done"
    gate.open()
    assert (await process.settled(slow)).text == "done"


@pytest.mark.requirement("DUR-001")
async def test_fifty_submits_of_one_key_are_one_submission(stored: World) -> None:
    """F1: one row, one model call, and forty-nine receipts say that they are replays."""
    script = Script("done", supplier=stored.supplier)
    process = await stored.process(agent_of(script))
    receipts = await asyncio.gather(*(process.submit("hello", key="k") for _ in range(50)))
    assert len({receipt.submission_id for receipt in receipts}) == 1
    assert len({receipt.receipt_id for receipt in receipts}) == 1
    assert sum(receipt.replayed for receipt in receipts) == 49
    await process.settled(receipts[0])
    await process.at_rest()
    assert len(stored.store.list_rows("c")) == 1
    assert stored.supplier.count("model") == 1
    stored.converged()


@pytest.mark.requirement("DUR-001")
async def test_a_key_with_another_payload_is_refused_with_both_digests(stored: World) -> None:
    process = await stored.process(agent_of(Script("done")))
    first = await process.submit("hello", key="k")
    await process.settled(first)
    with pytest.raises(AdmissionConflict) as caught:
        await process.submit("other", key="k")
    details = caught.value.details
    assert details["stored_digest"] == stored.row(first).input_digest
    assert details["given_digest"] not in ("", details["stored_digest"])
    assert (await process.submit("hello", key="k")).submission_id == first.submission_id
    assert (await process.submit("other", key="k", principal="bob")).submission_id != first.submission_id


async def test_concurrent_submits_of_different_keys_all_run_in_order(world: World) -> None:
    script = Script("done")
    process = await world.process(agent_of(script))
    receipts = await asyncio.gather(*(process.submit(f"q{number}") for number in range(20)))
    for receipt in receipts:
        await process.settled(receipt)
    assert sorted(receipt.queue_sequence for receipt in receipts) == list(range(1, 21))
    world.converged()


# --- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("DUR-003")
async def test_calls_of_one_response_run_together_and_are_recorded_when_they_are_there(stored: World) -> None:
    """The prompt shows them in the order of declaration."""
    first, second = Gate(), Gate()

    async def slow(arguments: Any) -> str:
        await first.wait()
        return "first"

    async def quick(arguments: Any) -> str:
        await second.wait()
        return "second"

    script = Script(calls(call("slow", id="x"), call("quick", id="x")), "done")
    process = await stored.process(
        agent_of(script, noted(stored, "slow", result=slow), noted(stored, "quick", result=quick))
    )
    receipt = await process.submit("go")
    await first.reached()
    await second.reached()  # both are at work
    second.open()
    async with asyncio.timeout(10):
        while not results(stored):
            await process.host._lanes["c"].feed.changed(10, process.host._lanes["c"].feed.version)
    assert [record.result for record in results(stored)] == ["second"]
    assert len(script.requests) == 1
    first.open()
    await process.settled(receipt)
    assert [record.result for record in results(stored)] == ["second", "first"]
    answers = [message for message in script.requests[1].messages if message["role"] == "tool"]
    assert [message["content"] for message in answers] == ["first", "second"]
    stored.converged()


@pytest.mark.requirement("DUR-008")
@pytest.mark.parametrize(
    ("stepwise", "effect"), [(False, "uncertain"), (False, "idempotent"), (True, "uncertain"), (True, "idempotent")]
)
async def test_a_tool_runs_only_when_its_call_is_durable(stored: World, stepwise: bool, effect: str) -> None:
    """And the model is asked again only when every result is that could not be had once more."""
    seen: list[list[str]] = []

    async def look(arguments: Any) -> str:
        seen.append(stored.tags())
        return "seen"

    async def again(request: Any) -> str:
        seen.append(stored.tags())
        return "done"

    script = Script(calls(call("note"), call("note")), again)
    process = await stored.process(agent_of(script, noted(stored, effect=effect, result=look)), stepwise=stepwise)
    await process.run("go")
    first, second, model = seen
    for tags in (first, second):
        assert tags.count("model_responded") == 1
        assert tags.count("tool_call_prepared") == 2
    assert model.count("tool_call_settled") == (2 if stepwise or effect == "uncertain" else 0)
    assert stored.tags()[-4:] == ["tool_call_settled", "model_responded", "run_completed", "submission_settled"]


async def test_results_are_durable_while_the_model_is_asked(world: World) -> None:
    """A result that may run again is committed beside the next model call, and not kept until that answers."""
    gate = Gate()

    async def again(request: Any) -> str:
        await gate.wait()
        return "done"

    process = await world.process(agent_of(Script(calls(call("note")), again), noted(world)))
    receipt = await process.submit("go")
    await gate.reached()
    await until(lambda: "tool_call_settled" in world.tags())
    gate.open()
    assert (await process.settled(receipt)).text == "done"
    world.converged()


@pytest.mark.requirement("DUR-003", "DUR-012")
async def test_an_abort_that_is_told_behind_the_end_leaves_the_next_one_its_claim(world: World) -> None:
    """The commit beside the model call takes the settlement and the next claim along, and learns of the abort."""
    tool_gate, held = Gate(), Gate()

    async def slow(arguments: Any) -> str:
        await tool_gate.wait()
        return "noted"

    async def again(request: Any) -> str:
        await held.reached()
        return "done"

    async def hold(units: list[Any]) -> None:
        bodies = [command.body for unit in units for command in unit.commands if isinstance(command, Append)]
        if any("tool_call_settled" in body and "submission_settled" not in body for body in bodies):
            await held.wait()

    agent = agent_of(Script(calls(call("note")), again), noted(world, result=slow))
    owner, other = await world.process(agent), await world.process(agent)
    first = await owner.submit("one")
    await tool_gate.reached()
    second = await owner.submit("two")
    owner.link.before_commit = hold
    attempt = owner.host._lanes["c"]._attempt
    assert attempt is not None
    tool_gate.open()
    await until(lambda: attempt.over)
    await other.abort(first)
    held.open()
    assert (await owner.settled(first)).outcome == "completed"
    assert (await owner.settled(second)).outcome == "completed"
    await owner.at_rest()
    world.converged()


@pytest.mark.requirement("DUR-006")
async def test_an_owner_that_is_superseded_beside_a_model_call_ends_it(world: World) -> None:
    """Its result is refused while the model is asked: the call is interrupted, and nothing of it is recorded."""
    gate, asked = Gate(), Gate()

    async def slow(arguments: Any) -> str:
        await gate.wait()
        return "late"

    async def again(request: Any) -> str:
        await asked.wait()
        return "of the stale attempt"

    held = await world.process(agent_of(Script(calls(call("note")), again), noted(world, result=slow)))
    receipt = await held.submit("go")
    await gate.reached()
    world.store.retire_owner(held.host.owner_id)
    owner = await world.process(agent_of(Script(calls(call("note")), "done"), noted(world)))
    await owner.recover()
    assert (await owner.settled(receipt)).text == "done"
    gate.open()
    await held.at_rest()  # though nobody has opened the other gate
    assert "of the stale attempt" not in "".join(batch.body for batch in world.batches())
    world.converged()


async def test_results_stand_before_new_input(world: World) -> None:
    gate = Gate()

    async def slow(arguments: Any) -> str:
        await gate.wait()
        return "late"

    process = await world.process(agent_of(Script(calls(call("note")), "done"), noted(world, result=slow)))
    first = await process.submit("one")
    await gate.reached()
    second = await process.submit("two")
    gate.open()
    await process.settled(first)
    await process.settled(second)
    tags = world.tags()
    inputs = [index for index, tag in enumerate(tags) if tag == "input_recorded"]
    assert tags.index("tool_call_settled") < tags.index("submission_settled") < inputs[1]


@tool(effect="idempotent")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="idempotent")
def explode() -> str:
    raise RuntimeError("x" * 10_000)


@tool(effect="idempotent")
async def leak() -> str:
    raise asyncio.CancelledError  # as one that leaks out of a library's own task group


class Panic(BaseException):
    """As extension modules raise it: no Exception."""


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@tool(effect="idempotent")
async def panic(kind: str) -> str:
    raise {"panic": Panic, "interrupt": KeyboardInterrupt, "exit": GeneratorExit, "mute": Mute}[kind]


@tool(effect="idempotent")
async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.requirement("DUR-008")
@pytest.mark.parametrize(
    ("declared", "code"),
    [
        (call("add", {"a": 1, "b": "two"}), "tool_arguments_invalid"),
        (call("add", {"a": 1}), "tool_arguments_invalid"),
        (call("add", '{"a": 1, "b'), "tool_arguments_invalid"),
        (call("add", "[1, 2]"), "tool_arguments_invalid"),
        (call("nobody", {}), "tool_missing"),
        (call("explode", {}), "tool_failed"),
        (call("leak", {}), "tool_failed"),
        (call("panic", {"kind": "panic"}), "tool_failed"),
        (call("panic", {"kind": "interrupt"}), "tool_failed"),
        (call("panic", {"kind": "exit"}), "tool_failed"),
        (call("panic", {"kind": "mute"}), "tool_failed"),
        (call("cancel_itself", {}), "tool_failed"),
        (call("huge", {}), "tool_result_invalid"),
        (call("nan", {}), "tool_result_invalid"),
        (call("surrogate", {}), "tool_result_invalid"),
        (call("wide", {}), "tool_result_invalid"),
        (call("object", {}), "tool_result_invalid"),
        (call("deep", {}), "tool_result_invalid"),
    ],
    ids=lambda value: value["function"]["name"] if isinstance(value, dict) else value,
)
async def test_a_call_that_cannot_be_answered_well_is_answered_with_its_error(
    world: World, declared: dict[str, Any], code: str
) -> None:
    """F25: the model reads the error, and the run goes on."""
    nested: Any = 1
    for _ in range(100):
        nested = [nested]
    given = {"huge": "x" * (2 << 20), "nan": math.nan, "surrogate": "\ud800", "wide": 2**64, "object": object()}
    tools = [noted(world, name, result=value) for name, value in {**given, "deep": nested}.items()]
    script = Script(calls(declared), "sorry")
    process = await world.process(agent_of(script, add, explode, leak, panic, cancel_itself, *tools))
    assert (await process.run("go")).text == "sorry"
    (result,) = results(world)
    assert result.outcome == "failed"
    assert result.error is not None
    assert result.error.code == code
    assert len(result.error.message) <= 2_000
    prepared = world.tags().count("tool_call_prepared")
    assert prepared == (0 if code in ("tool_arguments_invalid", "tool_missing") else 1)
    world.converged()


@pytest.mark.parametrize("value", ["", "\x00 \U0001f600", 2**63, [1, {"a": None}], {"z": 1, "a": 2}, None, 1.5])
async def test_a_result_comes_back_exactly(stored: World, value: Any) -> None:
    """F25."""
    process = await stored.process(agent_of(Script(calls(call("note")), "done"), noted(stored, result=value)))
    await process.run("go")
    (record,) = results(stored)
    assert (record.result, type(record.result)) == (value, type(value))


async def test_good_calls_of_a_batch_run_beside_bad_ones(world: World) -> None:
    script = Script(calls(call("add", {"a": 1}), call("add", {"a": 1, "b": 2}), call("nobody")), "done")
    process = await world.process(agent_of(script, add))
    assert (await process.run("go")).outcome == "completed"
    assert sorted(record.outcome for record in results(world)) == ["failed", "failed", "succeeded"]
    answers = [message["content"] for message in script.requests[1].messages if message["role"] == "tool"]
    assert answers[1] == "3"


async def test_a_blocking_tool_does_not_stall_its_neighbours(world: World) -> None:
    """F18: it runs in a thread; other lanes of the same process go on."""
    gate = Gate()

    @tool(effect="idempotent")
    def block() -> str:
        gate.block()
        return "woken"

    script = Script(calls(call("block")), "done")
    quick = agent_of(Script("quick"), name="quick")
    process = await world.process([agent_of(script, block), quick])
    slow = await process.submit("go", conversation="slow")
    await gate.reached()
    for number in range(3):
        assert (await process.run("hello", conversation=f"c{number}", agent="quick")).text == "quick"
    gate.open()
    assert (await process.settled(slow)).text == "done"


async def test_the_lease_is_renewed_while_the_event_loop_is_busy(world: World) -> None:
    """F18: leases are renewed from a thread; here the event loop itself is blocked meanwhile."""
    process = await world.process(agent_of(Script("done")), lease_ttl_s=0.05)
    process.link.renewed.clear()
    world.clock.advance(1_000_000)
    assert process.link.renewed.wait(10)  # blocks this thread, and with it the event loop
    assert process.link.renewed_until[-1] > world.clock()


@pytest.mark.requirement("DUR-003")
async def test_an_idempotent_tool_that_is_too_late_has_failed(world: World) -> None:
    gate = Gate()

    async def never(arguments: Any) -> str:
        await gate.wait()
        raise AssertionError("unreachable")

    slow = noted(world, result=never, timeout_s=0.01)
    process = await world.process(agent_of(Script(calls(call("note")), "sorry"), slow))
    assert (await process.run("go")).text == "sorry"
    (result,) = results(world)
    assert result.error is not None
    assert result.error.code == "tool_timeout"


@pytest.mark.requirement("DUR-009")
async def test_an_uncertain_tool_that_is_too_late_is_unknown(stored: World) -> None:
    """Nobody knows what became of it: no invented result, no second execution, no model call; the lane waits."""
    gate = Gate()

    async def never(arguments: Any) -> str:
        await gate.wait()
        raise AssertionError("unreachable")

    script = Script(calls(call("charge")), "done", supplier=stored.supplier)
    charge = noted(stored, "charge", "uncertain", never, timeout_s=0.01)
    process = await stored.process(agent_of(script, charge))
    receipt = await process.submit("go")
    behind = await process.submit("next")
    await process.at_rest()
    assert stored.row(receipt).state is State.UNKNOWN
    assert stored.row(behind).state is State.READY
    assert (stored.supplier.count("charge"), stored.supplier.count("model")) == (1, 1)
    assert "tool_call_unknown" in stored.tags()
    assert results(stored) == []
    stored.converged(require_settled=False)


async def test_parked_unknown_work_lets_later_work_pass(world: World) -> None:
    gate = Gate()

    async def never(arguments: Any) -> str:
        await gate.wait()
        raise AssertionError("unreachable")

    async def first(request: Any) -> Any:
        return calls(call("charge")) if request.queue_sequence == 1 else "passed"

    charge = noted(world, "charge", "uncertain", never, timeout_s=0.01)
    process = await world.process(agent_of(Script(first), charge, on_unknown="park"))
    receipt = await process.submit("go")
    assert (await process.run("next")).text == "passed"
    assert world.row(receipt).state is State.UNKNOWN
    world.converged(require_settled=False)


@pytest.mark.parametrize("resolution", ["completed_with_result", "never_started", "safe_to_retry", "abort"])
async def test_a_resolution_is_carried_out(world: World, resolution: Any) -> None:
    """An abort of one call ends the run; it never runs the call again."""
    from laneway.storage.commands import Accepted, ResolveUnknown, Unit

    gate = Gate()
    gates = [gate]

    async def once(arguments: Any) -> str:
        if gates:
            gates.pop()
            await gate.wait()
        return "second try"

    script = Script(calls(call("charge")), "done")
    process = await world.process(agent_of(script, noted(world, "charge", "uncertain", once, timeout_s=0.05)))
    receipt = await process.submit("go")
    await process.at_rest()
    (call_id,) = world.row(receipt).unknown_calls
    result = {"paid": 1} if resolution == "completed_with_result" else None
    resolve = ResolveUnknown(
        submission_id=receipt.submission_id,
        call_id=call_id,
        resolution=resolution,
        author="ann",
        reason="saw the statement",
        result=result,
    )
    (answer,) = world.store.commit([Unit(conversation_id="c", commands=(resolve,))])
    assert isinstance(answer, Accepted)
    await process.recover()
    settlement = await process.settled(receipt)
    expected = {
        "completed_with_result": ("completed", 1, [{"paid": 1}]),
        "never_started": ("completed", 2, ["second try"]),
        "safe_to_retry": ("completed", 2, ["second try"]),
        "abort": ("aborted", 1, []),
    }
    found = (settlement.outcome, world.supplier.count("charge"), [record.result for record in results(world)])
    assert found == expected[resolution]
    world.converged()


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("DUR-008")
async def test_deltas_are_provisional_and_cut_arguments_never_become_canonical(stored: World) -> None:
    """F11: the provider stops in the middle of the arguments; nothing is run, and the run ends typed."""
    from laneway import ModelResponse, ToolCallRequest

    cut = ModelResponse(
        content="I shall",
        tool_calls=(ToolCallRequest(id="x", name="note", arguments='{"amount": 1'),),
        finish_reason="length",
    )
    process = await stored.process(agent_of(Script(cut), noted(stored)))
    settlement = await process.run("go")
    assert settlement.outcome == "failed"
    assert settlement.error is not None
    assert settlement.error["code"] == "model_response_truncated"
    assert stored.supplier.count("note") == 0
    assert '"amount' not in "".join(batch.body for batch in stored.batches())
    assert not {"model_delta_recorded", "model_responded", "tool_call_prepared"} & set(stored.tags())


async def test_a_model_error_that_may_pass_is_tried_again(world: World) -> None:
    from laneway import ModelError

    failures = [ModelError("busy", code="rate_limited", retryable=True, retry_after=0.001) for _ in range(2)]

    async def answer(request: Any) -> Any:
        return failures.pop() if failures else "done"

    process = await world.process(agent_of(Script(answer, supplier=world.supplier), model_attempts_max=3))
    assert (await process.run("go")).text == "done"
    assert world.supplier.count("model") == 3
    assert world.tags().count("model_interrupted") == 2
    world.converged()


@pytest.mark.parametrize(
    ("error", "attempts", "code", "asked"),
    [
        ({"message": "no " * 5_000, "code": "no_credit"}, 3, "no_credit", 1),
        ({"message": "busy", "code": "busy", "retryable": True}, 2, "busy", 2),
        ({"message": "\ud800", "code": "c" * 5_000}, 3, "c" * 100, 1),
    ],
    ids=["for-good", "exhausted", "odd"],
)
async def test_a_model_that_fails_for_good_settles_failed_with_a_bounded_error(
    world: World, error: dict[str, Any], attempts: int, code: str, asked: int
) -> None:
    from laneway import ModelError

    failing = Script(ModelError(**error), supplier=world.supplier)
    process = await world.process(agent_of(failing, model_attempts_max=attempts))
    settlement = await process.run("go")
    assert (settlement.outcome, settlement.output) == ("failed", None)
    assert settlement.error is not None
    assert settlement.error["code"] == code
    assert len(settlement.error["message"]) <= 2_000
    assert world.supplier.count("model") == asked
    world.converged()


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(1), GeneratorExit(), Panic("x"), Mute()],
    ids=lambda error: type(error).__name__,
)
async def test_a_model_that_raises_anything_settles_failed(world: World, error: BaseException) -> None:
    process = await world.process(agent_of(Script(error)))
    settlement = await process.run("go")
    assert settlement.error is not None
    assert (settlement.outcome, settlement.error["code"]) == ("failed", "model_failed")


async def test_a_model_that_cancels_its_own_task_settles_failed(world: World) -> None:
    async def answer(request: Any) -> str:
        return str(await cancel_itself.function())

    process = await world.process(agent_of(Script(answer)))
    settlement = await process.run("go")
    assert settlement.error is not None
    assert (settlement.outcome, settlement.error["code"]) == ("failed", "model_failed")


async def test_a_model_that_gives_no_answer_in_time_fails(world: World) -> None:
    gate = Gate()

    async def never(request: Any) -> str:
        await gate.wait()
        raise AssertionError("unreachable")

    script = Script(never, supplier=world.supplier)
    process = await world.process(agent_of(script, model_timeout_s=0.01, model_attempts_max=2))
    settlement = await process.run("go")
    assert settlement.error is not None
    assert (settlement.outcome, settlement.error["code"]) == ("failed", "model_timeout")
    assert world.supplier.count("model") == 2


async def test_a_run_has_at_most_its_turns(world: World) -> None:
    process = await world.process(agent_of(Script(*[calls(call("note"))] * 9), noted(world), turns_max=3))
    settlement = await process.run("go")
    assert settlement.error is not None
    assert (settlement.outcome, settlement.error["code"]) == ("failed", "turn_limit")
    assert world.supplier.count("note") == 3
    world.converged()


async def test_a_run_that_is_out_of_time_fails_and_its_effects_are_ended(world: World) -> None:
    gate = Gate()

    async def slow(arguments: Any) -> str:
        await gate.wait()
        raise AssertionError("unreachable")

    process = await world.process(
        agent_of(Script(calls(call("note")), "done"), noted(world, result=slow), run_timeout_s=0.05)
    )
    settlement = await process.run("go")
    assert settlement.error is not None
    assert (settlement.outcome, settlement.error["code"]) == ("failed", "run_timeout")
    assert results(world) == []
    assert (await process.run("again", agent="support")).outcome == "failed"  # the orphan call is in no prompt
    world.converged()


@pytest.mark.parametrize("stepwise", [False, True])
async def test_the_largest_response_settles(world: World, stepwise: bool) -> None:
    """Three records carry it; they fit no batch together, and go into one unit all the same."""
    text = "x" * (4 << 20)
    text = text[: len(text) - (80 << 10)]
    process = await world.process(agent_of(Script(text)), stepwise=stepwise)
    assert (await process.run("go")).text == text
    await process.at_rest()
    world.converged()


async def test_every_prompt_is_valid_for_a_provider(world: World) -> None:
    script = Script(calls(call("note"), call("add", {"a": 1, "b": 2})), calls(call("nobody")), "done")
    process = await world.process(agent_of(script, noted(world), add))
    for number in range(3):
        await process.run(f"question {number}")
    assert len(script.requests) == 9
    for request in script.requests:
        assert prompt_fault(request.messages) is None


# --- commits ----------------------------------------------------------------------------------------------------------


async def turn_of(world: World, *, stepwise: bool) -> Process:
    process = await world.process(
        agent_of(Script(calls(call("note"), call("add", {"a": 1, "b": 2})), "done"), noted(world), add),
        stepwise=stepwise,
    )
    for number in (1, 2):
        admission = check_admission(
            agent="support",
            content=f"question {number}",
            idempotency_key=f"k{number}",
            principal="alice",
            extra=None,
            limits=DEFAULT_LIMITS,
        )
        fixed = dataclasses.replace(admission, submission_id=f"sub_{number}", receipt_id=f"rcp_{number}")
        await process.settled(await process.host.submit("c", fixed))
        await process.at_rest()
    return process


@pytest.mark.requirement("DUR-003", "DUR-015")
async def test_fused_and_stepwise_commits_write_the_same_records(tmp_path: Path) -> None:
    logs: list[list[bytes]] = []
    for stepwise in (False, True):
        folder = tmp_path / str(stepwise)
        folder.mkdir()
        world = World("memory", folder)
        await turn_of(world, stepwise=stepwise)
        world.converged()
        records = world.records()
        settled = [record for record in records if tag_of(record) == "tool_call_settled"]
        others = [record for record in records if tag_of(record) != "tool_call_settled"]
        logs.append([encode_records((record,)) for record in (*others, *sorted(settled, key=lambda item: item.id))])
        await world.close()
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ("stepwise", "commits", "units"),
    [
        # admission, claim, input, run and marker · response and preparation · result, last response, end, settlement
        (False, 3, 3),
        # admit, ready, claim, input, run, marker, response, prepared, result, response, end, reservation, settlement,
        # finalize; to materialize once more and to look for the next head changes nothing
        (True, 14, 16),
    ],
)
async def test_what_a_warm_turn_costs(world: World, stepwise: bool, commits: int, units: int) -> None:
    """A user, a model, a tool, a model: the durable boundaries are these, and one more is a fault."""
    process = await world.process(agent_of(Script(calls(call("note")), "done"), noted(world)), stepwise=stepwise)
    await process.run("warm up")
    await process.at_rest()
    before = world.store.info()
    process.link.reads.clear()
    await process.run("go")
    await process.at_rest()
    after = world.store.info()
    assert (after.commits - before.commits, after.units - before.units) == (commits, units)
    assert set(process.link.reads) <= {"lookup"}  # a waiter's one look; a warm lane reads nothing


async def test_a_waiter_costs_the_lane_nothing(world: World) -> None:
    gate = Gate()

    async def answer(request: Any) -> str:
        await gate.wait()
        return "done"

    process = await world.process(agent_of(Script(answer)))
    receipt = await process.submit("go")
    await gate.reached()
    before = world.store.info().units
    for _ in range(5):
        assert await process.host.settlement("c", receipt.submission_id, 0) is None
    assert world.store.info().units == before
    gate.open()
    await process.settled(receipt)


async def test_many_lanes_share_their_commits(world: World) -> None:
    process = await world.process(agent_of(Script("done")))
    await asyncio.gather(*(process.run("go", conversation=f"c{number}") for number in range(50)))
    info = world.store.info()
    assert info.units == 100
    assert info.commits < 50
    world.converged()


async def test_submissions_of_one_conversation_share_their_commits(world: World) -> None:
    """They stand in the order of asking; a long queue must not cost a commit for each admission."""
    gate = Gate()

    async def answer(request: Any) -> str:
        await gate.wait()
        return "done"

    process = await world.process(agent_of(Script(answer)))
    await process.submit("first")
    await gate.reached()
    before = world.store.info().commits
    receipts = await asyncio.gather(*(process.submit(f"q{number}") for number in range(200)))
    assert world.store.info().commits - before < 20
    assert [receipt.queue_sequence for receipt in receipts] == list(range(2, 202))
    gate.open()
    await process.settled(receipts[-1])
    world.converged()


async def test_usage_and_reasoning_are_kept(world: World) -> None:
    from laneway import ModelResponse
    from laneway.agents.protocol import Usage

    answer = ModelResponse(
        content="done", reasoning="because", model="m-1", usage=Usage(input_tokens=3, output_tokens=4)
    )
    process = await world.process(agent_of(Script(answer)))
    await process.run("go")
    (record,) = [record for record in world.records() if isinstance(record, ModelResponded)]
    assert (record.reasoning, record.model) == ("because", "m-1")
    assert record.usage == {"input_tokens": 3, "output_tokens": 4}
