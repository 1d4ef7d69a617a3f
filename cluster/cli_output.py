"""How the command line speaks: JSON for programs, tables for people, one line for an error, and the exit code."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import UTC, datetime
from typing import IO, Any

import typer

from ..storage.errors import (
    AdmissionConflict,
    InvalidInput,
    LanewayError,
    RuntimeUnreachable,
    StoreBusy,
    StoreUnavailable,
)

DONE = 0
FAILED = 1
"""The thing that was asked about failed."""
WRONG = 2
"""Wrong usage, or input that breaks a limit; nothing was stored."""
UNREACHABLE = 3
"""No runtime, or no store, answers."""
INTERRUPTED = 130
PIPE_CLOSED = 141  # what a shell reports of a program that SIGPIPE ended

_WIDTH_UNBOUNDED = 10_000  # a table that goes into a file or a pipe is never folded
_COLUMNS_WHOLE = ("submission", "submission_id", "state")
_DETAILS_SHOWN = ("field", "limit", "stored_digest", "given_digest")
_TURNS_TEXT = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # they show text in another order


def exit_code_of(error: LanewayError) -> int:
    """The exit code that an error means."""
    if isinstance(error, InvalidInput | AdmissionConflict):
        return WRONG
    if isinstance(error, RuntimeUnreachable | StoreBusy | StoreUnavailable) or error.code == "host_gone":
        return UNREACHABLE
    return FAILED


def error_line(error: LanewayError) -> str:
    """An error in one line: code, message, and the field and limit that it is about."""
    facts = ", ".join(
        f"{name}: {error.details[name]}" for name in _DETAILS_SHOWN if error.details.get(name) is not None
    )
    message = " ".join(printable(error.message).split())
    return printable(f"error[{error.code}]: {message}{f' ({facts})' if facts else ''}")


def reporting(function: Callable[..., None]) -> Callable[..., None]:
    """Let a command end with the exit code that belongs to what it raised, never with a traceback of ours.

    With the parameter `as_json` an error is printed as {"error": {...}}.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except LanewayError as error:
            if kwargs.get("as_json"):
                print_json({"error": error.as_dict()})
            else:
                say(error_line(error))
            raise typer.Exit(exit_code_of(error)) from None
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _abandon_output()
            raise typer.Exit(PIPE_CLOSED) from None

    return run


def _abandon_output() -> None:
    """Whoever read our output has gone: what is still buffered goes nowhere, and the interpreter's exit stays quiet."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor has nothing to flush at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """A line for people, on standard error."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any, file: IO[str] | None = None) -> None:
    """One JSON value on one line, on standard output or in `file`."""
    stream = file or sys.stdout
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
    print(json.dumps(_plain(value), ensure_ascii=encoding != "utf8"), file=stream)


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value)


def printable(text: str, *, keep_lines: bool = False) -> str:
    """Text that cannot steer a terminal: control characters become spaces; line breaks stay with `keep_lines`."""
    return "".join(" " if _steers(char) and not (keep_lines and char in "\n\t") else char for char in text)


def _steers(char: str) -> bool:
    return char in _TURNS_TEXT or unicodedata.category(char) in ("Cc", "Cs")


def shortened(text: str, length_max: int) -> str:
    """One line of at most `length_max` characters."""
    line = " ".join(printable(text[: length_max * 4]).split())
    return line if len(line) <= length_max else line[: length_max - 1] + "…"


def time_of(milliseconds: int | None) -> str | None:
    """A stored time as ISO 8601 in UTC."""
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    title: str | None = None,
    header: bool = True,
    empty: str | None = None,
) -> None:
    """A table for people. Whatever the cells hold, they are shown as they are: no markup, no control characters.

    Where there are no rows, the sentence `empty` stands in its place.
    """
    rows = list(rows)
    if not rows and empty is not None:
        print(printable(empty))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _WIDTH_UNBOUNDED, highlight=False)
    table = Table(title=title, title_justify="left", title_style="bold", show_header=header)
    for column in columns:
        whole = column in _COLUMNS_WHOLE  # ids are copied into the next command
        table.add_column(Text(printable(column)), overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*(Text(printable(cell_text(cell), keep_lines=True)) for cell in row))
    with console.capture() as rendered:  # rich would end the process by itself when the reader has gone
        console.print(table)
    sys.stdout.write(rendered.get())


def cell_text(value: Any) -> str:
    """A JSON value as people read it."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Comma-separated values, quoted as RFC 4180 has them, in lines as other commands end them.

    NULL is an empty field, and nested values are JSON. With CRLF an id that a shell cuts out would end in a character
    that nobody sees, and no command would find it.
    """
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(["" if cell is None else cell_text(cell) for cell in row])
    sys.stdout.write(lines.getvalue())


@contextlib.contextmanager
def progress(text: str, total: int | None, *, shown: bool = True) -> Generator[Callable[[int], None]]:
    """A progress bar on standard error, where that is a terminal; gives the function that moves it on."""
    if not shown or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(text, total=total)
        yield lambda count: bar.advance(task, count)
