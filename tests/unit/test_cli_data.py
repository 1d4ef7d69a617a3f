"""export, verify, sql and ps over a store whose runtime is down, and the same store while it is held."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_agents import agents
from cli_runs import json_of, refused
from cli_runs import laneway as run

import laneway

STORE = ("--store", "s.duckdb")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANEWAY_HOME", str(tmp_path / "home"))
    with laneway.local(agents, "s.duckdb") as runtime:
        for name, said in (("a", "hello"), ("a", "21"), ("b", "fail")):
            runtime.conversation(name, "echo").submit(said).result(timeout=10)
    return tmp_path


def damage(path: str = "s.duckdb") -> None:
    """Another process changes one stored body, as a broken disk would."""
    code = f"""
import duckdb
store = duckdb.connect({path!r})
store.execute("UPDATE batch_log SET body = '[{{}}]' WHERE conversation_id = 'a' AND first_sequence = 1")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_export_writes_chat_messages_or_records() -> None:
    lines = [json.loads(line) for line in run("export", "--all", *STORE).stdout.splitlines()]
    assert [line["id"] for line in lines] == ["a", "b"]
    assert lines[0]["messages"][:2] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "you said hello"},
    ]
    assert lines[1]["messages"] == [{"role": "user", "content": "fail"}]
    found = json.loads(run("export", "a", "--format", "records", *STORE).stdout)
    assert [record["sequence"] for record in found["records"]] == list(range(1, len(found["records"]) + 1))


def test_export_into_a_file_is_whole_or_not_at_all(folder: Path) -> None:
    found = json_of("export", "--all", "--output", "out.jsonl", *STORE)
    assert found == {"conversations": 2, "failed": 0, "format": "openai", "output": "out.jsonl"}
    assert (folder / "out.jsonl").read_text() == run("export", "--all", *STORE).stdout
    assert refused("export", "--all", "--output", "no/folder/out.jsonl", *STORE)["details"] == {"field": "output"}
    assert sorted(path.name for path in folder.iterdir()) == ["out.jsonl", "s.duckdb"]


def test_export_wants_one_conversation_or_all() -> None:
    assert refused("export", *STORE)["details"] == {"field": "conversation"}
    assert refused("export", "a", "--all", *STORE)["details"] == {"field": "conversation"}
    assert refused("export", "nobody", *STORE, code=1)["code"] == "not_found"
    assert run("export", "a", "--format", "yaml", *STORE).exit_code == 2


def test_verify_passes_and_counts() -> None:
    found = json_of("verify", "--settled", *STORE)
    assert found["passed"] is True
    assert found["store"] == "DR/duckdb s.duckdb"
    assert (found["conversations"], found["submissions"]) == (2, 3)
    assert found["outcomes"] == {"completed": 2, "failed": 1}
    assert run("verify", *STORE).stdout.endswith("no problems\n")


def test_one_damaged_record_is_named_and_the_rest_goes_on() -> None:
    damage()
    found = json_of("verify", *STORE, code=1)
    assert found["passed"] is False
    assert {problem["conversation_id"] for problem in found["problems"]} == {"a"}
    assert found["problems"][0]["sequence"] == 1
    plain = run("verify", *STORE)
    assert plain.exit_code == 1
    assert plain.stdout.startswith("a at 1: ")
    result = run("export", "--all", *STORE)
    assert result.exit_code == 1
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["b"]
    assert result.stderr.startswith("a: error[store_corrupt]: ")


def test_sql_as_table_json_and_csv() -> None:
    question = (
        "SELECT conversation_id, count(*) AS n, [1, 2] AS list, NULL AS empty FROM submissions GROUP BY 1 ORDER BY 1"
    )
    rows = [
        {"conversation_id": "a", "n": 2, "list": [1, 2], "empty": None},
        {"conversation_id": "b", "n": 1, "list": [1, 2], "empty": None},
    ]
    assert json_of("sql", question, *STORE) == rows
    assert json.loads(run("sql", question, "--format", "json", *STORE).stdout) == rows
    text = run("sql", question, "--format", "csv", *STORE).stdout
    assert list(csv.reader(io.StringIO(text))) == [
        ["conversation_id", "n", "list", "empty"],
        ["a", "2", "[1, 2]", ""],
        ["b", "1", "[1, 2]", ""],
    ]
    table = run("sql", question, *STORE).stdout
    assert "conversation_id" in table
    assert "[1, 2]" in table


