"""Direct channels: what they carry, whom they let in, and what a lost connection says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from laneway.actors.channel import FRAME_BYTES_MAX, Channel, ChannelAddress, ChannelLost, ChannelServer
from laneway.actors.channel_link import ChannelLink
from laneway.storage.commands import Accepted, Admit, Answer, Unit
from laneway.storage.errors import LanewayError, Refused, StoreUnavailable

HERE = "127.0.0.1"


class Served:
    """A server whose method "held" answers when it is let go."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.gate = asyncio.Event()
        self.server = ChannelServer(self.carry_out)

    async def carry_out(self, method: str, args: tuple[Any, ...]) -> Any:
        self.begun.append((method, *args))
        match method:
            case "held":
                await self.gate.wait()
            case "refused":
                raise Refused("not now", code="not_now", limit=3)
            case "broken":
                raise ZeroDivisionError("oh")
            case _:
                pass
        return args


@pytest.fixture
async def served() -> AsyncIterator[tuple[Served, ChannelAddress]]:
    served = Served()
    yield served, await served.server.start(HERE)
    served.gate.set()
    served.server.close()


async def test_calls_and_answers(served: tuple[Served, ChannelAddress]) -> None:
    """Many calls are under way at once, each gets its own answer, and a large one goes through whole."""
    server, address = served
    channel = await Channel.connect(address)
    held = [asyncio.ensure_future(channel.call("held", number)) for number in range(100)]
    large = b"x" * 5_000_000
    assert await channel.call("echo", large) == (large,)
    assert not any(task.done() for task in held)
    server.gate.set()
    assert await asyncio.gather(*held) == [(number,) for number in range(100)]
    assert [call for call in server.begun if call[0] == "held"] == [("held", number) for number in range(100)]
    channel.close()


async def test_errors_come_back_as_what_they_are(served: tuple[Served, ChannelAddress]) -> None:
    channel = await Channel.connect(served[1])
    with pytest.raises(Refused) as refused:
        await channel.call("refused")
    assert (refused.value.code, refused.value.details) == ("not_now", {"limit": 3})
    with pytest.raises(LanewayError, match="broken failed: ZeroDivisionError: oh") as broken:
        await channel.call("broken")
    assert broken.value.code == "call_failed"
    assert await channel.call("echo", 1) == (1,)
    channel.close()


async def test_who_does_not_know_the_secret_is_not_let_in(served: tuple[Served, ChannelAddress]) -> None:
    server, address = served
    with pytest.raises(ChannelLost):
        await Channel.connect(ChannelAddress(address.host, address.port, b"another secret"))
    assert server.begun == []
    assert server.server.wires == set()


@pytest.mark.parametrize(
    "hello", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x20" + b"n" * 32 + b"\x00\x00\x00\x20" + b"p" * 32, b"\xff" * 8]
)
async def test_a_stranger_is_hung_up_on(served: tuple[Served, ChannelAddress], hello: bytes) -> None:
    """What does not prove itself reaches no handler and no unpickling."""
    server, address = served
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(hello + b"\x00\x00\x00\x03abc")
    received = b"." * 100
    try:
        received = await reader.read()
    except ConnectionResetError:
        received = b""
    assert len(received) <= 2 * 36
    assert server.begun == []
    writer.close()


async def test_a_server_that_does_not_know_the_secret_is_not_believed() -> None:
    """A process that took the port over cannot answer calls: the caller unpickles what it is told."""

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x20" + b"n" * 32 + b"\x00\x00\x00\x20" + b"p" * 32)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(pretend, HERE, 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ChannelLost):
        await Channel.connect(ChannelAddress(HERE, port, b"s" * 32))
    server.close()


async def test_a_lost_connection_is_told_to_all_who_wait(served: tuple[Served, ChannelAddress]) -> None:
    server, address = served
    channel = await Channel.connect(address)
    held = asyncio.ensure_future(channel.call("held"))
    await channel.call("echo")
    server.server.close()
    with pytest.raises(ChannelLost):
        await held
    assert channel.lost
    with pytest.raises(ChannelLost):
        await channel.call("echo")
    with pytest.raises(ChannelLost):
        await Channel.connect(address)


async def test_a_call_that_is_given_up_is_forgotten(served: tuple[Served, ChannelAddress]) -> None:
    channel = await Channel.connect(served[1])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await channel.call("held")
    served[0].gate.set()
    assert await channel.call("echo", "next") == ("next",)
    assert channel._wire.calls == {}
    channel.close()


def test_a_frame_is_bounded() -> None:
    assert FRAME_BYTES_MAX < 2**32  # its length is told in four bytes


# --- the store's link -------------------------------------------------------------------------------------------------


class OverRay:
    """The link that a channel stands in for."""

    def __init__(self) -> None:
        self.commits = 0
        self.numbers = 0

    def next_call(self) -> tuple[str, int]:
        self.numbers += 1
        return "snd", self.numbers

    async def commit(self, units: list[Unit]) -> list[Answer]:
        self.commits += 1
        return [Accepted(results=())]

    async def call(self, method: str, *args: Any) -> Any:
        return "over Ray"

    def call_blocking(self, method: str, *args: Any) -> Any:
        return "over Ray"

    def close(self) -> None:
        return


async def test_without_a_channel_calls_go_over_ray() -> None:
    """Where a network lets Ray through and nothing else, all goes on, and no call waits for the channel anew."""
    asked = 0

    async def find() -> ChannelAddress:
        nonlocal asked
        asked += 1
        return ChannelAddress(HERE, 9, b"s" * 32)  # nobody listens

    over_ray = OverRay()
    link = ChannelLink(over_ray, find)
    unit = Unit(conversation_id="c", commands=(Admit(submission_id="s", **_ADMISSION),))
    assert await link.commit([unit]) == [Accepted(results=())]
    assert await link.call("lookup", "s") == "over Ray"
    assert link.call_blocking("lookup", "s") == "over Ray"
    assert (over_ray.commits, asked) == (1, 1)


async def test_a_store_that_is_gone_is_an_outage(served: tuple[Served, ChannelAddress]) -> None:
    """The call under way is ambiguous; the next one looks for the process anew."""
    server, address = served
    asked = 0

    async def find() -> ChannelAddress:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise StoreUnavailable("it is being started again")
        return address

    link = ChannelLink(OverRay(), find)
    assert await link.call("echo", 1) == ("echo", (1,))
    waiting = asyncio.ensure_future(link.call("echo", 2))
    await asyncio.sleep(0)
    server.server.close()
    with pytest.raises(StoreUnavailable):
        await waiting
    with pytest.raises(StoreUnavailable, match="started again"):
        await link.call("echo", 3)
    assert asked == 2


_ADMISSION: dict[str, Any] = {
    "receipt_id": "r",
    "principal": "p",
    "idempotency_key": "k",
    "agent": "a",
    "input": "{}",
    "input_digest": "d",
}
