"""A waiter is told of an outcome after its commit, never before."""

from __future__ import annotations

import asyncio

import pytest

from laneway import Agent, FunctionModel
from laneway.actors.host import LaneHost
from laneway.actors.lane.settings import LaneSettings
from laneway.actors.store_client import LocalLink
from laneway.agents.registry import Registry
from laneway.cluster.inputs import check_admission
from laneway.storage.commands import Answer, Finalize, Unit
from laneway.storage.memory_store import MemoryStore
from laneway.storage.values import DEFAULT_LIMITS


class GatedLink(LocalLink):
    """Holds back the units that settle something until the gate opens."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.reached = asyncio.Event()
        self.gate = asyncio.Event()

    async def commit(self, units: list[Unit]) -> list[Answer]:
        if any(isinstance(command, Finalize) for unit in units for command in unit.commands):
            self.reached.set()
            await self.gate.wait()
        return await super().commit(units)


@pytest.mark.requirement("DUR-002", "DUR-011")
async def test_an_outcome_is_told_after_its_commit() -> None:
    link = GatedLink(MemoryStore())
    host = LaneHost(link, Registry([Agent(name="a", model=FunctionModel(lambda request: "done"))]), LaneSettings())
    await host.start()
    admission = check_admission(
        agent="a", content="hi", idempotency_key="k", principal="p", extra=None, limits=DEFAULT_LIMITS
    )
    receipt = await host.submit("c", admission)
    await link.reached.wait()
    assert await host.settlement("c", receipt.submission_id, 0.0) is None
    waiting = asyncio.ensure_future(host.settlement("c", receipt.submission_id, 30.0))
    link.gate.set()
    settled = await waiting
    assert settled is not None
    assert settled.outcome == "completed"
    await host.close()
    link.close()
