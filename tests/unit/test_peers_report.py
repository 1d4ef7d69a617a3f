"""What `make bench-peers` makes of its rounds: medians, spreads, ratios, the table."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "peers" / "report.py"  # of an environment of its own, not installed
SPEC = importlib.util.spec_from_file_location("peers_report", PATH)
assert SPEC is not None
assert SPEC.loader is not None
report = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(report)


def figures(turns_per_second: float, p50_ms: float) -> dict[str, dict[str, float]]:
    return {"many": {"turns_per_second": turns_per_second, "p50_ms": p50_ms, "p99_ms": 2 * p50_ms}}


ROUNDS = [
    {"restate": figures(400.0, 100.0), "laneway": figures(4_000.0, 10.0), "dbos-sqlite": figures(100.0, 500.0)},
    {"laneway": figures(2_000.0, 20.0), "dbos-sqlite": figures(100.0, 600.0), "restate": figures(500.0, 80.0)},
    {"dbos-sqlite": figures(200.0, 400.0), "restate": figures(300.0, 110.0), "laneway": figures(3_000.0, 15.0)},
]


def test_the_results_are_medians_with_their_spread_and_ours_come_first() -> None:
    found = report.results(ROUNDS, "many")
    assert list(found) == ["laneway", "dbos-sqlite", "restate"]
    assert found["laneway"]["turns_per_second"] == {"median": 3_000.0, "min": 2_000.0, "max": 4_000.0}
    assert found["restate"]["p99_ms"] == {"median": 200.0, "min": 160.0, "max": 220.0}


def test_a_ratio_compares_within_a_round() -> None:
    found = report.ratios(ROUNDS, "many")
    assert list(found) == ["dbos-sqlite", "restate"]
    # 40, 20 and 15 in the three rounds; the ratio of the medians would be 30.
    assert found["dbos-sqlite"]["turns_per_second"] == {"median": 20.0, "min": 15.0, "max": 40.0}
    assert found["restate"]["p50_ms"] == {"median": 0.136, "min": 0.1, "max": 0.25}


def test_the_best_peer_has_the_most_turns_and_the_least_time_and_is_never_laneway() -> None:
    assert report.best(ROUNDS, "many", "turns_per_second") == "restate"
    assert report.best(ROUNDS, "many", "p50_ms") == "restate"
    alone = [{"laneway": each["laneway"]} for each in ROUNDS]
    assert report.best(alone, "many", "p50_ms") is None


def test_without_laneway_there_are_no_ratios() -> None:
    peers = [{name: found for name, found in each.items() if name != "laneway"} for each in ROUNDS]
    assert report.ratios(peers, "many") == {}
    assert "Restate" in report.table(peers, "many", "title")


def test_whoever_missed_a_round_is_an_error() -> None:
    with pytest.raises(ValueError, match="every round"):
        report.results([*ROUNDS, {"laneway": figures(1.0, 1.0)}], "many")


def test_the_table_has_a_line_for_each_with_spread_and_ratio() -> None:
    title, heads, *lines = report.table(ROUNDS, "many", "200 conversations").splitlines()
    assert title == "200 conversations"
    assert " ".join(heads.split()) == "turns/s p50 ms p99 ms Laneway's turns/s Laneway's p50"
    ours, dbos, restate = (" ".join(line.split()) for line in lines)
    assert ours == "Laneway 3,000 (2,000–4,000) 15.0 (10.0–20.0) 30.0 (20.0–40.0)"
    assert dbos == (
        "DBOS, SQLite 100 (100–200) 500.0 (400.0–600.0) 1,000.0 (800.0–1,200.0) "
        "20.00 (15.00–40.00) × 0.03 (0.02–0.04) ×"
    )
    assert restate.startswith("Restate 400 (300–500)")


def test_a_single_round_has_no_spread() -> None:
    line = report.table(ROUNDS[:1], "many", "one round").splitlines()[2]
    assert " ".join(line.split()) == "Laneway 4,000 10.0 20.0"
