"""Replaying recorded conversations through a runtime: user messages in order, and an honest count of what happened."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..agents.recording import RecordedInput, Recording
from ..recovery.convergence import Problem
from ..storage.errors import InvalidInput, LanewayError
from ..storage.records import (
    AnyRecord,
    ModelInterrupted,
    ModelResponded,
    RecoveryDecided,
    ToolCallSettled,
)
from .chaos import ChaosPlan
from .client import records_of
from .executions import read_executions
from .runtime import Runtime

if TYPE_CHECKING:
    from .ray_chaos import Nodes

AGENT_NAME = "replay"
ENDED = "failed (recording_ended)"
"""The outcome of a user message whose answer the recording does not hold: the normal end of such a recording."""
ENDED_IN_WORDS = (
    "the recording holds no complete answer to these user messages: it ends there, or in a tool call without a result. "
    "That is the normal end of such a recording"
)
_CONCURRENCY_MAX = 10_000


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """A user message that was refused, or that ended otherwise than its recording does."""

    conversation_id: str
    line_number: int
    input_number: int
    message: str
    code: str


class Summary(msgspec.Struct, kw_only=True):
    """What a replay did. `model_calls`, `model_calls_interrupted`, `tool_calls` and recoveries stand in the logs of the
    replayed conversations; calls made and executions are those of this replay alone, counted in a file by what ran.
    `reattached` submissions were in the store when it began; `problems` are those of the convergence check.
    """

    conversations: int = 0
    submissions: int = 0
    reattached: int = 0
    outcomes: dict[str, int] = {}
    model_calls: int = 0
    model_calls_interrupted: int = 0
    model_calls_made: int = 0
    model_calls_repeated: int = 0
    tool_calls: int = 0
    tool_executions: int = 0
    tool_executions_repeated: int = 0
    tool_executions_repeated_by_effect: dict[str, int] = {}
    tool_executions_after_commit: int = 0
    recoveries: int = 0
    recoveries_by_decision: dict[str, int] = {}
    kills: int = 0
    kills_by_kind: dict[str, int] = {}
    commits: int = 0
    seconds: float = 0.0
    turns_per_second: float = 0.0
    troubles: list[Trouble] = []
    open: dict[str, int] = {}
    problems: list[Problem] = []

    @property
    def passed(self) -> bool:
        """Whether every user message came to the end that its recording has, no committed call ran again, and the
        convergence check passed.
        """
        return not self.troubles and not self.tool_executions_after_commit and not self.problems


@dataclass
class Replay:
    """One replay. `executions` is the file in which the agent notes what it does (`executions.counted`).

    `nodes` is the cluster whose nodes the `chaos` may kill. An outcome that is not there after `patience_s` is a
    trouble; None waits as long as it takes. With `require_settled`, open work anywhere in the store is a problem.
    """

    runtime: Runtime
    recordings: Iterable[Recording]
    executions: Path
    concurrency: int = 16
    chaos: ChaosPlan | None = None
    nodes: Nodes | None = None
    patience_s: float | None = None
    require_settled: bool = False
    settled: Callable[[int], None] = lambda count: None
    """Told of each user message that has come to its end."""
    _summary: Summary = field(default_factory=Summary)
    _outcomes: Counter[str] = field(default_factory=Counter[str])
    _decisions: Counter[str] = field(default_factory=Counter[str])
    _committed_at_ms: dict[str, int] = field(default_factory=dict[str, int])

    def run(self) -> Summary:
        """Replay all recordings, `concurrency` of them at a time; each user message waits for the one before.

        Run again on the same store, it attaches to what was submitted already and goes on.
        Raises: InvalidInput.
        """
        if not 1 <= self.concurrency <= _CONCURRENCY_MAX:
            raise InvalidInput(
                f"concurrency must be 1 to {_CONCURRENCY_MAX:,}", field="concurrency", limit=_CONCURRENCY_MAX
            )
        if self.chaos is not None and self.runtime.describe().kind != "ray":
            raise InvalidInput("only processes of their own can be killed: leave out --local", field="kill-every")
        began = time.monotonic()
        try:
            asyncio.run(self._replay_all())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the others failed by the same mistake
        return self._finished(time.monotonic() - began)

    async def _replay_all(self) -> None:
        waiting = iter(self.recordings)
        async with self._under_chaos(), asyncio.TaskGroup() as group:
            for _ in range(self.concurrency):
                group.create_task(self._work_off(waiting))

    @contextlib.asynccontextmanager
    async def _under_chaos(self) -> AsyncGenerator[None]:
        if self.chaos is None:
            yield
            return
        from .ray_chaos import Chaos

        chaos = Chaos(self.runtime.describe().namespace, self.chaos, self.nodes)
        killing = asyncio.create_task(chaos.run())
        try:
            yield
        finally:
            killing.cancel()
            (ended,) = await asyncio.gather(killing, return_exceptions=True)
            self._summary.kills = chaos.kills.total()
            self._summary.kills_by_kind = {str(kind): chaos.kills[kind] for kind in self.chaos.kinds}
        if isinstance(ended, Exception):
            raise ended

    async def _work_off(self, waiting: Iterator[Recording]) -> None:
        for recording in waiting:
            await self._replay_one(recording)

    async def _replay_one(self, recording: Recording) -> None:
        self._summary.conversations += 1
        inputs = recording.inputs()
        number = 0
        try:
            known = await self.runtime.arun(self.runtime.client.rows(recording.id, None, len(inputs)))
            for number, said in enumerate(inputs, 1):
                await self._say(recording, number, said, known=number <= len(known))
                self.settled(1)
            await self._count(recording.id)
        except (TimeoutError, LanewayError) as error:
            # What comes later in this conversation would stand in another place than in the recording.
            code = error.code if isinstance(error, LanewayError) else "no_outcome"
            self._trouble(recording, number, str(error), code)
            self.settled(len(inputs) - number + 1 if number else len(inputs))

    async def _say(self, recording: Recording, number: int, said: RecordedInput, *, known: bool) -> None:
        conversation = self.runtime.conversation(recording.id, AGENT_NAME)
        receipt = await conversation.asubmit(said.content, idempotency_key=f"replay-{number}", message_keys=said.extra)
        self._summary.submissions += 1
        self._summary.reattached += known
        settlement = await receipt.aresult(self.patience_s)
        code = str(settlement.error["code"]) if settlement.error else None
        outcome = f"{settlement.outcome} ({code})" if code else settlement.outcome
        self._outcomes[outcome] += 1
        if outcome not in ("completed", ENDED):
            message = str(settlement.error["message"]) if settlement.error else f"it was {settlement.outcome}"
            self._trouble(recording, number, message, code or settlement.outcome)

    async def _count(self, conversation_id: str) -> None:
        for batch in await self.runtime.arun(self.runtime.client.batches(conversation_id)):
            for _, record in records_of([batch]):
                self._count_record(record, batch.committed_at_ms)

    def _count_record(self, record: AnyRecord, committed_at_ms: int) -> None:
        summary = self._summary
        match record:
            case ModelResponded():
                summary.model_calls += 1
            case ModelInterrupted():
                summary.model_calls_interrupted += 1
            case ToolCallSettled():
                summary.tool_calls += 1
                self._committed_at_ms[record.call_id] = committed_at_ms
            case RecoveryDecided():
                self._decisions[record.decision] += 1
            case _:
                pass

    def _trouble(self, recording: Recording, number: int, message: str, code: str) -> None:
        self._summary.troubles.append(
            Trouble(
                conversation_id=recording.id,
                line_number=recording.line_number,
                input_number=number,
                message=message,
                code=code,
            )
        )

    def _finished(self, seconds: float) -> Summary:
        summary = self._summary
        executions = read_executions(self.executions, self._committed_at_ms)
        summary.tool_executions = executions.total
        summary.tool_executions_repeated = executions.repeated
        summary.tool_executions_repeated_by_effect = executions.repeated_by_effect
        summary.tool_executions_after_commit = executions.after_commit
        summary.model_calls_made = executions.model_calls
        summary.model_calls_repeated = executions.model_calls_repeated
        summary.recoveries = self._decisions.total()
        summary.recoveries_by_decision = dict(sorted(self._decisions.items()))
        report = self.runtime.verify(require_settled=self.require_settled)
        summary.open, summary.problems = report.open, report.problems
        summary.outcomes = dict(sorted(self._outcomes.items()))
        summary.commits = int(self.runtime.describe().store["commits"])
        summary.seconds = round(seconds, 3)
        settled = sum(self._outcomes.values()) - summary.reattached
        summary.turns_per_second = round(max(settled, 0) / seconds, 1) if seconds > 0 else 0.0
        return summary


def as_json(summary: Summary) -> dict[str, Any]:
    """The summary as JSON values, `passed` included."""
    return {"passed": summary.passed, **msgspec.to_builtins(summary)}
