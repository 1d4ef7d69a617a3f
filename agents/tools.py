"""Tools: Python functions that a model may call, with what recovery must know about their effects."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args, overload

from ..storage.errors import InvalidInput, ToolError
from ..storage.values import DEFAULT_LIMITS, check_text, digest_of, encode
from .context import ToolContext
from .fingerprint import function_digest
from .parameters import ArgumentsAdapter, arguments_adapter, parse_object, schema_of, takes_context, validate_arguments
from .reconcile import Completed, NeverStarted, Reconciler, Reconciliation, SafeToRetry
from .threads import run_function
from .values import jsonable

Effect = Literal["readonly", "idempotent", "uncertain"]
"""What running a call twice may do: nothing, nothing more than once under the same key, or harm."""

Approval = bool | Callable[[dict[str, Any]], bool]
ToolFunction = Callable[..., Any]

TIMEOUT_S_DEFAULT = 30.0
TOOL_ATTEMPTS_LIMIT = 100
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what OpenAI, Anthropic and Google all accept
_ANY_OBJECT: dict[str, Any] = {"type": "object", "additionalProperties": True}


@dataclass(frozen=True)
class ToolMessage:
    """A result with the exact keys of the tool message that carries it: for tools that repeat recorded messages."""

    content: Any
    keys: dict[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool:
    """A tool's immutable definition. Make one with `@tool`, or with `Tool.raw` for arguments that nobody validates.

    `parameters` is a JSON schema, `timeout_s` bounds one execution in seconds, `attempts_max` how often
    a call that fails is tried before the model reads it, and `digest` changes when the definition
    does: a call that an older definition prepared is never run by a newer one.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    effect: Effect
    timeout_s: float
    approval: Approval
    reconcile: Reconciler | None
    digest: str
    function: ToolFunction
    takes_ctx: bool = True
    parser: Callable[[str], dict[str, Any]] | None = None
    approval_expires_s: float | None = None
    attempts_max: int = 1

    @classmethod
    def raw(
        cls,
        name: str,
        function: ToolFunction,
        *,
        effect: Effect,
        parameters: dict[str, Any] | None = None,
        description: str = "",
        approval: Approval = False,
        approval_expires_s: float | None = None,
        timeout_s: float = TIMEOUT_S_DEFAULT,
        attempts_max: int = 1,
        reconcile: Reconciler | None = None,
        version: str | None = None,
        parser: Callable[[str], dict[str, Any]] = parse_object,
    ) -> Tool:
        """A tool whose `function(ctx, arguments)` gets the arguments as `parser` returns them, any JSON object.

        The name may be any text that is not empty, as recordings bring them.

        Raises: InvalidInput with `field`.
        """
        check_text(name, "name", length_max=DEFAULT_LIMITS.id_length_max)
        return _define(
            cls,
            function,
            name=name,
            description=description,
            parameters=_ANY_OBJECT if parameters is None else parameters,
            effect=effect,
            approval=approval,
            approval_expires_s=approval_expires_s,
            timeout_s=timeout_s,
            attempts_max=attempts_max,
            reconcile=reconcile,
            version=version,
            takes_ctx=True,
            parser=parser,
        )

    def schema(self) -> dict[str, Any]:
        """The tool as OpenAI's chat format declares it to a model."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }

    def parse(self, arguments_json: str) -> dict[str, Any]:
        """The keyword arguments in a model's text; an empty text counts as no arguments.

        Raises: InvalidInput with code "tool_arguments_invalid"; `errors` names each field and what is wrong with it.
        """
        return self.parser(arguments_json) if self.parser else validate_arguments(self._adapter, arguments_json)

    def needs_approval(self, arguments: dict[str, Any]) -> bool:
        """Whether a person must decide before a call with these arguments runs."""
        return bool(self.approval(arguments)) if callable(self.approval) else self.approval

    async def call(self, ctx: ToolContext, kwargs: dict[str, Any]) -> Any:
        """Run the function and return its value as plain JSON; the caller checks its size.

        An async function runs on the event loop, any other in a thread of its own. A `ToolMessage` is handed through.

        Raises: ToolError with code "tool_result_invalid" for a value that is no JSON; else what the function raises.
        """
        if self.parser:
            args, named = (ctx, kwargs), {}
        else:
            args, named = ((ctx,) if self.takes_ctx else ()), kwargs
        value = await run_function(self.function, *args, **named)
        if isinstance(value, ToolMessage):
            return value
        return jsonable(value, f"the result of tool {self.name}", "tool_result_invalid")

    async def run_reconcile(self, ctx: ToolContext, kwargs: dict[str, Any]) -> Reconciliation | None:
        """What the tool's reconciler can prove about a call that was prepared and not settled; None without proof.

        Raises: ToolError with code "reconcile_invalid" for an answer of another type; else what the reconciler raises.
        """
        if self.reconcile is None:
            return None
        answer = await run_function(self.reconcile, ctx, kwargs)
        if isinstance(answer, Completed):
            result = jsonable(answer.result, f"the reconciled result of tool {self.name}", "reconcile_invalid")
            return Completed(result, answer.evidence)
        if answer is None or isinstance(answer, NeverStarted | SafeToRetry):
            return answer
        raise ToolError(
            f"the reconciler of tool {self.name} answered with {type(answer).__name__}; it may answer with "
            "Completed, NeverStarted, SafeToRetry or None",
            code="reconcile_invalid",
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function, as its own unit tests do."""
        return self.function(*args, **kwargs)

    @functools.cached_property
    def _adapter(self) -> ArgumentsAdapter:
        return arguments_adapter(self.function)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_adapter"}

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A tool of an importable module travels by its name, as functions do, so that the module's clients and locks
        # are not copied; one of `__main__` or of a function's body travels by value.
        module, path = getattr(self.function, "__module__", None), getattr(self.function, "__qualname__", None)
        if module and path and module != "__main__" and _find(module, path) is self:
            return _import_tool, (module, path)
        return super().__reduce_ex__(protocol)


