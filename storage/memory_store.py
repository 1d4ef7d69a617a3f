"""The memory adapter, class E: a real store whose contents end with the process."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from .commands import Answer, Unit
from .contract import OUTCOME_UNKNOWN, DeadLetter, LogPage, Quarantine, ScanPage, Snapshot, StoreInfo, Table, Tail
from .engine import KEYS_HELD_MAX, Engine, Key, Resident
from .errors import LanewayError, NotFound, Refused
from .failpoints import NO_FAILPOINTS, Failpoints, Point
from .header import Batch, Changes, Checkpoint, Trace
from .ledger import Row, State
from .readback import checked_quarantine, control_row, page_of, public, resident_from, trace_of, wall_clock_ms
from .values import DEFAULT_LIMITS, Limits


class MemoryStore:
    """Class E: nothing survives the process. It keeps the contract of `storage.contract.Store` otherwise."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        limits: Limits = DEFAULT_LIMITS,
        failpoints: Failpoints = NO_FAILPOINTS,
    ) -> None:
        self._now_ms = now_ms
        self._rows: dict[str, Row] = {}
        self._by_key: dict[Key, str] = {}
        self._by_conversation: dict[str, dict[str, Row]] = {}
        self._logs: dict[str, list[Batch]] = {}
        self._agents: dict[str, str] = {}
        self._checkpoints: dict[str, Checkpoint] = {}
        self._leases: dict[str, int] = {}
        self._ttls: dict[str, int] = {}
        self._quarantined: dict[str, Quarantine] = {}
        self._released: dict[str, tuple[Quarantine, str]] = {}
        self._limits = limits
        self._failpoints = failpoints
        self._engine = Engine(
            _MemoryBacking(self),
            now_ms=now_ms,
            leases=self._leases,
            quarantined=self._quarantined,
            limits=limits,
            failpoints=failpoints,
        )

    def commit(self, units: Sequence[Unit]) -> list[Answer]:
        return self._engine.commit(units)

    def store_changes(self, changes: Sequence[Changes]) -> None:
        for change in changes:
            for row in change.rows:
                self._rows[row.submission_id] = row
                self._by_key[row.conversation_id, row.principal, row.idempotency_key] = row.submission_id
                self._by_conversation.setdefault(row.conversation_id, {})[row.submission_id] = row
                if change.materialized is not None:
                    self._agents[row.conversation_id] = change.materialized
            for batch in change.batches:
                self._logs.setdefault(batch.conversation_id, []).append(batch)
            if change.checkpoint is not None:
                self._checkpoints[change.checkpoint.conversation_id] = change.checkpoint

    def rows_of(self, conversation_id: str) -> list[Row]:
        return list(self._by_conversation.get(conversation_id, {}).values())

    def row_of(self, conversation_id: str, submission_id: str) -> Row | None:
        return self._by_conversation.get(conversation_id, {}).get(submission_id)

    def key_holders(self, keys: Sequence[Key]) -> dict[Key, str]:
        return {key: self._by_key[key] for key in keys if key in self._by_key}

    def batches_of(self, conversation_id: str, submission_id: str | None = None) -> list[Batch]:
        log = self._logs.get(conversation_id, [])
        return [batch for batch in log if submission_id is None or batch.submission_id == submission_id]

    def materialized(self, conversation_id: str) -> bool:
        return conversation_id in self._agents

    def read_log(self, conversation_id: str, after: int = 0, limit: int = 1024) -> LogPage:
        log = self._logs.get(conversation_id, [])
        start = bisect.bisect_right(log, after, key=lambda batch: batch.last_sequence)
        return page_of(log[start : start + max(limit, 1) + 1], after, limit)

    def inspect_tail(self, conversation_id: str) -> Tail:
        header = self._engine.header(conversation_id)
        return Tail(sequence=header.tail_sequence, digest=header.tail_digest, epoch=header.epoch)

    def snapshot(self, submission_id: str) -> Snapshot:
        row = self.lookup(submission_id)
        if row is None:
            raise NotFound(f"no submission {submission_id}", submission_id=submission_id)
        host = self.lookup(row.host_id) if row.host_id else None
        ids = {row.submission_id, row.host_id}
        batches = [batch for batch in self.batches_of(row.conversation_id) if batch.submission_id in ids]
        return Snapshot(row=row, host=host, tail=self.inspect_tail(row.conversation_id), batches=tuple(batches))

    def scan_nonterminal(self, cursor: tuple[str, int] | None = None, limit: int = 1024) -> ScanPage:
        now_ms = self._now_ms()
        rows = sorted(
            (row for row in self._rows.values() if not row.settled),
            key=lambda row: (row.conversation_id, row.queue_sequence),
        )
        rows = [row for row in rows if cursor is None or (row.conversation_id, row.queue_sequence) > tuple(cursor)]
        page = tuple(control_row(row, self._leases, self._quarantined, now_ms) for row in rows[:limit])
        last = (page[-1].conversation_id, page[-1].queue_sequence) if len(rows) > limit else None
        return ScanPage(rows=page, cursor=last)

    def lookup(self, submission_id: str) -> Row | None:
        row = self._rows.get(submission_id)
        return public(row) if row else None

    def lookup_key(self, conversation_id: str, principal: str, idempotency_key: str) -> Row | None:
        holder = self._by_key.get((conversation_id, principal, idempotency_key))
        return self.lookup(holder) if holder is not None else None

    def list_rows(self, conversation_id: str | None = None, state: str | None = None, limit: int = 1000) -> list[Row]:
        rows = [
            public(row)
            for row in self._rows.values()
            if (conversation_id is None or row.conversation_id == conversation_id)
            and (state is None or row.state == state)
        ]
        rows.sort(key=lambda row: (row.admitted_at_ms, row.conversation_id, row.queue_sequence))
        return rows[-limit:]

    def list_conversations(self, after: str = "", limit: int = 1000) -> list[str]:
        return sorted(name for name in {row.conversation_id for row in self._rows.values()} if name > after)[:limit]

    def load_checkpoint(self, conversation_id: str) -> Checkpoint | None:
        return self._checkpoints.get(conversation_id)

    def renew_lease(self, owner_id: str, ttl_ms: int) -> int:
        if self._ttls.get(owner_id) != ttl_ms:
            with self._side_write():
                self._ttls[owner_id] = ttl_ms
        self._leases[owner_id] = self._now_ms() + ttl_ms
        return self._leases[owner_id]

    def retire_owner(self, owner_id: str) -> None:
        self._leases.pop(owner_id, None)
        if owner_id in self._ttls:
            with self._side_write():
                self._ttls.pop(owner_id, None)

    def owners(self) -> dict[str, int]:
        return dict(self._leases)

    def quarantine(self, conversation_id: str, reason: str, author: str) -> Quarantine:
        found = checked_quarantine(conversation_id, reason, author, now_ms=self._now_ms(), limits=self._limits)
        known = self._quarantined.get(conversation_id)
        if known is None:
            with self._side_write():
                self._released.pop(conversation_id, None)
                known = self._quarantined.setdefault(conversation_id, found)
        return known

    def release_quarantine(self, conversation_id: str, author: str) -> Quarantine | None:
        if conversation_id in self._quarantined:
            with self._side_write():
                self._released[conversation_id] = self._quarantined.pop(conversation_id), author
        found, by = self._released.get(conversation_id, (None, ""))
        return found if by == author else None

    @contextmanager
    def _side_write(self) -> Generator[None, None, None]:
        """The same failpoints, on the same occasions, as in an adapter with a file."""
        self._failpoints.hit(Point.BEFORE_SIDE_WRITE)
        yield
        self._failpoints.hit(Point.AFTER_SIDE_WRITE)

    def quarantined(self, after: str = "", limit: int = 1000) -> list[Quarantine]:
        return [self._quarantined[name] for name in sorted(self._quarantined) if name > after][:limit]

    def dead_letters(self, codes: Sequence[str] | None = None, limit: int = 1000) -> list[DeadLetter]:
        dead = [
            row
            for row in self._rows.values()
            if row.state is State.UNKNOWN or (row.state is State.FAILED and (codes is None or row.error_code in codes))
        ]
        dead.sort(key=lambda row: (row.settled_at_ms or row.updated_at_ms, row.conversation_id, row.queue_sequence))
        return [
            DeadLetter(
                submission_id=row.submission_id,
                conversation_id=row.conversation_id,
                queue_sequence=row.queue_sequence,
                agent=row.agent,
                principal=row.principal,
                code=OUTCOME_UNKNOWN if row.state is State.UNKNOWN else row.error_code or "",
                attempts=row.attempts,
                admitted_at_ms=row.admitted_at_ms,
                settled_at_ms=row.settled_at_ms,
                kind="unknown" if row.state is State.UNKNOWN else "failed",
                changed_at_ms=row.settled_at_ms or row.updated_at_ms,
            )
            for row in dead[-limit:]
        ]

    def query(self, sql: str, limit: int = 10_000) -> Table:
        raise Refused("the memory store speaks no SQL; use a DuckDB store", code="sql_not_supported")

    def info(self) -> StoreInfo:
        engine = self._engine
        return StoreInfo(
            adapter="memory",
            deployment_class="E",
            path=None,
            commits=engine.commits,
            units=engine.units,
            rejected=engine.rejected,
            batches=engine.batches,
            rows=engine.rows,
            body_bytes=engine.body_bytes,
        )

    def close(self) -> None:
        self._engine.forget()


