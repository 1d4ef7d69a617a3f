"""What goes wrong, how often, and until when; one seed draws its own mixture."""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Hashable

from laneway.storage.failpoints import Point


class Fault(enum.StrEnum):
    """Everything that the simulation can do to the runtime. A new kind needs a rate here and a place that asks."""

    CALL_LOST = "call_lost"
    ANSWER_LOST = "answer_lost"
    CALL_LATE = "call_late"
    CALL_DOUBLED = "call_doubled"
    SLOW = "slow"
    PROCESS_KILLED = "process_killed"
    KILLED_AT_POINT = "killed_at_point"
    KILLED_AT_COMMIT = "killed_at_commit"
    PROCESS_PAUSED = "process_paused"
    START_FAILED = "start_failed"
    SUPERVISOR_KILLED = "supervisor_killed"
    STORE_DOWN = "store_down"
    STORE_DIED_IN_WRITE = "store_died_in_write"
    STORE_DIED_AFTER_COMMIT = "store_died_after_commit"
    STORE_FULL = "store_full"
    MODEL_FAILED = "model_failed"
    MODEL_BROKEN = "model_broken"
    MODEL_HUNG = "model_hung"
    TOOL_FAILED = "tool_failed"
    TOOL_HUNG = "tool_hung"
    CLOCK_WRONG = "clock_wrong"


RATES: dict[Fault, float] = {
    Fault.CALL_LOST: 0.02,
    Fault.ANSWER_LOST: 0.02,
    Fault.CALL_LATE: 0.04,
    Fault.CALL_DOUBLED: 0.04,
    Fault.SLOW: 0.05,
    Fault.PROCESS_KILLED: 0.5,
    Fault.KILLED_AT_POINT: 0.02,
    Fault.KILLED_AT_COMMIT: 0.2,
    Fault.PROCESS_PAUSED: 0.3,
    Fault.START_FAILED: 0.1,
    Fault.SUPERVISOR_KILLED: 0.15,
    Fault.STORE_DOWN: 0.15,
    Fault.STORE_DIED_IN_WRITE: 0.05,
    Fault.STORE_DIED_AFTER_COMMIT: 0.05,
    Fault.STORE_FULL: 0.02,
    Fault.MODEL_FAILED: 0.1,
    Fault.MODEL_BROKEN: 0.02,
    Fault.MODEL_HUNG: 0.02,
    Fault.TOOL_FAILED: 0.05,
    Fault.TOOL_HUNG: 0.03,
    Fault.CLOCK_WRONG: 0.3,
}
"""How likely each kind is where it may happen: a call, a passed failpoint, or a look of the one who breaks things."""

STORE_POINTS: dict[Fault, tuple[Point, ...]] = {
    Fault.STORE_DIED_IN_WRITE: (
        Point.BEFORE_COMMIT,
        Point.APPEND_BEGUN,
        Point.APPEND_BATCHES_WRITTEN,
        Point.APPEND_ROWS_WRITTEN,
    ),
    Fault.STORE_DIED_AFTER_COMMIT: (Point.AFTER_COMMIT,),
}


class Faults:
    """Decides whether a fault happens here and now; `calm` ends them all."""

    def __init__(self, chance: random.Random, reached: Counter[str]) -> None:
        self._chance = chance
        self._reached = reached
        self._seen: Counter[Hashable] = Counter()
        self.calm = False
        # A mixture a seed: some kinds alone, some together, some often. All of them at their mean find less.
        harsh = chance.choice((0.3, 1.0, 1.0, 3.0))
        self._rates = {kind: rate * harsh * chance.choice((0.0, 0.5, 1.0, 2.0)) for kind, rate in RATES.items()}

    def happens(self, kind: Fault, weight: float = 1.0) -> bool:
        if self.calm or self._chance.random() >= self._rates[kind] * weight:
            return False
        self._reached[f"fault:{kind}"] += 1
        return True

    def first_of(self, *kinds: Fault, weight: float = 1.0) -> Fault | None:
        """The first of `kinds` that happens, if any does."""
        return next((kind for kind in kinds if self.happens(kind, weight)), None)

    def rarity(self, what: Hashable) -> float:
        """1 when `what` is done for the first time in this seed, less with each time: what is rare is cut off most."""
        self._seen[what] += 1
        return 1.0 / self._seen[what]

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._chance.random()

    def choose(self, items: list[object] | tuple[object, ...]) -> object:
        return items[int(self._chance.random() * len(items))]
