"""The quarantine table of the DuckDB adapter: its statements, and how its rows are read."""

from __future__ import annotations

from .contract import Quarantine
from .duckdb_reads import Cursor

QUARANTINE = "INSERT OR REPLACE INTO quarantine VALUES ($id, $reason, $author, $now, NULL, NULL)"
RELEASE = "UPDATE quarantine SET released_by = $author, released_at_ms = $now WHERE conversation_id = $id"
_ACTIVE = "SELECT conversation_id, reason, author, since_ms FROM quarantine WHERE released_at_ms IS NULL"
_PRESENT = "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'quarantine'"


def quarantine_values(found: Quarantine) -> dict[str, str | int]:
    return {"id": found.conversation_id, "reason": found.reason, "author": found.author, "now": found.since_ms}


def quarantined(cursor: Cursor) -> dict[str, Quarantine]:
    """The quarantined conversations. A file that is opened for reading may be older than the table."""
    if cursor.execute(_PRESENT, {}).fetchone() == (0,):
        return {}
    rows = cursor.execute(_ACTIVE, {}).fetchall()
    return {
        name: Quarantine(conversation_id=name, reason=reason, author=author, since_ms=since_ms)
        for name, reason, author, since_ms in rows
    }
