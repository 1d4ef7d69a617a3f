"""The records and commands that follow from facts alone: the same facts give the same bytes, whoever writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...recovery.classify import Decision, Evidence, asked_calls, unproven_calls
from ...storage.commands import Claim, ReserveSettlement
from ...storage.ids import derive_id
from ...storage.ledger import Row, State
from ...storage.projection import CallView, ConversationView
from ...storage.records import (
    AbortRequested,
    AnyRecord,
    ApprovalDecided,
    ApprovalRequested,
    CompactionCreated,
    ConversationCreated,
    ErrorFact,
    InputRecorded,
    ModelInterrupted,
    ModelResponded,
    Outcome,
    RecoveryDecided,
    RepairAnnotated,
    RetryOf,
    RunCompleted,
    RunStarted,
    StepSettled,
    SubmissionSettled,
    ToolCall,
    ToolCallPrepared,
    ToolCallResolved,
    ToolCallSettled,
    ToolCallUnknown,
    encode_records,
    input_record_id,
    record_id,
    settlement_record_id,
)
from ...storage.values import decode, digest_of

if TYPE_CHECKING:
    from ...agents.agent import Agent
    from ...agents.protocol import ModelResponse
    from ...agents.tools import Tool
    from .values import Admission


def run_id_of(submission_id: str) -> str:
    return derive_id("run", submission_id)


def call_id_of(run_id: str, turn: int, position: int) -> str:
    """Laneway's own id of a call: unique in the deployment, whatever the provider calls it."""
    return derive_id("call", run_id, turn, position)


def approval_id_of(call_id: str) -> str:
    return derive_id("apr", call_id)


def idempotency_key_of(call_id: str) -> str:
    """What a tool hands to the provider of its effect: the same for every execution of the call."""
    return derive_id("key", call_id)


def step_id_of(call_id: str, name: str, version: int) -> str:
    """The step's identity within its call: the same for every execution (Specification 11)."""
    return derive_id("step", call_id, name, version)


def abort_batch_id(submission_id: str) -> str:
    return derive_id("bat", "abort", submission_id)


def admitted_row(admission: Admission, conversation_id: str, claim: Claim, sequence: int) -> Row:
    """The row as this unit's admission and claim will leave it on an idle lane, if `sequence` is the next one."""
    return Row(
        submission_id=admission.submission_id,
        receipt_id=admission.receipt_id,
        conversation_id=conversation_id,
        principal=admission.principal,
        idempotency_key=admission.idempotency_key,
        input_digest=admission.input_digest,
        queue_sequence=sequence,
        agent=admission.agent,
        input=admission.input,
        state=State.RUNNING,
        admitted_at_ms=0,
        updated_at_ms=0,
        attempts=1,
        attempt_id=claim.attempt_id,
    )


def input_records(row: Row, view: ConversationView) -> tuple[AnyRecord, ...]:
    """The input as history; before the first one, the conversation's creation."""
    payload: dict[str, Any] = decode(row.input)
    applied = InputRecorded(
        id=input_record_id(row.submission_id),
        submission_id=row.submission_id,
        queue_sequence=row.queue_sequence,
        content=payload["content"],
        principal=row.principal,
        extra=payload.get("extra", {}),
        steers=row.steers,
        retry_of=msgspec.convert(payload["retry_of"], RetryOf) if "retry_of" in payload else None,
    )
    if view.tail_sequence > 0:
        return (applied,)
    created = ConversationCreated(
        id=record_id("conversation", row.conversation_id), conversation_id=row.conversation_id, agent=row.agent
    )
    return (created, applied)


def run_started(row: Row, agent: Agent, now_ms: int) -> RunStarted:
    return RunStarted(
        id=record_id("run_started", row.submission_id),
        run_id=run_id_of(row.submission_id),
        submission_id=row.submission_id,
        agent=agent.name,
        agent_digest=agent.digest,
        started_at_ms=now_ms,
    )


