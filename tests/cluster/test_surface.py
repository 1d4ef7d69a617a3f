"""The public surface, the same on memory, on a DuckDB file in this process, and on Ray."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import cluster_agents
import pytest
from cluster_agents import noted, until

import laneway
from laneway.actors.channel import Channel, ChannelAddress, ChannelLost


@pytest.fixture(scope="module", params=["memory", "duckdb", "ray"])
def runtime(
    request: pytest.FixtureRequest, shared_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[laneway.Runtime]:
    store = tmp_path_factory.mktemp("surface") / "laneway.duckdb"
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
        with laneway.start(cluster_agents.agents, store=store, namespace=f"surface-{os.getpid()}") as found:
            yield found
    else:
        path = None if request.param == "memory" else store
        with laneway.local(cluster_agents.agents, store=path) as found:
            yield found


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A conversation of the test's own, with a name that nobody would choose."""
    return f"{request.node.name}/ü:{os.getpid()}"


@pytest.mark.requirement("DUR-001", "DUR-002")
def test_a_submission_is_accepted_and_settled(runtime: laneway.Runtime, name: str) -> None:
    conversation = runtime.conversation(name)
    receipt = conversation.submit("look shoes", idempotency_key="m1", principal="alice")
    settlement = receipt.result(timeout=30)
    assert (settlement.outcome, settlement.text) == (
        "completed",
        'the result is {"item":"shoes","status":"shipped"}',
    )
    assert receipt.queue_sequence == 1
    assert receipt.status() == "completed"
    assert [message["role"] for message in conversation.messages()] == ["user", "assistant", "tool", "assistant"]
    assert [record["sequence"] for record in conversation.log()] == list(range(1, 10))
    assert conversation.log(after=8)[0]["type"] == "submission_settled"


@pytest.mark.requirement("DUR-001")
def test_a_lost_reply_is_asked_again(runtime: laneway.Runtime, name: str) -> None:
    """F1: the same key gives the same receipt, and one run."""
    conversation = runtime.conversation(name)
    first = conversation.submit("hello", idempotency_key="m1")
    again = conversation.submit("hello", idempotency_key="m1")
    assert again.replayed
    assert not first.replayed
    assert (again.submission_id, again.receipt_id, again.queue_sequence) == (
        first.submission_id,
        first.receipt_id,
        first.queue_sequence,
    )
    assert again.result(timeout=30).text == "you said hello"
    assert len(runtime.submissions(conversation=name)) == 1
    with pytest.raises(laneway.AdmissionConflict) as conflict:
        conversation.submit("good bye", idempotency_key="m1")
    assert conflict.value.details["stored_digest"] != conflict.value.details["given_digest"]
    assert conversation.submit("good bye", idempotency_key="m1", principal="bob").queue_sequence == 2


@pytest.mark.requirement("DUR-004", "DUR-016")
def test_a_run_is_steered(runtime: laneway.Runtime, name: str) -> None:
    """It enters the log behind the turn that is under way, ahead of the queue, and settles with the run."""
    conversation = runtime.conversation(name)
    with pytest.raises(laneway.Refused) as caught:
        conversation.steer("too early")
    assert caught.value.code == "nothing_to_steer"
    gate = cluster_agents.folder() / f"gate-steer-{os.getpid()}"
    gate.touch()
    item = gate.name.removeprefix("gate-")
    head = conversation.submit(f"look {item}")
    until(lambda: any(record["type"] == "tool_call_prepared" for record in conversation.log()))
    queued = conversation.submit("later")
    steering = conversation.steer("no, this one")
    gate.unlink()
    found = [receipt.result(timeout=30) for receipt in (head, steering, queued)]
    assert [item.text for item in found] == ["you said no, this one", "you said no, this one", "you said later"]
    assert found[0].run_id == found[1].run_id != found[2].run_id
    inputs = [record for record in conversation.log() if record["type"] == "input_recorded"]
    assert [record.get("kind", "user") for record in inputs] == ["user", "steering", "user"]


@pytest.mark.requirement("DUR-004", "DUR-005")
def test_order_is_the_order_of_admission(runtime: laneway.Runtime, name: str) -> None:
    conversation = runtime.conversation(name)
    receipts = [conversation.submit(f"number {index}") for index in range(10)]
    assert [receipt.result(timeout=30).text for receipt in receipts] == [f"you said number {i}" for i in range(10)]
    kinds = [record["type"] for record in conversation.log()]
    inputs = [index for index, kind in enumerate(kinds) if kind == "input_recorded"]
    settled = [index for index, kind in enumerate(kinds) if kind == "submission_settled"]
    assert all(end < begin for end, begin in zip(settled, inputs[1:], strict=False))
    assert [r["queue_sequence"] for r in conversation.log() if r["type"] == "input_recorded"] == list(range(1, 11))


def test_async_code_uses_the_same_runtime(runtime: laneway.Runtime, name: str) -> None:
    async def many() -> list[str | None]:
        receipts = await asyncio.gather(*(runtime.conversation(f"{name}-{i}").asubmit(f"n {i}") for i in range(8)))
        settlements = await asyncio.gather(*(receipt.aresult(30) for receipt in receipts))
        return [settlement.text for settlement in settlements]

    assert asyncio.run(many()) == [f"you said n {index}" for index in range(8)]


