"""What a prompt is made of: inputs and model turns in log order, and the artifact that stands for the oldest of them.

A `Prompt` folds records like the projection does, but of its own: it may begin in the middle of the log, behind what a
compaction covers, and it may lag behind the tail until somebody needs it (Specification 8, "compaction artifact").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .records import (
    AnyRecord,
    CompactionCreated,
    InputRecorded,
    ModelResponded,
    RunCompleted,
    RunStarted,
    SubmissionSettled,
    ToolCallPrepared,
    ToolCallSettled,
    ToolCallUnknown,
)
from .values import encode


@dataclass(slots=True)
class InputEntry:
    """What a user said, at its place in the log. `run_id` is its own run's, or that of the run it was said to."""

    sequence: int
    record: InputRecorded
    run_id: str | None = None
    begins: bool = False
    """Whether a run of its own began with it."""
    complete: ClassVar[bool] = True

    @property
    def size(self) -> int:
        """How many messages it is."""
        return 1

    def messages(self) -> list[dict[str, Any]]:
        return [user_message(self.record)]


@dataclass(slots=True)
class TurnEntry:
    """A model response, at its place in the log, and what is known of its calls by their ids."""

    sequence: int
    response: ModelResponded
    results: dict[str, ToolCallSettled] = field(default_factory=dict[str, ToolCallSettled])
    unknown: dict[str, ToolCallUnknown] = field(default_factory=dict[str, ToolCallUnknown])
    """Calls without a result whose outcome nobody can prove."""
    ended: bool = False
    """Whether its run is over."""
    _told: list[dict[str, Any]] | None = None
    """Its messages, made once when it is complete: nothing of it changes any more, and each later prompt holds it."""

    @property
    def run_id(self) -> str:
        return self.response.run_id

    @property
    def complete(self) -> bool:
        """Every declared call has a canonical result (Specification 8)."""
        return len(self.results) == len(self.response.tool_calls)

    @property
    def parked(self) -> bool:
        """Whether all that is open of it is unknown, and its run has not ended without it."""
        owed = len(self.response.tool_calls) - len(self.results)
        return 0 < owed == len(self.unknown) and not self.ended

    @property
    def size(self) -> int:
        """How many messages it is at most; an incomplete turn is none."""
        return 1 + len(self.response.tool_calls) if self.complete or self.parked else 0

    def messages(self) -> list[dict[str, Any]]:
        if not self.complete:
            return list(turn_messages(self))
        if self._told is None:
            self._told = list(turn_messages(self))
        return [message.copy() for message in self._told]


Entry = InputEntry | TurnEntry


