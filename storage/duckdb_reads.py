"""Reads of the DuckDB tables: functions of a cursor that has a transaction open."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

from .contract import OUTCOME_UNKNOWN, ControlRow, DeadLetter, Snapshot, Tail
from .duckdb_codec import (
    BATCH_COLUMNS,
    CONTROL_COLUMNS,
    LEDGER_COLUMNS,
    TERMINAL_SQL,
    batch_from,
    control_from,
    row_from,
)
from .engine import KEYS_HELD_MAX, Key, Resident
from .errors import LanewayError, NotFound, StoreCorrupt
from .header import Batch, Checkpoint
from .ledger import Row
from .readback import public, resident_from

_LEDGER = f"SELECT {', '.join(LEDGER_COLUMNS)} FROM ledger"
_CONTROL = f"SELECT {', '.join(CONTROL_COLUMNS)} FROM ledger WHERE state NOT IN ({TERMINAL_SQL})"
_COUNTS = "SELECT conversation_id, count(*), max(queue_sequence), max(epoch) FROM ledger"
_KEYS = "SELECT conversation_id, principal, idempotency_key, submission_id FROM ledger"
_ENDS = "SELECT conversation_id, max(last_sequence) FROM batch_log"
_DIGEST = BATCH_COLUMNS.index("digest")
_DEAD_COLUMNS = DeadLetter.__struct_fields__
_DEAD = f"""
    SELECT {", ".join(_DEAD_COLUMNS)} FROM (
        SELECT
            * EXCLUDE (detail),
            coalesce(admission ->> 'agent', '') AS agent,
            state AS kind,
            CASE state WHEN 'unknown' THEN '{OUTCOME_UNKNOWN}' ELSE coalesce(detail ->> 'error_code', '') END AS code,
            coalesce(CAST(detail ->> 'settled_at_ms' AS BIGINT), updated_at_ms) AS changed_at_ms,
            CASE state WHEN 'unknown' THEN NULL ELSE changed_at_ms END AS settled_at_ms
        FROM (
            SELECT * REPLACE (
                CASE WHEN json_valid(detail) THEN detail ELSE '{{}}' END AS detail,
                CASE WHEN json_valid(admission) THEN admission ELSE '{{}}' END AS admission
            )
            FROM ledger WHERE state IN ('failed', 'unknown')
        )
    )
