"""A process in which an effect cannot be ended is replaced, on real Ray; nothing that runs beside it is interrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_agents import noted, until

import laneway


@pytest.mark.requirement("DUR-009", "DUR-012")
def test_a_tool_that_cannot_be_ended_costs_its_process_and_nothing_else(
    start: Callable[..., laneway.Runtime], folder: Path
) -> None:
    """F18 on Ray: the abort settles with its evidence, and its neighbour's call ends where it began."""
    runtime = start(max_actors=1, spare_actors=0, sweep_s=0.5, abandon_after_s=0.2)
    for name in ("rope", "shoes"):
        (folder / f"gate-{name}").touch()
    stuck = runtime.conversation("stuck").submit("cling rope")
    neighbour = runtime.conversation("neighbour").submit("look shoes")
    until(lambda: len(noted("cling")) == len(noted("look_up")) == 1)
    pid = int(noted("cling")[0].split()[1])
    assert pid == int(noted("look_up")[0].split()[1])
    stuck.abort(reason="let go", author="alice")
    assert stuck.result(timeout=30).outcome == "aborted"
    kinds = [record["type"] for record in runtime.conversation("stuck").log()]
    assert kinds.count("tool_call_unknown") == 1
    until(lambda: {actor.pid for actor in runtime.describe().actors} > {pid})  # a new one is there
    assert neighbour.status() == "running"
    later = runtime.conversation("stuck").submit("hello")
    assert later.result(timeout=30).text == "you said hello"
    (folder / "gate-shoes").unlink()
    assert neighbour.result(timeout=30).outcome == "completed"
    until(lambda: pid not in {actor.pid for actor in runtime.describe().actors})
    assert (len(noted("cling")), len(noted("look_up"))) == (1, 1)
    assert runtime.conversation("neighbour").submit("hello").result(timeout=30).text == "you said hello"
    report = runtime.verify(require_settled=True)
    assert report.passed, report.problems
