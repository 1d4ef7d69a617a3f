"""Exit codes, errors in one line, output that cannot steer a terminal, and what a help page costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from cli_runs import laneway as run

import laneway
from laneway.cluster import cli_output
from laneway.cluster.cli_output import error_line, exit_code_of, printable, reporting, shortened
from laneway.cluster.cli_records import record_line
from laneway.storage.errors import (
    AdmissionConflict,
    InvalidInput,
    LanewayError,
    NotFound,
    Refused,
    RuntimeUnreachable,
    StoreBusy,
    StoreCorrupt,
    StoreUnavailable,
)

COMMANDS = (
    "demo",
    "up",
    "down",
    "ps",
    "submit",
    "steer",
    "log",
    "watch",
    "abort",
    "obligations",
    "dead-letters",
    "retry",
    "drain",
    "replay",
    "export",
    "verify",
    "sql",
    "doctor",
)
LANEWAY = [sys.executable, "-c", "from laneway.cluster.cli import main; main()"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("x"), 1),
        (Refused("x"), 1),
        (StoreCorrupt("x"), 1),
        (LanewayError("x"), 1),
        (InvalidInput("x"), 2),
        (AdmissionConflict("x"), 2),
        (RuntimeUnreachable("x"), 3),
        (StoreBusy("x"), 3),
        (StoreUnavailable("x"), 3),
    ],
)
def test_each_error_has_its_exit_code(error: LanewayError, code: int) -> None:
    assert exit_code_of(error) == code


def test_an_error_is_one_line_with_field_and_limit() -> None:
    error = InvalidInput("input has\n 7 characters\x1b[2J", field="input", limit=5, other="not shown")
    assert error_line(error) == "error[invalid_input]: input has 7 characters [2J (field: input, limit: 5)"


def test_a_command_reports_what_it_raises(capsys: pytest.CaptureFixture[str]) -> None:
    def failing(as_json: bool = False) -> None:
        raise NotFound("gone", submission_id="sub_1")

    with pytest.raises(typer.Exit) as ended:
        reporting(failing)(as_json=True)
    assert ended.value.exit_code == 1
    out, err = capsys.readouterr()
    details = {"submission_id": "sub_1"}
    assert json.loads(out) == {
        "error": {"code": "not_found", "message": "gone", "retryable": False, "details": details}
    }
    assert err == ""
    with pytest.raises(typer.Exit):
        reporting(failing)()
    assert capsys.readouterr() == ("", "error[not_found]: gone\n")


def test_an_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as ended:
        reporting(interrupted)()
    assert ended.value.exit_code == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    with laneway.local([], tmp_path / "s.duckdb"):
        pass
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*LANEWAY, "sql", "SELECT * FROM range(9)", "--store", str(tmp_path / "s.duckdb")],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (cli_output.PIPE_CLOSED, b"")


def test_text_of_others_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[31mb\x07c\u202ed\r\ne\tf") == "a [31mb c d  e f"
    assert printable("two\nlines\x1b", keep_lines=True) == "two\nlines "
    assert printable("émoji 👩‍💻") == "émoji 👩‍💻"
    assert shortened("a  b\n" + "c" * 50, 10) == "a b ccccc…"


def test_a_record_that_nobody_describes_shows_its_fields() -> None:
    record = {"type": "compaction_created", "id": "rec_1", "covers_sequence": 7, "artifact": {"paid": True}}
    assert record_line(7, record, "2026-01-02T03:04:05.678Z").split() == [
        "7",
        "03:04:05.678",
        "compaction_created",
        "covers_sequence=7",
        'artifact={"paid":',
        "true}",
    ]


def test_a_step_tells_its_name_version_and_result() -> None:
    record = {"type": "step_settled", "id": "rec_1", "name": "pay", "version": 2, "result": {"paid": True}}
    assert " ".join(record_line(7, record).split()) == '7 step_settled pay v2: {"paid": true}'
    nothing = {"type": "step_settled", "id": "rec_1", "name": "pay", "version": 1}
    assert " ".join(record_line(7, nothing).split()).startswith("7 step_settled pay v1:")


def test_help_has_an_example_and_json_for_each_command() -> None:
    overview = run("--help")
    assert overview.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in overview.stdout
        text = run(name, "--help").stdout
        assert f"Example:\n    laneway {name}" in text, name
        assert "--json" in text, name


def test_version_and_wrong_usage() -> None:
    assert run("--version").stdout.startswith("laneway ")
    for wrong in (
        ("nonsense",),
        ("submit", "c"),
        ("ps", "--limit", "many"),
        ("up",),
        ("sql", "SELECT 1", "--limit", "0"),
    ):
        assert run(*wrong).exit_code == 2
    assert run().exit_code == 2


def test_a_help_page_comes_at_once_and_loads_nothing_heavy() -> None:
    heavy = ("ray", "duckdb", "pydantic_ai", "rich", "numpy", "laneway.cluster.runtime")
    code = f"""
import sys
from laneway.cluster.cli import main
sys.argv = ["laneway", "submit", "--help"]
try:
    main()
finally:
    print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""
    took: list[float] = []
    for _ in range(3):
        began = time.process_time(), time.monotonic()
        done = subprocess.run([sys.executable, "-X", "utf8", "-c", code], capture_output=True, text=True, timeout=60)
        took.append(time.monotonic() - began[1])
        assert done.returncode == 0
        assert done.stderr.strip() == "[]"
    assert min(took) < 2.0  # 0.25 s on a machine that does nothing else


def test_output_survives_an_encoding_that_cannot_hold_it(tmp_path: Path) -> None:
    with laneway.local([], tmp_path / "s.duckdb"):
        pass
    for form, shown in (("json", b'[{"word": "\\u00e9\\ud83d\\udc69"}]\n'), ("csv", b"word\n\\xe9\\U0001f469\n")):
        done = subprocess.run(
            [*LANEWAY, "sql", "SELECT 'é👩' AS word", "--format", form, "--store", str(tmp_path / "s.duckdb")],
            capture_output=True,
            env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (0, shown)


def test_decisions_and_aborts_read_as_sentences() -> None:
    asked = {"type": "approval_requested", "approval_id": "apr_1", "call_id": "c", "tool": "pay", "run_id": "r"}
    assert record_line(5, asked).endswith("apr_1 pay waits for a decision")
    decided = {"type": "approval_decided", "approval_id": "apr_1", "decision": "denied", "author": "bob", "run_id": "r"}
    assert record_line(6, {**decided, "reason": "too much"}).endswith("apr_1 denied by bob: too much")
    assert record_line(6, {**decided, "reason": ""}).endswith("apr_1 denied by bob")
    abort = {"type": "abort_requested", "author": "ann", "reason": ""}
    assert record_line(7, abort).endswith("by ann")
    settled = {"type": "submission_settled", "submission_id": "s", "outcome": "aborted", "output": None}
    assert record_line(8, settled).endswith("  aborted")


def test_the_overview_says_each_command_in_a_whole_sentence() -> None:
    lines = run("--help").stdout.splitlines() + run("quarantine", "--help").stdout.splitlines()
    assert [line for line in lines if line.endswith("...") and "Usage" not in line] == []
