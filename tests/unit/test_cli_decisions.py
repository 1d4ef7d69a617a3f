"""explain, approve, deny and resolve on a runtime of the command's own; explain on a store whose runtime is down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import json_of, refused
from cli_runs import laneway as run

from laneway.cluster import cli_talk
from laneway.cluster.offline import open_offline

LOCAL = ("--local", "--agents", "cli_agents:agents", "--store", "s.duckdb")
ANN = ("--author", "ann")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANEWAY_HOME", str(tmp_path / "home"))
    return tmp_path


def waiting(agent: str) -> str:
    """A submission that somebody has to decide on; who waits for it is told so."""
    result = run("submit", "c", "go", "--agent", agent, "--key", "k", "--timeout", "0.5", "--json", *LOCAL)
    assert result.exit_code == 1
    submission: str = json.loads(result.stdout)["receipt"]["submission_id"]
    assert f"Say what to do: `laneway explain {submission}` shows how" in result.stderr
    return submission


def outcome(agent: str) -> dict[str, object]:
    return json_of("submit", "c", "go", "--agent", agent, "--key", "k", *LOCAL)["settlement"]


@pytest.mark.requirement("DUR-013")
def test_explain_says_why_and_what_to_type() -> None:
    submission = waiting("careful")
    told = json_of("explain", submission, "--store", "s.duckdb")
    assert (told["state"], told["decision"]) == ("suspended", "wait_approval")
    first, second = told["waits_for"]
    assert (first["tool"], first["arguments"], first["kind"]) == ("pay", '{"eur": 9}', "approval")
    assert first["approval_id"] != second["approval_id"]
    shown = run("explain", submission, "--store", "s.duckdb").stdout
    assert f"you may   laneway approve {submission} --approval {first['approval_id']}" in shown
    assert 'pay {"eur": 9}' in shown
    assert first["arguments_digest"] in shown
    assert refused("explain", "sub_unheard", "--store", "s.duckdb", code=1)["code"] == "not_found"
    assert refused("explain", "", "--store", "s.duckdb")["details"]["field"] == "submission"


def test_approve_and_deny_by_name_and_all() -> None:
    submission = waiting("careful")
    assert refused("approve", submission, *ANN, *LOCAL)["details"]["field"] == "approval"
    first = json_of("explain", submission, "--store", "s.duckdb")["waits_for"][0]
    wrong = ("--approval", first["approval_id"], "--arguments-digest", "00")
    assert refused("approve", submission, *ANN, *wrong, *LOCAL, code=1)["code"] == "approval_digest_mismatch"
    denied = json_of("deny", submission, *ANN, "--approval", first["call_id"], "--reason", "no", *LOCAL)
    assert (denied["decision"], denied["author"], denied["state"]) == ("denied", "ann", "suspended")
    assert refused("approve", submission, *ANN, "--approval", first["call_id"], *LOCAL, code=1)["code"] == (
        "already_decided"
    )
    result = run("approve", submission, *ANN, "--all", *LOCAL)
    assert result.exit_code == 0
    assert result.stdout.startswith("approved by ann; ")
    assert outcome("careful")["output"] == "it says paid 9"
    assert refused("approve", submission, *ANN, *LOCAL, code=1)["code"] == "approval_not_open"


@pytest.mark.requirement("DUR-009", "DUR-017")
def test_resolve_answers_for_an_unknown_call() -> None:
    """K8 by hand: what does not apply is refused with the recorded fact, what applies carries the run on."""
    submission = waiting("lost")
    told = json_of("explain", submission, "--store", "s.duckdb")
    assert (told["state"], told["waits_for"][0]["tool"]) == ("unknown", "charge")
    assert any("never_started" in action for action in told["actions"])
    base = ("resolve", submission)
    why = (*ANN, "--reason", "statement")
    assert refused(*base, "perhaps", *why, *LOCAL)["details"]["field"] == "resolution"
    assert refused(*base, "completed_with_result", "--result", "{", *why, *LOCAL)["details"]["field"] == "result"
    forgotten = refused(*base, "completed_with_result", *why, *LOCAL)
    assert (forgotten["details"]["field"], "needs --result" in str(forgotten["message"])) == ("result", True)
    assert refused(*base, "never_started", "--call", "call_x", *why, *LOCAL, code=1)["code"] == "call_not_unknown"
    found = json_of(*base, "completed_with_result", "--result", '"ch_1"', *why, *LOCAL)
    assert (found["submission_id"], found["replayed"]) == (submission, False)
    assert outcome("lost")["output"] == "it says ch_1"
    assert refused(*base, "never_started", *why, *LOCAL, code=1)["code"] == "call_not_unknown"


def test_a_decision_names_its_author() -> None:
    for command in (("approve", "sub_1"), ("deny", "sub_1"), ("resolve", "sub_1", "abort", "--reason", "x")):
        result = run(*command, *LOCAL)
        assert result.exit_code == 2
        assert "--author" in result.stderr


@pytest.mark.parametrize(("agent", "verb"), [("careful", "deny"), ("lost", "resolve")])
def test_what_explain_tells_to_type_is_a_whole_command(agent: str, verb: str) -> None:
    """An action is accepted once the words in capitals are filled in."""
    filled = {"NAME": "ann", "EVIDENCE": "seen", "JSON": "null"}
    told = json_of("explain", waiting(agent), "--store", "s.duckdb")
    action = next(found for found in told["actions"] if found.split()[1] == verb)
    words = [filled.get(word, word) for word in action.split()[1:]]
    assert run(*words, *LOCAL).exit_code == 0, action


def test_a_submission_that_waits_says_so_at_its_timeout() -> None:
    result = run("submit", "c", "go", "--agent", "careful", "--timeout", "0.5", *LOCAL)
    assert "is still open after 0.5 s and waits for a person. It is suspended" in result.stderr


def test_watch_tells_once_who_waits_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    submission = waiting("careful")
    told: set[str] = set()
    with open_offline("s.duckdb") as runtime:
        for _ in range(2):
            cli_talk._tell_waiting(runtime, "c", told)
    said = f"it waits for a person: `laneway explain {submission}` shows what to decide\n"
    assert capsys.readouterr().err == said


def test_a_submission_behind_one_that_waits_names_that_one() -> None:
    first = waiting("careful")
    result = run("submit", "c", "more", "--agent", "careful", "--timeout", "0.5", *LOCAL)
    assert "and waits for a person. It is ready: It waits in its queue behind 1 open submission" in result.stderr
    assert f"`laneway explain {first}` shows how" in result.stderr
