"""An agent: the immutable definition that a conversation runs with."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..storage.errors import InvalidInput
from ..storage.values import DEFAULT_LIMITS, check_json, check_text, digest_of, encode
from .compaction import Compaction
from .protocol import Model
from .pydantic_ai_model import PydanticAIModel
from .tools import Tool, tool

OnUnknown = Literal["hold", "park"]

TURNS_MAX_LIMIT = 100_000
MODEL_ATTEMPTS_LIMIT = 100
TOOLS_LIMIT = 1_000
COMPACTION_MESSAGES_LIMIT = 100_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Agent:
    """What answers a conversation: a model, its tools and instructions, and the bounds of a run.

    `model` is a Model, or a name that pydantic-ai knows such as "openai:gpt-4o". `tools` takes plain functions, too:
    they count as tools with the effect "uncertain". `on_unknown` says what a lane does while nobody knows the outcome
    of an effect: "hold" what comes later, or "park" the submission and go on. `turns_max` bounds the model turns of one
    run, `model_timeout_s` and `model_attempts_max` one model call, `run_timeout_s` the time that a run is at work;
    waits for people do not count (None: no bound). Without `compaction` each prompt holds the
    whole conversation, and so it grows with it.

    With `join`, submissions that wait behind a run enter it after its next complete turn, in their order, and settle
    with it: several messages in a row get one answer. Without it each gets a run of its own.

    Raises: InvalidInput with `field`, and `limit` where one applies.
    """

    name: str
    model: Model | str
    tools: Sequence[Tool | Callable[..., Any]] = ()
    instructions: str = ""
    on_unknown: OnUnknown = "hold"
    turns_max: int = 50
    model_timeout_s: float = 120.0
    run_timeout_s: float | None = None
    model_attempts_max: int = 3
    join: bool = False
    compaction: Compaction | None = None

    def __post_init__(self) -> None:
        check_text(self.name, "name", length_max=DEFAULT_LIMITS.id_length_max)
        if self.instructions != "":
            check_text(self.instructions, "instructions", length_max=DEFAULT_LIMITS.input_bytes_max)
        if self.on_unknown not in get_args(OnUnknown):
            raise InvalidInput(f"on_unknown must be one of {', '.join(get_args(OnUnknown))}", field="on_unknown")
        _check_count(self.turns_max, "turns_max", TURNS_MAX_LIMIT)
        _check_count(self.model_attempts_max, "model_attempts_max", MODEL_ATTEMPTS_LIMIT)
        _check_seconds(self.model_timeout_s, "model_timeout_s")
        if self.run_timeout_s is not None:
            _check_seconds(self.run_timeout_s, "run_timeout_s")
        if not isinstance(self.join, bool):
            raise InvalidInput("join must be True or False", field="join")
        if self.compaction is not None:
            _check_compaction(self.compaction)
        object.__setattr__(self, "tools", _checked_tools(self.tools))
        object.__setattr__(self, "model", _checked_model(self.model))

    @functools.cached_property
    def digest(self) -> str:
        """Changes when anything in the definition does, the tools and the model's identity included."""
        return digest_of(
            encode(
                {
                    "name": self.name,
                    "model": self.model.identity(),  # pyright: ignore[reportAttributeAccessIssue]: no text any more
                    "tools": [item.digest for item in self._tools.values()],
                    "instructions": self.instructions,
                    "on_unknown": self.on_unknown,
                    "turns_max": self.turns_max,
                    "model_timeout_s": float(self.model_timeout_s),
                    "run_timeout_s": None if self.run_timeout_s is None else float(self.run_timeout_s),
                    "model_attempts_max": self.model_attempts_max,
                    **({"join": True} if self.join else {}),  # an agent that never heard of it keeps its digest
                    **({} if self.compaction is None else {"compaction": self.compaction.definition()}),
                }
            )
        )

    def tool(self, name: str) -> Tool | None:
        """The tool of that name."""
        return self._tools.get(name)

    @functools.cached_property
    def _tools(self) -> dict[str, Tool]:
        return {item.name: item for item in self.tools if isinstance(item, Tool)}

    def __getstate__(self) -> dict[str, Any]:
        # A tool of a module is looked up again by whoever unpickles, so digests are computed there again.
        return {key: value for key, value in self.__dict__.items() if key not in ("digest", "_tools")}


def _checked_tools(tools: object) -> tuple[Tool, ...]:
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidInput(f"tools must be a list of tools, not {type(tools).__name__}", field="tools")
    if len(tools) > TOOLS_LIMIT:
        raise InvalidInput(
            f"tools has {len(tools)} tools; the limit is {TOOLS_LIMIT}", field="tools", limit=TOOLS_LIMIT
        )
    checked: dict[str, Tool] = {}
    for index, item in enumerate(tools):
        if not callable(item):
            raise InvalidInput(
                f"tools[{index}] must be a tool or a function, not {type(item).__name__}", field=f"tools[{index}]"
            )
        defined = item if isinstance(item, Tool) else tool(item)
        if defined.name in checked:
            raise InvalidInput(f"tools has two tools with the name {defined.name}", field=f"tools[{index}]")
        checked[defined.name] = defined
    return tuple(checked.values())


def _checked_model(model: object) -> Model:
    if isinstance(model, str):
        return PydanticAIModel(check_text(model, "model", length_max=DEFAULT_LIMITS.id_length_max))
    if isinstance(model, type) or not isinstance(model, Model):
        raise InvalidInput(
            f"model must be a model's name or have the methods identity and respond, not {type(model).__name__}"
            + ("; wrap it: FunctionModel(function)" if callable(model) and not isinstance(model, type) else ""),
            field="model",
        )
    check_json(
        model.identity(), "model", bytes_max=DEFAULT_LIMITS.record_bytes_max, depth_max=DEFAULT_LIMITS.json_depth_max
    )
    return model


def _check_compaction(compaction: object) -> None:
    if not isinstance(compaction, Compaction):
        raise InvalidInput(f"compaction must be a Compaction, not {type(compaction).__name__}", field="compaction")
    _check_count(compaction.after_messages, "compaction.after_messages", COMPACTION_MESSAGES_LIMIT)
    _check_count(compaction.keep_messages, "compaction.keep_messages", COMPACTION_MESSAGES_LIMIT)
    if compaction.keep_messages >= compaction.after_messages:
        raise InvalidInput(
            "compaction.keep_messages must be less than after_messages",
            field="compaction.keep_messages",
            limit=compaction.after_messages - 1,
        )
    if not callable(compaction.compactor):
        raise InvalidInput("compaction.compactor must be a function", field="compaction.compactor")
    _check_seconds(compaction.timeout_s, "compaction.timeout_s")


def _check_count(value: object, field: str, limit: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= limit:
        raise InvalidInput(f"{field} must be a whole number from 1 to {limit:,}", field=field, limit=limit)


def _check_seconds(value: object, field: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise InvalidInput(f"{field} must be a number of seconds above 0", field=field, limit=0)
