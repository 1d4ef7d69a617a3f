"""Every test of this folder runs against every adapter, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_builders import Clock, Conversation, Maker

from laneway.storage.contract import Store


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "duckdb", "shards"])
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Maker]:
    maker = Maker(request.param, tmp_path, clock)
    yield maker
    maker.close()


@pytest.fixture
def duckdb_make(tmp_path: Path, clock: Clock) -> Iterator[Maker]:
    """For cases that need a file."""
    maker = Maker("duckdb", tmp_path, clock)
    yield maker
    maker.close()


@pytest.fixture
def store(make: Maker) -> Store:
    return make()


@pytest.fixture
def lane(store: Store) -> Conversation:
    return Conversation(store)
