"""An agent that repeats recorded conversations: each response and each tool result by its place in the recording."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from ..storage.errors import InvalidInput, ModelError, ToolError
from ..storage.values import digest_of, encode
from .agent import Agent
from .protocol import Emit, ModelRequest, ModelResponse
from .recording import Recording, Turn
from .scripted import stream_text
from .tools import Tool, ToolContext, ToolMessage

_DELTAS_MAX = 4  # enough to see a stream, cheap enough to replay thousands of turns
_TURNS_MAX_LEAST = 50


class ReplayModel:
    """Answers turn t of the n-th submission of a conversation with the t-th recorded response after the n-th user
    message of the recording that has the conversation's id.

    Where the recording ends, or the calls of a last response were not all answered, it raises ModelError with code
    "recording_ended"; for a conversation without a recording, with code "recording_missing". Neither is retryable.
    """

    def __init__(self, recordings: Iterable[Recording], *, delay_s: float = 0.0) -> None:
        self._recordings: dict[str, Recording] = {}
        for recording in recordings:
            if recording.id in self._recordings:
                raise InvalidInput(f"two recordings have the id {recording.id}", field="recordings")
            self._recordings[recording.id] = recording
        if not 0 <= delay_s < float("inf"):
            raise InvalidInput("delay_s must be a number of seconds, 0 or more", field="delay_s", limit=0)
        self._delay_s = delay_s
        contents = [[recording.id, recording.messages] for recording in self._recordings.values()]
        self._digest = digest_of(encode(contents))

    def identity(self) -> dict[str, Any]:
        return {"kind": "replay", "digest": self._digest}

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        turn = self._turn(request.conversation_id, request.queue_sequence, request.turn)
        if call := turn.unanswered:
            raise ModelError(
                f"the recording {request.conversation_id} ends with call {call.id!r} of tool {call.name}, "
                "whose answer was not recorded",
                code="recording_ended",
                retryable=False,
                conversation_id=request.conversation_id,
                provider_call_id=call.id,
            )
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        if isinstance(turn.response.content, str):
            await stream_text(turn.response, emit, -(-len(turn.response.content) // _DELTAS_MAX) or 1)
        return turn.response

    def result(self, ctx: ToolContext) -> ToolMessage:
        """The recorded answer to the call that `ctx` describes. Raises: ToolError with code "recording_missing"."""
        try:
            turn = self._turn(ctx.conversation_id, ctx.queue_sequence, ctx.turn)
        except ModelError as error:
            raise ToolError(error.message, code="recording_missing") from None
        found = turn.results[ctx.position] if 0 <= ctx.position < len(turn.results) else None
        if found is None:
            raise ToolError(f"no answer was recorded for call {ctx.call_id}", code="recording_missing")
        return found

    def _turn(self, conversation_id: str, queue_sequence: int, turn: int) -> Turn:
        recording = self._recordings.get(conversation_id)
        if recording is None:
            raise ModelError(
                f"no recording has the id {conversation_id}",
                code="recording_missing",
                retryable=False,
                conversation_id=conversation_id,
            )
        segments = recording.segments
        turns = segments[queue_sequence - 1].turns if 1 <= queue_sequence <= len(segments) else ()
        if not 1 <= turn <= len(turns):
            raise ModelError(
                f"the recording {conversation_id} holds no response {turn} to user message {queue_sequence}",
                code="recording_ended",
                retryable=False,
                conversation_id=conversation_id,
            )
        return turns[turn - 1]


class RecordedTool:
    """The function of a recorded tool: its answers come from the recordings, whatever the arguments say."""

    def __init__(self, model: ReplayModel) -> None:
        self._model = model

    async def __call__(self, ctx: ToolContext, arguments: dict[str, Any]) -> ToolMessage:
        return self._model.result(ctx)


def replay_agent(
    recordings: Sequence[Recording], *, name: str = "replay", system: str = "", delay_s: float = 0.0
) -> Agent:
    """An agent that repeats the recordings: submit each recording's inputs to the conversation with its id.

    Its tools are those that the recordings call. `system` becomes the instructions; `delay_s` is waited before each
    response, in seconds.

    Raises: InvalidInput with `field`.
    """
    model = ReplayModel(recordings, delay_s=delay_s)
    turns = [turn for recording in recordings for segment in recording.segments for turn in segment.turns]
    names = dict.fromkeys(call.name for turn in turns for call in turn.response.tool_calls)
    longest = max((len(segment.turns) for recording in recordings for segment in recording.segments), default=0)
    function = RecordedTool(model)
    version = model.identity()["digest"]
    return Agent(
        name=name,
        model=model,
        tools=[
            Tool.raw(tool_name, function, effect="idempotent", version=version, parser=_ignore_arguments)
            for tool_name in names
        ],
        instructions=system,
        turns_max=max(_TURNS_MAX_LEAST, longest + 1),
    )


def _ignore_arguments(arguments_json: str) -> dict[str, Any]:
    # A recorded call got its recorded answer even when its arguments were not the JSON object that they should be.
    return {}
