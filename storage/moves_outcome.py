"""Moves towards an outcome: approvals, Unknown, abort, settlement (Specification 10, 12, 13 and 16)."""

from __future__ import annotations

from typing import Any

import msgspec

from .commands import (
    AbortAnswer,
    DecideApproval,
    Decided,
    Finalize,
    MarkUnknown,
    Moved,
    RequestAbort,
    ReserveSettlement,
    ResolveUnknown,
    Suspend,
)
from .errors import InvalidInput, Refused
from .ledger import EXPIRY, SETTLE_EVENTS, Abort, Approval, Event, Reservation, Row, State, UnknownCall
from .moves_log import decode_given
from .records import (
    AnyRecord,
    SubmissionSettled,
    decode_records,
    encode_records,
    input_record_id,
    settlement_record_id,
)
from .values import check_json, digest_of, encode
from .work import Work, settles_by_abort_alone

_ERROR_BYTES_MAX = 16_384  # a recorded error is for people: enough for a trace, never a payload


def suspend(work: Work, command: Suspend) -> Moved:
    """Decisions that raced ahead count: when all are there, the work goes on at once."""
    row = work.row(command.submission_id)
    if row.state is State.SUSPENDED:
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    work.require_fence(row.submission_id)
    approvals = dict(row.approvals)
    for request in command.approvals:
        known = approvals.get(request.approval_id)
        if known is None:
            approvals[request.approval_id] = Approval(
                call_id=request.call_id,
                input_digest=request.input_digest,
                requested=True,
                expires_at_ms=request.expires_at_ms,
            )
        elif known.input_digest in ("", request.input_digest):
            approvals[request.approval_id] = msgspec.structs.replace(
                known,
                call_id=request.call_id,
                input_digest=request.input_digest,
                requested=True,
                expires_at_ms=request.expires_at_ms,
            )
        else:
            raise Refused(
                f"approval {request.approval_id} was decided for other arguments", code="approval_digest_mismatch"
            )
    if all(approvals[request.approval_id].decision for request in command.approvals):
        row = work.put(row, approvals=approvals)
        return Moved(submission_id=row.submission_id, state=row.state)
    open_until = [item.expires_at_ms for item in approvals.values() if not item.decision and item.expires_at_ms]
    row = work.move(
        row,
        Event.SUSPEND,
        approvals=approvals,
        token=None,
        owner_id=None,
        not_before_ms=min(open_until, default=0),  # when somebody has to look, should nobody decide
    )
    work.drop_owner(row)
    return Moved(submission_id=row.submission_id, state=row.state)


def decide_approval(work: Work, command: DecideApproval) -> Decided:
    """The first decision wins; repeating it is idempotent, another one is answered with the first."""
    row = work.row(command.submission_id)
    known = row.approvals.get(command.approval_id)
    if known is not None and known.decision is not None:
        return Decided(decision=known.decision, author=known.author or "", state=row.state, replayed=True)
    if row.settled:
        raise Refused(f"{row.submission_id} is settled", code="already_settled", outcome=row.outcome)
    if known is not None and command.input_digest is not None and known.input_digest not in ("", command.input_digest):
        raise Refused(
            f"approval {command.approval_id} binds other arguments",
            code="approval_digest_mismatch",
            recorded_digest=known.input_digest,
            given_digest=command.input_digest,
        )
    known = known or Approval(call_id=command.call_id, input_digest=command.input_digest or "")
    decision, author, reason = command.decision, command.author, command.reason
    if known.expires_at_ms and work.now_ms >= known.expires_at_ms:
        decision, author, reason = "denied", EXPIRY, "nobody decided in time"
    decided = msgspec.structs.replace(known, decision=decision, author=author, reason=reason)
    row = work.put(row, approvals={**row.approvals, command.approval_id: decided})
    if row.state is State.SUSPENDED and all(item.decision for item in row.approvals.values() if item.requested):
        row = work.move(row, Event.DECIDE, not_before_ms=0)
    return Decided(decision=decision, author=author, state=row.state)


