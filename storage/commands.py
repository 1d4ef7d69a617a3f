"""What a writer may ask of the store: units of commands, the fence that protects them, and their results."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .errors import ERRORS, LanewayError
from .ledger import Abort, Receipt, Row, State
from .records import Outcome, Resolution


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="do"):
    """One request; `submission_id` names the obligation that it is about."""

    submission_id: str


class Admit(Command, tag="admit"):
    """Find or insert the row for (principal, conversation, idempotency key). Result: Receipt.

    `steering` addresses the input to the run that is active now, and takes that run's agent; `agent` is empty then.
    """

    receipt_id: str
    principal: str
    idempotency_key: str
    agent: str
    input: str
    input_digest: str
    steering: bool = False


class Materialize(Command, tag="materialize"):
    """Make the conversation's identity durable."""


class MarkReady(Command, tag="mark_ready"):
    """The conversation is materialized: the submission may be claimed."""


class Claim(Command, tag="claim"):
    """Take the lane's head. `replaces` names an attempt of the same owner that is known to have ended."""

    owner_id: str
    attempt_id: str
    token: str
    replaces: str | None = None


class Release(Command, tag="release"):
    """Give the lane back at a safe boundary; claimable again from `not_before_ms`."""

    not_before_ms: int = 0


class Abandon(Command, tag="abandon"):
    """The attempt ends with the work open and nothing decided: the next claim recovers it, and finds no owner.

    `planned` says that its process is stopped as planned: whoever recovers the work learns that nothing was lost.
    """

    planned: bool = False


class MakeDue(Command, tag="make_due"):
    """Ready work that waits for a time is claimable at once: an administrator says so, not the owner."""


class Resume(Command, tag="resume"):
    """A recovering attempt has decided that the work goes on."""


class Append(Command, tag="append"):
    """A canonical batch: `body` is the JSON array of its records. Result: Appended."""

    batch_id: str
    producer_id: str
    body: str


class MarkInputApplied(Command, tag="mark_input_applied"):
    """The input stands in the log; `run_id` is the run that consumes it."""

    run_id: str | None = None


class ClaimJoining(Command, tag="claim_joining"):
    """The host (`submission_id`) takes the steering addressed to it, and up to `limit` rows of the contiguous ready
    prefix behind it, as far as their inputs fill about one record. Result: Joining."""

    limit: int = 64


class MarkJoined(Command, tag="mark_joined"):
    """The joining input stands in the log."""


class RevertJoining(Command, tag="revert_joining"):
    """The joining input never reached the log: the row is ready again."""


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    approval_id: str
    call_id: str
    input_digest: str
    expires_at_ms: int = 0


class Suspend(Command, tag="suspend"):
    """Wait for decisions without holding the lane's permit; resumes at once when all are there already."""

    approvals: tuple[ApprovalRequest, ...]


class DecideApproval(Command, tag="decide_approval"):
    """One decision; the first wins, and past its expiry a request is denied whatever is asked. Result: Decided."""

    approval_id: str
    decision: Literal["approved", "denied"]
    author: str
    reason: str = ""
    call_id: str = ""
    input_digest: str | None = None


class MarkUnknown(Command, tag="mark_unknown"):
    """Nobody can prove what became of these calls: {call id: reason}. `park` lets later work pass."""

    calls: dict[str, str]
    park: bool = False


class ResolveUnknown(Command, tag="resolve_unknown"):
    """An authorised person or reconciler says what became of one call."""

    call_id: str
    resolution: Resolution
    author: str
    reason: str
    result: Any = None


class ReserveSettlement(Command, tag="reserve_settlement"):
    """Fix the one settlement: `body` is its record exactly as it will be appended."""

    settlement_id: str
    outcome: Outcome
    body: str


class Finalize(Command, tag="finalize"):
    """Close the row from the settlement that stands in the log."""


class RequestAbort(Command, tag="request_abort"):
    """A durable abort intent; the first wins. Result: AbortAnswer."""

    abort_id: str
    author: str
    reason: str


class SaveCheckpoint(Command, tag="save_checkpoint"):
    """A disposable projection bound to the tail that it was made at."""

    tail_sequence: int
    tail_digest: str
    body: str


