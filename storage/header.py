"""What must be known of one conversation to check a write to it, and what a write changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from .ledger import Row


class BatchRef(msgspec.Struct, frozen=True, kw_only=True):
    """Where a committed batch stands, and what its body was."""

    first_sequence: int
    last_sequence: int
    digest: str
    body_digest: str
    """Digest of the content, the same for every order of its keys."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A canonical batch as it is stored (Specification 7).

    `body` is the JSON array of the records; `digest` is SHA-256 over the previous digest and the body's bytes.
    """

    conversation_id: str
    submission_id: str
    batch_id: str
    first_sequence: int
    last_sequence: int
    producer_id: str
    epoch: int
    schema_version: int
    previous_digest: str
    digest: str
    body: str
    committed_at_ms: int


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A disposable projection, and the tail that it was made at."""

    conversation_id: str
    tail_sequence: int
    tail_digest: str
    body: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Batches and record ids of one submission: enough to recognise a repeat."""

    batches: Mapping[str, BatchRef] = field(default_factory=dict[str, BatchRef])
    records: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Header:
    """One conversation, as far as the machine needs it.

    `rows` holds the open submissions in queue order, `closed` those settled ones that the unit at hand names, `keys`
    the submissions that hold the (principal, idempotency key) pairs which it names, and `traces` belongs to the
    submissions in `rows` and `closed`. Between units `closed` and `keys` are empty.
    """

    conversation_id: str
    materialized: bool = False
    tail_sequence: int = 0
    tail_digest: str = ""
    epoch: int = 0
    next_queue_sequence: int = 1
    steering_sequence: int = 0
    """The highest queue sequence of an input that steers, as far as one is open."""
    owned_by: str | None = None
    rows: Mapping[str, Row] = field(default_factory=dict[str, Row])
    closed: Mapping[str, Row] = field(default_factory=dict[str, Row])
    keys: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    traces: Mapping[str, Trace] = field(default_factory=dict[str, Trace])


@dataclass(frozen=True, slots=True)
class Changes:
    """What an adapter has to store, all of it or nothing."""

    materialized: str | None = None
    """The agent of a conversation whose identity became durable with this unit."""
    rows: tuple[Row, ...] = ()
    admitted: frozenset[str] = frozenset()
    """Which of `rows` did not exist before."""
    batches: tuple[Batch, ...] = ()
    checkpoint: Checkpoint | None = None
