"""The projection of a canonical log: runs, turns and calls, folded one record at a time, never decided.

It is rebuilt from records alone; no clock, no store, no tool is touched (Specification persistence, "Canonical
history").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field
from typing import Any, Literal

from .prompt import Prompt, messages_of
from .records import (
    AbortRequested,
    AnyRecord,
    ApprovalDecided,
    ApprovalRequested,
    CompactionCreated,
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


_DERIVED: Mapping[str, bool] = {"derived": True}


def derived(of: Field[Any]) -> bool:
    """Whether a field of a view follows from the others, or from the log: a checkpoint leaves it out."""
    return bool(of.metadata.get("derived"))


@dataclass(slots=True)
class ConversationView:
    """A conversation as its log tells it: what decides, and beside it what prompts are made of (`prompt`).

    `settlements` and `inputs` map a submission to its record. With `keep` "open", as lanes hold it, the turns of a run
    go when it has settled, and all of it goes when another run starts, but for work that joined it and is open yet: a
    head is only claimed when all work before it is closed, or parked. What is left does not grow with the log's length.
    """

    keep: Literal["all", "open"] = "all"
    agent: str | None = None
    tail_sequence: int = 0
    last_queue_sequence: int = 0
    covered: int = 0
    """Up to this sequence an artifact stands for the history in prompts."""
    inputs: dict[str, InputRecorded] = field(default_factory=dict[str, InputRecorded])
    runs: dict[str, RunView] = field(default_factory=dict[str, RunView])
    aborts: dict[str, AbortRequested] = field(default_factory=dict[str, AbortRequested])
    settlements: dict[str, SubmissionSettled] = field(default_factory=dict[str, SubmissionSettled])
    run_by_submission: dict[str, str] = field(default_factory=dict[str, str])
    calls: dict[str, CallView] = field(default_factory=dict[str, CallView], metadata=_DERIVED)
    prompt: Prompt = field(default_factory=Prompt, metadata=_DERIVED)
    checkpointed: int = field(default=0, metadata=_DERIVED)
    """The tail of the last checkpoint that is known of."""

    def __post_init__(self) -> None:
        self.prompt.whole = self.keep == "all"

    def extend(self, records: Iterable[AnyRecord]) -> None:
        for record in records:
            self.add(record)

    def add(self, record: AnyRecord) -> None:
        """Fold the next record in."""
        self.prompt.add(self.tail_sequence + 1, record)
        self._fold(record)

    def _fold(self, record: AnyRecord) -> None:
        self.tail_sequence += 1
        match record:
            case ConversationCreated():
                self.agent = record.agent
            case InputRecorded():
                self.inputs[record.submission_id] = record
                self._join(record)
                self.last_queue_sequence = max(self.last_queue_sequence, record.queue_sequence)
            case RunStarted():
                if self.keep == "open":
                    self._forget_settled()
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
            case CompactionCreated():
                self.covered = max(self.covered, record.covers_sequence)
                run = self.runs.get(record.run_id)
                if run is not None:
                    run.stalled = 0
            case SubmissionSettled():
                self._settle(record)
            case _:
                pass  # deltas and repairs change no turn

    def insert(self, after: int, records: Sequence[AnyRecord]) -> None:
        """Fold in what others put into the log behind `after`, before records that stand here and not there yet.

        Others settle work that nobody runs, by its abort: they say nothing and call no model.
        """
        self.prompt.insert(after, records)
        for record in records:
            self._fold(record)

    def relink(self) -> None:
        """Make the index of calls again, from the runs."""
        calls = (call for run in self.runs.values() for turn in run.turns for call in turn.calls)
        self.calls = {call.call.id: call for call in calls}

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
        run = self.run_of(record.submission_id)
        if self.keep == "open" and run is not None:
            for call in (call for turn in run.turns for call in turn.calls):
                self.calls.pop(call.call.id, None)
            run.turns = []

    def _forget_settled(self) -> None:
        """Drop work that is closed: settled, with all that joined its run, before another run begins."""
        held: set[str] = set()
        for run in list(self.runs.values()):
            family = {run.submission_id, *(record.submission_id for record in run.joined)}
            if family <= self.settlements.keys():
                del self.runs[run.run_id]
            else:
                held |= family
        for submission_id in [name for name in self.settlements if name not in held]:
            del self.settlements[submission_id]
            self.inputs.pop(submission_id, None)
            self.aborts.pop(submission_id, None)
            self.run_by_submission.pop(submission_id, None)


def chat_messages(view: ConversationView) -> list[dict[str, Any]]:
    """The whole conversation in OpenAI's chat format, valid for a provider at every prefix of the log.

    It is for exports, and takes a view that keeps all; `prompt_messages` is what a model gets to read.
    """
    return messages_of(view.prompt.entries)


def prompt_messages(view: ConversationView, run_id: str) -> list[dict[str, Any]]:
    """The prompt for the next model call of a run: what a compaction covers is replaced by its artifact."""
    return view.prompt.messages(run_id)
