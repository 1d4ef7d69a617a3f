"""Retry, dead letters, obligations and quarantine over the public surface, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_agents import until

import laneway
from laneway import Agent, FunctionModel, InvalidInput, LanewayError, ModelError, NotFound, Refused, Runtime, tool
from laneway.agents.authority import Act
from laneway.storage.ledger import State


class World:
    """What the model does, changed by the test while it runs."""

    def __init__(self) -> None:
        self.broken = True
        self.asked: list[Any] = []
        self.gate: asyncio.Event | None = None

    async def answer(self, request: Any) -> Any:
        self.asked.append(request.messages)
        if request.messages[-1]["content"] == "wait":
            await asyncio.Event().wait()
        if self.broken:
            raise ModelError("the provider is away", code="model_unavailable", retryable=False)
        return "done"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def start(world: World, tmp_path: Path) -> Iterator[Callable[..., Runtime]]:
    started: list[Runtime] = []

    def start_one(agents: Any = None, **settings: Any) -> Runtime:
        agents = agents if agents is not None else [Agent(name="desk", model=FunctionModel(world.answer, name="m"))]
        settings = {"sweep_s": 0.05, "drain_grace_s": 0.0, **settings}
        runtime = laneway.local(agents, tmp_path / "store.duckdb", **settings)
        started.append(runtime)
        return runtime

    yield start_one
    for runtime in started:
        runtime.stop()


def code_of(call: Callable[[], Any], kind: type[LanewayError] = Refused) -> str:
    with pytest.raises(kind) as caught:
        call()
    return caught.value.code


# --- retry -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("DUR-002", "DUR-014")
def test_a_dead_letter_is_tried_again_as_new_work(start: Callable[..., Runtime], world: World) -> None:
    runtime = start()
    conversation = runtime.conversation("c")
    failed = conversation.submit("hello", principal="alice", message_keys={"name": "Al"})
    before = failed.result(timeout=10)
    assert before.outcome == "failed"
    (letter,) = runtime.dead_letters()
    assert (letter.submission_id, letter.code, letter.agent) == (failed.submission_id, "model_unavailable", "desk")
    world.broken = False
    retried = runtime.retry(failed.submission_id, author="ann", reason="the provider is back")
    assert retried.submission_id != failed.submission_id
    assert (retried.conversation_id, retried.queue_sequence, retried.replayed) == ("c", 2, False)
    assert retried.result(timeout=10).text == "done"
    row = runtime.submission(retried.submission_id)
    assert (row.principal, row.agent) == ("alice", "desk")
    (recorded,) = [
        record
        for record in conversation.log()
        if record["type"] == "input_recorded" and record["submission_id"] == retried.submission_id
    ]
    assert recorded["retry_of"] == {
        "submission_id": failed.submission_id,
        "number": 1,
        "author": "ann",
        "reason": "the provider is back",
    }
    assert (recorded["content"], recorded["extra"]) == ("hello", {"name": "Al"})
    assert world.asked[-1][-1] == {"role": "user", "content": "hello", "name": "Al"}
    assert failed.result(timeout=1) == before
    refusal = code_of(lambda: runtime.retry(failed.submission_id))
    assert refusal == "not_failed"
    assert runtime.verify(require_settled=True).passed


def test_a_retry_that_is_open_is_the_same_and_one_that_failed_is_followed(
    start: Callable[..., Runtime], world: World
) -> None:
    runtime = start()
    conversation = runtime.conversation("c")
    failed = conversation.submit("hello")
    failed.result(timeout=10)
    first = runtime.retry(failed.submission_id, author="ann", reason="a")
    assert first.result(timeout=10).outcome == "failed"
    blocking = conversation.submit("wait")
    second = runtime.retry(failed.submission_id, author="ann", reason="b")
    again = runtime.retry(failed.submission_id, author="bob", reason="c")
    assert second.submission_id not in (first.submission_id, failed.submission_id)
    assert (again.submission_id, again.replayed) == (second.submission_id, True)
    world.broken = False
    blocking.abort()
    assert second.result(timeout=10).outcome == "completed"
    log = [record for record in conversation.log() if record["type"] == "input_recorded"]
    assert [record.get("retry_of", {}).get("number") for record in log] == [None, 1, None, 2]
    assert [letter.submission_id for letter in runtime.dead_letters()] == [failed.submission_id, first.submission_id]


def test_two_who_retry_at_once_share_one_retry(
    start: Callable[..., Runtime], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither has seen the other's: the derived key and a digest without author and reason make them one."""
    from laneway.actors import operations

    async def none_seen(store: Any, row: Any) -> tuple[int, None]:
        return 1, None

    runtime = start()
    failed = runtime.conversation("c").submit("hello")
    failed.result(timeout=10)
    monkeypatch.setattr(operations, "_retries", none_seen)
    first = runtime.retry(failed.submission_id, author="ann", reason="a")
    second = runtime.retry(failed.submission_id, author="bob", reason="b")
    assert (second.submission_id, second.replayed) == (first.submission_id, True)


