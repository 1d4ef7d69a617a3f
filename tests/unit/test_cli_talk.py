"""submit, steer, log, watch and abort on a runtime of the command's own, and on a store whose runtime is down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import json_of, refused
from cli_runs import laneway as run

from laneway.cluster.cli_records import record_line

LOCAL = ("--local", "--agents", "cli_agents:agents", "--store", "s.duckdb")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANEWAY_HOME", str(tmp_path / "home"))
    return tmp_path


def test_submit_prints_the_receipt_and_waits_for_the_outcome() -> None:
    found = json_of("submit", "c", "hello", "--agent", "echo", "--key", "k", "--principal", "alice", *LOCAL)
    assert found["receipt"]["conversation_id"] == "c"
    assert found["receipt"]["queue_sequence"] == 1
    assert found["receipt"]["replayed"] is False
    assert found["settlement"]["outcome"] == "completed"
    assert found["settlement"]["output"] == "you said hello"
    again = json_of("submit", "c", "hello", "--agent", "echo", "--key", "k", "--principal", "alice", *LOCAL)
    assert again["receipt"] == {**found["receipt"], "replayed": True}
    assert again["settlement"] == found["settlement"]


def test_people_read_receipt_and_outcome() -> None:
    result = run("submit", "c", "21", "--agent", "echo", *LOCAL)
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert first.startswith("accepted: sub_")
    assert second == "completed: it is 42"
    assert result.stderr == ""


def test_an_answer_cannot_steer_the_terminal() -> None:
    result = run("submit", "c", "\x1b[2J\u202ewiped", "--agent", "echo", *LOCAL)
    assert result.stdout.splitlines()[-1] == "completed: you said  [2J wiped"


def test_a_failed_submission_ends_with_1() -> None:
    found = json_of("submit", "c", "fail", "--agent", "echo", *LOCAL, code=1)
    assert found["settlement"]["outcome"] == "failed"
    assert found["settlement"]["error"]["code"] == "model_refused"
    assert run("submit", "c", "fail", "--agent", "echo", *LOCAL).stdout.endswith(
        "failed: model_refused: it does not want to\n"
    )


def test_no_wait_ends_at_the_receipt_and_the_work_goes_on_later() -> None:
    found = json_of("submit", "c", "hello", "--agent", "echo", "--no-wait", *LOCAL)
    assert found["settlement"] is None
    settled = json_of("submit", "c", "again", "--agent", "echo", *LOCAL)
    assert settled["receipt"]["queue_sequence"] == 2
    rows = json_of("ps", "--store", "s.duckdb")["submissions"]
    assert [row["state"] for row in rows] == ["completed", "completed"]


def test_steer_reaches_the_run_that_is_under_way() -> None:
    """No agent is named: it is the run's. What is not waited for ends at the receipt."""
    held = json_of("submit", "c", "hello", "--agent", "never", "--no-wait", *LOCAL)
    found = json_of("steer", "c", "left", "--key", "k", "--no-wait", *LOCAL)
    assert (found["receipt"]["queue_sequence"], found["settlement"]) == (2, None)
    again = json_of("steer", "c", "left", "--key", "k", "--no-wait", *LOCAL)
    assert again["receipt"] == {**found["receipt"], "replayed": True}
    late = run("steer", "c", "-", "--timeout", "0", *LOCAL, input="right\n")
    assert (late.exit_code, "is still open after 0 s" in late.stderr) == (1, True)
    assert late.stdout.startswith("accepted: sub_")
    rows = json_of("ps", "--store", "s.duckdb")["submissions"]
    assert [row["steers"] for row in rows] == [None, *[held["receipt"]["submission_id"]] * 2]
    assert [row["agent"] for row in rows] == ["never"] * 3


def test_steer_is_refused_where_nothing_runs() -> None:
    assert refused("steer", "c", "left", *LOCAL, code=1)["code"] == "nothing_to_steer"
    json_of("submit", "c", "hello", "--agent", "echo", *LOCAL)
    assert refused("steer", "c", "left", *LOCAL, code=1)["code"] == "nothing_to_steer"
    assert refused("steer", "c", "", *LOCAL)["details"]["field"] == "input"


