"""The classifier: from what is stored of one submission to what recovery does with it (Specification 14, DUR-013).

Pure and total: no clock, no store, no lease. The first row that matches wins, in the order of `classify`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..storage.contract import Snapshot
from ..storage.ledger import TERMINAL, Row, State
from ..storage.projection import CallView, ConversationView, RunView
from ..storage.readback import records_of


@dataclass(frozen=True, slots=True)
class Decision:
    """What recovery does. `name` is stable and recorded; `sentence` tells an operator why, with `evidence`."""

    name: str
    sentence: str
    evidence: str = ""
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a decision rests on: the ledger row, its host's, and the projected log."""

    row: Row
    host: Row | None
    view: ConversationView

    @property
    def run(self) -> RunView | None:
        return self.view.run_of(self.row.submission_id)

    @property
    def input_logged(self) -> bool:
        return self.row.submission_id in self.view.inputs

    @property
    def settlement_logged(self) -> bool:
        return self.row.submission_id in self.view.settlements


def evidence_of(snapshot: Snapshot) -> Evidence:
    """Project a stored snapshot. Raises: StoreCorrupt for a batch that does not decode or match its digest."""
    view = ConversationView()
    for batch in snapshot.batches:
        view.extend(records_of(batch))
    return Evidence(snapshot.row, snapshot.host, view)


def is_uncertain(call: CallView) -> bool:
    """Prepared, not settled, and neither its effect class nor a resolution makes another execution safe (DUR-009)."""
    if not call.open or call.prepared is None or call.prepared.effect != "uncertain":
        return False
    return call.resolved is None


def classify(evidence: Evidence) -> Decision:
    """Decide. First match wins, in the order of the turn machine: what an attempt does first is what was decided.

    Settled, canonical settlement, reservation, joining, outcome on record, abort, unknown, open calls, approvals,
    batch, readiness, input, marker, turn (Specification 12, 13, 14; DUR-013).
    """
    row, run = evidence.row, evidence.run
    if row.state in TERMINAL:
        return Decision("nothing", "The submission is settled.", f"outcome {row.outcome}")
    if evidence.settlement_logged:
        return Decision("finalize", "Its settlement stands in the log: the ledger row is closed from history.")
    if row.reservation is not None:
        return Decision(
            "append_reservation",
            "Its settlement is reserved: that very record is appended, then the row is closed.",
            f"reserved {row.reservation.outcome} {row.reservation.digest[:12]}",
        )
    if row.state in (State.JOINING, State.JOINED):
        return _classify_joining(evidence)
    if run is not None and run.completed is not None:
        return Decision(
            "finish",
            "The run had ended: its outcome is settled without another model call.",
            f"run completed as {run.completed.outcome}",
        )
    if row.abort is not None:
        return Decision(
            "settle_aborted",
            f"{row.abort.author} asked for its abort; calls that nobody can prove stay on record as unknown.",
            f"abort {row.abort.abort_id}",
            _ids(uncertain_calls(run)),
        )
    if row.state is State.UNKNOWN:
        missing = unresolved(row)
        return Decision("wait_unknown", "The outcome of a call is unknown: somebody has to resolve it.", "", missing)
    if run is not None and run.open_calls:
        decision = _classify_calls(row, run)
        if decision is not None:
            return decision
    if row.state is State.SUSPENDED:
        return Decision("wait_approval", "A call waits for somebody's approval.")
    if run is not None and run.open_calls:
        return _classify_batch(row, run)
    if row.state is State.ADMITTED:
        return Decision("finish_materialization", "It was admitted and not made ready.")
    if not evidence.input_logged:
        return Decision("apply_input", "Its input is not in the log yet.")
    if row.input_sequence is None:
        return Decision("repair_input_marker", "Its input stands in the log and the ledger does not know.")
    turn = len(run.turns) if run else 0
    return Decision("resume_turn", "It goes on from its last turn boundary.", f"after turn {turn}")


