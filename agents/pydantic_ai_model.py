"""Every provider that pydantic-ai supports, behind the one method that a lane calls."""

from __future__ import annotations

import asyncio
import importlib.util
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from ..storage.errors import InvalidInput, ModelError, described
from ..storage.values import DEFAULT_LIMITS, check_json, check_text
from .fingerprint import function_digest
from .protocol import Emit, ModelRequest, ModelResponse
from .responses import check_response

_MESSAGE_LENGTH_MAX = 500
_RETRYABLE_STATUS = (408, 409, 425, 429)  # and 500 upwards
_TRANSPORT_PACKAGES = ("httpx", "httpx2", "httpcore", "httpcore2", "h11", "anyio", "aiohttp", "openai", "anthropic")
_INSTALL = "pydantic-ai is not installed: pip install 'laneway[models]'"


class PydanticAIModel:
    """Sends each request once through pydantic-ai and streams the answer; repeating is the lane's matter.

    `model` is a name such as "openai:gpt-4o" or "openai-chat:gpt-4o", or a function without arguments that makes a
    pydantic-ai Model, or such a Model, which then cannot leave its process. With pydantic-ai 2, "openai:" speaks
    OpenAI's Responses API; a server that only speaks chat completions needs "openai-chat:". `settings` are
    pydantic-ai's model settings, as JSON. With `stream` off the answer comes in one piece.

    Raises: InvalidInput with `field`; with code "dependency_missing" when pydantic-ai is not installed.
    """

    def __init__(
        self, model: str | Callable[[], Any] | Any, settings: Mapping[str, Any] | None = None, *, stream: bool = True
    ) -> None:
        if isinstance(model, str):
            check_text(model, "model", length_max=DEFAULT_LIMITS.id_length_max)
        elif not callable(model) and not hasattr(model, "model_name"):
            raise InvalidInput(
                "model must be a model's name, a pydantic-ai Model or a function that makes one, "
                f"not {type(model).__name__}",
                field="model",
            )
        if importlib.util.find_spec("pydantic_ai") is None:
            raise InvalidInput(_INSTALL, code="dependency_missing", field="model")
        self._settings = dict(settings or {})
        check_json(
            self._settings,
            "settings",
            bytes_max=DEFAULT_LIMITS.input_bytes_max,
            depth_max=DEFAULT_LIMITS.json_depth_max,
        )
        self._source = model
        self._name = _identity_of(model)
        self._stream = stream
        self._clients = _new_clients()

    def identity(self) -> dict[str, Any]:
        return {"kind": "pydantic_ai", "model": self._name, "settings": self._settings}

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        started = [False]
        with _translated(self._name, started):
            return check_response(await self._request(request, emit, started))

    async def _request(self, request: ModelRequest, emit: Emit, started: list[bool]) -> ModelResponse:
        from pydantic_ai import direct

        from . import pydantic_ai_messages as convert

        model = await self._client()
        # The SDKs would repeat a request by themselves, unseen by the attempts that the lane counts.
        settings: Any = {**self._settings, "max_retries": 0}
        messages = convert.to_messages(request)
        parameters = convert.to_parameters(request.tools)
        if not self._stream:
            response = await direct.model_request(
                model, messages, model_settings=settings, model_request_parameters=parameters
            )
            return convert.from_response(response)
        async with direct.model_request_stream(
            model, messages, model_settings=settings, model_request_parameters=parameters
        ) as stream:
            async for event in stream:
                started[0] = True
                if delta := convert.to_delta(event):
                    emit(delta)
            response = stream.get()
            if _was_cut(stream, response):
                raise _failure("the stream ended before the response was complete", "model_stream_cut", retryable=True)
        if response.finish_reason == "error":
            raise _failure("the provider ended the response with an error", "model_unavailable", retryable=True)
        return convert.from_response(response)

    async def aclose(self) -> None:
        """Close the connections that this event loop opened; a later request opens new ones."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None and hasattr(client, "__aexit__"):
            await client.__aexit__(None, None, None)

    async def _client(self) -> Any:
        # A provider's connections belong to the event loop that opened them.
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            from pydantic_ai.models import infer_model

            source: Any = self._source
            made: Any = source() if callable(source) and not hasattr(source, "model_name") else source
            client = self._clients[loop] = infer_model(made)
            if hasattr(client, "__aenter__"):
                await client.__aenter__()
        return self._clients[loop]

    def __getstate__(self) -> dict[str, Any]:
        if not isinstance(self._source, str) and hasattr(self._source, "model_name"):
            raise InvalidInput(
                f"the pydantic-ai Model {self._name} cannot travel to another process: give its name, or a function "
                "that makes it",
                field="model",
            )
        return {key: value for key, value in self.__dict__.items() if key != "_clients"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _clients=_new_clients())


def _new_clients() -> weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any]:
    return weakref.WeakKeyDictionary()


def _identity_of(model: Any) -> str:
    if isinstance(model, str):
        return model
    if hasattr(model, "model_name"):
        return f"{getattr(model, 'system', type(model).__name__)}:{model.model_name}"
    return f"{getattr(model, '__qualname__', type(model).__name__)}:{function_digest(model)[:16]}"


def _was_cut(stream: object, response: Any) -> bool:
    if getattr(response, "state", "complete") != "complete":
        return True
    # pydantic-ai takes a chat-completions stream that ends without a finish reason for a complete one; its raw reason
    # tells the difference, and half an answer must not become canonical.
    is_chat = any(cls.__name__ == "OpenAIStreamedResponse" for cls in type(stream).__mro__)
    details = response.provider_details or {}
    return is_chat and response.finish_reason != "content_filter" and not details.get("finish_reason")


@contextmanager
def _translated(name: str, started: list[bool]) -> Generator[None]:
    try:
        yield
    except ModelError:
        raise
    except ImportError as error:
        missing = (error.name or "").partition(".")[0] == "pydantic_ai"
        message = _INSTALL if missing else str(error)
        raise _failure(message, "dependency_missing", retryable=False) from error
    except Exception as error:
        raise _classified(name, error, started[0]) from error


def _classified(name: str, error: Exception, started: bool) -> ModelError:
    from pydantic_ai import exceptions

    message = f"{name}: {described(error)}"
    status = getattr(error, "status_code", None)
    details: dict[str, Any] = {}
    if isinstance(status, int):
        details["status"] = status
    if isinstance(retry_after := getattr(error, "retry_after", None), int | float):
        details["retry_after"] = retry_after
    if isinstance(error, _named(exceptions, "ModelQuotaExceededError", "ContentFilterError")):
        return _failure(message, "model_refused", retryable=False, **details)
    if isinstance(status, int):
        if status >= 500 or status in _RETRYABLE_STATUS:
            return _failure(message, "model_unavailable", retryable=True, **details)
        return _failure(message, "model_refused", retryable=False, **details)
    if isinstance(error, _named(exceptions, "ModelRequestRejectedError", "UserError")):
        return _failure(message, "model_refused", retryable=False, **details)
    if isinstance(error, exceptions.UnexpectedModelBehavior):
        return _failure(message, "model_response_invalid", retryable=True, **details)
    transport = type(error).__module__.partition(".")[0] in _TRANSPORT_PACKAGES
    if transport or isinstance(error, (OSError, *_named(exceptions, "ModelAPIError"))):
        code = "model_stream_cut" if started else "model_unavailable"
        return _failure(message, code, retryable=True, **details)
    return _failure(message, "model_failed", retryable=False, exception=type(error).__name__)


def _named(module: Any, *names: str) -> tuple[type[Exception], ...]:
    # Some of these classes are younger than the oldest pydantic-ai that the package accepts.
    return tuple(getattr(module, name) for name in names if hasattr(module, name))


def _failure(message: str, code: str, *, retryable: bool, **details: Any) -> ModelError:
    return ModelError(message[:_MESSAGE_LENGTH_MAX], code=code, retryable=retryable, **details)
