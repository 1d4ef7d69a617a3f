"""Worlds that the tests of lanes run in: over each adapter, and with each commit fused or stepwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lane_world import World

MODES = [("memory", False), ("memory", True), ("duckdb", False), ("duckdb", True)]


@pytest.fixture(params=["memory", "duckdb"])
async def stored(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world = World(request.param, tmp_path)
    yield world
    await world.close()


@pytest.fixture(params=MODES, ids=["memory", "memory-stepwise", "duckdb", "duckdb-stepwise"])
async def setting(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[World, bool]]:
    """A world, and whether its processes commit each command alone."""
    adapter, stepwise = request.param
    world = World(adapter, tmp_path)
    yield world, stepwise
    await world.close()