def test_a_line_of_the_log_says_how_an_input_came_in() -> None:
    record = {"type": "input_recorded", "queue_sequence": 2, "content": "left"}
    assert record_line(5, record).endswith("#2 left")
    assert record_line(5, {**record, "kind": "steering"}).endswith("#2 (steering) left")
    assert record_line(5, {**record, "kind": "follow_up"}).endswith("#2 (follow_up) left")
    assert record_line(5, {**record, "steers": "sub_1"}).endswith("#2 (its run had ended: sub_1) left")


def test_the_only_agent_need_not_be_named() -> None:
    found = json_of("submit", "c", "hello", "--local", "--agents", "cli_agents:one")
    assert found["settlement"]["outcome"] == "completed"
    error = refused("submit", "c", "hello", *LOCAL)
    assert error["details"]["field"] == "agent"
    assert "echo, other, never, words" in error["message"]


def test_standard_input_is_taken_as_it_is_but_for_one_line_break() -> None:
    arguments = ("submit", "c", "-", "--agent", "echo", *LOCAL)
    found = json_of(*arguments, input="  two\nlines\n\n")
    assert found["settlement"]["output"] == "you said   two\nlines\n"
    assert refused(*arguments, input=b"\xff\xfe")["details"] == {"field": "input"}
    assert refused(*arguments, input="\n")["message"] == "input must not be empty"


@pytest.mark.parametrize(
    ("arguments", "field", "limit"),
    [
        (("submit", "c", "", "--agent", "echo"), "input", None),
        (("submit", "c", "x" * ((1 << 20) + 1), "--agent", "echo"), "input", 1 << 20),
        (("submit", "c", "a\ud800b", "--agent", "echo"), "input", None),
        (("submit", "c", "hello", "--agent", "nobody"), "agent", None),
        (("submit", "c", "hello", "--agent", ""), "agent", None),
        (("submit", "", "hello", "--agent", "echo"), "conversation_id", None),
        (("submit", "c" * 257, "hello", "--agent", "echo"), "conversation_id", 256),
        (("submit", "c", "hello", "--agent", "echo", "--key", "k" * 257), "idempotency_key", 256),
        (("submit", "c", "hello", "--agent", "echo", "--principal", ""), "principal", None),
        (("abort", "sub_1", "--author", ""), "author", None),
        (("abort", "sub_1", "--reason", "x" * 5000), "reason", 4096),
    ],
)
def test_bad_input_names_the_field_and_the_limit(
    arguments: tuple[str, ...], field: str, limit: int | None, folder: Path
) -> None:
    error = refused(*arguments, *LOCAL)
    assert error["details"]["field"] == field
    assert error["details"].get("limit") == limit
    assert json_of("ps", "--store", "s.duckdb")["submissions"] == []


def test_another_payload_under_the_same_key_shows_both_digests() -> None:
    arguments = ("--agent", "echo", "--key", "k", *LOCAL)
    json_of("submit", "c", "hello", *arguments)
    error = refused("submit", "c", "other", *arguments)
    assert error["code"] == "admission_conflict"
    digests = {error["details"]["stored_digest"], error["details"]["given_digest"]}
    assert len(digests) == 2
    line = run("submit", "c", "other", *arguments).stderr
    assert all(digest in line for digest in digests)


def test_agents_and_store_go_with_local() -> None:
    assert refused("submit", "c", "x", "--agents", "cli_agents:agents")["details"] == {"field": "agents"}
    assert refused("watch", "c", "--store", "s.duckdb")["details"] == {"field": "store"}
    assert refused("submit", "c", "x", "--local", "--agents", "no_such:agents")["details"] == {"field": "agents"}


def test_nobody_at_the_address_is_3() -> None:
    error = refused("submit", "c", "x", "--address", "127.0.0.1:1", code=3)
    assert error["code"] == "runtime_unreachable"
    assert "laneway up --agents" in error["message"]
    assert refused("log", "c", "--namespace", "no good")["details"]["field"] == "namespace"


