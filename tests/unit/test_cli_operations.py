"""obligations, dead-letters, retry and quarantine on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_agents import agents
from cli_runs import json_of, refused
from cli_runs import laneway as run

import laneway
from laneway import Agent, FunctionModel, ModelError
from laneway.cluster.cli_records import record_line

STORE = ("--store", "s.duckdb")
LOCAL = ("--local", "--agents", "cli_agents:agents", *STORE)


def away(request: object) -> str:
    raise ModelError("away", code="model_unavailable")


@pytest.fixture(autouse=True)
def ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A store with a dead letter, a refusal, and work whose agent is gone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANEWAY_HOME", str(tmp_path / "home"))
    gone = Agent(name="gone", model=FunctionModel(away))
    desk = Agent(name="echo", model=FunctionModel(away))
    found: dict[str, str] = {}
    with laneway.local([desk, gone], "s.duckdb") as runtime:
        receipt = runtime.conversation("a", "echo").submit("hello")
        receipt.result(timeout=10)
        found["dead"] = receipt.submission_id
        runtime.quarantine("a", reason="until it is looked at", author="ann")
        found["held"] = runtime.conversation("a", "gone").submit("later").submission_id
    with laneway.local(agents, "s.duckdb") as runtime:
        receipt = runtime.conversation("b", "echo").submit("fail")
        receipt.result(timeout=10)
        found["refused"] = receipt.submission_id
    return found


def test_dead_letters(ids: dict[str, str]) -> None:
    (letter,) = json_of("dead-letters", *STORE)
    assert (letter["submission_id"], letter["code"]) == (ids["dead"], "model_unavailable")
    assert letter["settled_at"].endswith("Z")
    assert [found["submission_id"] for found in json_of("dead-letters", "--all", *STORE)] == [
        ids["dead"],
        ids["refused"],
    ]
    assert ids["dead"] in run("dead-letters", *STORE).stdout
    assert run("dead-letters", "--limit", "0", *STORE).exit_code == 2


def test_obligations(ids: dict[str, str]) -> None:
    (found,) = json_of("obligations", *STORE)
    assert (found["submission_id"], found["waits_for"], found["quarantined"]) == (ids["held"], "operator", True)
    assert found["why"] == "Its conversation is quarantined by ann: until it is looked at"
    assert "until it is looked at" in run("obligations", *STORE).stdout
    assert json_of("obligations", "--overdue", "3600", *STORE) == []
    assert run("obligations", "--overdue", "-1", *STORE).exit_code == 2


def test_quarantine_is_listed_released_and_set_again(ids: dict[str, str]) -> None:
    (held,) = json_of("quarantine", "list", *STORE)
    assert (held["conversation_id"], held["author"], held["reason"]) == ("a", "ann", "until it is looked at")
    assert "until it is looked at" in run("quarantine", "list", *STORE).stdout
    assert json_of("ps", *STORE)["runtime"]["counts"]["quarantined"] == 1
    assert "quarantined conversations: 1, see `laneway quarantine list`" in run("ps", *STORE).stdout
    released = json_of("quarantine", "release", "a", "--author", "bob", *LOCAL)
    assert (released["reason"], released["released_by"]) == ("until it is looked at", "bob")
    assert refused("quarantine", "release", "a", "--author", "carol", *LOCAL, code=1)["code"] == "not_quarantined"
    plain = run("quarantine", "add", "a", "--author", "bob", "--reason", "again", *LOCAL)
    assert plain.exit_code == 0
    assert plain.stdout.splitlines()[-1] == "reason: again"
    assert json_of("quarantine", "list", *STORE)[0]["author"] == "bob"
    answer = run("quarantine", "release", "a", "--author", "bob", *LOCAL).stdout
    assert answer == "a is released; it was quarantined for: again\n"
    assert refused("quarantine", "add", "z", "--author", "b", "--reason", "r", *LOCAL, code=1)["code"] == "not_found"
    assert run("quarantine").exit_code == 2


def test_retry(ids: dict[str, str]) -> None:
    json_of("quarantine", "release", "a", "--author", "bob", *LOCAL)
    found = json_of("retry", ids["dead"], "--author", "ann", "--reason", "it is back", *LOCAL)
    assert found["retry_of"] == ids["dead"]
    assert found["replayed"] is False
    again = run("retry", ids["dead"], "--author", "ann", *LOCAL)
    assert again.exit_code == 0, again.stderr
    assert again.stdout.splitlines()[0] == f"{ids['dead']} is tried again already as {found['submission_id']}"
    assert refused("retry", "sub_nobody", "--author", "ann", *LOCAL, code=1)["code"] == "not_found"
    assert refused("retry", "", "--author", "ann", *LOCAL)["details"] == {"field": "submission"}
    assert run("retry", ids["dead"], *LOCAL).exit_code == 2


def test_the_log_tells_where_a_retry_comes_from() -> None:
    retry_of = {"submission_id": "sub_1", "number": 2, "author": "ann"}
    record = {"type": "input_recorded", "queue_sequence": 3, "content": "hello", "retry_of": retry_of}
    assert record_line(7, record).endswith("#3 hello (retry 2 of sub_1 by ann)")


@pytest.mark.parametrize("name", ["list", "add", "release"])
def test_each_part_of_quarantine_has_help(name: str) -> None:
    text = run("quarantine", name, "--help").stdout
    assert f"Example:\n    laneway quarantine {name}" in text
    assert "--json" in text


def test_work_that_waits_for_its_agent_is_made_due(ids: dict[str, str]) -> None:
    json_of("quarantine", "release", "a", "--author", "bob", *LOCAL)
    with laneway.local(agents, "s.duckdb"):
        pass
    (found,) = json_of("obligations", *STORE)
    assert found["waits_for"] == "time"
    assert run("retry", ids["held"], "--author", "ann", *LOCAL).stdout == f"{ids['held']} may be claimed now\n"


def test_lists_say_what_may_be_done_and_when_there_is_nothing(ids: dict[str, str]) -> None:
    assert "next: laneway retry" not in run("obligations", *STORE).stdout
    assert run("obligations", *STORE).stdout.endswith("next: laneway explain SUBMISSION\n")
    assert "laneway retry SUBMISSION --author NAME" in run("dead-letters", *STORE).stdout
    assert "laneway quarantine release CONVERSATION" in run("quarantine", "list", *STORE).stdout
    with laneway.local(agents, "empty.duckdb"):
        pass
    for command, said in (
        (("obligations",), "nothing is owed"),
        (("obligations", "--overdue", "60"), "nothing is owed for as long as 60 s"),
        (("dead-letters",), "no dead letters; --all shows every failed submission"),
        (("dead-letters", "--all"), "nothing has failed"),
        (("quarantine", "list"), "no conversation is quarantined"),
    ):
        assert run(*command, "--store", "empty.duckdb").stdout == f"{said}\n"
    assert run("ps", "--store", "empty.duckdb").stdout.endswith("\nno submissions\n")
    assert run("ps", "--state", "unknown", *STORE).stdout.endswith("\nno such submissions\n")


def test_explain_names_the_quarantine_of_what_waits(ids: dict[str, str]) -> None:
    told = json_of("explain", ids["held"], *STORE)
    assert told["why"] == "Its conversation is quarantined by ann: until it is looked at"
    assert told["actions"][0] == "laneway quarantine release a --author NAME"
