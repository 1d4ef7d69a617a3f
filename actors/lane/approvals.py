"""Approvals of tool calls: asked for, waited for without a permit, honoured once (Specification 8)."""

from __future__ import annotations

import logging
from typing import Any

from ...agents.tools import Tool
from ...storage.commands import ApprovalRequest, Suspend
from ...storage.projection import CallView
from . import facts
from .claimed import Claimed

_log = logging.getLogger("laneway.lane")


def must_ask(call: CallView, tool: Tool, arguments: dict[str, Any]) -> bool:
    """Whether a person has to decide on this call and was not asked yet. A rule that fails asks a person."""
    if call.prepared is not None or call.approval is not None:
        return False
    try:
        return tool.needs_approval(arguments)
    except Exception:
        _log.exception("the approval rule of tool %s failed for call %s: a person decides", tool.name, call.call.id)
        return True


async def wait(claimed: Claimed, calls: tuple[CallView, ...]) -> bool:
    """Suspend until the approvals are decided; True when decisions raced ahead and the work goes on at once.

    The canonical requests are the whole footprint: a suspension that is lost is made again from them.
    """
    requests = tuple(
        ApprovalRequest(
            approval_id=call.approval.approval_id,
            call_id=call.call.id,
            input_digest=call.approval.input_digest,
            expires_at_ms=call.approval.expires_at_ms,
        )
        for call in calls
        if call.approval is not None
    )
    claimed.outbox.command(Suspend(submission_id=claimed.submission_id, approvals=requests))
    await claimed.outbox.flush()
    if claimed.outbox.suspended:
        claimed.services.counts["suspended"] += 1
        return False
    snapshot = await claimed.services.store.snapshot(claimed.submission_id)
    claimed.change(approvals=snapshot.row.approvals)
    return True


def apply_decisions(claimed: Claimed, calls: tuple[CallView, ...]) -> None:
    """The decisions become canonical before they are honoured (Specification 8)."""
    asked_at_ms = min(call.approval.requested_at_ms for call in calls if call.approval is not None)
    waited_ms = max(0, claimed.services.now_ms() - asked_at_ms)
    for call in calls:
        assert call.approval is not None
        known = claimed.row.approvals[call.approval.approval_id]
        claimed.outbox.record(
            facts.approval_decided(call, known.decision, known.author or "", known.reason or "", waited_ms)
        )
        waited_ms = 0  # the requests of a batch wait together
