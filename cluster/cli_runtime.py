"""up, down and ps: a runtime that stays when the command ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..storage.errors import InvalidInput, RuntimeUnreachable
from .cli_options import (
    Address,
    Json,
    Namespace,
    StorePath,
    agents_of,
    authorize_of,
    namespace_of,
    reading,
    running,
    store_name,
)
from .cli_output import print_json, print_table, printable, reporting, say, time_of

if TYPE_CHECKING:
    from ..agents.agent import Agent
    from ..storage.ledger import Row
    from .backend import Description
    from .ray_head import Head
    from .runtime_file import RuntimeFile

_NODE_LENGTH_SHOWN = 12


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (up, down, ps):
        app.command()(reporting(command))


def up(
    agents: Annotated[
        str, typer.Option("--agents", metavar="MODULE:NAME", help="An Agent, or a list of them.", show_default=False)
    ],
    store: Annotated[
        Path | None, typer.Option("--store", metavar="PATH", help="The store's file.", show_default="laneway.duckdb")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            envvar="LANEWAY_ADDRESS",
            metavar="auto|HOST:PORT|ray://HOST:PORT",
            help="Join this cluster; left out, join the one of `ray start`, or start one.",
            show_default=False,
        ),
    ] = None,
    namespace: Namespace = None,
    working_dir: Annotated[
        Path | None,
        typer.Option("--working-dir", metavar="DIR", help="Sent to the cluster: the agents' code.", show_default=False),
    ] = None,
    runtime_env: Annotated[
        str | None,
        typer.Option("--runtime-env", metavar="FILE|JSON", help="Ray's runtime environment.", show_default=False),
    ] = None,
    max_actors: Annotated[
        int | None, typer.Option("--max-actors", min=1, help="Processes.", show_default="twice the CPUs")
    ] = None,
    lanes_per_actor: Annotated[
        int | None, typer.Option("--lanes-per-actor", min=1, help="Conversations a process.", show_default="256")
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option("--shards", min=1, max=64, help="Files and processes of the store.", show_default="1"),
    ] = None,
    authorize: Annotated[
        str | None,
        typer.Option(
            "--authorize",
            metavar="MODULE:NAME",
            help="A function that says who may approve, deny, resolve, abort, retry, quarantine, release and drain.",
            show_default="everybody may",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start a runtime on Ray and leave it running.

    Later commands find it, until `laneway down`. The module is looked for in the current folder, too.

    \b
    Example:
      laneway up --agents support_agent:agents --store support.duckdb
    """
    from . import ray_head

    name = namespace_of(namespace)
    environment = _environment(runtime_env, working_dir)
    if working_dir is not None:
        sys.path.insert(0, str(working_dir.resolve()))
    loaded = agents_of(agents)
    check = authorize_of(authorize) if authorize else None
    joined, head = _cluster(address, name)
    try:
        joined = ray_head.resolved(joined)
        found, remembered = _launched(
            loaded,
            store,
            head,
            address=joined,
            namespace=name,
            runtime_env=environment,
            authorize=check,
            max_actors=max_actors,
            lanes_per_actor=lanes_per_actor,
            shards=shards,
        )
    except BaseException:
        _stop_cluster(head)
        raise
    if as_json:
        print_json({**_as_dict(remembered), "actors": found.actors})
    else:
        started = "a Ray cluster was started at" if head else "on the Ray cluster at"
        print(printable(f"up: namespace {name}, {started} {joined}"))
        print(printable(f"store {remembered.store} ({store_name(found.store).split()[0]})"))
        print(printable(f"agents {', '.join(found.agents)}"))
        print('next: laneway submit CONVERSATION "text", laneway ps, laneway down')