def test_sql_says_when_rows_are_left_out_and_keeps_columns_apart() -> None:
    result = run("sql", "SELECT * FROM range(5)", "--limit", "3", "--format", "json", *STORE)
    assert len(json.loads(result.stdout)) == 3
    assert result.stderr == "only the first 3 rows are shown; --limit shows more\n"
    assert json_of("sql", "SELECT 1 AS x, 2 AS x, 3 AS x_1", *STORE) == [{"x": 1, "x_1": 2, "x_1_1": 3}]


@pytest.mark.parametrize("question", ["selec", "DROP TABLE ledger", "SELECT 1; SELECT 2", "SELECT * FROM ledger", ""])
def test_sql_answers_read_only_questions_over_the_views(question: str) -> None:
    assert refused("sql", question, *STORE)["details"]["field"] == "sql"


def test_ps_narrows_by_conversation_and_state() -> None:
    found = json_of("ps", *STORE)
    assert found["runtime"]["kind"] == "offline"
    assert len(found["submissions"]) == 3
    assert len(json_of("ps", "--limit", "1", *STORE)["submissions"]) == 1
    assert [row["state"] for row in json_of("ps", "--conversation", "b", *STORE)["submissions"]] == ["failed"]
    assert len(json_of("ps", "--state", "completed", *STORE)["submissions"]) == 2
    assert refused("ps", "--state", "sleeping", *STORE)["details"] == {"field": "state"}
    text = run("ps", *STORE).stdout
    assert text.startswith("DR/duckdb s.duckdb (its runtime is down)\n")


@pytest.mark.parametrize("command", [("log", "a"), ("ps",), ("export", "--all"), ("verify",), ("sql", "SELECT 1")])
def test_a_store_that_a_runtime_holds_is_3_and_names_the_process(command: tuple[str, ...]) -> None:
    code = "import sys, laneway; laneway.local([], 's.duckdb'); print('up', flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        error = refused(*command, *STORE, code=3)
        assert error["code"] == "store_busy"
        assert error["details"]["pid"] == holder.pid
        assert "without --store" in error["message"]
        assert str(holder.pid) in error["message"]
    finally:
        holder.communicate("", timeout=30)


def test_what_is_no_store_is_2(folder: Path) -> None:
    (folder / "text.duckdb").write_text("no store at all, but long enough to be looked at" * 100)
    assert refused("verify", "--store", "text.duckdb")["code"] == "not_a_store"
    assert refused("verify", "--store", "missing.duckdb")["code"] == "path_not_usable"
    assert refused("verify", "--store", ".")["code"] == "path_not_usable"
    assert not (folder / "missing.duckdb").exists()


def test_a_store_whose_process_was_killed_can_be_read() -> None:
    code = """
import os, signal, laneway
from cli_agents import agents
runtime = laneway.local(agents, "s.duckdb")
runtime.conversation("c", "echo").submit("last words").result(timeout=10)
os.kill(os.getpid(), signal.SIGKILL)
"""
    support = str(Path(__file__).parents[1] / "support")
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {support!r})\n{code}"], timeout=60)
    assert done.returncode == -9
    assert Path("s.duckdb.wal").exists()
    assert json.loads(run("export", "c", *STORE).stdout)["messages"][1]["content"] == "you said last words"
    assert json_of("verify", "--settled", *STORE)["passed"] is True


def test_an_id_cut_out_of_csv_is_an_id() -> None:
    text = run("sql", "SELECT 'sub_1' AS id", "--format", "csv", *STORE).stdout
    assert text == "id\nsub_1\n"
