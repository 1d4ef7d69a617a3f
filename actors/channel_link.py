"""The store over a direct channel, or over Ray's calls where no channel can be had."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ..storage.commands import Answer, Unit, decode_answers, encode_units
from ..storage.errors import StoreUnavailable
from .channel import Channel, ChannelAddress, ChannelLost
from .store_client import StoreLink

_log = logging.getLogger("laneway.channel")
_ANOTHER_TRY_S = 30.0  # a network that lets Ray through and no channel will not change soon

Find = Callable[[], Awaitable[ChannelAddress]]
"""Asks the other process, over Ray, where its channel is. Raises: StoreUnavailable."""


class NumberedLink(StoreLink, Protocol):
    """A link whose commits carry their sender and a number that rises, so that late ones can be told."""

    def next_call(self) -> tuple[str, int]: ...


class ChannelLink:
    """A `StoreLink` that commits and reads over a channel. A lost connection is an outage like any other."""

    def __init__(self, fallback: NumberedLink, find: Find) -> None:
        self._fallback = fallback
        self._find = find
        self._channel: Channel | None = None
        self._not_before = 0.0
        self._connecting = asyncio.Lock()

    async def commit(self, units: list[Unit]) -> list[Answer]:
        channel = await self._connected()
        if channel is None:
            return await self._fallback.commit(units)
        return decode_answers(await self._ask(channel, "commit", *self._fallback.next_call(), encode_units(units)))

    async def call(self, method: str, *args: Any) -> Any:
        channel = await self._connected()
        if channel is None:
            return await self._fallback.call(method, *args)
        return await self._ask(channel, "call", method, args)

    def call_blocking(self, method: str, *args: Any) -> Any:
        return self._fallback.call_blocking(method, *args)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._fallback.close()

    async def _ask(self, channel: Channel, method: str, *args: Any) -> Any:
        try:
            return await channel.call(method, *args)
        except ChannelLost as error:
            raise StoreUnavailable(f"the store's process gives no answer: {error}") from error

    async def _connected(self) -> Channel | None:
        """The channel, made if there is none; None where it cannot be had now."""
        if self._channel is not None and not self._channel.lost:
            return self._channel
        async with self._connecting:
            if self._channel is not None and not self._channel.lost:
                return self._channel
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
