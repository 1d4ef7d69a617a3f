"""What operators see and do: obligations, dead letters, retry, quarantine; asynchronous, over the client."""

from __future__ import annotations

from ..actors.operations import LetGo, Retry, SetAside
from ..recovery.obligations import EXHAUSTION_CODES, Obligation, wants_look
from ..recovery.obligations import obligations as obligations_of
from ..storage.contract import ControlRow, DeadLetter, Quarantine, ScanPage
from ..storage.errors import InvalidInput, NotFound, Refused, StoreCorrupt
from ..storage.ledger import Receipt, Row
from ..storage.readback import wall_clock_ms
from ..storage.values import check_text
from . import looks
from .client import Client
from .inputs import check_author

_PAGE = 1000


async def obligations(client: Client, overdue_s: float, limit: int) -> list[Obligation]:
    """Open submissions, by conversation and queue sequence, that are open for `overdue_s` or longer; `limit` at most.

    Raises: InvalidInput with field "overdue" or "limit".
    """
    if not overdue_s >= 0:
        raise InvalidInput("overdue must be 0 or more seconds", field="overdue", limit=0)
    if limit < 1:
        raise InvalidInput("limit must be 1 or more", field="limit", limit=1)
    held = {found.conversation_id: found for found in await quarantined(client)}
    agents = await client.backend.agent_names() or None
    now_ms = wall_clock_ms()
    found: list[Obligation] = []
    rest: list[ControlRow] = []  # the conversation that may go on in the next page
    cursor: tuple[str, int] | None = None
    while True:
        page: ScanPage = await client.backend.read("scan_nonterminal", cursor, _PAGE)
        cursor = page.cursor
        rows = [*rest, *page.rows]
        last = rows[-1].conversation_id if rows and cursor is not None else None
        rest = [row for row in rows if row.conversation_id == last]
        whole = [row for row in rows if row.conversation_id != last]
        looked: dict[str, Row | None] = {}
        for row in whole:
            if wants_look(row, now_ms) and now_ms - row.admitted_at_ms >= overdue_s * 1000:
                looked[row.submission_id] = await _look(client, row.submission_id)
        told = obligations_of(whole, looked, held, agents, now_ms)
        found.extend(item for item in told if item.age_s >= overdue_s)
        if cursor is None or len(found) >= limit:
            return found[:limit]


async def _look(client: Client, submission_id: str) -> Row | None:
    try:
        return await client.backend.read("lookup", submission_id)
    except StoreCorrupt:
        return None


async def dead_letters(client: Client, every: bool, limit: int) -> list[DeadLetter]:
    """Raises: InvalidInput with field "limit"."""
    if limit < 1:
        raise InvalidInput("limit must be 1 or more", field="limit", limit=1)
    return await client.backend.read("dead_letters", None if every else EXHAUSTION_CODES, limit)


async def retry(client: Client, submission_id: str, author: str, reason: str) -> Receipt:
    """Raises: what `actors.operations` raises."""
    check_author(author, reason, client.backend.limits)
    conversation_id = (await client.row(submission_id)).conversation_id
    receipt = await client.operate(conversation_id, Retry(submission_id=submission_id, author=author, reason=reason))
    assert isinstance(receipt, Receipt)
    return receipt


async def quarantine(client: Client, conversation_id: str, author: str, reason: str) -> Quarantine:
    """Raises: InvalidInput; Refused with code "not_authorised"."""
    check_author(author, reason, client.backend.limits)
    check_text(conversation_id, "conversation_id", length_max=client.backend.limits.id_length_max)
    check_text(reason, "reason", length_max=client.backend.limits.id_length_max * 16)
    await _require_known(client, conversation_id)
    found = await client.operate(
        conversation_id, SetAside(conversation_id=conversation_id, author=author, reason=reason)
    )
    assert isinstance(found, Quarantine)
    return found


async def _require_known(client: Client, conversation_id: str) -> None:
    """A slip of the pen must not look like a success. Raises: NotFound."""
    try:
        known = await client.rows(conversation_id, None, 1)
    except StoreCorrupt:
        return  # a damaged row is a row
    if not known:
        message = f"nothing was ever submitted to conversation {conversation_id}"
        raise NotFound(message, conversation_id=conversation_id)


async def release_quarantine(client: Client, conversation_id: str, author: str) -> Quarantine:
    """Raises: InvalidInput; Refused with code "not_quarantined" or "not_authorised"."""
    check_author(author, "", client.backend.limits)
    check_text(conversation_id, "conversation_id", length_max=client.backend.limits.id_length_max)
    found = await client.operate(conversation_id, LetGo(conversation_id=conversation_id, author=author))
    if found is None:
        raise Refused(f"{conversation_id} is not quarantined", code="not_quarantined", conversation_id=conversation_id)
    assert isinstance(found, Quarantine)
    return found


async def quarantined(client: Client) -> list[Quarantine]:
    """All of them, in order of their id."""
    return await looks.quarantined(client.backend.read)
