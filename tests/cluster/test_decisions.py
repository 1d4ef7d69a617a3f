"""People decide from other processes, while the processes that asked them are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import cluster_agents
import pytest
from cluster_agents import noted, until

import laneway
from laneway import Refused

Start = Callable[..., laneway.Runtime]


def kill_hosts(runtime: laneway.Runtime) -> None:
    for actor in runtime.describe().actors:
        if actor.conversations:
            os.kill(actor.pid, signal.SIGKILL)


@pytest.mark.requirement("DUR-013", "DUR-017")
def test_an_approval_outlives_who_asked_and_is_decided_elsewhere(start: Start, folder: Path) -> None:
    """K13, F8 on Ray: asked once, the asking process killed, decided through another connection, run once."""
    runtime = start(authorize=cluster_agents.only_ann)
    receipt = runtime.conversation("order-1").submit("refund shoes")
    until(lambda: receipt.status() == "suspended")
    kill_hosts(runtime)
    with laneway.connect(namespace=runtime.describe().namespace) as other:
        told = other.explain(receipt.submission_id)
        assert [item["tool"] for item in told.waits_for] == ["refund"]
        with pytest.raises(Refused) as caught:
            other.approve(receipt.submission_id, author="bob")
        assert caught.value.code == "not_authorised"
        assert noted("refund") == []
        assert other.approve(receipt.submission_id, author="ann").decision == "approved"
    assert receipt.result(timeout=30).text == "the result is paid back"
    kinds = [record["type"] for record in runtime.conversation("order-1").log()]
    assert (kinds.count("approval_requested"), kinds.count("approval_decided")) == (1, 1)
    assert (len(noted("refund")), len(noted("model"))) == (1, 2)
    assert os.getpid() not in {int(line.split()[2]) for line in noted("acts")}  # the check runs beside the lanes
    report = runtime.verify(require_settled=True)
    assert report.passed, report.problems


@pytest.mark.requirement("DUR-009", "DUR-017")
def test_an_unknown_call_is_resolved_from_outside(start: Start, folder: Path) -> None:
    """K11 on Ray: the process died in the middle of the charge; an operator's word carries the run on."""
    runtime = start()
    (folder / "gate-card").touch()
    receipt = runtime.conversation("order-1").submit("charge card")
    until(lambda: len(noted("charge")) == 1)
    kill_hosts(runtime)
    until(lambda: receipt.status() == "unknown")
    (folder / "gate-card").unlink()
    with pytest.raises(TimeoutError, match="The outcome of a call is unknown"):
        receipt.result(timeout=0.5)
    moved = runtime.resolve_unknown(
        receipt.submission_id,
        "completed_with_result",
        result="charged, says the bank",
        author="ann",
        reason="statement",
    )
    assert moved.state == "ready"
    assert receipt.result(timeout=30).text == "the result is charged, says the bank"
    assert (len(noted("charge")), len(noted("model"))) == (1, 2)
    report = runtime.verify(require_settled=True)
    assert report.passed, report.problems
