"""Canonical records: one fact each, past tense, frozen. Tags and field names are stored data; golden files pin them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .errors import StoreCorrupt
from .ids import derive_id
from .values import digest_of

SCHEMA_VERSION = 1

Outcome = Literal["completed", "failed", "aborted"]
InputKind = Literal["user", "steering", "follow_up"]
Resolution = Literal["completed_with_result", "never_started", "safe_to_retry", "abort"]


class Record(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"
):
    """A fact of one submission. `id` is derived, so that whoever recovers computes the same one."""

    id: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A complete call that a model response declared.

    `id` is Laneway's own, unique in the deployment; `provider_id` goes back to the provider and may repeat.
    `arguments` is the provider's text, untouched.
    """

    id: str
    provider_id: str
    name: str
    arguments: str
    extra: dict[str, Any] = {}


class ErrorFact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A bounded error as it is recorded."""

    code: str
    message: str
    details: dict[str, Any] = {}


class RetryOf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a submission comes from that nobody sent: the `number`-th retry, and who wanted it why."""

    submission_id: str
    number: int
    author: str
    reason: str = ""


class ConversationCreated(Record, tag="conversation_created"):
    conversation_id: str
    agent: str


class InputRecorded(Record, tag="input_recorded"):
    submission_id: str
    queue_sequence: int
    content: Any
    kind: InputKind = "user"
    principal: str = ""
    extra: dict[str, Any] = {}
    run_id: str | None = None
    """The run that this input entered while it was under way; None where the submission has a run of its own."""
    steers: str | None = None
    """The submission that this input was to steer, where that ended first: it has a run of its own then."""
    retry_of: RetryOf | None = None
    """The failed submission that an administrator tries again with this one."""


class RunStarted(Record, tag="run_started"):
    run_id: str
    submission_id: str
    agent: str
    agent_digest: str
    started_at_ms: int


class ModelDeltaRecorded(Record, tag="model_delta_recorded"):
    run_id: str
    turn: int
    kind: Literal["text", "reasoning"]
    text: str


class ModelResponded(Record, tag="model_responded"):
    run_id: str
    turn: int
    content: Any = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    model: str | None = None
    reasoning: str | None = None
    usage: dict[str, Any] = {}
    extra: dict[str, Any] = {}


class ModelInterrupted(Record, tag="model_interrupted"):
    run_id: str
    turn: int
    attempt_id: str
    """The attempt whose call was lost; empty where the one that recovers it could not learn its name."""
    reason: str


class ToolCallPrepared(Record, tag="tool_call_prepared"):
    run_id: str
    call_id: str
    tool: str
    tool_digest: str
    input_digest: str
    effect: Literal["readonly", "idempotent", "uncertain"]
    idempotency_key: str


class ToolCallSettled(Record, tag="tool_call_settled"):
    run_id: str
    call_id: str
    outcome: Literal["succeeded", "failed"]
    result: Any = None
    error: ErrorFact | None = None
    author: str = "tool"
    message_keys: dict[str, Any] | None = None
    """Other keys of the tool message, kept for exact export; None means its usual `name`."""


class ToolCallUnknown(Record, tag="tool_call_unknown"):
    run_id: str
    call_id: str
    reason: str


class ToolCallResolved(Record, tag="tool_call_resolved"):
    run_id: str
    call_id: str
    resolution: Resolution
    author: str
    reason: str
    result: Any = None
    waited_ms: int = 0
    """How long the run waited with this answer; the run's deadline does not count it (Specification 16)."""


class StepSettled(Record, tag="step_settled"):
    run_id: str
    call_id: str
    step_id: str
    name: str
    version: int
    result: Any = None


class ApprovalRequested(Record, tag="approval_requested"):
    run_id: str
    approval_id: str
    call_id: str
    tool: str
    input_digest: str
    tool_digest: str = ""
    requested_at_ms: int = 0
    expires_at_ms: int = 0
    """When nobody's decision counts as a denial; 0 for never."""


class ApprovalDecided(Record, tag="approval_decided"):
    run_id: str
    approval_id: str
    decision: Literal["approved", "denied", "closed"]
    author: str
    reason: str = ""
    waited_ms: int = 0
    """How long the run waited with this decision; the run's deadline does not count it."""


class CompactionCreated(Record, tag="compaction_created"):
    run_id: str
    covers_sequence: int
    artifact: Any
    covers_responses: int = 0
    """How many complete responses the artifact stands for: the place in the conversation survives it."""


class AbortRequested(Record, tag="abort_requested"):
    submission_id: str
    abort_id: str
    author: str
    reason: str


class RecoveryDecided(Record, tag="recovery_decided"):
    submission_id: str
    attempt_id: str
    epoch: int
    decision: str
    evidence: str
    planned: bool = False
    """The earlier owner was stopped as planned: nothing was lost, and it uses no budget."""


class RunCompleted(Record, tag="run_completed"):
    run_id: str
    outcome: Outcome
    output: Any = None
    error: ErrorFact | None = None


class SubmissionSettled(Record, tag="submission_settled"):
    settlement_id: str
    submission_id: str
    outcome: Outcome
    run_id: str | None = None
    output: Any = None
    error: ErrorFact | None = None


class RepairAnnotated(Record, tag="repair_annotated"):
    subject: str
    note: str


AnyRecord = (
    ConversationCreated
    | InputRecorded
    | RunStarted
    | ModelDeltaRecorded
    | ModelResponded
    | ModelInterrupted
    | ToolCallPrepared
    | ToolCallSettled
    | ToolCallUnknown
    | ToolCallResolved
    | StepSettled
    | ApprovalRequested
    | ApprovalDecided
    | CompactionCreated
    | AbortRequested
    | RecoveryDecided
    | RunCompleted
    | SubmissionSettled
    | RepairAnnotated
)

_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(tuple[AnyRecord, ...])


def encode_records(records: tuple[AnyRecord, ...]) -> bytes:
    """The stored body of a batch: a JSON array with sorted keys, encoded once; digests cover these bytes."""
    return _encoder.encode(records)


def decode_records(body: bytes | str, *, where: str = "a batch") -> tuple[AnyRecord, ...]:
    """The one place where a stored body becomes records.

    Raises: StoreCorrupt, naming `where`, when the body is no array of known records.
    """
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"{where} does not decode: {error}", where=where) from error


def content_digest(records: tuple[AnyRecord, ...]) -> str:
    """What two batches of equal content share, whatever the order of keys in the bytes that were handed over."""
    return digest_of(encode_records(records))


def chained_digest(previous_digest: str, body: str) -> str:
    """The digest of a batch: SHA-256 over the previous digest and the stored bytes (Specification 7)."""
    return digest_of(previous_digest.encode() + body.encode())


def record_id(kind: str, *parts: str | int) -> str:
    """The id of the record of `kind` that belongs to `parts` (a submission, a run and its turn, a call)."""
    return derive_id("rec", kind, *parts)


def input_record_id(submission_id: str) -> str:
    """The id of the one record that applies this submission's input."""
    return record_id("input", submission_id)


def settlement_record_id(submission_id: str) -> str:
    """The id of the one record that settles this submission."""
    return record_id("settlement", submission_id)


def tag_of(record: AnyRecord) -> str:
    """The stored name of the record's type."""
    return str(type(record).__struct_config__.tag)
