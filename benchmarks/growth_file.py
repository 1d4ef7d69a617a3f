"""The store's file: its bytes beside the bytes of what was said, and its size while a ledger moves a million times."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import msgspec

import laneway

from ..storage.commands import Accepted, Admit, Claim, Fence, MarkReady, Materialize, Release, Unit
from ..storage.duckdb_store import DuckDBStore
from ..storage.records import AnyRecord, decode_records
from ..storage.values import encode
from .contents import content_bytes, input_of, talking_agent
from .result import NotDone, Progress
from .turns import all_settled, run_turns

TURNS_A_CONVERSATION = 25
CONCURRENCY = 64
FIELDS_SHOWN = 16
WAL_BYTES_MAX, FILE_BYTES_MAX = 8 << 20, 4 << 20

# --- bytes of many turns ---------------------------------------------------------------------------------------------


def bytes_of_turns(folder: Path, turns: int, progress: Progress) -> dict[str, Any]:
    """Take `turns` turns whose contents do not repeat themselves; the bytes of the file, and where they are."""
    path = folder / "turns.duckdb"
    wal = path.with_suffix(".duckdb.wal")
    what = "turns with contents"
    with laneway.local(talking_agent(), store=path) as runtime:
        names = [f"talk-{number}" for number in range(-(-turns // TURNS_A_CONVERSATION))]
        conversations = [runtime.conversation(name) for name in names]
        asyncio.run(run_turns(conversations, turns, CONCURRENCY, lambda count: progress(what, count, turns), input_of))
        wal_bytes = wal.stat().st_size if wal.exists() else 0
        report = all_settled(runtime, turns)
    return {"turns": turns, "records": report.records, "wal_bytes_before": wal_bytes, **stored_bytes(path)}


def stored_bytes(path: Path) -> dict[str, Any]:
    """Of a closed store: bytes of its file, of its contents, and of every column and field that is stored."""
    if path.with_suffix(".duckdb.wal").exists():
        raise NotDone("the store was closed and left a WAL")
    file_bytes = path.stat().st_size
    with duckdb.connect(str(path), read_only=True) as connection:
        bodies = connection.execute("SELECT body FROM batch_log").fetchall()
        columns = _column_bytes(connection)
    records = [record for (body,) in bodies for record in decode_records(body)]
    said = content_bytes(records)
    return {
        "file_bytes": file_bytes,
        "content_bytes": said.total(),
        "ratio": round(file_bytes / said.total(), 3),
        "content_bytes_by_kind": dict(said),
        "bytes_by_column": dict(columns.most_common(FIELDS_SHOWN)),
        "body_bytes_by_field": dict(field_bytes(records).most_common(FIELDS_SHOWN)),
    }


def _column_bytes(connection: duckdb.DuckDBPyConnection) -> Counter[str]:
    """Bytes of each column before compression, as text."""
    found: Counter[str] = Counter()
    columns = connection.execute("SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal").fetchall()
    tables = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    for table, column in columns:
        if table in tables:
            answer = connection.execute(f"SELECT sum(strlen(CAST({column} AS VARCHAR))) FROM {table}").fetchone()
            found[f"{table}.{column}"] = int(answer[0] or 0) if answer else 0
    return found


def field_bytes(records: list[AnyRecord]) -> Counter[str]:
    """Bytes of the records' JSON by the field of a record that they belong to, and those of the fields' names."""
    found: Counter[str] = Counter()
    for record in records:
        fields: dict[str, Any] = msgspec.to_builtins(record)
        for name, value in fields.items():
            found[f"{fields['type']}.{name}"] += len(encode(value))
            found["names of fields"] += len(name) + 4  # quotes, colon, comma
    return found


# --- many moves of a ledger ------------------------------------------------------------------------------------------


def ledger_moves(folder: Path, transitions: int, progress: Progress) -> dict[str, Any]:
    """A claim and a release of each submission, round after round; the largest that file and WAL became."""
    path = folder / "ledger.duckdb"
    wal = path.with_suffix(".duckdb.wal")
    submissions = min(1_000, transitions // 40)
    rounds = transitions // (2 * submissions)
    store = DuckDBStore(path)
    names = [f"c{number}" for number in range(submissions)]
    _commit(store, [_admission(name) for name in names])
    file_most = wal_most = 0
    for number in range(rounds):
        _commit(store, [_claim(name, number) for name in names] + [_release(name, number) for name in names])
        file_most = max(file_most, path.stat().st_size)
        wal_most = max(wal_most, wal.stat().st_size if wal.exists() else 0)
        progress("ledger transitions", 2 * submissions * (number + 1), transitions)
    written = store.info().rows
    store.close()
    if written != submissions + transitions:
        raise NotDone(f"{written - submissions:,} of {transitions:,} transitions were written")
    return {
        "transitions": transitions,
        "submissions": submissions,
        "file_bytes_most": max(file_most, path.stat().st_size),
        "wal_bytes_most": wal_most,
        "file_bytes_at_end": path.stat().st_size,
    }


def _commit(store: DuckDBStore, units: list[Unit]) -> None:
    refused = [answer for answer in store.commit(units) if not isinstance(answer, Accepted)]
    if refused:
        raise NotDone(f"the store refused a move: {refused[0]}")


def _admission(name: str) -> Unit:
    submission = f"sub_{name}"
    admit = Admit(
        submission_id=submission,
        receipt_id=f"rcp_{name}",
        principal="alice",
        idempotency_key=f"key-{name}",
        agent="support",
        input='"hi"',
        input_digest="digest",
    )
    ready = Materialize(submission_id=submission), MarkReady(submission_id=submission)
    return Unit(conversation_id=name, commands=(admit, *ready), fence=None)


def _claim(name: str, number: int) -> Unit:
    token = f"tok{number}"
    claim = Claim(submission_id="", owner_id="own_1", attempt_id=f"att{number}", token=token)
    return Unit(conversation_id=name, commands=(claim,), fence=Fence(token=token))


def _release(name: str, number: int) -> Unit:
    release = Release(submission_id=f"sub_{name}")
    return Unit(conversation_id=name, commands=(release,), fence=Fence(token=f"tok{number}", epoch=number + 1))
