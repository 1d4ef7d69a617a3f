"""The projection of a canonical log: runs, turns and calls, folded one record at a time, never decided.

It is rebuilt from records alone; no clock, no store, no tool is touched (Specification persistence, "Canonical
history").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .records import (
    AbortRequested,
    AnyRecord,
    ApprovalDecided,
    ApprovalRequested,
    ConversationCreated,
    InputRecorded,
    ModelInterrupted,
    ModelResponded,
    RecoveryDecided,
    RunCompleted,
    RunStarted,
    StepSettled,
    SubmissionSettled,
    ToolCall,
    ToolCallPrepared,
    ToolCallResolved,
    ToolCallSettled,
    ToolCallUnknown,
)
from .values import encode


@dataclass(slots=True)
class CallView:
    """A declared call and what the log says of it."""

    call: ToolCall
    run_id: str
    turn: int
    position: int
    preparations: int = 0
    prepared: ToolCallPrepared | None = None
    settled: ToolCallSettled | None = None
    unknown: ToolCallUnknown | None = None
    resolved: ToolCallResolved | None = None
    approval: ApprovalRequested | None = None
    decision: ApprovalDecided | None = None
    steps: dict[str, StepSettled] = field(default_factory=dict[str, StepSettled])
    """Recorded steps by their id; they outlive a preparation, and go when the call is settled."""

    @property
    def open(self) -> bool:
        return self.settled is None


@dataclass(slots=True)
class TurnView:
    """A committed model response with its calls in declaration order."""

    response: ModelResponded
    calls: list[CallView]

    @property
    def complete(self) -> bool:
        """Every declared call has a canonical result (Specification 8)."""
        return all(not call.open for call in self.calls)


@dataclass(slots=True)
class RunView:
    """One run: its turns, and how it ended."""

    run_id: str
    submission_id: str
    started: RunStarted
    turns: list[TurnView] = field(default_factory=list[TurnView])
    interruptions: int = 0
    stalled: int = 0
    """Recoveries since something new was recorded: what tells poison work from bad luck (Specification 16)."""
    waited_ms: int = 0
    """Time that the run spent waiting for people."""
    completed: RunCompleted | None = None
    joined: list[InputRecorded] = field(default_factory=list[InputRecorded])
    """Inputs of other submissions that entered this run while it was under way; they settle with it."""
    unanswered: bool = False
    """Whether one of them entered behind the last response: the run is not at its end."""

    @property
    def at_boundary(self) -> bool:
        """Whether a complete turn is the last thing in it: the one safe seam for further input (Specification 8)."""
        return self.last_turn is not None and not self.open_calls

    @property
    def last_turn(self) -> TurnView | None:
        return self.turns[-1] if self.turns else None

    @property
    def open_calls(self) -> list[CallView]:
        turn = self.last_turn
        return [call for call in turn.calls if call.open] if turn else []


@dataclass(slots=True)
class ConversationView:
    """A conversation as its log tells it.

    `entries` holds user inputs and model turns in log order: what prompts and exports are made of. `settlements` and
    `inputs` map a submission to its record.
    """

    agent: str | None = None
    tail_sequence: int = 0
    entries: list[InputRecorded | TurnView] = field(default_factory=list["InputRecorded | TurnView"])
    inputs: dict[str, InputRecorded] = field(default_factory=dict[str, InputRecorded])
    runs: dict[str, RunView] = field(default_factory=dict[str, RunView])
    aborts: dict[str, AbortRequested] = field(default_factory=dict[str, AbortRequested])
    settlements: dict[str, SubmissionSettled] = field(default_factory=dict[str, SubmissionSettled])
    calls: dict[str, CallView] = field(default_factory=dict[str, CallView])
    run_by_submission: dict[str, str] = field(default_factory=dict[str, str])

    def extend(self, records: Iterable[AnyRecord]) -> None:
        for record in records:
            self.add(record)

    def add(self, record: AnyRecord) -> None:
        """Fold the next record in."""
        self.tail_sequence += 1
        match record:
            case ConversationCreated():
                self.agent = record.agent
            case InputRecorded():
                self.inputs[record.submission_id] = record
                self.entries.append(record)
                self._join(record)
            case RunStarted():
                self.runs[record.run_id] = RunView(record.run_id, record.submission_id, record)
                self.run_by_submission[record.submission_id] = record.run_id
            case ModelResponded():
                self._add_turn(record)
            case RecoveryDecided():
                run = self.run_of(record.submission_id)
                if run is not None and not record.planned:
                    run.stalled += 1
            case ModelInterrupted():
                self.runs[record.run_id].interruptions += 1
            case ToolCallPrepared():
                self._prepare(record)
            case ToolCallSettled():
                call = self.calls[record.call_id]
                call.settled, call.steps = record, {}  # a settled call is never entered again
                self.runs[call.run_id].stalled = 0
            case StepSettled():
                self.calls[record.call_id].steps[record.step_id] = record
                self.runs[record.run_id].stalled = 0
            case ToolCallUnknown():
                self.calls[record.call_id].unknown = record
            case ToolCallResolved():
                self.calls[record.call_id].resolved = record
                self.runs[record.run_id].waited_ms += record.waited_ms
            case ApprovalRequested():
                self.calls[record.call_id].approval = record
            case ApprovalDecided():
                self._decide(record)
            case AbortRequested():
                self.aborts[record.submission_id] = record
            case RunCompleted():
                self.runs[record.run_id].completed = record
            case SubmissionSettled():
                self._settle(record)
            case _:
                pass  # deltas, compaction and repairs change no turn

    def run_of(self, submission_id: str) -> RunView | None:
        """The run of a submission, None before it has started or after it was folded away."""
        run_id = self.run_by_submission.get(submission_id)
        return self.runs.get(run_id) if run_id else None

    def _join(self, record: InputRecorded) -> None:
        host = self.runs.get(record.run_id) if record.run_id else None
        if host is not None:
            host.joined.append(record)
            host.unanswered = True

    def _add_turn(self, record: ModelResponded) -> None:
        calls = [
            CallView(call, record.run_id, record.turn, position) for position, call in enumerate(record.tool_calls)
        ]
        turn = TurnView(record, calls)
        run = self.runs[record.run_id]
        run.turns.append(turn)
        run.stalled = 0
        run.unanswered = False
        self.entries.append(turn)
        for call in calls:
            self.calls[call.call.id] = call

    def _prepare(self, record: ToolCallPrepared) -> None:
        """A new preparation makes what was said of the earlier one history: the call may be in flight again."""
        call = self.calls[record.call_id]
        call.prepared, call.unknown, call.resolved = record, None, None
        call.preparations += 1

    def _decide(self, record: ApprovalDecided) -> None:
        self.runs[record.run_id].waited_ms += record.waited_ms
        for call in self.calls.values():
            if call.approval is not None and call.approval.approval_id == record.approval_id:
                call.decision = record

    def _settle(self, record: SubmissionSettled) -> None:
        self.settlements[record.submission_id] = record


def user_message(record: InputRecorded) -> dict[str, Any]:
    return {"role": "user", "content": record.content, **record.extra}


def tool_content(settled: ToolCallSettled) -> Any:
    """What the model reads as the call's result: text as it is, other values as JSON, a failure as its error."""
    if settled.outcome == "failed" and settled.error is not None:
        return encode({"error": {"code": settled.error.code, "message": settled.error.message}}).decode()
    if isinstance(settled.result, str) or settled.message_keys is not None:
        return settled.result
    return encode(settled.result).decode()


