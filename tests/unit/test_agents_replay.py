"""Recordings: what is read, what is refused, and that a replay gives back exactly what was recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from laneway.agents import (
    Agent,
    ModelRequest,
    Recording,
    ToolContext,
    assistant_message,
    read_recordings,
    replay_agent,
)
from laneway.storage.errors import InvalidInput, ModelError, ToolError


def user(content: Any = "Hi", **extra: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **extra}


def said(content: Any = "Hello", **extra: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **extra}


def calls(*pairs: tuple[str, str], content: Any = None, arguments: str = "{}") -> dict[str, Any]:
    declared = [
        {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
        for identity, name in pairs
    ]
    return said(content, tool_calls=declared)


def answer(identity: str, content: Any, name: str = "look") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "name": name, "content": content}


def write(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8", errors="surrogatepass")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "recordings.jsonl"


def read_one(file: Path, *messages: dict[str, Any]) -> Recording:
    [recording], problems = read_recordings(write(file, {"id": "a", "messages": messages}))
    assert problems == []
    return recording


async def replay(recording: Recording, agent: Agent | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """Do what a lane does with a conversation; gives the messages of the conversation and each submission's outcome."""
    agent = agent or replay_agent([recording])
    messages: list[dict[str, Any]] = []
    outcomes = []
    for queue_sequence, given in enumerate(recording.inputs(), 1):
        messages.append({"role": "user", "content": given.content, **given.extra})
        outcomes.append(await run(agent, recording.id, queue_sequence, messages))
    return messages, outcomes


async def run(agent: Agent, conversation: str, queue_sequence: int, messages: list[dict[str, Any]]) -> str:
    ids: dict[str, Any] = {
        "conversation_id": conversation,
        "submission_id": "s",
        "run_id": "r",
        "queue_sequence": queue_sequence,
        "attempt": 1,
    }
    assert not isinstance(agent.model, str)
    for turn in range(1, agent.turns_max + 1):
        prompt = ModelRequest(**ids, turn=turn, operation_id="o", messages=list(messages))
        deltas: list[str] = []
        try:
            response = await agent.model.respond(prompt, lambda delta, deltas=deltas: deltas.append(delta.text))
        except ModelError as error:
            return f"{error.code}, retryable" if error.retryable else error.code
        assert "".join(deltas) == (response.content if isinstance(response.content, str) else "")
        messages.append(assistant_message(response))
        for position, call in enumerate(response.tool_calls):
            found = agent.tool(call.name)
            assert found is not None
            ctx = ToolContext(**ids, call_id="i", idempotency_key="k", turn=turn, position=position)
            result = await found.call(ctx, found.parse(call.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, **result.keys, "content": result.content})
        if not response.tool_calls:
            return "completed"
    raise AssertionError("the run did not end")


async def test_exact_preservation(file: Path) -> None:
    messages = [
        user("Hi \u2028 é", name="alice"),
        calls(("call_1", "look"), arguments='{ "b":1,  "a": "\\u00e9"}'),
        answer("call_1", '{"x":  1}'),
        calls(("call_1", "look"), ("call_2", "find it!"), content=""),
        answer("call_1", "", "another name"),
        answer("call_2", "two", "find it!"),
        said("", refusal=None, tool_calls=[]),
        user([{"type": "text", "text": "And?"}]),
        calls(("call_1", "look"), content="One moment", arguments="{not json"),
        {"role": "tool", "tool_call_id": "call_1", "content": "Error: bad arguments", "is_error": True},
        said([{"type": "text", "text": "parts"}], annotations=[{"x": 1.5}]),
    ]
    recording = read_one(file, *messages)
    assert recording.expected_messages() == messages
    replayed, outcomes = await replay(recording)
    assert replayed == messages
    assert outcomes == ["completed", "completed"]


async def test_repeated_ids_within_a_turn(file: Path) -> None:
    messages = [
        user(),
        calls(("x", "look"), ("y", "look"), ("x", "look")),
        answer("x", "first x"),
        answer("x", "second x"),
        answer("y", "y"),
        said(),
    ]
    recording = read_one(file, *messages)
    results = recording.segments[0].turns[0].results
    assert [result and result.content for result in results] == ["first x", "y", "second x"]
    in_order = [*messages[:3], messages[4], messages[3], messages[5]]
    assert recording.expected_messages() == in_order
    assert (await replay(recording))[0] == in_order


async def test_a_user_message_that_nobody_answered(file: Path) -> None:
    messages = [user("one"), user("two"), said(), user("three")]
    recording = read_one(file, *messages)
    replayed, outcomes = await replay(recording)
    assert replayed == recording.expected_messages() == messages
    assert outcomes == ["recording_ended", "completed", "recording_ended"]


