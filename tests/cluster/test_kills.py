"""Real processes, killed with SIGKILL; each test ends in the convergence check."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
from cluster_agents import noted, until

import laneway
from laneway.actors.conversation_actor import RemoteConversationActor
from laneway.actors.lane.settings import LaneSettings
from laneway.actors.supervisor_actor import MEMBER_PREFIX
from laneway.cluster.runtime import Conversation

Start = Callable[..., laneway.Runtime]


def kinds(conversation: Conversation) -> list[str]:
    return [record["type"] for record in conversation.log()]


def host_pid(runtime: laneway.Runtime) -> int:
    """The process of the one actor that has conversations."""
    pids = [actor.pid for actor in runtime.describe().actors if actor.conversations]
    assert len(pids) == 1
    return pids[0]


def check(runtime: laneway.Runtime, *, settled: bool = True) -> None:
    report = runtime.verify(require_settled=settled)
    assert report.passed, report.problems


@pytest.mark.requirement("DUR-002", "DUR-003", "DUR-006", "DUR-013")
def test_an_actor_killed_in_mid_turn_is_replaced_under_a_higher_epoch(start: Start, folder: Path) -> None:
    """K10 on Ray: the idempotent tool runs twice, its result is recorded once."""
    runtime = start()
    conversation = runtime.conversation("order-1")
    assert conversation.submit("hello").result(timeout=30).outcome == "completed"
    (folder / "gate-shoes").touch()
    receipt = conversation.submit("look shoes")
    until(lambda: len(noted("look_up")) == 1)
    os.kill(host_pid(runtime), signal.SIGKILL)
    until(lambda: len(noted("look_up")) == 2)
    (folder / "gate-shoes").unlink()
    assert receipt.result(timeout=60).outcome == "completed"
    assert kinds(conversation).count("tool_call_settled") == 1
    assert len({line.split()[0] for line in noted("look_up")}) == 1
    assert len({line.split()[1] for line in noted("look_up")}) == 2
    decided = [record for record in conversation.log() if record["type"] == "recovery_decided"]
    assert [record["decision"] for record in decided] == ["resume_batch"]
    epochs = [row.epoch for row in runtime.submissions(conversation="order-1")]
    assert epochs == [1, decided[0]["epoch"]]
    assert decided[0]["epoch"] > 2
    assert len(noted("model")) == 3
    check(runtime)


@pytest.mark.requirement("DUR-009")
def test_an_uncertain_call_is_unknown_and_never_repeated(start: Start, folder: Path) -> None:
    """K11 on Ray: count 1, no model call until somebody resolves it."""
    runtime = start()
    conversation = runtime.conversation("order-1")
    (folder / "gate-card").touch()
    receipt = conversation.submit("charge card")
    until(lambda: len(noted("charge")) == 1)
    os.kill(host_pid(runtime), signal.SIGKILL)
    until(lambda: receipt.status() == "unknown")
    (folder / "gate-card").unlink()
    assert "tool_call_unknown" in kinds(conversation)
    assert len(noted("charge")) == 1
    assert len(noted("model")) == 1
    later = conversation.submit("hello")
    assert later.status() == "ready"
    check(runtime, settled=False)
    receipt.abort(reason="refund by hand", author="operator")
    assert receipt.result(timeout=30).outcome == "aborted"
    assert later.result(timeout=30).outcome == "completed"
    assert len(noted("charge")) == 1
    check(runtime)


@pytest.mark.requirement("DUR-006")
def test_a_process_that_was_stopped_and_wakes_is_fenced(start: Start, folder: Path) -> None:
    """K22 on Ray: SIGSTOP beyond the lease; the work goes on elsewhere, and what the sleeper sends is refused."""
    runtime = start(lease_ttl_s=1.0, sweep_s=0.5)
    conversation = runtime.conversation("order-1")
    (folder / "gate-shoes").touch()
    receipt = conversation.submit("look shoes")
    until(lambda: len(noted("look_up")) == 1)
    sleeper = host_pid(runtime)
    os.kill(sleeper, signal.SIGSTOP)
    try:
        until(lambda: len(noted("look_up")) == 2)
        (folder / "gate-shoes").unlink()
        until(lambda: receipt.status() == "completed")
        before = conversation.log()
    finally:
        os.kill(sleeper, signal.SIGCONT)
    assert receipt.result(timeout=60).outcome == "completed"
    assert conversation.submit("hello").result(timeout=60).text == "you said hello"
    log = conversation.log()
    assert log[: len(before)] == before
    assert [record["type"] for record in log].count("tool_call_settled") == 1
    assert len(noted("look_up")) == 2
    check(runtime)


def test_submitting_while_the_actor_dies(start: Start, folder: Path) -> None:
    """F12: admitted once, runs on the new actor."""
    runtime = start()
    conversation = runtime.conversation("order-1")
    conversation.submit("hello").result(timeout=30)
    os.kill(host_pid(runtime), signal.SIGKILL)
    receipts = [conversation.submit(f"number {index}", idempotency_key=f"k{index}") for index in range(3)]
    assert [receipt.result(timeout=60).text for receipt in receipts] == [f"you said number {i}" for i in range(3)]
    assert len(runtime.submissions(conversation="order-1")) == 4
    check(runtime)


def test_the_store_and_the_supervisor_come_back(start: Start, folder: Path) -> None:
    """K23 and K24 in small: both are killed under load, every submission is settled once."""
    runtime = start()
    receipts = [runtime.conversation(f"c{index}").submit("look shoes") for index in range(4)]
    found = runtime.describe()
    assert found.store_pid is not None
    assert found.supervisor_pid is not None
    os.kill(found.store_pid, signal.SIGKILL)
    receipts += [runtime.conversation(f"c{index}").submit("look shoes") for index in range(8)]
    os.kill(found.supervisor_pid, signal.SIGKILL)
    receipts += [runtime.conversation(f"d{index}").submit("look shoes") for index in range(4)]
    assert {receipt.result(timeout=60).outcome for receipt in receipts} == {"completed"}
    after = runtime.describe()
    assert after.store_pid != found.store_pid
    assert after.supervisor_pid != found.supervisor_pid
    assert {actor.pid for actor in found.actors} <= {actor.pid for actor in after.actors}
    check(runtime)


def test_a_process_that_nobody_asked_to_start_is_taken_in(start: Start, folder: Path) -> None:
    """A supervisor that dies right after it has created a process leaves it without a lease: the next one starts it."""
    runtime = start(namespace="orphans")
    pid = runtime.describe().supervisor_pid
    assert pid is not None
    store = ray.get_actor("store", namespace="orphans")
    options = {"name": f"{MEMBER_PREFIX}orphan", "namespace": "orphans", "lifetime": "detached"}
    paths = [os.path.abspath(path) for path in sys.path]
    orphan = RemoteConversationActor.options(**options).remote(store, "orphans", paths, LaneSettings())
    owner_id, _, _ = ray.get(orphan.identity.remote())
    os.kill(pid, signal.SIGKILL)
    until(lambda: f"{MEMBER_PREFIX}orphan" in {actor.name for actor in runtime.describe().actors})
    owners = ray.get(store.call.remote("owners"))
    assert owner_id in owners


def test_a_runtime_that_was_ended_goes_on_where_it_stood(start: Start, folder: Path, tmp_path: Path) -> None:
    """A new runtime on the same file recovers what was open."""
    first = start(namespace="first")
    (folder / "gate-shoes").touch()
    receipt = first.conversation("order-1").submit("look shoes")
    first.conversation("order-1").submit("hello")
    until(lambda: len(noted("look_up")) == 1)
    first.stop()
    (folder / "gate-shoes").unlink()
    second = start(namespace="second")
    assert second.receipt(receipt.submission_id).result(timeout=60).outcome == "completed"
    rows = second.submissions(conversation="order-1")
    assert [second.receipt(row.submission_id).result(timeout=60).outcome for row in rows] == ["completed"] * 2
    assert len(noted("look_up")) == 2
    check(second)
