"""Servers that speak OpenAI's chat-completions protocol: a mock in a process of its own, and one that misbehaves."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def fakellm(config: Path) -> Iterator[str]:
    """Run `fakellm serve` with this configuration; gives the base URL when it answers, ends the process afterwards."""
    port = free_port()
    command = Path(sys.executable).with_name("fakellm")
    process = subprocess.Popen(
        [str(command), "serve", "--port", str(port), "--config", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "running on" in line:
                break
        else:
            raise RuntimeError("fakellm ended before it served: " + "".join(lines))
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.stderr.read()
        process.stderr.close()
        process.wait(timeout=10)


@dataclass
class Answer:
    """One HTTP answer: a status with a body, or a stream of chunks that may end without being complete."""

    status: int = 200
    body: Any = None
    chunks: list[dict[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    ending: str = (
        "done"  # "done": as the protocol says; "cut": mid-message; "closed": an orderly end, too early; "hang"
    )


@dataclass
class FaultServer:
    """Gives its answers in order, the last one again and again, and keeps the requests."""

    url: str
    answers: list[Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:"))
            answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
            self.requests.append(json.loads(await reader.readexactly(length)))
            await self._send(answer, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _send(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        headers = {"connection": "close", **answer.headers}
        if answer.body is not None:
            body = json.dumps(answer.body).encode()
            headers |= {"content-type": "application/json", "content-length": str(len(body))}
            writer.write(_head(answer.status, headers) + body)
            await writer.drain()
            return
        headers |= {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        writer.write(_head(answer.status, headers))
        for chunk in answer.chunks:
            writer.write(_http_chunk(f"data: {json.dumps(chunk)}\n\n"))
        await writer.drain()
        if answer.ending == "hang":
            self.hanging.set()
            await reader.read()
            self.hung_up.set()
        elif answer.ending == "closed":
            writer.write(b"0\r\n\r\n")
        elif answer.ending == "done":
            writer.write(_http_chunk("data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()


@asynccontextmanager
async def fault_server(*answers: Answer) -> AsyncIterator[FaultServer]:
    """Serve the answers on a free loopback port."""
    served = FaultServer("", list(answers))
    server = await asyncio.start_server(served.handle, "127.0.0.1", 0)
    served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield served


def delta(finish_reason: str | None = None, /, **members: Any) -> dict[str, Any]:
    """A chunk of a chat-completions stream."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "fault-1",
        "choices": [{"index": 0, "delta": members, "finish_reason": finish_reason}],
    }


def usage(prompt: int, completion: int) -> dict[str, Any]:
    """The chunk that closes a stream with its counts."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**delta(), "choices": [], "usage": counts}


def call_delta(index: int, arguments: str, *, id: str | None = None, name: str | None = None) -> dict[str, Any]:
    """A chunk that brings a piece of a tool call."""
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return delta(tool_calls=[{"index": index, "function": function} | ({"id": id, "type": "function"} if id else {})])


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _http_chunk(text: str) -> bytes:
    data = text.encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
