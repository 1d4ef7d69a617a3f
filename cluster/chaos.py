"""Which processes a chaos run kills, and when: a pure schedule. The same seed gives the same schedule."""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from ..storage.errors import InvalidInput

_T = TypeVar("_T")


class Kind(enum.StrEnum):
    """What may be killed."""

    ACTORS = "actors"
    """A process that hosts lanes."""
    STORE = "store"
    SUPERVISOR = "supervisor"
    NODE = "node"
    """A whole node of a cluster with several of them."""


KINDS_DEFAULT = (Kind.ACTORS,)


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """One kill: `at_s` seconds after the beginning. `choice`, from 0 to below 1, picks among several victims."""

    at_s: float
    kind: Kind
    choice: float

    def victim(self, candidates: Sequence[_T]) -> _T | None:
        """The one of these to kill; None when there is none."""
        return candidates[int(self.choice * len(candidates))] if candidates else None


def parse_kinds(text: str) -> tuple[Kind, ...]:
    """The kinds in a comma list such as "actors,store", each once. Raises: InvalidInput with field "chaos"."""
    names = [name.strip() for name in text.split(",")]
    known = ", ".join(Kind)
    for name in names:
        if name not in tuple(Kind):
            raise InvalidInput(f"chaos knows {known}, and no {name!r}", field="chaos", limit=known)
    return tuple(Kind(name) for name in dict.fromkeys(names))


class ChaosPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule's whole definition: a kill every `every_s` seconds up to `until_s`, None for no end.

    Raises: InvalidInput with field "kill-every".
    """

    every_s: float
    kinds: tuple[Kind, ...] = KINDS_DEFAULT
    seed: int = 0
    until_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.every_s < float("inf"):
            raise InvalidInput("kill-every must be more than 0 seconds", field="kill-every", limit=0)

    def kills(self) -> Iterator[Kill]:
        """The kills in the order of time.

        Among as many of them as there are kinds, in a row from the beginning, each kind stands once: a short run has
        them all.
        """
        chance = random.Random(self.seed)
        for start in itertools.count(0, len(self.kinds)):
            for number, kind in enumerate(chance.sample(self.kinds, len(self.kinds)), start + 1):
                if self.until_s is not None and number * self.every_s > self.until_s:
                    return
                yield Kill(at_s=number * self.every_s, kind=kind, choice=chance.random())
