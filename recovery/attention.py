"""Which open work somebody has to look at: pure over control rows, for the supervisor's sweep."""

from __future__ import annotations

from collections.abc import Iterable

from ..storage.contract import ControlRow
from ..storage.ledger import CLAIMABLE, State

NOBODY_RUNS = frozenset({State.ADMITTED, State.READY, State.JOINING, State.SUSPENDED, State.UNKNOWN})
"""States in which an abort settles the work at once, wherever it stands in its lane (Specification 13)."""


def attention(rows: Iterable[ControlRow], now_ms: int, decided: str | None = None) -> tuple[list[str], str | None]:
    """Conversations whose head can be claimed and has no live owner, was never made ready, or that owe an abort.

    An abort of running work is told to its owner, who may not know yet. A head that waits for a person, or for its
    backoff, needs nobody, and nobody may look after a quarantined conversation.

    `rows` come ordered by (conversation, queue sequence), as the scan gives them, page by page; so does the answer.
    `decided` is the conversation whose head stood in an earlier page, and the second value what to hand over with the
    next one.
    """
    needed: dict[str, None] = {}
    at_work: str | None = None  # the conversation whose head has a live owner
    for row in rows:
        if row.quarantined:
            continue
        if owes_abort(row) or _hides_abort(row):
            needed[row.conversation_id] = None
        if row.conversation_id == decided and row.state is State.JOINED and row.conversation_id != at_work:
            needed[row.conversation_id] = None  # its host may have ended: it is closed before the head has its turn
        if row.conversation_id == decided or (row.state is State.UNKNOWN and row.parked):
            continue
        decided = row.conversation_id
        at_work = decided if row.owner_live else at_work
        claimable = row.state in CLAIMABLE or row.state in (State.ADMITTED, State.JOINING, State.JOINED)
        if row.state is State.SUSPENDED:
            claimable = row.not_before_ms > 0  # an approval that nobody decided in time
        if claimable and not row.owner_live and row.not_before_ms <= now_ms:
            needed[row.conversation_id] = None
    return list(needed), decided


def owes_abort(row: ControlRow) -> bool:
    """Whether an abort was accepted and its process ended before it settled the work."""
    return row.abort_requested and row.state in NOBODY_RUNS


def _hides_abort(row: ControlRow) -> bool:
    """Whether the owner of running work may not know of its abort: another process asked for it."""
    return row.abort_requested and row.owner_live and row.state is State.RUNNING
