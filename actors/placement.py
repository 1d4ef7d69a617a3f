"""Placement: which process a conversation goes to. Pure; the supervisor carries out what it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Placement:
    """The directory of one runtime: conversation → actor. All of it can be rebuilt from the actors and the store."""

    max_actors: int
    actors: set[str] = field(default_factory=set[str])
    _of: dict[str, str] = field(default_factory=dict[str, str])
    _loads: Counter[str] = field(default_factory=Counter[str])

    def actor_of(self, conversation_id: str) -> str | None:
        return self._of.get(conversation_id)

    def wants_new_actor(self) -> bool:
        """Whether the next conversation gets an actor of its own."""
        used = sum(1 for actor in self.actors if self._loads[actor])
        return used >= len(self.actors) and len(self.actors) < self.max_actors

    def place(self, conversation_id: str) -> str:
        """The least loaded actor, an unused one first; there must be one."""
        actor = min(self.actors, key=lambda name: (self._loads[name], name))
        self._assign(conversation_id, actor)
        return actor

    def learn(self, actor: str, conversation_ids: Iterable[str]) -> None:
        """An actor was found alive with these lanes."""
        self.actors.add(actor)
        for conversation_id in conversation_ids:
            self._assign(conversation_id, actor)

    def remove(self, actor: str) -> list[str]:
        """The actor is gone: its conversations, which are now placed nowhere."""
        self.actors.discard(actor)
        self._loads.pop(actor, None)
        lost = [conversation_id for conversation_id, name in self._of.items() if name == actor]
        for conversation_id in lost:
            del self._of[conversation_id]
        return lost

    def loads(self) -> dict[str, int]:
        """Conversations by actor."""
        return {actor: self._loads[actor] for actor in sorted(self.actors)}

    def _assign(self, conversation_id: str, actor: str) -> None:
        before = self._of.get(conversation_id)
        if before is not None:
            self._loads[before] -= 1
        self._of[conversation_id] = actor
        self._loads[actor] += 1


def emptiest_node(cpus: Mapping[str, float], members: Mapping[str, int], avoid: str | None = None) -> str | None:
    """The node (id → CPUs) for the next process: fewest `members` a CPU; one without CPUs only when all are.

    `avoid` is taken only when there is no other; None where no node is known. Ray's own spreading may put several
    actors without resources on one node.
    """
    cpus = {node: count for node, count in cpus.items() if node != avoid} or cpus
    able = {node: count for node, count in cpus.items() if count > 0} or dict(cpus)
    return min(able, key=lambda node: (members.get(node, 0) / (able[node] or 1), node), default=None)
