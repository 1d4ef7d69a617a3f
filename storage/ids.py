"""Identities: opaque strings, drawn (UUIDv7) or derived so that recovery computes them again (Specification 2)."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from typing import NewType

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

_encode_parts = json.JSONEncoder(separators=(",", ":")).encode  # an encoder a call would cost as much as the digest
_DERIVED_BYTES = 15  # 120 bits, 24 characters of base32: collisions stay out of reach for 10^15 ids


def new_id(prefix: str) -> str:
    """Draw a fresh id: `prefix` and a UUIDv7, which sorts by its creation time."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | (0x7 << 76) | (secrets.randbits(12) << 64) | (0b10 << 62) | secrets.randbits(62)
    return f"{prefix}_{value:032x}"


def derive_id(prefix: str, *parts: str | int) -> str:
    """Compute the id that belongs to `parts`: the same parts give the same id, in any process, at any time.

    The parts are encoded as a JSON array, so ("a", "b:c") and ("a:b", "c") differ.
    """
    encoded = _encode_parts(parts).encode()
    digest = hashlib.sha256(encoded).digest()[:_DERIVED_BYTES]
    return f"{prefix}_{base64.b32encode(digest).decode().lower()}"


def new_token() -> str:
    """Draw an ownership token: 128 bits that nobody can guess (Specification 6)."""
    return secrets.token_hex(16)
