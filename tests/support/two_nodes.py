"""A program: a cluster of two nodes on this machine, conversations on both, one store. Prints what it saw."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import cluster_agents
import ray
from ray.cluster_utils import Cluster

import laneway


def main(store: str) -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False},
    )
    try:
        cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
        cluster.wait_for_nodes()
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            runtime_env={"env_vars": {cluster_agents.FOLDER: os.environ[cluster_agents.FOLDER]}},
        )
        with laneway.start(cluster_agents.agents, store=Path(store), max_actors=4) as runtime:
            receipts = [runtime.conversation(f"c{index}").submit("look shoes") for index in range(12)]
            assert {receipt.result(timeout=60).outcome for receipt in receipts} == {"completed"}
            nodes = {actor.node for actor in runtime.describe().actors if actor.conversations}
            assert len(nodes) == 2, nodes
            report = runtime.verify(require_settled=True)
            assert report.passed, report.problems
            assert report.conversations == 12
    finally:
        ray.shutdown()
        cluster.shutdown()
    print("two nodes, one store, all settled")


if __name__ == "__main__":
    main(sys.argv[1])
