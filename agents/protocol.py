"""What a lane and a model say to each other: frozen values, and the one method that a model offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec


class ToolCallRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a model asks for.

    `id` is the provider's and may repeat; `arguments` is the provider's text, untouched; `extra` keeps other keys.
    """

    id: str
    name: str
    arguments: str
    extra: dict[str, Any] = {}


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that the provider counted for one call; `details` keeps its other counts."""

    input_tokens: int = 0
    output_tokens: int = 0
    details: dict[str, Any] = {}


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A complete response. `content` is text, a list of content parts, or None; null and "" are different answers.

    `extra` keeps the other keys of the provider's message, so that an export is exact.
    """

    content: Any = None
    tool_calls: tuple[ToolCallRequest, ...] = ()
    finish_reason: str = "stop"
    usage: Usage | None = None
    model: str | None = None
    reasoning: str | None = None
    extra: dict[str, Any] = {}


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call of a run. `messages` are OpenAI chat messages without the instructions, `tools` OpenAI tools.

    `queue_sequence` and `turn` count from 1. `responses` is how many complete responses the conversation has had, those
    included that a compaction has replaced; None: as many as `messages` hold. `operation_id` stays the same when the
    operation is attempted again.
    """

    conversation_id: str
    submission_id: str
    run_id: str
    queue_sequence: int
    turn: int
    attempt: int
    operation_id: str
    messages: list[dict[str, Any]]
    instructions: str = ""
    tools: list[dict[str, Any]] = []
    responses: int | None = None


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """A provisional piece of a response, for those who watch; only the complete response counts."""

    kind: Literal["text", "reasoning"]
    text: str


Emit = Callable[[Delta], None]
"""Takes a delta at once: it never waits, and it must be called on the event loop's thread."""


@runtime_checkable
class Model(Protocol):
    """A language model, or what stands for one. Instances are immutable and travel between processes by pickling."""

    def identity(self) -> dict[str, Any]:
        """What the definition is made of, as JSON: part of the agent's digest; never a secret, never an SDK object."""
        ...

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        """Answer the request; stream what comes through `emit`. Cancellation ends the call and leaves nothing open.

        Raises: ModelError with a stable code; `retryable` says whether another attempt may help.
        """
        ...
