"""The convergence check: what must hold of every conversation once the dust has settled. Pure: rows and batches in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ..storage.errors import StoreCorrupt
from ..storage.header import Batch
from ..storage.ledger import Row, State
from ..storage.projection import ConversationView, chat_messages, prompt_messages
from ..storage.records import (
    AnyRecord,
    InputRecorded,
    ModelResponded,
    RunStarted,
    SubmissionSettled,
    decode_records,
    encode_records,
)
from ..storage.values import digest_of

_ALL_PREFIXES_MAX = 400  # beyond it every 50th prefix is checked: a prompt costs as much as its prefix is long
_WAITING = frozenset({State.UNKNOWN, State.SUSPENDED})


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that does not hold. `check` is its letter: a existence, b settlement, c log, d order, g prompt."""

    check: str
    conversation_id: str
    message: str
    submission_id: str | None = None
    sequence: int | None = None


class Report(msgspec.Struct, kw_only=True):
    """What was checked, and what does not hold."""

    conversations: int = 0
    submissions: int = 0
    records: int = 0
    batches: int = 0
    outcomes: dict[str, int] = {}
    open: dict[str, int] = {}
    problems: list[Problem] = []

    @property
    def passed(self) -> bool:
        return not self.problems

    def add(self, rows: Sequence[Row], batches: Sequence[Batch], *, require_settled: bool) -> None:
        """Check one conversation and count it."""
        self.conversations += 1
        self.submissions += len(rows)
        self.batches += len(batches)
        for row in rows:
            counts, key = (self.outcomes, str(row.outcome)) if row.settled else (self.open, str(row.state))
            counts[key] = counts.get(key, 0) + 1
        found, problems = check_conversation(rows, batches, require_settled=require_settled)
        self.records += found
        self.problems.extend(problems)

    def add_corrupt(self, conversation_id: str, error: StoreCorrupt) -> None:
        """A conversation that cannot be read: the error names the place."""
        self.conversations += 1
        self.problems.append(
            Problem(
                check="c",
                conversation_id=conversation_id,
                message=error.message,
                submission_id=error.details.get("submission_id"),
                sequence=error.details.get("sequence"),
            )
        )

    def merge(self, other: Report) -> None:
        """Add what another report has found in other conversations."""
        self.conversations += other.conversations
        self.submissions += other.submissions
        self.records += other.records
        self.batches += other.batches
        for mine, theirs in ((self.outcomes, other.outcomes), (self.open, other.open)):
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + count
        self.problems.extend(other.problems)


def check_conversation(
    rows: Sequence[Row], batches: Sequence[Batch], *, require_settled: bool
) -> tuple[int, list[Problem]]:
    """All rules over one conversation: the number of records that were read, and what does not hold."""
    conversation_id = (rows[0] if rows else batches[0]).conversation_id
    problems: list[Problem] = []

    def report(check: str, message: str, submission_id: str | None = None, sequence: int | None = None) -> None:
        problems.append(
            Problem(
                check=check,
                conversation_id=conversation_id,
                message=message,
                submission_id=submission_id,
                sequence=sequence,
            )
        )

    records = _check_log(batches, report)
    _check_existence(rows, records, report)
    _check_settlements(rows, records, report, require_settled=require_settled)
    _check_order(rows, records, report)
    if not problems:  # a log that is broken cannot be projected
        _check_joined(rows, records, report)
        _check_prompts([record for _, record in records], report)
    return len(records), problems