async def test_a_last_tool_result(file: Path) -> None:
    messages = [user(), calls(("x", "look")), answer("x", "seen")]
    recording = read_one(file, *messages)
    replayed, outcomes = await replay(recording)
    assert replayed == recording.expected_messages() == messages
    assert outcomes == ["recording_ended"]


@pytest.mark.parametrize("answered", [[], [answer("y", "seen")]])
async def test_last_calls_without_answers_count_as_not_recorded(file: Path, answered: list[dict[str, Any]]) -> None:
    recording = read_one(file, user(), calls(("x", "look"), ("y", "look")), *answered)
    replayed, outcomes = await replay(recording)
    assert replayed == recording.expected_messages() == [user()]
    assert outcomes == ["recording_ended"]
    agent = replay_agent([recording])
    with pytest.raises(ModelError, match="'x' of tool look"):
        await agent.model.respond(  # type: ignore[union-attr]
            ModelRequest(
                conversation_id="a",
                submission_id="s",
                run_id="r",
                queue_sequence=1,
                turn=1,
                attempt=1,
                operation_id="o",
                messages=[],
            ),
            lambda _: None,
        )


async def test_an_unknown_conversation(file: Path) -> None:
    agent = replay_agent([read_one(file, user(), calls(("x", "look")), answer("x", "seen"))])
    assert await run(agent, "other", 1, []) == "recording_missing"
    assert await run(agent, "a", 2, []) == "recording_ended"
    look = agent.tool("look")
    assert look is not None
    ctx = ToolContext(
        conversation_id="other",
        submission_id="s",
        run_id="r",
        call_id="i",
        idempotency_key="k",
        queue_sequence=1,
        turn=1,
        position=0,
        attempt=1,
    )
    with pytest.raises(ToolError) as caught:
        await look.call(ctx, {})
    assert caught.value.code == "recording_missing"


async def test_the_agent_travels(file: Path) -> None:
    recording = read_one(file, user(), calls(("x", "look")), answer("x", "seen"), said())
    agent = replay_agent([recording], name="again", system="Be kind")
    assert (agent.name, agent.instructions) == ("again", "Be kind")
    assert [(item.name, item.effect) for item in agent.tools] == [("look", "idempotent")]  # type: ignore[union-attr]
    twin = cloudpickle.loads(cloudpickle.dumps(agent))
    assert twin.digest == agent.digest
    assert (await replay(recording, twin))[0] == recording.expected_messages()


async def test_more_turns_than_an_agent_has_by_default(file: Path) -> None:
    turn = [calls(("x", "look")), answer("x", "seen")]
    recording = read_one(file, user(), *(turn * 80), said())
    assert (await replay(recording))[1] == ["completed"]


def test_digest_follows_the_recordings(file: Path) -> None:
    one, other = read_one(file, user(), said("a")), read_one(file, user(), said("b"))
    assert replay_agent([one]).digest != replay_agent([other]).digest
    with pytest.raises(InvalidInput) as caught:
        replay_agent([one, other])
    assert caught.value.details["field"] == "recordings"
    with pytest.raises(InvalidInput) as caught:
        replay_agent([one], delay_s=-1)
    assert caught.value.details["field"] == "delay_s"


def test_system_message(file: Path) -> None:
    for role in ("system", "developer"):
        recording = read_one(file, {"role": role, "content": "Be kind"}, user(), said())
        assert recording.system == "Be kind"
        assert list(recording.messages) == recording.expected_messages() == [user(), said()]
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind"}]
    assert read_one(file, {"role": "system", "content": parts}, user()).system == "Be kind"


async def test_answers_of_other_shapes(file: Path) -> None:
    bare = {"role": "assistant", "tool_calls": calls(("x", "look"), ("y", "look"))["tool_calls"]}
    answers = [
        {"role": "tool", "tool_call_id": "x", "content": None},
        {"role": "tool", "tool_call_id": "y", "content": [{"type": "text", "text": "x"}]},
    ]
    recording = read_one(file, user(), bare, *answers)
    assert recording.expected_messages() == [user(), {"content": None, **bare}, *answers]
    assert (await replay(recording))[0] == recording.expected_messages()


GOOD = {"id": "good", "messages": [user(), said()]}


