"""The gate that a model's answer passes before a lane may believe it: parse, don't validate."""

from __future__ import annotations

from typing import Any, NoReturn

from ..storage.errors import InvalidInput, ModelError
from ..storage.values import DEFAULT_LIMITS, Limits, check_json, check_text
from .protocol import ModelResponse, ToolCallRequest, Usage

TOOL_CALLS_MAX = 120  # a response and what prepares and settles its calls must fit in a batch of 256 records
RECORD_OVERHEAD_BYTES = 64 << 10  # a record's ids and its calls' own ids stand beside the response
_CUT = ("length", "content_filter")
_MESSAGE_LENGTH_MAX = 500


def check_response(value: object, *, limits: Limits = DEFAULT_LIMITS) -> ModelResponse:
    """Turn what a model gave into a response that can be recorded, or refuse it.

    Text becomes the content; a dict is read as an OpenAI assistant message. Arguments of a tool call stay text: whether
    they fit the tool is answered to the model, not here.

    Raises: ModelError with code "model_response_invalid", or "model_response_truncated" when the provider cut a
    response that declares tool calls, by its length or by a filter: incomplete arguments never become canonical.
    """
    if isinstance(value, str):
        response = ModelResponse(content=value)
    elif isinstance(value, ModelResponse):
        response = value
    elif isinstance(value, dict):
        response = _from_message(value)
    else:
        _refuse(f"a model answers with text, a message or a ModelResponse, not with {type(value).__name__}")
    _check_fields(response)
    if response.tool_calls and response.finish_reason in _CUT:
        raise ModelError(
            f"the provider cut a response that declares tool calls (finish reason {response.finish_reason})",
            code="model_response_truncated",
            retryable=False,
        )
    check_model_json(_as_json(response), "response", bytes_max=limits.record_bytes_max - RECORD_OVERHEAD_BYTES)
    return response


def check_model_json(value: object, field: str, *, bytes_max: int = DEFAULT_LIMITS.record_bytes_max) -> bytes:
    """Encode a JSON value of a model, or refuse NaN, lone surrogates, foreign types, depth and size.

    Raises: ModelError with code "model_response_invalid" and `field`.
    """
    try:
        return check_json(value, field, bytes_max=bytes_max, depth_max=DEFAULT_LIMITS.json_depth_max)
    except InvalidInput as error:
        _refuse(error.message, **error.details)


def assistant_message(response: ModelResponse) -> dict[str, Any]:
    """The response as an OpenAI assistant message: what `check_response` reads from a dict, it writes again."""
    message: dict[str, Any] = {"role": "assistant", "content": response.content, **response.extra}
    if response.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                **call.extra,
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in response.tool_calls
        ]
    return message


def _from_message(message: dict[Any, Any]) -> ModelResponse:
    if message.get("role", "assistant") != "assistant":
        _refuse(f"the message has the role {message['role']!r}; a model answers as assistant", field="role")
    declared = message.get("tool_calls")
    if declared is not None and not isinstance(declared, list | tuple):
        _refuse("tool_calls must be a list", field="tool_calls")
    calls = tuple(_from_call(call, f"tool_calls[{index}]") for index, call in enumerate(declared or ()))
    # An empty list and null are other keys of the message, not calls: an export shows them again.
    read = {"role", "content"} | ({"tool_calls"} if calls else set())
    return ModelResponse(
        content=message.get("content"),
        tool_calls=calls,
        finish_reason="tool_calls" if calls else "stop",
        extra={key: member for key, member in message.items() if key not in read},
    )


