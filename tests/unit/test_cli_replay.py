"""replay: synthetic recordings of every kind through a runtime of the command's own, and back by export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runs import json_of, refused
from cli_runs import laneway as run

import laneway
from laneway.agents import read_recordings, replay_agent
from laneway.cluster.executions import append_line, counted, read_executions

CALL = {"id": "call_1", "type": "function", "function": {"name": "look up", "arguments": "not even JSON"}}
DEEP = json.loads("[" * 70 + "]" * 70)
USER = {"role": "user", "content": "hi"}
ANSWERED: list[dict[str, Any]] = [
    {"role": "user", "content": "hi", "name": "Ann"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "look"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "look up", "content": "one"},
    {"role": "tool", "tool_call_id": "call_1", "content": ""},
    {"role": "assistant", "content": "there", "refusal": None},
]
ENDS_UNANSWERED = [*ANSWERED, {"role": "user", "content": "and?"}]
ENDS_IN_RESULT = ANSWERED[:6]
ENDS_IN_CALL = ANSWERED[:4]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANEWAY_HOME", str(tmp_path / "home"))
    return tmp_path


def write(*lines: object, name: str = "in.jsonl") -> str:
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    Path(name).write_text("\n".join(text) + "\n")
    return name


def recordings() -> str:
    return write(
        {"id": "answered", "messages": ANSWERED},
        {"id": "unanswered", "messages": ENDS_UNANSWERED},
        {"id": "result", "messages": ENDS_IN_RESULT},
        {"id": "call", "messages": ENDS_IN_CALL},
    )


def test_every_end_of_a_recording_is_replayed_and_exported_again() -> None:
    file = recordings()
    found = json_of("replay", file, "--local", "--store", "s.duckdb", "--concurrency", "2")
    assert found["passed"] is True
    assert (found["conversations"], found["submissions"], found["reattached"]) == (4, 9, 0)
    assert found["outcomes"] == {"completed": 6, "failed (recording_ended)": 3}
    assert (found["model_calls"], found["tool_calls"]) == (9, 6)
    assert (found["tool_executions"], found["tool_executions_repeated"]) == (6, 0)
    assert found["tool_executions_after_commit"] == 0
    assert found["tool_executions_repeated_by_effect"] == {"readonly": 0, "idempotent": 0, "uncertain": 0}
    assert (found["model_calls_made"], found["model_calls_repeated"]) == (12, 0)  # three found no recorded answer
    assert (found["kills"], found["kills_by_kind"]) == (0, {})
    assert (found["recoveries"], found["recoveries_by_decision"]) == (0, {})
    assert (found["open"], found["problems"]) == ({}, [])
    assert found["store"] == "DR/duckdb s.duckdb"
    assert found["commits"] > 0
    assert found["turns_per_second"] > 0
    exported = [json.loads(line) for line in run("export", "--all", "--store", "s.duckdb").stdout.splitlines()]
    assert {line["id"]: line["messages"] for line in exported} == {
        "answered": ANSWERED,
        "unanswered": ENDS_UNANSWERED,
        "result": ENDS_IN_RESULT,
        "call": ENDS_IN_CALL[:3],
    }
    assert json_of("verify", "--settled", "--store", "s.duckdb")["passed"] is True


def test_the_same_file_on_the_same_store_attaches_to_what_was_done() -> None:
    file = recordings()
    first = json_of("replay", file, "--local", "--store", "s.duckdb", "--conversations", "2")
    again = json_of("replay", file, "--local", "--store", "s.duckdb")
    assert (first["submissions"], again["submissions"], again["reattached"]) == (5, 9, 5)
    assert again["tool_executions"] == 4 - 2 + 0 + 0 or again["tool_executions"] == 2
    rows = json_of("ps", "--store", "s.duckdb")["submissions"]
    assert len(rows) == 9
    other = write({"id": "answered", "messages": [USER]}, name="other.jsonl")
    found = json_of("replay", other, "--local", "--store", "s.duckdb", code=1)
    assert [(item["code"], item["line_number"]) for item in found["troubles"]] == [("admission_conflict", 1)]


def test_people_read_a_table_and_what_recording_ended_means() -> None:
    result = run("replay", recordings(), "--local")
    assert result.exit_code == 0
    assert "failed (recording_ended) " in result.stdout
    assert "normal end of such a recording" in result.stdout
    assert "user turns a second" in result.stdout
    assert "duplicate, uncertain" in result.stdout
    assert [line.split()[1:-1] for line in result.stdout.splitlines() if "convergence check" in line] == [
        ["convergence", "check", "│", "passed"]
    ]
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("line", "message", "field"),
    [
        ("{", "not JSON", ""),
        ("[1]", "must hold an object", ""),
        ({"messages": [USER]}, "id must be text", "id"),
        ({"id": "x"}, "messages must be a list", "messages"),
        ({"id": "x", "messages": []}, "messages must be a list", "messages"),
        (
            {"id": "x", "messages": [{"role": "alien", "content": "x"}]},
            "first message must be a user's",
            "messages[0].role",
        ),
        (
            {"id": "x", "messages": [USER, {"role": "alien", "content": "x"}]},
            "unknown role 'alien'",
            "messages[1].role",
        ),
        (
            {"id": "x", "messages": [USER, {"role": "tool", "tool_call_id": "call_9", "content": "x"}]},
            "which nobody made",
            "messages[1].tool_call_id",
        ),
        ({"id": "x", "messages": [{"role": "user", "content": DEEP}]}, "deeper than 64 levels", None),
        ({"id": "x", "messages": [{"role": "user", "content": "x" * (2 << 20)}]}, "limit is 1,048,576", "messages[0]"),
        ({"id": "good", "messages": [USER]}, "stands already on line 1", "id"),
        ('{"id": "x", "messages": [{"role": "user", "content": NaN}]}', "not JSON", ""),
        ('{"id": "x", "messages": [{"role": "user", "content": "\\ud800"}]}', "", None),
    ],
)
def test_a_bad_line_is_named_and_the_others_run(line: object, message: str, field: str | None) -> None:
    file = write({"id": "good", "messages": ANSWERED}, "", line, {"id": "also good", "messages": ANSWERED})
    found = json_of("replay", file, "--local", code=1)
    assert found["outcomes"] == {"completed": 4}
    assert found["passed"] is False
    (problem,) = found["bad_lines"]
    assert (problem["path"], problem["line"]) == (file, 3)
    assert message in problem["message"]
    assert field is None or problem["field"] == field
    plain = run("replay", file, "--local")
    assert plain.exit_code == 1
    assert plain.stderr.startswith(f"left out: {file}:3: ")


def test_a_user_message_that_is_refused_stops_its_conversation_alone() -> None:
    file = write(
        {"id": "empty", "messages": [USER, {"role": "user", "content": ""}, USER]},
        {"id": "good", "messages": ANSWERED},
    )
    found = json_of("replay", file, "--local", code=1)
    assert found["outcomes"] == {"completed": 2, "failed (recording_ended)": 1}
    (trouble,) = found["troubles"]
    assert (trouble["conversation_id"], trouble["line_number"], trouble["input_number"]) == ("empty", 1, 2)
    assert trouble["message"] == "input must not be empty"


def test_what_cannot_run_at_all_is_2() -> None:
    good = write({"id": "good", "messages": ANSWERED})
    assert refused("replay", "missing.jsonl", "--local")["details"] == {"field": "file"}
    assert "holds no conversation" in refused("replay", write("", name="empty.jsonl"), "--local")["message"]
    assert (
        "bad.jsonl:1: not JSON"
        in json_of("replay", write("{", name="bad.jsonl"), "--local", code=2)["error"]["message"]
    )
    assert refused("replay", good, "--local", "--system", "missing.json")["details"] == {"field": "system"}
    assert (
        refused("replay", good, "--local", "--system", write({"system": 1}, name="s.json"))["details"]["field"]
        == "system"
    )
    assert refused("replay", good, "--local", "--concurrency", "20000")["details"]["field"] == "concurrency"
    error = refused("replay", good, "--local", "--kill-every", "1")
    assert error["details"] == {"field": "kill-every"}
    assert "leave out --local" in error["message"]
    assert refused("replay", good, "--kill-every", "0")["details"] == {"field": "kill-every", "limit": 0}
    assert "goes with --kill-every" in refused("replay", good, "--chaos", "store")["message"]
    error = refused("replay", good, "--kill-every", "1", "--chaos", "store,disk")
    assert error["details"] == {"field": "chaos", "limit": "actors, store, supervisor, node"}
    assert "'disk'" in error["message"]
    for option, value in (
        ("--concurrency", "0"),
        ("--conversations", "0"),
        ("--delay", "-1"),
        ("--lanes-per-actor", "0"),
    ):
        assert run("replay", good, "--local", option, value).exit_code == 2


@pytest.mark.parametrize(
    ("content", "instructions"),
    [('{"system": "Be kind."}', "Be kind."), ("Be kind.\n", "Be kind."), ('"quoted"', '"quoted"')],
)
def test_instructions_are_json_or_text(content: str, instructions: str) -> None:
    from laneway.cluster.cli_replay import _instructions

    Path("system.json").write_text(content)
    assert _instructions(Path("system.json")) == instructions


def test_executions_are_counted_and_the_definition_stays_the_same(folder: Path) -> None:
    read, _ = read_recordings(recordings())
    agent = replay_agent(read)
    path = folder / "executions.jsonl"
    watched = counted(agent, path)
    assert watched.digest == agent.digest
    assert read_executions(path, {}).total == 0
    with laneway.local([watched]) as runtime:
        conversation = runtime.conversation("answered")
        for said in read[0].inputs():
            conversation.submit(said.content, message_keys=said.extra).result(timeout=10)
    found = read_executions(path, {})
    assert (found.total, found.repeated) == (2, 0)
    assert (found.model_calls, found.model_calls_repeated) == (3, 0)


def test_an_execution_behind_its_commit_is_told_apart_from_a_lost_result(folder: Path) -> None:
    path = str(folder / "executions.jsonl")
    for call_id, at_ms in (("lost", 10), ("lost", 20), ("twice", 10), ("twice", 30), ("open", 99)):
        append_line(path, {"call_id": call_id, "effect": "idempotent", "pid": 1, "at_ms": at_ms})
    found = read_executions(Path(path), {"lost": 20, "twice": 20})
    assert (found.total, found.repeated, found.after_commit) == (5, 2, 1)


def test_duplicates_are_counted_exactly_and_by_effect_class(folder: Path) -> None:
    path = str(folder / "executions.jsonl")
    for call_id, effect, times in (("a", "readonly", 3), ("b", "idempotent", 2), ("c", "idempotent", 1)):
        for _ in range(times):
            append_line(path, {"call_id": call_id, "effect": effect, "pid": 1, "at_ms": 1})
    for turn in ("run_1/1", "run_1/1", "run_1/2", "run_2/1"):
        append_line(path, {"model_turn": turn, "pid": 1, "at_ms": 1})
    found = read_executions(Path(path), {})
    assert found.repeated_by_effect == {"readonly": 2, "idempotent": 1, "uncertain": 0}
    assert (found.total, found.repeated) == (6, 3)
    assert (found.model_calls, found.model_calls_repeated) == (4, 1)
