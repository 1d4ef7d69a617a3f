"""Operators' work on real processes: a supervisor killed in mid-recovery, planned ends, drains, retry, quarantine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
from cluster_agents import noted, until

import laneway
from laneway import NotFound, Refused

Start = Callable[..., laneway.Runtime]
WORK = 100


def check(runtime: laneway.Runtime) -> None:
    report = runtime.verify(require_settled=True)
    assert report.passed, report.problems


def decided(runtime: laneway.Runtime, conversation_id: str) -> list[int]:
    log = runtime.conversation(conversation_id).log()
    return [record["epoch"] for record in log if record["type"] == "recovery_decided"]


@pytest.mark.requirement("DUR-013", "DUR-014")
def test_a_supervisor_killed_while_a_hundred_submissions_are_recovered(start: Start, folder: Path) -> None:
    """K24: all settle after its restart; each is recovered once an epoch, and none for nothing."""
    runtime = start(max_actors=2)
    (folder / "gate-shoes").touch()
    receipts = [runtime.conversation(f"c{number:03}").submit("look shoes") for number in range(WORK)]
    until(lambda: len(noted("look_up")) == WORK, 60)
    found = runtime.describe()
    assert found.supervisor_pid is not None
    lost = [actor for actor in found.actors if actor.conversations]
    for actor in lost:
        os.kill(actor.pid, signal.SIGKILL)
    until(lambda: len(noted("look_up")) > WORK, 60)
    os.kill(found.supervisor_pid, signal.SIGKILL)
    (folder / "gate-shoes").unlink()
    assert {receipt.result(timeout=100).outcome for receipt in receipts} == {"completed"}
    assert runtime.describe().supervisor_pid != found.supervisor_pid
    for receipt in receipts:
        epochs = decided(runtime, receipt.conversation_id)
        assert len(epochs) == len(set(epochs)) >= 1
        assert len(epochs) == runtime.submission(receipt.submission_id).attempts - 1
    check(runtime)


@pytest.mark.requirement("DUR-006")
def test_a_new_supervisor_leaves_a_silent_process_what_it_runs(start: Start, folder: Path) -> None:
    """A process whose event loop is held up answers nobody, and keeps its lease: nothing of it runs twice."""
    runtime = start(max_actors=2)
    (folder / "gate-clock").touch()
    receipt = runtime.conversation("order-1").submit("stall clock")
    until(lambda: len(noted("stall")) == 1)
    before = runtime.describe()
    assert before.supervisor_pid is not None
    os.kill(before.supervisor_pid, signal.SIGKILL)
    after = runtime.describe()  # it has waited for the silent one, and has gone on without it
    assert after.supervisor_pid != before.supervisor_pid
    until(lambda: runtime.describe().counts.get("sweeps", 0) > 0, 60)
    assert len(noted("stall")) == 1
    (folder / "gate-clock").unlink()
    assert receipt.result(timeout=60).outcome == "completed"
    assert len(noted("stall")) == 1
    assert runtime.submission(receipt.submission_id).attempts == 1
    check(runtime)


@pytest.mark.requirement("DUR-014")
def test_a_process_is_drained_and_its_work_goes_on_without_a_charge(start: Start, folder: Path) -> None:
    """F3 on Ray: a planned replacement uses no budget, and no finished tool runs again."""
    runtime = start(max_actors=3, drain_grace_s=1.0, recoveries_max=0)
    (folder / "gate-shoes").touch()
    receipt = runtime.conversation("order-1").submit("look shoes")
    until(lambda: len(noted("look_up")) == 1)
    (owner,) = [actor for actor in runtime.describe().actors if actor.conversations]
    runtime.drain(owner.name)
    with pytest.raises(NotFound):
        runtime.drain(owner.name)
    until(lambda: len(noted("look_up")) == 2)
    (folder / "gate-shoes").unlink()
    assert receipt.result(timeout=60).outcome == "completed"
    assert decided(runtime, "order-1") == []
    found = runtime.describe()
    assert owner.pid not in [actor.pid for actor in found.actors]
    assert (found.counts["drained"], found.counts.get("died", 0)) == (1, 0)
    check(runtime)


@pytest.mark.requirement("DUR-009", "DUR-014")
def test_planned_ends_use_no_budget_and_let_a_charge_come_to_its_end(
    start: Start, folder: Path, tmp_path: Path
) -> None:
    """F3: the runtime is ended again and again with one recovery allowed; an uncertain call gets its grace."""
    settings = {"recoveries_max": 1, "drain_grace_s": 0.2}
    (folder / "gate-shoes").touch()
    runtime = start(namespace="planned-0", **settings)
    submission = runtime.conversation("order-1").submit("look shoes").submission_id
    for number in range(1, 4):
        until(lambda number=number: len(noted("look_up")) == number)
        runtime.stop()
        runtime = start(namespace=f"planned-{number}", **settings)
    until(lambda: len(noted("look_up")) == 4)
    (folder / "gate-shoes").unlink()
    assert runtime.receipt(submission).result(timeout=60).outcome == "completed"
    assert decided(runtime, "order-1") == []
    runtime.stop()

    (folder / "gate-card").touch()
    runtime = start(namespace="planned-grace", drain_grace_s=30.0)
    charge = runtime.conversation("order-2").submit("charge card").submission_id
    until(lambda: len(noted("charge")) == 1)
    owner = runtime.conversation("order-2").actor
    closing = owner.close.remote()
    until(lambda: ray.get(owner.stats.remote())["draining"])
    (folder / "gate-card").unlink()
    ray.get(closing, timeout=60)
    assert runtime.submission(charge).state == "ready"
    runtime.stop()
    runtime = start(namespace="planned-after")
    assert runtime.receipt(charge).result(timeout=60).outcome == "completed"
    assert len(noted("charge")) == 1
    assert decided(runtime, "order-2") == []
    check(runtime)


def test_operators_reach_a_runtime_on_ray(start: Start, folder: Path) -> None:
    runtime = start()
    done = runtime.conversation("a").submit("hello")
    done.result(timeout=60)
    with pytest.raises(Refused) as caught:
        runtime.retry(done.submission_id, author="ann")
    assert caught.value.code == "not_failed"
    held = runtime.quarantine("a", reason="a look", author="ann")
    assert runtime.quarantined() == [held]
    later = runtime.conversation("a").submit("hello")
    assert later.status() == "ready"
    (obligation,) = runtime.obligations()
    assert obligation.quarantined
    assert runtime.describe().counts["quarantined"] == 1
    runtime.release_quarantine("a", author="ann")
    assert later.result(timeout=60).outcome == "completed"
    assert runtime.dead_letters(every=True) == []
    check(runtime)
