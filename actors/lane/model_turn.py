"""One model turn: the request, its stream for watchers, and the response as it is recorded (Specification 9)."""

from __future__ import annotations

from ...agents.protocol import Delta, ModelRequest
from ...agents.tools import Tool
from ...storage.errors import ModelError
from ...storage.failpoints import Point
from ...storage.projection import prompt_messages
from . import effects, facts
from .claimed import Claimed, Interrupted
from .deltas import DeltaLog
from .history import load_prompt
from .stopping import SelfCancelled


async def call_model(claimed: Claimed, number: int) -> bool:
    """Ask for turn `number` and record the complete response; False when the model failed for good, and so the run."""
    agent = claimed.agent
    if not claimed.outbox.waits_with_results_alone:
        await claimed.outbox.flush()
    await load_prompt(claimed.row.conversation_id, claimed.services, claimed.outbox, claimed.view)
    request = ModelRequest(
        conversation_id=claimed.row.conversation_id,
        submission_id=claimed.submission_id,
        run_id=claimed.run_id,
        queue_sequence=claimed.row.queue_sequence,
        turn=number,
        attempt=claimed.row.attempts,
        operation_id=f"{claimed.run_id}:{number}",
        messages=prompt_messages(claimed.view, claimed.run_id),
        responses=claimed.view.prompt.responses,
        instructions=agent.instructions,
        tools=[tool.schema() for tool in agent.tools if isinstance(tool, Tool)],
    )

    async def interrupted(tries: int, error: ModelError) -> None:
        claimed.feed.turn_over()
        fact = effects.error_fact(error)
        reason = f"{fact.code}: {fact.message}"
        claimed.outbox.record(facts.model_interrupted(claimed.run_id, number, claimed.attempt_id, tries, reason))
        await claimed.outbox.flush_whole()

    deltas = DeltaLog(claimed.outbox, claimed.run_id, number) if claimed.services.settings.record_deltas else None

    def emit(delta: Delta) -> None:
        claimed.services.failpoints.hit(Point.DURING_MODEL)
        claimed.feed.delta(delta)
        if deltas is not None:
            deltas.add(delta)

    call = effects.call_model(
        agent,
        request,
        emit,
        chance=claimed.services.chance,
        settings=claimed.services.settings,
        leash=claimed.leash(),
        count=lambda: claimed.services.counts.update(("model_calls",)),
        interrupted=interrupted,
    )
    try:
        try:
            response = await claimed.interruptible(call, at_drain=True)
        finally:
            if deltas is not None:
                await deltas.close()
    except Interrupted:
        if claimed.draining and claimed.row.abort is None and not claimed.out_of_time:
            tries = agent.model_attempts_max  # no try of this attempt has that number
            reason = "its process was stopped as planned"
            claimed.outbox.record(facts.model_interrupted(claimed.run_id, number, claimed.attempt_id, tries, reason))
        return True
    except (ModelError, SelfCancelled) as error:
        code = error.code if isinstance(error, ModelError) else "model_failed"
        claimed.outbox.record(facts.run_completed(claimed.run_id, "failed", None, effects.error_fact(error, code)))
        return False
    if claimed.row.abort is None:  # what arrives behind an abort is no part of the conversation (DUR-012)
        claimed.outbox.record(facts.model_responded(claimed.run_id, number, response))
    return True
