"""Input that enters a run while it is under way: steering, and submissions that join it (Specification 5, DUR-016)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from ...recovery.classify import Evidence, classify
from ...storage.commands import ClaimJoining, Finalize, MarkJoined, RevertJoining
from ...storage.ledger import Row
from ...storage.records import InputRecorded, SubmissionSettled, input_record_id
from ...storage.values import decode
from . import facts
from .claimed import Claimed

_SETTLED_AT_ONCE = 64  # each carries the run's output: more of them would make one commit too large
_log = logging.getLogger("laneway.lane")


async def join(claimed: Claimed) -> None:
    """Claim what waits for this run and bring it into the log, each input once and in its order.

    A run that may not go on, because its abort was asked for or its time is over, gives back what it claimed.
    """
    outbox = claimed.outbox
    async with claimed.arrivals.claiming:
        claimed.looked_after_turn = len(claimed.run.turns) if claimed.run else 0
        claim = ClaimJoining(submission_id=claimed.submission_id)
        if not claimed.agent.join:
            claim = ClaimJoining(submission_id=claimed.submission_id, limit=0)
        outbox.command(claim)
        await outbox.flush()
        assert outbox.joining is not None
        claimed.arrivals.looked(outbox.joining)
        await claimed.carry_out_abort(outbox.abort_seen)
        serves = claimed.row.abort is None and not claimed.out_of_time
        for row in outbox.joining.rows:
            if serves or row.submission_id in claimed.view.inputs:
                _take_in(claimed, row)
            else:
                outbox.command(RevertJoining(submission_id=row.submission_id))
        await outbox.flush()


def _take_in(claimed: Claimed, row: Row) -> None:
    if row.submission_id not in claimed.view.inputs:
        claimed.outbox.record(joined_input(row, claimed.row.submission_id))
        claimed.services.counts["steered" if row.steers == claimed.submission_id else "joined"] += 1
    claimed.outbox.command(MarkJoined(submission_id=row.submission_id))


def joined_input(row: Row, host_id: str) -> InputRecorded:
    """The input of `row` as history of its host's run."""
    payload: dict[str, Any] = decode(row.input)
    steering = row.steers == host_id
    return InputRecorded(
        id=input_record_id(row.submission_id),
        submission_id=row.submission_id,
        queue_sequence=row.queue_sequence,
        content=payload["content"],
        kind="steering" if steering else "follow_up",
        principal=row.principal,
        extra=payload.get("extra", {}),
        run_id=facts.run_id_of(host_id),
        steers=None if steering else row.steers,
    )


def repair(claimed: Claimed, rows: Iterable[Row]) -> None:
    """Rows that a lost attempt left between claim and marker: ready again before their input is canonical, joined for
    good once it is (DUR-016)."""
    for row in rows:
        decision = classify(Evidence(row, claimed.row, claimed.view))
        claimed.services.counts[f"recovered:{decision.name}"] += 1
        if row.abort is None:  # beside an abort, nothing but its own evidence may enter the log
            claimed.outbox.record(facts.recovery_decided(row, claimed.outbox.epoch, decision))
        if decision.name == "revert_joining":
            claimed.outbox.command(RevertJoining(submission_id=row.submission_id))
        else:
            claimed.outbox.command(MarkJoined(submission_id=row.submission_id))
        _log.info("%s: %s of %s: %s", row.conversation_id, row.submission_id, claimed.submission_id, decision.name)


async def settle_joined(claimed: Claimed, host: SubmissionSettled) -> None:
    """Reserve and append, for each submission that joined this run, the same outcome under the same run."""
    open_ids = [name for name in joined_ids(claimed) if name not in claimed.view.settlements]
    for number, submission_id in enumerate(open_ids, 1):
        settle_likewise(claimed, submission_id, host)
        if number % _SETTLED_AT_ONCE == 0:
            await claimed.outbox.flush()


def settle_likewise(claimed: Claimed, submission_id: str, host: SubmissionSettled) -> None:
    record, reserve = facts.settlement(submission_id, host.run_id, host.outcome, host.output, host.error)
    claimed.outbox.command(reserve)
    claimed.outbox.record(record)


def finalize_joined(claimed: Claimed, submission_ids: Iterable[str]) -> None:
    for submission_id in submission_ids:
        claimed.outbox.command(Finalize(submission_id=submission_id))


def joined_ids(claimed: Claimed) -> list[str]:
    """The submissions that settle with the run of this one."""
    run = claimed.run
    return [record.submission_id for record in run.joined] if run else []