def test_events_resume_behind_a_sequence_and_end(runtime: laneway.Runtime, name: str) -> None:
    """F13, F14: each record after n once, then the end; a conversation that nobody knows ends at once."""
    conversation = runtime.conversation(name)
    conversation.submit("look shoes").result(timeout=30)
    everything = [event for event in conversation.events() if not event.provisional]
    assert [event.sequence for event in everything] == list(range(1, 10))
    assert everything[-1].type == "submission_settled"
    assert [event.sequence for event in conversation.events(after=7)] == [8, 9]
    assert list(runtime.conversation(f"{name}-unknown").events()) == []


@pytest.mark.requirement("DUR-012")
def test_abort_of_active_and_of_queued_work(runtime: laneway.Runtime, name: str, shared_folder: Path) -> None:
    """K20, K21: queued work settles at once, active work after its record; a settled outcome never changes."""
    gate = shared_folder / "gate-slow"
    gate.touch()
    conversation = runtime.conversation(name)
    active = conversation.submit("look slow")
    queued = conversation.submit("never runs")
    last = conversation.submit("runs")
    until(lambda: any(record["type"] == "tool_call_prepared" for record in conversation.log()))
    queued.abort(reason="not needed", author="alice")
    assert queued.result(timeout=30).outcome == "aborted"
    assert not [r for r in conversation.log() if r["type"] == "input_recorded" and r["content"] == "never runs"]
    first = active.abort(reason="too slow", author="alice", abort_id="abt_1")
    again = active.abort(reason="another", author="bob", abort_id="abt_1")
    assert first.abort == again.abort
    assert active.result(timeout=30).outcome == "aborted"
    assert last.result(timeout=30).text == "you said runs"
    gate.unlink()
    kinds = [record["type"] for record in conversation.log() if record.get("submission_id") == active.submission_id]
    assert kinds.index("abort_requested") < kinds.index("submission_settled")
    with pytest.raises(laneway.Refused) as refused:
        last.abort()
    assert refused.value.code == "already_settled"


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("", "input"),
        (b"bytes", "input"),
        (17, "input"),
        ("\ud800", "input"),
        ([], "input"),
        ([{"type": "text", "text": float("nan")}], "input[0].text"),
        ([{"text": "no type"}], "input[0]"),
        ("x" * (1 << 20) + "y", "input"),
    ],
)
def test_bad_input_is_refused_before_anything_is_stored(
    runtime: laneway.Runtime, name: str, content: object, field: str
) -> None:
    """F25: the error names field and limit."""
    with pytest.raises(laneway.InvalidInput) as refused:
        runtime.conversation(f"bad-{field}-{name}").submit(content)  # type: ignore[arg-type]
    assert refused.value.details["field"] == field
    assert runtime.submissions(conversation=f"bad-{field}-{name}") == []


def test_unknown_names_are_told(runtime: laneway.Runtime, name: str) -> None:
    with pytest.raises(laneway.InvalidInput) as refused:
        runtime.conversation(name, agent="nobody").submit("hello")
    assert refused.value.details["field"] == "agent"
    assert "desk" in refused.value.message
    with pytest.raises(laneway.NotFound):
        runtime.submission("sub_unknown")
    with pytest.raises(laneway.NotFound):
        runtime.abort("sub_unknown")


def test_the_whole_store_verifies(runtime: laneway.Runtime, name: str) -> None:
    runtime.conversation(name).submit("hello").result(timeout=30)
    report = runtime.verify(require_settled=True)
    assert report.passed, report.problems
    assert name in runtime.conversations()
    assert runtime.describe().agents == ("desk",)


def test_sql_answers_where_the_adapter_speaks_it(runtime: laneway.Runtime, name: str) -> None:
    runtime.conversation(name).submit("hello").result(timeout=30)
    question = f"SELECT count(*) AS n FROM settlements WHERE conversation_id = '{name}'"
    if runtime.describe().store["adapter"] == "memory":
        with pytest.raises(laneway.Refused):
            runtime.query(question)
        return
    table = runtime.query(question)
    assert (table.columns, table.rows) == (("n",), ((1,),))
    with pytest.raises(laneway.InvalidInput):
        runtime.query("DROP TABLE ledger")


def test_calls_from_the_models_are_counted_once(runtime: laneway.Runtime, name: str) -> None:
    before = len(noted("look_up"))
    runtime.conversation(name).submit("look hat").result(timeout=30)
    assert len(noted("look_up")) == before + 1


def test_receipts_are_found_again(runtime: laneway.Runtime, name: str) -> None:
    receipt = runtime.conversation(name).submit("hello")
    found: Callable[[], laneway.Settlement] = lambda: runtime.receipt(receipt.submission_id).result(timeout=30)  # noqa: E731
    assert found() == receipt.result(timeout=30)


def test_without_channels_a_client_s_calls_go_over_ray(
    start: Callable[..., laneway.Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that lets Ray through and nothing else: the same answers and the same errors."""

    async def no_channel(address: ChannelAddress) -> Channel:
        raise ChannelLost("no way through")

    monkeypatch.setattr(Channel, "connect", no_channel)
    conversation = start().conversation("c")
    receipt = conversation.submit("look shoes", idempotency_key="m1")
    assert receipt.result(timeout=30).outcome == "completed"
    with pytest.raises(laneway.AdmissionConflict):
        conversation.submit("look hats", idempotency_key="m1")
    with pytest.raises(laneway.Refused) as settled:
        receipt.abort()
    assert settled.value.code == "already_settled"
    assert [event.type for event in conversation.events(provisional=False)][-1] == "submission_settled"
