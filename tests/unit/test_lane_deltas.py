"""With `record_deltas`, what a model streams is canonical before its response is; it forms no turn by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import laneway
from laneway import Agent, ModelRequest, ModelResponse
from laneway.agents.protocol import Delta, Emit


class Streaming:
    """Streams `texts`, and answers with all that is text."""

    def __init__(self, texts: list[tuple[str, str]]) -> None:
        self._texts = texts

    def identity(self) -> dict[str, Any]:
        return {"kind": "streaming"}

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        for kind, text in self._texts:
            emit(Delta(kind="reasoning" if kind == "reasoning" else "text", text=text))
            await asyncio.sleep(0)
        return ModelResponse(content="".join(text for kind, text in self._texts if kind == "text"))


@pytest.mark.requirement("DUR-008")
@pytest.mark.parametrize("stepwise", [False, True])
def test_deltas_are_recorded_coalesced_and_in_order(stepwise: bool) -> None:
    texts = [("reasoning", "hm "), ("reasoning", "so")] + [("text", f"{index:04} ") for index in range(500)]
    agent = Agent(name="a", model=Streaming(texts))
    with laneway.local(agent, record_deltas=True, stepwise=stepwise) as runtime:
        conversation = runtime.conversation("c")
        assert conversation.submit("hi").result(10).outcome == "completed"
        records = conversation.log()
        deltas = [record for record in records if record["type"] == "model_delta_recorded"]
        assert [record["kind"] for record in deltas] == ["reasoning", "text", "text", "text"]
        assert deltas[0]["text"] == "hm so"
        assert "".join(record["text"] for record in deltas[1:]) == "".join(text for _, text in texts[2:])
        kinds = [record["type"] for record in records]
        assert kinds.index("model_responded") > kinds.index("model_delta_recorded")
        assert [message["role"] for message in conversation.messages()] == ["user", "assistant"]
        assert runtime.verify(require_settled=True).passed


@pytest.mark.requirement("DUR-008")
def test_deltas_stay_provisional_unless_asked_for() -> None:
    with laneway.local(Agent(name="a", model=Streaming([("text", "x" * 5_000)]))) as runtime:
        conversation = runtime.conversation("c")
        conversation.submit("hi").result(10)
        assert "model_delta_recorded" not in {record["type"] for record in conversation.log()}
