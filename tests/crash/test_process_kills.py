"""Real processes that end at a failpoint as SIGKILL would end them; a second process finds the file and recovers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lane_world import Supplier

from laneway.storage.failpoints import Point

VICTIM = Path(__file__).parents[1] / "support" / "lane_victim.py"

# point, hit, stepwise, replayed receipt, decisions, model calls, tool calls
KILLS: list[tuple[str, Point, int, str, bool, list[str], int, int]] = [
    ("K1", Point.AFTER_ADMISSION, 1, "stepwise", True, [], 2, 1),
    ("K4", Point.AFTER_INPUT_APPENDED, 1, "stepwise", True, ["repair_input_marker"], 2, 1),
    ("K6", Point.DURING_MODEL, 4, "fused", True, ["resume_turn"], 3, 1),
    ("K10", Point.AFTER_TOOL, 1, "fused", True, ["resume_batch"], 2, 2),
    ("K12", Point.AFTER_STEP_SETTLED, 1, "fused", True, ["resume_batch"], 2, 2),
    ("K12", Point.AFTER_STEP_SETTLED, 1, "stepwise", True, ["resume_batch"], 2, 2),
    ("K17", Point.AFTER_RESERVATION, 1, "stepwise", True, ["append_reservation"], 2, 1),
    ("K18", Point.AFTER_SETTLEMENT_APPENDED, 1, "stepwise", True, ["finalize"], 2, 1),
    ("inside a write", Point.APPEND_ROWS_WRITTEN, 1, "fused", False, [], 2, 1),
]


def run(folder: Path, point: str, at: int, mode: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(VICTIM), str(folder / "store.duckdb"), str(folder / "supplier.jsonl")]
    return subprocess.run([*command, point, str(at), mode], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.requirement("DUR-001", "DUR-003", "DUR-007", "DUR-010", "DUR-011", "DUR-015")
@pytest.mark.parametrize("kill", KILLS, ids=[f"{kill[0]}-{kill[1]}-{kill[3]}" for kill in KILLS])
def test_a_killed_process_is_recovered_by_the_next_one(kill: tuple[Any, ...], tmp_path: Path) -> None:
    _, point, at, mode, replayed, decisions, model, tool = kill
    killed = run(tmp_path, point, at, mode)
    assert killed.returncode == 137, killed.stderr
    assert killed.stdout == ""
    recovered = run(tmp_path, "none", 0, mode)
    assert recovered.returncode == 0, recovered.stderr
    found = json.loads(recovered.stdout)
    assert (found["outcome"], found["text"]) == ("completed", "done")
    assert found["replayed"] is replayed
    assert found["decisions"] == decisions
    assert found["types"].count("submission_settled") == 1
    assert found["types"].count("input_recorded") == 1
    assert found["passed"], found["problems"]
    supplier = Supplier(tmp_path / "supplier.jsonl")
    assert (supplier.count("model"), supplier.count("charge")) == (model, tool)
    # No kill hits a step between its body and its commit: whatever became of the handler, each step ran once.
    assert (supplier.count("step 1"), supplier.count("step 2")) == (1, 1)
