"""Medians, spreads, ratios and the table of what the rounds measured. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

Figures = Mapping[str, float]
"""turns_per_second, p50_ms, p99_ms."""
Round = Mapping[str, Mapping[str, Figures]]
"""By contestant, by workload: each contestant once."""
Spread = dict[str, float]

METRICS = ("turns_per_second", "p50_ms", "p99_ms")
OURS = "laneway"
NAMES = {
    OURS: "Laneway",
    "dbos-sqlite": "DBOS, SQLite",
    "dbos-postgres": "DBOS, Postgres",
    "langgraph-sqlite": "LangGraph, SQLite",
    "restate": "Restate",
}


def spread(values: Sequence[float], digits: int = 2) -> Spread:
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
    }


def contestants(rounds: Sequence[Round]) -> list[str]:
    """Those that were measured in every round, Laneway first; raises ValueError when somebody missed a round."""
    names = set(rounds[0])
    if any(set(each) != names for each in rounds):
        raise ValueError("not everybody was measured in every round")
    return sorted(names, key=lambda name: list(NAMES).index(name))


def results(rounds: Sequence[Round], workload: str) -> dict[str, dict[str, Spread]]:
    """By contestant and metric, over the rounds."""
    return {
        name: {metric: spread([each[name][workload][metric] for each in rounds]) for metric in METRICS}
        for name in contestants(rounds)
    }


def ratios(rounds: Sequence[Round], workload: str) -> dict[str, dict[str, Spread]]:
    """Laneway over each peer, by metric. Both sides of a ratio are of one round: the machine drifts."""
    return {
        name: {
            metric: spread([each[OURS][workload][metric] / each[name][workload][metric] for each in rounds], 3)
            for metric in METRICS
        }
        for name in contestants(rounds)
        if OURS in rounds[0] and name != OURS
    }


def best(rounds: Sequence[Round], workload: str, metric: str) -> str | None:
    """The peer with the best median; None when there is no peer."""
    peers = {name: found[metric]["median"] for name, found in results(rounds, workload).items() if name != OURS}
    if not peers:
        return None
    return max(peers, key=peers.__getitem__) if metric == "turns_per_second" else min(peers, key=peers.__getitem__)


def table(rounds: Sequence[Round], workload: str, title: str) -> str:
    """One line a contestant: median (min to max) of each metric, and what Laneway is of it."""
    heads = ("", "turns/s", "p50 ms", "p99 ms", "Laneway's turns/s", "Laneway's p50")
    compared = ratios(rounds, workload)
    lines = [heads]
    for name, found in results(rounds, workload).items():
        own = [_range(found[metric], 0 if metric == "turns_per_second" else 1) for metric in METRICS]
        other = compared.get(name)
        against = [_range(other[metric], 2) + " ×" if other else "" for metric in METRICS[:2]]
        lines.append((NAMES[name], *own, *against))
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    texts = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([title, *(f"  {text}" for text in texts)])


def _range(found: Spread, digits: int) -> str:
    median, least, most = (f"{found[part]:,.{digits}f}" for part in ("median", "min", "max"))
    return median if least == most else f"{median} ({least}–{most})"
