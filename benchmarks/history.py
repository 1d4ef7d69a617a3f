"""Conversations with a long history, written past the lanes: what they would have left, in bulk."""

from __future__ import annotations

from dataclasses import dataclass

from ..actors.lane import facts
from ..agents.protocol import ModelResponse, ToolCallRequest
from ..storage.duckdb_store import DuckDBStore
from ..storage.header import Batch, Changes
from ..storage.ledger import Reservation, Row, State
from ..storage.records import (
    SCHEMA_VERSION,
    AnyRecord,
    ConversationCreated,
    InputRecorded,
    RunCompleted,
    RunStarted,
    SubmissionSettled,
    ToolCallPrepared,
    ToolCallSettled,
    chained_digest,
    encode_records,
    input_record_id,
    record_id,
    settlement_record_id,
)
from ..storage.values import digest_of

AGENT = "support"
RECORDS_A_SUBMISSION = 8
_GROUP_SUBMISSIONS = 2_000


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


def grow(store: DuckDBStore, conversation_id: str, records: int, *, text: str = "well") -> int:
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
            materialized=AGENT if number == len(rows) else None,
            rows=tuple(rows),
            admitted=frozenset(row.submission_id for row in rows),
            batches=tuple(batches),
        )
        store.write([change])
    return log.sequence


def _submission(log: _Log, batches: list[Batch], number: int, text: str) -> Row:
    """Append the batches of one settled submission; its ledger row."""
    name = f"{log.conversation_id}-sub-{number}"
    run = facts.run_id_of(name)
    said = InputRecorded(id=input_record_id(name), submission_id=name, queue_sequence=number, content="hello")
    created = ConversationCreated(
        id=record_id("conversation", log.conversation_id), conversation_id=log.conversation_id, agent=AGENT
    )
    began = RunStarted(
        id=record_id("run_started", name),
        run_id=run,
        submission_id=name,
        agent=AGENT,
        agent_digest="d",
        started_at_ms=1,
    )
    batches.append(log.batch(name, *([created] if number == 1 else []), said, began))
    input_sequence = log.sequence - 1
    asked = ModelResponse(tool_calls=(ToolCallRequest(id="call_0", name="look_up", arguments="{}"),))
    batches.append(log.batch(name, facts.model_responded(run, 1, asked), _prepared(run)))
    batches.append(log.batch(name, _returned(run)))
    answered = facts.model_responded(run, 2, ModelResponse(content=text))
    ended = RunCompleted(id=record_id("run_completed", run), run_id=run, outcome="completed")
    settled = SubmissionSettled(
        id=settlement_record_id(name),
        settlement_id=f"stl-{name}",
        submission_id=name,
        outcome="completed",
        run_id=run,
        output=text,
    )
    batches.append(log.batch(name, answered, ended, settled))
    reservation = Reservation(
        settlement_id=settled.settlement_id, outcome="completed", body="", digest=digest_of(encode_records((settled,)))
    )
    return Row(
        submission_id=name,
        receipt_id=f"rcp-{name}",
        conversation_id=log.conversation_id,
        principal="alice",
        idempotency_key=f"key-{name}",
        input_digest="digest",
        queue_sequence=number,
        agent=AGENT,
        input="",
        state=State.COMPLETED,
        admitted_at_ms=1,
        updated_at_ms=1,
        attempts=1,
        epoch=number,
        input_sequence=input_sequence,
        reservation=reservation,
        settlement_sequence=log.sequence,
        outcome="completed",
        settled_at_ms=1,
    )


def _prepared(run: str) -> ToolCallPrepared:
    call = facts.call_id_of(run, 1, 0)
    return ToolCallPrepared(
        id=record_id("tool_call_prepared", call, 1),
        run_id=run,
        call_id=call,
        tool="look_up",
        tool_digest="d",
        input_digest="d",
        effect="idempotent",
        idempotency_key=facts.idempotency_key_of(call),
    )


def _returned(run: str) -> ToolCallSettled:
    call = facts.call_id_of(run, 1, 0)
    return ToolCallSettled(
        id=record_id("tool_call_settled", call), run_id=run, call_id=call, outcome="succeeded", result="r" * 20
    )
