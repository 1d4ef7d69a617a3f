"""The store over a direct channel, or over Ray's calls where no channel can be had."""

from __future__ import annotations

from typing import Any, Protocol

from ..storage.commands import Answer, Unit, decode_answers, encode_units
from ..storage.errors import StoreUnavailable
from .channel import Channel, ChannelLost, Dialler, Find
from .store_client import StoreLink


class NumberedLink(StoreLink, Protocol):
    """A link whose commits carry their sender and a number that rises, so that late ones can be told."""

    def next_call(self) -> tuple[str, int]: ...


class ChannelLink:
    """A `StoreLink` that commits and reads over a channel. A lost connection is an outage like any other."""

    def __init__(self, fallback: NumberedLink, find: Find) -> None:
        """`find` raises StoreUnavailable where the process does not answer."""
        self._fallback = fallback
        self._dialler = Dialler(find)

    async def commit(self, units: list[Unit]) -> list[Answer]:
        channel = await self._dialler.channel()
        if channel is None:
            return await self._fallback.commit(units)
        return decode_answers(await self._ask(channel, "commit", *self._fallback.next_call(), encode_units(units)))

    async def call(self, method: str, *args: Any) -> Any:
        channel = await self._dialler.channel()
        if channel is None:
            return await self._fallback.call(method, *args)
        return await self._ask(channel, "call", method, args)

    def call_blocking(self, method: str, *args: Any) -> Any:
        return self._fallback.call_blocking(method, *args)

    def close(self) -> None:
        self._dialler.close()
        self._fallback.close()

    async def _ask(self, channel: Channel, method: str, *args: Any) -> Any:
        try:
            return await channel.call(method, *args)
        except ChannelLost as error:
            raise StoreUnavailable(f"the store's process gives no answer: {error}") from error
