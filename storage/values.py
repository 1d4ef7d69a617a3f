"""JSON values: encoded once with sorted keys, and checked against named limits before anything is stored."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

import msgspec

from .errors import InvalidInput

_encoder = msgspec.json.Encoder(order="sorted")
_LONG_NUMBER = re.compile(rb"\d{19}")  # may be an integer that 64 bits cannot hold
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1  # what the encoder and every reader of the store can hold


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on what a caller may hand over; every one is a setting and is named in the error that it causes."""

    input_bytes_max: int = 1 << 20
    record_bytes_max: int = 4 << 20
    batch_records_max: int = 256
    page_records_max: int = 1024
    tool_result_bytes_max: int = 1 << 20
    steps_per_call_max: int = 1_000
    json_depth_max: int = 64
    queue_length_max: int = 10_000
    id_length_max: int = 256


DEFAULT_LIMITS = Limits()


def encode(value: Any) -> bytes:
    """Encode a value that `check_json` accepted, or a record: keys sorted, no white space, UTF-8."""
    return _encoder.encode(value)


def decode(data: bytes | str) -> Any:
    """Decode JSON into plain values."""
    return msgspec.json.decode(data)


def digest_of(data: bytes) -> str:
    """SHA-256 of `data`, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def check_text(value: object, field: str, *, length_max: int) -> str:
    """Return `value` when it is a non-empty string of at most `length_max` characters that UTF-8 can hold.

    Raises: InvalidInput with `field`, and `limit` where one applies.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{field} must be text, not {type(value).__name__}", field=field)
    if not value:
        raise InvalidInput(f"{field} must not be empty", field=field)
    if len(value) > length_max:
        raise InvalidInput(
            f"{field} has {len(value):,} characters; the limit is {length_max:,}", field=field, limit=length_max
        )
    _check_string(value, field)
    return value


def check_json(value: object, field: str, *, bytes_max: int, depth_max: int) -> bytes:
    """Encode `value`, or refuse it: what is accepted comes back from the store exactly as it went in.

    Raises: InvalidInput for NaN and infinities, lone surrogates, integers that 64 bits cannot hold, keys that are no
    text, foreign types, nesting beyond `depth_max`, and more than `bytes_max` bytes of JSON.
    """
    data = _plain(value, depth_max)
    if data is None:
        _check_value(value, field, depth_max, depth_max)
        data = encode(value)
    if len(data) > bytes_max:
        raise InvalidInput(f"{field} has {len(data):,} bytes; the limit is {bytes_max:,}", field=field, limit=bytes_max)
    return data


def _plain(value: object, depth_max: int) -> bytes | None:
    """The JSON of a value that comes back as it went in and is not deep; None where a closer look has to tell."""
    try:
        data = encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):  # a surrogate that UTF-8 lacks is a ValueError
        return None
    shallow = data.count(b"{") + data.count(b"[") <= depth_max
    return data if shallow and not _LONG_NUMBER.search(data) and decode(data) == value else None


def _check_value(value: object, field: str, depth_left: int, depth_max: int) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_string(value, field)
    elif isinstance(value, int):
        if not _INTEGER_MIN <= value <= _INTEGER_MAX:
            raise InvalidInput(
                f"{field} holds an integer of {value.bit_length()} bits; the limit is 64", field=field, limit=64
            )
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(f"{field} holds {value}, which JSON cannot hold", field=field)
    elif isinstance(value, dict | list | tuple):
        if depth_left <= 0:
            raise InvalidInput(f"{field} is nested deeper than {depth_max} levels", field=field, limit=depth_max)
        if isinstance(value, dict):
            for key, member in value.items():
                if not isinstance(key, str):
                    raise InvalidInput(f"{field} has a key of type {type(key).__name__}; keys are text", field=field)
                _check_string(key, field)
                _check_value(member, f"{field}.{key}", depth_left - 1, depth_max)
        else:
            for index, member in enumerate(value):
                _check_value(member, f"{field}[{index}]", depth_left - 1, depth_max)
    else:
        raise InvalidInput(f"{field} holds a {type(value).__name__}, which is not JSON", field=field)


def _check_string(value: str, field: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{field} holds the lone surrogate U+{ord(value[error.start]):04X} at {error.start}", field=field
        ) from None
