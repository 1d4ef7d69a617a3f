"""obligations, dead-letters, retry, drain, quarantine: what operators do when work is stuck or has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_options import (
    Address,
    ConversationId,
    Json,
    Local,
    LocalAgents,
    LocalStore,
    Namespace,
    StorePath,
    SubmissionId,
    reading,
    require_submission,
    running,
    working,
)
from .cli_output import print_json, print_table, printable, reporting, time_of

if TYPE_CHECKING:
    from ..storage.contract import DeadLetter, Quarantine

Author = Annotated[str, typer.Option("--author", help="Who acts; it is recorded.", show_default=False)]
_QUARANTINE_HELP = """Conversations that nobody runs: list, add, release.

A lane sets its conversation aside by itself when what is stored cannot be read, has no decision, or fails again and
again. Submissions to it are admitted all the same, and run once it is released.
"""


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(reporting(obligations))
    app.command("dead-letters")(reporting(dead_letters))
    app.command()(reporting(retry))
    app.command()(reporting(drain))
    group = typer.Typer(name="quarantine", help=_QUARANTINE_HELP, rich_markup_mode=None, no_args_is_help=True)
    group.command("list")(reporting(quarantine_list))
    group.command("add")(reporting(quarantine_add))
    group.command("release")(reporting(quarantine_release))
    app.add_typer(group)


def obligations(
    overdue: Annotated[
        float, typer.Option("--overdue", min=0, metavar="SECONDS", help="Only what is open for as long as this.")
    ] = 0.0,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="So many at most.")] = 1000,
    as_json: Json = False,
    store: StorePath = None,
    namespace: Namespace = None,
    address: Address = None,
) -> None:
    """Show what has no outcome yet, and whom it waits for.

    It was accepted, so it stands here until exactly one outcome is recorded.

    \b
    Example:
      laneway obligations --overdue 3600
    """
    with reading(namespace, address, store) as runtime:
        found = runtime.obligations(overdue_s=overdue, limit=limit)
    if as_json:
        print_json(found)
        return
    print_table(
        ("submission", "conversation", "#", "state", "open", "waits for", "why"),
        [
            (
                item.submission_id,
                item.conversation_id,
                item.queue_sequence,
                str(item.state),
                _age(item.age_s),
                item.waits_for,
                item.why,
            )
            for item in found
        ],
        title="obligations",
        empty="nothing is owed" if not overdue else f"nothing is owed for as long as {overdue:g} s",
    )
    if found:
        print("next: laneway explain SUBMISSION")


def dead_letters(
    every: Annotated[bool, typer.Option("--all", help="Every failed submission, whatever brought it down.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="The newest so many.")] = 1000,
    as_json: Json = False,
    store: StorePath = None,
    namespace: Namespace = None,
    address: Address = None,
) -> None:
    """Show what failed and may be tried again, and what is unknown.

    A bound or a passing fault, such as a model that gave no answer, brought the former down; the latter are open and
    wait for `laneway resolve`.

    \b
    Example:
      laneway dead-letters
    """
    with reading(namespace, address, store) as runtime:
        found = runtime.dead_letters(every=every, limit=limit)
    if as_json:
        print_json([_letter(letter) for letter in found])
        return
    print_table(
        ("submission", "conversation", "#", "agent", "kind", "error", "attempts", "settled"),
        [
            (
                letter.submission_id,
                letter.conversation_id,
                letter.queue_sequence,
                letter.agent,
                letter.kind,
                letter.code,
                letter.attempts,
                time_of(letter.settled_at_ms) or "",
            )
            for letter in found
        ],
        title="dead letters",
        empty="nothing has failed" if every else "no dead letters; --all shows every failed submission",
    )
    if found:
        print("next: laneway explain SUBMISSION, laneway retry SUBMISSION --author NAME")


def retry(
    submission: SubmissionId,
    author: Author,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is recorded.")] = "",
    as_json: Json = False,
    namespace: Namespace = None,
    address: Address = None,
    local: Local = False,
    agents: LocalAgents = None,
    store: LocalStore = None,
) -> None:
    """Try a failed or aborted submission again, as a new one.

    The new one has the same input, and its calls get new idempotency keys. Work that waits for a time, or for its
    agent, may be claimed at once instead. While a retry is open, asking again gives that very one. What has
    completed, goes on, or has an unknown outcome is refused.

    \b
    Example:
      laneway retry sub_0198... --author ann --reason "the provider is back"
    """
    require_submission(submission)
    with working(namespace, address, local=local, agents=agents, store=store) as runtime:
        receipt = runtime.retry(submission, author=author, reason=reason)
    if as_json:
        print_json({**receipt.as_dict(), "retry_of": None if receipt.submission_id == submission else submission})
    elif receipt.submission_id == submission:
        print(printable(f"{submission} may be claimed now"))
    else:
        again = "is tried again already as" if receipt.replayed else "is tried again as"
        print(printable(f"{submission} {again} {receipt.submission_id}"))
        print(printable(f"next: laneway watch {receipt.conversation_id}"))


def drain(
    process: Annotated[
        str, typer.Argument(metavar="PROCESS", help="Its name, as `laneway ps` shows it.", show_default=False)
    ],
    author: Annotated[str, typer.Option("--author", help="Who asks; the runtime's check is told.")] = "anonymous",
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
    as_json: Json = False,
    namespace: Namespace = None,
    address: Address = None,
) -> None:
    """Replace a process of the runtime as planned.

    Its calls come to an end, and its work goes on elsewhere.

    \b
    Example:
      laneway drain conversations-0198... --author ann
    """
    with running(namespace, address) as runtime:
        runtime.drain(process, author=author, reason=reason)
    if as_json:
        print_json({"process": process, "drained": True})
    else:
        print(printable(f"{process} has ended; its conversations have moved"))


def quarantine_list(
    as_json: Json = False, store: StorePath = None, namespace: Namespace = None, address: Address = None
) -> None:
    """Show quarantined conversations with their reasons.

    \b
    Example:
      laneway quarantine list
    """
    with reading(namespace, address, store) as runtime:
        found = runtime.quarantined()
    if as_json:
        print_json([_quarantine(item) for item in found])
        return
    print_table(
        ("conversation", "since", "by", "reason"),
        [(item.conversation_id, time_of(item.since_ms), item.author, item.reason) for item in found],
        title="quarantined",
        empty="no conversation is quarantined",
    )
    if found:
        print("next: laneway quarantine release CONVERSATION --author NAME")


def quarantine_add(
    conversation: ConversationId,
    author: Author,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is recorded.", show_default=False)],
    as_json: Json = False,
    namespace: Namespace = None,
    address: Address = None,
    local: Local = False,
    agents: LocalAgents = None,
    store: LocalStore = None,
) -> None:
    """Set a conversation aside.

    What runs comes to its end, and nothing behind it is begun.

    \b
    Example:
      laneway quarantine add order-42 --author ann --reason "looking at its refunds"
    """
    with working(namespace, address, local=local, agents=agents, store=store) as runtime:
        found = runtime.quarantine(conversation, author=author, reason=reason)
    if as_json:
        print_json(_quarantine(found))
    else:
        print(printable(f"{conversation} is quarantined since {time_of(found.since_ms)} by {found.author}"))
        print(printable(f"reason: {found.reason}"))


def quarantine_release(
    conversation: ConversationId,
    author: Author,
    as_json: Json = False,
    namespace: Namespace = None,
    address: Address = None,
    local: Local = False,
    agents: LocalAgents = None,
    store: LocalStore = None,
) -> None:
    """Let a quarantined conversation run again. If its cause is still there, it is set aside again.

    \b
    Example:
      laneway quarantine release order-42 --author ann
    """
    with working(namespace, address, local=local, agents=agents, store=store) as runtime:
        found = runtime.release_quarantine(conversation, author=author)
    if as_json:
        print_json({**_quarantine(found), "released_by": author})
    else:
        print(printable(f"{conversation} is released; it was quarantined for: {found.reason}"))


# --- values for programs ---------------------------------------------------------------------------------------------


def _letter(letter: DeadLetter) -> dict[str, Any]:
    import msgspec

    fields = msgspec.to_builtins(letter)
    times = {name: time_of(fields.pop(f"{name}_ms")) for name in ("admitted_at", "settled_at")}
    return {**fields, **times}


def _quarantine(found: Quarantine) -> dict[str, Any]:
    return {
        "conversation_id": found.conversation_id,
        "reason": found.reason,
        "author": found.author,
        "since": time_of(found.since_ms),
    }


def _age(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:,.0f} {unit}"
    return f"{seconds:,.0f} s"
