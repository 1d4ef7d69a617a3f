"""What a runtime stands on: the same few calls, on Ray or in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from ..actors.decisions import Decision
from ..actors.host import Poll
from ..actors.lane.feed import Cursor
from ..actors.lane.values import Admission, Settlement
from ..actors.operations import Operation
from ..storage.commands import AbortAnswer, Decided, Moved
from ..storage.contract import Quarantine
from ..storage.errors import LanewayError
from ..storage.ledger import Receipt
from ..storage.values import Limits


class HostGone(LanewayError):
    """The process that held the conversation does not answer: find its new owner and repeat with the same ids."""

    default_code = "host_gone"
    default_retryable = True


class Host(Protocol):
    """The owner of some conversations, wherever it lives. Any call may raise HostGone, which says nothing of it."""

    async def submit(self, conversation_id: str, admission: Admission) -> Receipt: ...

    async def steer(self, conversation_id: str, admission: Admission) -> Receipt: ...

    async def settlement(self, conversation_id: str, submission_id: str, timeout_s: float) -> Settlement | None: ...

    async def poll(self, conversation_id: str, cursor: Cursor, timeout_s: float) -> Poll: ...

    async def abort(
        self, conversation_id: str, submission_id: str, abort_id: str, author: str, reason: str
    ) -> AbortAnswer: ...

    async def operate(self, conversation_id: str, operation: Operation) -> Receipt | Quarantine | None: ...

    async def decide(self, conversation_id: str, decision: Decision) -> Decided | Moved: ...


class ActorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One process that hosts lanes."""

    name: str
    node: str
    pid: int
    conversations: int
    stats: dict[str, Any] = {}


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What a runtime is made of."""

    kind: str
    namespace: str
    agents: tuple[str, ...]
    store: dict[str, Any]
    actors: tuple[ActorInfo, ...]
    store_pid: int | None = None
    """The process that holds the store, or its first shard."""
    store_pids: tuple[int | None, ...] = ()
    """On Ray, those of all shards in order; None for one that is being started again."""
    supervisor_pid: int | None = None
    counts: dict[str, int] = {}
    has_check: bool = False
    """Whether operators' acts must pass a check of the runtime's owner (DUR-017)."""


async def quarantined_count(read: Callable[..., Awaitable[Any]]) -> int:
    """How many conversations are quarantined; `read` is a backend's."""
    count, after = 0, ""
    while page := await read("quarantined", after, 1000):
        count, after = count + len(page), page[-1].conversation_id
    return count


class Backend(Protocol):
    """A running runtime as its client reaches it; all calls are made on the client's event loop."""

    limits: Limits

    async def start(self) -> None: ...

    async def stop(self, *, shut_down: bool) -> None:
        """Let go of the runtime; with `shut_down`, end it."""
        ...

    async def host_of(self, conversation_id: str) -> Host: ...

    async def lost(self, conversation_id: str, host: Host) -> None:
        """The host did not answer; forget where the conversation was."""
        ...

    async def read(self, method: str, *args: Any) -> Any:
        """A read of the store's contract."""
        ...

    async def agent_names(self) -> tuple[str, ...]:
        """The agents that this runtime knows; they do not change while it is up."""
        ...

    async def describe(self) -> Description: ...

    async def drain(self, process: str, author: str, reason: str) -> bool:
        """Replace a process as planned; False when none of that name is up.

        Raises: Refused where there is only one, or with code "not_authorised".
        """
        ...

    def actor_handle(self, conversation_id: str, host: Host) -> Any:
        """The plain Ray handle of the conversation's actor; None without Ray."""
        ...
