"""The auditor: looks at the store after every write and says at once which promise was broken."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulation.call_audit import CallAudit, objection_to
from simulation.promises import Violation
from simulation.promises import require as _require

from laneway.actors.lane.values import Settlement, settlement_of
from laneway.storage.contract import Store
from laneway.storage.header import Batch
from laneway.storage.ledger import WITH_OWNER, Receipt, Row, State
from laneway.storage.projection import CallView, ConversationView
from laneway.storage.records import (
    AnyRecord,
    ApprovalDecided,
    ApprovalRequested,
    InputRecorded,
    ModelResponded,
    RecoveryDecided,
    RepairAnnotated,
    RunCompleted,
    RunStarted,
    StepSettled,
    SubmissionSettled,
    ToolCallPrepared,
    ToolCallResolved,
    ToolCallSettled,
    chained_digest,
    decode_records,
    encode_records,
    tag_of,
)
from laneway.storage.values import digest_of

if TYPE_CHECKING:
    from simulation.supplier import Supplier

_KEPT = ("receipt_id", "conversation_id", "principal", "idempotency_key", "input_digest", "queue_sequence", "agent")
_MAY_RUN_AGAIN = ("never_started", "safe_to_retry")
_EVIDENCE = {"abort_requested", "approval_decided", "tool_call_unknown", "repair_annotated", "submission_settled"}
_ALL = 1_000_000


@dataclass
class Known:
    """What the auditor has seen of one conversation."""

    log: tuple[Batch, ...] = ()
    view: ConversationView = field(default_factory=ConversationView)
    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    records: set[str] = field(default_factory=set[str])
    inputs: dict[str, int] = field(default_factory=dict[str, int])
    settled_at: dict[str, int] = field(default_factory=dict[str, int])
    epoch: int = 0
    last_inputs: dict[str, int] = field(default_factory=dict[str, int])
    """The last queue sequence of each stream: the queue's is "", and each run has one of what steers it."""

    @property
    def owners(self) -> set[str]:
        return {row.owner_id for row in self.rows.values() if row.owner_id is not None}