def test_what_may_not_be_tried_again_is_refused_by_its_fact(start: Callable[..., Runtime], world: World) -> None:
    world.broken = False
    runtime = start()
    conversation = runtime.conversation("c")
    done = conversation.submit("hello")
    done.result(timeout=10)
    assert code_of(lambda: runtime.retry(done.submission_id)) == "not_failed"
    running = conversation.submit("wait")
    queued = conversation.submit("hello")
    until(lambda: running.status() == "running")
    assert code_of(lambda: runtime.retry(running.submission_id)) == "not_settled"
    assert code_of(lambda: runtime.retry(queued.submission_id)) == "not_settled"
    assert code_of(lambda: runtime.retry("sub_nobody"), NotFound) == "not_found"
    assert code_of(lambda: runtime.retry(done.submission_id, author=""), InvalidInput) == "invalid_input"
    queued.abort()
    queued.result(timeout=10)
    assert code_of(lambda: runtime.retry(queued.submission_id)) == "input_not_kept"
    running.abort()
    running.result(timeout=10)
    until(lambda: not runtime.obligations())
    retried = runtime.retry(running.submission_id)
    assert (retried.queue_sequence, retried.replayed) == (4, False)


@pytest.mark.requirement("DUR-009", "DUR-014")
@pytest.mark.parametrize("how", ["abort", "resolve"])
def test_work_with_an_unknown_outcome_is_never_tried_again(start: Callable[..., Runtime], how: str) -> None:
    """Neither while it waits, nor after it was aborted with its evidence: the effect may have taken place."""
    hung = asyncio.Event()

    @tool(effect="uncertain", timeout_s=0.01)
    async def charge() -> str:
        await hung.wait()
        return "charged"

    def answer(request: Any) -> Any:
        function = {"name": "charge", "arguments": "{}"}
        return {"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": function}]}

    runtime = start([Agent(name="desk", model=FunctionModel(answer), tools=[charge])])
    receipt = runtime.conversation("c").submit("pay")
    until(lambda: receipt.status() == "unknown")
    with pytest.raises(Refused) as caught:
        runtime.retry(receipt.submission_id)
    assert caught.value.code == "unknown_unresolved"
    (call_id,) = runtime.submission(receipt.submission_id).unknown_calls
    assert caught.value.details["calls"] == [call_id]
    (obligation,) = runtime.obligations()
    assert (obligation.waits_for, obligation.state) == ("operator", State.UNKNOWN)
    assert call_id in obligation.why
    if how == "abort":
        receipt.abort()
    else:
        runtime.resolve_unknown(receipt.submission_id, "abort", author="ann", reason="nobody can tell")
    assert receipt.result(timeout=10).outcome == "aborted"
    assert code_of(lambda: runtime.retry(receipt.submission_id)) == "unknown_unresolved"


def test_work_without_its_agent_waits_visibly_and_goes_on_when_it_is_there(
    start: Callable[..., Runtime], world: World
) -> None:
    world.broken = False
    first = start()
    blocking = first.conversation("c").submit("wait")
    until(lambda: blocking.status() == "running")
    first.stop()
    other = Agent(name="other", model=FunctionModel(world.answer, name="o"))
    second = start([other])
    until(lambda: second.submission(blocking.submission_id).not_before_ms)
    (obligation,) = second.obligations()
    assert (obligation.waits_for, obligation.agent) == ("agent", "desk")
    assert obligation.why.startswith("No agent is named 'desk' in this runtime")
    waited = second.submission(blocking.submission_id).attempts
    receipt = second.retry(blocking.submission_id, author="ann")
    assert (receipt.submission_id, receipt.replayed) == (blocking.submission_id, True)
    until(lambda: second.submission(blocking.submission_id).attempts > waited)
    second.stop()
    third = start()
    third.retry(blocking.submission_id, author="ann")
    until(lambda: third.submission(blocking.submission_id).state is State.RUNNING)
    third.abort(blocking.submission_id)


