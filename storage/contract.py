"""The store's contract: what every adapter promises, and nothing about how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from .commands import Answer, Unit
from .header import Batch, Checkpoint
from .ledger import Row, State


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """Where a log ends. `epoch` is the highest that a claim of this conversation was given."""

    sequence: int = 0
    digest: str = ""
    epoch: int = 0


class LogPage(msgspec.Struct, frozen=True, kw_only=True):
    """Whole batches in order; `more` says that the log goes on behind them."""

    batches: tuple[Batch, ...]
    more: bool


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One consistent read of all that the classifier needs; rows come without their token."""

    row: Row
    host: Row | None
    tail: Tail
    batches: tuple[Batch, ...]
    """The batches of this submission, and of its host where it joined one."""


class ControlRow(msgspec.Struct, frozen=True, kw_only=True):
    """Control fields of an open submission; no payload is decoded for it."""

    submission_id: str
    conversation_id: str
    queue_sequence: int
    state: State
    owner_id: str | None
    owner_live: bool
    parked: bool
    abort_requested: bool
    attempts: int
    not_before_ms: int
    updated_at_ms: int
    admitted_at_ms: int = 0
    quarantined: bool = False
    """Nobody claims the conversation's lane, until it is released."""


class ScanPage(msgspec.Struct, frozen=True, kw_only=True):
    """Open submissions ordered by (conversation, queue sequence); `cursor` resumes behind them, None at the end."""

    rows: tuple[ControlRow, ...]
    cursor: tuple[str, int] | None


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """Why nobody claims a conversation's lane, who said so, and since when."""

    conversation_id: str
    reason: str
    author: str
    since_ms: int


OUTCOME_UNKNOWN = "outcome_unknown"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A submission that failed for good, or one whose outcome nobody knows, as the ledger tells it.

    `kind` is "failed" or "unknown". `code` is that of the recorded error, "outcome_unknown" for an unknown outcome,
    which is open: its `settled_at_ms` is None.
    """

    submission_id: str
    conversation_id: str
    queue_sequence: int
    agent: str
    principal: str
    code: str
    attempts: int
    admitted_at_ms: int
    settled_at_ms: int | None
    kind: Literal["failed", "unknown"] = "failed"
    changed_at_ms: int = 0
    """When it was settled, or when its row changed last while it is open."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question in SQL. Values are JSON values; times and other types come as text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


class StoreInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which adapter this is, and the work that it has done since it was opened."""

    adapter: str
    deployment_class: str
    path: str | None
    commits: int
    units: int
    rejected: int
    batches: int
    rows: int
    body_bytes: int
    shards: int = 1
    """How many stores of that adapter these figures are of."""


class Store(Protocol):
    """Canonical logs and the submission ledger of many conversations.

    Every write is a unit of commands that the machine (`storage.machine.apply`) decides. A unit is atomic, and a
    repeated unit gets the answer that the first one got. Units of one conversation in one call are applied in order.
    Specification 4 to 7 and 12; DUR-001, DUR-004 to DUR-007, DUR-011, DUR-012, DUR-015.
    """

    def commit(self, units: Sequence[Unit]) -> list[Answer]:
        """Commit all acceptable units in one physical transaction a shard; answer each on its own, in order.

        An answer is given after the commit. Raises: StoreUnavailable when the outcome is not known: repeat the same
        units; StoreFull when nothing was stored for want of space.
        """
        ...

    def read_log(self, conversation_id: str, after: int = 0, limit: int = 1024) -> LogPage:
        """Whole batches behind sequence `after`, about `limit` records, at least one batch when there is one."""
        ...

    def inspect_tail(self, conversation_id: str) -> Tail:
        """The end of the log; zero for a conversation that nobody knows."""
        ...

    def snapshot(self, submission_id: str) -> Snapshot:
        """Raises: NotFound."""
        ...

    def scan_nonterminal(self, cursor: tuple[str, int] | None = None, limit: int = 1024) -> ScanPage:
        """Open submissions, page by page; works where a payload is corrupt."""
        ...

    def lookup(self, submission_id: str) -> Row | None:
        """The row without its token, or None when nothing was admitted under this id."""
        ...

    def lookup_key(self, conversation_id: str, principal: str, idempotency_key: str) -> Row | None:
        """The row that a key was admitted as, or None."""
        ...

    def list_rows(self, conversation_id: str | None = None, state: str | None = None, limit: int = 1000) -> list[Row]:
        """Rows, newest admission last, without tokens; narrowed to a conversation or a state."""
        ...

    def list_conversations(self, after: str = "", limit: int = 1000) -> list[str]:
        """Ids of all conversations that something was admitted to, in order of their id, behind `after`."""
        ...

    def load_checkpoint(self, conversation_id: str) -> Checkpoint | None:
        """The last checkpoint, or None; it is never needed for a right answer."""
        ...

    def renew_lease(self, owner_id: str, ttl_ms: int) -> int:
        """Let the owner's lease run `ttl_ms` from now; returns its end in ms. Late renewal revives a lease."""
        ...

    def retire_owner(self, owner_id: str) -> None:
        """The owner's process is known to be dead: its lease ends now. Idempotent."""
        ...

    def owners(self) -> dict[str, int]:
        """All owners that were ever renewed and not retired, with the end of their lease in ms."""
        ...

    def quarantine(self, conversation_id: str, reason: str, author: str) -> Quarantine:
        """Keep the conversation's lane from being claimed (Specification 16). The first reason stands until it is
        released; durable, and no header is read for it: a damaged row is one cause. Admission goes on.

        Raises: InvalidInput for text that cannot be stored.
        """
        ...

    def release_quarantine(self, conversation_id: str, author: str) -> Quarantine | None:
        """Let the lane be claimed again; what it was, or None when it was not quarantined. `author` is recorded.

        Idempotent: whoever has released it, and asks again before it is quarantined anew, gets the first answer.
        """
        ...

    def quarantined(self, after: str = "", limit: int = 1000) -> list[Quarantine]:
        """Quarantined conversations in order of their id, behind `after`."""
        ...

    def dead_letters(self, codes: Sequence[str] | None = None, limit: int = 1000) -> list[DeadLetter]:
        """Failed submissions, narrowed to these error codes, and all whose outcome is unknown; no payload is decoded.

        The newest comes last: by settlement, or by the last change of a row that is open.
        """
        ...

    def query(self, sql: str, limit: int = 10_000) -> Table:
        """Answer a read-only question over the views.

        Raises: InvalidInput for bad SQL, Refused where the adapter speaks none.
        """
        ...

    def info(self) -> StoreInfo: ...

    def close(self) -> None:
        """Release the file; idempotent. Nothing may be called afterwards."""
        ...
