"""Small builders for tests of the store: a clock, commands, and a conversation that is driven by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from laneway.storage.commands import (
    Accepted,
    Admit,
    Admitted,
    Answer,
    AnyCommand,
    Append,
    Appended,
    Claim,
    Fence,
    Finalize,
    Grant,
    MarkInputApplied,
    MarkReady,
    Materialize,
    Moved,
    NotClaimed,
    Rejected,
    ReserveSettlement,
    Resume,
    Unit,
)
from laneway.storage.contract import Store
from laneway.storage.errors import LanewayError
from laneway.storage.failpoints import NO_FAILPOINTS, Failpoints
from laneway.storage.header import Batch
from laneway.storage.ledger import Receipt, Row
from laneway.storage.memory_store import MemoryStore
from laneway.storage.records import (
    AnyRecord,
    ErrorFact,
    InputRecorded,
    RepairAnnotated,
    SubmissionSettled,
    chained_digest,
    decode_records,
    encode_records,
    input_record_id,
    record_id,
    settlement_record_id,
)
from laneway.storage.sharded_store import ShardedStore
from laneway.storage.values import DEFAULT_LIMITS, Limits

LEASE_MS = 10_000
T = TypeVar("T")


@dataclass
class Clock:
    """Milliseconds that move when the test says so."""

    now: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        self.now += ms


@dataclass
class Maker:
    """Opens stores of one adapter; `reopen` closes one and opens what is left of it."""

    adapter: str
    folder: Path
    clock: Clock
    opened: list[Store] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "store.duckdb"

    def __call__(
        self, *, failpoints: Failpoints = NO_FAILPOINTS, limits: Limits = DEFAULT_LIMITS, **more: Any
    ) -> Store:
        store: Store
        if self.adapter == "memory":
            store = MemoryStore(now_ms=self.clock, limits=limits, failpoints=failpoints)
        elif self.adapter == "shards":
            many = [MemoryStore(now_ms=self.clock, limits=limits, failpoints=failpoints) for _ in range(3)]
            store = ShardedStore(many)
        else:
            from laneway.storage.duckdb_store import DuckDBStore

            store = DuckDBStore(self.path, now_ms=self.clock, limits=limits, failpoints=failpoints, **more)
        self.opened.append(store)
        return store

    def reopen(self, store: Store) -> Store:
        """What a new process finds. The memory adapter loses all by design, so its headers alone are forgotten."""
        if isinstance(store, MemoryStore | ShardedStore):
            store.close()
            return store
        store.close()
        return self()

    def close(self) -> None:
        for store in self.opened:
            store.close()


def raised(answer: Answer) -> LanewayError:
    """The error of a rejected unit."""
    assert isinstance(answer, Rejected), answer
    return answer.error()


def one(results: tuple[Any, ...], kind: type[T]) -> T:
    """The first result of a kind."""
    return next(result for result in results if isinstance(result, kind))


def body_of(*records: AnyRecord) -> str:
    return encode_records(records).decode()


def note(subject: str, text: str = "") -> RepairAnnotated:
    """A record that means nothing; its id is its subject's."""
    return RepairAnnotated(id=record_id("note", subject), subject=subject, note=text)


def input_record(submission_id: str, queue_sequence: int = 1, content: Any = "hello") -> InputRecorded:
    return InputRecorded(
        id=input_record_id(submission_id), submission_id=submission_id, queue_sequence=queue_sequence, content=content
    )


def settlement(
    submission_id: str, outcome: Any = "completed", *, output: Any = None, error: ErrorFact | None = None
) -> SubmissionSettled:
    if outcome == "failed" and error is None:
        error = ErrorFact(code="broken", message="it broke")
    return SubmissionSettled(
        id=settlement_record_id(submission_id),
        settlement_id=f"set_{submission_id}",
        submission_id=submission_id,
        outcome=outcome,
        run_id=f"run_{submission_id}",
        output=output,
        error=error,
    )


def reserve(record: SubmissionSettled) -> ReserveSettlement:
    return ReserveSettlement(
        submission_id=record.submission_id,
        settlement_id=record.settlement_id,
        outcome=record.outcome,
        body=body_of(record),
    )


def admission(
    submission_id: str, key: str | None = None, *, principal: str = "alice", digest: str = "digest", text: str = '"hi"'
) -> Admit:
    return Admit(
        submission_id=submission_id,
        receipt_id=f"rcp_{submission_id}",
        principal=principal,
        idempotency_key=key or f"key-{submission_id}",
        agent="support",
        input=text,
        input_digest=digest,
    )


def admit_ready(submission_id: str, key: str | None = None, **more: Any) -> tuple[AnyCommand, ...]:
    return (
        admission(submission_id, key, **more),
        Materialize(submission_id=submission_id),
        MarkReady(submission_id=submission_id),
    )


def steering(submission_id: str, key: str | None = None, *, ready: bool = True, **more: Any) -> tuple[AnyCommand, ...]:
    """An input for the run that is active."""
    admitted = msgspec.structs.replace(admission(submission_id, key, **more), agent="", steering=True)
    if not ready:
        return (admitted,)
    return (admitted, Materialize(submission_id=submission_id), MarkReady(submission_id=submission_id))


def append_of(submission_id: str, *records: AnyRecord, batch_id: str | None = None) -> Append:
    return Append(
        submission_id=submission_id,
        batch_id=batch_id or record_id("batch", records[0].id),
        producer_id="prd_test",
        body=body_of(*records),
    )