def _check_log(batches: Sequence[Batch], report: Any) -> list[tuple[int, AnyRecord]]:
    """c: sequences without a gap, an unbroken digest chain, bodies that decode, record ids that are used once."""
    records: list[tuple[int, AnyRecord]] = []
    expected, digest = 1, ""
    seen: dict[str, int] = {}
    for batch in batches:
        if batch.first_sequence != expected:
            report("c", f"the log goes on at {batch.first_sequence}, not at {expected}", sequence=batch.first_sequence)
        computed = digest_of(digest.encode() + batch.body.encode())
        if batch.previous_digest != digest or batch.digest != computed:
            report("c", "the digest chain is broken", batch.submission_id, batch.first_sequence)
        expected, digest = batch.last_sequence + 1, batch.digest
        try:
            decoded = decode_records(batch.body, where=f"the batch at {batch.first_sequence}")
        except StoreCorrupt as error:
            report("c", error.message, batch.submission_id, batch.first_sequence)
            continue
        if len(decoded) != batch.last_sequence - batch.first_sequence + 1:
            report("c", f"a batch of {len(decoded)} records counts otherwise", sequence=batch.first_sequence)
        for index, record in enumerate(decoded):
            sequence = batch.first_sequence + index
            if record.id in seen:
                report("c", f"record {record.id} stands at {seen[record.id]} already", sequence=sequence)
            seen[record.id] = sequence
            records.append((sequence, record))
    return records


def _check_existence(rows: Sequence[Row], records: Iterable[tuple[int, AnyRecord]], report: Any) -> None:
    """a: no accepted submission has vanished, each is visible as what it is, and its input is where the ledger says.

    Admission numbers the submissions of a conversation without a gap, and nothing ever takes a row away.
    """
    for expected, number in enumerate(sorted(row.queue_sequence for row in rows), 1):
        if number != expected:
            report("a", f"the ledger has no submission with queue sequence {expected}, {number} stands there")
            break  # what comes behind it stands in another place, too
    inputs = {record.submission_id: at for at, record in records if isinstance(record, InputRecorded)}
    for row in rows:
        at = inputs.get(row.submission_id)
        if row.input_sequence is not None and row.input_sequence != at:
            where = "is not in the log" if at is None else f"stands at {at}"
            report("a", f"its input {where}, the ledger says {row.input_sequence}", row.submission_id, at)
        if row.state is State.UNKNOWN and not row.unknown_calls:
            report("a", "it is unknown and names no call", row.submission_id)


def _check_settlements(
    rows: Sequence[Row], records: Iterable[tuple[int, AnyRecord]], report: Any, *, require_settled: bool
) -> None:
    """a and b: what was accepted settles, by one canonical record, which was reserved and the ledger agrees with."""
    settlements: dict[str, list[tuple[int, SubmissionSettled]]] = {}
    for sequence, record in records:
        if isinstance(record, SubmissionSettled):
            settlements.setdefault(record.submission_id, []).append((sequence, record))
    known = {row.submission_id for row in rows}
    for submission_id in settlements.keys() - known:
        report("a", "the log settles a submission that the ledger does not have", submission_id)
    for row in rows:
        found = settlements.get(row.submission_id, [])
        if len(found) > 1:
            report("b", f"{len(found)} settlements stand in the log", row.submission_id, found[1][0])
        if row.settled and not found:
            report("b", f"the ledger says {row.outcome} and the log has no settlement", row.submission_id)
        elif found and row.settled:
            sequence, record = found[0]
            if record.outcome != row.outcome or row.settlement_sequence != sequence:
                report("b", f"the log says {record.outcome}, the ledger {row.outcome}", row.submission_id, sequence)
        elif found and row.state in _WAITING:
            report("b", f"the log says {found[0][1].outcome}, the ledger {row.state}", row.submission_id, found[0][0])
        elif not row.settled and require_settled and row.state not in _WAITING:
            report("a", f"it is still {row.state}", row.submission_id)
        if found and row.reservation is not None:
            sequence, record = found[0]
            if digest_of(encode_records((record,))) != row.reservation.digest:
                report("b", "the settlement in the log is not the reserved one", row.submission_id, sequence)


