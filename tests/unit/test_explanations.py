"""Explanations of a whole runtime: what they say of quarantined, parked and agentless work, and what they read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import laneway
from laneway import Agent, Runtime

SECONDS = 10.0


class Held:
    """A model that waits when it is told "hold", and asks for a charge when it is told "pay"."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    async def answer(self, request: Any) -> Any:
        said = request.messages[-1]
        if said["role"] == "user" and said["content"] == "hold":
            await asyncio.to_thread(self.gate.wait, SECONDS)
        if said["role"] == "user" and said["content"] == "pay":
            asked = {"id": "call_1", "type": "function", "function": {"name": "charge", "arguments": "{}"}}
            return {"role": "assistant", "content": None, "tool_calls": [asked]}
        return "done"


@laneway.tool(effect="uncertain", timeout_s=0.01)
async def charge(ctx: laneway.ToolContext) -> str:
    await asyncio.Event().wait()
    return "never"


@pytest.fixture
def held() -> Iterator[Held]:
    found = Held()
    yield found
    found.gate.set()


@pytest.fixture
def runtime(held: Held) -> Iterator[Runtime]:
    agent = Agent(name="a", model=laneway.FunctionModel(held.answer), tools=[charge], on_unknown="park")
    with laneway.local(agents=[agent]) as found:
        yield found
        held.gate.set()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.002)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> Counter[str]:
    found, read = Counter[str](), runtime.client.backend.read

    async def counting(method: str, *args: Any) -> Any:
        found[method] += 1
        return await read(method, *args)

    monkeypatch.setattr(runtime.client.backend, "read", counting)
    return found


@pytest.mark.requirement("DUR-013", "DUR-014")
def test_explanation_and_obligation_of_quarantined_work_agree(runtime: Runtime) -> None:
    conversation = runtime.conversation("q")
    conversation.submit("hi").result(timeout=SECONDS)
    runtime.quarantine("q", reason="looks odd", author="ann")
    receipt = conversation.submit("hello")
    told = runtime.explain(receipt.submission_id)
    (owed,) = runtime.obligations()
    assert told.why == owed.why == "Its conversation is quarantined by ann: looks odd"
    assert told.actions[0] == "laneway quarantine release q --author NAME"
    runtime.release_quarantine("q", author="ann")
    assert receipt.result(timeout=SECONDS).outcome == "completed"


@pytest.mark.requirement("DUR-013", "DUR-017")
def test_work_behind_parked_work_does_not_wait_for_it(runtime: Runtime, held: Held) -> None:
    conversation = runtime.conversation("p")
    parked = conversation.submit("pay")
    until(lambda: parked.status() == "unknown")
    slow = conversation.submit("hold")
    until(lambda: slow.status() == "running")
    last = conversation.submit("hello")
    told = runtime.explain(last.submission_id)
    assert told.behind == (slow.submission_id,)
    assert f"behind 1 open submission; the first, {slow.submission_id}, is running" in told.why
    (owed,) = [item for item in runtime.obligations() if item.submission_id == last.submission_id]
    assert owed.behind == slow.submission_id
    held.gate.set()
    assert last.result(timeout=SECONDS).outcome == "completed"


def test_an_explanation_reads_open_work_alone(runtime: Runtime, reads: Counter[str], held: Held) -> None:
    """A conversation has any number of settled submissions: they are not read to explain an open one."""
    conversation = runtime.conversation("long")
    for number in range(5):
        conversation.submit(f"message {number}").result(timeout=SECONDS)
    slow = conversation.submit("hold")
    until(lambda: slow.status() == "running")
    last = conversation.submit("hello")
    reads.clear()
    assert runtime.explain(last.submission_id).behind == (slow.submission_id,)
    assert reads == {"snapshot": 1, "owners": 1, "scan_nonterminal": 1}


def test_open_rows_are_read_page_by_page(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, held: Held) -> None:
    monkeypatch.setattr("laneway.cluster.looks._PAGE", 2)
    for name in ("b", "c", "d"):
        conversation = runtime.conversation(name)
        first = conversation.submit("hold")
        until(lambda first=first: first.status() == "running")
        for number in range(4):
            conversation.submit(f"m{number}")
    rows = runtime.submissions(conversation="c")
    told = runtime.explain(rows[-1].submission_id)
    assert told.behind == tuple(row.submission_id for row in rows[:-1])


def test_work_whose_agent_nobody_registered_says_so(held: Held, tmp_path: Path) -> None:
    """Work of an agent that an earlier program had, and this one has not: it is parked, and both commands say why."""

    async def wait(request: Any) -> Any:
        await asyncio.Event().wait()

    earlier, later = (Agent(name=name, model=laneway.FunctionModel(wait)) for name in ("gone", "a"))
    with laneway.local(agents=[earlier], store=tmp_path / "s.duckdb") as runtime:
        receipt = runtime.conversation("c").submit("hi")
        until(lambda: receipt.status() == "running")
    with laneway.local(agents=[later], store=tmp_path / "s.duckdb") as runtime:
        until(lambda: "No agent is named 'gone'" in runtime.explain(receipt.submission_id).why)
        (owed,) = runtime.obligations()
        assert (owed.waits_for, owed.why.split(";")[0]) == ("agent", "No agent is named 'gone' in this runtime")
