"""Compaction: what a prompt holds of a conversation that has grown long. The log keeps everything."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..storage.errors import InvalidInput
from .fingerprint import function_digest
from .threads import run_in_thread

LEFT_OUT = "[Earlier messages of this conversation are left out.]"
_ROLES = ("user", "assistant")


def leave_out(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave the messages out and say so; what users said since the last complete answer stays, word for word.

    It needs no model. What it leaves out the model does not know any more.
    """
    pending: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "assistant" and not message.get("tool_calls"):
            pending.clear()
        elif message["role"] == "user" and message["content"] != LEFT_OUT:
            pending.append(message)
    return [{"role": "user", "content": LEFT_OUT}, *pending]


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """When a prompt is compacted, and by whom (Specification 8, "compaction artifact").

    Before a model call whose prompt has more than `after_messages` messages behind the last compaction, `compactor`
    gets the older ones, the last artifact first, and about `keep_messages` stay as they are. It returns text, or a list
    of user and assistant messages that begins with a user's; that artifact is committed before a model reads it. A
    compactor is sync (run in a thread) or async; it may run again after a crash, so it should have no effects of its
    own. When it raises, answers with anything else or takes longer than `timeout_s` seconds, the run goes on without.
    """

    after_messages: int = 200
    keep_messages: int = 50
    compactor: Callable[[list[dict[str, Any]]], Any] = leave_out
    timeout_s: float = 60.0

    def definition(self) -> dict[str, Any]:
        """What counts in the digest of an agent."""
        return {
            "after_messages": self.after_messages,
            "keep_messages": self.keep_messages,
            "compactor": function_digest(self.compactor),
            "timeout_s": float(self.timeout_s),
        }

    async def artifact(self, messages: list[dict[str, Any]]) -> Any:
        """What the compactor makes of `messages`. Raises: InvalidInput with `field`, and whatever it raises."""
        if inspect.iscoroutinefunction(inspect.unwrap(self.compactor)):
            value = self.compactor(messages)
        else:
            value = await run_in_thread(self.compactor, messages)
        return _checked(await value if inspect.isawaitable(value) else value)


def _checked(value: object) -> Any:
    if isinstance(value, str) and value:
        return value
    if not isinstance(value, list | tuple) or not value:
        raise InvalidInput("a compactor returns text or a list of messages", field="artifact")
    for index, message in enumerate(value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if not isinstance(message, dict) or message.get("role") not in _ROLES or "tool_calls" in message:  # pyright: ignore[reportUnknownMemberType]
            raise InvalidInput(
                "an artifact's messages are what a user or the assistant said", field=f"artifact[{index}]"
            )
        if not isinstance(message.get("content"), str | list):  # pyright: ignore[reportUnknownMemberType]
            raise InvalidInput("an artifact's message needs its content", field=f"artifact[{index}].content")
    if value[0]["role"] != "user":
        raise InvalidInput("an artifact's first message is a user's", field="artifact[0]")
    return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