class Auditor:
    """Keeps what it saw, and holds every later state against it. `fail` is told of the first broken promise."""

    def __init__(self, fail: Callable[[str], None], reached: Counter[str]) -> None:
        self._fail = fail
        self._reached = reached
        self._known: dict[str, Known] = {}
        self._acknowledged: dict[str, Receipt] = {}
        self._asked: dict[str, list[asyncio.Future[None]]] = {}
        self.calls = CallAudit(reached)
        self.supplier: Supplier | None = None

    # --- after every write -------------------------------------------------------------------------------------------

    def observe(self, store: Store, conversation_ids: Iterable[str]) -> None:
        """Look at these conversations, which a write may have changed."""
        for conversation_id in conversation_ids:
            known = self._known.setdefault(conversation_id, Known())
            try:
                rows = {row.submission_id: row for row in store.list_rows(conversation_id, limit=_ALL)}
                owners = known.owners | {row.owner_id for row in rows.values() if row.owner_id is not None}
                epoch_before = known.epoch
                self._look_at_log(store, conversation_id, known, rows, owners)
                self._look_at_rows(known, rows, epoch_before)
            except Violation as violation:
                self._fail(f"{conversation_id}: {violation}")
                return

    def _look_at_log(
        self, store: Store, conversation_id: str, known: Known, rows: dict[str, Row], owners: set[str]
    ) -> None:
        log = store.read_log(conversation_id, 0, _ALL).batches
        _require(log[: len(known.log)] == known.log, "the old log is no prefix of the new one")
        for batch in log[len(known.log) :]:
            records = decode_records(batch.body)
            self._look_at_batch(known, batch, owners, by_abort=_by_abort(rows.get(batch.submission_id), records))
            for index, record in enumerate(records):
                self._look_at_record(known, rows, batch.first_sequence + index, record)
        known.log = log

    def _look_at_batch(self, known: Known, batch: Batch, owners: set[str], *, by_abort: bool) -> None:
        sequence, digest = known.view.tail_sequence, known.log[-1].digest if known.log else ""
        _require(batch.first_sequence == sequence + 1, f"the log goes on at {batch.first_sequence}, not {sequence + 1}")
        _require(batch.epoch >= known.epoch, f"epoch {batch.epoch} writes after epoch {known.epoch}")
        _require(
            batch.previous_digest == digest and batch.digest == chained_digest(digest, batch.body),
            f"the digest chain breaks at {batch.first_sequence}",
        )
        _require(by_abort or batch.producer_id in owners, f"{batch.producer_id} wrote and owns nothing (DUR-006)")
        known.epoch = batch.epoch
        known.log = (*known.log, batch)

    def _look_at_record(self, known: Known, rows: dict[str, Row], sequence: int, record: AnyRecord) -> None:
        view = known.view
        _require(record.id not in known.records, f"record {record.id} stands in the log twice")
        known.records.add(record.id)
        self._reached[f"record:{tag_of(record)}"] += 1
        match record:
            case InputRecorded():
                row = rows.get(record.submission_id)
                _require(row is not None and row.queue_sequence == record.queue_sequence, "an input nobody admitted")
                _require(record.submission_id not in known.inputs, f"the input of {record.submission_id} came twice")
                known.inputs[record.submission_id] = sequence
                self._look_at_order(known, record)
            case RunStarted():
                _require(record.run_id not in view.runs, f"run {record.run_id} started twice")
            case ModelResponded():
                run = view.runs[record.run_id]
                _require(record.turn == len(run.turns) + 1, f"turn {record.turn} follows turn {len(run.turns)}")
                _require(run.submission_id not in view.aborts, "the model answered behind an abort (DUR-012)")
            case ToolCallPrepared():
                self._look_at_preparation(view.calls[record.call_id], record)
                self.calls.prepared(view, record)
            case ToolCallSettled():
                self._look_at_result(view.calls[record.call_id], record)
            case StepSettled():
                assert self.supplier is not None
                self.calls.step(view, record, self.supplier)
            case ApprovalRequested():
                self.calls.requested(view, record)
                self._tell_of_request(rows[view.runs[record.run_id].submission_id].conversation_id)
            case ApprovalDecided():
                self.calls.decided(view, rows, record)
            case ToolCallResolved():
                who = "reconciler" if record.author == "reconciler" else "operator"
                self._reached[f"resolved:{who}:{record.resolution}"] += 1
            case RecoveryDecided():
                self._reached[f"decision:{record.decision}"] += 1
            case RunCompleted():
                _require(record.run_id in view.runs, "a run ended that never began")
                if record.error is not None:
                    _require("raised" not in record.error.message, f"the model broke: {record.error.message}")
                    self._reached[f"run_error:{record.error.code}"] += 1
            case SubmissionSettled():
                _require(record.submission_id in rows, "a settlement of nothing that was accepted")
                _require(record.submission_id not in known.settled_at, "a second settlement (DUR-002)")
                known.settled_at[record.submission_id] = sequence
                self._reached[f"outcome:{record.outcome}"] += 1
            case _:
                pass
        self._look_behind_settlement(view, record)
        view.add(record)

    def _look_at_order(self, known: Known, record: InputRecorded) -> None:
        self._reached[f"input:{record.kind}"] += 1
        if record.steers is not None:
            return  # it came too late for the run that it was to steer, and enters the queue late, too
        stream = record.run_id or "" if record.kind == "steering" else ""
        in_order = record.queue_sequence > known.last_inputs.get(stream, 0)
        _require(in_order, "inputs are out of order (DUR-004)")
        known.last_inputs[stream] = record.queue_sequence

    def _look_behind_settlement(self, view: ConversationView, record: AnyRecord) -> None:
        run_id = getattr(record, "run_id", None)
        run = view.runs.get(run_id) if run_id else None
        if run is not None and run.submission_id in view.settlements:
            joined = isinstance(record, SubmissionSettled) and record.submission_id != run.submission_id
            allowed = joined or isinstance(record, RecoveryDecided | RepairAnnotated)
            _require(allowed, f"{tag_of(record)} stands behind the settlement of its run")

    def _look_at_preparation(self, call: CallView, record: ToolCallPrepared) -> None:
        if call.prepared is None or record.effect != "uncertain":
            return
        permitted = call.resolved is not None and call.resolved.resolution in _MAY_RUN_AGAIN
        _require(permitted, f"uncertain call {record.call_id} was prepared again without proof (DUR-009)")

    def _look_at_result(self, call: CallView, record: ToolCallSettled) -> None:
        _require(call.settled is None, f"call {record.call_id} has two results")
        assert self.supplier is not None
        self.calls.settled(call, record, self.supplier)
        if record.outcome != "succeeded":
            assert record.error is not None
            _require("raised" not in record.error.message, f"a tool of the simulation broke: {record.error.message}")
            self._reached[f"tool_error:{record.error.code}"] += 1
            return
        _require(
            self.supplier.produced(record.call_id, record.result),
            f"the result of {record.call_id} was never produced: {record.result}",
        )
        self._reached[f"tool:{call.call.name}"] += 1

    def _look_at_rows(self, known: Known, rows: dict[str, Row], epoch_before: int) -> None:
        for submission_id, before in known.rows.items():
            _require(submission_id in rows, f"{submission_id} was accepted and is gone")
            row = rows[submission_id]
            if row != before:
                self._look_at_change(known, before, row)
        epoch = known.epoch
        for row in rows.values():
            before = known.rows.get(row.submission_id)
            if row != before:
                self._look_at_claim(rows, row, before, epoch_before)
                _look_at_history(known, row)
                self._reached[f"state:{row.state}"] += 1
            epoch = max(epoch, row.epoch)
        sequences = sorted(row.queue_sequence for row in rows.values())
        _require(sequences == list(range(1, len(rows) + 1)), f"queue sequences have gaps: {sequences}")
        at_work = [row for row in rows.values() if row.state in WITH_OWNER and row.owner_id is not None]
        _require(len(at_work) <= 1, "two submissions are at work in one conversation (DUR-005)")
        known.rows, known.epoch = rows, epoch

    def _look_at_change(self, known: Known, before: Row, row: Row) -> None:
        name = row.submission_id
        in_log = known.inputs.get(name)
        if before.state in (State.JOINING, State.JOINED) and row.state is State.READY:
            _require(in_log is None, f"{name} joined, its input stands in the log, and it was reverted (DUR-016)")
        for kept in _KEPT:
            _require(getattr(row, kept) == getattr(before, kept), f"{kept} of {name} changed")
        _require(not before.settled, f"{name} was settled as {before.outcome} and changed afterwards")
        _require(row.epoch >= before.epoch and row.attempts >= before.attempts, f"the epoch of {name} went back")
        _require(before.abort is None or row.abort == before.abort, f"the abort of {name} changed (DUR-012)")
        for approval_id, known in before.approvals.items():
            if known.decision is not None:
                now = row.approvals.get(approval_id)
                same = now is not None and (now.decision, now.author) == (known.decision, known.author)
                _require(same, f"the decision on {approval_id} changed")
        if before.reservation is not None:
            kept_digest = row.reservation is not None and row.reservation.digest == before.reservation.digest
            _require(kept_digest, f"the reserved settlement of {name} changed (DUR-011)")

    def _look_at_claim(self, rows: dict[str, Row], row: Row, before: Row | None, epoch_before: int) -> None:
        attempt_before = before.attempt_id if before is not None else None
        if row.attempt_id is None or row.attempt_id == attempt_before:
            return
        _require(row.epoch > epoch_before, f"a claim got epoch {row.epoch} after epoch {epoch_before} (DUR-006)")
        if row.state is State.JOINED:
            return  # it ran in its host's run, and is closed behind that
        for other in rows.values():
            if other.queue_sequence >= row.queue_sequence or other.settled or other.parked:
                continue
            waits = other.state in (State.JOINING, State.JOINED) or other.steers is not None
            _require(waits, f"{row.submission_id} was claimed before {other.submission_id} (DUR-004)")

    # --- what users were told ----------------------------------------------------------------------------------------

    def acknowledged(self, store: Store, receipt: Receipt) -> None:
        """A user holds this receipt: the work must be accepted and ready, and the receipt always the same (DUR-001)."""
        row = store.lookup(receipt.submission_id)
        earlier = self._acknowledged.setdefault(receipt.submission_id, receipt)
        same = (earlier.receipt_id, earlier.queue_sequence) == (receipt.receipt_id, receipt.queue_sequence)
        if row is None or row.receipt_id != receipt.receipt_id or row.queue_sequence != receipt.queue_sequence:
            self._fail(f"the receipt {receipt} is not what the ledger has")
        elif row.state is State.ADMITTED or not same:
            self._fail(f"the receipt {receipt} was given for work that is {row.state}")

    def told(self, conversation_id: str, settlement: Settlement) -> None:
        """A user was told this outcome: it must be the canonical one."""
        record = self.view(conversation_id).settlements.get(settlement.submission_id)
        if record is None or settlement_of(record) != settlement:
            self._fail(f"a user was told {settlement}, and the log has {record}")

    def saw(self, conversation_id: str, sequence: int, tag: str) -> None:
        """A watcher was shown this record as canonical."""
        log = self._known[conversation_id].log if conversation_id in self._known else ()
        for batch in log:
            if batch.first_sequence <= sequence <= batch.last_sequence:
                record = decode_records(batch.body)[sequence - batch.first_sequence]
                if tag_of(record) != tag:
                    self._fail(f"a watcher saw {tag} at {sequence}, and the log has {tag_of(record)}")
                return
        self._fail(f"a watcher saw {tag} at {sequence}, which is not in the log")

    # --- looking -----------------------------------------------------------------------------------------------------

    def conversations(self) -> list[str]:
        return [name for name, known in self._known.items() if known.rows]

    def view(self, conversation_id: str) -> ConversationView:
        return self._known[conversation_id].view

    def rows(self, conversation_id: str) -> list[Row]:
        return sorted(self._known[conversation_id].rows.values(), key=lambda row: row.queue_sequence)

    def recorded_call(self, conversation_id: str, call_id: str) -> CallView | None:
        known = self._known.get(conversation_id)
        return known.view.calls.get(call_id) if known is not None else None

    def objection(self, conversation_id: str, call: CallView) -> str | None:
        """Why the call must not run now, as things stand in the log."""
        return objection_to(self.view(conversation_id), call)

    def attempts(self, conversation_id: str, submission_id: str) -> int:
        """The number of the attempt that owns the submission, or owned it last."""
        return self._known[conversation_id].rows[submission_id].attempts

    def waiting(self, conversation_id: str) -> list[tuple[str, CallView]]:
        """The approvals that are asked for and nobody has decided, each with its submission."""
        known = self._known.get(conversation_id)
        found: list[tuple[str, CallView]] = []
        for run in known.view.runs.values() if known is not None else ():
            row = known.rows.get(run.submission_id) if known is not None else None
            if row is None or row.settled:
                continue
            for call in run.open_calls:
                ledger = row.approvals.get(call.approval.approval_id) if call.approval is not None else None
                if call.approval is not None and call.decision is None and (ledger is None or ledger.decision is None):
                    found.append((run.submission_id, call))
        return found

    def joined_by_others(self, submission_id: str) -> bool:
        """Whether other submissions are to settle with this one."""
        rows = (row for known in self._known.values() for row in known.rows.values())
        return any(row.host_id == submission_id and row.state is State.JOINED for row in rows)

    async def next_request(self, conversation_id: str) -> None:
        """Wait until an approval is asked for there."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(conversation_id, []).append(future)
        await future

    def _tell_of_request(self, conversation_id: str) -> None:
        for future in self._asked.pop(conversation_id, ()):
            if not future.done():
                future.set_result(None)

    def still_open(self) -> list[Row]:
        """What is owed, but for work that waits for a person and what it holds up."""
        owed: list[Row] = []
        for conversation_id in self._known:
            parked: set[str] = set()
            for row in self.rows(conversation_id):
                if row.state is State.UNKNOWN and row.parked:
                    parked.add(row.submission_id)
                if row.settled or parked & {row.submission_id, row.steers, row.host_id}:
                    continue  # settled, waiting for a person, or bound to a run that waits for one
                if row.state is State.UNKNOWN:
                    break  # it holds its lane: nobody may pass
                owed.append(row)
        return owed


def _look_at_history(known: Known, row: Row) -> None:
    """The ledger follows the log (DUR-015)."""
    name = row.submission_id
    if row.input_sequence is not None:
        _require(known.inputs.get(name) == row.input_sequence, f"the input of {name} is not where the ledger says")
    record = known.view.settlements.get(name)
    if row.settled:
        _require(record is not None, f"{name} is settled in the ledger and not in the log (DUR-011)")
        assert record is not None
        agrees = record.outcome == row.outcome and known.settled_at[name] == row.settlement_sequence
        _require(agrees, f"the ledger says {row.outcome} of {name}, the log {record.outcome}")
    if record is not None and row.reservation is not None:
        digest = digest_of(encode_records((record,)))
        _require(digest == row.reservation.digest, f"the settlement of {name} is not the reserved one (DUR-011)")
    if row.state is State.UNKNOWN:
        _require(bool(row.unknown_calls), f"{name} is unknown and names no call")


def _by_abort(row: Row | None, records: tuple[AnyRecord, ...]) -> bool:
    """Whether an abort intent authorises these records, whoever writes them (Specification 13)."""
    return row is not None and row.abort is not None and all(tag_of(record) in _EVIDENCE for record in records)