class _MemoryBacking:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def load(self, conversation_ids: Sequence[str]) -> Mapping[str, Resident]:
        return {conversation_id: self._load(conversation_id) for conversation_id in conversation_ids}

    def _load(self, conversation_id: str) -> Resident:
        rows = sorted(self._store.rows_of(conversation_id), key=lambda row: row.queue_sequence)
        batches = self._store.batches_of(conversation_id)
        epoch = max((row.epoch for row in rows), default=0)
        tail = (
            Tail(sequence=batches[-1].last_sequence, digest=batches[-1].digest, epoch=epoch)
            if batches
            else Tail(epoch=epoch)
        )
        return resident_from(
            conversation_id,
            rows=[row for row in rows if not row.settled],
            batches=batches,
            keys=None
            if len(rows) > KEYS_HELD_MAX
            else {(row.principal, row.idempotency_key): row.submission_id for row in rows},
            tail=tail,
            queue_sequence_last=rows[-1].queue_sequence if rows else 0,
            materialized=self._store.materialized(conversation_id),
        )

    def load_keys(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        return self._store.key_holders(keys)

    def load_closed(self, conversation_id: str, submission_id: str) -> tuple[Row, Trace] | None:
        row = self._store.row_of(conversation_id, submission_id)
        if row is None:
            return None
        return row, trace_of(self._store.batches_of(conversation_id, submission_id))

    def write(self, changes: Sequence[Changes]) -> None:
        self._store.store_changes(changes)

    def refuse_admission(self) -> LanewayError | None:
        return None
