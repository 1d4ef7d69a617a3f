"""What users' functions return, as plain JSON values."""

from __future__ import annotations

from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..storage.errors import ToolError


def jsonable(value: Any, what: str, code: str) -> Any:
    """`value` as dicts, lists, text, numbers, booleans and None. Raises: ToolError with `code`, which names `what`."""
    try:
        return to_jsonable_python(value)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise ToolError(f"{what} is no JSON value: {str(error)[:500]}", code=code) from error
