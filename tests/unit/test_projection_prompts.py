"""The projection: prompts that a provider accepts at every prefix of the log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lane_records import a_view, began, call_id, ended, prepared, responded, returned, said, settled, unknown

from laneway.recovery.convergence import prompt_fault
from laneway.storage.projection import chat_messages
from laneway.storage.records import AnyRecord, ErrorFact, ToolCallSettled, record_id

FIRST, SECOND = call_id(1, 0), call_id(1, 1)


def roles(*records: AnyRecord) -> list[str]:
    return [message["role"] for message in chat_messages(a_view(*records))]


def test_results_stand_in_the_order_of_declaration() -> None:
    """Whatever order they finished in."""
    log = (said(), began(), responded(1, "a", "b"), returned(SECOND, "second"), returned(FIRST, "first"))
    messages = chat_messages(a_view(*log))
    assert [message["content"] for message in messages if message["role"] == "tool"] == ["first", "second"]
    assert prompt_fault(messages) is None


def test_every_prefix_of_a_run_is_valid() -> None:
    log = (
        *(
            said(),
            began(),
            responded(1, "a", "b"),
            prepared(FIRST),
            prepared(SECOND),
            returned(SECOND),
            returned(FIRST),
        ),
        *(responded(2), ended(), settled(), said("sub_2", 2), began("sub_2")),
    )
    for end in range(len(log) + 1):
        assert prompt_fault(chat_messages(a_view(*log[:end]))) is None, end


@pytest.mark.requirement("DUR-009")
@pytest.mark.parametrize("outcome", ["failed", "aborted"])
@pytest.mark.parametrize(
    "batch", [(), (prepared(FIRST),), (prepared(FIRST), returned(SECOND)), (prepared(FIRST), unknown(FIRST))]
)
def test_the_orphans_of_an_ended_run_reach_no_later_prompt(outcome: Any, batch: tuple[AnyRecord, ...]) -> None:
    """Specification 10: what users said before stays visible, the incomplete batch and its partial results do not."""
    log = (said(content="pay"), began(), responded(1, "a", "b"), *batch, ended(outcome), settled(outcome))
    later = chat_messages(a_view(*log, said("sub_2", 2, "and now?")))
    assert later == [{"role": "user", "content": "pay"}, {"role": "user", "content": "and now?"}]


def test_complete_turns_of_a_failed_run_stay() -> None:
    log = (said(), began(), responded(1, "a"), returned(FIRST), responded(2, "b"), ended("failed"), settled("failed"))
    assert roles(*log, said("sub_2", 2)) == ["user", "assistant", "tool", "user"]


def test_ids_that_a_provider_repeats_are_told_apart() -> None:
    """Within one turn and across turns: Laneway's own ids differ, the provider's go back to it unchanged."""
    twice = responded(1, "a", "b", ids=("x", "x"))
    again = responded(2, "a", ids=("x",))
    third = call_id(2, 0)
    assert len({call.id for call in (*twice.tool_calls, *again.tool_calls)}) == 3
    log = (said(), began(), twice, returned(SECOND, "b"), returned(FIRST, "a"), again, returned(third, "c"))
    messages = chat_messages(a_view(*log))
    answers = [(message["tool_call_id"], message["content"]) for message in messages if message["role"] == "tool"]
    assert answers == [("x", "a"), ("x", "b"), ("x", "c")]
    assert prompt_fault(messages) is None


def test_a_failed_call_tells_the_model_why() -> None:
    failed = ToolCallSettled(
        id=record_id("tool_call_settled", FIRST),
        run_id="run",
        call_id=FIRST,
        outcome="failed",
        error=ErrorFact(code="tool_failed", message="no money"),
    )
    messages = chat_messages(a_view(said(), began(), responded(1, "a"), failed))
    assert json.loads(messages[-1]["content"]) == {"error": {"code": "tool_failed", "message": "no money"}}


@pytest.mark.parametrize("result", ["text", "", {"a": [1, None]}, None, 0, True, "\x00\U0001f600", 2**63])
def test_results_reach_the_model_as_text(result: Any) -> None:
    content = chat_messages(a_view(said(), began(), responded(1, "a"), returned(FIRST, result)))[-1]["content"]
    assert content == result if isinstance(result, str) else json.loads(content) == result


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "tool", "tool_call_id": "x"}],
        [{"role": "assistant", "tool_calls": [{"id": "x"}]}],
        [{"role": "assistant", "tool_calls": [{"id": "x"}]}, {"role": "user"}],
        [{"role": "assistant", "tool_calls": [{"id": "x"}]}, {"role": "tool", "tool_call_id": "y"}],
        [
            {"role": "assistant", "tool_calls": [{"id": "x"}]},
            {"role": "tool", "tool_call_id": "x"},
            {"role": "tool", "tool_call_id": "x"},
        ],
    ],
)
def test_the_check_itself_finds_what_a_provider_refuses(messages: list[dict[str, Any]]) -> None:
    assert prompt_fault(messages) is not None