def _from_call(call: object, field: str) -> ToolCallRequest:
    if not isinstance(call, dict):
        _refuse(f"{field} must be an object", field=field)
    if call.get("type", "function") != "function":
        _refuse(f"{field}.type is {call['type']!r}; only function calls are known", field=f"{field}.type")
    function = call.get("function")
    if not isinstance(function, dict):
        _refuse(f"{field}.function must be an object", field=f"{field}.function")
    for key in function:
        if key not in ("name", "arguments"):
            _refuse(f"{field}.function has the unknown key {key!r}", field=f"{field}.function")
    return ToolCallRequest(
        id=call.get("id"),  # pyright: ignore[reportArgumentType]: checked with all other fields
        name=function.get("name"),  # pyright: ignore[reportArgumentType]
        arguments=function.get("arguments"),  # pyright: ignore[reportArgumentType]
        extra={key: member for key, member in call.items() if key not in ("id", "type", "function")},
    )


def _check_fields(response: ModelResponse) -> None:
    content = response.content
    if isinstance(content, list):
        if not all(isinstance(part, dict) for part in content):
            _refuse("content must be text, a list of objects or null", field="content")
    elif content is not None and not isinstance(content, str):
        _refuse(f"content must be text, a list of objects or null, not {type(content).__name__}", field="content")
    if not isinstance(response.tool_calls, tuple | list):
        _refuse("tool_calls must be a tuple of ToolCallRequest", field="tool_calls")
    if len(response.tool_calls) > TOOL_CALLS_MAX:
        _refuse(
            f"the response declares {len(response.tool_calls)} tool calls; the limit is {TOOL_CALLS_MAX}",
            field="tool_calls",
            limit=TOOL_CALLS_MAX,
        )
    for index, call in enumerate(response.tool_calls):
        _check_call(call, f"tool_calls[{index}]")
    if not isinstance(response.finish_reason, str):
        _refuse("finish_reason must be text", field="finish_reason")
    for field in ("model", "reasoning"):
        if not isinstance(getattr(response, field), str | None):
            _refuse(f"{field} must be text or null", field=field)
    if not isinstance(response.extra, dict):
        _refuse("extra must be an object", field="extra")
    if response.usage is not None:
        _check_usage(response.usage)


def _check_call(call: object, field: str) -> None:
    if not isinstance(call, ToolCallRequest):
        _refuse(f"{field} must be a ToolCallRequest, not {type(call).__name__}", field=field)
    if not isinstance(call.id, str) or len(call.id) > DEFAULT_LIMITS.id_length_max:
        _refuse(
            f"{field}.id must be text of at most {DEFAULT_LIMITS.id_length_max} characters",
            field=f"{field}.id",
            limit=DEFAULT_LIMITS.id_length_max,
        )
    try:
        check_text(call.name, f"{field}.name", length_max=DEFAULT_LIMITS.id_length_max)
    except InvalidInput as error:
        _refuse(error.message, **error.details)
    if not isinstance(call.arguments, str):
        _refuse(f"{field}.arguments must be JSON text, not {type(call.arguments).__name__}", field=f"{field}.arguments")
    if not isinstance(call.extra, dict):
        _refuse(f"{field}.extra must be an object", field=f"{field}.extra")


def _check_usage(usage: object) -> None:
    if not isinstance(usage, Usage) or not isinstance(usage.details, dict):
        _refuse("usage must be a Usage", field="usage")
    for field in ("input_tokens", "output_tokens"):
        count = getattr(usage, field)
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            _refuse(f"usage.{field} must be a count", field=f"usage.{field}")


def _as_json(response: ModelResponse) -> dict[str, Any]:
    usage = response.usage
    return {
        "content": response.content,
        "tool_calls": [
            {"id": call.id, "name": call.name, "arguments": call.arguments, "extra": call.extra}
            for call in response.tool_calls
        ],
        "finish_reason": response.finish_reason,
        "usage": usage and {"in": usage.input_tokens, "out": usage.output_tokens, "details": usage.details},
        "model": response.model,
        "reasoning": response.reasoning,
        "extra": response.extra,
    }


def _refuse(message: str, **details: Any) -> NoReturn:
    raise ModelError(message[:_MESSAGE_LENGTH_MAX], code="model_response_invalid", retryable=False, **details)