@dataclass(slots=True)
class Prompt:
    """Entries up to `tail`, the sequence of the last record that was folded in.

    With `whole`, entries that a compaction covers are kept for exports. Without it they go, and so do the incomplete
    turns of runs that have ended: nothing can complete them any more.
    """

    whole: bool = True
    tail: int = 0
    covered: int = 0
    """Entries up to this sequence are replaced by the artifact."""
    covered_responses: int = 0
    artifact: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    entries: list[Entry] = field(default_factory=list["Entry"])
    _open: dict[str, TurnEntry] = field(default_factory=dict[str, TurnEntry])
    """Turns that wait for results, by the ids of the calls that have none."""
    _at_work: str | None = None
    """The last run that began or went on: whom an input without a run of its own was said to."""

    @classmethod
    def behind(cls, covered: int) -> Prompt:
        """An empty prompt that goes on behind what a compaction covers; `tail` says where to read on."""
        return cls(whole=False, tail=covered, covered=covered)

    def add(self, sequence: int, record: AnyRecord) -> None:
        """Fold the record at `sequence` in. A prompt that lags takes in only how far a compaction reaches."""
        if isinstance(record, CompactionCreated) and record.covers_sequence >= self.covered:
            self._cover(record)
        if sequence == self.tail + 1:
            self.tail = sequence
            self._fold(sequence, record)

    def insert(self, after: int, records: Sequence[AnyRecord]) -> None:
        """Fold in records that entered the log behind `after`, before entries that stand here; none is an entry.

        A prompt that lags reads them when it gets there.
        """
        if self.tail < after:
            return
        for entry in reversed(self.entries):
            if entry.sequence <= after:
                break
            entry.sequence += len(records)
        self.tail += len(records)
        for sequence, record in enumerate(records, after + 1):
            self._fold(sequence, record)

    def _fold(self, sequence: int, record: AnyRecord) -> None:
        match record:
            case InputRecorded():
                self._at_work = record.run_id or self._at_work
                self.entries.append(InputEntry(sequence, record, self._at_work))
            case RunStarted():
                self._start(record)
            case ModelResponded():
                self._at_work = record.run_id
                turn = TurnEntry(sequence, record)
                self.entries.append(turn)
                for call in record.tool_calls:
                    self._open[call.id] = turn
            case ToolCallSettled():
                turn = self._open.pop(record.call_id, None)
                if turn is not None:
                    turn.results[record.call_id] = record
                    turn.unknown.pop(record.call_id, None)
            case ToolCallUnknown():
                if record.call_id in self._open:
                    self._open[record.call_id].unknown[record.call_id] = record
            case ToolCallPrepared():
                if record.call_id in self._open:
                    self._open[record.call_id].unknown.pop(record.call_id, None)
            case RunCompleted() | SubmissionSettled():
                self._end(record.run_id)
            case _:
                pass

    @property
    def responses(self) -> int:
        """Complete responses of the conversation so far, the covered ones included."""
        turns = [entry for entry in self.uncovered() if isinstance(entry, TurnEntry)]
        return self.covered_responses + len([turn for turn in turns if turn.complete])

    def uncovered(self) -> list[Entry]:
        """The entries that no artifact stands for."""
        covered = self.covered
        return [entry for entry in self.entries if entry.sequence > covered]

    def messages(self, run_id: str) -> list[dict[str, Any]]:
        """The prompt for the next model call of a run, in OpenAI's chat format; valid for a provider.

        The artifact comes first, and what belongs to this run stands last: parked work that goes on after later
        submissions answers its own request. What is unknown of other parked work is told (DUR-009).
        """
        others: list[dict[str, Any]] = []
        own: list[dict[str, Any]] = []
        for entry in self.uncovered():
            mine = entry.run_id == run_id
            if entry.complete or (not mine and isinstance(entry, TurnEntry) and entry.parked):
                (own if mine else others).extend(entry.messages())
        return [*self.artifact, *others, *own]

    def _cover(self, record: CompactionCreated) -> None:
        self.covered = record.covers_sequence
        self.covered_responses = record.covers_responses
        self.artifact = artifact_messages(record.artifact)
        if not self.whole:
            self.entries = self.uncovered()
            self._open = {call_id: turn for call_id, turn in self._open.items() if turn.sequence > self.covered}
            self.tail = max(self.tail, self.covered)

    def _start(self, record: RunStarted) -> None:
        self._at_work = record.run_id
        for entry in reversed(self.entries):
            if isinstance(entry, InputEntry) and entry.record.submission_id == record.submission_id:
                entry.run_id, entry.begins = record.run_id, True
                return

    def _end(self, run_id: str | None) -> None:
        orphans = {id(turn) for turn in self._open.values() if turn.run_id == run_id}
        if not orphans:
            return
        for turn in self._open.values():
            turn.ended = turn.ended or id(turn) in orphans
        self._open = {call_id: turn for call_id, turn in self._open.items() if not turn.ended}
        if not self.whole:
            self.entries = [entry for entry in self.entries if id(entry) not in orphans]


def artifact_messages(artifact: Any) -> list[dict[str, Any]]:
    """A compaction's artifact as chat messages: a list of them, or what stands there as a user's words."""
    if isinstance(artifact, list):
        return artifact
    return [{"role": "user", "content": artifact if isinstance(artifact, str) else encode(artifact).decode()}]


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


def turn_messages(turn: TurnEntry) -> Iterator[dict[str, Any]]:
    """A turn in OpenAI's chat format: the response, then its results in declaration order.

    It must be complete or parked.
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
    for call in response.tool_calls:
        settled = turn.results.get(call.id)
        keys = settled.message_keys if settled is not None else None
        yield {
            "role": "tool",
            "tool_call_id": call.provider_id,
            **({"name": call.name} if keys is None else keys),
            "content": unknown_content(turn.unknown[call.id]) if settled is None else tool_content(settled),
        }


def messages_of(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Entries in OpenAI's chat format.

    A turn whose batch of calls is not complete is left out with its partial results; what users said stays
    (Specification 10).
    """
    return [message for entry in entries if entry.complete for message in entry.messages()]
