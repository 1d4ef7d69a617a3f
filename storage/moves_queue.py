"""Moves of the queue: admission, readiness, claims, joining (Specification 4, 5 and 6)."""

from __future__ import annotations

from typing import Any

from .commands import (
    Abandon,
    Admit,
    Admitted,
    Claim,
    ClaimJoining,
    Grant,
    Joining,
    MakeDue,
    MarkJoined,
    MarkReady,
    Materialize,
    Moved,
    NotClaimed,
    Release,
    Resume,
    RevertJoining,
)
from .errors import AdmissionConflict, InvalidInput, Refused
from .ledger import CLAIMABLE, MAY_HOLD, Event, Row, State, receipt_of
from .records import input_record_id, settlement_record_id
from .values import check_text
from .work import Work

_UNDER_WAY = frozenset({State.RUNNING, State.RECOVERY, State.SUSPENDED, State.UNKNOWN})


def admit(work: Work, command: Admit) -> Admitted:
    """DUR-001, DUR-004: one row a key, and a queue sequence without gaps."""
    _check_admission(work, command)
    existing = work.by_key(command.principal, command.idempotency_key)
    if existing is not None:
        if existing.input_digest != command.input_digest:
            raise AdmissionConflict(
                f"the idempotency key {command.idempotency_key!r} was admitted with another payload: "
                "repeat that one, or take another key",
                idempotency_key=command.idempotency_key,
                stored_digest=existing.input_digest,
                given_digest=command.input_digest,
                submission_id=existing.submission_id,
            )
        work.admitted_as(command.submission_id, existing)
        return Admitted(receipt=receipt_of(existing, replayed=True), state=existing.state)
    target = _steered(work) if command.steering else None
    if work.open_count() >= work.limits.queue_length_max:
        raise Refused(
            f"the queue of {work.before.conversation_id} holds {work.limits.queue_length_max:,} open submissions",
            code="queue_full",
            retryable=True,
            limit=work.limits.queue_length_max,
        )
    row = Row(
        submission_id=command.submission_id,
        receipt_id=command.receipt_id,
        conversation_id=work.before.conversation_id,
        principal=command.principal,
        idempotency_key=command.idempotency_key,
        input_digest=command.input_digest,
        queue_sequence=work.next_queue_sequence,
        agent=command.agent if target is None else target.agent,
        input=command.input,
        state=State.ADMITTED,
        admitted_at_ms=work.now_ms,
        updated_at_ms=work.now_ms,
        steers=None if target is None else target.submission_id,
    )
    if target is not None:
        work.steering_sequence = row.queue_sequence
    work.next_queue_sequence += 1
    work.add(row)
    return Admitted(receipt=receipt_of(row, replayed=False), state=row.state)


def _check_admission(work: Work, command: Admit) -> None:
    limits = work.limits
    for field in ("submission_id", "receipt_id", "idempotency_key", "agent", "input_digest"):
        if field != "agent" or not command.steering:  # what steers a run is for that run's agent
            check_text(getattr(command, field), field, length_max=limits.id_length_max)
    if command.principal:
        check_text(command.principal, "principal", length_max=limits.id_length_max)
    size = len(command.input.encode())
    if size > limits.record_bytes_max:  # it is to become a record
        raise InvalidInput(
            f"input has {size:,} bytes; the limit is {limits.record_bytes_max:,}",
            field="input",
            limit=limits.record_bytes_max,
        )


def _steered(work: Work) -> Row:
    """The submission whose run is under way: the first open one that has begun and is neither parked nor ending."""
    for row in work.open_rows():
        begun = row.state in _UNDER_WAY or (row.state is State.READY and row.input_sequence is not None)
        parked = row.state is State.UNKNOWN and row.parked
        if begun and not parked and row.abort is None:
            return row
    raise Refused(
        f"nothing runs in {work.before.conversation_id} that could be steered; submit the input instead",
        code="nothing_to_steer",
        conversation_id=work.before.conversation_id,
    )


def materialize(work: Work, command: Materialize) -> Moved:
    row = work.admitted_row(command.submission_id)
    replayed = work.materialized
    if not replayed:
        work.materialized = True
        work.materialized_agent = row.agent
        row = work.put(row)  # a change of its own, so that it is stored when it comes alone
    return Moved(submission_id=row.submission_id, state=row.state, replayed=replayed)


def mark_ready(work: Work, command: MarkReady) -> Moved:
    row = work.admitted_row(command.submission_id)
    if row.state is not State.ADMITTED:
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    if not work.materialized:
        raise Refused("the conversation is not materialized", code="not_materialized")
    row = work.move(row, Event.MATERIALIZE)
    return Moved(submission_id=row.submission_id, state=row.state)


