"""What goes into a lane and comes out of it: admissions and settlements, as values that cross processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ...storage.commands import Admit, MarkReady, Materialize
from ...storage.records import Outcome, SubmissionSettled


@dataclass(frozen=True, slots=True)
class Admission:
    """A checked input on its way to the ledger; the ids are drawn once and kept over every retry."""

    submission_id: str
    receipt_id: str
    principal: str
    idempotency_key: str
    agent: str
    input: str
    input_digest: str
    steering: bool = False
    """For the run that is active now; `agent` is empty then."""


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The one recorded outcome: "completed", "failed" or "aborted". `error` is {"code", "message", ...} or None."""

    submission_id: str
    outcome: Outcome
    output: Any = None
    error: dict[str, Any] | None = None
    run_id: str | None = None

    @property
    def text(self) -> str | None:
        """The output where it is text."""
        return self.output if isinstance(self.output, str) else None


def admission_commands(admission: Admission) -> tuple[Admit | Materialize | MarkReady, ...]:
    """Admission as the specification orders it (section 4); a repeat finishes what an earlier try left (DUR-001)."""
    return (
        Admit(
            submission_id=admission.submission_id,
            receipt_id=admission.receipt_id,
            principal=admission.principal,
            idempotency_key=admission.idempotency_key,
            agent=admission.agent,
            input=admission.input,
            input_digest=admission.input_digest,
            steering=admission.steering,
        ),
        Materialize(submission_id=admission.submission_id),
        MarkReady(submission_id=admission.submission_id),
    )


def settlement_of(record: SubmissionSettled) -> Settlement:
    """The settlement as callers get it."""
    return Settlement(
        submission_id=record.submission_id,
        outcome=record.outcome,
        output=record.output,
        error=None if record.error is None else msgspec.to_builtins(record.error),
        run_id=record.run_id,
    )