def _launched(
    agents: list[Agent], store: Path | None, head: Head | None, *, address: str, namespace: str, **options: Any
) -> tuple[Description, RuntimeFile]:
    """Start the runtime, remember where it is, and leave it up; it ends again when it cannot be remembered."""
    from . import launch, runtime_file
    from .settings import STORE_DEFAULT

    runtime = launch.start(agents, store or STORE_DEFAULT, address=address, namespace=namespace, **options)
    try:
        found = runtime.describe()
        remembered = runtime_file.RuntimeFile(
            namespace=namespace,
            address=address,
            store=str((store or Path(STORE_DEFAULT)).resolve()),
            agents=found.agents,
            cluster_pid=head.pid if head else _inherited(namespace, address),
        )
        runtime_file.save(remembered)
    except BaseException:
        runtime.stop()
        raise
    runtime.leave()
    return found, remembered


def down(as_json: Json = False, namespace: Namespace = None, address: Address = None) -> None:
    """End the runtime, and the Ray cluster that came with it.

    Open work stays in the store and goes on at the next `laneway up`. A cluster that another namespace uses stays.

    \b
    Example:
      laneway down --namespace staging
    """
    from . import runtime_file

    name = namespace_of(namespace)
    remembered = runtime_file.load(name)
    if remembered is not None and address not in (None, remembered.address):
        remembered = None
    answered = True
    try:
        with running(name, address) as runtime:
            runtime.stop()
    except RuntimeUnreachable as error:
        if remembered is None:
            message = f"nothing to end: {error.message.partition('; start one')[0]}"
            raise RuntimeUnreachable(message, code=error.code, retryable=False, **error.details) from error
        answered = False
    ended = _release_cluster(remembered) if remembered is not None else False
    if remembered is not None:
        runtime_file.forget(name)
    if as_json:
        print_json({"namespace": name, "runtime_ended": answered, "cluster_ended": ended})
        return
    print(f"down: namespace {name}" if answered else f"down: namespace {name} did not answer any more")
    if ended:
        print("the Ray cluster that was started for it has ended, too")
    if remembered is not None:
        print(printable(f"store {remembered.store}"))


