"""Reads of the DuckDB tables: functions of a cursor that has a transaction open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .contract import ControlRow, Snapshot, Tail
from .duckdb_codec import (
    BATCH_COLUMNS,
    CONTROL_COLUMNS,
    LEDGER_COLUMNS,
    TERMINAL_SQL,
    batch_from,
    control_from,
    row_from,
)
from .engine import Resident
from .errors import LanewayError, NotFound, StoreCorrupt
from .header import Batch, Checkpoint
from .ledger import Row
from .readback import public, resident_from

_LEDGER = f"SELECT {', '.join(LEDGER_COLUMNS)} FROM ledger"
_CONTROL = f"SELECT {', '.join(CONTROL_COLUMNS)} FROM ledger WHERE state NOT IN ({TERMINAL_SQL})"
_KEYS = "SELECT conversation_id, principal, idempotency_key, submission_id, queue_sequence, epoch FROM ledger"
_ENDS = "SELECT conversation_id, max(last_sequence), arg_max(digest, last_sequence) FROM batch_log"
_OF = {True: "conversation_id = $names[1]", False: "conversation_id IN (SELECT unnest($names))"}
_BATCHES = """
SELECT {columns}, before.digest
FROM (SELECT * FROM batch_log WHERE {of} AND {which}) AS b
LEFT JOIN (SELECT conversation_id, last_sequence, digest FROM batch_log WHERE {of}) AS before
    ON before.conversation_id = b.conversation_id AND before.last_sequence = b.first_sequence - 1
ORDER BY b.conversation_id, b.first_sequence
"""
_BATCH_COLUMNS = ", ".join(f"b.{name}" for name in BATCH_COLUMNS)


class Cursor(Protocol):
    """As much of DuckDB's cursor as a read needs."""

    def execute(self, query: str, parameters: Mapping[str, Any], /) -> Cursor: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...
    def fetchone(self) -> tuple[Any, ...] | None: ...


def rows_where(cursor: Cursor, condition: str, parameters: Mapping[str, Any]) -> list[Row]:
    """Ledger rows, tokens and all. `condition` is SQL of this package, never of a caller."""
    return [row_from(values) for values in cursor.execute(f"{_LEDGER} WHERE {condition}", parameters).fetchall()]


def find_row(cursor: Cursor, submission_id: str) -> Row | None:
    found = rows_where(cursor, "submission_id = $id", {"id": submission_id})
    return found[0] if found else None


def submission_batches(cursor: Cursor, conversation_id: str, submission_ids: Sequence[str]) -> list[Batch]:
    """The batches of some submissions of one conversation, in order."""
    return _batches(cursor, [conversation_id], "submission_id IN (SELECT unnest($ids))", {"ids": list(submission_ids)})


def log_after(cursor: Cursor, conversation_id: str, after: int, count: int) -> list[Batch]:
    """The first `count` batches that end behind sequence `after`."""
    page = "last_sequence > $after ORDER BY first_sequence LIMIT $count"
    return _batches(cursor, [conversation_id], page, {"after": after, "count": count})


def _batches(cursor: Cursor, names: list[str], which: str, parameters: dict[str, Any]) -> list[Batch]:
    sql = _BATCHES.format(columns=_BATCH_COLUMNS, of=_OF[len(names) == 1], which=which)
    found = cursor.execute(sql, {"names": names, **parameters}).fetchall()
    return [batch_from(values) for values in found]


def tail_of(cursor: Cursor, conversation_id: str) -> Tail:
    end = cursor.execute(
        "SELECT last_sequence, digest FROM batch_log WHERE conversation_id = $id ORDER BY last_sequence DESC LIMIT 1",
        {"id": conversation_id},
    ).fetchone()
    top = cursor.execute(
        "SELECT coalesce(max(epoch), 0) FROM ledger WHERE conversation_id = $id", {"id": conversation_id}
    ).fetchone()
    sequence, digest = end or (0, "")
    return Tail(sequence=sequence, digest=digest, epoch=top[0] if top else 0)


def snapshot(cursor: Cursor, submission_id: str) -> Snapshot:
    """Raises: NotFound, StoreCorrupt."""
    row = find_row(cursor, submission_id)
    if row is None:
        raise NotFound(f"no submission {submission_id}", submission_id=submission_id)
    host = find_row(cursor, row.host_id) if row.host_id else None
    ids = [row.submission_id, *([row.host_id] if row.host_id else [])]
    return Snapshot(
        row=public(row),
        host=public(host) if host else None,
        tail=tail_of(cursor, row.conversation_id),
        batches=tuple(submission_batches(cursor, row.conversation_id, ids)),
    )


