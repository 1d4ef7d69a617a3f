"""Open work as an operator reads it: since when, why, and whom it waits for. Pure over what a scan and a look give."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import msgspec

from ..storage.contract import ControlRow, Quarantine
from ..storage.ledger import Row, State
from .standing import Known, is_parked, standing

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

    `age_s` counts from its admission, `unchanged_s` from the last change of its row. `waits_for` is what
    `standing.Standing` says; behind the queue's head, `behind` names that. `agent` is None where the row was not looked
    at.
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
        head = heads.get(row.conversation_id)
        if head is None and not is_parked(row):
            heads[row.conversation_id] = row.submission_id
        look = looks.get(row.submission_id)
        held = quarantined.get(row.conversation_id)
        damaged = row.submission_id in looks and look is None
        known = Known(look=look, damaged=damaged, head=head, quarantine=held, agents=agents)
        stands = standing(row, known, now_ms)
        found.append(
            Obligation(
                submission_id=row.submission_id,
                conversation_id=row.conversation_id,
                queue_sequence=row.queue_sequence,
                state=row.state,
                age_s=max(0, now_ms - row.admitted_at_ms) / 1000,
                unchanged_s=max(0, now_ms - row.updated_at_ms) / 1000,
                why=stands.why,
                waits_for=stands.waits_for,
                behind=head if stands.waits_for == "queue" else None,
                owner_id=row.owner_id,
                attempts=row.attempts,
                agent=look.agent if look is not None else None,
                quarantined=held is not None,
            )
        )
    return found
