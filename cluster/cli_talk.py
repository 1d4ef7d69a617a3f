"""submit, steer, log, watch and abort: one conversation."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..storage.errors import InvalidInput
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
    require_conversation,
    require_submission,
    working,
)
from .cli_output import FAILED, print_json, printable, reporting, say, time_of
from .cli_records import record_line

if TYPE_CHECKING:
    from ..recovery.explain import Explanation
    from .runtime import Receipt, Runtime, Settlement

_STDIN_BYTES_MAX = 64 << 20  # bounds memory; the runtime's own limit on an input is far lower

_ASKS = ("approval_requested", "tool_call_unknown")

_LOOK_S = 2.0  # how soon somebody who waits is told that a person has to decide

Text = Annotated[
    str, typer.Argument(metavar="TEXT|-", help='What is said; "-" reads standard input.', show_default=False)
]
Key = Annotated[
    str | None,
    typer.Option("--key", help="Idempotency key: the same key gives the same receipt.", show_default=False),
]
Principal = Annotated[str, typer.Option("--principal", help="On whose behalf.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the outcome, or end at the receipt.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0, metavar="SECONDS", help="Wait this long at most.", show_default=False),
]
After = Annotated[int, typer.Option("--after", min=0, help="Only records behind this sequence.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (submit, steer, log, watch, abort):
        app.command()(reporting(command))


def submit(
    conversation: ConversationId,
    text: Text,
    agent: Annotated[
        str | None,
        typer.Option("--agent", help="Who answers; left out, who began, or the only agent.", show_default=False),
    ] = None,
    key: Key = None,
    principal: Principal = "anonymous",
    wait: Wait = True,
    timeout: Timeout = None,
    as_json: Json = False,
    namespace: Namespace = None,
    address: Address = None,
    local: Local = False,
    agents: LocalAgents = None,
    store: LocalStore = None,
) -> None:
    """Hand over one input durably and wait for its outcome.

    It runs by itself in its turn, or joins the run that is under way where the agent was made with join=True. To reach
    a run under way with any agent, use `laneway steer`.

    A single line break at the end of standard input is not part of it. The exit code is 1 when the submission failed,
    was aborted, or is still open after --timeout.

    \b
    Example:
      laneway submit order-42 "Where is my order?" --agent support --key msg-1
    """
    content = _standard_input() if text == "-" else text
    with working(namespace, address, local=local, agents=agents, store=store) as runtime:
        receipt = runtime.conversation(conversation, agent).submit(content, idempotency_key=key, principal=principal)
        _tell_outcome(runtime, receipt, wait=wait, timeout=timeout, as_json=as_json, stays=not local)


def steer(
    conversation: ConversationId,
    text: Text,
    key: Key = None,
    principal: Principal = "anonymous",
    wait: Wait = True,
    timeout: Timeout = None,
    as_json: Json = False,
    namespace: Namespace = None,
    address: Address = None,
    local: Local = False,
    agents: LocalAgents = None,
    store: LocalStore = None,
) -> None:
    """Say something to the run that is under way.

    It goes ahead of what is queued: it enters the log behind the run's next complete turn, before the next model
    call, and settles with that run. Where the run ends first, it runs by itself in its turn. Where nothing runs, it
    is refused (code nothing_to_steer).

    \b
    Example:
      laneway steer order-42 "Only the open ones, please" --key msg-2
    """
    content = _standard_input() if text == "-" else text
    with working(namespace, address, local=local, agents=agents, store=store) as runtime:
        receipt = runtime.conversation(conversation).steer(content, idempotency_key=key, principal=principal)
        _tell_outcome(runtime, receipt, wait=wait, timeout=timeout, as_json=as_json, stays=not local)


def log(
    conversation: ConversationId,
    after: After = 0,
    as_json: Json = False,
    store: StorePath = None,
    namespace: Namespace = None,
    address: Address = None,
) -> None:
    """Show the canonical log of a conversation.

    One line a record; with --json one JSON object a line.

    \b
    Example:
      laneway log order-42 --after 10
    """
    from .client import as_dict, records_of

    with reading(namespace, address, store) as runtime:
        require_conversation(runtime, conversation)
        for batch in runtime.run(runtime.client.batches(conversation, after)):
            at = time_of(batch.committed_at_ms)
            for sequence, record in records_of([batch], after):
                fields = as_dict(record)
                if as_json:
                    print_json({"sequence": sequence, "committed_at": at, **fields})
                else:
                    typer.echo(record_line(sequence, fields, at))


def watch(
    conversation: ConversationId,
    after: After = 0,
    deltas: Annotated[
        bool, typer.Option("--deltas/--no-deltas", help="Show text as it comes, before it is recorded.")
    ] = True,
    as_json: Json = False,
    namespace: Namespace = None,
    address: Address = None,
    local: Local = False,
    agents: LocalAgents = None,
    store: LocalStore = None,
) -> None:
    """Follow a conversation until nothing is owed in it.

    While a submission waits for a person, its obligation stays and `watch` stays with it; standard error says so.

    Records are shown as they are committed, text as it comes. Text that comes is provisional: only the record that
    follows counts. To go on later, pass the last sequence that was seen to --after. With --json, one event a line.

    \b
    Example:
      laneway watch order-42 --after 10
    """
    with working(namespace, address, local=local, agents=agents, store=store) as runtime:
        require_conversation(runtime, conversation)
        inline = False
        told: set[str] = set()
        for event in runtime.conversation(conversation).events(after, provisional=deltas):
            if as_json:
                print_json(event)
                sys.stdout.flush()
            elif event.provisional:
                typer.echo(typer.style(printable(event.data["text"], keep_lines=True), dim=True), nl=False)
                inline = True
            else:
                typer.echo(("\n" if inline else "") + record_line(event.sequence or 0, event.data))
                inline = False
            if event.type in _ASKS and not as_json:
                _tell_waiting(runtime, conversation, told)
        if inline:
            typer.echo()


def abort(
    submission: SubmissionId,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is recorded.")] = "",
    author: Annotated[str, typer.Option("--author", help="Who asks; it is recorded.")] = "anonymous",
    as_json: Json = False,
    namespace: Namespace = None,
    address: Address = None,
    local: Local = False,
    agents: LocalAgents = None,
    store: LocalStore = None,
) -> None:
    """Ask durably for the abort of a submission.

    The first request counts, and settled work never changes.

    \b
    Example:
      laneway abort sub_0198... --reason "asked twice" --author alice
    """
    require_submission(submission)
    with working(namespace, address, local=local, agents=agents, store=store) as runtime:
        answer = runtime.abort(submission, reason=reason, author=author)
        state = runtime.submission(submission).state
    found: dict[str, Any] = {
        "submission_id": submission,
        "abort_id": answer.abort.abort_id,
        "author": answer.abort.author,
        "reason": answer.abort.reason,
        "state": str(state),
        "replayed": answer.replayed,
    }
    if as_json:
        print_json(found)
    else:
        first = "was asked before" if answer.replayed else "is recorded"
        print(printable(f"abort {first}: by {found['author']}, {submission} is {found['state']}"))


def _tell_waiting(runtime: Runtime, conversation_id: str, told: set[str]) -> None:
    """Say which submissions wait for a person now, each once: a log also holds what was decided long ago."""
    for state in ("suspended", "unknown"):
        for row in runtime.submissions(conversation=conversation_id, state=state):
            if row.submission_id not in told:
                told.add(row.submission_id)
                say(f"it waits for a person: `laneway explain {row.submission_id}` shows what to decide")


def _standard_input() -> str:
    data = sys.stdin.buffer.read(_STDIN_BYTES_MAX + 1)
    if len(data) > _STDIN_BYTES_MAX:
        raise InvalidInput(
            f"standard input has more than {_STDIN_BYTES_MAX:,} bytes", field="input", limit=_STDIN_BYTES_MAX
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"standard input is no UTF-8 text: {error.reason} at {error.start}", field="input") from None
    return text.removesuffix("\n").removesuffix("\r")


def _tell_outcome(
    runtime: Runtime, receipt: Receipt, *, wait: bool, timeout: float | None, as_json: bool, stays: bool
) -> None:
    """Print the receipt, then the outcome where it is waited for; exit code 1 where that is not "completed".

    `stays`: the runtime is up after this command, and other commands reach it.
    """
    if not as_json:
        again = "accepted before" if receipt.replayed else "accepted"
        print(f"{again}: {receipt.submission_id}, receipt {receipt.receipt_id}, #{receipt.queue_sequence}", flush=True)
    settlement = _await(runtime, receipt, timeout) if wait else None
    if as_json:
        print_json({"receipt": receipt.as_dict(), "settlement": settlement})
    elif not wait and stays:
        print(printable(f"next: laneway watch {shlex.quote(receipt.conversation_id)}"))
    elif settlement is not None:
        print(_outcome(settlement))
    if wait and (settlement is None or settlement.outcome != "completed"):
        raise typer.Exit(FAILED)


def _await(runtime: Runtime, receipt: Receipt, timeout_s: float | None) -> Settlement | None:
    """Wait for the outcome; say once on standard error when a person has to decide, and why it is open in the end."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    told = False
    while True:
        remaining = _LOOK_S if deadline is None else min(_LOOK_S, max(0.0, deadline - time.monotonic()))
        try:
            return receipt.result(remaining)
        except TimeoutError:
            found = runtime.explain(receipt.submission_id)
        over = deadline is not None and time.monotonic() >= deadline
        stuck = None if told and not over else _waits_for_a_person(runtime, found)
        if over or stuck:
            told = True
            rest = "waits for a person" if stuck else "goes on"
            after = f"is still open after {timeout_s:g} s and {rest}" if over else rest
            say(
                printable(
                    f"{receipt.submission_id} {after}. It is {found.state}: {found.why} "
                    + (
                        f"Say what to do: `laneway explain {stuck}` shows how"
                        if stuck
                        else f"Follow it with `laneway watch {receipt.conversation_id}`"
                    )
                )
            )
        if over:
            return None


def _waits_for_a_person(runtime: Runtime, found: Explanation) -> str | None:
    """The submission that somebody has to look at before this one comes to its end: itself, or one ahead of it."""
    if found.waits_for or any(action.startswith("laneway quarantine release") for action in found.actions):
        return found.submission_id
    head = runtime.submission(found.behind[0]) if found.behind else None
    if head is None or head.parked or head.state not in ("suspended", "unknown"):
        return None
    return head.submission_id


def _outcome(settlement: Settlement) -> str:
    from .cli_output import cell_text

    colour = "green" if settlement.outcome == "completed" else "red"
    head = typer.style(settlement.outcome, fg=colour, bold=True) if sys.stdout.isatty() else settlement.outcome
    if settlement.error is not None:
        return f"{head}: {printable(str(settlement.error['code']))}: {printable(str(settlement.error['message']))}"
    return f"{head}: {printable(cell_text(settlement.output), keep_lines=True)}"
