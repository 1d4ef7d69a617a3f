"""The crash matrix as data: one row a crash point. The same rows drive the classifier, the failpoints of a process that
is simulated, and processes that are really killed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lane_world import Script, Supplier, agent_of, call, calls

from laneway import Agent, Completed, Tool
from laneway.cluster.client import records_of
from laneway.storage.failpoints import Failpoints, Point
from laneway.storage.header import Batch
from laneway.storage.ledger import Receipt
from laneway.storage.ledger import Row as LedgerRow
from laneway.storage.records import ModelInterrupted, RecoveryDecided, tag_of

OPERATOR = "an operator says that it never started"
RETRY = "the client repeats its submit"


@dataclass(frozen=True)
class Row:
    """Kill at the `at`-th hit of `point`: what recovery then decides, and what the world outside has seen."""

    scenario: str
    point: Point
    at: int = 1
    effect: str = "idempotent"
    reconciled: bool = False
    decisions: tuple[str, ...] = ()
    model: int = 2
    tool: int = 1
    outcome: str = "completed"
    interrupted: int = 0
    then: str = ""
    how: str = "retire"
    classified: str = ""
    """What the classifier says of what is stored at the kill, where it is not the first decision that is recorded."""
    turn: int = 0
    """The turn whose model call was interrupted."""
    killed: bool = False
    """Also driven with a process that is really killed: one row of each scenario."""

    def __str__(self) -> str:
        return f"{self.scenario}-{self.point}-{self.at}-{self.effect}"

    @property
    def decided(self) -> str:
        return self.classified or self.decisions[0]


MATRIX = [
    Row("K1", Point.AFTER_ADMISSION, classified="finish_materialization"),
    Row("K1", Point.AFTER_ADMISSION, then=RETRY, classified="finish_materialization", killed=True),
    Row("K1", Point.BEFORE_COMMIT, at=2, classified="finish_materialization"),
    Row("K2", Point.AFTER_COMMIT, at=3, then=RETRY, classified="apply_input", killed=True),
    Row("K3", Point.AFTER_CLAIM, decisions=("apply_input",), killed=True),
    Row("K3", Point.AFTER_CLAIM, decisions=("apply_input",), how="expire"),
    Row("K4", Point.AFTER_INPUT_APPENDED, decisions=("repair_input_marker",), killed=True),
    Row("K5", Point.AFTER_RUN_STARTED, decisions=("repair_input_marker",), killed=True),
    Row("K6", Point.DURING_MODEL, decisions=("resume_turn",), model=3, interrupted=1, turn=1),
    Row(
        "K6",
        Point.DURING_MODEL,
        at=4,
        decisions=("resume_turn",),
        model=3,
        interrupted=1,
        turn=2,
        then=RETRY,
        killed=True,
    ),
    Row("K7", Point.AFTER_MODEL_RESPONDED, decisions=("resume_batch",)),
    Row("K7", Point.AFTER_MODEL_RESPONDED, effect="uncertain", decisions=("resume_batch",), killed=True),
    Row(
        "K8",
        Point.AFTER_PREPARED,
        effect="uncertain",
        decisions=("reconcile",),
        outcome="unknown",
        model=1,
        tool=0,
        then=OPERATOR,
        killed=True,
    ),
    Row("K8", Point.AFTER_PREPARED, effect="idempotent", decisions=("resume_batch",)),
    Row("K9", Point.DURING_TOOL, effect="uncertain", reconciled=True, decisions=("reconcile",), killed=True),
    Row("K9", Point.AFTER_TOOL, effect="uncertain", reconciled=True, decisions=("reconcile",)),
    Row("K10", Point.AFTER_TOOL, decisions=("resume_batch",), tool=2, killed=True),
    Row("K10", Point.DURING_TOOL, decisions=("resume_batch",), tool=2),
    Row("K10", Point.AFTER_TOOL, effect="readonly", decisions=("resume_batch",), tool=2, how="expire"),
    Row("K11", Point.AFTER_TOOL, effect="uncertain", decisions=("reconcile",), outcome="unknown", model=1, killed=True),
    Row("K11", Point.DURING_TOOL, effect="uncertain", decisions=("reconcile",), outcome="unknown", model=1),
    Row("K11", Point.AFTER_TOOL_SETTLED, effect="uncertain", decisions=("resume_turn",), interrupted=1, turn=2),
    Row("K16", Point.AFTER_MODEL_RESPONDED, at=2, decisions=("resume_turn",)),
    Row("K16", Point.AFTER_RUN_COMPLETED, decisions=("finish",), killed=True),
    Row("K17", Point.AFTER_RESERVATION, decisions=("append_reservation",), killed=True),
    Row("K18", Point.AFTER_SETTLEMENT_APPENDED, decisions=("finalize",), killed=True),
    Row("K18", Point.AFTER_FINALIZE, classified="nothing"),
]


def charging(supplier: Supplier, failpoints: Failpoints, row: Row) -> Agent:
    """A model that asks for one charge and then says that it is done; both keep count with the supplier."""

    async def charge(ctx: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        supplier.book("charge", ctx.call_id)
        failpoints.hit(Point.DURING_TOOL)
        return {"charged": ctx.call_id}

    async def find(ctx: Any, arguments: dict[str, Any]) -> Completed | None:
        booked = supplier.keys("charge")[ctx.call_id]
        return Completed({"charged": ctx.call_id}, "found at the supplier") if booked else None

    tool = Tool.raw("charge", charge, effect=row.effect, reconcile=find if row.reconciled else None, version="1")
    return agent_of(Script(calls(call("charge", {"amount": 1})), "done", supplier=supplier), tool)


def same_receipt(given: Any, known: LedgerRow | Receipt) -> bool:
    """K1, K2: receipt, submission and queue sequence are those of the admission, whoever asks again."""
    fields = ("receipt_id", "submission_id", "queue_sequence")
    return all(getattr(given, field) == getattr(known, field) for field in fields)


def check_history(
    row: Row, at_kill: LedgerRow, before: Sequence[Batch], after: Sequence[Batch], supplier: Supplier
) -> None:
    """What the row says of the log of a conversation that was killed and recovered, and had nothing else to do.

    `before` is the log at the kill, `at_kill` the ledger row then.
    """
    records = [record for _, record in records_of(list(after))]
    tags = [tag_of(record) for record in records]
    assert list(after[: len(before)]) == list(before)  # the old log is a prefix of the new one, byte for byte
    assert tuple(record.decision for record in records if isinstance(record, RecoveryDecided)) == row.decisions
    assert tags.count("run_started") == 1  # K5: exactly one, and by the prefix above it is the first attempt's
    assert tags.count("input_recorded") == 1
    # K6: the call that was lost is named by its turn and by the attempt that made it, before the new answer.
    lost = [(record.turn, record.attempt_id) for record in records if isinstance(record, ModelInterrupted)]
    assert lost == [(row.turn, at_kill.attempt_id)] * row.interrupted
    if row.outcome == "completed":
        assert tags.count("tool_call_settled") == 1
        assert "tool_call_unknown" not in tags
        assert tags.count("submission_settled") == 1
        (settled,) = [record for record in records if tag_of(record) == "tool_call_settled"]
        booked = supplier.keys("charge")
        assert booked[settled.result["charged"]] >= 1  # rule f: a value that the supplier really gave
        assert settled.author == ("reconciler" if row.reconciled else "tool")
    for record in records:
        if isinstance(record, RecoveryDecided):
            assert record.epoch > 1
