"""Random commands, in any order: the invariants hold after every step, and both adapters give the same answers."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_builders import Clock, Maker, admission, append_of, check_chain, input_record, note, reserve, settlement

from laneway.storage.commands import (
    AnyCommand,
    ApprovalRequest,
    Claim,
    ClaimJoining,
    DecideApproval,
    Fence,
    Finalize,
    MarkInputApplied,
    MarkJoined,
    MarkReady,
    MarkUnknown,
    Materialize,
    Rejected,
    Release,
    RequestAbort,
    ResolveUnknown,
    Resume,
    RevertJoining,
    SaveCheckpoint,
    Suspend,
    Unit,
)
from laneway.storage.contract import Store
from laneway.storage.header import Batch
from laneway.storage.ledger import Row
from laneway.storage.memory_store import MemoryStore
from laneway.storage.records import InputRecorded, SubmissionSettled, decode_records

CONVERSATIONS = ("c0", "c1")
SUBMISSIONS = 4
KINDS = (
    "admit",
    "ready",
    "ready",
    "steer",
    "claim",
    "claim",
    "claim",
    "release",
    "resume",
    "resume",
    "input",
    "input",
    "input",
    "note",
    "join",
    "mark_joined",
    "revert",
    "suspend",
    "decide",
    "unknown",
    "resolve",
    "resolve",
    "abort",
    "reserve",
    "settle",
    "settle",
    "settle",
    "finalize",
    "checkpoint",
)
STEP = st.tuples(
    st.sampled_from(CONVERSATIONS),
    st.sampled_from(KINDS),
    st.integers(1, SUBMISSIONS),
    st.integers(0, 3),
    st.sampled_from(("current", "current", "current", "current", "stale", "none", "old_tail")),
)
EVENT = STEP | st.sampled_from(("expire", "renew", "forget", "repeat"))


@dataclass
class World:
    """The memory store as the model: it is read to build commands that have a chance."""

    model: MemoryStore
    clock: Clock
    number: int = 0
    last: list[Unit] = field(default_factory=list)

    def rows(self, conversation_id: str) -> list[Row]:
        return sorted(self.model.rows_of(conversation_id), key=lambda row: row.queue_sequence)

    def fence(self, conversation_id: str, kind: str) -> Fence | None:
        owner = next((row for row in self.rows(conversation_id) if row.token), None)
        if kind == "none" or owner is None:
            return None
        tail = self.model.inspect_tail(conversation_id)
        token = "stale" if kind == "stale" else owner.token or ""
        return Fence(token=token, epoch=tail.epoch, expected_tail=tail.sequence - (kind == "old_tail"))

    def unit(self, step: tuple[str, str, int, int, str]) -> Unit:
        conversation_id, kind, number, variant, fence = step
        self.number += 1
        commands = self.commands(conversation_id, kind, f"{conversation_id}_sub_{number}", variant)
        return Unit(conversation_id=conversation_id, commands=commands, fence=self.fence(conversation_id, fence))

    def commands(self, conversation_id: str, kind: str, name: str, variant: int) -> tuple[AnyCommand, ...]:
        row = self.model.lookup(name)
        outcome: Any = ("completed", "failed", "aborted", "completed")[variant]
        record = settlement(name, outcome)
        tail = self.model.inspect_tail(conversation_id)
        call = f"call_{variant % 2}"
        match kind:
            case "admit":
                return (admission(name, digest=str(variant // 3)),)
            case "ready":
                return (admission(name), Materialize(submission_id=name), MarkReady(submission_id=name))
            case "steer":
                steering = msgspec.structs.replace(admission(name), agent="", steering=True)
                more = (Materialize(submission_id=name), MarkReady(submission_id=name))
                return (steering, *more[: variant % 3])
            case "claim":
                attempt = f"att_{self.number}"
                return (
                    Claim(submission_id="", owner_id=f"o{variant % 2}", attempt_id=attempt, token=f"tok_{self.number}"),
                )
            case "release":
                return (Release(submission_id=name, not_before_ms=self.clock() + variant * 500),)
            case "resume":
                return (Resume(submission_id=name),)
            case "input":
                sequence = row.queue_sequence if row else 1
                return (
                    append_of(name, input_record(name, sequence)),
                    MarkInputApplied(submission_id=name, run_id=f"run_{name}"),
                )
            case "note":
                return (append_of(name, *(note(f"{name}/{self.number}/{part}") for part in range(variant + 1))),)
            case "join":
                return (ClaimJoining(submission_id=name, limit=variant),)
            case "mark_joined":
                sequence = row.queue_sequence if row else 1
                return (append_of(name, input_record(name, sequence)), MarkJoined(submission_id=name))
            case "revert":
                return (RevertJoining(submission_id=name),)
            case "suspend":
                request = ApprovalRequest(approval_id=call, call_id=call, input_digest="d")
                return (Suspend(submission_id=name, approvals=(request,)),)
            case "decide":
                decision = "approved" if variant < 2 else "denied"
                return (DecideApproval(submission_id=name, approval_id=call, decision=decision, author="boss"),)
            case "unknown":
                return (MarkUnknown(submission_id=name, calls={call: "lost"}, park=variant > 1),)
            case "resolve":
                return (
                    ResolveUnknown(
                        submission_id=name, call_id=call, resolution="never_started", author="op", reason="looked"
                    ),
                )
            case "abort":
                return (RequestAbort(submission_id=name, abort_id=f"abt_{variant}", author="alice", reason="stop"),)
            case "reserve":
                return (reserve(record),)
            case "settle":
                return (reserve(record), append_of(name, record), Finalize(submission_id=name))
            case "finalize":
                return (Finalize(submission_id=name),)
            case _:
                checkpoint = SaveCheckpoint(
                    submission_id=name, tail_sequence=tail.sequence, tail_digest=tail.digest, body=str(self.number)
                )
                return (checkpoint,)

    def check(self, before: dict[str, list[Row]]) -> None:
        """Safety, after every step (scenarios 1 b to d)."""
        for conversation_id in CONVERSATIONS:
            rows = self.rows(conversation_id)
            batches = self.model.batches_of(conversation_id)
            assert [row.queue_sequence for row in rows] == list(range(1, len(rows) + 1))
            assert sum(row.token is not None for row in rows) <= 1
            check_chain(batches, self.model.inspect_tail(conversation_id).sequence)
            _check_outcomes(rows, batches)
            for old in before[conversation_id]:
                new = next(row for row in rows if row.submission_id == old.submission_id)
                assert new.epoch >= old.epoch
                assert not old.settled or new == old
                assert old.abort is None or new.abort == old.abort


def _check_outcomes(rows: list[Row], batches: list[Batch]) -> None:
    records = [record for batch in batches for record in decode_records(batch.body)]
    settled = {record.submission_id: record for record in records if isinstance(record, SubmissionSettled)}
    counts = Counter(type(record).__name__ + str(getattr(record, "submission_id", record.id)) for record in records)
    assert not [name for name, count in counts.items() if count > 1]
    inputs = [record.queue_sequence for record in records if isinstance(record, InputRecorded)]
    assert len(inputs) == len(set(inputs))
    for row in rows:
        record = settled.get(row.submission_id)
        assert row.outcome == (record.outcome if record and row.settled else None)
        assert not row.settled or record is not None
        assert row.input_sequence is None or isinstance(_at(batches, row.input_sequence), InputRecorded)


def _at(batches: list[Batch], sequence: int) -> object:
    batch = next(batch for batch in batches if batch.first_sequence <= sequence <= batch.last_sequence)
    return decode_records(batch.body)[sequence - batch.first_sequence]


def _states(store: Store) -> list[object]:
    return [
        (store.list_rows(name), store.read_log(name), store.inspect_tail(name), store.load_checkpoint(name))
        for name in CONVERSATIONS
    ]


def _drive(events: list[Any], clock: Clock, stores: list[Store], group: int) -> None:
    model = stores[0]
    assert isinstance(model, MemoryStore)
    world = World(model, clock)
    pending: list[Unit] = []
    for event in events:
        match event:
            case "expire":
                clock.advance(2000)
            case "renew":
                for store in stores:
                    store.renew_lease("o0", 1500)
                    store.renew_lease("o1", 1500)
            case "forget":  # what a restart leaves: the headers are read back from what is stored
                for store in stores:
                    store._engine.forget()
            case "repeat":
                pending += world.last
            case step:
                pending.append(world.unit(step))
                world.last = pending[-1:]
        if len(pending) < group:
            continue
        before = {name: world.rows(name) for name in CONVERSATIONS}
        state = _states(model)
        answers = [store.commit(pending) for store in stores]
        assert all(given == answers[0] for given in answers)
        world.check(before)
        if all(isinstance(answer, Rejected) for answer in answers[0]):
            assert _states(model) == state
        pending = []
    for store in stores[1:]:
        assert _states(store) == _states(model)
        assert store.scan_nonterminal() == model.scan_nonterminal()


@pytest.mark.requirement("DUR-002", "DUR-004", "DUR-005", "DUR-006", "DUR-007", "DUR-011")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=st.lists(EVENT, min_size=20, max_size=60))
def test_random_commands_never_break_the_invariants(events: list[Any]) -> None:
    """Section 1 b to d on the machine alone; a second memory store forgets its headers after every commit."""
    clock = Clock()
    forgetful = MemoryStore(now_ms=clock)
    commit = forgetful.commit

    def commit_and_forget(units: list[Unit]) -> Any:
        answers = commit(units)
        forgetful._engine.forget()
        return answers

    forgetful.commit = commit_and_forget
    _drive(["renew", *events], clock, [MemoryStore(now_ms=clock), forgetful], group=1)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events=st.lists(EVENT, min_size=40, max_size=60), group=st.integers(1, 4))
def test_both_adapters_agree(events: list[Any], group: int) -> None:
    """One contract: equal answers to equal groups, equal rows, logs, tails and scans; closed and opened again, too."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        maker = Maker("duckdb", Path(folder), clock)
        model, store = MemoryStore(now_ms=clock), maker()
        try:
            _drive(["renew", *events], clock, [model, store], group)
            store.close()
            store = maker()
            assert _states(store) == _states(model)
        finally:
            maker.close()
