"""What a lane does for work that nobody runs: units without an attempt's fence, each safe to repeat."""

from __future__ import annotations

import logging

from ...recovery.classify import classify, evidence_of
from ...storage.commands import (
    Append,
    DecideApproval,
    Finalize,
    MarkReady,
    Materialize,
    ReserveSettlement,
    Unit,
)
from ...storage.errors import Fenced, IllegalTransition, Refused, StaleTail
from ...storage.ledger import EXPIRY, Row
from ...storage.records import encode_records
from . import facts
from .services import LaneServices

_log = logging.getLogger("laneway.lane")


async def finish_materialization(submission_id: str, conversation_id: str, services: LaneServices) -> None:
    """Admitted and not ready: its admission was cut off, and is completed (Specification 4)."""
    commands = (Materialize(submission_id=submission_id), MarkReady(submission_id=submission_id))
    await services.store.commit(Unit(conversation_id=conversation_id, commands=commands))
    services.counts["recovered:finish_materialization"] += 1


async def expire_approvals(submission_id: str, conversation_id: str, services: LaneServices) -> bool:
    """Deny what nobody decided in time, and say whether there was any; the store's clock has the last word."""
    row: Row = (await services.store.snapshot(submission_id)).row
    commands = tuple(
        DecideApproval(
            submission_id=submission_id,
            approval_id=approval_id,
            decision="denied",
            author=EXPIRY,
            reason="nobody decided in time",
        )
        for approval_id, approval in row.approvals.items()
        if approval.decision is None and 0 < approval.expires_at_ms <= services.now_ms()
    )
    if commands:
        await services.store.commit(Unit(conversation_id=conversation_id, commands=commands))
    return bool(commands)


async def settle_aborted(submission_id: str, conversation_id: str, services: LaneServices) -> bool:
    """Settle work that nobody runs by its abort intent; False where somebody runs it, and the intent alone stands.

    An outcome that stands on record is no abort's to change: whoever claims the work next settles it (DUR-012).
    """
    evidence = evidence_of(await services.store.snapshot(submission_id))
    if evidence.row.abort is None or classify(evidence).name == "finish":
        return False
    records, reserve = facts.aborted_unowned(evidence)
    append = Append(
        submission_id=submission_id,
        batch_id=facts.abort_batch_id(submission_id),
        producer_id=services.owner_id,
        body=encode_records(records).decode(),
    )
    commands: tuple[ReserveSettlement | Append | Finalize, ...] = (
        reserve,
        append,
        Finalize(submission_id=submission_id),
    )
    try:
        await services.store.commit(Unit(conversation_id=conversation_id, commands=commands))
    except (Fenced, Refused, StaleTail, IllegalTransition) as error:
        _log.info("%s: %s is left to its owner: %s", conversation_id, submission_id, error)
        return False
    return True
