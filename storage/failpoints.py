"""Failpoints: named places on both sides of every durable mutation, where a test may stop the world."""

from __future__ import annotations

import enum
import os
from collections import Counter
from collections.abc import Mapping


class Point(enum.StrEnum):
    """A place where a crash is tried. The default `Failpoints` does nothing at any of them."""

    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    APPEND_BEGUN = "append_begun"
    APPEND_BATCHES_WRITTEN = "append_batches_written"
    APPEND_ROWS_WRITTEN = "append_rows_written"
    BEFORE_SIDE_WRITE = "before_side_write"
    AFTER_SIDE_WRITE = "after_side_write"
    """Both sides of what is stored beside the ledger and the log: an owner, its end, a quarantine, its release."""
    AFTER_ADMISSION = "after_admission"
    AFTER_CLAIM = "after_claim"
    AFTER_INPUT_APPENDED = "after_input_appended"
    AFTER_RUN_STARTED = "after_run_started"
    DURING_MODEL = "during_model"
    AFTER_JOIN_CLAIMED = "after_join_claimed"
    AFTER_JOIN_INPUT_APPENDED = "after_join_input_appended"
    AFTER_JOINED = "after_joined"
    AFTER_JOIN_REVERTED = "after_join_reverted"
    AFTER_MODEL_RESPONDED = "after_model_responded"
    AFTER_APPROVAL_REQUESTED = "after_approval_requested"
    AFTER_SUSPENDED = "after_suspended"
    AFTER_APPROVAL_DECIDED = "after_approval_decided"
    AFTER_PREPARED = "after_prepared"
    DURING_TOOL = "during_tool"
    AFTER_STEP = "after_step"
    AFTER_STEP_SETTLED = "after_step_settled"
    AFTER_TOOL = "after_tool"
    AFTER_TOOL_SETTLED = "after_tool_settled"
    AFTER_RUN_COMPLETED = "after_run_completed"
    AFTER_RESERVATION = "after_reservation"
    AFTER_SETTLEMENT_APPENDED = "after_settlement_appended"
    AFTER_FINALIZE = "after_finalize"


class SimulatedCrash(BaseException):
    """Raised at an armed failpoint; no handler of the product may swallow it."""


class Failpoints:
    """Failpoints of one process: `plan` says at which hit of a point the world stops, `hits` what was passed.

    `exit_code` None raises SimulatedCrash, a number ends the process at once, as SIGKILL would.
    """

    def __init__(self, plan: Mapping[Point, int] | None = None, *, exit_code: int | None = None) -> None:
        self._plan = dict(plan or {})
        self._exit_code = exit_code
        self.hits: Counter[Point] = Counter()

    def hit(self, point: Point) -> None:
        """Pass `point`, or stop here when the plan says so."""
        self.hits[point] += 1
        if self._plan.get(point) != self.hits[point]:
            return
        if self._exit_code is not None:
            os._exit(self._exit_code)
        raise SimulatedCrash(f"stopped at {point}")


NO_FAILPOINTS = Failpoints()
