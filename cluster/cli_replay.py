"""replay: recorded conversations through a runtime of the command's own."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..storage.errors import InvalidInput
from .cli_options import Json, store_name
from .cli_output import FAILED, print_json, print_table, printable, progress, reporting, say

if TYPE_CHECKING:
    from ..agents.agent import Agent
    from ..agents.recording import LineProblem, Recording
    from .chaos import ChaosPlan
    from .ray_chaos import Nodes
    from .replay import Summary
    from .runtime import Runtime

_SYSTEM_BYTES_MAX = 1 << 20


File = Annotated[Path, typer.Argument(metavar="FILE.jsonl", help='Lines of {"id", "messages"}.', show_default=False)]
System = Annotated[
    Path | None,
    typer.Option("--system", metavar="FILE", help='Instructions: {"system": "..."} or text.', show_default=False),
]
Conversations = Annotated[
    int | None, typer.Option("--conversations", min=1, help="Only the first so many.", show_default=False)
]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="Conversations at a time.")]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="The store's file; with --local and without it, memory.",
        show_default="laneway.duckdb",
    ),
]
KillEvery = Annotated[
    float | None,
    typer.Option(
        "--kill-every", metavar="SECONDS", help="SIGKILL a process of the runtime so often.", show_default=False
    ),
]
ChaosKinds = Annotated[
    str | None,
    typer.Option(
        "--chaos",
        metavar="KINDS",
        help="What --kill-every kills, with commas between: actors (processes that host lanes), store, supervisor, "
        "node (a cluster of two nodes is started for it).",
        show_default="actors",
    ),
]
ChaosSeed = Annotated[
    int | None, typer.Option("--chaos-seed", "--seed", help="Fixes what is killed and when.", show_default="0")
]
Delay = Annotated[
    float, typer.Option("--delay", min=0, metavar="SECONDS", help="Waited before each recorded response.")
]
LanesPerActor = Annotated[
    int | None, typer.Option("--lanes-per-actor", min=1, help="Conversations a process.", show_default="256")
]
MaxActors = Annotated[int | None, typer.Option("--max-actors", min=1, help="Processes.", show_default="twice the CPUs")]
LocalRun = Annotated[bool, typer.Option("--local", help="Run in this process, without Ray.")]


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(reporting(replay))


def replay(
    file: File,
    system: System = None,
    conversations: Conversations = None,
    concurrency: Concurrency = 16,
    store: Store = None,
    kill_every: KillEvery = None,
    chaos: ChaosKinds = None,
    chaos_seed: ChaosSeed = None,
    delay: Delay = 0.0,
    lanes_per_actor: LanesPerActor = None,
    max_actors: MaxActors = None,
    local: LocalRun = False,
    as_json: Json = False,
) -> None:
    """Run recorded conversations.

    User messages are submitted in order; responses and tool results come from the file. Messages are in OpenAI's chat
    format. A conversation keeps the id of its line. A user message that the recording does not answer ends as "failed
    (recording_ended)", which is the normal end of such a recording. On the same store, the same file goes on where it
    stopped. At the end the convergence check runs over the whole store.

    A line that cannot be replayed is named on standard error and the others run. The exit code is 1 when there was such
    a line, when a submission ended otherwise than its recording, or when the check does not pass.

    \b
    Example:
      laneway replay conversations.jsonl --system system.json --concurrency 16 --kill-every 3
      laneway replay conversations.jsonl --kill-every 2 --chaos actors,store,supervisor --chaos-seed 7 --json
    """
    plan = _chaos_plan(kill_every, chaos, chaos_seed, local=local)
    instructions = _instructions(system)
    recordings, bad_lines = _recordings(file, conversations, shown=not as_json)
    settings = {"lanes_per_actor": lanes_per_actor, "max_actors": max_actors}
    with tempfile.TemporaryDirectory(prefix="laneway-replay-") as folder:
        executions = Path(folder) / "executions.jsonl"
        agent = _agent(recordings, instructions, delay, executions)
        began = time.monotonic()
        with _cluster(plan) as nodes, _embedded(agent, store, local=local, settings=settings) as runtime:
            start_s = time.monotonic() - began
            summary = _replay(runtime, recordings, executions, concurrency, plan, nodes, shown=not as_json)
            where = store_name(runtime.describe().store)
    passed = summary.passed and not bad_lines
    if as_json:
        print_json(_as_json(summary, bad_lines, str(file), where, start_s, passed=passed))
    else:
        _print(summary, where, start_s)
    if not passed:
        raise typer.Exit(FAILED)


def _chaos_plan(
    kill_every: float | None, chaos: str | None, chaos_seed: int | None, *, local: bool
) -> ChaosPlan | None:
    from .chaos import KINDS_DEFAULT, ChaosPlan, parse_kinds

    kinds = KINDS_DEFAULT if chaos is None else parse_kinds(chaos)
    if kill_every is None:
        if chaos is not None:
            raise InvalidInput("--chaos goes with --kill-every, which says how often", field="chaos")
        return None
    if local:
        raise InvalidInput("only processes of their own can be killed: leave out --local", field="kill-every")
    return ChaosPlan(every_s=kill_every, kinds=kinds, seed=chaos_seed or 0)


def _recordings(file: Path, conversations: int | None, *, shown: bool) -> tuple[list[Recording], list[LineProblem]]:
    from ..agents.recording import read_recordings

    recordings, bad_lines = read_recordings(file, conversations)
    if shown:
        for problem in bad_lines:
            say(_bad_line(problem))
    if not recordings:
        first = f": {bad_lines[0]}" if bad_lines else ""
        raise InvalidInput(f"{file} holds no conversation that can be replayed{first}", field="file")
    return recordings, bad_lines


def _instructions(path: Path | None) -> str:
    if path is None:
        return ""
    from ..storage.values import decode

    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be read: {getattr(error, 'strerror', error)}", field="system") from error
    if len(data) > _SYSTEM_BYTES_MAX:
        raise InvalidInput(f"{path} has more than {_SYSTEM_BYTES_MAX:,} bytes", field="system", limit=_SYSTEM_BYTES_MAX)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is no UTF-8 text", field="system") from error
    try:
        found: Any = decode(text)
    except ValueError:  # no JSON, so the text itself is meant
        return text.strip()
    if not isinstance(found, dict):
        return text.strip()
    if not isinstance(found.get("system"), str):
        raise InvalidInput(f'{path} holds an object without a text under "system"', field="system")
    return found["system"]


def _agent(recordings: list[Recording], instructions: str, delay_s: float, executions: Path) -> Agent:
    from ..agents.replay import replay_agent
    from .executions import counted
    from .replay import AGENT_NAME

    return counted(replay_agent(recordings, name=AGENT_NAME, system=instructions, delay_s=delay_s), executions)


def _cluster(plan: ChaosPlan | None) -> AbstractContextManager[Nodes | None]:
    """The cluster of several nodes that a plan needs which kills nodes."""
    from .chaos import Kind

    if plan is None or Kind.NODE not in plan.kinds:
        return contextlib.nullcontext()
    from .ray_nodes import two_nodes

    return two_nodes()


@contextlib.contextmanager
def _embedded(agent: Agent, store: Path | None, *, local: bool, settings: dict[str, Any]) -> Generator[Runtime]:
    from . import launch
    from .settings import STORE_DEFAULT

    if local:
        with launch.local([agent], store, **settings) as runtime:
            yield runtime
    else:
        with launch.start([agent], store or STORE_DEFAULT, **settings) as runtime:
            yield runtime


def _replay(
    runtime: Runtime,
    recordings: list[Recording],
    executions: Path,
    concurrency: int,
    plan: ChaosPlan | None,
    nodes: Nodes | None,
    *,
    shown: bool,
) -> Summary:
    from .replay import Replay

    total = sum(len(recording.inputs()) for recording in recordings)
    with progress("replaying", total, shown=shown) as advance:
        return Replay(runtime, recordings, executions, concurrency, chaos=plan, nodes=nodes, settled=advance).run()


def _bad_line(problem: LineProblem) -> str:
    where = f" ({problem.field})" if problem.field else ""
    return printable(f"left out: {problem}{where}")


def _as_json(
    summary: Summary, bad_lines: list[LineProblem], file: str, where: str, start_s: float, *, passed: bool
) -> dict[str, Any]:
    from .replay import as_json

    return {
        **as_json(summary),
        "passed": passed,
        "file": file,
        "store": where,
        "start_seconds": round(start_s, 3),
        "bad_lines": [
            {"path": item.path, "line": item.line_number, "message": item.message, "field": item.field}
            for item in bad_lines
        ],
    }


def _print(summary: Summary, where: str, start_s: float) -> None:
    from .replay import ENDED, ENDED_IN_WORDS

    for trouble in summary.troubles:
        say(
            printable(
                f"line {trouble.line_number}: conversation {trouble.conversation_id}, user message "
                f"{trouble.input_number}: {trouble.code}: {trouble.message}"
            )
        )
    for problem in summary.problems:
        say(printable(f"check {problem.check}: conversation {problem.conversation_id}: {problem.message}"))
    reattached = f" ({summary.reattached:,} of them accepted before)" if summary.reattached else ""
    rows: list[tuple[str, str]] = [
        ("conversations", f"{summary.conversations:,}"),
        ("submissions", f"{summary.submissions:,}{reattached}"),
        *((f"  {outcome}", f"{count:,}") for outcome, count in summary.outcomes.items()),
        ("model calls", _with(summary.model_calls, summary.model_calls_interrupted, "interrupted and made again")),
        ("model calls made", _with(summary.model_calls_made, summary.model_calls_repeated, "of them made again")),
        ("tool calls", f"{summary.tool_calls:,}"),
        ("tool executions", f"{summary.tool_executions:,}"),
        *(
            (f"  duplicate, {effect}", f"{count:,}")
            for effect, count in summary.tool_executions_repeated_by_effect.items()
        ),
        ("  of a call whose result was committed (must be 0)", f"{summary.tool_executions_after_commit:,}"),
        ("killed", f"{summary.kills:,}"),
        *((f"  {kind}", f"{count:,}") for kind, count in summary.kills_by_kind.items()),
        ("recoveries", f"{summary.recoveries:,}"),
        *((f"  {decision}", f"{count:,}") for decision, count in summary.recoveries_by_decision.items()),
        ("store commits since its process started", f"{summary.commits:,}"),
        ("seconds", f"{summary.seconds:.1f} (and {start_s:.1f} to start)"),
        ("user turns a second", f"{summary.turns_per_second:,.1f}"),
        ("convergence check", f"{len(summary.problems):,} problems" if summary.problems else "passed"),
    ]
    print_table(("what", "count"), rows, title=printable(where), header=False)
    if ENDED in summary.outcomes:
        print(f"{ENDED}: {ENDED_IN_WORDS}.")


def _with(count: int, more: int, what: str) -> str:
    return f"{count:,} (and {more:,} {what})" if more else f"{count:,}"
