"""What many commands share: their options, and how they reach a runtime, a store, or run without Ray."""

from __future__ import annotations

import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..storage.errors import InvalidInput, NotFound, RuntimeUnreachable

if TYPE_CHECKING:
    from ..agents.agent import Agent
    from ..agents.authority import Authorize
    from .runtime import Runtime

ADDRESS_DEFAULT = "auto"

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs, and no text for people.")]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", envvar="LANEWAY_NAMESPACE", help="Which runtime of the cluster.", show_default="laneway"
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        envvar="LANEWAY_ADDRESS",
        metavar="auto|HOST:PORT|ray://HOST:PORT",
        help="The Ray cluster; left out, the one that `laneway up` remembers, else auto.",
    ),
]
StorePath = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="PATH", help="Read this store directly; its runtime must be down.", show_default=False
    ),
]
LocalStore = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="PATH", help="With --local: the store's file; left out, memory.", show_default=False
    ),
]
Local = Annotated[bool, typer.Option("--local", help="Run in this process, without Ray, as long as the command does.")]
LocalAgents = Annotated[
    str | None,
    typer.Option("--agents", metavar="MODULE:NAME", help="With --local: the agents that run.", show_default=False),
]
SubmissionId = Annotated[str, typer.Argument(metavar="SUBMISSION", help="The submission's id.", show_default=False)]
ConversationId = Annotated[
    str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.", show_default=False)
]


def namespace_of(namespace: str | None) -> str:
    """The checked namespace: the option, LANEWAY_NAMESPACE, or the default. Raises: InvalidInput."""
    from .settings import load_settings

    return load_settings(namespace=namespace).namespace


@contextmanager
def running(namespace: str | None, address: str | None, *, reads: bool = False) -> Generator[Runtime]:
    """A runtime that is up, at `address`, or where `laneway up` had left it. `reads`: the command has --store, too.

    Raises: RuntimeUnreachable that says what to do.
    """
    from . import runtime_file
    from .launch import connect

    name = namespace_of(namespace)
    remembered = runtime_file.load(name) if address is None else None
    chosen = address or (remembered.address if remembered else ADDRESS_DEFAULT)
    try:
        runtime = connect(chosen, namespace=name)
    except RuntimeUnreachable as error:
        raise RuntimeUnreachable(
            error.message
            + ("" if "`laneway up" in error.message else "; start one with `laneway up --agents module:name`")
            + (f", or read its store with --store {remembered.store}" if remembered else "")
            + (", or read a store with --store PATH" if reads and not remembered else ""),
            code=error.code,
            retryable=error.retryable,
            **{**error.details, "address": chosen, "namespace": name},
        ) from error
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's handler writes a stack trace over what the command has said
    with runtime:
        yield runtime


@contextmanager
def reading(namespace: str | None, address: str | None, store: Path | None) -> Generator[Runtime]:
    """What a reading command works on: the store at `store` while its runtime is down, else a runtime that is up."""
    if store is None:
        with running(namespace, address, reads=True) as runtime:
            yield runtime
        return
    from .offline import open_offline

    with open_offline(store) as runtime:
        yield runtime


@contextmanager
def working(
    namespace: str | None, address: str | None, *, local: bool, agents: str | None, store: Path | None
) -> Generator[Runtime]:
    """What a command that changes something works on: a runtime that is up, or one in this process."""
    if local:
        from .launch import local as start_local

        with start_local(agents_of(agents) if agents else [], store) as runtime:
            yield runtime
        return
    for option, value in (("--agents", agents), ("--store", store)):
        if value is not None:
            raise InvalidInput(
                f"{option} goes with --local; a runtime that is up has its own", field=option.lstrip("-")
            )
    with running(namespace, address) as runtime:
        yield runtime


def authorize_of(target: str) -> Authorize:
    """The check that `--authorize module:name` names. Raises: InvalidInput with field "authorize"."""
    from ..agents.registry import load_authorize

    return load_authorize(target)


def agents_of(target: str) -> list[Agent]:
    """The agents that `--agents module:name` names. Raises: InvalidInput."""
    from ..agents.registry import load_agents

    return load_agents(target)


def require_conversation(runtime: Runtime, conversation_id: str) -> None:
    """Raises: NotFound when nothing was ever submitted to the conversation, InvalidInput for what is no id."""
    conversation = runtime.conversation(conversation_id)
    if not runtime.submissions(conversation=conversation.id, limit=1):
        raise NotFound(f"nothing was ever submitted to conversation {conversation_id}", conversation_id=conversation_id)


def require_submission(submission_id: str) -> str:
    """The id itself. Raises: InvalidInput with field "submission" for none at all."""
    if not submission_id:
        raise InvalidInput("submission must not be empty", field="submission")
    return submission_id


def store_name(info: dict[str, Any]) -> str:
    """How output calls a store: its deployment class beside the adapter, and where it is."""
    adapter = str(info["adapter"])
    name = str(info["deployment_class"]) if adapter == "memory" else f"{info['deployment_class']}/{adapter}"
    return f"{name} {info['path']}" if info.get("path") else name