def model_responded(run_id: str, turn: int, response: ModelResponse) -> ModelResponded:
    usage: dict[str, Any] = {}
    if response.usage is not None:
        usage = {"input_tokens": response.usage.input_tokens, "output_tokens": response.usage.output_tokens}
        if response.usage.details:
            usage["details"] = response.usage.details
    return ModelResponded(
        id=record_id("model_responded", run_id, turn),
        run_id=run_id,
        turn=turn,
        content=response.content,
        tool_calls=tuple(
            ToolCall(
                id=call_id_of(run_id, turn, position),
                provider_id=call.id,
                name=call.name,
                arguments=call.arguments,
                extra=call.extra,
            )
            for position, call in enumerate(response.tool_calls)
        ),
        finish_reason=response.finish_reason,
        model=response.model,
        reasoning=response.reasoning,
        usage=usage,
        extra=response.extra,
    )


def model_interrupted(run_id: str, turn: int, attempt_id: str, tries: int, reason: str) -> ModelInterrupted:
    return ModelInterrupted(
        id=record_id("model_interrupted", run_id, turn, attempt_id, tries),
        run_id=run_id,
        turn=turn,
        attempt_id=attempt_id,
        reason=reason,
    )


def compaction_created(run_id: str, covers_sequence: int, covers_responses: int, artifact: Any) -> CompactionCreated:
    return CompactionCreated(
        id=record_id("compaction_created", run_id, covers_sequence),
        run_id=run_id,
        covers_sequence=covers_sequence,
        covers_responses=covers_responses,
        artifact=artifact,
    )


def call_prepared(call: CallView, tool: Tool) -> ToolCallPrepared:
    return ToolCallPrepared(
        id=record_id("tool_call_prepared", call.call.id, call.preparations + 1),
        run_id=call.run_id,
        call_id=call.call.id,
        tool=tool.name,
        tool_digest=tool.digest,
        input_digest=digest_of(call.call.arguments.encode()),
        effect=tool.effect,
        idempotency_key=idempotency_key_of(call.call.id),
    )


def approval_requested(call: CallView, tool: Tool, now_ms: int) -> ApprovalRequested:
    expires = 0 if tool.approval_expires_s is None else now_ms + int(tool.approval_expires_s * 1000)
    return ApprovalRequested(
        id=record_id("approval_requested", call.call.id),
        run_id=call.run_id,
        approval_id=approval_id_of(call.call.id),
        call_id=call.call.id,
        tool=tool.name,
        input_digest=digest_of(call.call.arguments.encode()),
        tool_digest=tool.digest,
        requested_at_ms=now_ms,
        expires_at_ms=expires,
    )


def approval_decided(call: CallView, decision: Any, author: str, reason: str, waited_ms: int = 0) -> ApprovalDecided:
    assert call.approval is not None
    return ApprovalDecided(
        id=record_id("approval_decided", call.approval.approval_id),
        run_id=call.run_id,
        approval_id=call.approval.approval_id,
        decision=decision,
        author=author,
        reason=reason,
        waited_ms=waited_ms,
    )


def step_result_dropped(settled: StepSettled, digest: str) -> RepairAnnotated:
    """Another execution of a step gave another result: it is refused, and that is on record."""
    return RepairAnnotated(
        id=record_id("repair_annotated", settled.step_id, digest),
        subject=settled.step_id,
        note=f"another result of step {settled.name} was dropped: its digest is {digest}",
    )


def call_succeeded(
    call: CallView, result: Any, *, author: str = "tool", message_keys: dict[str, Any] | None = None
) -> ToolCallSettled:
    return ToolCallSettled(
        id=record_id("tool_call_settled", call.call.id),
        run_id=call.run_id,
        call_id=call.call.id,
        outcome="succeeded",
        result=result,
        author=author,
        message_keys=message_keys,
    )


def call_failed(call: CallView, error: ErrorFact) -> ToolCallSettled:
    return ToolCallSettled(
        id=record_id("tool_call_settled", call.call.id),
        run_id=call.run_id,
        call_id=call.call.id,
        outcome="failed",
        error=error,
    )


