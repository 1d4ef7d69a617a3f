"""The text that stands for a Python function in the digest of a definition."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any

from ..storage.values import digest_of, encode


def function_digest(function: Callable[..., Any]) -> str:
    """A digest of what the function does: its source text, or its bytecode where no source can be read.

    The same file gives the same digest in every process. What the function refers to is not covered: a helper or a
    closure's value that changes needs a new `version`.
    """
    target = inspect.unwrap(function)
    while hasattr(target, "func"):  # functools.partial
        target = inspect.unwrap(target.func)  # pyright: ignore[reportFunctionMemberAccess]
    if not (inspect.isroutine(target) or inspect.isclass(target)):
        target = type(target)
    try:
        return digest_of(inspect.getsource(target).encode("utf-8", "surrogatepass"))
    except (OSError, TypeError, SyntaxError):
        code = getattr(target, "__code__", None)
        if code is None:
            return digest_of(f"{target.__module__}.{target.__qualname__}".encode())
        return digest_of(encode(_code_values(code)))


def _code_values(code: CodeType) -> list[Any]:
    constants = [_code_values(value) if isinstance(value, CodeType) else _constant(value) for value in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), list(code.co_varnames), constants]


def _constant(value: object) -> str:
    # The order of a frozenset of strings changes from process to process.
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
