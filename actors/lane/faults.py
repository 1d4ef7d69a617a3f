"""Failures of a lane that nobody expected: each waits longer, and too many in a row are poison (Specification 16)."""

from __future__ import annotations

from ...recovery.backoff import backoff_s
from ...storage.errors import LanewayError, described
from .services import LaneServices

REASON_LENGTH_MAX = 2_000  # what an operator reads of it; the program's log has the trace


class Unclassified(LanewayError):
    """The classifier has no answer for what is stored: nothing may be done before somebody has looked."""

    default_code = "classification_failed"


class Faults:
    """Counts the failures in a row of one lane."""

    def __init__(self, services: LaneServices) -> None:
        self._services = services
        self._count = 0

    def over(self) -> None:
        """Work was driven to an end: what failed before counts no more."""
        self._count = 0

    def add(self, error: Exception) -> str | None:
        """Count a failure; the reason for the lane's quarantine once there were too many in a row.

        An error that may pass by itself is waited out, however often it comes.
        """
        if isinstance(error, LanewayError) and error.retryable:
            return None
        self._count += 1
        if self._count < self._services.settings.faults_max:
            return None
        return reason_of(error, f"it failed {self._count} times in a row, at last with")

    def wait_s(self) -> float:
        """How long to wait before the next try."""
        first_s = self._services.settings.fault_backoff_first_s
        return backoff_s(max(1, self._count), self._services.chance, first_s=first_s)


def reason_of(error: Exception, before: str = "") -> str:
    """An error as the reason of a quarantine: one bounded text that can be stored."""
    text = f"{error.code}: {error.message}" if isinstance(error, LanewayError) else described(error)
    return f"{before} {text}".strip()[:REASON_LENGTH_MAX].encode("utf-8", "replace").decode()
