"""What `laneway demo` does: three submissions, and SIGKILL for the process that runs the second one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..storage.errors import LanewayError
from .demo_agent import AGENT_NAME
from .executions import read_lines
from .runtime import Conversation, Receipt, Runtime

FIRST, OTHER = "alice", "bob"
_SUBMISSIONS = (
    (FIRST, "A table for 2 at 19:00, please."),
    (FIRST, "And one for 6 at 21:30."),
    (OTHER, "A table for 4 at 20:15."),
)
_KILLED = 1
_PATIENCE_S = 45.0
_NAMES_MAX = 1_000
_STEM = "laneway-demo"


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """The process that was ended in mid-turn, and what came after."""

    pid: int
    process: str
    after: str
    recovered_by_pid: int | None
    recovered_by_process: str | None
    epoch_before: int
    epoch_after: int
    decision: str
    evidence: str
    seconds_to_settlement: float


class Story(msgspec.Struct, kw_only=True):
    """All that the demonstration has to show."""

    store: str
    calls_file: str
    settlements: list[dict[str, Any]] = []
    kill: Kill | None = None
    submissions: list[dict[str, Any]] = []
    log: list[dict[str, Any]] = []
    tool_calls: int = 0
    tool_invocations: int = 0
    problems: list[str] = []

    @property
    def passed(self) -> bool:
        """Whether all of it ended as it should: each submission completed once, each booking made once."""
        return (
            not self.problems
            and self.kill is not None
            and all(settlement["outcome"] == "completed" for settlement in self.settlements)
            and self.tool_invocations == self.tool_calls == len(_SUBMISSIONS)
        )


def fresh_paths(folder: Path) -> tuple[Path, Path]:
    """Names for a store and for the file of invocations that nothing in the folder has yet; nothing is removed."""
    for number in range(1, _NAMES_MAX):
        stem = _STEM if number == 1 else f"{_STEM}-{number}"
        store, calls = folder / f"{stem}.duckdb", folder / f"{stem}.calls.jsonl"
        if not any(path.exists() for path in (store, folder / f"{stem}.duckdb.wal", calls)):
            return store, calls
    raise LanewayError(f"{folder} holds {_NAMES_MAX} demonstrations: remove some {_STEM}-*", code="too_many_demos")


def play(runtime: Runtime, store: Path, calls: Path, tell: Callable[[str], None]) -> Story:
    """Run the demonstration on a runtime that has the agent of `demo_agent(calls)`. Raises: LanewayError."""
    story = Story(store=str(store), calls_file=str(calls))
    for index, (name, text) in enumerate(_SUBMISSIONS):
        conversation = runtime.conversation(name, AGENT_NAME)
        after = len(conversation.log())
        receipt = conversation.submit(text, idempotency_key=f"demo-{index + 1}", principal=name)
        tell(f"{name}: {text}")
        if index == _KILLED:
            story.kill = _kill_in_mid_turn(runtime, conversation, receipt, after, tell)
        try:
            settlement = receipt.result(timeout=_PATIENCE_S)
        except TimeoutError as error:
            raise LanewayError(
                f"{receipt.submission_id} was not settled within {_PATIENCE_S:.0f} s", code="not_settled"
            ) from error
        story.settlements.append({"conversation_id": name, **msgspec.to_builtins(settlement)})
        tell(f"  {settlement.outcome}: {settlement.text or settlement.error}")
    _look_back(runtime, calls, story)
    return story


def _kill_in_mid_turn(
    runtime: Runtime, conversation: Conversation, receipt: Receipt, after: int, tell: Callable[[str], None]
) -> Kill | None:
    """Wait until the booking is committed and the answer has begun; then end the process. None if it was too quick."""
    booked = False
    for event in conversation.events(after):
        booked = booked or event.type == "tool_call_settled"
        if event.type == "submission_settled":
            return None
        if booked and event.provisional:
            break
    process, pid = _host(runtime, conversation.id)
    if pid is None:
        return None
    epoch = runtime.submission(receipt.submission_id).epoch
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    tell(f"  SIGKILL for process {pid}: the table is booked, the answer has begun and is not recorded")
    with contextlib.suppress(TimeoutError):
        receipt.result(timeout=_PATIENCE_S)
    seconds = time.monotonic() - began
    decision = next(
        (
            record
            for record in conversation.log(after)
            if record["type"] == "recovery_decided" and record["submission_id"] == receipt.submission_id
        ),
        None,
    )
    if decision is None:
        return None
    process_now, pid_now = _host(runtime, conversation.id)
    tell(f"  recovered by process {pid_now} under epoch {decision['epoch']} (it was {epoch}): {decision['decision']}")
    return Kill(
        pid=pid,
        process=process,
        after="tool_call_settled",
        recovered_by_pid=pid_now,
        recovered_by_process=process_now,
        epoch_before=epoch,
        epoch_after=decision["epoch"],
        decision=decision["decision"],
        evidence=decision["evidence"],
        seconds_to_settlement=round(seconds, 3),
    )


def _host(runtime: Runtime, conversation_id: str) -> tuple[str, int | None]:
    """The process that hosts the conversation now."""
    host = runtime.run(runtime.client.backend.host_of(conversation_id))
    name = str(getattr(host, "name", ""))
    return name, next((actor.pid for actor in runtime.describe().actors if actor.name == name), None)


def _look_back(runtime: Runtime, calls: Path, story: Story) -> None:
    from .cli_runtime import row_as_dict

    for name in (FIRST, OTHER):
        story.submissions.extend(row_as_dict(row) for row in runtime.submissions(conversation=name))
    story.log = runtime.conversation(FIRST).log()
    for name in (FIRST, OTHER):
        log = runtime.conversation(name).log()
        story.tool_calls += sum(record["type"] == "tool_call_settled" for record in log)
    story.tool_invocations = len(read_lines(calls))
    report = runtime.verify(require_settled=True)
    story.problems = [f"{problem.conversation_id}: {problem.message}" for problem in report.problems]