def unknown_content(unknown: ToolCallUnknown) -> str:
    """What the model reads of a call whose outcome nobody can prove yet."""
    message = f"nobody knows yet whether this call took effect: {unknown.reason}"
    return encode({"unknown": {"message": message}}).decode()


def turn_messages(turn: TurnView) -> Iterator[dict[str, Any]]:
    """A turn in OpenAI's chat format: the response, then its results in declaration order.

    It must be `complete`, or what is open of it unknown.
    """
    response = turn.response
    message: dict[str, Any] = {"role": "assistant", "content": response.content, **response.extra}
    if response.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.provider_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
                **call.extra,
            }
            for call in response.tool_calls
        ]
    yield message
    for call in turn.calls:
        keys = call.settled.message_keys if call.settled is not None else None
        if call.settled is not None:
            content = tool_content(call.settled)
        else:
            assert call.unknown is not None
            content = unknown_content(call.unknown)
        yield {
            "role": "tool",
            "tool_call_id": call.call.provider_id,
            **({"name": call.call.name} if keys is None else keys),
            "content": content,
        }


def chat_messages(view: ConversationView) -> list[dict[str, Any]]:
    """The conversation in OpenAI's chat format: valid for a provider at every prefix of the log.

    A turn whose batch of calls is not complete is left out with its partial results; what users said stays
    (Specification 10).
    """
    messages: list[dict[str, Any]] = []
    for entry in view.entries:
        if isinstance(entry, InputRecorded):
            messages.append(user_message(entry))
        elif entry.complete:
            messages.extend(turn_messages(entry))
    return messages


def prompt_messages(view: ConversationView, run_id: str) -> list[dict[str, Any]]:
    """The prompt for the next model call of a run: valid for a provider at every prefix of the log.

    It tells what is unknown of parked work (DUR-009), and what belongs to this run stands last: parked work that goes
    on after later submissions answers its own request.
    """
    others: list[dict[str, Any]] = []
    own: list[dict[str, Any]] = []
    at_work: str | None = None  # whose run an input without one of its own was said to
    for entry in view.entries:
        if isinstance(entry, InputRecorded):
            at_work = entry.run_id or view.run_by_submission.get(entry.submission_id, at_work)
            (own if at_work == run_id else others).append(user_message(entry))
            continue
        at_work = entry.response.run_id
        if entry.complete or (at_work != run_id and _is_parked(view, entry)):
            (own if at_work == run_id else others).extend(turn_messages(entry))
    return others + own


def _is_parked(view: ConversationView, turn: TurnView) -> bool:
    """Whether all that is open of the turn is unknown, and its run has not ended without it."""
    run = view.runs[turn.response.run_id]
    ended = run.completed is not None or run.submission_id in view.settlements
    return not ended and all(call.unknown is not None for call in turn.calls if call.open)
