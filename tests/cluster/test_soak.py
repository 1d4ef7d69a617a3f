"""Kills of actors, store and supervisor under load, for a while; what remains must be whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tool_recordings import recordings

ROOT = Path(__file__).parents[2]
SOAK = ROOT / "benchmarks" / "soak.py"
RECORDINGS = Path(
    os.environ.get("LANEWAY_SOAK_FILE") or ROOT.parent / "shared" / "data" / "airline-conversations.jsonl"
)
SECONDS = float(os.environ.get("SOAK_S", "300"))
SEED = os.environ.get("SOAK_SEED", "0")
SETTLING_S = 180.0
"""For the start, what is under way when the killing stops, and the check of all that was done."""
KINDS = ("actors", "store", "supervisor")


def soak(tmp_path: Path, file: Path, seconds: float, *more: str) -> dict[str, Any]:
    """Run the soak in a program of its own; what it prints is shown where pytest shows output, and its result."""
    result = tmp_path / "result.json"
    command = [sys.executable, str(SOAK), "--file", str(file), "--seconds", str(seconds), "--result", str(result)]
    subprocess.run([*command, *more], timeout=seconds + SETTLING_S, check=False)
    return json.loads(result.read_text())


def check(found: dict[str, Any]) -> None:
    assert found["troubles"] == []
    assert found["problems"] == []
    assert found["open"] == {}
    assert found["tool_executions_after_commit"] == 0
    assert found["tool_executions_repeated_by_effect"]["uncertain"] == 0
    assert sum(found["outcomes"].values()) == found["submissions"] > 0
    assert found["passed"]


@pytest.mark.timeout(220)
@pytest.mark.requirement("DUR-002", "DUR-003", "DUR-009")
def test_twenty_seconds_of_kills(tmp_path: Path) -> None:
    """K10, K11, K23 and K24 in a row, by chance: all settle, and no uncertain call is made twice."""
    found = soak(tmp_path, recordings(tmp_path / "recordings.jsonl"), 20.0, "--seed", "1")
    check(found)
    assert set(found["outcomes"]) == {"completed"}
    assert all(found["kills_by_kind"][kind] > 0 for kind in KINDS)
    assert found["recoveries"] > 0


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 2 * SETTLING_S)
def test_soak(tmp_path: Path) -> None:
    """The same on the recorded conversations, for as long as `make soak` is told."""
    found = soak(tmp_path, RECORDINGS, SECONDS, "--seed", SEED)
    check(found)
    assert all(found["kills_by_kind"][kind] > 0 for kind in KINDS)
