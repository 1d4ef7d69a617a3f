"""Conversations with a long history, written past the lanes: what they would have left, in bulk."""

from __future__ import annotations

from dataclasses import dataclass

from lane_records import SUBMISSION, a_row, began, call_id, ended, prepared, responded, returned, said, settled

from laneway.storage.duckdb_store import DuckDBStore
from laneway.storage.header import Batch, Changes
from laneway.storage.ledger import Reservation, Row, State
from laneway.storage.memory_store import MemoryStore
from laneway.storage.records import (
    SCHEMA_VERSION,
    AnyRecord,
    ConversationCreated,
    chained_digest,
    encode_records,
    record_id,
)
from laneway.storage.values import digest_of

_GROUP_SUBMISSIONS = 2_000
RECORDS_A_SUBMISSION = 8


@dataclass
class _Log:
    conversation_id: str
    sequence: int = 0
    digest: str = ""

    def batch(self, submission_id: str, *records: AnyRecord) -> Batch:
        body = encode_records(records).decode()
        previous, self.digest = self.digest, chained_digest(self.digest, body)
        first, self.sequence = self.sequence + 1, self.sequence + len(records)
        return Batch(
            conversation_id=self.conversation_id,
            submission_id=submission_id,
            batch_id=record_id("batch", records[0].id),
            first_sequence=first,
            last_sequence=self.sequence,
            producer_id="own_past",
            epoch=1,
            schema_version=SCHEMA_VERSION,
            previous_digest=previous,
            digest=self.digest,
            body=body,
            committed_at_ms=1,
        )


def grow(store: DuckDBStore | MemoryStore, conversation_id: str, records: int, *, text: str = "well") -> int:
    """Give a new conversation at least `records` records of settled submissions, each with one call of a tool.

    Returns how many there are. `text` is what every response says.
    """
    log = _Log(conversation_id)
    number = 0
    while log.sequence < records:
        rows: list[Row] = []
        batches: list[Batch] = []
        while log.sequence < records and len(rows) < _GROUP_SUBMISSIONS:
            number += 1
            rows.append(_submission(log, batches, number, text))
        change = Changes(
            materialized="support" if number == len(rows) else None,
            rows=tuple(rows),
            admitted=frozenset(row.submission_id for row in rows),
            batches=tuple(batches),
        )
        if isinstance(store, MemoryStore):
            store.store_changes([change])
        else:
            store.write([change])
    return log.sequence


def _submission(log: _Log, batches: list[Batch], number: int, text: str) -> Row:
    name = f"{log.conversation_id}-{SUBMISSION}-{number}"
    created = ConversationCreated(
        id=record_id("conversation", log.conversation_id), conversation_id=log.conversation_id, agent="support"
    )
    call = call_id(1, 0, name)
    batches.append(log.batch(name, *([created] if number == 1 else []), said(name, number), began(name)))
    input_sequence = log.sequence - 1
    batches.append(log.batch(name, responded(1, "look_up", submission_id=name), prepared(call, submission_id=name)))
    batches.append(log.batch(name, returned(call, "r" * 20, submission_id=name)))
    last = settled(submission_id=name, output=text)
    batches.append(log.batch(name, responded(2, submission_id=name, content=text), ended(submission_id=name), last))
    digest = digest_of(encode_records((last,)))
    return a_row(
        name,
        conversation_id=log.conversation_id,
        queue_sequence=number,
        receipt_id=f"rcp-{name}",
        input="",
        input_sequence=input_sequence,
        state=State.COMPLETED,
        attempts=1,
        epoch=number,
        outcome="completed",
        settlement_sequence=log.sequence,
        settled_at_ms=1,
        reservation=Reservation(settlement_id=last.settlement_id, outcome="completed", body="", digest=digest),
    )
