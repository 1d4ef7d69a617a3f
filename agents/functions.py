"""A model that is a Python function."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from ..storage.errors import InvalidInput, ModelError, described
from ..storage.values import DEFAULT_LIMITS, check_text
from .fingerprint import function_digest
from .protocol import Delta, Emit, ModelRequest, ModelResponse
from .responses import check_response
from .threads import run_in_thread

_MESSAGE_LENGTH_MAX = 500


class FunctionModel:
    """Asks `function(request)` or `function(request, emit)`, which gives text, a message or a ModelResponse.

    The function may be async; it may be an async generator whose text and Deltas are streamed and make up the response,
    unless it ends with a message or a ModelResponse. A sync function runs on the event loop, or with `blocking` in a
    thread of its own. What it raises, other than a ModelError, becomes one with code "model_failed", which is retried
    only if the exception has a true `retryable`.

    Raises: InvalidInput with `field`.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None, *, blocking: bool = False) -> None:
        if not callable(function):
            raise InvalidInput(f"a model's function must be callable, not {type(function).__name__}", field="function")
        self._function = function
        self._takes_emit = _takes_emit(function)
        self._name = check_text(
            name or getattr(function, "__name__", type(function).__name__),
            "name",
            length_max=DEFAULT_LIMITS.id_length_max,
        )
        self._blocking = blocking
        self._source = function_digest(function)

    def identity(self) -> dict[str, Any]:
        return {"kind": "function", "name": self._name, "source": self._source}

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        try:
            return check_response(await self._ask(request, emit))
        except ModelError:
            raise
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"{self._name} raised {described(error)}"[:_MESSAGE_LENGTH_MAX],
                code="model_failed",
                retryable=bool(getattr(error, "retryable", False)),
                exception=type(error).__name__,
            ) from error

    async def _ask(self, request: ModelRequest, emit: Emit) -> object:
        if self._blocking:
            loop = asyncio.get_running_loop()
            args = (request, lambda delta: loop.call_soon_threadsafe(emit, delta)) if self._takes_emit else (request,)
            value = await run_in_thread(self._function, *args)
        else:
            value = self._function(*((request, emit) if self._takes_emit else (request,)))
        if inspect.isasyncgen(value):
            return await _drain(value, emit)
        return await value if inspect.isawaitable(value) else value


async def _drain(pieces: AsyncIterator[Any], emit: Emit) -> object:
    texts: list[str] = []
    reasonings: list[str] = []
    final: object = None
    async with contextlib.aclosing(pieces):  # pyright: ignore[reportArgumentType]: an async generator, checked above
        async for piece in pieces:
            if final is not None:
                raise ModelError("the function yielded more after its response", code="model_response_invalid")
            if isinstance(piece, str):
                piece = Delta(kind="text", text=piece)
            if isinstance(piece, Delta):
                emit(piece)
                (texts if piece.kind == "text" else reasonings).append(piece.text)
            elif isinstance(piece, dict | ModelResponse):
                final = piece
            else:
                raise ModelError(
                    f"the function yielded a {type(piece).__name__}; it may yield text, Deltas and one response",
                    code="model_response_invalid",
                )
    if final is not None:
        return final
    return ModelResponse(content="".join(texts), reasoning="".join(reasonings) or None)


def _takes_emit(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"the parameters of the model's function cannot be read: {error}", field="function"
        ) from error
    required = [
        item
        for item in parameters
        if item.default is item.empty and item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)
    ]
    by_name = any(item.kind is item.KEYWORD_ONLY for item in required)
    takes_emit = (len(parameters) > 1 and parameters[1].name == "emit") or len(required) == 2
    if not parameters or by_name or len(required) > (2 if takes_emit else 1):
        raise InvalidInput("a model's function takes (request) or (request, emit)", field="function")
    return takes_emit
