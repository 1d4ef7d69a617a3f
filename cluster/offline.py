"""A store whose runtime is down, read directly: the same client as for a runtime, over the store itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import msgspec

from ..storage.contract import Store
from ..storage.errors import InvalidInput, Refused
from ..storage.open_store import open_store
from ..storage.values import DEFAULT_LIMITS
from .backend import Description, quarantined_count
from .runtime import Runtime


class OfflineBackend:
    """Answers reads from the store; whatever needs a running lane is refused with code "read_only"."""

    def __init__(self, store: Store) -> None:
        self.limits = DEFAULT_LIMITS
        self._store = store

    async def start(self) -> None:
        return

    async def stop(self, *, shut_down: bool) -> None:
        self._store.close()

    async def host_of(self, conversation_id: str) -> NoReturn:
        raise Refused(
            "the store is open for reading alone; this needs a running runtime", code="read_only", field="store"
        )

    async def lost(self, conversation_id: str, host: object) -> None:
        return

    async def read(self, method: str, *args: Any) -> Any:
        return getattr(self._store, method)(*args)

    async def agent_names(self) -> tuple[str, ...]:
        return ()

    async def describe(self) -> Description:
        info = msgspec.to_builtins(self._store.info())
        counts = {"quarantined": await quarantined_count(self.read)}
        return Description(kind="offline", namespace="", agents=(), store=info, actors=(), counts=counts)

    async def drain(self, process: str, author: str, reason: str) -> bool:
        raise Refused("no runtime is up over this store", code="drain_not_supported")

    def actor_handle(self, conversation_id: str, host: object) -> None:
        return None


def open_offline(path: str | Path) -> Runtime:
    """A runtime's surface over the store at `path`, for reading; nothing in the file changes.

    Raises: StoreBusy when a runtime holds the file; InvalidInput when it is none.
    """
    if not str(path) or "\0" in str(path):
        raise InvalidInput("a store's path must not be empty nor hold a null character", field="store")
    store = open_store(path, read_only=True)
    try:
        return Runtime(OfflineBackend(store), owns=True)
    except BaseException:
        store.close()
        raise
