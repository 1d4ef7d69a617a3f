"""A direct channel between two processes: calls and answers in frames over one TCP connection.

Ray places the processes, watches them, and hands out where a channel is and its secret. What runs over it is what would
else be a call over Ray, whose cost is most of a turn's (docs/adr/0011-direct-channels.md).
"""

from __future__ import annotations

import abc
import asyncio
import hmac
import itertools
import logging
import os
import pickle
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from ..storage.errors import LanewayError, described

FRAME_BYTES_MAX = 1 << 30
"""A group of units holds some records of a megabyte; what is larger was not sent by Laneway."""
_HELLO_BYTES_MAX = 64  # before the other side has proved that it knows the secret
_NONCE_BYTES = 32
_HELLO_S = 5.0
_ANOTHER_TRY_S = 30.0  # a network that lets Ray through and no channel will not change soon
_LENGTH = struct.Struct(">I")
_log = logging.getLogger("laneway.channel")

Handler = Callable[[str, tuple[Any, ...]], Awaitable[Any]]
"""Carries out one call: its method and its arguments."""


class ChannelAddress(msgspec.Struct, frozen=True):
    """Where a channel is served, and the secret that both sides prove to know."""

    host: str
    port: int
    secret: bytes


class ChannelLost(Exception):
    """The connection ended, or none could be made: a call that was under way may have been carried out."""


