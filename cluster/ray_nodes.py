"""A Ray cluster of two nodes on this machine, for as long as a program wants to see what the loss of one does."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from ..storage.errors import RuntimeUnreachable
from .ray_cluster import OBJECT_STORE_BYTES, prepare_ray

_DEATH_NOTICED = {
    "health_check_initial_delay_ms": 1_000,
    "health_check_period_ms": 1_000,
    "health_check_timeout_ms": 1_000,
    "health_check_failure_threshold": 3,
}
"""Ray's own settings notice the death of a node after about 15 s; this cluster is there to lose nodes."""


class TwoNodes:
    """A head node, which the program and the store live on, and another one, which may be killed."""

    def __init__(self, cluster: Any, node_args: dict[str, Any]) -> None:
        self._cluster = cluster
        self._node_args = node_args
        self._other = self._add()

    @property
    def other_node(self) -> str:
        """The id of the node that may be killed."""
        return str(self._other.node_id)

    def kill_node(self, *, replace: bool = True) -> None:
        """SIGKILL for the processes of the other node; with `replace`, a new one takes its place."""
        self._cluster.remove_node(self._other, allow_graceful=False)
        if replace:
            self._other = self._add()

    def _add(self) -> Any:
        return self._cluster.add_node(**self._node_args)


@contextlib.contextmanager
def two_nodes(runtime_env: dict[str, Any] | None = None) -> Generator[TwoNodes]:
    """Start the cluster and connect this program to it; both end with the context.

    Raises: RuntimeUnreachable where this program is connected to another cluster already.
    """
    prepare_ray()
    import ray
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        raise RuntimeUnreachable("a cluster of two nodes needs a program that is connected to no other cluster")
    node_args: dict[str, Any] = {
        "num_cpus": max(1, (os.cpu_count() or 1) // 2),
        "object_store_memory": OBJECT_STORE_BYTES,
    }
    with _address_kept():
        head_args = {**node_args, "include_dashboard": False, "_system_config": _DEATH_NOTICED}
        cluster: Any = Cluster(initialize_head=True, head_node_args=head_args)
        try:
            nodes = TwoNodes(cluster, node_args)
            cluster.wait_for_nodes()
            options: dict[str, Any] = {"runtime_env": runtime_env} if runtime_env else {}
            ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False, **options)
            yield nodes
        finally:
            ray.shutdown()
            cluster.shutdown()


@contextlib.contextmanager
def _address_kept() -> Generator[None]:
    """Ray's cluster for tests takes the place of the user's standing cluster in Ray's own file: put that back."""
    from ray._common.utils import get_ray_address_file

    file = Path(get_ray_address_file(None))
    before = file.read_bytes() if file.exists() else None
    try:
        yield
    finally:
        if before is not None:
            file.write_bytes(before)
