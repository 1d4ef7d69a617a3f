"""Real processes that end at a failpoint as SIGKILL would end them; a second process finds the file and recovers.

The rows are those of the crash matrix, one of each scenario; K14, K15 and K19 are in `test_joining.py`, K13 in
`test_approvals.py`, K22 in `test_matrix.py`, and K23 to K26 in `tests/cluster`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from crash_matrix import MATRIX, OPERATOR, Row, check_history, same_receipt
from lane_victim import Spec
from lane_world import Supplier

from laneway.cluster.client import records_of
from laneway.storage.duckdb_store import DuckDBStore
from laneway.storage.failpoints import Point
from laneway.storage.header import Batch
from laneway.storage.ledger import Row as LedgerRow
from laneway.storage.records import ModelInterrupted, RecoveryDecided, SubmissionSettled, encode_records, tag_of

VICTIM = Path(__file__).parents[1] / "support" / "lane_victim.py"
AT_ONCE = 2  # processes beside each other: this many cores are there at least

BEFORE, AFTER = Point.BEFORE_SIDE_WRITE, Point.AFTER_SIDE_WRITE
RESUMED = ("resume_batch",)

ROWS = [Spec(act="charge", row=row) for row in MATRIX if row.killed]
FUSED = [
    Spec(
        act="charge",
        mode="fused",
        row=Row("K6", Point.DURING_MODEL, 4, effect="uncertain", decisions=("resume_turn",), model=3),
    ),
    # Beside that model call, the result of an idempotent call was on its way.
    Spec(act="charge", mode="fused", row=Row("K10", Point.DURING_MODEL, 4, decisions=RESUMED, model=3, tool=2)),
    Spec(act="charge", mode="fused", row=Row("K10", Point.AFTER_TOOL, decisions=RESUMED, tool=2)),
    Spec(act="steps", mode="fused", row=Row("K12", Point.AFTER_STEP_SETTLED, decisions=RESUMED, tool=2)),
    Spec(act="steps", row=Row("K12", Point.AFTER_STEP_SETTLED, decisions=RESUMED, tool=2)),
    Spec(act="charge", mode="fused", row=Row("inside a write", Point.APPEND_ROWS_WRITTEN)),
]
ABORTS = [
    Spec(act="abort queued", row=Row("K20", Point.AFTER_COMMIT)),
    Spec(act="abort active", row=Row("K21", Point.AFTER_COMMIT)),
]
ASIDE = [Spec(act=act, row=Row(act, point)) for act in ("quarantine", "release") for point in (BEFORE, AFTER)]


@dataclass(frozen=True)
class Stored:
    """What a file holds of the conversation and beside it."""

    rows: list[LedgerRow]
    batches: list[Batch]
    quarantined: list[str]

    @property
    def tags(self) -> list[str]:
        return [tag_of(record) for _, record in records_of(self.batches)]

    @property
    def decisions(self) -> list[str]:
        return [record.decision for _, record in records_of(self.batches) if isinstance(record, RecoveryDecided)]


@dataclass(frozen=True)
class Outcome:
    """A kill and the recovery from it: what was stored at the kill and in the end, and what the second process told."""

    at_kill: Stored
    at_end: Stored
    told: dict[str, Any]
    supplier: Supplier

    def counts(self, *kinds: str) -> tuple[int, ...]:
        return tuple(self.supplier.count(kind) for kind in kinds)


def stored(folder: Path, name: str) -> Stored:
    """Look at a copy: the process that recovers is to find the file as the killed one left it."""
    copy = folder / name
    copy.mkdir()
    for path in folder.glob("store.duckdb*"):
        shutil.copy(path, copy)
    store = DuckDBStore(copy / "store.duckdb")
    rows = sorted(store.list_rows("c"), key=lambda row: row.queue_sequence)
    found = Stored(rows, list(store.read_log("c").batches), [item.reason for item in store.quarantined()])
    store.close()
    return found


def run(folder: Path, spec: Spec) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(VICTIM), str(folder / "store.duckdb"), str(folder / "supplier.jsonl")]
    text = msgspec.json.encode(spec).decode()
    return subprocess.run([*command, text], capture_output=True, text=True, timeout=60, check=False)


def kill_and_recover(folder: Path, spec: Spec) -> Outcome:
    killed = run(folder, spec)
    assert killed.returncode == 137, killed.stderr
    assert killed.stdout == ""
    at_kill = stored(folder, "at_kill")
    recovered = run(folder, msgspec.structs.replace(spec, kill=False))
    assert recovered.returncode == 0, recovered.stderr
    told = json.loads(recovered.stdout)
    assert told["problems"] == []
    return Outcome(at_kill, stored(folder, "at_end"), told, Supplier(folder / "supplier.jsonl"))


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Outcome]]]:
    """All kills that were asked for, some beside each other: most of their time is the start of a process."""
    wanted = [item.callspec.params["spec"] for item in request.session.items if _has_spec(item)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name_of(spec): pool.submit(kill_and_recover, tmp_path_factory.mktemp("kill"), spec) for spec in wanted}


def _has_spec(item: Any) -> bool:
    return item.path == Path(__file__) and "spec" in getattr(item, "callspec", SimpleNamespace(params={})).params


def name_of(spec: Spec) -> str:
    return f"{spec.row}-{spec.act}-{spec.mode}"


@pytest.fixture
def outcome(outcomes: dict[str, Future[Outcome]], spec: Spec) -> Outcome:
    return outcomes[name_of(spec)].result()


@pytest.mark.requirement("DUR-001", "DUR-003", "DUR-009", "DUR-011", "DUR-013", "DUR-015")
@pytest.mark.parametrize("spec", ROWS, ids=name_of)
def test_a_row_of_the_matrix_with_a_killed_process(spec: Spec, outcome: Outcome) -> None:
    """K1 to K11 and K16 to K18: what the row says, of processes that were killed and recovered on one file."""
    row = spec.row
    (known,) = outcome.at_kill.rows
    (receipt,) = outcome.told["receipts"]
    assert receipt["replayed"]
    assert same_receipt(SimpleNamespace(**receipt), known)  # K1, K2
    resolved = row.then == OPERATOR
    settled = "aborted" if row.outcome == "unknown" and not resolved else "completed"
    assert outcome.told["outcomes"] == [settled]
    assert outcome.counts("model", "charge") == (row.model + resolved, row.tool + resolved)
    check_history(row, known, outcome.at_kill.batches, outcome.at_end.batches, outcome.supplier)
    (closed,) = outcome.at_end.rows
    assert closed.outcome == settled
    assert closed.epoch > known.epoch
    if known.reservation is not None:  # K17, K18
        records = [record for _, record in records_of(outcome.at_end.batches)]
        (last,) = [record for record in records if isinstance(record, SubmissionSettled)]
        assert encode_records((last,)).decode() == known.reservation.body


@pytest.mark.requirement("DUR-007", "DUR-010")
@pytest.mark.parametrize("spec", FUSED, ids=name_of)
def test_kills_between_fused_writes_and_in_steps(spec: Spec, outcome: Outcome) -> None:
    """K6, K10, K12, and a kill inside of a write, which leaves nothing of it."""
    row = spec.row
    assert outcome.told["outcomes"] == ["completed"]
    (receipt,) = outcome.told["receipts"]
    assert receipt["replayed"] == bool(outcome.at_kill.rows) == (row.point is not Point.APPEND_ROWS_WRITTEN)
    assert outcome.at_end.decisions == list(row.decisions)
    assert outcome.at_end.batches[: len(outcome.at_kill.batches)] == outcome.at_kill.batches
    assert outcome.counts("model", "charge") == (row.model, row.tool)
    assert outcome.at_end.tags.count("submission_settled") == outcome.at_end.tags.count("input_recorded") == 1
    lost = [record for _, record in records_of(outcome.at_end.batches) if isinstance(record, ModelInterrupted)]
    named = [(record.turn, record.attempt_id) for record in lost]
    assert named == ([(2, outcome.at_kill.rows[0].attempt_id)] if row.scenario == "K6" else [])
    if spec.act == "steps":  # no kill hits a step between its body and its commit: each step ran once
        assert outcome.counts("step 1", "step 2") == (1, 1)


@pytest.mark.requirement("DUR-012")
@pytest.mark.parametrize("spec", ABORTS, ids=name_of)
def test_an_abort_whose_process_is_killed(spec: Spec, outcome: Outcome) -> None:
    """K20: the intent alone is durable, the work settles aborted and leaves no input, and the head goes on.

    K21: the request stands before the settlement, and no answer of a model behind it.
    """
    *others, known = outcome.at_kill.rows
    assert known.abort is not None
    assert known.abort.abort_id == "abt_1"
    assert outcome.told["outcomes"] == [*("completed" for _ in others), "aborted"]
    tags = outcome.at_end.tags
    assert tags.count("input_recorded") == 1
    if spec.act == "abort queued":
        assert known.input_sequence is None
        assert outcome.counts("model") == (2,)  # the head's: it was lost and made again
    else:
        assert tags.index("abort_requested") < tags.index("submission_settled")
        assert "model_responded" not in tags
        assert outcome.at_end.decisions == ["settle_aborted"]
        assert outcome.counts("model") == (1,)


@pytest.mark.parametrize("spec", ASIDE, ids=name_of)
def test_a_quarantine_and_a_release_whose_process_is_killed(spec: Spec, outcome: Outcome) -> None:
    """Specification 16: whole or not there. Set aside, the conversation keeps what it accepts until it is released."""
    aside = (spec.act == "quarantine") == (spec.row.point is AFTER)
    assert outcome.at_kill.quarantined == (["looking"] if aside else [])
    assert outcome.told["aside"] == outcome.at_kill.quarantined
    assert outcome.at_end.quarantined == []
    assert outcome.told["outcomes"] == ["completed", "completed"]
    assert outcome.counts("charge") == (2,)


def test_each_scenario_of_the_matrix_is_killed_once() -> None:
    assert [row.scenario for row in MATRIX if row.killed] == list(dict.fromkeys(row.scenario for row in MATRIX))
