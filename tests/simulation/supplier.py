"""The world outside: it does what tools ask, keeps count, and is the only one who knows what really happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.audit import Auditor


@dataclass(frozen=True)
class Execution:
    """One time that the outside world was changed, or asked, for a call."""

    call_id: str
    tool: str
    value: Any


class Supplier:
    """Counts executions by call, and those of steps. `auditor` knows the log, `broken` is told of a broken promise."""

    def __init__(self, auditor: Auditor, broken: Callable[[str], None]) -> None:
        self._auditor = auditor
        self._broken = broken
        self._steps: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
        self._by_call: defaultdict[str, list[Execution]] = defaultdict(list)
        self._by_key: dict[str, Execution] = {}

    def perform(self, conversation_id: str, call_id: str, tool: str, *, key: str | None = None) -> Any:
        """Do it, once a `key` where one is given, and answer with a value that only this execution has."""
        call = self._auditor.recorded_call(conversation_id, call_id)
        if call is None or call.prepared is None:
            self._broken(f"{tool} ran for {call_id}, which was never prepared")
            return None
        objection = self._auditor.objection(conversation_id, call)
        if objection is not None:
            self._broken(f"{tool} ran for {call_id}: {objection}")
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

    def enter_step(self, ctx: Any, name: str) -> Any:
        """The body of a step runs: a value that only this execution has. What is recorded must not run again."""
        entries = self._steps[ctx.call_id, name]
        recorded = self._auditor.calls.recorded_step(ctx.call_id, name) is not None
        if recorded and self._auditor.attempts(ctx.conversation_id, ctx.submission_id) == ctx.attempt:
            self._broken(f"step {name} of {ctx.call_id} is recorded and was entered again (DUR-010)")
        entries.append({"step": name, "call": ctx.call_id, "execution": len(entries) + 1})
        return entries[-1]

    def step_gave(self, ctx: Any, name: str, value: Any) -> None:
        """A tool was given this as the step's result: the one that is recorded."""
        recorded = self._auditor.calls.recorded_step(ctx.call_id, name)
        if recorded is None or recorded.result != value:
            self._broken(f"step {name} of {ctx.call_id} gave {value}, and the log has {recorded} (DUR-010)")

    def made(self, call_id: str, name: str, value: Any) -> bool:
        """Whether an execution of this very step gave `value`."""
        return value in self._steps.get((call_id, name), ())

    def last(self, call_id: str) -> Execution | None:
        """What was really done for the call, None when nothing was."""
        executions = self._by_call.get(call_id)
        return executions[-1] if executions else None

    def produced(self, call_id: str, value: Any) -> bool:
        """Whether `value` came out of an execution of this very call."""
        return any(execution.value == value for execution in self._by_call.get(call_id, ()))

    def count(self, call_id: str) -> int:
        return len(self._by_call.get(call_id, ()))
