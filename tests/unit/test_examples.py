"""The examples' agents, in this process."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import laneway
from laneway.agents import load_agents

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_support_agent_answers_with_its_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    (support,) = load_agents("support_agent:agents")
    with laneway.local([support]) as runtime:
        conversation = runtime.conversation("order-42")
        said = {
            "Where is order 42?": "Here is what I found: on its way",
            "Where is it?": "Which order is it about?",
        }
        for question, answer in said.items():
            assert conversation.submit(question).result(timeout=10).text == answer
        receipt = conversation.submit("Please refund order 42.")
        assert '"refunded":true' in str(receipt.result(timeout=10).text)
        names = [
            call["function"]["name"] for message in conversation.messages() for call in message.get("tool_calls", ())
        ]
        assert names == ["order_status", "refund"]


def test_the_quickstart_starts_nothing_when_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert importlib.import_module("quickstart").support.name == "support"
