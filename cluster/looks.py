"""What is read of open work beside its own row: control fields and quarantines, page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ..storage.contract import ControlRow, Quarantine, ScanPage

_PAGE = 1000

Read = Callable[..., Awaitable[Any]]
"""A backend's `read`."""


async def open_rows(read: Read, conversation_id: str, up_to: int) -> list[ControlRow]:
    """The open submissions of a conversation up to queue sequence `up_to`, in their order."""
    found: list[ControlRow] = []
    cursor: tuple[str, int] | None = (conversation_id, 0)
    while cursor is not None:
        page: ScanPage = await read("scan_nonterminal", cursor, _PAGE)
        mine = [row for row in page.rows if row.conversation_id == conversation_id and row.queue_sequence <= up_to]
        found.extend(mine)
        cursor = page.cursor if len(mine) == len(page.rows) else None
    return found


async def quarantined(read: Read) -> list[Quarantine]:
    """All quarantines, in order of their conversations' ids."""
    found: list[Quarantine] = []
    while page := await read("quarantined", found[-1].conversation_id if found else "", _PAGE):
        found.extend(page)
    return found
