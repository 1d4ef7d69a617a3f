"""Contents as conversations have them: words that do not repeat themselves, so that compression finds what is there.

Words are drawn from 4,000 made of random letters; a text of them carries about 3 bits a byte, no less than English, and
two texts share no passage.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from laneway import Agent, FunctionModel, ModelRequest, tool

from ..storage.records import AnyRecord, InputRecorded, ModelResponded, ToolCallSettled
from ..storage.values import encode

INPUT_BYTES = (100, 800)
ANSWER_BYTES = (300, 2_000)
RESULT_BYTES = (200, 2_000)
_LETTERS = "etaoinshrdlucmfwygpbvk"


def _words(count: int) -> list[str]:
    chance = random.Random(20)
    return ["".join(chance.choices(_LETTERS, k=chance.randint(2, 10))) for _ in range(count)]


_WORDS = _words(4_000)


def text(chance: random.Random, least: int, most: int) -> str:
    """Random words, `least` to `most` bytes of them."""
    length = chance.randint(least, most)
    words = chance.choices(_WORDS, k=length // 3 + 1)
    return " ".join(words)[:length]


def input_of(number: int) -> str:
    """What a user says in that turn."""
    return text(random.Random(number), *INPUT_BYTES)


@tool(effect="idempotent")
async def look_up(topic: str) -> str:
    """Some text on the topic."""
    return text(random.Random(topic), *RESULT_BYTES)


def answer(request: ModelRequest) -> Any:
    """First a call of the tool with a few words, then an answer."""
    chance = random.Random(request.operation_id)
    if request.messages[-1]["role"] == "tool":
        return text(chance, *ANSWER_BYTES)
    arguments = encode({"topic": text(chance, 20, 80)}).decode()
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
    return {"role": "assistant", "content": text(chance, *ANSWER_BYTES), "tool_calls": [call]}


def talking_agent() -> Agent:
    return Agent(name="talking", model=FunctionModel(answer), tools=[look_up])


def content_bytes(records: Iterable[AnyRecord]) -> Counter[str]:
    """Bytes of what users, models and tools said, each said once, by who said it."""
    found: Counter[str] = Counter()
    for record in records:
        match record:
            case InputRecorded():
                found["inputs"] += _size(record.content)
            case ModelResponded():
                found["responses"] += _size(record.content)
                found["arguments"] += sum(_size(call.arguments) for call in record.tool_calls)
            case ToolCallSettled():
                found["results"] += _size(record.result)
            case _:
                pass
    return found


def _size(content: Any) -> int:
    if content is None:
        return 0
    return len(content.encode()) if isinstance(content, str) else len(encode(content))