@pytest.mark.parametrize(
    ("line", "field", "part"),
    [
        ("{", "", "not JSON"),
        ("\ud800", "", "not JSON"),
        ('{"id": "a", "messages": [NaN]}', "", "not JSON"),
        ('{"id": "a", "messages": [{"role": "user", "content": "\\ud800"}]}', "", "not JSON"),
        ("[" * 100_000, "", "not JSON"),
        ("[]", "", "an object, not an array"),
        ("3", "", "an object, not a number"),
        ({"messages": [user()]}, "id", "text"),
        ({"id": 3, "messages": [user()]}, "id", "text"),
        ({"id": "", "messages": [user()]}, "id", "empty"),
        ({"id": "x" * 257, "messages": [user()]}, "id", "limit is 256"),
        ({"id": "good", "messages": [user()]}, "id", "line 1"),
        ({"id": "a"}, "messages", "list"),
        ({"id": "a", "messages": []}, "messages", "empty"),
        ({"id": "a", "messages": {}}, "messages", "list"),
        ({"id": "a", "messages": [user(), 3]}, "messages[1]", "object"),
        ({"id": "a", "messages": [said()]}, "messages[0].role", "user"),
        ({"id": "a", "messages": [{"role": "system", "content": "x"}]}, "messages[1].role", "user"),
        ({"id": "a", "messages": [{"role": "system", "content": "x"}, said()]}, "messages[1].role", "user"),
        ({"id": "a", "messages": [{"role": "system", "content": 3}, user()]}, "messages[0].content", "text"),
        ({"id": "a", "messages": [user(), {"role": "robot"}]}, "messages[1].role", "unknown role 'robot'"),
        ({"id": "a", "messages": [user(), {"role": ["x"]}]}, "messages[1].role", "unknown role"),
        ({"id": "a", "messages": [user(), {"role": "system", "content": "x"}]}, "messages[1].role", "unknown role"),
        ({"id": "a", "messages": [user(None)]}, "messages[0].content", "text"),
        ({"id": "a", "messages": [user("x" * (1 << 20))]}, "messages[0]", "limit is 1,048,576"),
        ({"id": "a", "messages": [user(big=1 << 70)]}, "messages[0].big", "71 bits"),
        ({"id": "a", "messages": [user(), said(3)]}, "messages[1].content", "text"),
        ({"id": "a", "messages": [user(), said("x" * (4 << 20))]}, "messages[1].response", "limit"),
        ({"id": "a", "messages": [user(), said(tool_calls=[{}])]}, "messages[1].tool_calls[0].function", "object"),
        ({"id": "a", "messages": [user(), said(), said()]}, "messages[2]", "ended the turn"),
        ({"id": "a", "messages": [user(), answer("x", "y")]}, "messages[1].tool_call_id", "nobody made"),
        ({"id": "a", "messages": [user(), said(), answer("x", "y")]}, "messages[2].tool_call_id", "nobody made"),
        (
            {"id": "a", "messages": [user(), calls(("x", "look")), answer("x", "1"), answer("x", "2")]},
            "messages[3].tool_call_id",
            "nobody made",
        ),
        ({"id": "a", "messages": [user(), calls(("x", "look")), said()]}, "messages[2]", "has no answer"),
        ({"id": "a", "messages": [user(), calls(("x", "look")), user()]}, "messages[2]", "has no answer"),
        (
            {"id": "a", "messages": [user(), calls(("x", "look")), {"role": "tool", "tool_call_id": "x"}]},
            "messages[2].content",
            "must have",
        ),
        (
            {"id": "a", "messages": [user(), calls(("x", "look")), answer("x", "y" * (1 << 20))]},
            "messages[2]",
            "limit is 1,048,576",
        ),
    ],
)
def test_a_bad_line_leaves_the_others(file: Path, line: Any, field: str, part: str) -> None:
    recordings, [problem] = read_recordings(write(file, GOOD, "  ", line, {**GOOD, "id": "last"}))
    assert [recording.id for recording in recordings] == ["good", "last"]
    assert (problem.path, problem.line_number, problem.field) == (str(file), 3, field)
    assert part in problem.message
    assert len(problem.message) <= 500
    assert str(problem).startswith(f"{file}:3: ")


def test_a_line_beyond_the_bound(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laneway.agents.recording.LINE_BYTES_MAX", 200)
    recordings, [problem] = read_recordings(write(file, GOOD, "x" * 1_000, {**GOOD, "id": "last"}))
    assert [(recording.id, recording.line_number) for recording in recordings] == [("good", 1), ("last", 3)]
    assert "200 bytes" in problem.message


def test_limit_and_unreadable_files(file: Path, tmp_path: Path) -> None:
    write(file, "{", *({**GOOD, "id": str(n)} for n in range(5)))
    recordings, problems = read_recordings(file, limit=2)
    assert ([recording.id for recording in recordings], len(problems)) == (["0", "1"], 1)
    with pytest.raises(InvalidInput) as caught:
        read_recordings(file, limit=0)
    assert caught.value.details["field"] == "limit"
    for path in (tmp_path / "missing", tmp_path, "nul\0byte"):
        with pytest.raises(InvalidInput) as caught:
            read_recordings(path)
        assert caught.value.details["field"] == "file"


def test_a_byte_order_mark_and_an_empty_file(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n\r\n")
    recordings, problems = read_recordings(str(file))
    assert (len(recordings), problems) == (1, [])
    file.write_bytes(b"")
    assert read_recordings(file) == ([], [])
