"""doctor: is this machine ready?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .cli_options import Json, Namespace, namespace_of
from .cli_output import FAILED, print_json, printable, reporting

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(reporting(doctor))


def doctor(
    store: Annotated[
        Path | None,
        typer.Option(
            "--store", metavar="PATH", help="A store that must open.", show_default="laneway.duckdb, if there is one"
        ),
    ] = None,
    as_json: Json = False,
    namespace: Namespace = None,
) -> None:
    """Look for what would keep Laneway from running here.

    What is wrong comes with what to do about it. The exit code is 1 when something would stop `laneway demo`.

    \b
    Example:
      laneway doctor --store support.duckdb
    """
    from .doctor import Verdict, examine

    checks = []
    for check in examine(namespace_of(namespace), store, Path.cwd()):
        checks.append(check)
        if not as_json:
            verdict = typer.style(f"{check.verdict:<8}", fg=_COLOURS[check.verdict])
            typer.echo(f"{verdict} {printable(check.name)}: {printable(check.found)}")
            if check.advice:
                typer.echo(f"{'':<8}   {printable(check.advice)}")
    passed = all(check.verdict is not Verdict.FAILED for check in checks)
    if as_json:
        print_json({"passed": passed, "checks": checks})
    if not passed:
        raise typer.Exit(FAILED)
