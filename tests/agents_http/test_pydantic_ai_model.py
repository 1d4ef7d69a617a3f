"""The adapter to pydantic-ai against servers that speak the provider's protocol over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from llm_servers import Answer, call_delta, delta, fakellm, fault_server, usage

from laneway.agents import Agent, Delta, Emit, ModelRequest, ModelResponse, PydanticAIModel
from laneway.storage.errors import ModelError

CONFIG = """
rules:
  - name: refused
    when: {messages_contain: too often}
    respond: {status: 429, error: slow down}
  - name: broken
    when: {messages_contain: break}
    respond: {status: 500, error: broken}
  - name: after the tool
    when: {tool_result_contains: sunny}
    respond: {content: It is sunny in Oslo.}
  - name: call
    when: {messages_contain: weather}
    respond: {tool_calls: [{name: weather, arguments: {city: Oslo}}]}
  - name: text
    respond: {content: Hello there friend}
"""
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def request(*messages: dict[str, Any], **members: Any) -> ModelRequest:
    return ModelRequest(
        conversation_id="c",
        submission_id="s",
        run_id="r",
        queue_sequence=1,
        turn=1,
        attempt=1,
        operation_id="o",
        messages=list(messages),
        **members,
    )


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def mock_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config: Path = tmp_path_factory.mktemp("fakellm") / "fakellm.yaml"
    config.write_text(CONFIG)
    with fakellm(config) as url:
        yield url


@pytest.fixture
def mock(mock_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point_to(mock_url, monkeypatch)


async def respond(model: Any, prompt: ModelRequest, emit: Emit = lambda _: None) -> ModelResponse:
    async with aclosing(model):
        return await model.respond(prompt, emit)


def point_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "test")


@pytest.mark.usefixtures("mock")
class TestMockServer:
    async def test_streams_text(self) -> None:
        deltas: list[Delta] = []
        response = await respond(PydanticAIModel("openai-chat:gpt-4o"), request(user("Hi")), deltas.append)
        assert response.content == "Hello there friend"
        assert [(d.kind, d.text) for d in deltas] == [("text", "Hello"), ("text", " there"), ("text", " friend")]
        assert (response.finish_reason, response.model, response.tool_calls) == ("stop", "gpt-4o", ())

    async def test_a_models_name_makes_an_agent(self) -> None:
        agent = Agent(name="a", model="openai-chat:gpt-4o")
        assert isinstance(agent.model, PydanticAIModel)
        response = await respond(agent.model, request(user("Hi"), instructions="Be kind"))
        assert response.content == "Hello there friend"

    async def test_a_tool_call_and_its_answer(self) -> None:
        model = PydanticAIModel("openai-chat:gpt-4o", {"temperature": 0.0})
        response = await respond(model, request(user("the weather?"), tools=[WEATHER]))
        [call] = response.tool_calls
        assert (call.name, call.arguments) == ("weather", '{"city": "Oslo"}')
        assert call.id.startswith("call_")
        assert (response.content, response.finish_reason) == (None, "tool_calls")
        declared = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        after = await respond(
            model,
            request(
                user("the weather?"),
                {"role": "assistant", "content": None, "tool_calls": [declared]},
                {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "sunny"},
                tools=[WEATHER],
            ),
        )
        assert after.content == "It is sunny in Oslo."

    async def test_usage_in_one_piece(self) -> None:
        model = PydanticAIModel("openai-chat:gpt-4o", stream=False)
        response = await respond(model, request(user("Hi")))
        assert response.content == "Hello there friend"
        assert response.usage is not None
        assert response.usage.input_tokens > 0
        assert response.usage.output_tokens > 0

    @pytest.mark.parametrize(("text", "status"), [("too often", 429), ("break", 500)])
    async def test_failures_in_one_piece(self, text: str, status: int) -> None:
        model = PydanticAIModel("openai-chat:gpt-4o", stream=False)
        with pytest.raises(ModelError) as caught:
            await respond(model, request(user(text)))
        assert (caught.value.code, caught.value.retryable) == ("model_unavailable", True)
        assert caught.value.details["status"] == status


async def ask(*answers: Answer, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Delta], list[dict[str, Any]]]:
    deltas: list[Delta] = []
    async with fault_server(*answers) as server:
        point_to(server.url, monkeypatch)
        prompt = request(user("Hi"), tools=[WEATHER], instructions="Be kind")
        try:
            outcome = await respond(PydanticAIModel("openai-chat:fault-1"), prompt, deltas.append)
        except ModelError as error:
            outcome = error
        return outcome, deltas, server.requests


def refusal(status: int, code: str | None = None, **headers: str) -> Answer:
    return Answer(status, {"error": {"message": "no", "type": "x", "code": code}}, headers=headers)


@pytest.mark.parametrize(
    ("answer", "code", "retryable"),
    [
        (refusal(429), "model_unavailable", True),
        (refusal(500), "model_unavailable", True),
        (refusal(503), "model_unavailable", True),
        (refusal(429, "insufficient_quota"), "model_refused", False),
        (refusal(400), "model_refused", False),
        (refusal(401), "model_refused", False),
        (refusal(404), "model_refused", False),
    ],
)
async def test_a_refusal_is_classified_and_asked_once(
    answer: Answer, code: str, retryable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, _, requests = await ask(answer, monkeypatch=monkeypatch)
    assert (error.code, error.retryable) == (code, retryable)
    assert error.details["status"] == answer.status
    assert len(requests) == 1, "repeating a request is the lane's matter"


async def test_retry_after_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    error, _, _ = await ask(refusal(429, **{"retry-after": "7"}), monkeypatch=monkeypatch)
    assert error.details["retry_after"] == 7


@pytest.mark.parametrize("ending", ["cut", "closed"])
async def test_a_stream_cut_in_the_middle_is_no_response(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer(chunks=[delta(role="assistant"), delta(content="Half an")], ending=ending)
    error, deltas, requests = await ask(answer, monkeypatch=monkeypatch)
    assert isinstance(error, ModelError)
    assert (error.code, error.retryable) == ("model_stream_cut", True)
    assert [d.text for d in deltas] == ["Half an"]
    assert len(requests) == 1


async def test_a_call_cut_in_its_arguments_is_no_response(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer(chunks=[call_delta(0, '{"city": "Os', id="call_1", name="weather")], ending="closed")
    error, _, _ = await ask(answer, monkeypatch=monkeypatch)
    assert isinstance(error, ModelError)
    assert (error.code, error.retryable) == ("model_stream_cut", True)


async def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fault_server(Answer()) as server:
        point_to(server.url, monkeypatch)
    with pytest.raises(ModelError) as caught:
        await respond(PydanticAIModel("openai-chat:fault-1"), request(user("Hi")))
    assert (caught.value.code, caught.value.retryable) == ("model_unavailable", True)


async def test_arguments_cut_by_length_never_become_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [call_delta(0, '{"city": "Os', id="call_1", name="weather"), delta("length")]
    error, _, _ = await ask(Answer(chunks=chunks), monkeypatch=monkeypatch)
    assert isinstance(error, ModelError)
    assert (error.code, error.retryable) == ("model_response_truncated", False)


async def test_text_cut_by_length_is_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    response, _, _ = await ask(Answer(chunks=[delta(content="Long"), delta("length")]), monkeypatch=monkeypatch)
    assert (response.content, response.finish_reason) == ("Long", "length")


async def test_usage_reasoning_and_repeated_ids_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [
        delta(role="assistant", reasoning_content="Let me see"),
        call_delta(0, "", id="call_1", name="weather"),
        call_delta(0, '{"city":"Oslo"}'),
        call_delta(1, '{"city":"Rome"}', id="call_1", name="weather"),
        delta("tool_calls"),
        usage(11, 5),
    ]
    response, deltas, _ = await ask(Answer(chunks=chunks), monkeypatch=monkeypatch)
    assert [(c.id, c.arguments) for c in response.tool_calls] == [
        ("call_1", '{"city":"Oslo"}'),
        ("call_1", '{"city":"Rome"}'),
    ]
    assert (response.usage.input_tokens, response.usage.output_tokens) == (11, 5)
    assert response.reasoning == "Let me see"
    assert [(d.kind, d.text) for d in deltas] == [("reasoning", "Let me see")]
    assert response.model == "fault-1"


async def test_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def declared(identity: str, city: str) -> dict[str, Any]:
        return {"id": identity, "type": "function", "function": {"name": "weather", "arguments": city}}

    prompt = request(
        user("Hi"),
        {"role": "assistant", "content": "One moment", "tool_calls": [declared("x", '{"city":1}'), declared("y", "{")]},
        {"role": "tool", "tool_call_id": "x", "name": "weather", "content": "sunny"},
        {"role": "tool", "tool_call_id": "y", "content": "rainy"},
        {"role": "assistant", "content": "Done"},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
        instructions="Be kind",
        tools=[WEATHER],
    )
    async with fault_server(Answer(chunks=[delta(content="ok"), delta("stop")])) as server:
        point_to(server.url, monkeypatch)
        await respond(PydanticAIModel("openai-chat:fault-1"), prompt)
    [sent] = server.requests
    assert sent["stream"] is True
    assert sent["tools"][0]["function"]["name"] == "weather"
    messages = sent["messages"]
    assert [m["role"] for m in messages] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "user",
    ]  # fmt: skip
    assert messages[0]["content"] == "Be kind"
    arguments = {c["id"]: c["function"]["arguments"] for c in messages[2]["tool_calls"]}
    assert arguments["x"] == '{"city":1}'
    assert json.loads(arguments["y"]), (
        "providers refuse a prompt whose arguments are no JSON, so pydantic-ai wraps them"
    )
    assert [(m["tool_call_id"], m["content"]) for m in messages[3:5]] == [("x", "sunny"), ("y", "rainy")]


async def test_cancelling_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fault_server(Answer(chunks=[delta(content="Half")], ending="hang")) as server:
        point_to(server.url, monkeypatch)
        task = asyncio.create_task(respond(PydanticAIModel("openai-chat:fault-1"), request(user("Hi"))))
        await server.hanging.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.hung_up.wait(), 10)


async def test_a_factory_makes_the_model_once_in_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def factory() -> Any:
        from pydantic_ai.models.test import TestModel

        made.append(1)
        return TestModel(custom_output_text="made")

    model = PydanticAIModel(factory)
    for _ in range(2):
        assert (await model.respond(request(user("Hi")), lambda _: None)).content == "made"
    assert len(made) == 1


@pytest.mark.parametrize("name", ["no-such-provider:x", "nothing"])
async def test_an_unknown_model_is_refused(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        await respond(PydanticAIModel(name), request(user("Hi")))
    assert (caught.value.code, caught.value.retryable) == ("model_refused", False)


async def test_a_content_part_that_cannot_be_sent() -> None:
    prompt = request({"role": "user", "content": [{"type": "hologram"}]})
    with pytest.raises(ModelError, match="hologram") as caught:
        await respond(PydanticAIModel("test"), prompt)
    assert caught.value.code == "model_refused"