@overload
def tool(function: ToolFunction, /) -> Tool: ...


@overload
def tool(
    *,
    effect: Effect = "uncertain",
    approval: Approval = False,
    approval_expires_s: float | None = None,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    attempts_max: int = 1,
    reconcile: Reconciler | None = None,
    name: str | None = None,
    description: str | None = None,
    version: str | None = None,
) -> Callable[[ToolFunction], Tool]: ...


def tool(
    function: ToolFunction | None = None,
    /,
    *,
    effect: Effect = "uncertain",
    approval: Approval = False,
    approval_expires_s: float | None = None,
    timeout_s: float = TIMEOUT_S_DEFAULT,
    attempts_max: int = 1,
    reconcile: Reconciler | None = None,
    name: str | None = None,
    description: str | None = None,
    version: str | None = None,
) -> Tool | Callable[[ToolFunction], Tool]:
    """Make a tool of a function, sync or async: `@tool`, or `@tool(effect="idempotent", timeout_s=5.0)`.

    The JSON schema comes from the type hints, the description from the docstring; a first parameter `ctx` gets the
    ToolContext. `effect` says what may happen when a process dies in mid-call: "readonly" and "idempotent" calls
    run again (an idempotent tool hands `ctx.idempotency_key` on), an "uncertain" one does not: its `reconcile`, or
    a person, says what became of it.

    `timeout_s` bounds one call. With `approval`, a flag or `approval(arguments) -> bool`, no call of the
    turn runs before a person has decided; after `approval_expires_s` seconds nobody's decision is a denial (None: it
    waits). `reconcile(ctx, arguments)` gives `Completed(result)`, `NeverStarted()`, `SafeToRetry()`, or None for no
    proof. `attempts_max`, for readonly and idempotent tools, lets a call that fails be tried again, with growing
    pauses and under its one idempotency key, before the model reads its failure. `version` replaces the source text in
    the definition's digest.

    Raises: InvalidInput with `field` for a declaration that cannot work.
    """

    def declare(target: ToolFunction) -> Tool:
        if not callable(target):
            raise InvalidInput(f"a tool is made of a function, not of a {type(target).__name__}", field="function")
        tool_name = getattr(target, "__name__", None) if name is None else name
        if not isinstance(tool_name, str) or not _NAME.fullmatch(tool_name):
            raise InvalidInput(
                f"tool name {str(tool_name)[:80]!r} must be 1 to 64 letters, digits, underscores or hyphens",
                field="name",
                limit=64,
            )
        adapter = arguments_adapter(target)
        return _define(
            Tool,
            target,
            name=tool_name,
            description=(inspect.getdoc(target) or "") if description is None else description,
            parameters=schema_of(adapter, target),
            effect=effect,
            approval=approval,
            approval_expires_s=approval_expires_s,
            timeout_s=timeout_s,
            attempts_max=attempts_max,
            reconcile=reconcile,
            version=version,
            takes_ctx=takes_context(target),
            parser=None,
        )

    return declare if function is None else declare(function)


