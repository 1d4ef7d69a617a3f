"""What may wait behind the submission that a lane drives: known without asking the store anew at every turn."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ...storage.commands import Arrived, Joining


@dataclass(slots=True)
class Arrivals:
    """The highest queue sequences that this lane has heard of, and those up to which its run has looked.

    The lane learns from its own admissions and from every answer of the store. A run claims what waits only where
    something came that it has not looked at: a turn that nothing waits for costs no commit more.
    """

    queued: int = 0
    steering: int = 0
    _seen: Arrived = field(default_factory=Arrived)
    claiming: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from the claim of joining rows until their input is canonical: an abort of one comes before or after."""

    def learn(self, arrived: Arrived) -> None:
        self.queued = max(self.queued, arrived.queued)
        self.steering = max(self.steering, arrived.steering)

    def begin(self, queue_sequence: int) -> None:
        """Another submission is driven: only what is behind it can join it."""
        self._seen = Arrived(queued=queue_sequence, steering=queue_sequence)

    def looked(self, joining: Joining) -> None:
        """The store has given what may join now."""
        self.learn(joining.arrived)
        if not joining.more:
            self._seen = joining.arrived

    def may_wait(self, *, join: bool) -> bool:
        """Whether input may wait for this run: what steers it, and with `join` the queue behind it, too."""
        return self.steering > self._seen.steering or (join and self.queued > self._seen.queued)
