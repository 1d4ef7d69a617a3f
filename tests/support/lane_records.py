"""Records and views made by hand: for tests of what is decided from them."""

from __future__ import annotations

from typing import Any

from laneway.actors.lane import facts
from laneway.agents.protocol import ModelResponse, ToolCallRequest
from laneway.storage.ledger import Abort, Reservation, Row, State
from laneway.storage.projection import ConversationView
from laneway.storage.records import (
    AbortRequested,
    AnyRecord,
    ApprovalDecided,
    ApprovalRequested,
    ErrorFact,
    InputRecorded,
    ModelResponded,
    RunCompleted,
    RunStarted,
    StepSettled,
    SubmissionSettled,
    ToolCallPrepared,
    ToolCallResolved,
    ToolCallSettled,
    ToolCallUnknown,
    encode_records,
    input_record_id,
    record_id,
    settlement_record_id,
)
from laneway.storage.values import digest_of

SUBMISSION = "sub_1"


def a_row(submission_id: str = SUBMISSION, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "receipt_id": "rcp_1",
        "conversation_id": "c",
        "principal": "alice",
        "idempotency_key": f"key-{submission_id}",
        "input_digest": "digest",
        "queue_sequence": 1,
        "agent": "support",
        "input": '{"content":"hello"}',
        "state": State.RUNNING,
        "admitted_at_ms": 1,
        "updated_at_ms": 1,
    }
    return Row(submission_id=submission_id, **{**values, **changes})


def a_view(*records: AnyRecord) -> ConversationView:
    view = ConversationView()
    view.extend(records)
    return view


def said(submission_id: str = SUBMISSION, sequence: int = 1, content: Any = "hello") -> InputRecorded:
    return InputRecorded(
        id=input_record_id(submission_id), submission_id=submission_id, queue_sequence=sequence, content=content
    )


def joined(
    submission_id: str, sequence: int, host: str = SUBMISSION, kind: Any = "follow_up", content: Any = "and this?"
) -> InputRecorded:
    """An input that entered its host's run."""
    return InputRecorded(
        id=input_record_id(submission_id),
        submission_id=submission_id,
        queue_sequence=sequence,
        content=content,
        kind=kind,
        run_id=facts.run_id_of(host),
    )


def began(submission_id: str = SUBMISSION) -> RunStarted:
    return RunStarted(
        id=record_id("run_started", submission_id),
        run_id=facts.run_id_of(submission_id),
        submission_id=submission_id,
        agent="support",
        agent_digest="d",
        started_at_ms=1,
    )


def responded(
    turn: int = 1,
    *tools: str,
    submission_id: str = SUBMISSION,
    content: Any = None,
    ids: tuple[str, ...] | None = None,
) -> ModelResponded:
    """A response that calls `tools`; without any, one that says `content`."""
    requests = tuple(
        ToolCallRequest(id=ids[index] if ids else f"call_{index}", name=name, arguments="{}")
        for index, name in enumerate(tools)
    )
    response = ModelResponse(content=content if tools else content or f"answer {turn}", tool_calls=requests)
    return facts.model_responded(facts.run_id_of(submission_id), turn, response)


def call_id(turn: int = 1, position: int = 0, submission_id: str = SUBMISSION) -> str:
    return facts.call_id_of(facts.run_id_of(submission_id), turn, position)


def prepared(
    call: str, effect: Any = "uncertain", number: int = 1, submission_id: str = SUBMISSION
) -> ToolCallPrepared:
    return ToolCallPrepared(
        id=record_id("tool_call_prepared", call, number),
        run_id=facts.run_id_of(submission_id),
        call_id=call,
        tool="charge",
        tool_digest="d",
        input_digest="d",
        effect=effect,
        idempotency_key="k",
    )


def returned(call: str, result: Any = "ok", submission_id: str = SUBMISSION) -> ToolCallSettled:
    return ToolCallSettled(
        id=record_id("tool_call_settled", call),
        run_id=facts.run_id_of(submission_id),
        call_id=call,
        outcome="succeeded",
        result=result,
    )


def stepped(call: str, name: str = "pay", result: Any = "paid", submission_id: str = SUBMISSION) -> StepSettled:
    return StepSettled(
        id=record_id("step_settled", call, name, 1),
        run_id=facts.run_id_of(submission_id),
        call_id=call,
        step_id=facts.step_id_of(call, name, 1),
        name=name,
        version=1,
        result=result,
    )


def unknown(call: str, number: int = 1, submission_id: str = SUBMISSION) -> ToolCallUnknown:
    return ToolCallUnknown(
        id=record_id("tool_call_unknown", call, number),
        run_id=facts.run_id_of(submission_id),
        call_id=call,
        reason="nobody knows",
    )


def resolved(call: str, resolution: Any, number: int = 1, submission_id: str = SUBMISSION) -> ToolCallResolved:
    return ToolCallResolved(
        id=record_id("tool_call_resolved", call, number),
        run_id=facts.run_id_of(submission_id),
        call_id=call,
        resolution=resolution,
        author="ann",
        reason="looked it up",
    )


def asked_approval(call: str, submission_id: str = SUBMISSION) -> ApprovalRequested:
    return ApprovalRequested(
        id=record_id("approval_requested", call),
        run_id=facts.run_id_of(submission_id),
        approval_id=f"apr_{call}",
        call_id=call,
        tool="charge",
        input_digest="d",
    )


def decided(call: str, decision: Any = "approved", submission_id: str = SUBMISSION) -> ApprovalDecided:
    return ApprovalDecided(
        id=record_id("approval_decided", f"apr_{call}"),
        run_id=facts.run_id_of(submission_id),
        approval_id=f"apr_{call}",
        decision=decision,
        author="ann",
    )


def asked_abort(submission_id: str = SUBMISSION) -> AbortRequested:
    return AbortRequested(
        id=record_id("abort_requested", submission_id),
        submission_id=submission_id,
        abort_id="abt_1",
        author="bob",
        reason="enough",
    )


def ended(outcome: Any = "completed", output: Any = None, submission_id: str = SUBMISSION) -> RunCompleted:
    error = ErrorFact(code="broken", message="it broke") if outcome == "failed" else None
    run_id = facts.run_id_of(submission_id)
    return RunCompleted(
        id=record_id("run_completed", run_id), run_id=run_id, outcome=outcome, output=output, error=error
    )


def settled(outcome: Any = "completed", submission_id: str = SUBMISSION, output: Any = None) -> SubmissionSettled:
    error = ErrorFact(code="broken", message="it broke") if outcome == "failed" else None
    return SubmissionSettled(
        id=settlement_record_id(submission_id),
        settlement_id=f"stl_{submission_id}",
        submission_id=submission_id,
        outcome=outcome,
        run_id=facts.run_id_of(submission_id),
        output=output,
        error=error,
    )


def reserved(outcome: Any = "completed") -> Reservation:
    body = encode_records((settled(outcome),)).decode()
    return Reservation(settlement_id="stl_sub_1", outcome=outcome, body=body, digest=digest_of(body.encode()))


ABORT = Abort(abort_id="abt_1", author="bob", reason="enough", at_ms=1)
