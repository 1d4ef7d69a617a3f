"""Which open work somebody has to look at: pure over control rows, for the supervisor's sweep."""

from __future__ import annotations

from collections.abc import Iterable

from ..storage.contract import ControlRow
from ..storage.ledger import CLAIMABLE, State


def conversations_in_need(rows: Iterable[ControlRow], now_ms: int) -> list[str]:
    """Conversations whose head can be claimed and has no live owner, or was never made ready; in the rows' order.

    `rows` come ordered by (conversation, queue sequence), as the scan gives them. A head that waits for a person, or
    for its backoff, needs nobody.
    """
    needed: list[str] = []
    decided: str | None = None
    for row in rows:
        if row.conversation_id == decided or (row.state is State.UNKNOWN and row.parked):
            continue
        decided = row.conversation_id
        claimable = row.state in CLAIMABLE or row.state in (State.ADMITTED, State.JOINED)
        if claimable and not row.owner_live and row.not_before_ms <= now_ms:
            needed.append(row.conversation_id)
    return needed