def test_an_operator_needs_the_authority(start: Callable[..., Runtime], world: World) -> None:
    acts: list[Act] = []

    def authorize(act: Act) -> bool:
        acts.append(act)
        return act.author == "ann"

    runtime = start(authorize=authorize)
    failed = runtime.conversation("c").submit("hello")
    failed.result(timeout=10)
    assert code_of(lambda: runtime.retry(failed.submission_id, author="bob")) == "not_authorised"
    assert code_of(lambda: runtime.quarantine("c", reason="why", author="bob")) == "not_authorised"
    runtime.quarantine("c", reason="why", author="ann")
    assert code_of(lambda: runtime.release_quarantine("c", author="bob")) == "not_authorised"
    runtime.release_quarantine("c", author="ann")
    assert runtime.retry(failed.submission_id, author="ann").result(timeout=10).outcome == "failed"
    assert [act.action for act in acts] == ["retry", "quarantine", "quarantine", "release", "release", "retry"]
    assert acts[0].submission_id == failed.submission_id


# --- dead letters and obligations ------------------------------------------------------------------------------------


def test_dead_letters_leave_out_what_was_refused_for_good(start: Callable[..., Runtime], world: World) -> None:
    def answer(request: Any) -> Any:
        raise ModelError("no", code="model_refused")

    runtime = start([Agent(name="desk", model=FunctionModel(answer))])
    receipt = runtime.conversation("c").submit("hello")
    receipt.result(timeout=10)
    assert runtime.dead_letters() == []
    assert [letter.submission_id for letter in runtime.dead_letters(every=True)] == [receipt.submission_id]
    assert code_of(lambda: runtime.dead_letters(limit=0), InvalidInput) == "invalid_input"


def test_obligations_are_listed_by_conversation_and_age(start: Callable[..., Runtime], world: World) -> None:
    world.broken = False
    runtime = start()
    names = [runtime.conversation(name).submit("wait").submission_id for name in ("b", "a")]
    queued = runtime.conversation("a").submit("hello").submission_id
    until(lambda: [item.waits_for for item in runtime.obligations()] == ["owner", "queue", "owner"])
    found = runtime.obligations()
    assert [item.submission_id for item in found] == [names[1], queued, names[0]]
    assert found[1].behind == names[1]
    assert runtime.obligations(overdue_s=3600) == []
    assert len(runtime.obligations(limit=2)) == 2
    assert code_of(lambda: runtime.obligations(overdue_s=-1), InvalidInput) == "invalid_input"
    assert code_of(lambda: runtime.obligations(overdue_s=float("nan")), InvalidInput) == "invalid_input"


def test_a_long_list_is_read_page_by_page(start: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch) -> None:
    from laneway.cluster import operations

    runtime = start([Agent(name="desk", model=FunctionModel(World().answer, name="m"))])
    for name in ("a", "b", "c"):
        for _ in range(4):
            runtime.conversation(name).submit("wait")
    whole = runtime.obligations()
    for page in (1, 2, 3, 5, 12):
        monkeypatch.setattr(operations, "_PAGE", page)
        found = runtime.obligations()
        assert [(item.submission_id, item.behind) for item in found] == [
            (item.submission_id, item.behind) for item in whole
        ]
    assert len(whole) == 12


def test_a_runtime_of_one_process_is_not_drained(start: Callable[..., Runtime]) -> None:
    runtime = start()
    assert code_of(lambda: runtime.drain("local")) == "drain_not_supported"
    assert code_of(lambda: runtime.drain(""), InvalidInput) == "invalid_input"
    assert code_of(lambda: runtime.drain("local", author=""), InvalidInput) == "invalid_input"


# --- quarantine ------------------------------------------------------------------------------------------------------


def test_a_conversation_is_set_aside_and_released(start: Callable[..., Runtime], world: World) -> None:
    world.broken = False
    runtime = start()
    assert code_of(lambda: runtime.quarantine("c", reason="why"), NotFound) == "not_found"
    runtime.conversation("c").submit("hello").result(timeout=10)
    held = runtime.quarantine("c", reason="looking at it", author="ann")
    assert runtime.quarantined() == [held]
    assert runtime.describe().counts["quarantined"] == 1
    receipt = runtime.conversation("c").submit("hello")
    assert receipt.status() == "ready"
    assert runtime.conversation("d").submit("hello").result(timeout=10).outcome == "completed"
    (obligation,) = runtime.obligations()
    assert obligation.why == "Its conversation is quarantined by ann: looking at it"
    with pytest.raises(TimeoutError):
        receipt.result(timeout=0.05)
    assert runtime.release_quarantine("c", author="ann") == held
    assert receipt.result(timeout=10).outcome == "completed"
    assert runtime.release_quarantine("c", author="ann") == held  # as when the first answer was lost
    assert code_of(lambda: runtime.release_quarantine("c")) == "not_quarantined"
    assert runtime.quarantined() == []
    assert code_of(lambda: runtime.quarantine("c", reason=""), InvalidInput) == "invalid_input"
