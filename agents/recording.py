"""Recorded conversations, one JSON object a line: {"id", "messages"}, the messages in OpenAI's chat format."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ..storage.errors import InvalidInput, ModelError
from ..storage.values import DEFAULT_LIMITS, check_json, check_text, decode
from .protocol import ModelResponse, ToolCallRequest
from .responses import assistant_message, check_response
from .tools import ToolMessage

LINE_BYTES_MAX = 64 << 20  # bounds the memory that one line may take; a conversation of 64 MiB would not replay anyway


@dataclass(frozen=True)
class LineProblem:
    """Why a line of a file was left out. `field` is the path to the value within the line, "" for the line itself."""

    path: str
    line_number: int
    message: str
    field: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line_number}: {self.message}"


@dataclass(frozen=True)
class RecordedInput:
    """What a user said: the content, and the other keys of the message."""

    content: Any
    extra: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One assistant message, and the answer to each of its calls by the call's position; None was not recorded."""

    response: ModelResponse
    results: tuple[ToolMessage | None, ...] = ()

    @property
    def unanswered(self) -> ToolCallRequest | None:
        """The first call that has no recorded answer."""
        pairs = zip(self.response.tool_calls, self.results, strict=True)
        return next((call for call, result in pairs if result is None), None)


@dataclass(frozen=True)
class Segment:
    """A user message, the recorded messages up to the next one, and the same read as turns."""

    input: RecordedInput
    messages: tuple[dict[str, Any], ...]
    turns: tuple[Turn, ...]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One recorded conversation. `messages` are as recorded, without the leading system message, which is `system`."""

    id: str
    messages: tuple[dict[str, Any], ...]
    system: str | None = None
    line_number: int = 0

    @functools.cached_property
    def segments(self) -> tuple[Segment, ...]:
        """One for each user message, in order."""
        return tuple(_segments(self.messages))

    def inputs(self) -> tuple[RecordedInput, ...]:
        """What the user said, in order: what a replay submits."""
        return tuple(segment.input for segment in self.segments)

    def expected_messages(self) -> list[dict[str, Any]]:
        """The messages that an export of a replay must equal.

        These are the recorded ones, with the answers in their calls' order, with "content": null where an assistant
        message has none, and without a last response whose calls were not all answered, since a replay treats it as
        not recorded.
        """
        expected: list[dict[str, Any]] = []
        for segment in self.segments:
            expected.append({"role": "user", "content": segment.input.content, **segment.input.extra})
            for turn in segment.turns:
                if turn.unanswered:
                    break
                expected.append(assistant_message(turn.response))
                expected.extend(
                    {"role": "tool", "tool_call_id": call.id, **result.keys, "content": result.content}
                    for call, result in zip(turn.response.tool_calls, turn.results, strict=True)
                    if result is not None
                )
        return expected


def read_recordings(path: str | Path, limit: int | None = None) -> tuple[list[Recording], list[LineProblem]]:
    """Read the recordings of a file, `limit` of them at most; a bad line becomes a problem and the others are read.

    Raises: InvalidInput with `field` "file" when the file cannot be read, and "limit" for one below 1.
    """
    if limit is not None and limit < 1:
        raise InvalidInput("limit must be 1 or more", field="limit", limit=1)
    if "\0" in str(path):
        raise InvalidInput("a file's path cannot hold a null character", field="file")
    recordings: dict[str, Recording] = {}
    problems: list[LineProblem] = []
    try:
        with open(path, "rb") as file:
            for number, line in _lines(file):
                try:
                    recording = _parse(line, number)
                    if recording.id in recordings:
                        first = recordings[recording.id].line_number
                        raise _bad(f"the id {recording.id!r} stands already on line {first}", "id")
                except InvalidInput as bad:
                    problems.append(LineProblem(str(path), number, bad.message[:500], bad.details.get("field", "")))
                    continue
                recordings[recording.id] = recording
                if len(recordings) == limit:
                    break
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}", field="file") from error
    return list(recordings.values()), problems


def _bad(message: str, field: str = "") -> InvalidInput:
    return InvalidInput(message, field=field)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    for number in itertools.count(1):
        line = file.readline(LINE_BYTES_MAX + 1)
        if not line:
            return
        if len(line) > LINE_BYTES_MAX:
            while line and not line.endswith(b"\n"):
                line = file.readline(LINE_BYTES_MAX)
            yield number, None
        else:
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if line.strip():
                yield number, line


def _parse(line: bytes | None, number: int) -> Recording:
    if line is None:
        raise _bad(f"the line has more than {LINE_BYTES_MAX:,} bytes")
    try:
        value = decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _bad(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _bad(f"the line must hold an object, not {_kind(value)}")
    identity = check_text(value.get("id"), "id", length_max=DEFAULT_LIMITS.id_length_max)
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("messages must be a list that is not empty", "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _bad(f"a message must be an object, not {_kind(message)}", f"messages[{index}]")
    system = None
    offset = 0
    if messages[0].get("role") in ("system", "developer"):
        system = _system(messages[0].get("content"))
        offset = 1
    recording = Recording(id=identity, messages=tuple(messages[offset:]), system=system, line_number=number)
    if not recording.messages or recording.messages[0].get("role") != "user":
        raise _bad("the first message must be a user's", f"messages[{offset}].role")
    # Reading the segments is the check; the recording keeps what was read.
    object.__setattr__(recording, "segments", tuple(_segments(recording.messages, offset)))
    return recording


def _system(content: object) -> str:
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if content == "":
        return ""
    return check_text(content, "messages[0].content", length_max=DEFAULT_LIMITS.input_bytes_max)


def _segments(messages: tuple[dict[str, Any], ...], offset: int = 0) -> Iterator[Segment]:
    starts = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    for start, end in itertools.pairwise([*starts, len(messages)]):
        field = f"messages[{start + offset}]"
        content, extra = _user(messages[start], field)
        turns = tuple(_turns(messages[start + 1 : end], start + 1 + offset))
        if end < len(messages) and turns and (call := turns[-1].unanswered):
            raise _bad(f"call {call.id!r} of tool {call.name} has no answer", f"messages[{end + offset}]")
        yield Segment(RecordedInput(content, extra), messages[start + 1 : end], turns)


def _user(message: dict[str, Any], field: str) -> tuple[Any, dict[str, Any]]:
    if not isinstance(message.get("content"), str | list):
        raise _bad("a user's content must be text or a list of parts", f"{field}.content")
    _check(message, field, DEFAULT_LIMITS.input_bytes_max)
    return message["content"], {key: value for key, value in message.items() if key not in ("role", "content")}


def _turns(messages: tuple[dict[str, Any], ...], offset: int) -> Iterator[Turn]:
    response: ModelResponse | None = None
    results: list[ToolMessage | None] = []
    for index, message in enumerate(messages, offset):
        field = f"messages[{index}]"
        role = message.get("role")
        if role == "assistant":
            if response is not None:
                _may_go_on(response, results, field)
                yield Turn(response, tuple(results))
            response = _assistant(message, field)
            results = [None] * len(response.tool_calls)
        elif role == "tool":
            position = _answered(message, response, results, field)
            keys = {key: value for key, value in message.items() if key not in ("role", "tool_call_id", "content")}
            results[position] = ToolMessage(message["content"], keys)
        else:
            raise _bad(f"unknown role {str(role)[:80]!r} at this place", f"{field}.role")
    if response is not None:
        yield Turn(response, tuple(results))


def _may_go_on(response: ModelResponse, results: list[ToolMessage | None], field: str) -> None:
    if not response.tool_calls:
        raise _bad("an assistant message follows one that had ended the turn, without a user's message", field)
    if call := Turn(response, tuple(results)).unanswered:
        raise _bad(f"call {call.id!r} of tool {call.name} has no answer", field)


def _assistant(message: dict[str, Any], field: str) -> ModelResponse:
    try:
        return check_response(message)
    except ModelError as error:
        inner = str(error.details.get("field", "")).removeprefix("response.")
        raise _bad(error.message, f"{field}.{inner}" if inner else field) from None


def _answered(
    message: dict[str, Any], response: ModelResponse | None, results: list[ToolMessage | None], field: str
) -> int:
    if "content" not in message:
        raise _bad("a tool's answer must have a content", f"{field}.content")
    _check(message, field, DEFAULT_LIMITS.tool_result_bytes_max)
    # Ids repeat, so an answer belongs to the first call with its id that has none yet.
    identity = message.get("tool_call_id")
    for position, call in enumerate(response.tool_calls if response else ()):
        if call.id == identity and results[position] is None:
            return position
    raise _bad(f"a tool answers call {str(identity)[:80]!r}, which nobody made", f"{field}.tool_call_id")


def _check(value: object, field: str, bytes_max: int) -> None:
    check_json(value, field, bytes_max=bytes_max, depth_max=DEFAULT_LIMITS.json_depth_max)


def _kind(value: object) -> str:
    kinds: dict[type, str] = {list: "an array", str: "text", type(None): "null", bool: "a boolean"}
    return kinds.get(type(value), "a number")
