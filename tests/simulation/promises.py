"""How the simulation says that a promise is broken."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise of the specification that does not hold."""


def require(holds: bool, message: str) -> None:
    """Raises: Violation with `message` when the promise does not hold."""
    if not holds:
        raise Violation(message)