def _check_order(rows: Sequence[Row], records: Iterable[tuple[int, AnyRecord]], report: Any) -> None:
    """d: inputs in the order of admission; settlements, too, but for work that never ran, joined or was parked.

    Steering is a stream of its own for each run. What came too late for its run enters the queue late, too.
    """
    order = {row.submission_id: row for row in rows}
    last_settled = 0
    last_inputs: dict[str, int] = {}
    started: set[str] = set()
    for sequence, record in records:
        if isinstance(record, RunStarted):
            started.add(record.submission_id)
        elif isinstance(record, InputRecorded):
            row = order.get(record.submission_id)
            if row is None or record.queue_sequence != row.queue_sequence:
                report("d", "an input was not admitted as it stands", record.submission_id, sequence)
            stream = "" if record.kind != "steering" else record.run_id or "?"
            if record.steers is not None:
                continue
            if record.queue_sequence <= last_inputs.get(stream, 0):
                report("d", "inputs are out of the order of admission", record.submission_id, sequence)
            last_inputs[stream] = max(last_inputs.get(stream, 0), record.queue_sequence)
        elif isinstance(record, SubmissionSettled):
            row = order.get(record.submission_id)
            exempt = row is None or row.host_id or row.parked or row.steers or record.submission_id not in started
            if not exempt and row is not None:
                if row.queue_sequence <= last_settled:
                    report("d", "settlements are out of the order of admission", record.submission_id, sequence)
                last_settled = max(last_settled, row.queue_sequence)


def _check_joined(rows: Sequence[Row], records: Sequence[tuple[int, AnyRecord]], report: Any) -> None:
    """d: what joined a run entered it between two of its turns, and settled with it, under its id (DUR-016)."""
    if not any(isinstance(record, InputRecorded) and record.kind != "user" for _, record in records):
        return
    rows_by_id = {row.submission_id: row for row in rows}
    view = ConversationView()
    joined: dict[str, str] = {}
    for sequence, record in records:
        if isinstance(record, InputRecorded) and record.kind != "user":
            run = view.runs.get(record.run_id or "")
            row = rows_by_id.get(record.submission_id)
            if run is None or run.completed is not None or not run.at_boundary:
                report("d", f"a {record.kind} input entered no run at a boundary", record.submission_id, sequence)
            elif row is not None and row.host_id != run.submission_id:
                report("d", "the ledger knows another host of a joined input", record.submission_id, sequence)
            elif row is not None and (record.kind == "steering") != (row.steers == row.host_id):
                report("d", f"a {record.kind} input was not admitted as one", record.submission_id, sequence)
            joined[record.submission_id] = record.run_id or ""
        elif isinstance(record, SubmissionSettled) and record.submission_id in joined:
            run = view.runs.get(joined[record.submission_id])
            host = view.settlements.get(run.submission_id) if run is not None else None
            if host is None or (record.run_id, record.outcome) != (host.run_id, host.outcome):
                report("d", "joined work did not settle with its host", record.submission_id, sequence)
        view.add(record)


def _check_prompts(records: Sequence[AnyRecord], report: Any) -> None:
    """g: a prompt from any prefix of the log is valid for a provider."""
    view = ConversationView()
    at_work = ""
    for index, record in enumerate(records, 1):
        view.add(record)
        at_work = record.run_id if isinstance(record, RunStarted | ModelResponded) else at_work
        if len(records) > _ALL_PREFIXES_MAX and index % 50 and index != len(records):
            continue
        fault = prompt_fault(prompt_messages(view, at_work)) or prompt_fault(chat_messages(view))
        if fault is not None:
            report("g", f"the prompt after record {index}: {fault}", sequence=index)
            return


def prompt_fault(messages: Sequence[dict[str, Any]]) -> str | None:
    """Why a provider would refuse these messages; None when each call is followed by its result and none is orphan."""
    owed: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            if not owed or message["tool_call_id"] != owed.pop(0):
                return f"message {index} answers a call that nobody made"
        elif owed:
            return f"message {index} comes before the result of a call"
        elif message["role"] == "assistant":
            owed = [call["id"] for call in message.get("tool_calls", ())]
    return "a call has no result" if owed else None
