"""What the auditor holds approvals and durable steps against: the log as it stands, and what really was done."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from simulation.agents import asks
from simulation.promises import require

from laneway.storage.ledger import EXPIRY, Row
from laneway.storage.projection import CallView, ConversationView
from laneway.storage.records import (
    ApprovalDecided,
    ApprovalRequested,
    StepSettled,
    ToolCallPrepared,
    ToolCallSettled,
)
from laneway.storage.values import digest_of

if TYPE_CHECKING:
    from simulation.supplier import Supplier


class CallAudit:
    """Looks at each record of a call before it is folded into the view of its conversation."""

    def __init__(self, reached: Counter[str]) -> None:
        self._reached = reached
        self._steps: dict[tuple[str, str], StepSettled] = {}

    # --- approvals (Specification 8) ---------------------------------------------------------------------------------

    def requested(self, view: ConversationView, record: ApprovalRequested) -> None:
        """A call is asked for once, before anything of its batch runs, and with its own arguments."""
        call = view.calls[record.call_id]
        require(call.approval is None, f"the approval of {record.call_id} was asked for twice")
        began = [other.call.id for other in batch_of(view, call) if other.prepared is not None]
        require(not began, f"an approval of {record.call_id} is asked for and {began} of its batch began")
        bound = record.input_digest == digest_of(call.call.arguments.encode())
        require(bound, f"the approval of {record.call_id} binds other arguments")

    def decided(self, view: ConversationView, rows: dict[str, Row], record: ApprovalDecided) -> None:
        """A request is decided once, as the ledger has it; one that nobody needs any more is closed."""
        asked = [
            call for call in view.calls.values() if call.approval and call.approval.approval_id == record.approval_id
        ]
        require(len(asked) == 1, f"{record.approval_id} was decided, and {len(asked)} calls asked for it")
        require(asked[0].decision is None, f"{record.approval_id} was decided twice")
        self._reached[f"approval:{'expired' if record.author == EXPIRY else record.decision}"] += 1
        if record.decision == "closed":
            return
        row = rows[view.runs[record.run_id].submission_id]
        known = row.approvals.get(record.approval_id)
        same = known is not None and (known.decision, known.author) == (record.decision, record.author)
        require(same, f"the log has {record.decision} by {record.author} and the ledger {known}")

    def prepared(self, view: ConversationView, record: ToolCallPrepared) -> None:
        """Nothing of a batch begins while a request is open, and what needs an approval has it for these arguments."""
        call = view.calls[record.call_id]
        objection = objection_to(view, call)
        require(objection is None, f"{record.call_id} was prepared: {objection}")
        approval = call.approval
        require(
            approval is None or approval.input_digest == record.input_digest,
            f"{record.call_id} was prepared with other arguments than were approved",
        )

    def settled(self, call: CallView, record: ToolCallSettled, supplier: Supplier) -> None:
        """A call that nobody approved was never executed."""
        if call.approval is not None and (call.decision is None or call.decision.decision != "approved"):
            ran = record.outcome == "succeeded" or supplier.count(record.call_id) > 0
            require(not ran, f"{record.call_id} was not approved, and ran")

    # --- durable steps (DUR-010) -------------------------------------------------------------------------------------

    def step(self, view: ConversationView, record: StepSettled, supplier: Supplier) -> None:
        """A step has one result, from an execution of this step, recorded while its call is open."""
        call, key = view.calls[record.call_id], (record.call_id, record.name)
        require(key not in self._steps, f"step {record.name} of {record.call_id} has two results (DUR-010)")
        require(call.open and call.prepared is not None, f"a step of {record.call_id}, which is not being run")
        made = supplier.made(record.call_id, record.name, record.result)
        require(made, f"the result of step {record.name} of {record.call_id} was never produced (DUR-010)")
        self._steps[key] = record
        self._reached[f"step:{call.call.name}"] += 1

    def recorded_step(self, call_id: str, name: str) -> Any:
        """The record of a step, None before it has one."""
        return self._steps.get((call_id, name))


def batch_of(view: ConversationView, call: CallView) -> list[CallView]:
    """The calls of one response."""
    return view.runs[call.run_id].turns[call.turn - 1].calls


def objection_to(view: ConversationView, call: CallView) -> str | None:
    """Why the call must not run as things stand in the log; None when nothing says so."""
    for other in batch_of(view, call):
        if other.approval is not None and other.decision is None:
            return f"the approval of {other.call.id} in its batch is open"
        if other.approval is None and asks(other.call) and other.prepared is None and other.open:
            return f"{other.call.id} in its batch needs an approval, and nobody was asked"
    if call.decision is not None and call.decision.decision != "approved":
        return f"its approval was {call.decision.decision}"
    return None
