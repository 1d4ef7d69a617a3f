"""StoreActor: the one process that holds a store's file."""

from __future__ import annotations

import os
import threading
from typing import Any

import ray

from ..storage.commands import decode_units, encode_answers
from ..storage.contract import Store
from ..storage.open_store import open_shard, prepare_shards
from ..storage.sharding import UNSHARDED, Shard
from ..storage.values import Limits
from .channel import ChannelAddress
from .deliveries import Deliveries
from .quiet import quiet_process
from .ray_calls import actor_class, answering_blocking, node_address
from .store_service import StoreService


class StoreActor:
    """One writer thread and a few readers over one shard of a store; Ray starts it again on the same node when it dies.

    The file is opened by the first call, so that a refusal reaches the caller as an error of Laneway.
    """

    def __init__(self, path: str, limits: Limits, shard: Shard = UNSHARDED) -> None:
        quiet_process()
        self._path = path
        self._shard = shard
        self._limits = limits
        self._opening = threading.Lock()
        self._serving = threading.Lock()
        self._opened: Store | None = None
        self._deliveries = Deliveries()
        self._served: tuple[StoreService, ChannelAddress] | None = None

    @property
    def _store(self) -> Store:
        with self._opening:
            if self._opened is None:
                self._opened = open_shard(self._path, self._shard, limits=self._limits)
            return self._opened

    @ray.method(concurrency_group="write")
    @answering_blocking
    def prepare(self) -> None:
        """See that the files of all shards fit each other, and make new ones: once, before any of them is opened."""
        prepare_shards(self._path, self._shard.of)

    @ray.method(concurrency_group="write")
    @answering_blocking
    def commit(self, sender: str, number: int, units: bytes) -> bytes:
        """Units in, answers out, both as one bytes value; `number` counts the calls of one `sender`."""
        self._deliveries.take(sender, number)
        return encode_answers(self._store.commit(decode_units(units)))

    @ray.method(concurrency_group="read")
    @answering_blocking
    def call(self, method: str, *args: Any) -> Any:
        """Any other method of the contract."""
        return getattr(self._store, method)(*args)

    @ray.method(concurrency_group="read")
    @answering_blocking
    def channel(self) -> ChannelAddress:
        """Where this process serves its channel; the secret goes to whom Ray lets in."""
        with self._serving:
            if self._served is None:
                service = StoreService(lambda: self._store, self._deliveries, node_address())
                self._served = service, service.start()
            return self._served[1]

    @ray.method(concurrency_group="read")
    def pid(self) -> int:
        return os.getpid()

    @ray.method(concurrency_group="write")
    def close(self) -> None:
        """Write everything out and let go of the file."""
        with self._serving:
            if self._served is not None:
                self._served[0].close()
                self._served = None
        with self._opening:
            if self._opened is not None:
                self._opened.close()
                self._opened = None


RemoteStoreActor: Any = actor_class(StoreActor, max_restarts=-1, concurrency_groups={"write": 1, "read": 4})
"""`StoreActor` as Ray creates it."""
