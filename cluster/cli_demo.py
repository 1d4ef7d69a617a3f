"""demo: a crash and a recovery, in under a minute."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from .cli_options import Json
from .cli_output import FAILED, print_json, print_table, printable, reporting
from .cli_records import record_line

if TYPE_CHECKING:
    from .demo import Story

_NAMESPACE = "laneway-demo"


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(reporting(demo))


def demo(as_json: Json = False) -> None:
    """Watch a conversation survive SIGKILL.

    Starts Ray on this machine and a store in this folder, books three tables through a small agent, and ends the
    process in the middle of the second answer. Nothing that was there before is changed. The exit code is 1 when
    something was booked twice or did not complete.

    \b
    Example:
      laneway demo
    """
    from . import launch
    from .demo import fresh_paths, play
    from .demo_agent import demo_agent

    def tell(text: str) -> None:
        if not as_json:
            print(printable(text), flush=True)

    began = time.monotonic()
    store, calls = fresh_paths(Path.cwd())
    tell(f"Starting Ray and a runtime with its store in {store.name} (class DR/duckdb) ...")
    with launch.start([demo_agent(str(calls))], store, namespace=f"{_NAMESPACE}-{os.getpid()}") as runtime:
        tell(f"up after {time.monotonic() - began:.1f} s\n")
        story = play(runtime, store, calls, tell)
    seconds = round(time.monotonic() - began, 1)
    if as_json:
        print_json({"passed": story.passed, "seconds": seconds, **_as_dict(story)})
    else:
        _show(story, seconds)
    if not story.passed:
        raise typer.Exit(FAILED)


def _as_dict(story: Story) -> dict[str, object]:
    return {name: getattr(story, name) for name in story.__struct_fields__}


def _show(story: Story, seconds: float) -> None:
    from .demo import FIRST

    columns = ("submission_id", "conversation_id", "queue_sequence", "state", "epoch")
    shown = ("submission", "conversation", "#", "state", "epoch")
    print()
    print_table(shown, [[row[column] for column in columns] for row in story.submissions], title="The ledger")
    print(f"\nThe log of {FIRST}")
    for record in story.log:
        typer.echo(record_line(record["sequence"], record))
    print()
    if story.kill is None:
        print("The process could not be killed in mid-turn; run the demonstration again.")
    else:
        kill = story.kill
        print(
            f"Process {kill.pid} was killed in mid-turn; process {kill.recovered_by_pid} went on under epoch "
            f"{kill.epoch_after} and settled after {kill.seconds_to_settlement:.1f} s."
        )
    print(f"{story.tool_calls} bookings were asked for, and the tool was invoked {story.tool_invocations} times.")
    for problem in story.problems:
        print(printable(f"problem: {problem}"))
    print(printable(f"The store is {story.store}, the invocations are in {story.calls_file} ({seconds:.0f} s in all)."))
    print("\nNext:")
    name = Path(story.store).name
    for command in (
        f"laneway log {FIRST} --store {name}",
        f"laneway verify --store {name}",
        f'laneway sql "SELECT tool, state, result FROM tool_calls" --store {name}',
    ):
        print(f"  {command}")
