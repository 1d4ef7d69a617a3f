"""The quarantine table of the DuckDB adapter: its statements, and how its rows are read."""

from __future__ import annotations

from typing import Any

from .contract import Quarantine
from .duckdb_reads import Cursor

QUARANTINE = "INSERT OR REPLACE INTO quarantine VALUES ($id, $reason, $author, $now, NULL, NULL)"
RELEASE = "UPDATE quarantine SET released_by = $author, released_at_ms = $now WHERE conversation_id = $id"
_ACTIVE = "SELECT conversation_id, reason, author, since_ms FROM quarantine WHERE released_at_ms IS NULL"
_RELEASED = """
    SELECT conversation_id, reason, author, since_ms FROM quarantine
    WHERE conversation_id = $id AND released_by = $author AND released_at_ms IS NOT NULL
"""
_PRESENT = "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'quarantine'"


def quarantine_values(found: Quarantine) -> dict[str, str | int]:
    return {"id": found.conversation_id, "reason": found.reason, "author": found.author, "now": found.since_ms}


def quarantined(cursor: Cursor) -> dict[str, Quarantine]:
    """The quarantined conversations. A file that is opened for reading may be older than the table."""
    if cursor.execute(_PRESENT, {}).fetchone() == (0,):
        return {}
    return {found[0]: _quarantine(found) for found in cursor.execute(_ACTIVE, {}).fetchall()}


def released(cursor: Cursor, conversation_id: str, author: str) -> Quarantine | None:
    """What `author` has released last of the conversation, None where it was somebody else, or nobody."""
    found = cursor.execute(_RELEASED, {"id": conversation_id, "author": author}).fetchone()
    return None if found is None else _quarantine(found)


def _quarantine(values: tuple[Any, ...]) -> Quarantine:
    name, reason, author, since_ms = values
    return Quarantine(conversation_id=name, reason=reason, author=author, since_ms=since_ms)
