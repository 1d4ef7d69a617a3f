"""OpenAI chat messages to pydantic-ai's and back. Imports pydantic-ai, so only the adapter imports this, and late."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

from pydantic_ai import messages as pai
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from ..storage.errors import ModelError
from .protocol import Delta, ModelRequest, ModelResponse, ToolCallRequest, Usage


def to_messages(request: ModelRequest) -> list[pai.ModelMessage]:
    """The prompt: neighbouring messages that are no responses make one request, as providers with strict turns need."""
    converted: list[pai.ModelMessage] = []
    parts: list[pai.ModelRequestPart] = []
    names: dict[str, str] = {}

    def flush() -> None:
        if parts:
            converted.append(pai.ModelRequest(parts=list(parts), instructions=request.instructions or None))
            parts.clear()

    for message in request.messages:
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            flush()
            converted.append(_response(message, names))
        elif role == "user":
            parts.append(pai.UserPromptPart(content=_user_content(content)))
        elif role == "tool":
            identity = message.get("tool_call_id", "")
            name = message.get("name") or names.get(identity, "unknown")
            parts.append(pai.ToolReturnPart(tool_name=name, content=_text(content), tool_call_id=identity))
        elif role in ("system", "developer"):
            parts.append(pai.SystemPromptPart(content=_text(content)))
        else:
            raise _unsupported(f"a message with the role {role!r}")
    if not parts and not converted:
        parts.append(pai.UserPromptPart(content=""))
    flush()
    return converted


def to_parameters(tools: Iterable[dict[str, Any]]) -> ModelRequestParameters:
    """The tools as pydantic-ai declares them to a provider."""
    definitions = []
    for tool in tools:
        function = tool["function"]
        definitions.append(
            ToolDefinition(
                name=function["name"],
                description=function.get("description") or None,
                parameters_json_schema=function.get("parameters") or {"type": "object", "properties": {}},
            )
        )
    return ModelRequestParameters(function_tools=definitions)


def to_delta(event: object) -> Delta | None:
    """The text or reasoning that a stream's event brings."""
    if isinstance(event, pai.PartStartEvent):
        if isinstance(event.part, pai.TextPart) and event.part.content:
            return Delta(kind="text", text=event.part.content)
        if isinstance(event.part, pai.ThinkingPart) and event.part.content:
            return Delta(kind="reasoning", text=event.part.content)
    elif isinstance(event, pai.PartDeltaEvent):
        if isinstance(event.delta, pai.TextPartDelta) and event.delta.content_delta:
            return Delta(kind="text", text=event.delta.content_delta)
        if isinstance(event.delta, pai.ThinkingPartDelta) and event.delta.content_delta:
            return Delta(kind="reasoning", text=event.delta.content_delta)
    return None


def from_response(response: pai.ModelResponse) -> ModelResponse:
    """What the provider answered. The arguments of calls stay the provider's text."""
    texts = [part.content for part in response.parts if isinstance(part, pai.TextPart)]
    reasonings = [part.content for part in response.parts if isinstance(part, pai.ThinkingPart) and part.content]
    calls = tuple(
        ToolCallRequest(id=part.tool_call_id, name=part.tool_name, arguments=_arguments(part.args))
        for part in response.parts
        if isinstance(part, pai.ToolCallPart)
    )
    # pydantic-ai spells the reasons as OpenAI does, but for this one.
    finish = "tool_calls" if response.finish_reason == "tool_call" else response.finish_reason or "stop"
    return ModelResponse(
        content="".join(texts) if texts else None,
        tool_calls=calls,
        finish_reason="tool_calls" if calls and finish == "stop" else finish,
        usage=Usage(
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
            details={key: count for key, count in response.usage.details.items() if count},
        ),
        model=response.model_name,
        reasoning="".join(reasonings) or None,
    )


def _response(message: dict[str, Any], names: dict[str, str]) -> pai.ModelResponse:
    parts: list[pai.ModelResponsePart] = []
    if text := _text(message.get("content")):
        parts.append(pai.TextPart(content=text))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        names[call["id"]] = function["name"]
        parts.append(pai.ToolCallPart(tool_name=function["name"], args=function["arguments"], tool_call_id=call["id"]))
    return pai.ModelResponse(parts=parts)


def _user_content(content: object) -> Any:
    if isinstance(content, list):
        return [_user_part(part) for part in content]
    return _text(content)


def _user_part(part: dict[str, Any]) -> Any:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return pai.BinaryContent.from_data_uri(url) if url.startswith("data:") else pai.ImageUrl(url=url)
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            return pai.BinaryContent(data=base64.b64decode(data), media_type=f"audio/{kind}")
        case _:
            raise _unsupported(f"a content part of the type {part.get('type')!r}")


def _text(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and "text" in part for part in content):
        return "".join(str(part["text"]) for part in content)
    return json.dumps(content)


def _arguments(args: object) -> str:
    if args is None:
        return ""
    return args if isinstance(args, str) else json.dumps(args, separators=(",", ":"), ensure_ascii=False)


def _unsupported(what: str) -> ModelError:
    return ModelError(f"the adapter cannot send {what}", code="model_refused", retryable=False)
