"""Who may intervene: the check of the runtime's owner, asked before an operator's act is recorded (DUR-017)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ..storage.errors import InvalidInput, Refused, described
from ..storage.ledger import Row
from .threads import run_in_thread

CHECK_S = 10.0  # a check that hangs must not leave an operator without an answer

Action = Literal["approve", "deny", "resolve", "abort", "retry", "quarantine", "release", "drain"]


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody is about to do. `author` is who they say they are; `details` depend on the action.

    approve and deny: `tool`, `arguments` (the provider's text), `call_id`; resolve: these, `resolution` and `result`;
    drain: `process`. What is done to a submission names its conversation and its agent, too.
    """

    action: Action
    author: str
    reason: str
    conversation_id: str = ""
    submission_id: str = ""
    agent: str = ""
    details: dict[str, Any] = {}


Authorize = Callable[[Act], Any]
"""`authorize(act)`, sync or async, returns whether the act is allowed; it runs in the processes that host lanes."""


def act_on(row: Row, action: Action, author: str, reason: str, details: dict[str, Any] | None = None) -> Act:
    """What somebody is about to do to a submission: every such act says the same of it."""
    return Act(
        action=action,
        author=author,
        reason=reason,
        conversation_id=row.conversation_id,
        submission_id=row.submission_id,
        agent=row.agent,
        details=details or {},
    )


def checked_authorize(authorize: object) -> Authorize | None:
    """Raises: InvalidInput with field "authorize" for what cannot be called."""
    if authorize is not None and not callable(authorize):
        raise InvalidInput(f"authorize must be a function, not {type(authorize).__name__}", field="authorize")
    return authorize


async def require(authorize: Authorize | None, act: Act) -> None:
    """Let the act pass, or raise. Without a check everybody may act; a check that fails allows nobody.

    Raises: Refused with code "not_authorised".
    """
    if authorize is None:
        return
    try:
        async with asyncio.timeout(CHECK_S):
            if inspect.iscoroutinefunction(authorize):
                allowed = await authorize(act)
            else:
                allowed = await run_in_thread(authorize, act)
            if inspect.isawaitable(allowed):
                allowed = await allowed
    except Exception as error:
        raise _refused(act, f"the check failed with {described(error)[:500]}") from error
    if allowed is not True:
        raise _refused(act, "the runtime's check says no")


def _refused(act: Act, why: str) -> Refused:
    what = act.submission_id or act.conversation_id or act.details.get("process", "")
    return Refused(
        f"{act.author} may not {act.action} {what}: {why}",
        code="not_authorised",
        action=act.action,
        author=act.author,
    )