def mark_unknown(work: Work, command: MarkUnknown) -> Moved:
    """DUR-009: idempotent, and it can extend. The lane's permit is given back; the obligation stays."""
    row = work.row(command.submission_id)
    if not command.calls:
        raise InvalidInput("no call is named; without one nobody could resolve the work", field="calls")
    waiting = row.state is State.UNKNOWN
    missing = {
        call_id: reason
        for call_id, reason in command.calls.items()
        if (known := row.unknown_calls.get(call_id)) is None or (known.resolution is not None and not waiting)
    }
    if waiting and not missing:
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    work.require_fence(row.submission_id)
    calls = dict(row.unknown_calls)  # a call that was resolved, run again and lost again is open again
    for call_id, reason in missing.items():
        calls[call_id] = UnknownCall(reason=reason, since_ms=work.now_ms)
    row = work.move(row, Event.MARK_UNKNOWN, unknown_calls=calls, parked=command.park)
    return Moved(submission_id=row.submission_id, state=row.state)


def resolve_unknown(work: Work, command: ResolveUnknown) -> Moved:
    """One answer a call; the lane reopens when every marked call is covered (DUR-017)."""
    row = work.row(command.submission_id)
    limits = work.limits
    result = check_json(
        command.result, "result", bytes_max=limits.tool_result_bytes_max, depth_max=limits.json_depth_max
    )
    call = row.unknown_calls.get(command.call_id)
    if call is None:
        raise Refused(f"call {command.call_id} is not open as unknown", code="call_not_unknown", state=str(row.state))
    if call.resolution is not None:
        if call.resolution == command.resolution and encode(call.result) == result:
            return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
        raise Refused(
            f"call {command.call_id} was resolved as {call.resolution} by {call.author}",
            code="already_resolved",
            resolution=call.resolution,
            author=call.author,
        )
    if row.state is not State.UNKNOWN:
        raise Refused(f"{row.submission_id} is {row.state}", code="not_unknown", state=str(row.state))
    resolved = msgspec.structs.replace(
        call,
        resolution=command.resolution,
        author=command.author,
        note=command.reason,
        result=command.result,
    )
    row = work.put(row, unknown_calls={**row.unknown_calls, command.call_id: resolved})
    if all(item.resolution for item in row.unknown_calls.values()):
        row = work.move(row, Event.RESOLVE, token=None, owner_id=None)
        work.drop_owner(row)
    return Moved(submission_id=row.submission_id, state=row.state)


def _input_in_log(work: Work, row: Row) -> bool:
    return input_record_id(row.submission_id) in work.trace(row.submission_id).records


def request_abort(work: Work, command: RequestAbort) -> AbortAnswer:
    """DUR-012: durable, idempotent, and never against a terminal outcome."""
    row = work.row(command.submission_id)
    if row.settled:
        if row.abort is not None and row.abort.abort_id == command.abort_id:
            return AbortAnswer(abort=row.abort, state=row.state, replayed=True)
        raise Refused(f"{row.submission_id} is settled as {row.outcome}", code="already_settled", outcome=row.outcome)
    if row.abort is not None:
        return AbortAnswer(abort=row.abort, state=row.state, replayed=True)
    if row.state is State.JOINED or (row.state is State.JOINING and _input_in_log(work, row)):
        raise Refused(  # what the model has read cannot be taken back; the outcome is the host's
            f"{row.submission_id} has joined the run of {row.host_id} and settles with it; abort that instead",
            code="joined",
            host_id=row.host_id,
        )
    abort = Abort(abort_id=command.abort_id, author=command.author, reason=command.reason, at_ms=work.now_ms)
    row = work.put(row, abort=abort)
    return AbortAnswer(abort=abort, state=row.state)


