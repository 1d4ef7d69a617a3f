"""The Submission Ledger: its states, its table of legal moves, and its row (Specification 3)."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from .errors import IllegalTransition
from .records import Outcome


class State(enum.StrEnum):
    """Where a submission stands. `suspended` is ledger state alone: its canonical footprint is the approval request."""

    PROPOSED = "proposed"
    ADMITTED = "admitted"
    READY = "ready"
    RUNNING = "running"
    JOINING = "joining"
    JOINED = "joined"
    SUSPENDED = "suspended"
    RECOVERY = "recovery"
    UNKNOWN = "unknown"
    TERMINALIZING = "terminalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"


class Event(enum.StrEnum):
    """What moves a submission."""

    ADMIT = "admit"
    MATERIALIZE = "materialize"
    CLAIM = "claim"
    CLAIM_JOINING = "claim_joining"
    APPLY_JOINED = "apply_joined"
    REVERT_JOINING = "revert_joining"
    RELEASE = "release"
    LOSE_OWNER = "lose_owner"
    RESUME = "resume"
    SUSPEND = "suspend"
    DECIDE = "decide"
    MARK_UNKNOWN = "mark_unknown"
    RESOLVE = "resolve"
    RESERVE = "reserve"
    SETTLE_COMPLETED = "settle_completed"
    SETTLE_FAILED = "settle_failed"
    SETTLE_ABORTED = "settle_aborted"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.PROPOSED, Event.ADMIT): State.ADMITTED,
    (State.ADMITTED, Event.MATERIALIZE): State.READY,
    (State.READY, Event.CLAIM): State.RUNNING,
    (State.READY, Event.CLAIM_JOINING): State.JOINING,
    (State.JOINING, Event.APPLY_JOINED): State.JOINED,
    (State.JOINING, Event.REVERT_JOINING): State.READY,
    (State.RUNNING, Event.RELEASE): State.READY,
    (State.RUNNING, Event.LOSE_OWNER): State.RECOVERY,
    (State.RUNNING, Event.SUSPEND): State.SUSPENDED,
    (State.RUNNING, Event.MARK_UNKNOWN): State.UNKNOWN,
    (State.RECOVERY, Event.RESUME): State.READY,
    (State.RECOVERY, Event.MARK_UNKNOWN): State.UNKNOWN,
    (State.SUSPENDED, Event.DECIDE): State.READY,
    (State.UNKNOWN, Event.MARK_UNKNOWN): State.UNKNOWN,
    (State.UNKNOWN, Event.RESOLVE): State.READY,
    # A reservation closes the way back. Work that never ran, or waits for a person, is reserved by its abort alone.
    (State.RUNNING, Event.RESERVE): State.TERMINALIZING,
    (State.RECOVERY, Event.RESERVE): State.TERMINALIZING,
    (State.ADMITTED, Event.RESERVE): State.TERMINALIZING,
    (State.READY, Event.RESERVE): State.TERMINALIZING,
    (State.JOINING, Event.RESERVE): State.TERMINALIZING,
    (State.SUSPENDED, Event.RESERVE): State.TERMINALIZING,
    (State.UNKNOWN, Event.RESERVE): State.TERMINALIZING,
    (State.TERMINALIZING, Event.SETTLE_COMPLETED): State.COMPLETED,
    (State.TERMINALIZING, Event.SETTLE_FAILED): State.FAILED,
    (State.TERMINALIZING, Event.SETTLE_ABORTED): State.ABORTED,
    # Joined work is never in terminalizing: its settlement is reserved and appended with its host's.
    (State.JOINED, Event.SETTLE_COMPLETED): State.COMPLETED,
    (State.JOINED, Event.SETTLE_FAILED): State.FAILED,
    (State.JOINED, Event.SETTLE_ABORTED): State.ABORTED,
}
"""Every legal move; a missing key is illegal."""

TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.ABORTED})
WITH_OWNER = frozenset({State.RUNNING, State.RECOVERY, State.TERMINALIZING})
"""States in which an attempt may hold the lane."""
MAY_HOLD = frozenset({*WITH_OWNER, State.JOINED})
"""States in which a row may be the owner of its lane: joined work is owned when its host settled without it."""
CLAIMABLE = frozenset({State.READY, *WITH_OWNER})
"""States in which the head of a lane can be claimed, once nobody live owns it."""
SETTLE_EVENTS: dict[Outcome, Event] = {
    "completed": Event.SETTLE_COMPLETED,
    "failed": Event.SETTLE_FAILED,
    "aborted": Event.SETTLE_ABORTED,
}


def transition(state: State, event: Event) -> State:
    """The state after `event`.

    Raises: IllegalTransition, with `state` and `event`, when the table has no such move.
    """
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise IllegalTransition(
            f"a submission that is {state} cannot {event.replace('_', ' ')}", state=str(state), event=str(event)
        )
    return after


EXPIRY = "expiry"
"""Who denies an approval that nobody decided in time."""


class Abort(msgspec.Struct, frozen=True, kw_only=True):
    """The first abort intent; later ones do not replace it (DUR-012)."""

    abort_id: str
    author: str
    reason: str
    at_ms: int


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """The one settlement that this submission may get: the exact record, as bytes, and its digest (DUR-011)."""

    settlement_id: str
    outcome: Outcome
    body: str
    digest: str


class UnknownCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call whose outcome nobody can prove, and its resolution once somebody gave one."""

    reason: str
    since_ms: int
    resolution: str | None = None
    author: str | None = None
    note: str | None = None
    result: Any = None


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A pending or decided approval; the decision binds the digest of the arguments."""

    call_id: str
    input_digest: str
    requested: bool = False
    expires_at_ms: int = 0
    decision: str | None = None
    author: str | None = None
    reason: str | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One submission's ledger row: its obligation, never its history.

    `input` is emptied once the input stands in the log, which is its authority from then on (DUR-015).
    """

    submission_id: str
    receipt_id: str
    conversation_id: str
    principal: str
    idempotency_key: str
    input_digest: str
    queue_sequence: int
    agent: str
    input: str
    state: State
    admitted_at_ms: int
    updated_at_ms: int
    attempts: int = 0
    attempt_id: str | None = None
    owner_id: str | None = None
    token: str | None = None
    epoch: int = 0
    parked: bool = False
    run_id: str | None = None
    host_id: str | None = None
    input_sequence: int | None = None
    abort: Abort | None = None
    reservation: Reservation | None = None
    settlement_sequence: int | None = None
    outcome: Outcome | None = None
    error_code: str | None = None
    """Of a failed settlement: what the list of dead letters is made of. The log has the error itself."""
    settled_at_ms: int | None = None
    unknown_calls: dict[str, UnknownCall] = {}
    approvals: dict[str, Approval] = {}
    not_before_ms: int = 0
    steers: str | None = None
    """The submission whose run this input is for; where that ends first, it runs by itself (Specification 5)."""
    handed_over: bool = False
    """Its last owner gave it up at a planned stop, and nobody has claimed it since."""

    @property
    def settled(self) -> bool:
        """Whether the obligation is closed."""
        return self.state in TERMINAL


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an admission. `replayed` says that this key was admitted before."""

    submission_id: str
    receipt_id: str
    conversation_id: str
    queue_sequence: int
    replayed: bool = False


def receipt_of(row: Row, *, replayed: bool) -> Receipt:
    """The receipt that belongs to `row`."""
    return Receipt(
        submission_id=row.submission_id,
        receipt_id=row.receipt_id,
        conversation_id=row.conversation_id,
        queue_sequence=row.queue_sequence,
        replayed=replayed,
    )
