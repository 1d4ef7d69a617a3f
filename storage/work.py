"""One unit in progress: a private copy of what it changes, so that a refused unit changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from .commands import Arrived, Fence
from .errors import Fenced, NotFound, StaleTail
from .header import Batch, Changes, Checkpoint, Header, Trace
from .ledger import MAY_HOLD, Event, Row, State, transition
from .values import Limits

_EMPTY = Trace()


class Work:
    """The header under change. Moves go through `row`, `put`, `move` and `require_fence`."""

    def __init__(
        self,
        header: Header,
        fence: Fence | None,
        now_ms: int,
        leases: Mapping[str, int],
        limits: Limits,
        *,
        quarantined: bool = False,
    ) -> None:
        self.before = header
        self.fence = fence
        self.now_ms = now_ms
        self.leases = leases
        self.limits = limits
        self.quarantined = quarantined
        self.materialized = header.materialized
        self.materialized_agent: str | None = None
        self.tail_sequence = header.tail_sequence
        self.tail_digest = header.tail_digest
        self.epoch = header.epoch
        self.next_queue_sequence = header.next_queue_sequence
        self.steering_sequence = header.steering_sequence
        self.owned_by = header.owned_by
        self.checkpoint: Checkpoint | None = None
        self.batches: list[Batch] = []
        self._rows: dict[str, Row] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._traces: dict[str, Trace] = {}
        self._aliases: dict[str, str] = {}
        self._tail_checked = False

    # --- reading -----------------------------------------------------------------------------------------------------

    def find(self, submission_id: str) -> Row | None:
        row = self._rows.get(submission_id) or self.before.rows.get(submission_id)
        return row or self.before.closed.get(submission_id)

    def row(self, submission_id: str) -> Row:
        """The submission's row, open or settled. Raises: NotFound."""
        row = self.find(submission_id)
        if row is None:
            raise NotFound(
                f"conversation {self.before.conversation_id} has no submission {submission_id}",
                submission_id=submission_id,
            )
        return row

    def open_rows(self) -> Iterator[Row]:
        """The open submissions in queue order, as this unit leaves them."""
        known = self.before.rows
        for submission_id, row in known.items():
            current = self._rows.get(submission_id, row)
            if not current.settled:
                yield current
        for submission_id, row in self._rows.items():
            if submission_id not in known and not row.settled:
                yield row

    def open_count(self) -> int:
        """How many submissions are open; those that this unit settles still count."""
        known = self.before.rows
        return len(known) + sum(key not in known and not row.settled for key, row in self._rows.items())

    def by_key(self, principal: str, key: str) -> Row | None:
        submission_id = self._keys.get((principal, key)) or self.before.keys.get((principal, key))
        return self.row(submission_id) if submission_id else None

    def trace(self, submission_id: str) -> Trace:
        return self._traces.get(submission_id) or self.before.traces.get(submission_id) or _EMPTY

    @property
    def arrived(self) -> Arrived:
        """What has been admitted, as an owner is told."""
        return Arrived(queued=self.next_queue_sequence - 1, steering=self.steering_sequence)

    def owner(self) -> Row | None:
        """The row whose attempt holds the fence, whether or not its lease still runs."""
        return self.find(self.owned_by) if self.owned_by else None

    def owner_is_live(self) -> bool:
        """Whether an attempt at work holds a lease that has not run out."""
        owner = self.owner()
        if owner is None or owner.state not in MAY_HOLD or owner.owner_id is None:
            return False
        return self.leases.get(owner.owner_id, 0) > self.now_ms

    # --- changing ----------------------------------------------------------------------------------------------------

    def put(self, row: Row, **changes: Any) -> Row:
        """Store `row` with `changes`; its state moves through `move` alone."""
        row = msgspec.structs.replace(row, **changes, updated_at_ms=self.now_ms)
        self._rows[row.submission_id] = row
        return row

    def move(self, row: Row, event: Event, **changes: Any) -> Row:
        """Move `row` along the table. Raises: IllegalTransition."""
        return self.put(row, state=transition(row.state, event), **changes)

    def add(self, row: Row) -> None:
        self._rows[row.submission_id] = row
        self._keys[row.principal, row.idempotency_key] = row.submission_id

    def admitted_as(self, submission_id: str, row: Row) -> None:
        """This unit's admission under a fresh id found its key taken by `row`."""
        self._aliases[submission_id] = row.submission_id

    def admitted_row(self, submission_id: str) -> Row:
        """The row that this unit's admission made or found."""
        return self.row(self._aliases.get(submission_id, submission_id))

    def extend(self, batch: Batch, trace: Trace) -> None:
        """Append `batch`; `trace` is what its submission's trace becomes."""
        self._traces[batch.submission_id] = trace
        self.batches.append(batch)
        self.tail_sequence = batch.last_sequence
        self.tail_digest = batch.digest

    def drop_owner(self, row: Row) -> None:
        """The lane has no owner any more, if it was `row`."""
        if self.owned_by == row.submission_id:
            self.owned_by = None

    # --- the fence ---------------------------------------------------------------------------------------------------

    def require_fence(self, submission_id: str) -> Row:
        """The owner's row, when this unit carries the current token and epoch and may speak for `submission_id`.

        Raises: Fenced when a newer attempt owns the lane or nobody does (Specification 6, DUR-006).
        """
        owner = self.owner()
        fence = self.fence
        if owner is None or owner.token is None or fence is None or fence.token != owner.token:
            raise Fenced(
                f"the lane of {self.before.conversation_id} has moved on to epoch {self.epoch}",
                conversation_id=self.before.conversation_id,
                epoch=self.epoch,
            )
        if fence.epoch is not None and fence.epoch != self.epoch:
            raise Fenced(
                f"epoch {fence.epoch} of {self.before.conversation_id} is superseded by {self.epoch}",
                conversation_id=self.before.conversation_id,
                epoch=self.epoch,
            )
        if submission_id != owner.submission_id and self.row(submission_id).host_id != owner.submission_id:
            raise Fenced(
                f"the attempt owns {owner.submission_id}, not {submission_id}",
                conversation_id=self.before.conversation_id,
                epoch=self.epoch,
            )
        return owner

    def require_tail(self) -> None:
        """The writer knows the log to its end; checked once a unit. Raises: StaleTail with the true tail."""
        if self._tail_checked:
            return
        expected = self.fence.expected_tail if self.fence else None
        if expected != self.tail_sequence:
            raise StaleTail(
                f"the log of {self.before.conversation_id} ends at {self.tail_sequence}, not at {expected}",
                tail_sequence=self.tail_sequence,
                tail_digest=self.tail_digest,
            )
        self._tail_checked = True

    # --- the outcome -------------------------------------------------------------------------------------------------

    def changes(self) -> Changes:
        return Changes(
            materialized=self.materialized_agent,
            rows=tuple(self._rows.values()),
            admitted=frozenset(self._keys.values()),
            batches=tuple(self.batches),
            checkpoint=self.checkpoint,
        )

    def closed(self) -> dict[str, tuple[Row, Trace]]:
        """The submissions that this unit settled, with their traces."""
        return {key: (row, self.trace(key)) for key, row in self._rows.items() if row.settled}

    def header(self) -> Header:
        before = self.before
        rows, traces, steering_sequence = before.rows, before.traces, self.steering_sequence
        if self._traces:
            traces = {**traces, **self._traces}
        if self._rows:
            rows = {**rows, **self._rows}
            for submission_id, row in self._rows.items():
                if row.settled:
                    rows.pop(submission_id)
            if any(row.settled and row.steers for row in self._rows.values()):  # as a header that is read back has it
                steering_sequence = max((row.queue_sequence for row in rows.values() if row.steers), default=0)
        return dataclasses.replace(
            before,
            materialized=self.materialized,
            tail_sequence=self.tail_sequence,
            tail_digest=self.tail_digest,
            epoch=self.epoch,
            next_queue_sequence=self.next_queue_sequence,
            steering_sequence=steering_sequence,
            owned_by=self.owned_by,
            rows=rows,
            closed={},
            keys={},
            traces={key: trace for key, trace in traces.items() if key in rows},
        )


_NOBODY_RUNS = frozenset({State.ADMITTED, State.READY, State.JOINING, State.SUSPENDED, State.UNKNOWN})


def settles_by_abort_alone(row: Row) -> bool:
    """Whether the abort intent alone may settle `row`: nobody runs it (Specification 13)."""
    if row.abort is None:
        return False
    reserved_unowned = row.state is State.TERMINALIZING and row.token is None
    return row.state in _NOBODY_RUNS or (reserved_unowned and row.reservation is not None)
