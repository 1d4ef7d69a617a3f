"""The command `laneway`: its groups of commands are registered here, and nothing heavy is imported before one runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from . import cli_data, cli_decisions, cli_demo, cli_doctor, cli_operations, cli_replay, cli_runtime, cli_talk

_HELP = """A durable runtime (DR/duckdb) for AI-agent conversations on Ray.

Exit codes: 0 done, 1 the thing asked about failed, 2 wrong usage or bad input, 3 no runtime answers.
"""

app = typer.Typer(
    name="laneway",
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # importing rich's Markdown for a help page takes as long as all the rest of it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"laneway {version('laneway')}")
        raise typer.Exit


@app.callback()
def _options(  # pyright: ignore[reportUnusedFunction]: typer calls it
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


cli_demo.register(app)
cli_runtime.register(app)
cli_talk.register(app)
cli_decisions.register(app)
cli_operations.register(app)
cli_replay.register(app)
cli_data.register(app)
cli_doctor.register(app)


def main() -> None:
    """Run the command line. Text that the terminal's encoding cannot hold is escaped, never a reason to fail."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    app()