def _classify_calls(row: Row, run: RunView) -> Decision | None:
    """What stands before everything else that open calls may need: answers, and what nobody can prove."""
    given_up = given_up_calls(run)
    if given_up:
        author = given_up[0].resolved.author if given_up[0].resolved else ""
        return Decision(
            "settle_aborted",
            f"{author} resolved an unknown call as abort: the run ends there.",
            f"resolution abort by {author}",
            _ids(given_up),
        )
    if answered_calls(row, run):
        return Decision("apply_resolutions", "Every unknown call is resolved: the answers enter the log.")
    proven = proven_calls(run)
    if proven:
        return Decision(
            "settle_proven", "Calls are proven as completed: their results enter the log.", "", _ids(proven)
        )
    uncertain = uncertain_calls(run)
    if uncertain:
        return Decision(
            "reconcile",
            "Calls were prepared and not settled: proof is sought, else they are unknown.",
            "",
            _ids(uncertain),
        )
    return None


def _classify_batch(row: Row, run: RunView) -> Decision:
    asked = asked_calls(run)
    if asked:
        if all(is_decided(row, call) for call in asked):
            return Decision("resume_decided", "The approval was decided: the decision enters the log.")
        return Decision("repair_suspension", "An approval was asked for and its suspension was lost.")
    return Decision(
        "resume_batch",
        "A declared batch of calls is not finished: it goes on without asking the model again.",
        f"turn {run.open_calls[0].turn}",
        _ids(run.open_calls),
    )


def _classify_joining(evidence: Evidence) -> Decision:
    row = evidence.row
    if row.state is State.JOINING:
        if not evidence.input_logged:
            return Decision("revert_joining", "It was claimed to join and its input never reached the log.")
        return Decision("repair_joined", "It was joining and its input stands in the log.")
    if (evidence.host is not None and evidence.host.settled) or row.host_id in evidence.view.settlements:
        return Decision("settle_with_host", "Its host is settled: it settles likewise.", f"host {row.host_id}")
    return Decision("wait_for_host", "It settles with its host, which is open.", f"host {row.host_id}")


# --- what both machines ask of open calls ------------------------------------------------------------------------


def unresolved(row: Row) -> tuple[str, ...]:
    """The calls that the ledger knows as unknown and that nobody has resolved."""
    return tuple(call_id for call_id, known in row.unknown_calls.items() if known.resolution is None)


def is_decided(row: Row, call: CallView) -> bool:
    """Whether the ledger holds a decision for the approval that the call asked for."""
    approval = row.approvals.get(call.approval.approval_id) if call.approval else None
    return approval is not None and approval.decision is not None


def given_up_calls(run: RunView) -> tuple[CallView, ...]:
    """Open calls that somebody resolved as abort."""
    return tuple(call for call in run.open_calls if call.resolved is not None and call.resolved.resolution == "abort")


def answered_calls(row: Row, run: RunView) -> tuple[CallView, ...]:
    """Unknown calls whose answers are not in the log yet; none of them, while the ledger lacks an answer for one."""
    pending = tuple(call for call in run.open_calls if call.unknown is not None and call.resolved is None)
    known = (row.unknown_calls.get(call.call.id) for call in pending)
    return pending if all(item is not None and item.resolution is not None for item in known) else ()


def proven_calls(run: RunView) -> tuple[CallView, ...]:
    """Open calls that are on record as completed, with their results."""
    return tuple(
        call
        for call in run.open_calls
        if call.resolved is not None and call.resolved.resolution == "completed_with_result"
    )


def uncertain_calls(run: RunView | None) -> tuple[CallView, ...]:
    """Open calls that nobody can prove."""
    return tuple(call for call in run.open_calls if is_uncertain(call)) if run else ()


def unproven_calls(run: RunView | None) -> tuple[CallView, ...]:
    """Those of them that are not on record as unknown."""
    return tuple(call for call in uncertain_calls(run) if call.unknown is None)


def asked_calls(run: RunView) -> tuple[CallView, ...]:
    """Open calls that asked for an approval, whose decision is not in the log."""
    return tuple(call for call in run.open_calls if call.approval is not None and call.decision is None)


def _ids(calls: Iterable[CallView]) -> tuple[str, ...]:
    return tuple(call.call.id for call in calls)
