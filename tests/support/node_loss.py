"""A program: a cluster of two nodes, lanes at work on both, and the loss of one node. Prints what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter

import cluster_agents
from cluster_agents import folder, noted, until

import laneway
from laneway.cluster.ray_nodes import two_nodes

LANES = 12


def nodes_of(runtime: laneway.Runtime) -> dict[int, str]:
    """The node of each process that hosts lanes, by its pid."""
    return {actor.pid: actor.node for actor in runtime.describe().actors}


def executions() -> dict[str, list[int]]:
    """The processes in which each call was executed."""
    found: dict[str, list[int]] = {}
    for line in noted("look_up"):
        call_id, pid = line.split()
        found.setdefault(call_id, []).append(int(pid))
    return found


def main(store: str) -> None:
    environment = {"env_vars": {cluster_agents.FOLDER: os.environ[cluster_agents.FOLDER]}}
    with (
        two_nodes(environment) as nodes,
        laneway.start(cluster_agents.agents, store=store, max_actors=4, sweep_s=1.0) as runtime,
    ):
        (folder() / "gate-shoes").touch()
        receipts = [runtime.conversation(f"c{index}").submit("look shoes") for index in range(LANES)]
        until(lambda: len(noted("look_up")) == LANES)
        node_of = nodes_of(runtime)
        lost_node = nodes.other_node
        first = {call_id: node_of[pids[0]] for call_id, pids in executions().items()}
        lost = [call_id for call_id, node in first.items() if node == lost_node]
        began = time.monotonic()
        nodes.kill_node(replace=False)
        until(lambda: len(noted("look_up")) >= LANES + len(lost))
        seconds = time.monotonic() - began
        (folder() / "gate-shoes").unlink()
        outcomes = Counter(receipt.result(timeout=60).outcome for receipt in receipts)
        node_of |= nodes_of(runtime)
        made = executions()
        logs = [runtime.conversation(f"c{index}").log() for index in range(LANES)]
        decided = [record["decision"] for log in logs for record in log if record["type"] == "recovery_decided"]
        report = runtime.verify(require_settled=True)
        found = {
            "lanes": LANES,
            "lanes_lost": len(lost),
            "outcomes": outcomes,
            "executions_of_lost": sorted(len(made[call_id]) for call_id in lost),
            "executions_of_others": sorted(len(pids) for call_id, pids in made.items() if call_id not in lost),
            "taken_over_on_the_lost_node": sum(node_of[made[call_id][-1]] == lost_node for call_id in lost),
            "decisions": Counter(decided),
            "seconds": round(seconds, 2),
            "problems": [problem.message for problem in report.problems],
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
