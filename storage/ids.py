"""Identities: opaque strings, drawn (UUIDv7) or derived so that recovery computes them again (Specification 2)."""

from __future__ import annotations

import binascii
import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NewType

import msgspec

ConversationId = NewType("ConversationId", str)
SubmissionId = NewType("SubmissionId", str)
ReceiptId = NewType("ReceiptId", str)
RunId = NewType("RunId", str)
AttemptId = NewType("AttemptId", str)
ToolCallId = NewType("ToolCallId", str)
SettlementId = NewType("SettlementId", str)
ProducerId = NewType("ProducerId", str)
BatchId = NewType("BatchId", str)
RecordId = NewType("RecordId", str)
OwnerId = NewType("OwnerId", str)

_encode = msgspec.json.Encoder().encode
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_DERIVED_BYTES = 15  # 120 bits, 20 characters: collisions stay out of reach for 10^15 ids


@dataclass(frozen=True, slots=True)
class IdSource:
    """What drawn ids and tokens are made of: bytes that nobody can guess, and the time in ms."""

    random_bytes: Callable[[int], bytes] = os.urandom
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


_source = IdSource()


@contextlib.contextmanager
def ids_from(source: IdSource) -> Generator[None, None, None]:
    """Draw the ids and tokens of this whole process from `source`: for simulations, whose runs can be repeated."""
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before


def new_id(prefix: str) -> str:
    """Draw a fresh id: `prefix` and a UUIDv7, which sorts by its creation time."""
    milliseconds = _source.now_ms()
    chance = int.from_bytes(_source.random_bytes(10))
    low = 0b10 << 62 | chance & (1 << 62) - 1
    return f"{prefix}_{milliseconds << 80 | 0x7 << 76 | chance >> 68 << 64 | low:032x}"


def derive_id(prefix: str, *parts: str | int) -> str:
    """Compute the id that belongs to `parts`: the same parts give the same id, in any process, at any time.

    The parts are encoded as a JSON array, so ("a", "b:c") and ("a:b", "c") differ.
    """
    digest = hashlib.sha256(_encode(parts)).digest()[:_DERIVED_BYTES]
    return f"{prefix}_{binascii.b2a_base64(digest, newline=False).translate(_URL_SAFE).decode()}"


def new_token() -> str:
    """Draw an ownership token: 128 bits that nobody can guess (Specification 6)."""
    return _source.random_bytes(16).hex()
