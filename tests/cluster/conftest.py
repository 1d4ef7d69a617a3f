"""One Ray for all tests of this folder; each test has a namespace, a store file and a folder of its own."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cluster_agents
import pytest

import laneway
from laneway.cluster.ray_cluster import connect_ray

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Workers inherit the environment that Ray was started with, so the folder's name is set before that."""
    base = tmp_path_factory.mktemp("cluster")
    os.environ[cluster_agents.FOLDER] = str(base)
    yield base
    del os.environ[cluster_agents.FOLDER]


@pytest.fixture(scope="session")
def ray_cluster(shared_folder: Path) -> Iterator[None]:
    release = connect_ray(None, {"env_vars": {cluster_agents.FOLDER: str(shared_folder)}})
    yield
    release()


@pytest.fixture
def folder(shared_folder: Path) -> Path:
    """The counters' folder, empty at each test's start."""
    for path in shared_folder.iterdir():
        path.unlink()
    return shared_folder


@pytest.fixture
def start(ray_cluster: None, folder: Path, tmp_path: Path) -> Iterator[Callable[..., laneway.Runtime]]:
    """Start a runtime on Ray; it is stopped when the test ends."""
    started: list[laneway.Runtime] = []

    def start_one(**settings: Any) -> laneway.Runtime:
        settings.setdefault("namespace", f"test-{os.getpid()}-{next(_numbers)}")
        settings.setdefault("store", tmp_path / "laneway.duckdb")
        settings.setdefault("sweep_s", 1.0)
        runtime = laneway.start(cluster_agents.agents, **settings)
        started.append(runtime)
        return runtime

    yield start_one
    for runtime in started:
        runtime.stop()
