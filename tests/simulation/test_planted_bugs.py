"""The simulation finds what is planted: bugs that break the heart of the promise, and some that it found itself."""

from __future__ import annotations

import pytest
from simulation.planted import PLANTED
from simulation.run import run_chunk

SEEDS_MAX = 400
"""Most show in the first seeds; one that needs a rare order of events takes a part of this."""

TELLS: dict[str, tuple[str, ...]] = {
    "no_fence": ("DUR-006", "DUR-002"),
    "settled_before_append": ("the ledger says", "DUR-011"),
    "twice_in_the_log": ("repeated", "twice"),
    "same_epoch": ("epoch",),
    "blind_replay": ("DUR-009",),
    "admitted_twice": ("repeated", "acknowledged", "queue_sequence"),
    "resume_not_repeated": ("repeated", "calm were not enough"),
    "late_calls_taken": ("calm were not enough",),
    "nobody_recovers": ("calm were not enough",),
    "finalize_unseen": ("the ledger says",),
    "head_ignored": ("DUR-004",),
    "invented_result": ("never produced",),
    "joined_is_reverted": ("DUR-016",),
    "approval_not_awaited": ("approval of", "nobody was asked"),
    "step_again": ("DUR-010",),
}
"""What the finding says, among others: it must be this promise that broke."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_bug_is_found(name: str) -> None:
    for seed in range(1, SEEDS_MAX + 1):
        (outcome,) = run_chunk([seed], name)
        if outcome.violation is not None:
            assert any(words in outcome.violation for words in TELLS[name]), outcome.violation
            return
    raise AssertionError(f"{name} was not found in {SEEDS_MAX} seeds")
