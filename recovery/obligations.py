"""Open work as an operator reads it: since when, why, and whom it waits for. Pure over what a scan and a look give."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from ..storage.contract import ControlRow, Quarantine
from ..storage.ledger import CLAIMABLE, Row, State

EXHAUSTION_CODES = (
    "recoveries_exhausted",
    "run_timeout",
    "turn_limit",
    "model_failed",
    "model_timeout",
    "model_unavailable",
    "model_stream_cut",
    "model_response_invalid",
)
"""Codes of failures that a bound brought about, or that may pass: what an administrator may want to try again."""


class Obligation(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted submission without an outcome.

    `age_s` counts from its admission, `unchanged_s` from the last change of its row. `waits_for` is one of "owner" (a
    live process works on it), "supervisor" (the next sweep), "queue" (the submission in `behind`), "host" (the run that
    it joined), "time", "agent", "approver", "operator". `agent` is None where the row was not looked at.
    """

    submission_id: str
    conversation_id: str
    queue_sequence: int
    state: State
    age_s: float
    unchanged_s: float
    why: str
    waits_for: str
    behind: str | None = None
    owner_id: str | None = None
    attempts: int = 0
    agent: str | None = None
    quarantined: bool = False


def wants_look(row: ControlRow, now_ms: int) -> bool:
    """Whether the control fields alone do not tell why the work is open: one look at its row does."""
    waits = row.state is State.READY and row.not_before_ms > now_ms
    return waits or row.state in (State.UNKNOWN, State.SUSPENDED, State.JOINING, State.JOINED)


def obligations(
    rows: Iterable[ControlRow],
    looks: Mapping[str, Row | None],
    quarantined: Mapping[str, Quarantine],
    agents: Container[str] | None,
    now_ms: int,
) -> list[Obligation]:
    """`rows` as the scan orders them; `looks` holds the rows that `wants_look` named, None for one that is damaged.

    `agents` are those that the runtime knows, None where nobody can tell. Specification 16, DUR-014, DUR-017.
    """
    found: list[Obligation] = []
    heads: dict[str, str] = {}
    for row in rows:
        parked = row.state is State.UNKNOWN and row.parked
        head = heads.get(row.conversation_id)
        if head is None and not parked:
            heads[row.conversation_id] = row.submission_id
        look = looks.get(row.submission_id)
        held = quarantined.get(row.conversation_id)
        damaged = row.submission_id in looks and look is None
        why, waits_for = (
            (f"Its conversation is quarantined by {held.author}: {held.reason}", "operator")
            if held is not None
            else ("Its row in the ledger cannot be read.", "operator")
            if damaged
            else _why(row, look, head, agents, now_ms)
        )
        found.append(
            Obligation(
                submission_id=row.submission_id,
                conversation_id=row.conversation_id,
                queue_sequence=row.queue_sequence,
                state=row.state,
                age_s=max(0, now_ms - row.admitted_at_ms) / 1000,
                unchanged_s=max(0, now_ms - row.updated_at_ms) / 1000,
                why=why,
                waits_for=waits_for,
                behind=head if waits_for == "queue" else None,
                owner_id=row.owner_id,
                attempts=row.attempts,
                agent=look.agent if look is not None else None,
                quarantined=held is not None,
            )
        )
    return found


def _why(
    row: ControlRow, look: Row | None, head: str | None, agents: Container[str] | None, now_ms: int
) -> tuple[str, str]:
    if row.abort_requested and not row.owner_live:
        return "Its abort was asked for, and is settled by the next sweep.", "supervisor"
    match row.state:
        case State.UNKNOWN:
            return f"The outcome is unknown of {_unknown(look)}; somebody has to resolve it.", "operator"
        case State.SUSPENDED:
            return f"A person has to decide on {_asked(look)}.", "approver"
        case State.JOINING | State.JOINED:
            return f"It settles with the run that it joined, {look.host_id if look else 'its host'}.", "host"
        case _:
            pass
    if row.owner_live:
        return "A live process works on it.", "owner"
    if head is not None:
        return f"It waits in its queue behind {head}.", "queue"
    if row.state is State.READY and row.not_before_ms > now_ms:
        wait_s = (row.not_before_ms - now_ms) / 1000
        if look is not None and agents is not None and look.agent not in agents:
            return f"No agent is named {look.agent!r} in this runtime; it is offered again in {wait_s:,.0f} s.", "agent"
        return f"It was given back and may be claimed in {wait_s:,.0f} s.", "time"
    if row.state is State.ADMITTED:
        return "It was admitted and not made ready; the next sweep completes that.", "supervisor"
    if row.state is State.TERMINALIZING:
        return "Its outcome is reserved and not recorded yet; the next sweep finishes that.", "supervisor"
    if row.state in CLAIMABLE and row.attempts:
        return "The process that worked on it is lost or has let go of it; the next sweep claims it.", "supervisor"
    return "Nobody has claimed it yet; the next sweep does.", "supervisor"


def _unknown(look: Row | None) -> str:
    calls = [call_id for call_id, known in look.unknown_calls.items() if known.resolution is None] if look else []
    return ", ".join(calls) or "a call"


def _asked(look: Row | None) -> str:
    names: Sequence[str] = ()
    if look is not None:
        names = [name for name, known in look.approvals.items() if known.requested and known.decision is None]
    return ", ".join(names) or "a call"
