"""The loss of a whole cluster, and of one node of two; each test ends in the convergence check."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cluster_agents
import pytest
from cluster_agents import noted, until
from tool_recordings import recordings

import laneway
from laneway.benchmarks.processes import family, kill_all, lives
from laneway.cluster.chaos import ChaosPlan, Kind
from laneway.cluster.ray_chaos import Chaos

Start = Callable[..., laneway.Runtime]
SUPPORT = Path(__file__).parent.parent / "support"


@contextmanager
def victim(store: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, list[str]]]]:
    """The program, once its work stands where it is to be killed; whatever happens, nothing of it is left."""
    process = subprocess.Popen(
        [sys.executable, str(SUPPORT / "cluster_victim.py"), str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        kill_all(family(process.pid))
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.requirement("DUR-002", "DUR-009", "DUR-013")
def test_a_whole_cluster_is_killed_and_another_one_takes_its_file(start: Start, folder: Path, tmp_path: Path) -> None:
    """K25: SIGKILL for every process of the cluster; a new cluster on the same file recovers all that was open."""
    store = tmp_path / "laneway.duckdb"
    (folder / "gate-shoes").touch()
    with victim(store) as (process, accepted):
        processes = family(process.pid)
        names = [Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0] for pid in processes]
        for part in ("gcs_server", "raylet", "ray::StoreActor", "ray::SupervisorActor", "ray::ConversationActor"):
            assert any(part in name for name in names), part
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(lives(pid) for pid in processes))
    (folder / "gate-shoes").unlink()
    runtime = start(store=store)
    for name in ("settled", "working", "queued"):
        receipts = [runtime.receipt(submission_id) for submission_id in accepted[name]]
        assert {receipt.result(timeout=60).outcome for receipt in receipts} == {"completed"}, name
    (charging,) = (runtime.receipt(submission_id) for submission_id in accepted["charging"])
    until(lambda: charging.status() == "unknown")
    assert len(runtime.submissions()) == sum(map(len, accepted.values()))
    decided = runtime.query("SELECT record->>'decision' FROM records WHERE type = 'recovery_decided'").rows
    assert Counter(row[0] for row in decided) == {"resume_batch": len(accepted["working"]), "reconcile": 1}
    assert set(Counter(line.split()[0] for line in noted("look_up")).values()) == {2}
    assert len(noted("look_up")) == 2 * len(accepted["working"])
    assert len(noted("charge")) == 1
    charging.abort(reason="refund by hand", author="operator")
    assert charging.result(timeout=30).outcome == "aborted"
    report = runtime.verify(require_settled=True)
    assert report.passed, report.problems


def test_nodes_are_killed_only_in_a_cluster_that_can_lose_them() -> None:
    with pytest.raises(laneway.InvalidInput) as refused:
        Chaos("laneway", ChaosPlan(every_s=1.0, kinds=(Kind.NODE,)))
    assert refused.value.details["field"] == "chaos"
    assert "a cluster of several nodes that this program has started" in refused.value.message


@pytest.mark.timeout(180)
@pytest.mark.requirement("DUR-003", "DUR-006")
def test_a_lost_node_s_lanes_go_on_at_the_other_one(folder: Path, tmp_path: Path) -> None:
    """K26: lanes are at work on two nodes of one store, half of them on the node that is lost; each of these runs its
    tool again at the other one, the others do not."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "node_loss.py"), str(tmp_path / "laneway.duckdb")],
        capture_output=True,
        text=True,
        timeout=170,
        env={**os.environ, cluster_agents.FOLDER: str(folder)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    lost = found["lanes_lost"]
    assert lost == found["lanes"] // 2
    assert found["outcomes"] == {"completed": found["lanes"]}
    assert found["executions_of_lost"] == [2] * lost
    assert found["executions_of_others"] == [1] * (found["lanes"] - lost)
    assert found["taken_over_on_the_lost_node"] == 0
    assert found["decisions"] == {"resume_batch": lost}
    assert found["problems"] == []


@pytest.mark.timeout(180)
@pytest.mark.requirement("DUR-002", "DUR-003", "DUR-009")
def test_a_replay_goes_on_while_nodes_are_killed(tmp_path: Path) -> None:
    """K26 by the command line: `--chaos node` starts two nodes, kills one and starts another in its place."""
    program = [sys.executable, "-c", "from laneway.cluster.cli import main; main()"]
    command = [*program, "replay", str(recordings(tmp_path / "in.jsonl")), "--json"]
    more = ["--store", "s.duckdb", "--concurrency", "8", "--delay", "1.5", "--kill-every", "5", "--chaos", "node"]
    done = subprocess.run(
        [*command, *more],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=tmp_path,
        env={**os.environ, "LANEWAY_HOME": str(tmp_path / "home")},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["passed"]
    assert found["kills_by_kind"] == {"node": found["kills"]}
    assert found["kills"] > 0
    assert found["recoveries"] > 0
    assert found["outcomes"] == {"completed": 24}
    assert found["tool_executions_after_commit"] == 0
    assert found["tool_executions_repeated_by_effect"]["uncertain"] == 0
    assert found["problems"] == []
