"""The examples' agents, in this process."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
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


def test_large_refunds_wait_for_a_person(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F5: the small one is paid at once, the large one after its approval; each once."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    refunds = importlib.import_module("refunds")
    monkeypatch.setattr(refunds, "BANK", tmp_path / "bank.jsonl")
    refunds.main()
    small, waiting, large = capsys.readouterr().out.splitlines()
    assert '"eur":9' in small
    assert "it is suspended. A call waits for somebody's approval" in waiting
    assert '"eur":250' in large
    assert [json.loads(line)["eur"] for line in (tmp_path / "bank.jsonl").read_text().splitlines()] == [9, 250]


def test_the_trip_goes_on_and_books_no_second_flight(tmp_path: Path) -> None:
    """K12, as a newcomer meets it: two runs of one program, the first of which dies between two steps."""

    def run() -> subprocess.CompletedProcess[str]:
        program = [sys.executable, str(EXAMPLES / "durable_steps.py")]
        return subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    first = run()
    assert first.returncode == 1, first.stderr
    second = run()
    assert second.returncode == 0, second.stderr
    assert 'All done: ["the flight to Oslo is booked","the hotel in Oslo is booked"]' in second.stdout
    assert [line.split()[1] for line in second.stdout.splitlines() if "step_settled" in line] == ["step_settled"] * 2
    booked = [line.rsplit(" ", 1) for line in (tmp_path / "booked.txt").read_text().splitlines()]
    assert [what for what, _ in booked] == ["the flight to Oslo", "the hotel in Oslo"]
    assert len({key for _, key in booked}) == 1
