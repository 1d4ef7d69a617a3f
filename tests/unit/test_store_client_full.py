"""A full store and lost answers together: what landed gets its answer, and what did not is refused."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from store_builders import admission

from laneway.actors.store_client import StoreClient
from laneway.storage.commands import Answer, Unit
from laneway.storage.errors import StoreFull, StoreUnavailable
from laneway.storage.memory_store import MemoryStore


class FullLink:
    """Carries the first group out and loses its answer; from then on nothing new fits."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.groups: list[int] = []

    async def commit(self, units: list[Unit]) -> list[Answer]:
        self.groups.append(len(units))
        known = all(self.store.lookup(command.submission_id) for unit in units for command in unit.commands)
        if len(self.groups) > 1 and not known:
            raise StoreFull("no space is left")
        answers = self.store.commit(units)
        if len(self.groups) == 1:
            raise StoreUnavailable("the answer was lost")
        return answers

    async def call(self, method: str, *args: Any) -> Any:
        raise AssertionError("nothing is read")

    def call_blocking(self, method: str, *args: Any) -> Any:
        raise AssertionError("nothing is read")

    def close(self) -> None:
        return


def unit(number: int) -> Unit:
    return Unit(conversation_id=f"c{number}", commands=(admission(f"sub_{number}"),))


@pytest.mark.requirement("DUR-001")
async def test_an_admission_that_landed_is_not_refused_for_want_of_space() -> None:
    """F16 with F22: "nothing was stored" would be untrue, and its claim would belong to nobody."""
    link = FullLink()
    client = StoreClient(link, random.Random(1))
    accepted = await client.commit(unit(1))
    assert accepted.results
    with pytest.raises(StoreFull):
        await client.commit(unit(2))
    await client.close()


async def test_a_group_that_does_not_fit_is_tried_one_by_one() -> None:
    link = FullLink()
    client = StoreClient(link, random.Random(1))
    await client.commit(unit(1))
    answers = await asyncio.gather(client.commit(unit(1)), client.commit(unit(2)), return_exceptions=True)
    assert not isinstance(answers[0], BaseException)
    assert isinstance(answers[1], StoreFull)
    assert link.groups == [1, 1, 2, 1, 1]
    await client.close()
