"""One peer in a process of its own: starts it, runs the three workloads, writes what it found as JSON.

Started by `run`; by hand: PYTHONPATH=benchmarks .venv-peers/bin/python -m peers.child dbos-sqlite --folder FOLDER
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import uvloop

from .servers import Servers
from .workload import measure, workloads

PEERS = {
    "dbos-sqlite": ("dbos_peer", "sqlite"),
    "dbos-postgres": ("dbos_peer", "postgres"),
    "langgraph-sqlite": ("langgraph_peer", "sqlite"),
    "restate": ("restate_peer", "restate"),
}


async def found(chosen: argparse.Namespace) -> dict[str, Any]:
    module, function = PEERS[chosen.peer]
    opened = getattr(importlib.import_module(f".{module}", __package__), function)
    async with opened(chosen.folder, Servers(chosen.folder)) as peer:
        store = await peer.store()
        wanted = workloads(chosen.turns, chosen.lone_turns)
        return {"store": store, "figures": {each.name: await measure(peer, each) for each in wanted}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder for its data")
    parser.add_argument("--turns", type=int, default=1_000)
    parser.add_argument("--lone-turns", type=int, default=200)
    chosen = parser.parse_args()
    # Chosen for LangGraph, which did more turns on uvloop in two tries of two.
    result = uvloop.run(found(chosen))
    (chosen.folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
