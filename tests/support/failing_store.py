"""A StoreActor whose process ends itself with SIGKILL inside of a commit, once for each time that a test arms it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from ray import cloudpickle

from laneway.actors.ray_calls import actor_class
from laneway.actors.store_actor import StoreActor
from laneway.storage.contract import Store
from laneway.storage.failpoints import Failpoints, Point
from laneway.storage.open_store import open_store
from laneway.storage.values import DEFAULT_LIMITS


class Armed(Failpoints):
    """Ends the process at the point that stands in the file `order`; the order is taken away with it."""

    def __init__(self, order: Path) -> None:
        super().__init__()
        self._order = order

    def hit(self, point: Point) -> None:
        if self._order.exists() and self._order.read_text() == point:
            self._order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


class FailingStoreActor(StoreActor):
    """The product's StoreActor; its store alone is opened with failpoints."""

    def __init__(self, path: str, order: str) -> None:
        super().__init__(path, DEFAULT_LIMITS)
        self._order = Path(order)

    @property
    def _store(self) -> Store:
        with self._opening:
            if self._opened is None:
                self._opened = open_store(self._path, failpoints=Armed(self._order))
            return self._opened


def failing_store(path: Path, order: Path) -> Any:
    """Start one; Ray starts it again as it does the product's."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a worker does not know the tests' folder
    remote = actor_class(FailingStoreActor, max_restarts=-1, concurrency_groups={"write": 1, "read": 4})
    return remote.remote(str(path), str(order))
