"""The gate for responses, and the models that need no provider."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray import cloudpickle

from laneway.agents import (
    Delta,
    FunctionModel,
    Model,
    ModelRequest,
    ModelResponse,
    ScriptedModel,
    ToolCallRequest,
    Usage,
    assistant_message,
    check_response,
)
from laneway.agents.models import TOOL_CALLS_MAX, check_model_json
from laneway.storage.errors import InvalidInput, ModelError


def request(*messages: dict[str, Any], **members: Any) -> ModelRequest:
    base: dict[str, Any] = {
        "conversation_id": "c",
        "submission_id": "s",
        "run_id": "r",
        "queue_sequence": 1,
        "turn": 1,
        "attempt": 1,
        "operation_id": "o",
        "messages": list(messages) or [{"role": "user", "content": "Hi"}],
    }
    return ModelRequest(**{**base, **members})


def declared(**function: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}", **function}}


def test_text_and_responses_pass() -> None:
    assert check_response("hi") == ModelResponse(content="hi")
    assert check_response("") == ModelResponse(content="")
    given = ModelResponse(
        content=[{"type": "text", "text": "x"}],
        tool_calls=(ToolCallRequest(id="", name="look", arguments="{not json"),),
        usage=Usage(input_tokens=1, details={"cached": 1}),
        reasoning="r",
        model="m",
        extra={"refusal": None},
    )
    assert check_response(given) is given


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [declared()]},
        {"role": "assistant", "content": "", "tool_calls": [declared(arguments=""), declared(arguments="{ ")]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": None, "tool_calls": None, "refusal": "no", "reasoning_content": "r"},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": None, "tool_calls": [{**declared(), "index": 0}]},
    ],
)
def test_messages_are_kept_exactly(message: dict[str, Any]) -> None:
    assert assistant_message(check_response(message)) == message


def test_a_message_becomes_a_response() -> None:
    response = check_response({"content": "x", "tool_calls": [declared(arguments='{"a": 1}')], "name": "n"})
    assert response.tool_calls == (ToolCallRequest(id="call_1", name="look", arguments='{"a": 1}'),)
    assert (response.content, response.finish_reason, response.extra) == ("x", "tool_calls", {"name": "n"})


CALL = ToolCallRequest(id="1", name="look", arguments="{}")


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        ["x"],
        b"x",
        object(),
        "\ud800",
        {"role": "user", "content": "x"},
        {"content": 3},
        {"content": {"a": 1}},
        {"content": ["x"]},
        {"content": "x", "tool_calls": {}},
        {"content": "x", "tool_calls": ["x"]},
        {"tool_calls": [{**declared(), "type": "custom"}]},
        {"tool_calls": [{"id": "1", "type": "function"}]},
        {"tool_calls": [declared(arguments={})]},
        {"tool_calls": [declared(arguments=None)]},
        {"tool_calls": [declared(arguments="\ud800")]},
        {"tool_calls": [declared(name="")]},
        {"tool_calls": [declared(name=None)]},
        {"tool_calls": [declared(strict=True)]},
        {"tool_calls": [{**declared(), "id": None}]},
        {"tool_calls": [{**declared(), "id": "x" * 257}]},
        {"content": "x", "score": float("nan")},
        {"content": "x", 3: "y"},
        {"content": "x", "extra": object()},
        {"content": "x" * (4 << 20)},
        ModelResponse(content=3),
        ModelResponse(tool_calls=("x",)),  # type: ignore[arg-type]
        ModelResponse(tool_calls=3),  # type: ignore[arg-type]
        ModelResponse(tool_calls=(CALL,) * (TOOL_CALLS_MAX + 1)),
        ModelResponse(tool_calls=(ToolCallRequest(id="1", name="x", arguments="", extra=3),)),  # type: ignore[arg-type]
        ModelResponse(finish_reason=None),  # type: ignore[arg-type]
        ModelResponse(model=3),  # type: ignore[arg-type]
        ModelResponse(reasoning=3),  # type: ignore[arg-type]
        ModelResponse(extra=None),  # type: ignore[arg-type]
        ModelResponse(usage={}),  # type: ignore[arg-type]
        ModelResponse(usage=Usage(input_tokens=-1)),
        ModelResponse(usage=Usage(input_tokens=1.5)),  # type: ignore[arg-type]
        ModelResponse(usage=Usage(details={"x": float("inf")})),
    ],
)
def test_what_is_no_response(value: object) -> None:
    with pytest.raises(ModelError) as caught:
        check_response(value)
    assert (caught.value.code, caught.value.retryable) == ("model_response_invalid", False)
    assert len(caught.value.message) <= 500


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_cut_response_with_calls_is_truncated(reason: str) -> None:
    with pytest.raises(ModelError) as caught:
        check_response(ModelResponse(tool_calls=(CALL,), finish_reason=reason))
    assert (caught.value.code, caught.value.retryable) == ("model_response_truncated", False)
    assert check_response(ModelResponse(content="Half a", finish_reason=reason)).finish_reason == reason


def test_check_model_json() -> None:
    assert check_model_json({"b": 1, "a": [None]}, "x") == b'{"a":[null],"b":1}'
    with pytest.raises(ModelError) as caught:
        check_model_json({"a": float("nan")}, "x")
    assert (caught.value.code, caught.value.details["field"]) == ("model_response_invalid", "x.a")


async def ask(model: Model, prompt: ModelRequest | None = None) -> tuple[ModelResponse, list[Delta]]:
    deltas: list[Delta] = []
    return await model.respond(prompt or request(), deltas.append), deltas


async def test_script_answers_by_position() -> None:
    model = ScriptedModel(["one", {"role": "assistant", "content": None, "tool_calls": [declared()]}, ValueError("no")])
    assistant = {"role": "assistant", "content": "one"}
    tool_answer = {"role": "tool", "tool_call_id": "call_1", "content": "x"}
    twin = cloudpickle.loads(cloudpickle.dumps(model))
    assert twin.identity() == model.identity()
    for script in (model, twin):
        assert (await ask(script))[0].content == "one"
        assert (await ask(script))[0].content == "one", "nothing is remembered between calls"
        assert (await ask(script, request(assistant)))[0].tool_calls[0].name == "look"
        with pytest.raises(ValueError, match="no"):
            await ask(script, request(assistant, assistant, tool_answer))
        with pytest.raises(ModelError) as caught:
            await ask(script, request(assistant, assistant, assistant))
        assert (caught.value.code, caught.value.retryable) == ("script_exhausted", False)


async def test_script_streams() -> None:
    _, deltas = await ask(ScriptedModel(["abcde"], chunk=2))
    assert [(d.kind, d.text) for d in deltas] == [("text", "ab"), ("text", "cd"), ("text", "e")]
    assert (await ask(ScriptedModel(["abcde"])))[1] == []


async def test_a_slow_script_can_be_cancelled() -> None:
    task = asyncio.create_task(ask(ScriptedModel(["x"], delay_s=3600)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_identity_of_a_script_follows_its_responses() -> None:
    scripts: list[list[Any]] = [
        [],
        ["a"],
        ["a", "b"],
        [ValueError("a")],
        [ModelError("a")],
        [ModelResponse(content="a", reasoning="r")],
        [ModelResponse(content="a", usage=Usage(input_tokens=1))],
    ]
    assert len({ScriptedModel(script).identity()["digest"] for script in scripts}) == len(scripts)


@pytest.mark.parametrize(
    ("field", "responses", "options"),
    [
        ("responses", "text", {}),
        ("responses", {"content": "x"}, {}),
        ("responses[1]", ["x", 3], {}),
        ("responses[0]", ["\ud800"], {}),
        ("delay_s", [], {"delay_s": -1}),
        ("delay_s", [], {"delay_s": float("nan")}),
        ("chunk", [], {"chunk": 0}),
    ],
)
def test_bad_scripts(field: str, responses: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        ScriptedModel(responses, **options)
    assert caught.value.details["field"] == field


async def test_a_truncated_response_may_be_scripted() -> None:
    model = ScriptedModel([ModelResponse(tool_calls=(CALL,), finish_reason="length")])
    with pytest.raises(ModelError) as caught:
        await ask(model)
    assert caught.value.code == "model_response_truncated"


async def test_functions_of_every_kind() -> None:
    def plain(request: ModelRequest) -> str:
        return f"turn {request.turn}"

    async def asynchronous(request: ModelRequest) -> dict[str, Any]:
        return {"content": "turn 1"}

    def emitting(request: ModelRequest, emit: Any) -> ModelResponse:
        emit(Delta(kind="text", text="turn"))
        return ModelResponse(content="turn 1")

    for function in (plain, asynchronous, emitting):
        assert (await ask(FunctionModel(function)))[0].content == "turn 1"
    assert (await ask(FunctionModel(emitting)))[1] == [Delta(kind="text", text="turn")]
    response, deltas = await ask(FunctionModel(emitting, blocking=True))
    assert (response.content, deltas) == ("turn 1", [Delta(kind="text", text="turn")])


async def test_async_generators() -> None:
    async def texts(request: ModelRequest) -> Any:
        yield "a"
        yield Delta(kind="reasoning", text="because")
        yield "b"

    async def with_response(request: ModelRequest) -> Any:
        yield "a"
        yield {"content": "all"}

    response, deltas = await ask(FunctionModel(texts))
    assert (response.content, response.reasoning) == ("ab", "because")
    assert [d.text for d in deltas] == ["a", "because", "b"]
    assert (await ask(FunctionModel(with_response)))[0].content == "all"


async def test_bad_async_generators() -> None:
    async def goes_on(request: ModelRequest) -> Any:
        yield {"content": "all"}
        yield "more"

    async def odd(request: ModelRequest) -> Any:
        yield 3

    for function in (goes_on, odd):
        with pytest.raises(ModelError) as caught:
            await ask(FunctionModel(function))
        assert caught.value.code == "model_response_invalid"


async def test_a_cancelled_generator_is_closed() -> None:
    closed = asyncio.Event()

    async def slow(request: ModelRequest) -> Any:
        try:
            yield "a"
            await asyncio.Event().wait()
        finally:
            closed.set()

    first = asyncio.Event()
    task = asyncio.create_task(FunctionModel(slow).respond(request(), lambda _: first.set()))
    await first.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()


async def test_failures_of_functions() -> None:
    class Busy(Exception):
        retryable = True

    def fail(error: BaseException) -> FunctionModel:
        def function(request: ModelRequest) -> str:
            raise error

        return FunctionModel(function)

    for error, code, retryable in (
        (ValueError("x" * 9999), "model_failed", False),
        (Busy("x"), "model_failed", True),
        (SystemExit(1), "model_failed", False),
        (ModelError("x", code="model_unavailable", retryable=True), "model_unavailable", True),
    ):
        with pytest.raises(ModelError) as caught:
            await ask(fail(error))
        assert (caught.value.code, caught.value.retryable) == (code, retryable)
        assert len(caught.value.message) <= 500
    with pytest.raises(ModelError) as caught:
        await ask(FunctionModel(lambda request: 3))
    assert caught.value.code == "model_response_invalid"


def test_bad_functions() -> None:
    for function in (3, lambda: "x", lambda request, emit, other: "x", lambda request, *, other: "x"):
        with pytest.raises(InvalidInput) as caught:
            FunctionModel(function)  # type: ignore[arg-type]
        assert caught.value.details["field"] == "function"


def test_identity_of_a_function_travels() -> None:
    model = FunctionModel(lambda request: "x", name="mine")
    assert model.identity()["name"] == "mine"
    assert cloudpickle.loads(cloudpickle.dumps(model)).identity() == model.identity()
    assert FunctionModel(lambda request: "other").identity()["source"] != model.identity()["source"]
