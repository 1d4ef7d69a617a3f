"""A model that answers from a list."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from ..storage.errors import InvalidInput, ModelError
from ..storage.values import digest_of
from .protocol import Delta, Emit, ModelRequest, ModelResponse
from .responses import assistant_message, check_model_json, check_response

Scripted = str | dict[str, Any] | ModelResponse | Exception


class ScriptedModel:
    """Gives the n-th response when the conversation has had n-1 responses, so a run that resumes in another process
    goes on at the right place, and a compaction does not shift it.

    A response is text, an OpenAI assistant message, a ModelResponse, or an exception that is raised. `delay_s` is
    waited before each answer; with `chunk`, text is streamed in pieces of that many characters.

    Raises: InvalidInput with `field` for responses that could never be recorded.
    """

    def __init__(self, responses: Iterable[Scripted], *, delay_s: float = 0.0, chunk: int | None = None) -> None:
        if isinstance(responses, str | dict):
            raise InvalidInput("responses must be a list of responses", field="responses")
        if not 0 <= delay_s < float("inf"):
            raise InvalidInput("delay_s must be a number of seconds, 0 or more", field="delay_s", limit=0)
        if chunk is not None and chunk < 1:
            raise InvalidInput("chunk must be 1 character or more", field="chunk", limit=1)
        self._responses = tuple(_checked(item, index) for index, item in enumerate(responses))
        self._delay_s = delay_s
        self._chunk = chunk

    def identity(self) -> dict[str, Any]:
        script = [
            [type(item).__name__, str(item)] if isinstance(item, Exception) else _identity(item)
            for item in self._responses
        ]
        return {"kind": "scripted", "digest": digest_of(check_model_json(script, "responses", bytes_max=1 << 30))}

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        position = request.responses
        if position is None:
            position = sum(message.get("role") == "assistant" for message in request.messages)
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        if position >= len(self._responses):
            raise ModelError(
                f"the script has {len(self._responses)} responses; this prompt asks for number {position + 1}",
                code="script_exhausted",
                retryable=False,
            )
        response = self._responses[position]
        if isinstance(response, Exception):
            raise response.with_traceback(None)
        if self._chunk is not None:
            await stream_text(response, emit, self._chunk)
        return response


async def stream_text(response: ModelResponse, emit: Emit, chunk: int) -> None:
    """Emit the response's text in pieces of `chunk` characters, and let others run in between."""
    if isinstance(response.content, str):
        for start in range(0, len(response.content), chunk):
            emit(Delta(kind="text", text=response.content[start : start + chunk]))
            await asyncio.sleep(0)


def _checked(item: Scripted, index: int) -> ModelResponse | Exception:
    if isinstance(item, Exception):
        return item
    try:
        return check_response(item)
    except ModelError as error:
        if error.code == "model_response_truncated":
            return error
        raise InvalidInput(f"responses[{index}]: {error.message}", field=f"responses[{index}]") from error


def _identity(response: ModelResponse) -> list[Any]:
    usage = response.usage
    counts = usage and [usage.input_tokens, usage.output_tokens, usage.details]
    return [assistant_message(response), response.finish_reason, response.reasoning, response.model, counts]
