"""Canonical records as people read them: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer

from .cli_output import cell_text, shortened

_TEXT_MAX = 100  # a line that fits a wide terminal; `--json` shows all
_NAME_WIDTH = 21

_COLOURS = {
    "input_recorded": "cyan",
    "model_responded": "green",
    "model_interrupted": "yellow",
    "tool_call_prepared": "blue",
    "tool_call_settled": "blue",
    "approval_requested": "magenta",
    "approval_decided": "magenta",
    "tool_call_unknown": "magenta",
    "tool_call_resolved": "magenta",
    "abort_requested": "red",
    "recovery_decided": "yellow",
    "submission_settled": "bright_green",
}


def record_line(sequence: int, record: Mapping[str, Any], at: str | None = None) -> str:
    """One record: its place in the log, the time of day in UTC, its type, and what it says."""
    kind = str(record["type"])
    failed = kind == "submission_settled" and record["outcome"] != "completed"
    name, colour = f"{kind:<{_NAME_WIDTH}}", "red" if failed else _COLOURS.get(kind)
    if colour is not None:
        name = typer.style(name, fg=colour, bold=failed)
    time = f"{at[11:23]}  " if at else ""
    return f"{sequence:>5}  {time}{name}  {shortened(_summary(kind, record), _TEXT_MAX)}".rstrip()


def _summary(kind: str, record: Mapping[str, Any]) -> str:
    describe = _SUMMARIES.get(kind)
    if describe is not None:
        return describe(record)
    return "  ".join(f"{key}={cell_text(value)}" for key, value in record.items() if key not in ("type", "id"))


def _input(record: Mapping[str, Any]) -> str:
    kind = record.get("kind", "user")
    how = "" if kind == "user" else f"({kind}) "
    if "steers" in record:
        how = f"{how}(its run had ended: {record['steers']}) "
    return f"#{record['queue_sequence']} {how}{cell_text(record['content'])}" + _retried(record.get("retry_of"))


def _responded(record: Mapping[str, Any]) -> str:
    calls = [f"{call['name']}({call['arguments']})" for call in record.get("tool_calls", ())]
    content = record.get("content")
    said = [] if content in (None, "") else [cell_text(content)]
    return f"turn {record['turn']}: " + "  ".join([*said, *calls])


def _settled_call(record: Mapping[str, Any]) -> str:
    error = record.get("error")
    return f"{record['outcome']}: {_error(error) if error else cell_text(record.get('result'))}"


def _settled(record: Mapping[str, Any]) -> str:
    error = record.get("error")
    if error is None and record["outcome"] == "aborted":
        return "aborted"  # why stands in the abort_requested before it
    said = _error(error) if error else cell_text(record.get("output"))
    return f"{record['outcome']}: {said}"


def _by(record: Mapping[str, Any]) -> str:
    return f"by {record['author']}" + (f": {record['reason']}" if record["reason"] else "")


def _retried(retry_of: Mapping[str, Any] | None) -> str:
    return f"  (retry {retry_of['number']} of {retry_of['submission_id']} by {retry_of['author']})" if retry_of else ""


def _error(error: Mapping[str, Any]) -> str:
    return f"{error['code']}: {error['message']}"


_SUMMARIES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "conversation_created": lambda record: f"agent {record['agent']}",
    "input_recorded": _input,
    "run_started": lambda record: f"agent {record['agent']}",
    "model_responded": _responded,
    "model_interrupted": lambda record: f"turn {record['turn']}: {record['reason']}",
    "tool_call_prepared": lambda record: f"{record['tool']} ({record['effect']})",
    "step_settled": lambda record: f"{record['name']} v{record['version']}: {cell_text(record.get('result'))}",
    "tool_call_settled": _settled_call,
    "approval_requested": lambda record: f"{record['approval_id']} {record['tool']} waits for a decision",
    "approval_decided": lambda record: f"{record['approval_id']} {record['decision']} {_by(record)}",
    "tool_call_unknown": lambda record: f"{record['call_id']}: {record['reason']}",
    "tool_call_resolved": lambda record: f"{record['resolution']} {_by(record)}",
    "abort_requested": _by,
    "recovery_decided": lambda record: f"epoch {record['epoch']}: {record['decision']}  {record['evidence']}",
    "repair_annotated": lambda record: record["note"],
    "run_completed": lambda record: record["outcome"],
    "submission_settled": _settled,
}
