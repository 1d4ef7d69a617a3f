"""What every measure gives: its configuration, its figures, and the targets they are held against."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

Progress = Callable[[str, int, int], None]
"""Told how far a measure is: what it does, how much of it is done, and how much there is."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What all measures take: `short` runs each in a few seconds, `local` without Ray where that makes sense."""

    short: bool = False
    local: bool = False
    rounds: int = 3
    replay: str | None = None
    """A file of recorded conversations, for the replay workload."""

    @property
    def deployment(self) -> str:
        """Where the measured runtime is, as results name it."""
        return "DR/duckdb in one process" if self.local else "DR/duckdb on Ray"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and its bound. `at_most` says that less is better."""

    what: str
    value: float
    bound: float
    at_most: bool = True

    @property
    def holds(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One measure's outcome, as it is written to `benchmarks/results/`."""

    measure: str
    configuration: dict[str, Any]
    figures: dict[str, Any]
    targets: tuple[Target, ...] = ()


class NotDone(Exception):
    """The work that was to be measured was not done: there is no figure."""


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The smallest value that `share` (0 to 1) of all do not exceed; the values are sorted."""
    if not sorted_values:
        raise ValueError("no values")
    rank = max(1, -(-len(sorted_values) * round(share * 1000) // 1000))
    return sorted_values[rank - 1]


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Median, least and most of some rounds."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
    }


def milliseconds(seconds: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Percentiles of some durations, in ms."""
    ordered = sorted(seconds)
    shares = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}
    return {name: round(percentile(ordered, share) * 1000, digits) for name, share in shares.items()}