@dataclass
class Conversation:
    """One conversation of a store, driven by commands; `grant` is the attempt that was claimed last."""

    store: Store
    id: str = "c"
    grant: Grant | None = None
    count: int = 0

    def answer(self, *commands: AnyCommand, fence: Fence | None = None) -> Answer:
        """Commit one unit, under the current attempt's fence unless another is given."""
        return self.store.commit([self.unit(*commands, fence=fence)])[0]

    def unit(self, *commands: AnyCommand, fence: Fence | None = None) -> Unit:
        return Unit(conversation_id=self.id, commands=commands, fence=fence or self.fence())

    def fence(self) -> Fence | None:
        if self.grant is None:
            return None
        tail = self.store.inspect_tail(self.id).sequence
        return Fence(token=self.grant.token, epoch=self.grant.epoch, expected_tail=tail)

    def do(self, *commands: AnyCommand, fence: Fence | None = None) -> tuple[Any, ...]:
        """Commit one unit that must be accepted; its results."""
        answer = self.answer(*commands, fence=fence)
        assert isinstance(answer, Accepted), answer
        return answer.results

    def refused(self, *commands: AnyCommand, fence: Fence | None = None) -> LanewayError:
        """Commit one unit that must be refused and change nothing; its error."""
        before = self.state()
        error = raised(self.answer(*commands, fence=fence))
        assert self.state() == before
        return error

    def state(self) -> object:
        """What readers can see of this conversation; the tail's digest stands for the log."""
        rows = self.store.list_rows(self.id, limit=100_000)
        return rows, self.store.inspect_tail(self.id), self.store.load_checkpoint(self.id)

    def submit(self, submission_id: str, key: str | None = None, **more: Any) -> Receipt:
        return one(self.do(*admit_ready(submission_id, key, **more)), Admitted).receipt

    def try_claim(
        self, owner: str = "o1", *, submission_id: str = "", replaces: str | None = None
    ) -> Grant | NotClaimed:
        """Claim as a live owner; a grant becomes the current attempt."""
        self.store.renew_lease(owner, LEASE_MS)
        self.count += 1
        command = Claim(
            submission_id=submission_id,
            owner_id=owner,
            attempt_id=f"att_{self.id}_{owner}_{self.count}",
            token=f"tok_{self.id}_{owner}_{self.count}",
            replaces=replaces,
        )
        result = self.do(command)[0]
        if isinstance(result, Grant):
            self.grant = result
        return result

    def claim(self, owner: str = "o1", **more: Any) -> Grant:
        result = self.try_claim(owner, **more)
        assert isinstance(result, Grant), result
        return result

    def start(self, submission_id: str, owner: str = "o1") -> Grant:
        """Submit, claim and apply the input."""
        receipt = self.submit(submission_id)
        grant = self.claim(owner)
        self.apply_input(submission_id, receipt.queue_sequence)
        return grant

    def recover(self, owner: str = "o2") -> Grant:
        """Another owner takes the lane after the first one's death, and goes on."""
        assert self.grant is not None
        self.store.retire_owner(self.grant.row.owner_id or "")
        grant = self.claim(owner)
        self.do(Resume(submission_id=grant.row.submission_id))
        return grant

    def apply_input(self, submission_id: str, queue_sequence: int = 1) -> None:
        self.do(
            append_of(submission_id, input_record(submission_id, queue_sequence)),
            MarkInputApplied(submission_id=submission_id, run_id=f"run_{submission_id}"),
        )

    def append(self, submission_id: str, *records: AnyRecord, batch_id: str | None = None) -> Appended:
        return one(self.do(append_of(submission_id, *records, batch_id=batch_id)), Appended)

    def settle(self, submission_id: str, outcome: Any = "completed", **more: Any) -> Moved:
        """Reserve, append and finalize in one unit."""
        record = settlement(submission_id, outcome, **more)
        return self.do(*settling(record))[-1]

    def row(self, submission_id: str) -> Row:
        row = self.store.lookup(submission_id)
        assert row is not None
        return row

    def batches(self) -> list[Batch]:
        found: list[Batch] = []
        while True:
            page = self.store.read_log(self.id, after=found[-1].last_sequence if found else 0)
            found.extend(page.batches)
            if not page.more:
                return found

    def records(self) -> list[AnyRecord]:
        return [record for batch in self.batches() for record in decode_records(batch.body)]

    def check_chain(self) -> None:
        """Sequences without gaps, an intact digest chain, no record id twice."""
        check_chain(self.batches(), self.store.inspect_tail(self.id).sequence)


def settling(record: SubmissionSettled) -> tuple[AnyCommand, ...]:
    return (
        reserve(record),
        append_of(record.submission_id, record),
        Finalize(submission_id=record.submission_id),
    )


def check_chain(batches: list[Batch], tail_sequence: int) -> None:
    sequence, digest = 0, ""
    ids = set[str]()
    for batch in batches:
        records = decode_records(batch.body)
        assert batch.first_sequence == sequence + 1
        assert batch.last_sequence == sequence + len(records)
        assert batch.previous_digest == digest
        assert batch.digest == chained_digest(digest, batch.body)
        assert ids.isdisjoint(record.id for record in records)
        ids |= {record.id for record in records}
        sequence, digest = batch.last_sequence, batch.digest
    assert sequence == tail_sequence


Make = Callable[..., Store]
