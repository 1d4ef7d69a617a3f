"""What a tool is handed for the call that it serves: whose call it is, its durable steps, and a signal to stop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..storage.errors import InvalidInput, ToolError
from ..storage.values import DEFAULT_LIMITS, Limits, check_json, check_text, decode
from .threads import is_async, run_function
from .values import jsonable


class AbortSignal:
    """Becomes set once nobody wants the call's result any more: an abort of its submission is durable, the time of the
    call or of its run is up, or its process ends. It stays set.

    A tool that looks at it is given `abort_grace_s` to end by itself; one that never does is cancelled at once.
    """

    def __init__(self, *, is_set: bool = False) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.watched = False
        if is_set:
            self._event.set()

    def is_set(self) -> bool:
        """Whether it is set; from any thread."""
        self.watched = True
        return self._event.is_set()

    def __bool__(self) -> bool:
        return self.is_set()

    async def wait(self) -> None:
        """Wait until it is set, in an async tool."""
        self.watched = True
        loop = asyncio.get_running_loop()
        entry = (loop, loop.create_future())
        with self._lock:
            if self._event.is_set():
                return
            self._waiting.append(entry)
        try:
            await entry[1]
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._waiting.remove(entry)

    def wait_blocking(self, timeout_s: float | None = None) -> bool:
        """Wait in a tool that runs in a thread, `timeout_s` at most; whether it is set."""
        self.watched = True
        return self._event.wait(timeout_s)

    def set(self) -> None:
        """Tell whoever looks; from any thread, any number of times."""
        with self._lock:
            self._event.set()
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(_wake, future)

    def __reduce__(self) -> tuple[Any, ...]:
        return _signal, (self._event.is_set(),)


def _signal(is_set: bool) -> AbortSignal:
    return AbortSignal(is_set=is_set)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded result of a step: JSON, a copy of its own."""

    value: Any


class StepRecorder(Protocol):
    """What records the steps of one execution of a call. The blocking forms are for tools that run in a thread."""

    async def recorded(self, name: str, version: int) -> Recorded | None:
        """The step's recorded result, None when it has to run."""
        ...

    async def settle(self, name: str, version: int, value: Any) -> Any:
        """Record the result durably, unless another one stands; the one that stands."""
        ...

    def recorded_blocking(self, name: str, version: int) -> Recorded | None: ...

    def settle_blocking(self, name: str, version: int, value: Any) -> Any: ...


class PlainSteps:
    """Steps of a context that no lane made, as in a tool's own unit test: each one runs, checked, and none is kept."""

    async def recorded(self, name: str, version: int) -> Recorded | None:
        return self.recorded_blocking(name, version)

    async def settle(self, name: str, version: int, value: Any) -> Any:
        return self.settle_blocking(name, version, value)

    def recorded_blocking(self, name: str, version: int) -> Recorded | None:
        check_step(name, version, DEFAULT_LIMITS)
        return None

    def settle_blocking(self, name: str, version: int, value: Any) -> Any:
        return decode(step_result(name, value, DEFAULT_LIMITS))


class DetachedSteps:
    """Steps of a context that was copied out of its tool's process: nothing there can record them, so none runs."""

    async def recorded(self, name: str, version: int) -> Recorded | None:
        raise _detached(name)

    async def settle(self, name: str, version: int, value: Any) -> Any:
        raise _detached(name)

    def recorded_blocking(self, name: str, version: int) -> Recorded | None:
        raise _detached(name)

    def settle_blocking(self, name: str, version: int, value: Any) -> Any:
        raise _detached(name)


def _detached(name: str) -> ToolError:
    message = f"step {name!r} was not run: this context was copied out of its call, and cannot record a result"
    return ToolError(message, code="step_detached")


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """What a tool may know about the call that it serves; handed over when its first parameter is named `ctx`.

    `queue_sequence` is the submission's position in its conversation and `turn` the model turn in the run, both from 1;
    `position` is the call's index in the response, from 0. `idempotency_key` stays the same when the call runs again:
    hand it to the provider of the effect. `aborted` tells that the result is no longer wanted.

    It can be pickled; the copy knows the call and can record no step. One that is made by hand, for a tool's unit test,
    runs each step and keeps none.
    """

    conversation_id: str
    submission_id: str
    run_id: str
    call_id: str
    idempotency_key: str
    queue_sequence: int
    turn: int
    position: int
    attempt: int
    principal: str = ""
    aborted: AbortSignal = field(default_factory=AbortSignal, repr=False, compare=False)
    recorder: StepRecorder = field(default_factory=PlainSteps, repr=False, compare=False)

    async def step(self, name: str, function: Callable[[], Any], *, version: int = 1) -> Any:
        """A durable step: run `function` and record its result under `name`, or give back the one that is recorded.

        The result is committed before it is returned, as JSON, and a recorded step never runs again when the call does.
        Only success is recorded: what `function` raises comes out here, and the step runs again with its call. It is
        at-least-once execution with one recorded result, so hand `idempotency_key` to whatever it changes. When one
        step runs several times at once, the first result that is committed is what all of them get. A function that
        is not async runs in a thread. Another `version` is another step.

        Specification 11, DUR-010. Raises: InvalidInput for the name, the version, the number of steps
        (`steps_per_call_max`), or with code "step_result_invalid"; ToolError with code "call_over" when the call has
        ended meanwhile, or "step_detached"; Fenced when a newer attempt owns the lane.
        """
        found = await self.recorder.recorded(name, version)
        if found is not None:
            return found.value
        return await self.recorder.settle(name, version, await run_function(function))

    def step_sync(self, name: str, function: Callable[[], Any], *, version: int = 1) -> Any:
        """`step` for a tool that is not async: `function` runs in the tool's own thread.

        Raises: as `step`; ToolError with code "step_would_block" on the event loop, where `await ctx.step` belongs.
        """
        if is_async(function):
            raise InvalidInput(f"step {name!r} is async: it needs an async tool and ctx.step", field="function")
        found = self.recorder.recorded_blocking(name, version)
        if found is not None:
            return found.value
        value = function()
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise InvalidInput(f"step {name!r} is async: it needs an async tool and ctx.step", field="function")
        return self.recorder.settle_blocking(name, version, value)

    def __getstate__(self) -> dict[str, Any]:
        plain = isinstance(self.recorder, PlainSteps)
        return {**self.__dict__, "recorder": self.recorder if plain else DetachedSteps()}


def check_step(name: object, version: object, limits: Limits) -> None:
    """Raises: InvalidInput for a name that is no text within its limit, or a version that is no integer from 1."""
    check_text(name, "the name of a step", length_max=limits.id_length_max)
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version < 2**63:
        raise InvalidInput(f"the version of step {name!r} must be an integer from 1", field="version", limit=1)


def step_result(name: str, value: Any, limits: Limits) -> bytes:
    """The result of a step as JSON. Raises: InvalidInput with code "step_result_invalid", which names the step."""
    what = f"the result of step {name!r}"
    try:
        plain = jsonable(value, what, "step_result_invalid")
        return check_json(plain, what, bytes_max=limits.tool_result_bytes_max, depth_max=limits.json_depth_max)
    except (InvalidInput, ToolError) as error:
        limit = error.details.get("limit")
        raise InvalidInput(error.message, code="step_result_invalid", field=name, limit=limit) from None
