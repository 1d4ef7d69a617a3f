"""What people decide on open work: checked, authorised, then one unit that needs no owner (Specification 10, 16)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..agents.authority import Act, Action, Authorize, act_on, require
from ..recovery.classify import Evidence, evidence_of
from ..storage.commands import DecideApproval, Decided, Moved, ResolveUnknown, Unit
from ..storage.errors import InvalidInput, Refused
from ..storage.projection import CallView
from ..storage.records import ApprovalRequested, Resolution
from .lane.services import LaneStore


class ApprovalDecision(msgspec.Struct, frozen=True, kw_only=True):
    """`approval` names the approval or its call; left out, the only open one is meant.

    `arguments_digest`, where given, must be that of the arguments which the request binds.
    """

    submission_id: str
    decision: Literal["approved", "denied"]
    author: str
    reason: str = ""
    approval: str | None = None
    arguments_digest: str | None = None


class UnknownResolution(msgspec.Struct, frozen=True, kw_only=True):
    """`call_id` left out means the only call that is open as unknown. `result` belongs to completed_with_result."""

    submission_id: str
    resolution: Resolution
    author: str
    reason: str
    call_id: str | None = None
    result: Any = None


Decision = ApprovalDecision | UnknownResolution


async def carry_out(store: LaneStore, authorize: Authorize | None, decision: Decision) -> Decided | Moved:
    """Record the decision; the lane goes on when nothing else is waited for.

    Raises: NotFound; InvalidInput where it must name a call; Refused with the code of the recorded fact that it
    contradicts: "approval_not_open", "already_decided", "approval_digest_mismatch", "call_not_unknown",
    "already_resolved", "already_settled", "not_authorised".
    """
    evidence = evidence_of(await store.snapshot(decision.submission_id))
    if isinstance(decision, ApprovalDecision):
        return await _decide_approval(store, authorize, decision, evidence)
    return await _resolve(store, authorize, decision, evidence)


async def _decide_approval(
    store: LaneStore, authorize: Authorize | None, decision: ApprovalDecision, evidence: Evidence
) -> Decided:
    call = _asked(evidence, decision.approval)
    assert call.approval is not None
    await require(authorize, _act("approve" if decision.decision == "approved" else "deny", decision, evidence, call))
    _require_binding(call.approval, decision)
    command = DecideApproval(
        submission_id=decision.submission_id,
        approval_id=call.approval.approval_id,
        decision=decision.decision,
        author=decision.author,
        reason=decision.reason,
        call_id=call.call.id,
        input_digest=call.approval.input_digest,
    )
    accepted = await store.commit(Unit(conversation_id=evidence.row.conversation_id, commands=(command,)))
    decided = accepted.results[0]
    assert isinstance(decided, Decided)
    if decided.decision != decision.decision:
        raise Refused(
            f"{decided.author} has {decided.decision} approval {call.approval.approval_id} before",
            code="already_decided",
            decision=decided.decision,
            author=decided.author,
        )
    return decided


def _require_binding(asked: ApprovalRequested, decision: ApprovalDecision) -> None:
    """The log binds the arguments, also before the ledger knows of the request: a decision that was taken for others
    would keep the work from ever being suspended."""
    if decision.arguments_digest not in (None, asked.input_digest):
        raise Refused(
            f"approval {asked.approval_id} binds other arguments",
            code="approval_digest_mismatch",
            recorded_digest=asked.input_digest,
            given_digest=decision.arguments_digest,
        )


def _asked(evidence: Evidence, name: str | None) -> CallView:
    row, run = evidence.row, evidence.run
    calls = [call for turn in (run.turns if run else ()) for call in turn.calls if call.approval is not None]
    if name is not None:
        for call in calls:
            if name in (call.call.id, call.approval.approval_id if call.approval else None):
                return call
        raise Refused(f"{row.submission_id} has asked for no approval {name}", code="approval_not_open", approval=name)
    still_open = [call for call in calls if call.decision is None and not _decision_of(evidence, call)]
    if not still_open or row.settled:
        settled = f", settled as {row.outcome}" if row.settled else ""
        message = f"{row.submission_id} is {row.state}{settled}: no approval is open"
        raise Refused(message, code="approval_not_open", state=str(row.state), outcome=row.outcome)
    if len(still_open) > 1:
        names = ", ".join(f"{call.approval.approval_id} ({call.call.name})" for call in still_open if call.approval)
        raise InvalidInput(f"several approvals are open, name one: {names}", field="approval")
    return still_open[0]


def _decision_of(evidence: Evidence, call: CallView) -> str | None:
    known = evidence.row.approvals.get(call.approval.approval_id) if call.approval else None
    return known.decision if known else None


async def _resolve(
    store: LaneStore, authorize: Authorize | None, decision: UnknownResolution, evidence: Evidence
) -> Moved:
    call_id = decision.call_id or _only_unknown(evidence)
    call = evidence.view.calls.get(call_id)
    await require(authorize, _act("resolve", decision, evidence, call))
    command = ResolveUnknown(
        submission_id=decision.submission_id,
        call_id=call_id,
        resolution=decision.resolution,
        author=decision.author,
        reason=decision.reason,
        result=decision.result,
    )
    accepted = await store.commit(Unit(conversation_id=evidence.row.conversation_id, commands=(command,)))
    moved = accepted.results[0]
    assert isinstance(moved, Moved)
    return moved


def _only_unknown(evidence: Evidence) -> str:
    row = evidence.row
    waiting = [call_id for call_id, known in row.unknown_calls.items() if known.resolution is None]
    if not waiting:
        settled = f", settled as {row.outcome}" if row.settled else ""
        message = f"{row.submission_id} is {row.state}{settled}: no call of it is open as unknown"
        raise Refused(message, code="call_not_unknown", state=str(row.state), outcome=row.outcome)
    if len(waiting) > 1:
        raise InvalidInput(f"several calls are unknown, name one: {', '.join(waiting)}", field="call_id")
    return waiting[0]


def _act(action: Action, decision: Decision, evidence: Evidence, call: CallView | None) -> Act:
    details: dict[str, Any] = {}
    if call is not None:
        details = {"tool": call.call.name, "arguments": call.call.arguments, "call_id": call.call.id}
    if isinstance(decision, UnknownResolution):
        details |= {"resolution": decision.resolution, "result": decision.result}
    return act_on(evidence.row, action, decision.author, decision.reason, details)
