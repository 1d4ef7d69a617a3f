"""A function's parameters as a JSON schema, and the check of the arguments that a model sends for them."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError

from ..storage.errors import InvalidInput
from ..storage.values import decode

_ERRORS_SHOWN_MAX = 10
_MESSAGE_LENGTH_MAX = 1_000

ArgumentsAdapter = TypeAdapter[dict[str, Any]]


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether the function's first parameter is `ctx`."""
    return next(iter(_signature(function).parameters), None) == "ctx"


def arguments_adapter(function: Callable[..., Any]) -> ArgumentsAdapter:
    """A pydantic adapter that turns a JSON object into the function's keyword arguments, `ctx` left out.

    Raises: InvalidInput with `field` for a parameter that no name in a JSON object can fill, or whose type has no
    schema.
    """
    parameters = list(_signature(function).parameters.values())
    if parameters and parameters[0].name == "ctx":
        del parameters[0]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidInput(
                f"parameter {parameter} of {_name(function)} cannot be filled by name; a tool takes named ones only",
                field=parameter.name,
            )
        if parameter.name == "ctx":
            raise InvalidInput(f"ctx must be the first parameter of {_name(function)}", field="ctx")
    hints = _hints(function, [parameter.name for parameter in parameters])

    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    # Pydantic reads the signature, validates a JSON object against it and calls `collect` with what came out.
    collect.__annotations__ = hints
    collect.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
        [parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[parameter.name]) for parameter in parameters]
    )
    try:
        return TypeAdapter(collect)  # pyright: ignore[reportArgumentType]: pydantic takes functions, too
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, PydanticUserError) as error:
        raise InvalidInput(
            f"the parameters of {_name(function)} have no schema: {str(error)[:_MESSAGE_LENGTH_MAX]}",
            field="parameters",
        ) from error


def schema_of(adapter: ArgumentsAdapter, function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of the arguments. Raises: InvalidInput for a type that JSON cannot express."""
    try:
        return adapter.json_schema()
    except PydanticUserError as error:
        raise InvalidInput(
            f"the parameters of {_name(function)} have no JSON schema: {str(error)[:_MESSAGE_LENGTH_MAX]}",
            field="parameters",
        ) from error


def parse_object(arguments_json: str) -> dict[str, Any]:
    """The JSON object in `arguments_json`; no text at all counts as an object without members.

    Raises: InvalidInput with code "tool_arguments_invalid".
    """
    if not arguments_json:
        return {}
    try:
        value = decode(arguments_json)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
        raise _invalid([{"field": "", "message": f"not JSON: {error}", "type": "json_invalid"}]) from None
    if not isinstance(value, dict):
        raise _invalid([{"field": "", "message": "the arguments must be a JSON object", "type": "object_type"}])
    return value


def validate_arguments(adapter: ArgumentsAdapter, arguments_json: str) -> dict[str, Any]:
    """The keyword arguments in `arguments_json`. Raises: InvalidInput with code "tool_arguments_invalid"."""
    parse_object(arguments_json)
    try:
        return adapter.validate_json(arguments_json or "{}")
    except ValidationError as error:
        raise _invalid(
            [
                {"field": ".".join(map(str, item["loc"])), "message": item["msg"], "type": item["type"]}
                for item in error.errors(include_url=False, include_context=False, include_input=False)
            ]
        ) from None


def _invalid(errors: list[dict[str, str]]) -> InvalidInput:
    shown = errors[:_ERRORS_SHOWN_MAX]
    parts = [f"{item['field']}: {item['message']}" if item["field"] else item["message"] for item in shown]
    if len(errors) > len(shown):
        parts.append(f"and {len(errors) - len(shown)} more")
    message = ("the tool's arguments are invalid: " + "; ".join(parts))[:_MESSAGE_LENGTH_MAX]
    bounded = [{key: text[:_MESSAGE_LENGTH_MAX] for key, text in item.items()} for item in shown]
    return InvalidInput(message, code="tool_arguments_invalid", field="arguments", errors=bounded)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the parameters of {_name(function)} cannot be read: {error}", field="function") from error


def _hints(function: Callable[..., Any], names: list[str]) -> dict[str, Any]:
    # Only the parameters' own annotations are resolved: those of `ctx` and of the return value may stand under
    # TYPE_CHECKING, and nothing here needs them.
    target: Any = inspect.unwrap(function)
    while hasattr(target, "func"):
        target = inspect.unwrap(target.func)
    if not inspect.isroutine(target):
        target = type(target).__call__
    declared = getattr(target, "__annotations__", {})
    holder = types.SimpleNamespace(__annotations__={name: declared[name] for name in names if name in declared})
    try:
        closure = inspect.getclosurevars(target).nonlocals if inspect.isfunction(target) else {}
        resolved = typing.get_type_hints(
            holder, globalns=getattr(target, "__globals__", {}), localns=dict(closure), include_extras=True
        )
        return {name: resolved.get(name, Any) for name in names}
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise InvalidInput(
            f"an annotation of {_name(function)} does not resolve: {error}", field="parameters"
        ) from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