def head_of(work: Work) -> Row | None:
    """The row that the lane owes next: what a run that has ended left to be closed, then the first open one (DUR-004).

    Parked Unknown work lets others pass, and so does work that settles with an open host or steers an open run.
    """
    for row in work.open_rows():
        if row.state is State.JOINED and not _waits_for_host(work, row):
            return row  # steering passes its queue: others would run, and fold away what its closing is decided by
    for row in work.open_rows():
        parked = row.state is State.UNKNOWN and row.parked
        if not parked and not _waits_for_host(work, row) and not _waits_to_steer(work, row):
            return row
    return None


def _waits_to_steer(work: Work, row: Row) -> bool:
    """Whether `row` stands in the stream of an open run, not in the queue; once that has ended it is queued work."""
    if row.steers is None or row.state not in (State.ADMITTED, State.READY):
        return False
    target = work.find(row.steers)
    return target is not None and not target.settled


def _waits_for_host(work: Work, row: Row) -> bool:
    if row.state is not State.JOINED and not (row.state is State.JOINING and _input_in_log(work, row) is not None):
        return False
    host = work.find(row.host_id) if row.host_id else None
    return host is not None and not host.settled


def _input_in_log(work: Work, row: Row) -> int | None:
    return work.trace(row.submission_id).records.get(input_record_id(row.submission_id))


def claim(work: Work, command: Claim) -> Grant | NotClaimed:
    """DUR-005, DUR-006: the head alone, one live owner, a higher epoch each time."""
    owner = work.owner()
    if owner is not None and owner.state in MAY_HOLD and owner.token == command.token:
        return _grant(work, owner, recovering=owner.state is not State.RUNNING)
    if work.quarantined:
        return NotClaimed(reason="quarantined")
    if owner is not None and work.owner_is_live():
        same_owner = owner.owner_id == command.owner_id and owner.attempt_id == command.replaces
        if not same_owner:
            return NotClaimed(reason="owned")
    head = head_of(work)
    if head is None:
        return NotClaimed(reason="empty")
    if command.submission_id and head.submission_id != command.submission_id:
        return NotClaimed(reason="not_head")
    if head.state in (State.JOINING, State.JOINED):
        head = _without_host(work, head)
    if head.state is State.JOINED:
        return _take(work, head, command, recovering=True)
    if head.state not in CLAIMABLE:
        return NotClaimed(reason=str(head.state), submission_id=head.submission_id)
    if head.state is State.READY and head.not_before_ms > work.now_ms:
        return NotClaimed(reason="backoff")
    event = {State.READY: Event.CLAIM, State.RUNNING: Event.LOSE_OWNER}.get(head.state)
    row = work.move(head, event) if event else head
    return _take(work, row, command, recovering=event is not Event.CLAIM)


def _without_host(work: Work, row: Row) -> Row:
    """A head that joined a run which ended without it: ready again, or joined for good once in the log (DUR-016)."""
    if row.state is State.JOINED:
        return row
    sequence = _input_in_log(work, row)
    if sequence is None:
        return work.move(row, Event.REVERT_JOINING, host_id=None)
    return work.move(row, Event.APPLY_JOINED, input_sequence=sequence, input="")


def _take(work: Work, row: Row, command: Claim, *, recovering: bool) -> Grant:
    work.epoch += 1
    previous = work.owner()
    if previous is not None and previous.submission_id != row.submission_id:
        work.put(previous, token=None, owner_id=None)
    planned, replaces = row.handed_over, row.attempt_id or ""
    row = work.put(
        row,
        owner_id=command.owner_id,
        attempt_id=command.attempt_id,
        token=command.token,
        epoch=work.epoch,
        attempts=row.attempts + 1,
        handed_over=False,
    )
    work.owned_by = row.submission_id
    return _grant(work, row, recovering=recovering, planned=planned, replaces=replaces)


def _grant(work: Work, row: Row, *, recovering: bool, planned: bool = False, replaces: str = "") -> Grant:
    return Grant(
        row=row,
        attempt_id=row.attempt_id or "",
        token=row.token or "",
        epoch=row.epoch,
        tail_sequence=work.tail_sequence,
        tail_digest=work.tail_digest,
        recovering=recovering,
        settlement_sequence=work.trace(row.submission_id).records.get(settlement_record_id(row.submission_id)),
        joining=tuple(other for other in work.open_rows() if _joins(other, row) and other.state is State.JOINING)
        if recovering
        else (),
        arrived=work.arrived,
        planned=planned,
        replaces=replaces,
    )


def _joins(row: Row, host: Row) -> bool:
    return row.host_id == host.submission_id


def release(work: Work, command: Release) -> Moved:
    row = work.row(command.submission_id)
    if row.state is State.READY and row.token is None:
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    work.require_fence(row.submission_id)
    row = work.move(row, Event.RELEASE, token=None, owner_id=None, not_before_ms=command.not_before_ms)
    work.drop_owner(row)
    return Moved(submission_id=row.submission_id, state=row.state)