def ps(
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help="Only submissions in this state, such as running, suspended, unknown or failed.",
            show_default=False,
        ),
    ] = None,
    conversation: Annotated[
        str | None, typer.Option("--conversation", help="Only submissions of this conversation.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="The newest so many.")] = 50,
    as_json: Json = False,
    store: StorePath = None,
    namespace: Namespace = None,
    address: Address = None,
) -> None:
    """Show the runtime's processes and its newest submissions.

    \b
    Example:
      laneway ps --state running
    """
    from ..storage.ledger import State

    if state is not None and state not in set(State):
        raise InvalidInput(f"no state is named {state!r}; there are {', '.join(State)}", field="state")
    with reading(namespace, address, store) as runtime:
        found = runtime.describe()
        rows = runtime.submissions(conversation=conversation, state=state, limit=limit)
    if as_json:
        print_json({"runtime": found, "submissions": [row_as_dict(row) for row in rows]})
        return
    _print_runtime(found)
    print_table(
        ("submission", "conversation", "#", "agent", "state"),
        [(row.submission_id, row.conversation_id, row.queue_sequence, row.agent, str(row.state)) for row in rows],
        title="submissions",
        empty="no submissions" if state is None and conversation is None else "no such submissions",
    )


def row_as_dict(row: Row) -> dict[str, Any]:
    """A ledger row for programs: its control fields, without the input."""
    return {
        "submission_id": row.submission_id,
        "receipt_id": row.receipt_id,
        "conversation_id": row.conversation_id,
        "queue_sequence": row.queue_sequence,
        "principal": row.principal,
        "idempotency_key": row.idempotency_key,
        "agent": row.agent,
        "state": str(row.state),
        "outcome": row.outcome,
        "attempts": row.attempts,
        "epoch": row.epoch,
        "owner_id": row.owner_id,
        "run_id": row.run_id,
        "host_id": row.host_id,
        "steers": row.steers,
        "parked": row.parked,
        "abort_requested": row.abort is not None,
        "admitted_at": time_of(row.admitted_at_ms),
        "updated_at": time_of(row.updated_at_ms),
        "settled_at": time_of(row.settled_at_ms),
    }


# --- ps --------------------------------------------------------------------------------------------------------------


def _print_runtime(found: Description) -> None:
    kind = "its runtime is down" if found.kind == "offline" else f"namespace {found.namespace}"
    print(printable(f"{store_name(found.store)} ({kind})"))
    if found.agents:
        print(printable(f"agents {', '.join(found.agents)}"))
    quarantined, overdue = found.counts.get("quarantined", 0), found.counts.get("overdue", 0)
    if quarantined:
        print(f"quarantined conversations: {quarantined:,}, see `laneway quarantine list`")
    if overdue:
        print(f"overdue obligations: {overdue:,}, see `laneway obligations`")
    processes = [
        *((actor.name, actor.node[:_NODE_LENGTH_SHOWN], actor.pid, actor.conversations) for actor in found.actors),
        *((name, None, pid, None) for name, pid in _others(found) if pid is not None and found.kind == "ray"),
    ]
    if processes:
        print_table(("process", "node", "pid", "conversations"), processes, title="processes")


def _others(found: Description) -> list[tuple[str, int | None]]:
    stores = [(f"store-{index}" if index else "store", pid) for index, pid in enumerate(found.store_pids)]
    return [*(stores or [("store", found.store_pid)]), ("supervisor", found.supervisor_pid)]


# --- up and down -----------------------------------------------------------------------------------------------------


def _environment(given: str | None, working_dir: Path | None) -> dict[str, Any] | None:
    """Ray's runtime environment from --runtime-env and --working-dir. Raises: InvalidInput."""
    environment: dict[str, Any] = {}
    if given is not None:
        text = given if given.lstrip().startswith("{") else _text_of(given)
        try:
            environment = json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"--runtime-env is no JSON: {error}", field="runtime-env") from error
        if not isinstance(environment, dict):
            raise InvalidInput("--runtime-env must be a JSON object", field="runtime-env")
    if working_dir is not None:
        if not working_dir.is_dir():
            raise InvalidInput(f"{working_dir} is no folder", field="working-dir")
        if "working_dir" in environment:
            raise InvalidInput("--working-dir and --runtime-env both name a working_dir", field="working-dir")
        environment["working_dir"] = str(working_dir.resolve())
    return environment or None


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--runtime-env {path} cannot be read: {error}", field="runtime-env") from error


def _cluster(address: str | None, namespace: str) -> tuple[str, Head | None]:
    """The cluster to join: the named one, one that stands, or one that is started now."""
    from . import ray_head, runtime_file

    if address is not None:
        return address, None
    standing = ray_head.standing_cluster()
    if standing is not None:
        return standing, None
    say("starting a Ray cluster on this machine")
    head = ray_head.start_head(runtime_file.home() / f"{namespace}-ray.log")
    return head.address, head


def _inherited(namespace: str, address: str) -> int | None:
    """The cluster that an earlier runtime of this namespace had started and not ended."""
    from . import runtime_file

    before = runtime_file.load(namespace)
    return before.cluster_pid if before is not None and before.address == address else None


def _stop_cluster(head: Head | None) -> None:
    if head is not None:
        from .ray_head import stop_head

        stop_head(head.pid)


def _release_cluster(remembered: RuntimeFile) -> bool:
    """End a cluster that `up` had started, or leave it to another namespace that uses it."""
    import msgspec

    from . import ray_head, runtime_file

    if remembered.cluster_pid is None:
        return False
    heirs = runtime_file.others_at(remembered.address, remembered.namespace)
    if heirs:
        runtime_file.save(msgspec.structs.replace(heirs[0], cluster_pid=remembered.cluster_pid))
        return False
    return ray_head.stop_head(remembered.cluster_pid)


def _as_dict(remembered: RuntimeFile) -> dict[str, Any]:
    return {
        "namespace": remembered.namespace,
        "address": remembered.address,
        "store": remembered.store,
        "agents": list(remembered.agents),
        "cluster_started": remembered.cluster_pid is not None,
    }
