"""Moves of the log: canonical batches and the markers that follow them (Specification 7, DUR-006 to DUR-008)."""

from __future__ import annotations

from typing import Any

from .commands import Append, Appended, MarkInputApplied, Moved, SaveCheckpoint
from .errors import InvalidInput, Refused, StoreCorrupt
from .header import Batch, BatchRef, Checkpoint, Trace
from .ledger import Row, State
from .records import (
    SCHEMA_VERSION,
    AnyRecord,
    InputRecorded,
    RecoveryDecided,
    RepairAnnotated,
    SubmissionSettled,
    chained_digest,
    content_digest,
    decode_records,
    encode_records,
    input_record_id,
    settlement_record_id,
    tag_of,
)
from .values import digest_of, encode
from .work import Work, settles_by_abort_alone


def append(work: Work, command: Append) -> Appended:
    """DUR-007: all records of the batch or none; the same batch again gets its first answer."""
    trace = work.trace(command.submission_id)
    records = decode_given(work, command.body, "body")
    body_digest = content_digest(records)
    known = trace.batches.get(command.batch_id)
    if known is not None:
        if known.body_digest != body_digest:
            raise Refused(
                f"batch {command.batch_id} stands in the log with other content",
                code="batch_conflict",
                stored_digest=known.body_digest,
                given_digest=body_digest,
            )
        return Appended(
            first_sequence=known.first_sequence,
            last_sequence=known.last_sequence,
            digest=known.digest,
            replayed=True,
            abort=work.row(command.submission_id).abort,
            arrived=work.arrived,
        )
    row = work.row(command.submission_id)
    if not settles_by_abort_alone(row):
        work.require_fence(row.submission_id)
        work.require_tail()
    _check_records(work, row, trace, records)
    first = work.tail_sequence + 1
    last = work.tail_sequence + len(records)
    digest = chained_digest(work.tail_digest, command.body)
    batch = Batch(
        conversation_id=row.conversation_id,
        submission_id=row.submission_id,
        batch_id=command.batch_id,
        first_sequence=first,
        last_sequence=last,
        producer_id=command.producer_id,
        epoch=work.epoch,
        schema_version=SCHEMA_VERSION,
        previous_digest=work.tail_digest,
        digest=digest,
        body=command.body,
        committed_at_ms=work.now_ms,
    )
    ref = BatchRef(first_sequence=first, last_sequence=last, digest=digest, body_digest=body_digest)
    places = {record.id: first + index for index, record in enumerate(records)}
    work.extend(
        batch,
        Trace(batches={**trace.batches, command.batch_id: ref}, records={**trace.records, **places}),
    )
    return Appended(first_sequence=first, last_sequence=last, digest=digest, abort=row.abort, arrived=work.arrived)


def decode_given(work: Work, body: str, field: str) -> tuple[AnyRecord, ...]:
    """The records of a body that a caller handed over. Raises: InvalidInput, before anything is stored."""
    limits = work.limits
    size = len(body.encode())
    batch_bytes_max = limits.record_bytes_max * 2  # before decoding: a bound on what one batch may cost
    if size > batch_bytes_max:
        raise InvalidInput(
            f"{field} has {size:,} bytes; the limit is {batch_bytes_max:,}", field=field, limit=batch_bytes_max
        )
    try:
        records = decode_records(body)
    except (StoreCorrupt, RecursionError) as error:
        raise InvalidInput(f"{field} does not decode: {error}", field=field) from error
    if not 1 <= len(records) <= limits.batch_records_max:
        raise InvalidInput(
            f"a batch has 1 to {limits.batch_records_max} records, not {len(records)}",
            field=field,
            limit=limits.batch_records_max,
        )
    if size > limits.record_bytes_max:
        for record in records:
            _check_size(record, field, limits.record_bytes_max)
    return records


def _check_size(record: AnyRecord, field: str, bytes_max: int) -> None:
    size = len(encode(record))
    if size > bytes_max:
        raise InvalidInput(
            f"record {record.id} has {size:,} bytes; the limit is {bytes_max:,}", field=field, limit=bytes_max
        )


def _check_records(work: Work, row: Row, trace: Trace, records: tuple[AnyRecord, ...]) -> None:
    if row.settled:
        raise Refused(f"{row.submission_id} is settled", code="already_settled", outcome=row.outcome)
    seen = set[str]()
    settled = settlement_record_id(row.submission_id) in trace.records
    for record in records:
        if record.id in trace.records or record.id in seen:
            raise Refused(f"record {record.id} stands in the log already", code="record_reused", record_id=record.id)
        if settled and not isinstance(record, RecoveryDecided | RepairAnnotated):
            raise Refused(f"{row.submission_id} has its settlement in the log", code="already_settled")
        seen.add(record.id)
        if isinstance(record, SubmissionSettled):
            _check_settlement(row, record)
            settled = True
        elif isinstance(record, InputRecorded) and record.queue_sequence != row.queue_sequence:
            raise Refused("the input does not carry its queue sequence", code="input_conflict")
        elif settles_by_abort_alone(row):
            _check_evidence(record)


def _check_settlement(row: Row, record: SubmissionSettled) -> None:
    """DUR-011: the settlement in the log is the reserved one, byte for byte."""
    reserved = row.reservation
    body = encode_records((record,)).decode()
    if reserved is None or reserved.body != body or record.id != settlement_record_id(row.submission_id):
        raise Refused(
            f"the settlement of {row.submission_id} is not the reserved one",
            code="settlement_conflict",
            reserved=reserved.digest if reserved else None,
            given=digest_of(body.encode()),
        )


def _check_evidence(record: AnyRecord) -> None:
    """An abort intent authorises its own evidence and settlement, nothing else."""
    allowed = {"abort_requested", "approval_decided", "tool_call_unknown", "repair_annotated"}
    if tag_of(record) not in allowed:
        raise Refused("an abort intent appends nothing but its own settlement", code="not_authorised")


def mark_input_applied(work: Work, command: MarkInputApplied) -> Moved:
    """DUR-015: the log is the authority; the marker follows it."""
    row = work.row(command.submission_id)
    if row.input_sequence is not None and row.run_id == command.run_id:
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    work.require_fence(row.submission_id)
    sequence = work.trace(row.submission_id).records.get(input_record_id(row.submission_id))
    if sequence is None:
        raise Refused(f"the input of {row.submission_id} is not in the log", code="input_not_canonical")
    row = work.put(row, input_sequence=sequence, run_id=command.run_id, input="")
    return Moved(submission_id=row.submission_id, state=row.state)


def save_checkpoint(work: Work, command: SaveCheckpoint) -> Moved:
    """It travels with a settlement: a repeat of that unit finds the row settled, and the checkpoint saved with it."""
    row = work.row(command.submission_id)
    if row.settled:
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    work.require_fence(row.submission_id)
    if command.tail_sequence != work.tail_sequence or command.tail_digest != work.tail_digest:
        raise Refused("the checkpoint is not of this tail", code="checkpoint_stale")
    work.checkpoint = Checkpoint(
        conversation_id=row.conversation_id,
        tail_sequence=command.tail_sequence,
        tail_digest=command.tail_digest,
        body=command.body,
    )
    return Moved(submission_id=row.submission_id, state=State(row.state))


MOVES: dict[type, Any] = {
    Append: append,
    MarkInputApplied: mark_input_applied,
    SaveCheckpoint: save_checkpoint,
}
