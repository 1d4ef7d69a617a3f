"""What operators do to work that is stuck or has failed: retry, quarantine, release; checked, authorised, recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, assert_never

import msgspec

from ..agents.authority import Act, Authorize, act_on, require
from ..recovery.classify import Evidence, evidence_of, is_uncertain
from ..storage.commands import MakeDue, Unit
from ..storage.contract import Quarantine
from ..storage.errors import Refused
from ..storage.ids import derive_id, new_id
from ..storage.ledger import Receipt, Row, State, receipt_of
from ..storage.records import RetryOf
from ..storage.values import digest_of, encode
from .lane.values import Admission
from .store_client import StoreClient

RETRIES_MAX = 1000  # of one submission; whoever comes there has another problem


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Try failed work again, or let work that waits for a time be claimed now."""

    submission_id: str
    author: str
    reason: str


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """Keep a conversation's lane from being claimed."""

    conversation_id: str
    author: str
    reason: str


class LetGo(msgspec.Struct, frozen=True, kw_only=True):
    """Let a quarantined conversation's lane be claimed again."""

    conversation_id: str
    author: str
    reason: str = ""


Operation = Retry | SetAside | LetGo
Submit = Callable[[str, Admission], Awaitable[Receipt]]


async def carry_out(
    store: StoreClient, authorize: Authorize | None, submit: Submit, operation: Operation, now_ms: int
) -> Receipt | Quarantine | None:
    """Raises: NotFound; InvalidInput; Refused with the code of the recorded fact that it contradicts."""
    match operation:
        case Retry():
            return await _retry(store, authorize, submit, operation, now_ms)
        case SetAside(conversation_id=name, author=author, reason=reason):
            await require(authorize, Act(action="quarantine", author=author, reason=reason, conversation_id=name))
            return await store.quarantine(name, reason, author)
        case LetGo(conversation_id=name, author=author, reason=reason):
            await require(authorize, Act(action="release", author=author, reason=reason, conversation_id=name))
            return await store.read("release_quarantine", name, author)
        case _:
            assert_never(operation)


async def _retry(
    store: StoreClient, authorize: Authorize | None, submit: Submit, operation: Retry, now_ms: int
) -> Receipt:
    """A new submission with the same input, agent and principal; a settled outcome never changes (Specification 16).

    Raises: Refused with code "not_settled", "not_failed", "unknown_unresolved", "input_not_kept", "retries_max" or
    "not_authorised".
    """
    evidence = evidence_of(await store.snapshot(operation.submission_id))
    row = evidence.row
    waits = row.state is State.READY and row.not_before_ms > now_ms
    if not waits:
        _check_failed(evidence)
    await require(authorize, act_on(row, "retry", operation.author, operation.reason))
    if waits:
        unit = Unit(conversation_id=row.conversation_id, commands=(MakeDue(submission_id=row.submission_id),))
        await store.commit(unit)
        return receipt_of(row, replayed=True)
    number, before = await _retries(store, row)
    if before is not None:
        return receipt_of(before, replayed=True)
    retry_of = RetryOf(submission_id=row.submission_id, number=number, author=operation.author, reason=operation.reason)
    return await submit(row.conversation_id, retry_admission(evidence, retry_of))


def retry_key(submission_id: str, number: int) -> str:
    """The idempotency key of a submission's `number`-th retry, from 1."""
    return derive_id("key", "retry", submission_id, number)


def retry_admission(evidence: Evidence, retry_of: RetryOf) -> Admission:
    """The admission of a retry; who asks for it and why is no part of its digest, so two who ask at once share one.

    Raises: Refused with code "input_not_kept": the log is the only place that keeps an input.
    """
    row = evidence.row
    recorded = evidence.view.inputs.get(row.submission_id)
    if recorded is None:
        message = f"{row.submission_id} was {row.outcome} before it ran, and its input was not kept: submit it again"
        raise Refused(message, code="input_not_kept", outcome=row.outcome)
    payload: dict[str, Any] = {"content": recorded.content, **({"extra": recorded.extra} if recorded.extra else {})}
    same = {"submission_id": retry_of.submission_id, "number": retry_of.number}
    return Admission(
        submission_id=new_id("sub"),
        receipt_id=new_id("rcp"),
        principal=row.principal,
        idempotency_key=retry_key(row.submission_id, retry_of.number),
        agent=row.agent,
        input=encode({**payload, "retry_of": retry_of}).decode(),
        input_digest=digest_of(encode([row.agent, payload, same])),
    )


def _check_failed(evidence: Evidence) -> None:
    row, run = evidence.row, evidence.run
    unproven = [
        call.call.id
        for call in (run.open_calls if run else ())
        if is_uncertain(call)
        or (call.unknown is not None and (call.resolved is None or call.resolved.resolution == "abort"))
    ]
    if row.state is State.UNKNOWN or (row.settled and unproven):
        calls = unproven or [name for name, known in row.unknown_calls.items() if known.resolution is None]
        raise Refused(
            f"nobody knows what became of {', '.join(calls)} of {row.submission_id}; trying again may do it twice",
            code="unknown_unresolved",
            state=str(row.state),
            calls=calls,
        )
    if not row.settled:
        raise Refused(f"{row.submission_id} is {row.state} and goes on", code="not_settled", state=str(row.state))
    if row.state is State.COMPLETED:
        raise Refused(f"{row.submission_id} has completed", code="not_failed", outcome=row.outcome)


async def _retries(store: StoreClient, row: Row) -> tuple[int, Row | None]:
    """The number of the next retry, or the one that is under way. Raises: Refused when one has completed."""
    for number in range(1, RETRIES_MAX + 1):
        key = retry_key(row.submission_id, number)
        found: Row | None = await store.read("lookup_key", row.conversation_id, row.principal, key)
        if found is None:
            return number, None
        if not found.settled:
            return number, found
        if found.state is State.COMPLETED:
            raise Refused(
                f"{row.submission_id} was tried again as {found.submission_id}, which has completed",
                code="not_failed",
                outcome=found.outcome,
                submission_id=found.submission_id,
            )
    raise Refused(f"{row.submission_id} was tried again {RETRIES_MAX} times", code="retries_max", limit=RETRIES_MAX)
