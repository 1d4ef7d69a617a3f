"""What callers hand over: each refusal names its field and limit, before anything is stored."""

from __future__ import annotations

import math
from typing import Any

import pytest

from laneway import InvalidInput
from laneway.cluster.inputs import check_admission
from laneway.storage.values import Limits

LIMITS = Limits(input_bytes_max=100, json_depth_max=4, id_length_max=10)
GOOD: dict[str, Any] = {
    "agent": "support",
    "content": "hello",
    "idempotency_key": "k",
    "principal": "alice",
    "extra": None,
    "limits": LIMITS,
}
DEEP: Any = {"type": "text", "a": [[[[1]]]]}


@pytest.mark.parametrize(
    ("changes", "field", "limit"),
    [
        ({"content": ""}, "input", None),
        ({"content": "x" * 101}, "input", 100),
        ({"content": "\U0001f600" * 30}, "input", 100),
        ({"content": "\ud800"}, "input", None),
        ({"content": None}, "input", None),
        ({"content": 7}, "input", None),
        ({"content": b"bytes"}, "input", None),
        ({"content": {"type": "text"}}, "input", None),
        ({"content": []}, "input", None),
        ({"content": ["text"]}, "input[0]", None),
        ({"content": [{"type": "text"}, {}]}, "input[1]", None),
        ({"content": [{"type": "number", "value": math.nan}]}, "input[0].value", None),
        ({"content": [{"type": "number", "value": 2**64}]}, "input[0].value", 64),
        ({"content": [{"type": "object", "value": object()}]}, "input[0].value", None),
        ({"content": [{"type": "text", 1: 2}]}, "input[0]", None),
        ({"content": [DEEP]}, "input[0].a[0][0]", 4),
        ({"content": [{"type": "text", "text": "x" * 200}]}, "input", 100),
        ({"extra": []}, "message_keys", None),
        ({"extra": {"role": "system"}}, "message_keys", None),
        ({"extra": {"content": "other"}}, "message_keys", None),
        ({"extra": {"name": math.inf}}, "message_keys.name", None),
        ({"extra": {"name": "x" * 200}}, "message_keys", 100),
        ({"agent": ""}, "agent", None),
        ({"agent": 7}, "agent", None),
        ({"agent": "x" * 11}, "agent", 10),
        ({"principal": ""}, "principal", None),
        ({"principal": None}, "principal", None),
        ({"idempotency_key": ""}, "idempotency_key", None),
        ({"idempotency_key": "x" * 11}, "idempotency_key", 10),
        ({"idempotency_key": 7}, "idempotency_key", None),
        ({"idempotency_key": "\udc00"}, "idempotency_key", None),
    ],
)
def test_what_is_refused(changes: dict[str, Any], field: str, limit: int | None) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_admission(**{**GOOD, **changes})
    assert caught.value.code == "invalid_input"
    assert caught.value.details["field"].startswith(field)
    assert caught.value.details.get("limit") == limit
    assert field.split("[")[0].split(".")[0] in caught.value.message


@pytest.mark.parametrize(
    "content", ["x", " ", "\x00", "\U0001f600 é", "x" * 80, [{"type": "text", "text": "a"}], [{"type": "x", "n": None}]]
)
def test_what_is_accepted_comes_back_exactly(content: Any) -> None:
    from laneway.storage.values import decode

    assert decode(check_admission(**{**GOOD, "content": content}).input) == {"content": content}


def test_the_digest_covers_agent_content_and_message_keys() -> None:
    """DUR-001: the same key with any other payload is a conflict; ids and principal are no payload."""
    digests = {
        check_admission(**{**GOOD, **changes}).input_digest
        for changes in ({}, {"agent": "other"}, {"content": "bye"}, {"extra": {"name": "al"}})
    }
    assert len(digests) == 4
    same = {
        check_admission(**{**GOOD, **changes}).input_digest for changes in ({}, {"extra": {}}, {"principal": "bob"})
    }
    assert len(same) == 1


def test_the_order_of_keys_is_no_difference() -> None:
    first, second = [{"type": "x", "a": 1, "b": 2}], [{"b": 2, "a": 1, "type": "x"}]
    digests = {check_admission(**{**GOOD, "content": content}).input_digest for content in (first, second)}
    assert len(digests) == 1


def test_a_caller_that_changes_its_content_afterwards_changes_nothing() -> None:
    content = [{"type": "text", "text": "a"}]
    admission = check_admission(**{**GOOD, "content": content})
    content[0]["text"] = "b"
    assert '"text":"a"' in admission.input


def test_a_key_is_drawn_where_none_is_given() -> None:
    drawn = {check_admission(**{**GOOD, "limits": Limits(), "idempotency_key": None}).idempotency_key for _ in range(3)}
    assert len(drawn) == 3
