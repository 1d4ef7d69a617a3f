"""Why a submission stands where it stands, on what evidence, and what happens next: for an operator, and pure."""

from __future__ import annotations

import shlex
from collections.abc import Container, Sequence
from typing import Any, assert_never

import msgspec

from ..storage.contract import ControlRow, Quarantine
from ..storage.ledger import Row, State
from ..storage.projection import CallView
from ..storage.readback import control_row
from .classify import Decision, Evidence, classify, is_decided, unresolved
from .standing import Cause, Known, Standing, is_parked, standing

_NOT_HELD = frozenset({State.UNKNOWN, State.SUSPENDED, State.JOINED})
"""Work that waits for something else first, quarantined or not."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """`decision` is what recovery would do now. `waits_for` names each call that somebody has to decide on, with
    `tool`, `arguments` and its ids; `actions` are commands that apply."""

    submission_id: str
    conversation_id: str
    state: str
    why: str
    next: str
    decision: str
    evidence: str = ""
    attempts: int = 0
    epoch: int = 0
    behind: tuple[str, ...] = ()
    waits_for: tuple[dict[str, Any], ...] = ()
    actions: tuple[str, ...] = ()


def explain(
    evidence: Evidence,
    ahead: Sequence[ControlRow],
    *,
    owner_live: bool,
    now_ms: int,
    quarantine: Quarantine | None = None,
    agents: Container[str] | None = None,
) -> Explanation:
    """`ahead` are the open submissions before this one in its queue; `owner_live` says that a live process works on it.

    `quarantine` is that of its conversation; `agents` are those that the runtime knows, None where nobody can tell.
    Source: Specification 14 (every decision can be told from what is stored), DUR-013.
    """
    row = evidence.row
    decision = classify(evidence)
    queue = [other for other in ahead if not is_parked(other)]
    calls = _waits_for(evidence)
    held = quarantine if row.state not in _NOT_HELD and not row.settled and not owner_live else None
    if row.settled:
        why, after = _settled_as(evidence), "Nothing: a settled outcome never changes."
    else:
        control = msgspec.structs.replace(control_row(row, {}, (), now_ms), owner_live=owner_live)
        known = Known(
            look=row,
            head=queue[0].submission_id if queue else None,
            steered=any(other.submission_id == row.steers for other in ahead),
            quarantine=held,
            agents=agents,
        )
        why, after = _told(evidence, decision, standing(control, known, now_ms), queue, now_ms)
    return Explanation(
        submission_id=row.submission_id,
        conversation_id=row.conversation_id,
        state=str(row.state),
        why=why,
        next=after,
        decision=decision.name,
        evidence="; ".join(_facts(evidence, decision)),
        attempts=row.attempts,
        epoch=row.epoch,
        behind=tuple(other.submission_id for other in queue),
        waits_for=calls,
        actions=tuple(_actions(row, calls, held)),
    )


def _told(
    evidence: Evidence, decision: Decision, stands: Standing, queue: Sequence[ControlRow], now_ms: int
) -> tuple[str, str]:
    """Why, and what comes next: the standing, with what the log tells beyond it."""
    row = evidence.row
    match stands.cause:
        case Cause.QUARANTINE:
            released = "Nothing of the conversation runs before its quarantine is released; then:"
            return stands.why, f"{released} {decision.sentence}"
        case Cause.UNKNOWN:
            rest = "later submissions go on meanwhile" if row.parked else "the conversation waits with it"
            return decision.sentence, f"When every unknown call is resolved it goes on; {rest}."
        case Cause.APPROVAL:
            expires_ms = row.not_before_ms
            until = f" Nobody's decision counts as a denial {_in(expires_ms, now_ms)}." if expires_ms else ""
            return (
                decision.sentence,
                f"When every request is decided it goes on; the conversation waits with it.{until}",
            )
        case Cause.HOST if row.state is State.JOINED:
            return decision.sentence, "It gets the outcome of its host."
        case Cause.HOST:
            return stands.why, "Its input enters that run; should the run end first, it runs in its own place."
        case Cause.OWNER:
            return (
                f"A live process works on it: {_at_work(evidence)}.",
                f"It goes on. Should its process be lost: {decision.sentence}",
            )
        case Cause.STEERING:
            after = (
                "It enters that run behind its next complete turn; should the run end first, it runs in its own place."
            )
            return stands.why, after
        case Cause.QUEUE:
            return (
                f"It waits in its queue behind {len(queue)} open submission{'s' if len(queue) > 1 else ''}; the first, "
                f"{queue[0].submission_id}, is {queue[0].state}.",
                "It runs when these are settled.",
            )
        case Cause.AGENT:
            return stands.why, "It goes on when an agent of that name is registered."
        case Cause.TIME | Cause.DAMAGE:
            return stands.why, decision.sentence
        case Cause.ABORT | Cause.ADMISSION | Cause.SETTLEMENT | Cause.CLAIM:
            return stands.why, f"The next sweep finds it: {decision.sentence}"
        case Cause.LOSS:
            return stands.why, f"The next sweep claims it: {decision.sentence}"
        case _:
            assert_never(stands.cause)


def _settled_as(evidence: Evidence) -> str:
    settlement = evidence.view.settlements.get(evidence.row.submission_id)
    error = settlement.error if settlement is not None else None
    reason = f", {error.code}: {error.message}" if error is not None else "."
    return f"It is settled as {evidence.row.outcome}{reason}"


def _at_work(evidence: Evidence) -> str:
    run = evidence.run
    if run is None:
        return "its input enters the log"
    if run.completed is not None:
        return "its outcome is being settled"
    if run.open_calls:
        return f"it runs {', '.join(call.call.name for call in run.open_calls)} of turn {run.open_calls[0].turn}"
    return f"it asks the model for turn {len(run.turns) + 1}"


def _in(then_ms: int, now_ms: int) -> str:
    return f"in {max(0, then_ms - now_ms) / 1000:,.0f} s"


def _facts(evidence: Evidence, decision: Decision) -> list[str]:
    row, run = evidence.row, evidence.run
    facts = [decision.evidence] if decision.evidence else []
    facts.append(f"input {'in the log' if evidence.input_logged else 'not in the log yet'}")
    if run is not None:
        facts.append(f"{len(run.turns)} complete model response{'s' if len(run.turns) != 1 else ''}")
        if run.open_calls:
            facts.append(f"{len(run.open_calls)} open call{'s' if len(run.open_calls) > 1 else ''}")
        if run.stalled:
            times = "once" if run.stalled == 1 else f"{run.stalled} times"
            facts.append(f"its owner was lost {times} since something new was recorded")
    if row.abort is not None:
        facts.append(f"{row.abort.author} asked for its abort: {row.abort.reason}")
    return facts


def _waits_for(evidence: Evidence) -> tuple[dict[str, Any], ...]:
    row, run = evidence.row, evidence.run
    if row.settled or run is None:
        return ()
    found: list[dict[str, Any]] = []
    for call in run.open_calls:
        if row.state is State.UNKNOWN and call.call.id in unresolved(row):
            known = row.unknown_calls[call.call.id]
            found.append({"kind": "unknown", **_call(call), "reason": known.reason, "since_ms": known.since_ms})
        elif call.approval is not None and call.decision is None and not is_decided(row, call):
            found.append(
                {
                    "kind": "approval",
                    **_call(call),
                    "approval_id": call.approval.approval_id,
                    "arguments_digest": call.approval.input_digest,
                    "expires_at_ms": call.approval.expires_at_ms or None,
                }
            )
    return tuple(found)


def _call(call: CallView) -> dict[str, Any]:
    return {"tool": call.call.name, "arguments": call.call.arguments, "call_id": call.call.id, "turn": call.turn}


def _actions(row: Row, calls: Sequence[dict[str, Any]], held: Quarantine | None) -> list[str]:
    """Whole commands: where one needs a name or a reason, a word in capitals stands for it."""
    if row.settled:
        retried = row.outcome == "failed" and not unresolved(row)  # else a retry is refused
        return [f"laneway retry {row.submission_id} --author NAME"] if retried else []
    if row.state is State.JOINED:
        return [f"laneway abort {row.host_id}"]  # its outcome is its host's
    actions: list[str] = []
    if held is not None:
        actions.append(f"laneway quarantine release {shlex.quote(row.conversation_id)} --author NAME")
    for call in calls:
        if call["kind"] == "approval":
            which = f"{row.submission_id} --approval {call['approval_id']} --author NAME"
            actions += [f"laneway approve {which}", f"laneway deny {which}"]
        else:
            which = f"laneway resolve {row.submission_id} --call {call['call_id']}"
            said = "--author NAME --reason EVIDENCE"
            actions += [f"{which} completed_with_result --result JSON {said}", f"{which} never_started {said}"]
            actions += [f"{which} safe_to_retry {said}", f"{which} abort {said}"]
    return [*actions, f"laneway abort {row.submission_id}"]
