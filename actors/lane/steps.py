"""The durable steps of one execution of a call: at-least-once execution, one recorded result (Specification 11)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ...agents.context import Recorded, check_step, step_result
from ...storage.errors import InvalidInput, LanewayError, ToolError
from ...storage.failpoints import Failpoints, Point
from ...storage.projection import CallView
from ...storage.values import Limits, decode, digest_of, encode
from . import facts
from .outbox import Outbox

_log = logging.getLogger("laneway.lane")
_T = TypeVar("_T")


class CallSteps:
    """Records steps under the fence of the attempt that runs the call, and nothing once that execution is over.

    Its methods may be called on any event loop, the blocking ones from any thread but that of the lane's loop.
    """

    def __init__(
        self,
        call: CallView,
        outbox: Outbox,
        limits: Limits,
        failpoints: Failpoints,
        counts: Counter[str],
        refused: Callable[[], None],
    ) -> None:
        self._call = call
        self._outbox = outbox
        self._limits = limits
        self._failpoints = failpoints
        self._counts = counts
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._begun = set[str]()
        self._dropped = set[str]()
        self._over = False

    def close(self) -> None:
        """The execution is over: what still runs of it changes nothing any more."""
        self._over = True

    async def recorded(self, name: str, version: int) -> Recorded | None:
        return await self._on_the_loop(self._recorded(name, version))

    async def settle(self, name: str, version: int, value: Any) -> Any:
        return await self._on_the_loop(self._settle(name, version, value))

    def recorded_blocking(self, name: str, version: int) -> Recorded | None:
        return self._from_a_thread(name, self._recorded(name, version))

    def settle_blocking(self, name: str, version: int, value: Any) -> Any:
        return self._from_a_thread(name, self._settle(name, version, value))

    # --- on the lane's event loop ------------------------------------------------------------------------------------

    async def _recorded(self, name: str, version: int) -> Recorded | None:
        check_step(name, version, self._limits)
        self._require_open(name)
        step_id = facts.step_id_of(self._call.call.id, name, version)
        settled = self._call.steps.get(step_id)
        if settled is None:
            self._begin(name, step_id)
            return None
        await self._commit()  # another execution's result may still be on its way to the store
        return Recorded(decode(encode(settled.result)))

    def _begin(self, name: str, step_id: str) -> None:
        most = self._limits.steps_per_call_max
        if len(self._begun | self._call.steps.keys() | {step_id}) > most:
            message = f"step {name!r} is one too many: a call has at most {most:,}"
            raise InvalidInput(message, field="steps_per_call_max", limit=most)
        self._begun.add(step_id)

    async def _settle(self, name: str, version: int, value: Any) -> Any:
        """DUR-010: committed before it is returned; of several executions the first one counts."""
        self._failpoints.hit(Point.AFTER_STEP)
        self._require_open(name)
        data = step_result(name, value, self._limits)
        settled = self._call.steps.get(facts.step_id_of(self._call.call.id, name, version))
        if settled is None:
            settled = facts.step_settled(self._call, name, version, decode(data))
            self._outbox.record(settled)
        elif encode(settled.result) != data and (digest := digest_of(data)) not in self._dropped:
            self._dropped.add(digest)
            self._counts["step_results_dropped"] += 1
            self._outbox.record(facts.step_result_dropped(settled, digest))
            _log.info("%s: step %s has a recorded result; another one is dropped", self._call.call.id, name)
        await self._commit()
        return decode(encode(settled.result))

    async def _commit(self) -> None:
        try:
            await self._outbox.flush_whole()
        except LanewayError:
            self._refused()  # DUR-006: the attempt is over, whatever the tool makes of this error
            raise

    def _require_open(self, name: str) -> None:
        if self._over:
            message = f"step {name!r} is not recorded: its call is over, and nobody waits for it any more"
            raise ToolError(message, code="call_over")

    # --- from elsewhere ----------------------------------------------------------------------------------------------

    async def _on_the_loop(self, work: Coroutine[Any, Any, _T]) -> _T:
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _from_a_thread(self, name: str, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            work.close()
            message = f"step {name!r} would block the event loop: an async tool uses `await ctx.step(...)`"
            raise ToolError(message, code="step_would_block")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
