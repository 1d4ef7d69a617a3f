"""export, verify and sql: what a store holds."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from ..storage.errors import InvalidInput, StoreCorrupt
from .cli_options import Address, Json, Namespace, StorePath, reading, require_conversation, store_name
from .cli_output import (
    FAILED,
    error_line,
    print_csv,
    print_json,
    print_table,
    printable,
    progress,
    reporting,
    say,
)

if TYPE_CHECKING:
    from ..recovery.convergence import Problem, Report
    from .runtime import Runtime

_SQL_ROWS_MAX = 1_000_000


class ExportFormat(enum.StrEnum):
    """What `export` writes."""

    OPENAI = "openai"
    RECORDS = "records"


class TableFormat(enum.StrEnum):
    """How `sql` shows its answer."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (export, verify, sql):
        app.command()(reporting(command))


def export(
    conversation: Annotated[
        str | None, typer.Argument(metavar="[CONVERSATION]", help="The conversation's id.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All conversations of the store.")] = False,
    form: Annotated[
        ExportFormat, typer.Option("--format", help="Chat messages as OpenAI has them, or the canonical records.")
    ] = ExportFormat.OPENAI,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write to this file, whole or not at all.", show_default=False),
    ] = None,
    as_json: Json = False,
    store: StorePath = None,
    namespace: Namespace = None,
    address: Address = None,
) -> None:
    """Write conversations as JSON lines.

    A line is {"id", "messages"}, or {"id", "records"}. A turn whose tool calls have no result yet is left out, so the
    messages are valid for a provider. A conversation that cannot be read is named on standard error, the others are
    written, and the exit code is 1. With --json and --output, what was written is told as JSON.

    \b
    Example:
      laneway export --all --output conversations.jsonl
    """
    if (conversation is None) != every:
        raise InvalidInput("name one conversation, or pass --all", field="conversation")
    names: list[str] = []
    failed = 0
    with reading(namespace, address, store) as runtime:
        if conversation is not None:
            require_conversation(runtime, conversation)
        names = runtime.conversations() if conversation is None else [conversation]
        with _writing(output) as file, progress("exporting", len(names), shown=output is not None) as advance:
            for name in names:
                try:
                    print_json({"id": name, **_exported(runtime, name, form)}, file)
                except StoreCorrupt as error:
                    failed += 1
                    say(f"{printable(name)}: {error_line(error)}")
                advance(1)
    if output is not None:
        written = {"conversations": len(names) - failed, "failed": failed, "format": str(form), "output": str(output)}
        if as_json:
            print_json(written)
        else:
            print(printable(f"{_counted(len(names) - failed, 'conversation')} written to {output}"))
    if failed:
        raise typer.Exit(FAILED)


def verify(
    settled: Annotated[
        bool,
        typer.Option("--settled", help="Open work is a problem, too, unless a person has to decide."),
    ] = False,
    as_json: Json = False,
    store: StorePath = None,
    namespace: Namespace = None,
    address: Address = None,
) -> None:
    """Check the whole store.

    Each accepted submission has one settlement, logs are unbroken and in order, prompts are valid. The exit code is 1
    on problems.

    \b
    Example:
      laneway verify --settled
    """
    with reading(namespace, address, store) as runtime:
        where = store_name(runtime.describe().store)
        with progress("verifying", len(runtime.conversations()), shown=not as_json) as advance:
            report = runtime.verify(require_settled=settled, progress=lambda conversation_id: advance(1))
    if as_json:
        print_json({"passed": report.passed, "store": where, **_report(report)})
    else:
        _print_report(report, where)
    if not report.passed:
        raise typer.Exit(FAILED)


def sql(
    question: Annotated[str, typer.Argument(metavar="SELECT", help="One read-only statement.", show_default=False)],
    form: Annotated[TableFormat, typer.Option("--format", help="How the answer is shown.")] = TableFormat.TABLE,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_SQL_ROWS_MAX, help="Rows at most.")] = 1000,
    as_json: Json = False,
    store: StorePath = None,
    namespace: Namespace = None,
    address: Address = None,
) -> None:
    """Ask the store in SQL.

    There are the views batches, records, submissions, tool_calls, settlements and quarantines. JSON is a list with one
    object a row.
    When rows are left out, standard error says so. A store of several shards answers for each of them; the column shard
    says which.

    \b
    Example:
      laneway sql "SELECT state, count(*) AS count FROM submissions GROUP BY state"
    """
    with reading(namespace, address, store) as runtime:
        found = runtime.query(question, limit=limit + 1)
    rows = found.rows[:limit]
    if as_json or form is TableFormat.JSON:
        columns = _distinct(found.columns)
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif form is TableFormat.CSV:
        print_csv(found.columns, rows)
    else:
        print_table(found.columns, rows)
    if len(found.rows) > limit:
        say(f"only the first {limit:,} rows are shown; --limit shows more")


# --- export ----------------------------------------------------------------------------------------------------------


def _exported(runtime: Runtime, name: str, form: ExportFormat) -> dict[str, Any]:
    conversation = runtime.conversation(name)
    return {"messages": conversation.messages()} if form is ExportFormat.OPENAI else {"records": conversation.log()}


@contextlib.contextmanager
def _writing(output: Path | None) -> Generator[IO[str]]:
    """Standard output, or a file that appears when it is complete. Raises: InvalidInput when it cannot be written."""
    if output is None:
        yield sys.stdout
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            yield file
        partial.replace(output)
    except OSError as error:
        raise InvalidInput(f"{output} cannot be written: {error.strerror or error}", field="output") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


# --- verify ----------------------------------------------------------------------------------------------------------


def _report(report: Report) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__struct_fields__}


def _print_report(report: Report, where: str) -> None:
    for problem in report.problems:
        print(_problem_line(problem))
    counts = [f"{count:,} {outcome}" for outcome, count in sorted((report.outcomes | report.open).items())]
    print(printable(f"{where}: {_counted(report.conversations, 'conversation')}, {_counted(report.records, 'record')}"))
    print(f"{_counted(report.submissions, 'submission')}{': ' if counts else ''}{', '.join(counts)}")
    print(_counted(len(report.problems), "problem") if report.problems else "no problems")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _problem_line(problem: Problem) -> str:
    place = f" at {problem.sequence}" if problem.sequence is not None else ""
    whose = f" ({problem.submission_id})" if problem.submission_id else ""
    return printable(f"{problem.conversation_id}{place}: {problem.message}{whose} [check {problem.check}]")


# --- sql -------------------------------------------------------------------------------------------------------------


def _distinct(columns: tuple[str, ...]) -> list[str]:
    """Column names as keys of an object: a name that comes again gets a number."""
    keys: dict[str, None] = {}
    for column in columns:
        key, number = column, 0
        while key in keys:
            number += 1
            key = f"{column}_{number}"
        keys[key] = None
    return list(keys)
