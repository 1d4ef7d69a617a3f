"""The public surface over the runtime in one process: receipts, results, logs, messages, events, errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import laneway
from laneway import Agent, FunctionModel, InvalidInput, LanewayError, NotFound, Refused, Runtime, ScriptedModel, tool


@tool(effect="idempotent")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def counting(*texts: str) -> ScriptedModel:
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}],
    }
    return ScriptedModel([called, *texts], chunk=2)


def support(**more: Any) -> Agent:
    return Agent(**{"name": "support", "model": counting("three", "four", "five"), "tools": [add], **more})


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with laneway.local(support()) as runtime:
        yield runtime


def test_a_submission_from_receipt_to_export(runtime: Runtime) -> None:
    conversation = runtime.conversation("order-42", agent="support")
    receipt = conversation.submit("how much?", idempotency_key="msg-1", principal="alice")
    assert (receipt.queue_sequence, receipt.replayed) == (1, False)
    settlement = receipt.result(timeout=10)
    assert (settlement.outcome, settlement.text, settlement.error) == ("completed", "three", None)
    assert receipt.status() == "completed"
    again = conversation.submit("how much?", idempotency_key="msg-1", principal="alice")
    assert (again.submission_id, again.receipt_id, again.replayed) == (receipt.submission_id, receipt.receipt_id, True)
    assert again.result(timeout=10) == settlement
    messages = conversation.messages()
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[2] == {"role": "tool", "tool_call_id": "x", "name": "add", "content": "3"}
    log = conversation.log()
    assert [record["sequence"] for record in log] == list(range(1, len(log) + 1))
    assert conversation.log(after=3) == log[3:]
    assert runtime.conversations() == ["order-42"]
    assert runtime.receipt(receipt.submission_id).as_dict() == {**receipt.as_dict(), "replayed": True}
    assert [row.submission_id for row in runtime.submissions(state="completed")] == [receipt.submission_id]
    assert conversation.actor is None
    assert runtime.verify(require_settled=True).passed


@pytest.mark.requirement("DUR-008")
def test_events_tell_canonical_from_provisional_and_end(runtime: Runtime) -> None:
    """F13: resumed after any record, every later one comes once, then the end."""
    conversation = runtime.conversation("c")
    receipt = conversation.submit("hi")
    events = list(conversation.events())
    canonical = [event for event in events if not event.provisional]
    log = conversation.log()
    assert [event.sequence for event in canonical] == list(range(1, len(log) + 1))
    assert [event.type for event in canonical] == [record["type"] for record in log]
    assert all(event.sequence is None for event in events if event.provisional)
    for after in range(len(log) + 1):
        resumed = list(conversation.events(after=after, provisional=False))
        assert [event.sequence for event in resumed] == list(range(after + 1, len(log) + 1))
    assert receipt.result(timeout=0).outcome == "completed"
    assert list(runtime.conversation("nobody").events()) == []


def test_a_watcher_that_leaves_aborts_nothing() -> None:
    """F13, F14: it sees provisional text before the response, goes away, and comes back after what it saw."""
    go_on = threading.Event()

    async def slow(request: Any, emit: Any) -> str:
        emit(laneway.agents.protocol.Delta(kind="text", text="he"))
        await asyncio.to_thread(go_on.wait, 10)
        return "hello"

    with laneway.local(Agent(name="slow", model=FunctionModel(slow))) as runtime:
        conversation = runtime.conversation("c")
        receipt = conversation.submit("hi")
        events = conversation.events()
        seen = []
        for event in events:
            if event.provisional:
                assert (event.type, event.data) == ("text_delta", {"text": "he"})
                break
            seen.append(event.sequence)
        events.close()
        go_on.set()
        rest = [event.sequence for event in conversation.events(after=seen[-1], provisional=False)]
        assert receipt.result(timeout=10).text == "hello"
        assert [*seen, *rest] == list(range(1, len(conversation.log()) + 1))
        assert runtime.verify(require_settled=True).outcomes == {"completed": 1}


def test_a_result_that_is_not_there_in_time() -> None:
    go_on = threading.Event()

    async def slow(request: Any) -> str:
        await asyncio.to_thread(go_on.wait, 10)
        return "late"

    with laneway.local(Agent(name="slow", model=FunctionModel(slow))) as runtime:
        receipt = runtime.conversation("c").submit("hi")
        with pytest.raises(TimeoutError):
            receipt.result(timeout=0.01)
        assert receipt.status() == "running"
        go_on.set()
        assert receipt.result(timeout=10).text == "late"


async def test_the_async_forms_work_on_the_callers_loop(runtime: Runtime) -> None:
    conversation = runtime.conversation("c")
    receipt = await conversation.asubmit("hi")
    assert (await receipt.aresult(timeout=10)).text == "three"
    types = [event.type async for event in conversation.aevents(provisional=False)]
    assert types[-1] == "submission_settled"
    assert len(types) == len(await asyncio.to_thread(conversation.log))


@pytest.mark.requirement("DUR-012")
def test_aborts_through_the_surface() -> None:
    entered = threading.Event()

    async def never(request: Any) -> str:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    with laneway.local(Agent(name="never", model=FunctionModel(never))) as runtime:
        receipt = runtime.conversation("c").submit("hi")
        queued = runtime.conversation("c").submit("and?")
        assert entered.wait(10)
        assert queued.abort(reason="changed my mind").abort.reason == "changed my mind"
        assert queued.result(timeout=10).outcome == "aborted"
        runtime.abort(receipt.submission_id, author="bob")
        assert receipt.result(timeout=10).outcome == "aborted"
        with pytest.raises(Refused) as caught:
            receipt.abort()
        assert caught.value.code == "already_settled"
        assert [record["type"] for record in runtime.conversation("c").log()].count("input_recorded") == 1
        assert runtime.verify(require_settled=True).passed


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda runtime: runtime.conversation(""), "conversation_id"),
        (lambda runtime: runtime.conversation("x" * 257), "conversation_id"),
        (lambda runtime: runtime.conversation("\ud800"), "conversation_id"),
        (lambda runtime: runtime.conversation("c").submit(""), "input"),
        (lambda runtime: runtime.conversation("c").submit("x" * ((1 << 20) + 1)), "input"),
        (lambda runtime: runtime.conversation("c", agent="nobody").submit("hi"), "agent"),
        (lambda runtime: runtime.submissions(state="completed", limit=0), "limit"),
    ],
)
def test_bad_input_is_refused_before_anything_is_stored(runtime: Runtime, call: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        call(runtime)
    assert caught.value.details["field"] == field
    assert runtime.submissions() == []
    assert runtime.describe().store["commits"] == 0


def test_an_agent_has_to_be_named_where_there_are_several() -> None:
    with (
        laneway.local([support(), support(name="other")]) as runtime,
        pytest.raises(InvalidInput, match="support, other"),
    ):
        runtime.conversation("c").submit("hi")


def test_what_nobody_knows_is_not_found(runtime: Runtime) -> None:
    for call in (runtime.submission, runtime.receipt, runtime.abort):
        with pytest.raises(NotFound):
            call("sub_nobody")


def test_a_blocking_call_on_the_runtimes_own_loop_is_refused_at_once(runtime: Runtime) -> None:
    async def inside() -> None:
        runtime.conversations()

    with pytest.raises(RuntimeError, match="own event loop"):
        runtime.run(inside())


def test_stop_is_idempotent_and_the_file_is_free(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    runtime = laneway.local(support(), path)
    runtime.stop()
    runtime.stop()
    with laneway.local(support(), path) as second:
        assert second.describe().store["deployment_class"] == "DR"


@pytest.mark.requirement("DUR-001", "DUR-003")
def test_open_work_of_a_file_goes_on_at_the_next_start(tmp_path: Path) -> None:
    """A planned stop in the middle of a model call: the next runtime on the file finishes it without being asked."""
    entered, path = threading.Event(), tmp_path / "store.duckdb"

    async def never(request: Any) -> str:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    first = laneway.local(Agent(name="a", model=FunctionModel(never)), path)
    receipt = first.conversation("c").submit("hi", idempotency_key="k")
    assert entered.wait(10)
    first.stop()
    with laneway.local(Agent(name="a", model=ScriptedModel(["done"])), path) as second:
        found = second.receipt(receipt.submission_id)
        assert found.result(timeout=10).text == "done"
        assert second.verify(require_settled=True).passed
        (count,) = second.query("SELECT count(*) FROM settlements").rows
        assert count == (1,)


def test_agents_that_do_not_fit_together_leave_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    with pytest.raises(LanewayError):
        laneway.local([support(), support()], path)
    laneway.local(support(), path).stop()


async def test_the_sweep_finds_what_nobody_looks_for() -> None:
    """Work that became claimable by itself goes on without a caller."""
    from lane_world import until
    from store_builders import Conversation

    from laneway.actors.lane.settings import LaneSettings
    from laneway.cluster.local import LocalBackend
    from laneway.storage.memory_store import MemoryStore

    store = MemoryStore()
    backend = LocalBackend([support()], store, LaneSettings(), sweep_s=0.005)
    await backend.start()
    Conversation(store).submit("sub_1", text='{"content":"hi"}')
    await until(lambda: (row := store.lookup("sub_1")) is not None and row.settled)
    await backend.stop(shut_down=True)


def test_a_call_waits_for_its_approval() -> None:
    """K13 through the public surface: who waits reads why, and what to do."""
    careful = tool(effect="idempotent", approval=True, name="add")(add.function)
    with laneway.local(support(tools=[careful])) as runtime:
        receipt = runtime.conversation("order-42").submit("how much?")
        with pytest.raises(TimeoutError, match=r"it is suspended\. A call waits for somebody's approval"):
            receipt.result(timeout=0.2)
        told = runtime.explain(receipt.submission_id)
        assert (told.state, told.decision) == ("suspended", "wait_approval")
        (waiting,) = told.waits_for
        assert (waiting["kind"], waiting["tool"]) == ("approval", "add")
        assert (
            told.actions[0]
            == f"laneway approve {receipt.submission_id} --approval {waiting['approval_id']} --author NAME"
        )
        decided = runtime.approve(receipt.submission_id, waiting["approval_id"], author="ann", reason="fine")
        assert (decided.decision, decided.author) == ("approved", "ann")
        assert receipt.result(timeout=10).text == "three"
        with pytest.raises(Refused) as caught:
            runtime.deny(receipt.submission_id, waiting["approval_id"], author="bob")
        assert caught.value.code == "already_decided"


def test_the_owners_check_decides_who_may_act() -> None:
    """DUR-017: `authorize` sees the act with its call; what it does not allow, or fails on, is refused."""
    careful = tool(effect="idempotent", approval=True, name="add")(add.function)
    seen: list[laneway.Act] = []

    def check(act: laneway.Act) -> bool:
        seen.append(act)
        if act.author == "broken":
            raise RuntimeError("no directory")
        return act.author == "ann"

    with laneway.local(support(tools=[careful]), authorize=check) as runtime:
        receipt = runtime.conversation("order-42").submit("how much?")
        with pytest.raises(TimeoutError):
            receipt.result(timeout=0.2)
        for author in ("bob", "broken"):
            for act in (
                lambda author=author: runtime.approve(receipt.submission_id, author=author),
                lambda author=author: runtime.abort(receipt.submission_id, author=author),
            ):
                with pytest.raises(Refused) as caught:
                    act()
                assert caught.value.code == "not_authorised"
        assert receipt.status() == "suspended"
        runtime.approve(receipt.submission_id, author="ann")
        assert receipt.result(timeout=10).outcome == "completed"
    assert [act.action for act in seen] == ["approve", "abort", "approve", "abort", "approve"]
    assert (seen[0].details["tool"], seen[0].conversation_id) == ("add", "order-42")
    assert {(act.agent, act.conversation_id, act.submission_id) for act in seen} == {
        ("support", "order-42", receipt.submission_id)
    }


async def test_a_run_is_steered_and_joined() -> None:
    """The surface of both: receipts of their own, one run, and a watcher who sees how each input came in."""
    asked, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def respond(request: laneway.ModelRequest) -> str:
        if request.turn == 1:
            loop.call_soon_threadsafe(asked.set)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(go.wait(), loop))
        return f"turn {request.turn}"

    agent = Agent(name="support", model=FunctionModel(respond), join=True)
    with laneway.local([agent, support(name="other")]) as runtime:
        conversation = runtime.conversation("order-42", agent="support")
        with pytest.raises(Refused) as caught:
            await conversation.asteer("too early")
        assert caught.value.code == "nothing_to_steer"
        receipts = [await conversation.asubmit("hello"), await conversation.asubmit("and this")]
        async with asyncio.timeout(10):
            await asked.wait()
        unnamed = runtime.conversation("order-42")
        receipts.append(await unnamed.asteer("no, that", idempotency_key="k", principal="alice"))
        assert (await unnamed.asteer("no, that", idempotency_key="k", principal="alice")).replayed
        with pytest.raises(InvalidInput):
            await unnamed.asteer("")
        go.set()
        settlements = [await receipt.aresult(timeout=10) for receipt in receipts]
        assert {(item.text, item.run_id) for item in settlements} == {("turn 2", settlements[0].run_id)}
        events = [event.data async for event in conversation.aevents() if event.type == "input_recorded"]
        assert [(data.get("kind", "user"), data["content"]) for data in events] == [
            ("user", "hello"),
            ("follow_up", "and this"),
            ("steering", "no, that"),
        ]
        submission = runtime.submission(receipts[2].submission_id)
        assert (submission.steers, submission.principal) == (receipts[0].submission_id, "alice")
        assert (await asyncio.to_thread(runtime.verify, require_settled=True)).passed
        messages = await asyncio.to_thread(conversation.messages)
        assert [message["role"] for message in messages] == ["user", "assistant", "user", "user", "assistant"]


def test_a_runtime_without_agents_says_so() -> None:
    with laneway.local([]) as runtime, pytest.raises(InvalidInput, match="this runtime has no agents"):
        runtime.conversation("order-42").submit("hello")


def test_a_conversation_goes_on_with_who_began_it() -> None:
    """A new conversation has to name one of several agents; one that exists remembers who began it."""

    def named(name: str) -> Agent:
        return Agent(name=name, model=FunctionModel(lambda request: name))

    with laneway.local([named("one"), named("two")]) as runtime:
        with pytest.raises(InvalidInput, match="name the agent"):
            runtime.conversation("c").submit("hello")
        assert runtime.conversation("c", agent="two").submit("hello").result(timeout=10).text == "two"
        assert runtime.conversation("c").submit("and now?").result(timeout=10).text == "two"
        assert runtime.conversation("c", agent="one").submit("and you?").result(timeout=10).text == "one"
        again = runtime.conversation("c").submit("who now?", idempotency_key="k")
        assert again.result(timeout=10).text == "two"
        assert runtime.conversation("c").submit("who now?", idempotency_key="k").replayed