def step_settled(call: CallView, name: str, version: int, result: Any) -> StepSettled:
    return StepSettled(
        id=record_id("step_settled", call.call.id, name, version),
        run_id=call.run_id,
        call_id=call.call.id,
        step_id=step_id_of(call.call.id, name, version),
        name=name,
        version=version,
        result=result,
    )


def call_unknown(call: CallView, reason: str) -> ToolCallUnknown:
    return ToolCallUnknown(
        id=record_id("tool_call_unknown", call.call.id, call.preparations),
        run_id=call.run_id,
        call_id=call.call.id,
        reason=reason,
    )


def call_resolved(
    call: CallView, resolution: Any, author: str, reason: str, result: Any = None, waited_ms: int = 0
) -> ToolCallResolved:
    return ToolCallResolved(
        id=record_id("tool_call_resolved", call.call.id, call.preparations),
        run_id=call.run_id,
        call_id=call.call.id,
        resolution=resolution,
        author=author,
        reason=reason,
        result=result,
        waited_ms=waited_ms,
    )


def recovery_decided(row: Row, epoch: int, decision: Decision, *, planned: bool = False) -> RecoveryDecided:
    return RecoveryDecided(
        id=record_id("recovery_decided", row.submission_id, epoch),
        submission_id=row.submission_id,
        attempt_id=row.attempt_id or "",
        epoch=epoch,
        decision=decision.name,
        evidence=decision.evidence,
        planned=planned,
    )


def abort_requested(row: Row) -> AbortRequested:
    assert row.abort is not None
    return AbortRequested(
        id=record_id("abort_requested", row.submission_id),
        submission_id=row.submission_id,
        abort_id=row.abort.abort_id,
        author=row.abort.author,
        reason=row.abort.reason,
    )


def run_completed(run_id: str, outcome: Outcome, output: Any, error: ErrorFact | None) -> RunCompleted:
    return RunCompleted(
        id=record_id("run_completed", run_id), run_id=run_id, outcome=outcome, output=output, error=error
    )


def settlement(
    submission_id: str, run_id: str | None, outcome: Outcome, output: Any = None, error: ErrorFact | None = None
) -> tuple[SubmissionSettled, ReserveSettlement]:
    """The one settlement and the reservation of exactly its bytes (DUR-011)."""
    record = SubmissionSettled(
        id=settlement_record_id(submission_id),
        settlement_id=derive_id("stl", submission_id),
        submission_id=submission_id,
        outcome=outcome,
        run_id=run_id,
        output=output,
        error=error,
    )
    body = encode_records((record,)).decode()
    reserve = ReserveSettlement(
        submission_id=submission_id, settlement_id=record.settlement_id, outcome=outcome, body=body
    )
    return record, reserve


def abort_evidence(row: Row, view: ConversationView) -> tuple[AnyRecord, ...]:
    """What goes on record beside an abort, if it is not there: the intent, calls that nobody can prove, and requests
    that nobody needs to decide any more (Specification 13)."""
    assert row.abort is not None
    records: list[AnyRecord] = []
    if row.submission_id not in view.aborts:
        records.append(abort_requested(row))
    run = view.run_of(row.submission_id)
    if run is not None:
        records.extend(call_unknown(call, "aborted before its outcome was known") for call in unproven_calls(run))
        author, reason = row.abort.author, "the submission was aborted"
        records.extend(approval_decided(call, "closed", author, reason) for call in asked_calls(run))
    return tuple(records)


def aborted_unowned(evidence: Evidence) -> tuple[tuple[AnyRecord, ...], ReserveSettlement]:
    """The abort, its evidence and the settlement of work that nobody runs (Specification 13)."""
    row, run = evidence.row, evidence.run
    settled, reserve = settlement(row.submission_id, run.run_id if run else None, "aborted")
    return (*abort_evidence(row, evidence.view), settled), reserve