def abandon(work: Work, command: Abandon) -> Moved:
    """The state stays, whatever it is: whoever claims next finds work without an owner."""
    row = work.require_fence(command.submission_id)
    row = work.put(row, token=None, owner_id=None, handed_over=command.planned)
    work.drop_owner(row)
    return Moved(submission_id=row.submission_id, state=row.state)


def make_due(work: Work, command: MakeDue) -> Moved:
    """Raises: Refused with code "not_waiting" for work that waits for no time."""
    row = work.row(command.submission_id)
    if row.state is not State.READY:
        raise Refused(f"{row.submission_id} is {row.state}", code="not_waiting", state=str(row.state))
    if row.not_before_ms == 0:
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    row = work.put(row, not_before_ms=0)
    return Moved(submission_id=row.submission_id, state=row.state)


def resume(work: Work, command: Resume) -> Moved:
    """Recovery, Ready, Running in one step: the recoverer goes on under its own claim."""
    row = work.row(command.submission_id)
    went_on = work.fence is not None and work.fence.epoch == row.epoch and row.state is not State.RECOVERY
    if went_on and row.state is not State.RUNNING:  # a repeat: what came with it has moved the row on, even to its end
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    work.require_fence(row.submission_id)
    if row.state is State.RUNNING:
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    row = work.move(work.move(row, Event.RESUME), Event.CLAIM)
    return Moved(submission_id=row.submission_id, state=row.state)


def claim_joining(work: Work, command: ClaimJoining) -> Joining:
    """The steering addressed to the host, and the contiguous ready prefix behind it (Specification 5).

    Two streams, each in its own order: a row that is not ready ends its stream. Settled rows are no gap; neither is
    one that is about to settle by its abort, nor one that steers another open run.
    """
    host = work.row(command.submission_id)
    work.require_fence(host.submission_id)
    steering = prefix = True
    more = False
    joining: list[Row] = []
    left, room = command.limit, work.limits.record_bytes_max  # one answer carries all of their inputs

    def take(row: Row) -> None:
        nonlocal room
        room -= len(row.input)
        joining.append(work.move(row, Event.CLAIM_JOINING, host_id=host.submission_id))

    for row in list(work.open_rows()):
        if row.queue_sequence <= host.queue_sequence or row.abort is not None:
            continue
        if row.state is State.JOINING and _joins(row, host):
            joining.append(row)
            left -= row.steers is None
            room -= len(row.input)
        elif _waits_to_steer(work, row):
            if row.steers != host.submission_id or not steering:
                continue
            steering = row.state is State.READY and room > 0
            more = more or not steering
            if steering:
                take(row)
        elif prefix and not (row.state is State.JOINED and _joins(row, host)):
            may_join = row.state is State.READY and row.agent == host.agent and row.not_before_ms <= work.now_ms
            prefix = may_join and left > 0 and room > 0
            more = more or (command.limit > 0 and (row.state is State.ADMITTED or (may_join and not prefix)))
            if prefix:
                left -= 1
                take(row)
    return Joining(rows=tuple(joining), more=more, abort=host.abort, arrived=work.arrived)


def mark_joined(work: Work, command: MarkJoined) -> Moved:
    row = work.row(command.submission_id)
    if row.state is State.JOINED:
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    host = work.require_fence(row.submission_id)
    sequence = _input_in_log(work, row)
    if sequence is None:
        raise Refused("the joining input is not in the log", code="input_not_canonical")
    row = work.move(row, Event.APPLY_JOINED, input_sequence=sequence, run_id=host.run_id, input="")
    return Moved(submission_id=row.submission_id, state=row.state)


def revert_joining(work: Work, command: RevertJoining) -> Moved:
    """DUR-016: only before the input is canonical."""
    row = work.row(command.submission_id)
    if row.host_id is None:  # a repeat, whoever claimed the row since, or nothing that could be reverted
        return Moved(submission_id=row.submission_id, state=row.state, replayed=True)
    work.require_fence(row.submission_id)
    if _input_in_log(work, row) is not None:
        raise Refused("the joining input stands in the log", code="input_already_canonical")
    row = work.move(row, Event.REVERT_JOINING, host_id=None)
    return Moved(submission_id=row.submission_id, state=row.state)


MOVES: dict[type, Any] = {
    Admit: admit,
    Materialize: materialize,
    MarkReady: mark_ready,
    Claim: claim,
    Release: release,
    Abandon: abandon,
    MakeDue: make_due,
    Resume: resume,
    ClaimJoining: claim_joining,
    MarkJoined: mark_joined,
    RevertJoining: revert_joining,
}
