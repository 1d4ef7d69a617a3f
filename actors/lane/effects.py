"""What a lane does outside of the store: model calls, tool calls, reconciliation. Nothing here is committed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ...agents.agent import Agent
from ...agents.compaction import Compaction
from ...agents.protocol import Delta, ModelRequest, ModelResponse
from ...agents.reconcile import Reconciliation
from ...agents.responses import check_response
from ...agents.tools import Tool, ToolContext, ToolMessage
from ...recovery.backoff import backoff_s
from ...storage.errors import InvalidInput, LanewayError, ModelError, described
from ...storage.failpoints import SimulatedCrash
from ...storage.records import ErrorFact
from ...storage.values import check_json
from .settings import LaneSettings
from .stopping import Leash, OutOfTime

ERROR_LENGTH_MAX = 2_000  # what a model or an operator reads of an error; the rest belongs into the program's own log
_CODE_LENGTH_MAX = 100


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The tool returned this JSON value."""

    result: Any
    message_keys: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The tool did not do what was asked, or was never run; the model reads why."""

    error: ErrorFact


@dataclass(frozen=True, slots=True)
class Unproven:
    """The tool may or may not have had its effect."""

    reason: str


ToolOutcome = Succeeded | Failed | Unproven


def error_fact(error: BaseException, code: str | None = None) -> ErrorFact:
    """A bounded error as it is recorded: code and message; no trace, no object."""
    if isinstance(error, LanewayError):
        text, found = error.message, error.code
    else:
        text, found = described(error), "tool_failed"
    return ErrorFact(code=_clean(code or found, _CODE_LENGTH_MAX), message=_clean(text, ERROR_LENGTH_MAX))


def _clean(text: str, length_max: int) -> str:
    return text[:length_max].encode("utf-8", "replace").decode()


def _passes(error: BaseException) -> bool:
    """Whether what came out of an effect is none of its failures: whatever a user's code raises ends its call alone."""
    if isinstance(error, asyncio.CancelledError):  # one that leaks out of an effect's own tasks asks nobody to end
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, SimulatedCrash)


async def call_model(
    agent: Agent,
    request: ModelRequest,
    emit: Callable[[Delta], None],
    *,
    chance: random.Random,
    settings: LaneSettings,
    leash: Leash,
    count: Callable[[], None],
    interrupted: Callable[[int, ModelError], Awaitable[None]],
) -> ModelResponse:
    """One complete response, tried `model_attempts_max` times with backoff while an error is retryable.

    `count` is told of each request, `interrupted` of each one that failed and is tried again.
    Raises: ModelError when the model fails for good.
    """
    model = agent.model
    assert not isinstance(model, str)
    for attempt in range(1, agent.model_attempts_max + 1):
        stream = _Stream(emit)
        try:
            count()
            answer = await leash.hold(
                model.respond(request, stream), agent.model_timeout_s, f"the model of {agent.name}"
            )
            return check_response(answer, limits=settings.limits)
        except ModelError as failure:
            error = failure
        except OutOfTime:
            message = f"the model gave no answer within {agent.model_timeout_s} s"
            error = ModelError(message, code="model_timeout", retryable=True)
        except BaseException as failure:
            if _passes(failure):
                raise
            error = ModelError(f"the model raised {described(failure)}"[:ERROR_LENGTH_MAX])
        finally:
            stream.open = False
        if not error.retryable or attempt == agent.model_attempts_max:
            raise error
        await interrupted(attempt, error)
        after = error.details.get("retry_after")
        wait_s = backoff_s(
            attempt, chance, first_s=settings.model_backoff_first_s, most_s=settings.model_backoff_most_s
        )
        if isinstance(after, int | float):
            wait_s = max(wait_s, min(float(after), settings.model_backoff_most_s))
        await asyncio.sleep(wait_s)
    raise AssertionError("model_attempts_max is at least 1")


class _Stream:
    """What one request streams; one that was left behind streams to nobody."""

    def __init__(self, emit: Callable[[Delta], None]) -> None:
        self._emit = emit
        self.open = True

    def __call__(self, delta: Delta) -> None:
        if self.open:
            self._emit(delta)


async def call_tool(
    tool: Tool, context: ToolContext, arguments: dict[str, Any], settings: LaneSettings, leash: Leash
) -> ToolOutcome:
    """Run the tool once. A failure is an answer for the model; only an uncertain tool's timeout proves nothing."""
    try:
        value = await leash.hold(tool.call(context, arguments), tool.timeout_s, f"tool {tool.name}")
    except OutOfTime:
        message = f"tool {tool.name} gave no answer within {tool.timeout_s} s"
        return (
            Unproven(message) if tool.effect == "uncertain" else Failed(ErrorFact(code="tool_timeout", message=message))
        )
    except BaseException as error:
        if _passes(error):
            raise
        return Failed(error_fact(error))
    keys = value.keys if isinstance(value, ToolMessage) else None
    value = value.content if isinstance(value, ToolMessage) else value
    try:
        check_json(
            value,
            "result",
            bytes_max=settings.limits.tool_result_bytes_max,
            depth_max=settings.limits.json_depth_max,
        )
    except InvalidInput as error:
        return Failed(error_fact(error, "tool_result_invalid"))
    return Succeeded(value, keys)


async def reconcile(
    tool: Tool, context: ToolContext, arguments: dict[str, Any], leash: Leash
) -> Reconciliation | Failed | None:
    """The proof that the tool's reconciler has, None when it says that it has none; Failed when it gives no answer."""
    try:
        return await leash.hold(
            tool.run_reconcile(context, arguments), tool.timeout_s, f"the reconciler of {tool.name}"
        )
    except OutOfTime:
        return Failed(ErrorFact(code="reconcile_timeout", message=f"no answer within {tool.timeout_s} s"))
    except BaseException as error:
        if _passes(error):
            raise
        return Failed(error_fact(error))


async def compact(
    compaction: Compaction, messages: list[dict[str, Any]], settings: LaneSettings, leash: Leash
) -> Succeeded | Failed:
    """The artifact that the agent's compactor makes of `messages`; whatever goes wrong is its failure alone."""
    try:
        artifact = await leash.hold(compaction.artifact(messages), compaction.timeout_s, "the compactor")
        limits = settings.limits
        check_json(artifact, "artifact", bytes_max=limits.input_bytes_max, depth_max=limits.json_depth_max)
    except OutOfTime:
        message = f"the compactor gave no answer within {compaction.timeout_s} s"
        return Failed(ErrorFact(code="compactor_timeout", message=message))
    except BaseException as error:
        if _passes(error):
            raise
        return Failed(error_fact(error, "compactor_failed"))
    return Succeeded(artifact)
