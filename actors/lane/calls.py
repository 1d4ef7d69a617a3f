"""The calls of one turn: prepared, run, settled; proven or unknown (Specification 10, DUR-009)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, assert_never

from ...agents.agent import Agent
from ...agents.reconcile import Completed, Reconciliation, SafeToRetry
from ...agents.tools import Tool
from ...storage.commands import MarkUnknown
from ...storage.errors import InvalidInput
from ...storage.failpoints import Point
from ...storage.projection import CallView
from ...storage.records import ErrorFact
from . import approvals, effects, facts
from .claimed import Claimed, Interrupted
from .stopping import SelfCancelled

RECONCILE_TRIES_MAX = 3  # a provider that is away for a moment must not leave a call to a person
UNPROVEN = "prepared and not settled, and nothing proves what became of it"
_FAILURE_LENGTH = 500
_log = logging.getLogger("laneway.lane")


async def run_calls(claimed: Claimed, calls: tuple[CallView, ...]) -> None:
    """Prepare all, then run all at once; each result is committed when it is there (Specification 10).

    Where a call needs an approval that nobody was asked for, the requests are recorded and nothing of the batch runs.
    """
    checked = [(call, _checked_call(claimed.agent, call)) for call in calls]
    asking = [
        facts.approval_requested(call, found[0], claimed.services.now_ms())
        for call, found in checked
        if not isinstance(found, ErrorFact) and approvals.must_ask(call, *found)
    ]
    if asking:
        claimed.outbox.record(*asking)
        return
    ready: list[tuple[CallView, Tool, dict[str, Any]]] = []
    for call, found in checked:
        if isinstance(found, ErrorFact):
            claimed.outbox.record(facts.call_failed(call, found))
            continue
        tool, arguments = found
        ready.append((call, tool, arguments))
        if call.prepared is None or call.resolved is not None:
            claimed.outbox.record(facts.call_prepared(call, tool))
    await claimed.outbox.flush()
    await _together([_run_call(claimed, call, tool, arguments) for call, tool, arguments in ready])


async def _together(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all at once; a refused write ends the attempt, whichever call it was for, and so the others.

    A TaskGroup would leave the lane's task marked as cancelled behind it (Python 3.11), and nobody has cancelled that.
    """
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure


def _checked_call(agent: Agent, call: CallView) -> tuple[Tool, dict[str, Any]] | ErrorFact:
    tool = agent.tool(call.call.name)
    if tool is None:
        return ErrorFact(code="tool_missing", message=f"agent {agent.name} has no tool {call.call.name}")
    if call.prepared is not None and call.prepared.tool_digest != tool.digest:
        message = f"tool {tool.name} has changed since this call was prepared; it was not run"
        return ErrorFact(code="tool_changed", message=message)
    if call.approval is not None and call.approval.tool_digest != tool.digest:
        message = f"tool {tool.name} has changed since its approval was asked for; it was not run"
        return ErrorFact(code="tool_changed", message=message)
    if call.decision is not None and call.decision.decision != "approved":
        reason = f": {call.decision.reason}" if call.decision.reason else ""
        return ErrorFact(code="approval_denied", message=f"{call.decision.author} denied this call{reason}")
    try:
        return tool, tool.parse(call.call.arguments)
    except InvalidInput as error:
        return effects.error_fact(error)


async def _run_call(claimed: Claimed, call: CallView, tool: Tool, arguments: dict[str, Any]) -> None:
    try:
        outcome = await _tried(claimed, call, tool, arguments)
    except Interrupted:
        return
    except SelfCancelled as error:
        outcome = effects.Failed(effects.error_fact(error))
    claimed.services.failpoints.hit(Point.AFTER_TOOL)
    match outcome:
        case effects.Succeeded(result, keys):
            claimed.outbox.record(facts.call_succeeded(call, result, message_keys=keys))
        case effects.Failed(error):
            claimed.outbox.record(facts.call_failed(call, error))
        case effects.Unproven():
            return
        case _:
            assert_never(outcome)
    if tool.effect == "uncertain" or claimed.services.settings.stepwise:
        await claimed.commit_results()
    else:
        claimed.commit_beside()  # at worst it runs again


