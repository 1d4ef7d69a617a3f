"""A process of its own that commits groups until it is killed: `python store_writer.py <file> <groups> [size limit]`.

Each acknowledged group is a line on standard output. With a size limit (bytes), no file may grow beyond it.
"""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path

from store_builders import LEASE_MS, Conversation, admit_ready, append_of, note

from laneway.storage.commands import Accepted, Claim, Fence, Unit
from laneway.storage.duckdb_store import DuckDBStore
from laneway.storage.errors import LanewayError

LANES = 20


def group(lanes: list[Conversation], name: str, tail: int, padding: str = "") -> list[Unit]:
    """A batch for every lane, whose log ends at `tail`."""
    return [
        lane.unit(
            append_of(f"sub_{lane.id}", note(f"{lane.id}/{name}", padding)),
            fence=Fence(token=f"tok_{number}", epoch=1, expected_tail=tail),
        )
        for number, lane in enumerate(lanes)
    ]


def main(path: str, groups: int, size_max: int | None) -> None:
    store = DuckDBStore(path)
    store.renew_lease("o1", LEASE_MS)
    lanes = [Conversation(store, f"c{number:02}") for number in range(LANES)]
    store.commit([lane.unit(*admit_ready(f"sub_{lane.id}")) for lane in lanes])
    claims = [Claim(submission_id="", owner_id="o1", attempt_id=f"att_{n}", token=f"tok_{n}") for n in range(LANES)]
    store.commit([lane.unit(claim) for lane, claim in zip(lanes, claims, strict=True)])
    print("ready", flush=True)
    if size_max is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_max, resource.RLIM_INFINITY))
    padding = "x" * 2000
    for number in range(groups):
        units = group(lanes, str(number), number, padding)
        try:
            answers = store.commit(units)
        except LanewayError as error:
            print(f"refused {number} {error.code}", flush=True)
            break
        assert all(isinstance(answer, Accepted) for answer in answers)
        print(f"committed {number}", flush=True)
    if size_max is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        units = group(lanes, "after", store.inspect_tail(lanes[0].id).sequence)
        print(f"after {[type(answer).__name__ for answer in store.commit(units)].count('Accepted')}", flush=True)
        return
    sys.stdin.readline()  # holds the file until its parent says so


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
