"""Which open work an operator has to hear of, and when again: pure over control rows (Specification 16, DUR-017)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..storage.contract import ControlRow
from ..storage.ledger import State
from .attention import owes_abort


class AlertSettings(msgspec.Struct, frozen=True, kw_only=True):
    """After how many seconds an obligation is overdue, and how often it is told again."""

    unknown_s: float = 60.0
    approval_s: float = 3600.0
    settlement_s: float = 60.0
    interval_s: float = 300.0
    work_s: float = 300.0


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One overdue obligation. `kind` is stable; `age_s` counts from the last change of its row.

    That of "work_overdue" counts from when the work was first seen without an owner: what waits for its agent is
    offered again and again, and its row changes each time.
    """

    kind: str
    submission_id: str
    conversation_id: str
    queue_sequence: int
    state: State
    age_s: float
    limit_s: float


class Alerts:
    """Remembers what was told; all of it may be lost, and is then told once more."""

    def __init__(self, settings: AlertSettings) -> None:
        self._limits: dict[State, tuple[str, float]] = {
            State.UNKNOWN: ("unknown_overdue", settings.unknown_s),
            State.SUSPENDED: ("approval_overdue", settings.approval_s),
            State.TERMINALIZING: ("settlement_overdue", settings.settlement_s),
        }
        self._work_s = settings.work_s
        self._idle: dict[str, int] = {}
        self._idle_now: dict[str, int] = {}
        self._interval_ms = settings.interval_s * 1000
        self._told: dict[tuple[str, str], int] = {}
        self._seen: dict[tuple[str, str], None] = {}

    def due(self, rows: Iterable[ControlRow], now_ms: int, decided: str | None = None) -> list[Alert]:
        """What is overdue among `rows` and was not told within the interval; a quarantined conversation is, at once.

        `decided` is the conversation whose head stood in an earlier page of the pass (`attention.attention`).
        """
        found: list[Alert] = []
        for row in rows:
            kind, limit_s = self._limits.get(row.state, ("", 0.0))
            head = row.conversation_id != decided and not (row.state is State.UNKNOWN and row.parked)
            if head:
                decided = row.conversation_id
            since_ms = row.updated_at_ms
            if not kind and not row.owner_live and (head or owes_abort(row)):
                kind, limit_s = "work_overdue", self._work_s
                since_ms = self._idle_now[row.submission_id] = self._idle.get(row.submission_id, now_ms)
            key = row.submission_id, kind
            if row.quarantined:
                kind, limit_s, key = "quarantined", 0.0, (row.conversation_id, "quarantined")
                since_ms = row.updated_at_ms
            age_ms = now_ms - since_ms
            if not kind or key in self._seen or age_ms < limit_s * 1000:
                continue
            self._seen[key] = None
            if key in self._told and now_ms - self._told[key] < self._interval_ms:
                continue
            self._told[key] = now_ms
            found.append(
                Alert(
                    kind=kind,
                    submission_id=row.submission_id,
                    conversation_id=row.conversation_id,
                    queue_sequence=row.queue_sequence,
                    state=row.state,
                    age_s=round(age_ms / 1000, 3),
                    limit_s=limit_s,
                )
            )
        return found

    def pass_over(self) -> int:
        """All open rows were looked at: how many are overdue. What was settled meanwhile is forgotten."""
        overdue = len(self._seen)
        self._told = {key: told for key, told in self._told.items() if key in self._seen}
        self._seen = {}
        self._idle, self._idle_now = self._idle_now, {}
        return overdue
