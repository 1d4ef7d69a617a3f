"""How long to wait before the next try: exponential, with full jitter (Specification 16)."""

from __future__ import annotations

import random

BACKOFF_FIRST_S = 0.2
BACKOFF_MOST_S = 30.0


def backoff_s(
    attempt: int, chance: random.Random, *, first_s: float = BACKOFF_FIRST_S, most_s: float = BACKOFF_MOST_S
) -> float:
    """Seconds to wait after the `attempt`-th failure (from 1): half of a doubling bound and half by chance."""
    bound = min(most_s, first_s * 2 ** (min(attempt, 32) - 1))
    return bound / 2 + chance.random() * bound / 2