def control_rows(
    cursor: Cursor, after: tuple[str, int] | None, count: int, leases: Mapping[str, int], now_ms: int
) -> list[ControlRow]:
    """Open submissions behind `after`, by (conversation, queue sequence); payload columns are not read at all."""
    behind = "AND (conversation_id, queue_sequence) > ($name, $sequence)" if after else ""
    sql = f"{_CONTROL} {behind} ORDER BY conversation_id, queue_sequence LIMIT $count"
    parameters = {"count": count, **({"name": after[0], "sequence": after[1]} if after else {})}
    return [control_from(values, leases, now_ms) for values in cursor.execute(sql, parameters).fetchall()]


def list_rows(cursor: Cursor, conversation_id: str | None, state: str | None, limit: int) -> list[Row]:
    conditions = {"conversation_id": conversation_id, "state": state}
    given = {name: value for name, value in conditions.items() if value is not None}
    where = " AND ".join(f"{name} = ${name}" for name in given) or "true"
    newest = "ORDER BY admitted_at_ms DESC, conversation_id DESC, queue_sequence DESC LIMIT $limit"
    return [public(row) for row in reversed(rows_where(cursor, f"{where} {newest}", {**given, "limit": limit}))]


def load_checkpoint(cursor: Cursor, conversation_id: str) -> Checkpoint | None:
    found = cursor.execute(
        "SELECT conversation_id, tail_sequence, tail_digest, body FROM checkpoints WHERE conversation_id = $id",
        {"id": conversation_id},
    ).fetchone()
    if found is None:
        return None
    name, sequence, digest, body = found
    return Checkpoint(conversation_id=name, tail_sequence=sequence, tail_digest=digest, body=body)


def residents(cursor: Cursor, names: list[str]) -> dict[str, Resident | LanewayError]:
    """The headers of some conversations, in a few statements for all; one that is damaged spoils no other."""
    of, parameters = _OF[len(names) == 1], {"names": names}
    keys: dict[str, dict[tuple[str, str], str]] = {name: {} for name in names}
    last: dict[str, int] = dict.fromkeys(names, 0)
    epochs: dict[str, int] = dict.fromkeys(names, 0)
    for values in cursor.execute(f"{_KEYS} WHERE {of}", parameters).fetchall():
        name, principal, key, submission_id, sequence, epoch = values
        keys[name][principal, key] = submission_id
        last[name] = max(last[name], sequence)
        epochs[name] = max(epochs[name], epoch)
    known = [name for name in names if last[name]]
    rows: dict[str, list[Row]] = {name: [] for name in names}
    batches: dict[str, list[Batch]] = {name: [] for name in names}
    tails: dict[str, Tail] = {name: Tail(epoch=epochs[name]) for name in names}
    materialized = set[str]()
    damaged: dict[str, LanewayError] = {}
    if known:
        of, parameters = _OF[len(known) == 1], {"names": known}
        materialized = {
            name
            for (name,) in cursor.execute(
                f"SELECT conversation_id FROM conversations WHERE {of}", parameters
            ).fetchall()
        }
        for name, sequence, digest in cursor.execute(f"{_ENDS} WHERE {of} GROUP BY ALL", parameters).fetchall():
            tails[name] = Tail(sequence=sequence, digest=digest, epoch=epochs[name])
        _load_open(cursor, known, rows, batches, damaged)
    found: dict[str, Resident | LanewayError] = {}
    for name in names:
        try:
            if name in damaged:
                raise damaged[name]
            found[name] = resident_from(
                name,
                rows=rows[name],
                batches=batches[name],
                keys=keys[name],
                tail=tails[name],
                queue_sequence_last=last[name],
                materialized=name in materialized,
            )
        except StoreCorrupt as error:
            found[name] = error
    return found


def _load_open(
    cursor: Cursor,
    names: list[str],
    rows: dict[str, list[Row]],
    batches: dict[str, list[Batch]],
    damaged: dict[str, LanewayError],
) -> None:
    of, parameters = _OF[len(names) == 1], {"names": names}
    ids: list[str] = []
    sql = f"{_LEDGER} WHERE {of} AND state NOT IN ({TERMINAL_SQL}) ORDER BY conversation_id, queue_sequence"
    for values in cursor.execute(sql, parameters).fetchall():
        name = values[1]
        try:
            rows[name].append(row_from(values))
            ids.append(values[0])
        except StoreCorrupt as error:
            damaged[name] = error
    if not ids:
        return
    sql = _BATCHES.format(columns=_BATCH_COLUMNS, of=of, which="submission_id IN (SELECT unnest($ids))")
    for values in cursor.execute(sql, {"names": names, "ids": ids}).fetchall():
        try:
            batches[values[0]].append(batch_from(values))
        except StoreCorrupt as error:
            damaged[values[0]] = error