AnyCommand = (
    Admit
    | Materialize
    | MarkReady
    | Claim
    | Release
    | Abandon
    | MakeDue
    | Resume
    | Append
    | MarkInputApplied
    | ClaimJoining
    | MarkJoined
    | RevertJoining
    | Suspend
    | DecideApproval
    | MarkUnknown
    | ResolveUnknown
    | ReserveSettlement
    | Finalize
    | RequestAbort
    | SaveCheckpoint
)


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt proves with each write (DUR-006).

    `epoch` is None only where the claim that assigns it travels in the same unit; `expected_tail` is the last sequence
    that the writer knows of, None where nothing is appended.
    """

    token: str
    epoch: int | None = None
    expected_tail: int | None = None


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """Commands of one conversation that succeed or fail together."""

    conversation_id: str
    commands: tuple[AnyCommand, ...]
    fence: Fence | None = None


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """The highest queue sequences admitted so far: of any input, and of one that steers. What is higher than anything
    that an owner has looked at may wait for it."""

    queued: int = 0
    steering: int = 0


class Grant(msgspec.Struct, frozen=True, kw_only=True, tag="grant"):
    """A claim that was granted. `recovering` says that an earlier owner left the work open, `planned` that it did so at
    a planned stop.

    `joining` holds the rows that an earlier attempt claimed for this run and did not mark as joined.
    """

    row: Row
    attempt_id: str
    token: str
    epoch: int
    tail_sequence: int
    tail_digest: str
    recovering: bool
    settlement_sequence: int | None = None
    """Where the settlement stands in the log, of work whose row was not closed behind it."""
    joining: tuple[Row, ...] = ()
    arrived: Arrived = Arrived()
    planned: bool = False
    replaces: str = ""
    """The attempt that had the work before. Like `planned`, a claim that is repeated is not told it again."""


class NotClaimed(msgspec.Struct, frozen=True, kw_only=True, tag="not_claimed"):
    """Nothing was claimed, and why; an expected answer. `submission_id` is the lane's head where there is one."""

    reason: str
    submission_id: str | None = None


class Appended(msgspec.Struct, frozen=True, kw_only=True, tag="appended"):
    """Where the batch stands. `replayed` says that it stood there before.

    `abort` is the intent that stands in the ledger, and `arrived` what was admitted: an owner learns here what was
    asked of another process.
    """

    first_sequence: int
    last_sequence: int
    digest: str
    replayed: bool = False
    abort: Abort | None = None
    arrived: Arrived = Arrived()


class Moved(msgspec.Struct, frozen=True, kw_only=True, tag="moved"):
    """The state after a command. `replayed` says that the command had been carried out before."""

    submission_id: str
    state: State
    replayed: bool = False


class Admitted(msgspec.Struct, frozen=True, kw_only=True, tag="admitted"):
    receipt: Receipt
    state: State


class Joining(msgspec.Struct, frozen=True, kw_only=True, tag="joining"):
    """The rows that this host has claimed and whose input is not in the log yet, in queue order.

    `more` says that others may be claimed later: a limit was reached, or a row was not ready yet. `abort` is the
    host's own: an aborted run takes nothing in.
    """

    rows: tuple[Row, ...]
    more: bool = False
    abort: Abort | None = None
    arrived: Arrived = Arrived()


class Decided(msgspec.Struct, frozen=True, kw_only=True, tag="decided"):
    """The decision that counts: the first one."""

    decision: str
    author: str
    state: State
    replayed: bool = False


class AbortAnswer(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """The abort intent that counts: the first one."""

    abort: Abort
    state: State
    replayed: bool = False


Result = Admitted | Grant | NotClaimed | Appended | Moved | Joining | Decided | AbortAnswer


class Accepted(msgspec.Struct, frozen=True, kw_only=True, tag="accepted"):
    """The unit is committed; one result a command."""

    results: tuple[Result, ...]


class Rejected(msgspec.Struct, frozen=True, kw_only=True, tag="rejected"):
    """The unit changed nothing. The fields are those of the error that `raise_for` raises."""

    kind: str
    code: str
    message: str
    retryable: bool
    details: dict[str, Any]

    @classmethod
    def from_error(cls, error: LanewayError) -> Rejected:
        return cls(
            kind=type(error).default_code,
            code=error.code,
            message=error.message,
            retryable=error.retryable,
            details=error.details,
        )

    def error(self) -> LanewayError:
        """The same error as an exception."""
        return ERRORS[self.kind](self.message, code=self.code, retryable=self.retryable, **self.details)


Answer = Accepted | Rejected

_unit_encoder = msgspec.msgpack.Encoder()
_unit_decoder = msgspec.msgpack.Decoder(list[Unit])
_answer_decoder = msgspec.msgpack.Decoder(list[Answer])


def encode_units(units: list[Unit]) -> bytes:
    """Units as they cross a process boundary: one bytes value, whatever their number."""
    return _unit_encoder.encode(units)


def decode_units(data: bytes) -> list[Unit]:
    return _unit_decoder.decode(data)


def encode_answers(answers: list[Answer]) -> bytes:
    return _unit_encoder.encode(answers)


def decode_answers(data: bytes) -> list[Answer]:
    return _answer_decoder.decode(data)