class _Wire(asyncio.Protocol, abc.ABC):
    """Frames over one connection, encrypted by nobody and authenticated by both sides: a challenge each."""

    def __init__(self, secret: bytes, *, serving: bool) -> None:
        self._secret = secret
        self._serving = serving
        self._nonce = os.urandom(_NONCE_BYTES)
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._challenged = self._known = False
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.ready: asyncio.Future[None] = loop.create_future()
        self._hello_end = loop.call_later(_HELLO_S, self.end)

    # --- what the sides differ in ------------------------------------------------------------------------------------

    @abc.abstractmethod
    def received(self, frame: bytes) -> None:
        """A frame from the other side, which is known."""

    @abc.abstractmethod
    def lost(self) -> None:
        """The connection ended."""

    # --- writing -----------------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Send a frame; all that one round of the event loop sends goes out in one write."""
        if not self._out:
            self._loop.call_soon(self._write_out)
        self._out += _LENGTH.pack(len(frame)), frame

    def _write_out(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None:
            self._transport.write(b"".join(out))

    def end(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none of asyncio's classes
        self.send(self._nonce)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hello_end.cancel()
        self._transport = None
        if not self.ready.done():
            self.ready.set_exception(ChannelLost("the other side did not prove that it knows the secret"))
            self.ready.exception()  # whoever waits is told; where nobody does, that is no error of its own
        self.lost()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start, end = 0, len(buffer)
        while end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > (FRAME_BYTES_MAX if self._known else _HELLO_BYTES_MAX):
                self.end()
                return
            if end - start - _LENGTH.size < length:
                break
            start += _LENGTH.size
            frame = bytes(buffer[start : start + length])
            start += length
            if self._known:
                self.received(frame)
            elif not self._greeted(frame):
                self.end()
                return
        del buffer[:start]

    def _greeted(self, frame: bytes) -> bool:
        """First the other side's challenge, then its answer to ours; it is known from there on."""
        if not self._challenged:
            self._challenged = True
            self.send(self._proof(frame, serving=self._serving))
            return len(frame) == _NONCE_BYTES
        if not hmac.compare_digest(frame, self._proof(self._nonce, serving=not self._serving)):
            return False
        self._known = True
        self._hello_end.cancel()
        self.ready.set_result(None)
        return True

    def _proof(self, nonce: bytes, *, serving: bool) -> bytes:
        return hmac.digest(self._secret, (b"serves" if serving else b"calls") + nonce, "sha256")


class _ServedWire(_Wire):
    def __init__(self, server: ChannelServer) -> None:
        super().__init__(server.secret, serving=True)
        self._server = server

    def received(self, frame: bytes) -> None:
        self._server.carry_out(self, frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.wires.add(self)

    def lost(self) -> None:
        self._server.wires.discard(self)


class ChannelServer:
    """Serves a handler to all who know the secret. Calls of one connection begin in the order of their sending."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._tasks = set[asyncio.Task[None]]()
        self.wires = set[_ServedWire]()
        self.secret = os.urandom(_NONCE_BYTES)

    async def start(self, host: str) -> ChannelAddress:
        """Listen at `host`, on a port that is free."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _ServedWire(self), host, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return ChannelAddress(host, port, self.secret)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for wire in list(self.wires):
            wire.end()

    def carry_out(self, wire: _ServedWire, frame: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(wire, frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, wire: _ServedWire, frame: bytes) -> None:
        number, method, arguments = pickle.loads(frame)
        try:
            answer = (number, True, await self._handler(method, arguments))
        except LanewayError as error:
            answer = (number, False, error)
        except Exception as error:
            answer = (number, False, LanewayError(f"{method} failed: {described(error)}", code="call_failed"))
        wire.send(pickle.dumps(answer, protocol=5))


class _CallingWire(_Wire):
    def __init__(self, secret: bytes) -> None:
        super().__init__(secret, serving=False)
        self.calls: dict[int, asyncio.Future[Any]] = {}
        self.closed = False

    def received(self, frame: bytes) -> None:
        number, fine, value = pickle.loads(frame)
        future = self.calls.pop(number, None)
        if future is None or future.done():
            return
        if fine:
            future.set_result(value)
        else:
            future.set_exception(value)

    def lost(self) -> None:
        self.closed = True
        for future in self.calls.values():
            if not future.done():
                future.set_exception(ChannelLost("the connection ended"))
        self.calls.clear()


class Channel:
    """The calling side of one connection; many calls may be under way at once."""

    def __init__(self, wire: _CallingWire) -> None:
        self._wire = wire
        self._numbers = itertools.count(1)

    @classmethod
    async def connect(cls, address: ChannelAddress, *, within_s: float = _HELLO_S) -> Channel:
        """Raises: ChannelLost when nobody is there, or somebody who does not know the secret."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(within_s):
                _, wire = await loop.create_connection(lambda: _CallingWire(address.secret), address.host, address.port)
                await wire.ready
        except (OSError, TimeoutError) as error:
            raise ChannelLost(f"no channel to {address.host}:{address.port}: {described(error)}") from error
        return cls(wire)

    @property
    def lost(self) -> bool:
        return self._wire.closed

    async def call(self, method: str, *args: Any) -> Any:
        """Raises: ChannelLost; the LanewayError that the call was answered with."""
        wire = self._wire
        if wire.closed:
            raise ChannelLost("the connection ended")
        number = next(self._numbers)
        future = wire.calls[number] = asyncio.get_running_loop().create_future()
        wire.send(pickle.dumps((number, method, args), protocol=5))
        try:
            return await future
        finally:
            wire.calls.pop(number, None)

    def close(self) -> None:
        self._wire.end()


Find = Callable[[], Awaitable[ChannelAddress]]
"""Asks the other process, over Ray, where its channel is."""


class Dialler:
    """Keeps a channel to one process: made when it is needed, and again when it was lost."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._channel: Channel | None = None
        self._not_before = 0.0
        self._connecting = asyncio.Lock()

    async def channel(self) -> Channel | None:
        """The channel; None where it cannot be had now, and calls go over Ray. Raises: what `find` raises."""
        if self._live is not None:
            return self._live
        async with self._connecting:
            if self._live is not None:
                return self._live
            if time.monotonic() < self._not_before:
                return None
            address = await self._find()
            try:
                self._channel = await Channel.connect(address)
            except ChannelLost as error:
                _log.warning("calls go over Ray for %.0f s: %s", _ANOTHER_TRY_S, error)
                self._not_before = time.monotonic() + _ANOTHER_TRY_S
                return None
            return self._channel

    @property
    def _live(self) -> Channel | None:
        return None if self._channel is None or self._channel.lost else self._channel

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