async def _tried(claimed: Claimed, call: CallView, tool: Tool, arguments: dict[str, Any]) -> effects.ToolOutcome:
    """Run the tool, `attempts_max` times while it fails; the last failure is told (Specification 16).

    All tries have the call's one idempotency key, and steps that are recorded do not run again. What ends the wait
    between two ends the call. Raises: Interrupted, SelfCancelled.
    """
    counts = claimed.services.counts
    for number in range(1, tool.attempts_max + 1):
        counts["tool_executions"] += 1
        with claimed.context(call) as context:
            work = effects.call_tool(tool, context, arguments, claimed.services.settings, claimed.leash(context))
            outcome = await claimed.interruptible(work)
        if not isinstance(outcome, effects.Failed) or number == tool.attempts_max:
            return outcome
        counts["tool_retries"] += 1
        _log.info("%s: %s failed (try %d) and is tried again: %s", call.call.id, tool.name, number, outcome.error.code)
        await claimed.back_off(number)
        await claimed.outbox.flush()  # a fenced attempt begins nothing more
        if not claimed.may_begin:
            raise Interrupted
    raise AssertionError("attempts_max is at least 1")


# --- what nobody can prove ---------------------------------------------------------------------------------------


async def reconcile(claimed: Claimed, calls: tuple[CallView, ...]) -> bool:
    """Seek proof for each call; False when one stays unproven and the submission is Unknown (DUR-009)."""
    await claimed.outbox.flush()
    unproven: dict[str, str] = {}
    for call in calls:
        proof = await _proof(claimed, call)
        if isinstance(proof, str):
            unproven[call.call.id] = proof
            if call.unknown is None:  # an earlier owner may have got so far, and no further
                claimed.outbox.record(facts.call_unknown(call, proof))
        elif isinstance(proof, Completed):
            claimed.outbox.record(
                facts.call_resolved(call, "completed_with_result", "reconciler", proof.evidence, proof.result),
                facts.call_succeeded(call, proof.result, author="reconciler"),
            )
        else:
            resolution = "safe_to_retry" if isinstance(proof, SafeToRetry) else "never_started"
            claimed.outbox.record(facts.call_resolved(call, resolution, "reconciler", proof.evidence))
    if not unproven or claimed.row.abort is not None:
        await claimed.outbox.flush()
        return True  # aborted work does not wait for a resolution: it settles, and the evidence stays
    claimed.outbox.command(
        MarkUnknown(submission_id=claimed.submission_id, calls=unproven, park=claimed.agent.on_unknown == "park")
    )
    await claimed.outbox.flush()
    claimed.services.counts["unknown"] += 1
    names = ", ".join(f"{call.call.name} ({call.call.id})" for call in calls if call.call.id in unproven)
    _log.warning("%s: the outcome of %s is unknown", claimed.submission_id, names)
    return False


async def _proof(claimed: Claimed, call: CallView) -> Reconciliation | str:
    """What the reconciler proves; without proof, why there is none. One that fails is asked again before it counts."""
    tool = claimed.agent.tool(call.call.name)
    if tool is None or tool.reconcile is None:
        return UNPROVEN
    try:
        arguments = tool.parse(call.call.arguments)
    except InvalidInput:
        return UNPROVEN
    failure = UNPROVEN
    for number in range(1, RECONCILE_TRIES_MAX + 1):
        if number > 1:
            await claimed.back_off(number - 1, timed=False)
            await claimed.outbox.flush()  # a fenced attempt asks nobody
        try:
            with claimed.context(call) as context:
                work = effects.reconcile(tool, context, arguments, claimed.leash(context))
                proof = await claimed.interruptible(work, timed=False)  # a run that is out of time needs it, too
        except Interrupted:
            return failure
        except SelfCancelled as error:
            proof = effects.Failed(effects.error_fact(error))
        if not isinstance(proof, effects.Failed):
            return UNPROVEN if proof is None else proof
        error = proof.error
        failure = f"{UNPROVEN}; its reconciler failed (try {number}): {error.code}: {error.message[:_FAILURE_LENGTH]}"
        _log.warning("%s: %s", call.call.id, failure)
    return failure


def apply_resolutions(claimed: Claimed, calls: tuple[CallView, ...]) -> None:
    """The answers become canonical; time that the run was unknown is no running time (Specification 16)."""
    since_ms = min(claimed.row.unknown_calls[call.call.id].since_ms for call in calls)
    waited_ms = max(0, claimed.services.now_ms() - since_ms)
    for call in calls:
        known = claimed.row.unknown_calls[call.call.id]
        assert known.resolution is not None
        author, reason = known.author or "", known.note or ""
        claimed.outbox.record(facts.call_resolved(call, known.resolution, author, reason, known.result, waited_ms))
        waited_ms = 0  # they waited together
        if known.resolution == "completed_with_result":
            claimed.outbox.record(facts.call_succeeded(call, known.result, author=author))


def settle_proven(claimed: Claimed, calls: tuple[CallView, ...]) -> None:
    """An earlier owner recorded the proof and was lost before the result: it is taken from there, nothing runs."""
    for call in calls:
        assert call.resolved is not None
        claimed.outbox.record(facts.call_succeeded(call, call.resolved.result, author=call.resolved.author))
