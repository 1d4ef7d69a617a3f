"""Why open work is open, and whom it waits for: the one answer that explanations and obligations give. Pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from ..storage.contract import ControlRow, Quarantine
from ..storage.ledger import CLAIMABLE, Row, State
from .classify import unresolved


class Cause(StrEnum):
    """What keeps a submission open; each waits for one of those that `Standing.waits_for` names."""

    QUARANTINE = "quarantine"
    DAMAGE = "damage"
    UNKNOWN = "unknown"
    APPROVAL = "approval"
    HOST = "host"
    ABORT = "abort"
    OWNER = "owner"
    STEERING = "steering"
    QUEUE = "queue"
    AGENT = "agent"
    TIME = "time"
    ADMISSION = "admission"
    SETTLEMENT = "settlement"
    LOSS = "loss"
    CLAIM = "claim"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one open submission beside its control fields.

    `look` is its row, None where nobody looked; `damaged` says that the look failed. `head` is the first open
    submission before it that is not parked, `steered` says that the run which it steers is among those before it.
    `agents` are those that the runtime knows, None where nobody can tell.
    """

    look: Row | None = None
    damaged: bool = False
    head: str | None = None
    steered: bool = False
    quarantine: Quarantine | None = None
    agents: Container[str] | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """`why` is a sentence. `waits_for` is one of "owner" (a live process works on it), "supervisor" (the next sweep),
    "queue", "host" (the run that it joined, or is for), "time", "agent", "approver", "operator"."""

    cause: Cause
    why: str
    waits_for: str


def standing(row: ControlRow, known: Known, now_ms: int) -> Standing:
    """The first cause that applies. Source: Specification 16, DUR-014, DUR-017."""
    cause = _cause(row, known, now_ms)
    return Standing(cause, _why(cause, row, known, now_ms), _waits_for(cause))


def is_parked(row: ControlRow) -> bool:
    """Whether the queue goes on without it."""
    return row.state is State.UNKNOWN and row.parked


def undecided(row: Row) -> tuple[str, ...]:
    """The approvals that the ledger knows as asked for and that nobody has decided."""
    return tuple(name for name, known in row.approvals.items() if known.requested and known.decision is None)


def _cause(row: ControlRow, known: Known, now_ms: int) -> Cause:
    if known.quarantine is not None:
        return Cause.QUARANTINE
    if known.damaged:
        return Cause.DAMAGE
    if row.abort_requested and not row.owner_live and row.state is not State.TERMINALIZING:
        return Cause.ABORT
    match row.state:
        case State.UNKNOWN:
            return Cause.UNKNOWN
        case State.SUSPENDED:
            return Cause.APPROVAL
        case State.JOINING | State.JOINED:
            return Cause.HOST
        case _:
            pass
    if row.owner_live:
        return Cause.OWNER
    if known.steered and row.state in (State.ADMITTED, State.READY):
        return Cause.STEERING
    if known.head is not None:
        return Cause.QUEUE
    if row.state is State.READY and row.not_before_ms > now_ms:
        missing = known.look is not None and known.agents is not None and known.look.agent not in known.agents
        return Cause.AGENT if missing else Cause.TIME
    if row.state is State.ADMITTED:
        return Cause.ADMISSION
    if row.state is State.TERMINALIZING:
        return Cause.SETTLEMENT
    return Cause.LOSS if row.state in CLAIMABLE and row.attempts else Cause.CLAIM


def _why(cause: Cause, row: ControlRow, known: Known, now_ms: int) -> str:
    look, wait_s = known.look, max(0, row.not_before_ms - now_ms) / 1000
    match cause:
        case Cause.QUARANTINE:
            assert known.quarantine is not None
            return f"Its conversation is quarantined by {known.quarantine.author}: {known.quarantine.reason}"
        case Cause.DAMAGE:
            return "Its row in the ledger cannot be read."
        case Cause.ABORT:
            return "Its abort was asked for, and is settled by the next sweep."
        case Cause.UNKNOWN:
            return f"The outcome is unknown of {_named(unresolved(look) if look else ())}; somebody has to resolve it."
        case Cause.APPROVAL:
            return f"A person has to decide on {_named(undecided(look) if look else ())}."
        case Cause.HOST:
            return f"It settles with the run that it joined, {look.host_id if look else 'its host'}."
        case Cause.OWNER:
            return "A live process works on it."
        case Cause.STEERING:
            return f"It is for the run of {look.steers if look else 'another'}, which has come to no boundary since."
        case Cause.QUEUE:
            return f"It waits in its queue behind {known.head}."
        case Cause.AGENT:
            name = look.agent if look else ""
            return f"No agent is named {name!r} in this runtime; it is offered again in {wait_s:,.0f} s."
        case Cause.TIME:
            return f"It was given back and may be claimed again in {wait_s:,.0f} s."
        case Cause.ADMISSION:
            return "It was admitted and not made ready; the next sweep completes that."
        case Cause.SETTLEMENT:
            return "Its outcome is reserved and not recorded yet; the next sweep finishes that."
        case Cause.LOSS:
            return "The process that worked on it is lost or has let go of it; the next sweep claims it."
        case Cause.CLAIM:
            return "Nobody has claimed it yet; the next sweep does."
        case _:
            assert_never(cause)


def _waits_for(cause: Cause) -> str:
    match cause:
        case Cause.QUARANTINE | Cause.DAMAGE | Cause.UNKNOWN:
            return "operator"
        case Cause.APPROVAL:
            return "approver"
        case Cause.HOST | Cause.STEERING:
            return "host"
        case Cause.OWNER | Cause.QUEUE | Cause.AGENT | Cause.TIME:
            return cause.value
        case Cause.ABORT | Cause.ADMISSION | Cause.SETTLEMENT | Cause.LOSS | Cause.CLAIM:
            return "supervisor"
        case _:
            assert_never(cause)


def _named(ids: tuple[str, ...]) -> str:
    return ", ".join(ids) or "a call"
