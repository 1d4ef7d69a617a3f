"""What every adapter computes from stored rows and batches: traces, headers, pages, control rows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from .contract import ControlRow, LogPage
from .engine import Resident
from .header import Batch, BatchRef, Header, Trace
from .ledger import WITH_OWNER, Row
from .records import decode_records
from .values import digest_of


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def public(row: Row) -> Row:
    """The row as readers see it: the ownership token stays in the store."""
    return msgspec.structs.replace(row, token=None) if row.token is not None else row


def trace_of(batches: Sequence[Batch]) -> Trace:
    """What a submission's committed batches leave to recognise repeats by."""
    refs: dict[str, BatchRef] = {}
    records: dict[str, int] = {}
    for batch in batches:
        refs[batch.batch_id] = BatchRef(
            first_sequence=batch.first_sequence,
            last_sequence=batch.last_sequence,
            digest=batch.digest,
            body_digest=digest_of(batch.body.encode()),
        )
        for index, record in enumerate(decode_records(batch.body, where=f"batch {batch.batch_id}")):
            records[record.id] = batch.first_sequence + index
    return Trace(batches=refs, records=records)


def control_row(row: Row, leases: Mapping[str, int], now_ms: int) -> ControlRow:
    live = row.state in WITH_OWNER and row.owner_id is not None and leases.get(row.owner_id, 0) > now_ms
    return ControlRow(
        submission_id=row.submission_id,
        conversation_id=row.conversation_id,
        queue_sequence=row.queue_sequence,
        state=row.state,
        owner_id=row.owner_id,
        owner_live=live,
        parked=row.parked,
        abort_requested=row.abort is not None,
        attempts=row.attempts,
        not_before_ms=row.not_before_ms,
        updated_at_ms=row.updated_at_ms,
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
    conversation_id: str, rows: Sequence[Row], batches: Sequence[Batch], last: Batch | None, materialized: bool
) -> Resident:
    """A header read back from what is stored: `batches` covers at least the open submissions."""
    ordered = sorted(rows, key=lambda row: row.queue_sequence)
    open_rows = {row.submission_id: row for row in ordered if not row.settled}
    owner = max((row for row in open_rows.values() if row.token), key=lambda row: row.epoch, default=None)
    by_submission: dict[str, list[Batch]] = {}
    for batch in batches:
        if batch.submission_id in open_rows:
            by_submission.setdefault(batch.submission_id, []).append(batch)
    header = Header(
        conversation_id=conversation_id,
        materialized=materialized,
        tail_sequence=last.last_sequence if last else 0,
        tail_digest=last.digest if last else "",
        epoch=max((row.epoch for row in ordered), default=0),
        next_queue_sequence=ordered[-1].queue_sequence + 1 if ordered else 1,
        owned_by=owner.submission_id if owner else None,
        rows=open_rows,
        traces={key: trace_of(found) for key, found in by_submission.items()},
    )
    return Resident(header=header, keys={(row.principal, row.idempotency_key): row.submission_id for row in ordered})
