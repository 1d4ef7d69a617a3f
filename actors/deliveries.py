"""Commits as they reach the store's process: in the order in which each sender sent them, and each once."""

from __future__ import annotations

import threading
from collections import OrderedDict

from ..storage.errors import StoreUnavailable

_SENDERS_MAX = 100_000  # processes that ever wrote to this one; about 200 bytes each


class Deliveries:
    """Drops what comes late or twice. A sender has one commit under way and repeats it under a higher number.

    Most commands are safe to repeat at any later time, because they carry their fence or their key. A claim is not: let
    through when its sender has moved on, it would give the lane to an attempt that nobody drives.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()  # calls over Ray and over channels arrive in threads of their own

    def take(self, sender: str, number: int) -> None:
        """Let the call through, or refuse it. Raises: StoreUnavailable with code "superseded"."""
        with self._lock:
            if number <= self._last.get(sender, 0):
                raise StoreUnavailable(f"call {number} of {sender} came late or twice", code="superseded")
            self._last[sender] = number
            self._last.move_to_end(sender)
            while len(self._last) > _SENDERS_MAX:
                self._last.popitem(last=False)