def _define(
    cls: type[Tool],
    function: ToolFunction,
    *,
    name: str,
    description: str,
    parameters: dict[str, Any],
    effect: Effect,
    approval: Approval,
    approval_expires_s: float | None,
    timeout_s: float,
    attempts_max: int,
    reconcile: Reconciler | None,
    version: str | None,
    takes_ctx: bool,
    parser: Callable[[str], dict[str, Any]] | None,
) -> Tool:
    if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"tool {name} must be a function that returns its result", field="function")
    if effect not in get_args(Effect):
        raise InvalidInput(f"effect of tool {name} must be one of {', '.join(get_args(Effect))}", field="effect")
    _check_seconds(timeout_s, "timeout_s", name)
    _check_attempts(attempts_max, effect, name)
    if approval_expires_s is not None:
        _check_seconds(approval_expires_s, "approval_expires_s", name)
    if not isinstance(approval, bool) and not callable(approval):
        raise InvalidInput(f"approval of tool {name} must be a bool or a function of the arguments", field="approval")
    if reconcile is not None and not callable(reconcile):
        raise InvalidInput(f"reconcile of tool {name} must be a function", field="reconcile")
    if not isinstance(description, str):
        raise InvalidInput(f"description of tool {name} must be text", field="description")
    if version is not None:
        check_text(version, "version", length_max=DEFAULT_LIMITS.id_length_max)
    identity = {
        "name": name,
        "parameters": parameters,
        "description": description,
        "effect": effect,
        "timeout_s": float(timeout_s),
        "approval": function_digest(approval) if callable(approval) else approval,
        "version": version,
        "source": function_digest(function) if version is None else None,
    }
    if approval_expires_s is not None:
        identity["approval_expires_s"] = float(approval_expires_s)
    if attempts_max != 1:
        identity["attempts_max"] = attempts_max
    return cls(
        name=name,
        description=description,
        parameters=parameters,
        effect=effect,
        timeout_s=float(timeout_s),
        approval=approval,
        reconcile=reconcile,
        digest=digest_of(encode(identity)),
        function=function,
        takes_ctx=takes_ctx,
        parser=parser,
        approval_expires_s=None if approval_expires_s is None else float(approval_expires_s),
        attempts_max=attempts_max,
    )


def _check_attempts(attempts_max: object, effect: Effect, name: str) -> None:
    if not isinstance(attempts_max, int) or isinstance(attempts_max, bool):
        raise InvalidInput(f"attempts_max of tool {name} must be an integer", field="attempts_max")
    if not 1 <= attempts_max <= TOOL_ATTEMPTS_LIMIT:
        message = f"attempts_max of tool {name} must be between 1 and {TOOL_ATTEMPTS_LIMIT}"
        raise InvalidInput(message, field="attempts_max", limit=TOOL_ATTEMPTS_LIMIT)
    if attempts_max > 1 and effect == "uncertain":
        message = f"tool {name} is uncertain, and is never tried again by itself: declare it idempotent or readonly"
        raise InvalidInput(message, field="attempts_max", limit=1)


def _check_seconds(value: object, field: str, name: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise InvalidInput(f"{field} of tool {name} must be a number of seconds above 0", field=field, limit=0)


def _find(module: str, path: str) -> object:
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _import_tool(module: str, path: str) -> Tool:
    importlib.import_module(module)
    found = _find(module, path)
    if not isinstance(found, Tool):
        raise InvalidInput(f"{module}.{path} is no tool in this process: another version of the module?", field="tools")
    return found
