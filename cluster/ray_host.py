"""One ConversationActor as the client calls it: over its channel, or over Ray's calls where none can be had."""

from __future__ import annotations

import asyncio
from typing import Any

from ..actors.channel import ChannelAddress, ChannelLost, Dialler
from ..actors.decisions import Decision
from ..actors.host import Poll
from ..actors.lane.feed import Cursor
from ..actors.lane.values import Admission, Settlement
from ..actors.operations import Operation
from ..actors.ray_calls import RAY_FAILURES, answered
from ..storage.commands import AbortAnswer, Decided, Moved
from ..storage.contract import Quarantine
from ..storage.ledger import Receipt
from .backend import HostGone

ANSWER_S = 15.0  # longer than the store's restart; a process that is silent for longer has lost its lease


class RayHost:
    """A process that hosts lanes. Any call may raise HostGone, which says nothing of what became of it."""

    def __init__(self, name: str, handle: Any) -> None:
        self.name = name
        self.handle = handle
        self._dialler = Dialler(self._find)

    async def submit(self, conversation_id: str, admission: Admission) -> Receipt:
        return await self._ask(ANSWER_S, "submit", conversation_id, admission)

    async def steer(self, conversation_id: str, admission: Admission) -> Receipt:
        return await self._ask(ANSWER_S, "steer", conversation_id, admission)

    async def settlement(self, conversation_id: str, submission_id: str, timeout_s: float) -> Settlement | None:
        return await self._ask(timeout_s + ANSWER_S, "settlement", conversation_id, submission_id, timeout_s)

    async def poll(self, conversation_id: str, cursor: Cursor, timeout_s: float) -> Poll:
        return await self._ask(timeout_s + ANSWER_S, "poll", conversation_id, cursor, timeout_s)

    async def abort(
        self, conversation_id: str, submission_id: str, abort_id: str, author: str, reason: str
    ) -> AbortAnswer:
        return await self._ask(ANSWER_S, "abort", conversation_id, submission_id, abort_id, author, reason)

    async def operate(self, conversation_id: str, operation: Operation) -> Receipt | Quarantine | None:
        return await self._ask(ANSWER_S, "operate", conversation_id, operation)

    async def decide(self, conversation_id: str, decision: Decision) -> Decided | Moved:
        return await self._ask(ANSWER_S, "decide", conversation_id, decision)

    def close(self) -> None:
        self._dialler.close()

    async def _ask(self, within_s: float, method: str, *args: Any) -> Any:
        """Call the actor. One that is silent for `within_s` counts as gone: the call is repeated under the same ids."""
        try:
            async with asyncio.timeout(within_s):
                channel = await self._dialler.channel()
                if channel is None:
                    return answered(await self.handle.call.remote(method, *args))
                return await channel.call(method, *args)
        except (TimeoutError, ChannelLost, *RAY_FAILURES) as error:
            raise HostGone(f"{self.name} does not answer: {type(error).__name__}") from error

    async def _find(self) -> ChannelAddress:
        return await self.handle.channel.remote()
