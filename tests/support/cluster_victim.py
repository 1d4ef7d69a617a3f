"""A program with a Ray cluster of its own, which a test ends with all of its processes: `cluster_victim.py STORE`.

It prints what was accepted as JSON once the work stands where it is to be killed, and then waits."""

from __future__ import annotations

import json
import sys

import cluster_agents
from cluster_agents import noted, until

import laneway

LANES = 5


def main(store: str) -> None:
    runtime = laneway.start(cluster_agents.agents, store=store)
    settled = runtime.conversation("settled").submit("hello")
    settled.result(timeout=30)
    working = [runtime.conversation(f"c{index}").submit("look shoes") for index in range(LANES)]
    charging = runtime.conversation("charged").submit("charge shoes")
    queued = [runtime.conversation(f"c{index}").submit("hello") for index in range(LANES)]
    until(lambda: len(noted("look_up")) == LANES and len(noted("charge")) == 1)
    accepted = {"settled": [settled], "working": working, "charging": [charging], "queued": queued}
    print(json.dumps({name: [receipt.submission_id for receipt in found] for name, found in accepted.items()}))
    sys.stdout.flush()
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1])