"""
_LISTED_MAX = 8  # so many values stand in the statement itself: a subquery costs more to plan than to run
_BATCHES = f"SELECT {', '.join(BATCH_COLUMNS)} FROM batch_log"
_IN_ORDER = "ORDER BY conversation_id, first_sequence"
_DIGESTS = "SELECT conversation_id, last_sequence, digest FROM batch_log"


def _among(column: str, values: Sequence[str | int], prefix: str) -> tuple[str, dict[str, Any]]:
    """The condition that `column` is one of `values`, and its parameters."""
    if len(values) > _LISTED_MAX:
        return f"{column} IN (SELECT unnest(${prefix}))", {prefix: list(values)}
    names = {f"{prefix}{index}": value for index, value in enumerate(values)}
    return f"{column} IN ({', '.join(f'${name}' for name in names)})", names


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
    values = _submission_values(cursor, [conversation_id], submission_ids)
    digests = _digests_before(cursor, values)
    return [batch_from(row, digests.get((row[0], row[1] - 1))) for row in values]


def log_after(cursor: Cursor, conversation_id: str, after: int, count: int) -> list[Batch]:
    """The first `count` batches that end behind sequence `after`."""
    sql = f"{_BATCHES} WHERE conversation_id = $id AND last_sequence > $after {_IN_ORDER} LIMIT $count"
    values = cursor.execute(sql, {"id": conversation_id, "after": after, "count": count}).fetchall()
    digests = _digests_before(cursor, values)
    return [batch_from(row, digests.get((row[0], row[1] - 1))) for row in values]


def _submission_values(cursor: Cursor, names: Sequence[str], ids: Sequence[str]) -> list[tuple[Any, ...]]:
    of, parameters = _among("conversation_id", names, "name")
    which, more = _among("submission_id", ids, "id")
    return cursor.execute(f"{_BATCHES} WHERE {of} AND {which} {_IN_ORDER}", parameters | more).fetchall()


def _digests_before(cursor: Cursor, values: Sequence[tuple[Any, ...]]) -> dict[tuple[str, int], str]:
    """The digest at each (conversation, last sequence) that a batch of `values` follows.

    Most stand in `values`; a join for all of them would cost more than the read itself.
    """
    digests = {(row[0], row[2]): row[_DIGEST] for row in values}
    wanted = {(row[0], row[1] - 1) for row in values if row[1] > 1} - digests.keys()
    if wanted:
        of, parameters = _among("conversation_id", sorted({name for name, _ in wanted}), "name")
        which, more = _among("last_sequence", sorted({end for _, end in wanted}), "end")
        found = cursor.execute(f"{_DIGESTS} WHERE {of} AND {which}", parameters | more).fetchall()
        digests |= {(name, end): digest for name, end, digest in found}
    return digests


def ends_of(cursor: Cursor, names: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Where the logs of some conversations end: last sequence and digest of each that has a log.

    Two statements: to carry the digests along while the end is sought costs 7 ms for 50,000 batches, this 1.5 ms.
    """
    of, parameters = _among("conversation_id", names, "name")
    ends = dict(cursor.execute(f"{_ENDS} WHERE {of} GROUP BY ALL", parameters).fetchall())
    if not ends:
        return {}
    of, parameters = _among("conversation_id", sorted(ends), "name")
    which, more = _among("last_sequence", sorted(set(ends.values())), "end")
    found = cursor.execute(f"{_DIGESTS} WHERE {of} AND {which}", parameters | more).fetchall()
    return {name: (end, digest) for name, end, digest in found if ends[name] == end}


def tail_of(cursor: Cursor, conversation_id: str) -> Tail:
    sequence, digest = ends_of(cursor, [conversation_id]).get(conversation_id, (0, ""))
    sql = "SELECT max(epoch) FROM ledger WHERE conversation_id = $id"
    (epoch,) = cursor.execute(sql, {"id": conversation_id}).fetchone() or (None,)
    return Tail(sequence=sequence, digest=digest, epoch=epoch or 0)


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
    cursor: Cursor,
    after: tuple[str, int] | None,
    count: int,
    leases: Mapping[str, int],
    quarantined: Container[str],
    now_ms: int,
) -> list[ControlRow]:
    """Open submissions behind `after`, by (conversation, queue sequence); payload columns are not read at all."""
    behind = "AND (conversation_id, queue_sequence) > ($name, $sequence)" if after else ""
    sql = f"{_CONTROL} {behind} ORDER BY conversation_id, queue_sequence LIMIT $count"
    parameters = {"count": count, **({"name": after[0], "sequence": after[1]} if after else {})}
    return [control_from(values, leases, quarantined, now_ms) for values in cursor.execute(sql, parameters).fetchall()]


def list_rows(cursor: Cursor, conversation_id: str | None, state: str | None, limit: int) -> list[Row]:
    conditions = {"conversation_id": conversation_id, "state": state}
    given = {name: value for name, value in conditions.items() if value is not None}
    where = " AND ".join(f"{name} = ${name}" for name in given) or "true"
    newest = "ORDER BY admitted_at_ms DESC, conversation_id DESC, queue_sequence DESC LIMIT $limit"
    return [public(row) for row in reversed(rows_where(cursor, f"{where} {newest}", {**given, "limit": limit}))]