def reserve_settlement(work: Work, command: ReserveSettlement) -> Moved:
    """DUR-011: one exact record; the same again is fine, anything else is refused."""
    row = work.row(command.submission_id)
    records = decode_given(work, command.body, "body")
    body = encode_records(records).decode()  # compared by value: two orders of keys are one settlement
    digest = digest_of(body.encode())
    if row.reservation is not None and row.reservation.digest == digest:
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    if row.settled or row.reservation is not None:
        raise Refused(
            f"{row.submission_id} has the settlement {row.outcome or (row.reservation and row.reservation.outcome)}",
            code="settlement_conflict",
            outcome=row.outcome or (row.reservation and row.reservation.outcome),
        )
    _check_settlement_record(row, command, records)
    reservation = Reservation(settlement_id=command.settlement_id, outcome=command.outcome, body=body, digest=digest)
    if settles_by_abort_alone(row):
        if command.outcome != "aborted":
            raise Refused("an abort intent authorises an aborted settlement alone", code="not_authorised")
        work.drop_owner(row)
        row = work.move(row, Event.RESERVE, reservation=reservation, token=None, owner_id=None)
        return Moved(submission_id=row.submission_id, state=row.state)
    work.require_fence(row.submission_id)
    if row.state is State.JOINED:
        row = work.put(row, reservation=reservation)
    else:
        if row.state not in (State.RUNNING, State.RECOVERY):
            raise Refused(f"{row.submission_id} is {row.state}", code="not_running", state=str(row.state))
        row = work.move(row, Event.RESERVE, reservation=reservation)
    return Moved(submission_id=row.submission_id, state=row.state)


def _check_settlement_record(row: Row, command: ReserveSettlement, records: tuple[AnyRecord, ...]) -> None:
    record = records[0] if len(records) == 1 else None
    if not isinstance(record, SubmissionSettled):
        raise Refused("a reservation holds exactly one settlement", code="settlement_invalid")
    fits = (
        record.submission_id == row.submission_id
        and record.settlement_id == command.settlement_id
        and record.outcome == command.outcome
        and record.id == settlement_record_id(row.submission_id)
    )
    if not fits:
        raise Refused("the settlement record is not the one reserved", code="settlement_invalid")
    if record.outcome == "aborted" and record.output is not None:
        raise Refused("an aborted settlement carries no output", code="settlement_invalid")
    if (record.outcome == "failed") != (record.error is not None):
        raise Refused("a failed settlement carries its error, and no other does", code="settlement_invalid")
    if record.error is not None and len(encode(record.error)) > _ERROR_BYTES_MAX:
        raise Refused("the settlement's error is too large", code="settlement_invalid", limit=_ERROR_BYTES_MAX)


def finalize(work: Work, command: Finalize) -> Moved:
    """The ledger follows history: idempotent, and it keeps the first time (Specification 12)."""
    row = work.row(command.submission_id)
    if row.settled:
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    sequence = work.trace(row.submission_id).records.get(settlement_record_id(row.submission_id))
    if sequence is None or row.reservation is None:
        raise Refused(f"the settlement of {row.submission_id} is not in the log", code="settlement_not_canonical")
    outcome = row.reservation.outcome
    error_code = _error_code(row.reservation) if outcome == "failed" else None
    row = work.move(
        row,
        SETTLE_EVENTS[outcome],
        outcome=outcome,
        error_code=error_code,
        settled_at_ms=work.now_ms,
        settlement_sequence=sequence,
        reservation=msgspec.structs.replace(row.reservation, body=""),  # its digest still recognises a repeat
        token=None,
        owner_id=None,
        input="",
    )
    work.drop_owner(row)
    return Moved(submission_id=row.submission_id, state=row.state)


def _error_code(reservation: Reservation) -> str | None:
    for record in decode_records(reservation.body, where="the reservation"):
        if isinstance(record, SubmissionSettled) and record.error is not None:
            return record.error.code
    return None


MOVES: dict[type, Any] = {
    Suspend: suspend,
    DecideApproval: decide_approval,
    MarkUnknown: mark_unknown,
    ResolveUnknown: resolve_unknown,
    RequestAbort: request_abort,
    ReserveSettlement: reserve_settlement,
    Finalize: finalize,
}
