"""What every adapter computes from stored rows and batches: traces, headers, pages, control rows."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .contract import ControlRow, LogPage, Quarantine, Tail
from .engine import Resident
from .errors import StoreCorrupt
from .header import Batch, BatchRef, Header, Trace
from .ledger import MAY_HOLD, Row, State
from .records import SCHEMA_VERSION, AnyRecord, chained_digest, content_digest, decode_records
from .values import Limits, check_text

QUARANTINE_REASON_LENGTH_MAX = 4096  # a sentence for an operator, with the error that it is about


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def public(row: Row) -> Row:
    """The row as readers see it: the ownership token stays in the store."""
    return msgspec.structs.replace(row, token=None) if row.token is not None else row


def records_of(batch: Batch) -> tuple[AnyRecord, ...]:
    """The batch's records, once its digest is checked.

    Raises: StoreCorrupt, naming the conversation and the sequence, when body and digest differ or it does not decode.
    """
    where: dict[str, Any] = {
        "conversation_id": batch.conversation_id,
        "sequence": batch.first_sequence,
        "batch_id": batch.batch_id,
    }
    if batch.schema_version > SCHEMA_VERSION:
        known = f"this program knows {SCHEMA_VERSION}"
        raise StoreCorrupt(
            f"batch {batch.batch_id} of {batch.conversation_id} has schema {batch.schema_version}; {known}", **where
        )
    if chained_digest(batch.previous_digest, batch.body) != batch.digest:
        raise StoreCorrupt(f"batch {batch.batch_id} of {batch.conversation_id} does not match its digest", **where)
    try:
        records = decode_records(batch.body)
    except StoreCorrupt as error:
        raise StoreCorrupt(f"batch {batch.batch_id} of {batch.conversation_id}: {error.message}", **where) from error
    if len(records) != batch.last_sequence - batch.first_sequence + 1:
        raise StoreCorrupt(f"batch {batch.batch_id} of {batch.conversation_id} holds {len(records)} records", **where)
    return records


def trace_of(batches: Iterable[Batch]) -> Trace:
    """What a submission's committed batches leave to recognise repeats by."""
    refs: dict[str, BatchRef] = {}
    places: dict[str, int] = {}
    for batch in batches:
        records = records_of(batch)
        refs[batch.batch_id] = BatchRef(
            first_sequence=batch.first_sequence,
            last_sequence=batch.last_sequence,
            digest=batch.digest,
            body_digest=content_digest(records),
        )
        for index, record in enumerate(records):
            places[record.id] = batch.first_sequence + index
    return Trace(batches=refs, records=places)


def owner_is_live(state: State, owner_id: str | None, leases: Mapping[str, int], now_ms: int) -> bool:
    """Whether an attempt at work holds a lease that has not run out."""
    return state in MAY_HOLD and owner_id is not None and leases.get(owner_id, 0) > now_ms


def control_row(row: Row, leases: Mapping[str, int], quarantined: Container[str], now_ms: int) -> ControlRow:
    return ControlRow(
        submission_id=row.submission_id,
        conversation_id=row.conversation_id,
        queue_sequence=row.queue_sequence,
        state=row.state,
        owner_id=row.owner_id,
        owner_live=owner_is_live(row.state, row.owner_id, leases, now_ms),
        parked=row.parked,
        abort_requested=row.abort is not None,
        attempts=row.attempts,
        not_before_ms=row.not_before_ms,
        updated_at_ms=row.updated_at_ms,
        admitted_at_ms=row.admitted_at_ms,
        quarantined=row.conversation_id in quarantined,
    )


def checked_quarantine(conversation_id: str, reason: str, author: str, *, now_ms: int, limits: Limits) -> Quarantine:
    """Raises: InvalidInput with the field that cannot be stored."""
    return Quarantine(
        conversation_id=check_text(conversation_id, "conversation_id", length_max=limits.id_length_max),
        reason=check_text(reason, "reason", length_max=QUARANTINE_REASON_LENGTH_MAX),
        author=check_text(author, "author", length_max=limits.id_length_max),
        since_ms=now_ms,
    )


def page_of(batches: Sequence[Batch], after: int, limit: int) -> LogPage:
    """The whole batches of `batches` behind `after`, about `limit` records of them."""
    chosen: list[Batch] = []
    count = 0
    for batch in batches:
        if batch.last_sequence <= after:
            continue
        if chosen and count >= limit:
            return LogPage(batches=tuple(chosen), more=True)
        chosen.append(batch)
        count += batch.last_sequence - batch.first_sequence + 1
    return LogPage(batches=tuple(chosen), more=False)


def resident_from(
    conversation_id: str,
    *,
    rows: Iterable[Row],
    batches: Iterable[Batch],
    keys: dict[tuple[str, str], str] | None,
    tail: Tail,
    queue_sequence_last: int,
    materialized: bool,
) -> Resident:
    """A header read back from what is stored: `rows` are the open ones in queue order, `batches` at least theirs."""
    open_rows = {row.submission_id: row for row in rows}
    owner = max((row for row in open_rows.values() if row.token), key=lambda row: row.epoch, default=None)
    by_submission: dict[str, list[Batch]] = {}
    for batch in batches:
        if batch.submission_id in open_rows:
            by_submission.setdefault(batch.submission_id, []).append(batch)
    header = Header(
        conversation_id=conversation_id,
        materialized=materialized,
        tail_sequence=tail.sequence,
        tail_digest=tail.digest,
        epoch=tail.epoch,
        next_queue_sequence=queue_sequence_last + 1,
        steering_sequence=max((row.queue_sequence for row in open_rows.values() if row.steers), default=0),
        owned_by=owner.submission_id if owner else None,
        rows=open_rows,
        traces={key: trace_of(found) for key, found in by_submission.items()},
    )
    return Resident(header=header, keys=keys)