def dead_letters(cursor: Cursor, codes: Sequence[str] | None, limit: int) -> list[DeadLetter]:
    """Failed rows by the code in their detail, and unknown ones; a damaged detail shows without a code."""
    which, parameters = ("true", {}) if codes is None else _among("code", [*codes, OUTCOME_UNKNOWN], "code")
    sql = f"{_DEAD} WHERE {which} ORDER BY changed_at_ms DESC, conversation_id DESC, queue_sequence DESC LIMIT $limit"
    found = cursor.execute(sql, {**parameters, "limit": limit}).fetchall()
    return [DeadLetter(**dict(zip(_DEAD_COLUMNS, values, strict=True))) for values in reversed(found)]


def load_checkpoint(cursor: Cursor, conversation_id: str) -> Checkpoint | None:
    found = cursor.execute(
        "SELECT conversation_id, tail_sequence, tail_digest, body FROM checkpoints WHERE conversation_id = $id",
        {"id": conversation_id},
    ).fetchone()
    if found is None:
        return None
    name, sequence, digest, body = found
    return Checkpoint(conversation_id=name, tail_sequence=sequence, tail_digest=digest, body=body)


def keys_held(cursor: Cursor, names: Sequence[str]) -> dict[str, dict[tuple[str, str], str]]:
    """All admission keys of some conversations, and the submissions that hold them."""
    held: dict[str, dict[tuple[str, str], str]] = {name: {} for name in names}
    if names:
        of, parameters = _among("conversation_id", names, "name")
        for name, principal, key, submission_id in cursor.execute(f"{_KEYS} WHERE {of}", parameters).fetchall():
            held[name][principal, key] = submission_id
    return held


def key_holders(cursor: Cursor, keys: Sequence[Key]) -> dict[Key, str]:
    """The submissions that hold these admission keys, where there are any."""
    of, parameters = _among("conversation_id", sorted({name for name, _, _ in keys}), "name")
    which, more = _among("idempotency_key", sorted({key for _, _, key in keys}), "key")
    found = cursor.execute(f"{_KEYS} WHERE {of} AND {which}", parameters | more).fetchall()
    wanted = set(keys)
    return {(name, who, key): holder for name, who, key, holder in found if (name, who, key) in wanted}


def residents(cursor: Cursor, names: list[str]) -> dict[str, Resident | LanewayError]:
    """The headers of some conversations, in a few statements for all; one that is damaged spoils no other."""
    of, parameters = _among("conversation_id", names, "name")
    keys: dict[str, dict[tuple[str, str], str] | None] = {name: {} for name in names}
    last: dict[str, int] = dict.fromkeys(names, 0)
    epochs: dict[str, int] = dict.fromkeys(names, 0)
    few: list[str] = []
    for name, count, sequence, epoch in cursor.execute(f"{_COUNTS} WHERE {of} GROUP BY ALL", parameters).fetchall():
        last[name], epochs[name] = sequence, epoch
        if count <= KEYS_HELD_MAX:
            few.append(name)
        else:
            keys[name] = None
    for name, held in keys_held(cursor, few).items():
        keys[name] = held
    known = [name for name in names if last[name]]
    rows: dict[str, list[Row]] = {name: [] for name in names}
    batches: dict[str, list[Batch]] = {name: [] for name in names}
    tails: dict[str, Tail] = {name: Tail(epoch=epochs[name]) for name in names}
    materialized = set[str]()
    damaged: dict[str, LanewayError] = {}
    if known:
        of, parameters = _among("conversation_id", known, "name")
        materialized = {
            name
            for (name,) in cursor.execute(
                f"SELECT conversation_id FROM conversations WHERE {of}", parameters
            ).fetchall()
        }
        for name, (sequence, digest) in ends_of(cursor, known).items():
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
    of, parameters = _among("conversation_id", names, "name")
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
    found = _submission_values(cursor, names, ids)
    digests = _digests_before(cursor, found)
    for values in found:
        try:
            batches[values[0]].append(batch_from(values, digests.get((values[0], values[1] - 1))))
        except StoreCorrupt as error:
            damaged[values[0]] = error
