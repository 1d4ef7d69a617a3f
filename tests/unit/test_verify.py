"""The convergence check over a whole store: damage is named, work under way is no damage."""

from __future__ import annotations

import threading
from pathlib import Path

import duckdb
import pytest

import laneway
from laneway import Agent, FunctionModel
from laneway.cluster.offline import open_offline

AGENT = Agent(name="a", model=FunctionModel(lambda request: "done"))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE batch_log SET body = replace(body, 'done', 'gone') WHERE conversation_id = 'b'",
        "UPDATE batch_log SET body = '[{' WHERE conversation_id = 'b' AND first_sequence = 1",
        "DELETE FROM batch_log WHERE conversation_id = 'b' AND first_sequence = 1",
        "UPDATE ledger SET detail = '{' WHERE conversation_id = 'b'",
    ],
)
def test_a_damaged_conversation_is_named_and_the_others_are_checked(tmp_path: Path, damage: str) -> None:
    """F23: one damaged row; the report names its conversation."""
    store = tmp_path / "laneway.duckdb"
    with laneway.local(AGENT, store=store) as runtime:
        for name in "abc":
            runtime.conversation(name).submit("hi").result(10)
    connection = duckdb.connect(str(store))
    connection.execute(damage)
    connection.close()
    with open_offline(store) as runtime:
        report = runtime.verify(require_settled=True)
    assert report.conversations == 3
    assert {problem.conversation_id for problem in report.problems} == {"b"}


@pytest.mark.parametrize(
    ("damage", "rule", "told"),
    [
        ("DELETE FROM ledger WHERE queue_sequence = 1", "a", "no submission with queue sequence 1"),
        (
            "UPDATE ledger SET detail = replace(detail, '\"input_sequence\":2', '\"input_sequence\":5')",
            "a",
            "its input stands at 2",
        ),
        ("UPDATE ledger SET state = 'unknown' WHERE queue_sequence = 2", "b", "the ledger unknown"),
        ("UPDATE ledger SET state = 'suspended' WHERE queue_sequence = 2", "b", "the ledger suspended"),
        (
            'UPDATE ledger SET detail = replace(detail, \'"digest":"\', \'"digest":"0\') WHERE queue_sequence = 2',
            "b",
            "not the reserved one",
        ),
    ],
)
def test_a_ledger_that_was_changed_behind_the_store_is_told(tmp_path: Path, damage: str, rule: str, told: str) -> None:
    """F23: rules a and b, over a file: what vanished, what does not fit the log, and what was not reserved (K17)."""
    store = tmp_path / "laneway.duckdb"
    with laneway.local(AGENT, store=store) as runtime:
        for _ in range(2):
            runtime.conversation("c").submit("hi").result(10)
        assert runtime.verify(require_settled=True).passed
    connection = duckdb.connect(str(store))
    before = connection.execute("SELECT * FROM ledger ORDER BY queue_sequence").fetchall()
    connection.execute(damage)
    assert connection.execute("SELECT * FROM ledger ORDER BY queue_sequence").fetchall() != before
    connection.close()
    with open_offline(store) as runtime:
        for require_settled in (True, False):
            problems = runtime.verify(require_settled=require_settled).problems
            assert (rule, True) in {(problem.check, told in problem.message) for problem in problems}, problems


def test_work_under_way_is_no_damage() -> None:
    stop = threading.Event()
    with laneway.local(AGENT) as runtime:

        def talk() -> None:
            while not stop.is_set():
                runtime.conversation("c").submit("hi").result(10)

        talking = threading.Thread(target=talk)
        talking.start()
        try:
            for _ in range(20):
                report = runtime.verify()
                assert report.passed, report.problems
        finally:
            stop.set()
            talking.join()
