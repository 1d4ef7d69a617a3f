"""Identities: opaque strings, drawn (UUIDv7) or derived so that recovery computes them again (Specification 2)."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import time
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

_DERIVED_BYTES = 15  # 120 bits, 20 characters: collisions stay out of reach for 10^15 ids


def new_id(prefix: str) -> str:
    """Draw a fresh id: `prefix` and a UUIDv7, which sorts by its creation time."""
    milliseconds = time.time_ns() // 1_000_000
    chance = int.from_bytes(os.urandom(10))
    low = 0b10 << 62 | chance & (1 << 62) - 1
    return f"{prefix}_{milliseconds << 80 | 0x7 << 76 | chance >> 68 << 64 | low:032x}"


def derive_id(prefix: str, *parts: str | int) -> str:
    """Compute the id that belongs to `parts`: the same parts give the same id, in any process, at any time.

    The parts are encoded as a JSON array, so ("a", "b:c") and ("a:b", "c") differ.
    """
    digest = hashlib.sha256(msgspec.json.encode(parts)).digest()[:_DERIVED_BYTES]
    return f"{prefix}_{base64.urlsafe_b64encode(digest).decode()}"


def new_token() -> str:
    """Draw an ownership token: 128 bits that nobody can guess (Specification 6)."""
    return secrets.token_hex(16)
