"""approve, deny, resolve and explain: what a person decides on open work, and what they read before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..storage.errors import InvalidInput
from .cli_options import (
    Address,
    Json,
    Local,
    LocalAgents,
    LocalStore,
    Namespace,
    StorePath,
    SubmissionId,
    reading,
    require_submission,
    working,
)
from .cli_output import print_json, printable, reporting, time_of

if TYPE_CHECKING:
    from ..recovery.explain import Explanation

_ARGUMENTS_SHOWN = 2_000  # enough to decide on; the whole text stands in `laneway log` and in --json

Author = Annotated[str, typer.Option("--author", help="Who decides; it is recorded.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is recorded.")]
Which = Annotated[
    str | None,
    typer.Option(
        "--approval", metavar="ID", help="The approval's id, or its call's.", show_default="the only open one"
    ),
]
Digest = Annotated[
    str | None,
    typer.Option(
        "--arguments-digest", metavar="SHA256", help="Decide only if these are the arguments.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (explain, approve, deny, resolve):
        app.command()(reporting(command))


def explain(
    submission: SubmissionId,
    as_json: Json = False,
    store: StorePath = None,
    namespace: Namespace = None,
    address: Address = None,
) -> None:
    """Say why a submission is in its state, and what comes next.

    With it comes the evidence, each call that somebody has to decide on, and the commands that apply.

    \b
    Example:
      laneway explain sub_0198...
    """
    with reading(namespace, address, store) as runtime:
        told = runtime.explain(require_submission(submission))
    if as_json:
        print_json(told)
    else:
        for line in _lines(told):
            print(printable(line))


def approve(
    submission: SubmissionId,
    author: Author,
    approval: Which = None,
    every: Annotated[bool, typer.Option("--all", help="Every open approval of the submission.")] = False,
    reason: Reason = "",
    arguments_digest: Digest = None,
    as_json: Json = False,
    namespace: Namespace = None,
    address: Address = None,
    local: Local = False,
    agents: LocalAgents = None,
    store: LocalStore = None,
) -> None:
    """Let a call run that waits for approval.

    The decision holds for exactly the arguments that `laneway explain` shows, and the first one counts.

    \b
    Examples:
      laneway approve sub_0198... --author ann
      laneway approve sub_0198... --author ann --approval apr_5Xk... --reason "checked the invoice"
    """
    with working(namespace, address, local=local, agents=agents, store=store) as runtime:
        decided = _decide(runtime, "approved", submission, author, approval, every, reason, arguments_digest)
    _print_decided(decided, as_json)


def deny(
    submission: SubmissionId,
    author: Author,
    approval: Which = None,
    every: Annotated[bool, typer.Option("--all", help="Every open approval of the submission.")] = False,
    reason: Reason = "",
    arguments_digest: Digest = None,
    as_json: Json = False,
    namespace: Namespace = None,
    address: Address = None,
    local: Local = False,
    agents: LocalAgents = None,
    store: LocalStore = None,
) -> None:
    """Refuse a call that waits for approval.

    The model reads the reason, and the run goes on.

    \b
    Example:
      laneway deny sub_0198... --author ann --reason "too much"
    """
    with working(namespace, address, local=local, agents=agents, store=store) as runtime:
        decided = _decide(runtime, "denied", submission, author, approval, every, reason, arguments_digest)
    _print_decided(decided, as_json)


def resolve(
    submission: SubmissionId,
    resolution: Annotated[
        str,
        typer.Argument(
            metavar="completed_with_result|never_started|safe_to_retry|abort",
            help="What became of the call.",
            show_default=False,
        ),
    ],
    author: Author,
    reason: Annotated[str, typer.Option("--reason", help="On what evidence; it is recorded.", show_default=False)],
    call: Annotated[
        str | None, typer.Option("--call", metavar="ID", help="The call's id.", show_default="the only unknown one")
    ] = None,
    result: Annotated[
        str | None,
        typer.Option(
            "--result",
            metavar="JSON",
            help="What the call returned, null for nothing; needed with completed_with_result, and with nothing else.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    namespace: Namespace = None,
    address: Address = None,
    local: Local = False,
    agents: LocalAgents = None,
    store: LocalStore = None,
) -> None:
    """Say what became of a call whose outcome nobody could prove.

    completed_with_result: it took place, and this is its result. never_started: it did not and cannot any more, so it
    runs as if for the first time. safe_to_retry: running it again under its key has its effect at most once. abort: the
    submission ends as aborted, and the evidence stays.

    \b
    Examples:
      laneway resolve sub_0198... never_started --author ann --reason "no booking at the bank"
      laneway resolve sub_0198... completed_with_result --result '{"charge": "ch_1"}' --author ann --reason "statement"
    """
    if resolution == "completed_with_result" and result is None:
        raise InvalidInput(
            "completed_with_result needs --result: the model reads it as what the call returned; null says nothing",
            field="result",
        )
    value = _json_of(result)
    with working(namespace, address, local=local, agents=agents, store=store) as runtime:
        moved = runtime.resolve_unknown(
            require_submission(submission),
            resolution,  # pyright: ignore[reportArgumentType]: checked there, with a message that names what is allowed
            call_id=call,
            result=value,
            author=author,
            reason=reason,
        )
    found = {"submission_id": submission, "state": str(moved.state), "replayed": moved.replayed}
    if as_json:
        print_json(found)
    else:
        before = "was resolved so before" if moved.replayed else f"is resolved as {resolution}"
        print(printable(f"the call {before}; {submission} is {moved.state}"))


def _decide(
    runtime: Any,
    decision: Literal["approved", "denied"],
    submission: str,
    author: str,
    approval: str | None,
    every: bool,
    reason: str,
    digest: str | None,
) -> list[dict[str, Any]]:
    require_submission(submission)
    if every and approval is not None:
        raise InvalidInput("name one approval, or take --all", field="approval")
    names: list[str | None] = [approval]
    if every:
        waiting = runtime.explain(submission).waits_for
        names = [item["approval_id"] for item in waiting if item["kind"] == "approval"] or [None]
    act = runtime.approve if decision == "approved" else runtime.deny
    decided: list[dict[str, Any]] = []
    for name in names:
        answer = act(submission, name, author=author, reason=reason, arguments_digest=digest)
        decided.append(
            {
                "submission_id": submission,
                "approval": name,
                "decision": answer.decision,
                "author": answer.author,
                "state": str(answer.state),
                "replayed": answer.replayed,
            }
        )
    return decided


def _print_decided(decided: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(decided if len(decided) > 1 else decided[0])
        return
    for found in decided:
        before = " before" if found["replayed"] else ""
        print(
            printable(f"{found['decision']}{before} by {found['author']}; {found['submission_id']} is {found['state']}")
        )


def _json_of(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"result must be JSON: {error}", field="result") from error


def _lines(told: Explanation) -> list[str]:
    lines = [
        f"{told.submission_id}  {told.conversation_id}  {told.state}",
        f"  why       {told.why}",
        f"  evidence  {told.evidence}",
        f"  next      {told.next}",
        f"  recovery  {told.decision}  (attempts {told.attempts}, epoch {told.epoch})",
    ]
    for item in told.waits_for:
        arguments = item["arguments"]
        shown = arguments if len(arguments) <= _ARGUMENTS_SHOWN else arguments[:_ARGUMENTS_SHOWN] + " ..."
        if item["kind"] == "approval":
            expires = f", until {time_of(item['expires_at_ms'])}" if item["expires_at_ms"] else ""
            lines += [f"  approval  {item['approval_id']}{expires}", f"            {item['tool']} {shown}"]
            lines += [f"            arguments digest {item['arguments_digest']}"]
        else:
            lines += [f"  unknown   {item['call_id']} since {time_of(item['since_ms'])}: {item['reason']}"]
            lines += [f"            {item['tool']} {shown}"]
    return [*lines, *(f"  you may   {action}" for action in told.actions)]
