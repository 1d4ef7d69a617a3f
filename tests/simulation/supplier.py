"""The world outside: it does what tools ask, keeps count, and is the only one who knows what really happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from laneway.storage.projection import CallView


@dataclass(frozen=True)
class Execution:
    """One time that the outside world was changed, or asked, for a call."""

    call_id: str
    tool: str
    value: Any


class Supplier:
    """Counts executions by call. `recorded` gives the call as the log has it, `broken` is told of a broken promise."""

    def __init__(self, recorded: Callable[[str, str], CallView | None], broken: Callable[[str], None]) -> None:
        self._recorded = recorded
        self._broken = broken
        self._by_call: defaultdict[str, list[Execution]] = defaultdict(list)
        self._by_key: dict[str, Execution] = {}

    def perform(self, conversation_id: str, call_id: str, tool: str, *, key: str | None = None) -> Any:
        """Do it, once a `key` where one is given, and answer with a value that only this execution has."""
        call = self._recorded(conversation_id, call_id)
        if call is None or call.prepared is None:
            self._broken(f"{tool} ran for {call_id}, which was never prepared")
            return None
        done = self._by_key.get(key) if key is not None else None
        if done is None:
            count = len(self._by_call[call_id]) + 1
            done = Execution(call_id, tool, {"tool": tool, "call": call_id, "execution": count})
            self._by_call[call_id].append(done)
            if key is not None:
                self._by_key[key] = done
            if call.prepared.effect == "uncertain" and count > call.preparations:
                self._broken(
                    f"{tool} ran {count} times for {call_id}, which was prepared {call.preparations} times (DUR-009)"
                )
        return done.value

    def last(self, call_id: str) -> Execution | None:
        """What was really done for the call, None when nothing was."""
        executions = self._by_call.get(call_id)
        return executions[-1] if executions else None

    def produced(self, call_id: str, value: Any) -> bool:
        """Whether `value` came out of an execution of this very call."""
        return any(execution.value == value for execution in self._by_call.get(call_id, ()))

    def count(self, call_id: str) -> int:
        return len(self._by_call.get(call_id, ()))