def test_log_shows_records_behind_a_sequence() -> None:
    json_of("submit", "c", "21", "--agent", "echo", *LOCAL)
    lines = run("log", "c", "--store", "s.duckdb").stdout.splitlines()
    assert [line.split()[2] for line in lines] == [
        "conversation_created",
        "input_recorded",
        "run_started",
        "model_responded",
        "tool_call_prepared",
        "tool_call_settled",
        "model_responded",
        "run_completed",
        "submission_settled",
    ]
    assert lines[3].endswith('turn 1: double({"number": 21})')
    assert lines[-1].endswith("completed: it is 42")
    result = run("log", "c", "--store", "s.duckdb", "--after", "7", "--json")
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(record["sequence"], record["type"]) for record in records] == [
        (8, "run_completed"),
        (9, "submission_settled"),
    ]
    assert records[0]["committed_at"].endswith("Z")


def test_log_of_a_conversation_that_nobody_knows() -> None:
    json_of("submit", "c", "hello", "--agent", "echo", *LOCAL)
    assert refused("log", "d", "--store", "s.duckdb", code=1)["code"] == "not_found"
    assert run("log", "c", "--store", "s.duckdb", "--after", "1000").stdout == ""
    assert run("log", "c", "--after", "-1").exit_code == 2


def test_watch_shows_each_record_once_and_ends() -> None:
    json_of("submit", "c", "hello", "--agent", "echo", "--no-wait", *LOCAL)
    result = run("watch", "c", *LOCAL, "--json")
    assert result.exit_code == 0
    events = [json.loads(line) for line in result.stdout.splitlines()]
    canonical = [event["sequence"] for event in events if not event["provisional"]]
    assert canonical == list(range(1, len(canonical) + 1))
    assert events[-1]["type"] == "submission_settled"
    lines = run("watch", "c", "--after", "1", "--no-deltas", *LOCAL).stdout.splitlines()
    assert lines[-1].endswith("completed: you said hello")
    assert len(lines) == len(canonical) - 1
    assert refused("watch", "d", *LOCAL, code=1)["code"] == "not_found"


def test_watch_shows_text_before_it_is_recorded() -> None:
    json_of("submit", "c", "hello", "--agent", "words", "--no-wait", *LOCAL)
    lines = run("watch", "c", "--after", "3", *LOCAL).stdout.splitlines()
    assert "slow and steady" in lines
    assert lines[-1].endswith("completed: slow and steady")


def test_abort_of_settled_and_of_unknown_work_is_refused() -> None:
    found = json_of("submit", "c", "hello", "--agent", "echo", *LOCAL)
    submission = found["receipt"]["submission_id"]
    assert refused("abort", submission, *LOCAL, code=1)["code"] == "already_settled"
    assert refused("abort", "sub_none", *LOCAL, code=1)["code"] == "not_found"
    assert refused("abort", "", *LOCAL)["details"] == {"field": "submission"}


def test_abort_of_work_that_is_under_way() -> None:
    json_of("submit", "c", "hello", "--agent", "never", "--no-wait", *LOCAL)
    (row,) = json_of("ps", "--store", "s.duckdb")["submissions"]
    assert row["settled_at"] is None
    found = json_of("abort", row["submission_id"], "--reason", "asked twice", "--author", "alice", *LOCAL)
    assert (found["author"], found["reason"], found["replayed"]) == ("alice", "asked twice", False)
    events = [json.loads(line) for line in run("watch", "c", *LOCAL, "--json").stdout.splitlines()]
    assert events[-1]["data"]["outcome"] == "aborted"
    assert json_of("ps", "--store", "s.duckdb", "--state", "aborted")["submissions"][0]["outcome"] == "aborted"


def test_a_timeout_ends_with_1_and_the_work_stays_open() -> None:
    arguments = ("submit", "c", "hello", "--agent", "never", "--timeout", "0.05", *LOCAL)
    result = run(*arguments)
    assert result.exit_code == 1
    assert "is still open after 0.05 s and goes on. It is running: A live process works on it" in result.stderr
    assert "Follow it with `laneway watch c`" in result.stderr
    (row,) = json_of("ps", "--store", "s.duckdb")["submissions"]
    assert row["settled_at"] is None
