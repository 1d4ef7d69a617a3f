"""What a reconciler may prove about a call that was prepared and not settled; without proof the call is Unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Completed:
    """The effect took place, and this is its result, a JSON value."""

    result: Any
    evidence: str = ""


@dataclass(frozen=True)
class NeverStarted:
    """The effect did not take place and cannot take place any more: the call may run as if for the first time."""

    evidence: str = ""


@dataclass(frozen=True)
class SafeToRetry:
    """Running the call again under the same idempotency key has the effect at most once."""

    evidence: str = ""


Reconciliation = Completed | NeverStarted | SafeToRetry

Reconciler = Callable[..., Any]
"""`reconcile(ctx, arguments)`, sync or async, answers with a `Reconciliation`, or None when it has no proof."""
