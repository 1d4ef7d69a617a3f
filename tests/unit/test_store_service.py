"""The store's side of its channel: commits of all senders go together, and one's fault is not the others'."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from laneway.actors.channel import Channel
from laneway.actors.deliveries import Deliveries
from laneway.actors.store_service import StoreService
from laneway.storage.commands import Accepted, Admit, Answer, Unit, decode_answers, encode_units
from laneway.storage.errors import LanewayError, StoreUnavailable
from laneway.storage.memory_store import MemoryStore

SENDERS = 5


class Watched(MemoryStore):
    """Counts what is committed together; a unit of the conversation "bad" breaks the whole group."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[int] = []

    def commit(self, units: Sequence[Unit]) -> list[Answer]:
        self.groups.append(len(units))
        if any(unit.conversation_id == "bad" for unit in units):
            raise ZeroDivisionError("a fault")
        if any(unit.conversation_id == "away" for unit in units):
            raise StoreUnavailable("away")
        return super().commit(units)


def admission(conversation_id: str, name: str) -> Unit:
    command = Admit(
        submission_id=f"sub_{name}",
        receipt_id=f"rcp_{name}",
        principal="p",
        idempotency_key=name,
        agent="a",
        input="{}",
        input_digest="d",
    )
    return Unit(conversation_id=conversation_id, commands=(command,))


class Clients:
    """Some senders, each with a connection of its own and one commit under way."""

    def __init__(self, store: Watched, channels: list[Channel]) -> None:
        self.store = store
        self.channels = channels
        self.number = 0

    async def commit(self, conversations: Sequence[str]) -> list[Any]:
        """One unit a sender, sent at once; what each was answered, or the error."""
        self.number += 1
        calls = [
            channel.call(
                "commit",
                f"snd_{index}",
                self.number,
                encode_units([admission(conversation_id, f"{index}-{self.number}")]),
            )
            for index, (channel, conversation_id) in enumerate(zip(self.channels, conversations, strict=True))
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        return [item if isinstance(item, Exception) else decode_answers(item)[0] for item in found]


@pytest.fixture
async def clients() -> AsyncIterator[Clients]:
    store = Watched()
    service = StoreService(lambda: store, Deliveries(), "127.0.0.1")
    address = service.start()
    channels = [await Channel.connect(address) for _ in range(SENDERS)]
    yield Clients(store, channels)
    for channel in channels:
        channel.close()
    service.close()


async def test_all_who_are_at_work_are_committed_together(clients: Clients) -> None:
    """Once it has heard of each, the store waits for them: five units cost one commit."""
    rounds = 4
    for _ in range(rounds):
        found = await clients.commit([f"c{index}" for index in range(SENDERS)])
        assert all(isinstance(answer, Accepted) for answer in found)
    assert sum(clients.store.groups) == SENDERS * rounds
    assert max(clients.store.groups) == SENDERS
    assert len(clients.store.groups) < SENDERS * rounds


async def test_one_who_is_alone_is_not_kept_waiting(clients: Clients) -> None:
    """One sender, one commit for each call: there is nobody to wait for."""
    (only, *_) = clients.channels
    for number in range(1, 4):
        units = [admission("c", str(number))]
        (answer,) = decode_answers(await only.call("commit", "snd", number, encode_units(units)))
        assert isinstance(answer, Accepted)
    assert clients.store.groups == [1, 1, 1]


async def test_a_fault_of_one_is_not_the_others(clients: Clients) -> None:
    await clients.commit(["c"] * SENDERS)
    first, *others = await clients.commit(["bad", "c1", "c2", "c3", "c4"])
    assert isinstance(first, LanewayError)
    assert first.code == "call_failed"
    assert all(isinstance(answer, Accepted) for answer in others)


async def test_an_outage_is_told_to_all_of_the_group(clients: Clients) -> None:
    """Nobody knows which of them is stored: each repeats its own."""
    await clients.commit(["c"] * SENDERS)
    clients.store.groups.clear()
    found = await clients.commit(["away", "c1", "c2", "c3", "c4"])
    assert isinstance(found[0], StoreUnavailable)
    told = [answer for answer in found if isinstance(answer, StoreUnavailable)]
    assert len(told) == clients.store.groups[0]


async def test_what_comes_late_is_refused(clients: Clients) -> None:
    (channel, *_) = clients.channels
    units = encode_units([admission("c", "a")])
    await channel.call("commit", "snd", 2, units)
    with pytest.raises(StoreUnavailable) as late:
        await channel.call("commit", "snd", 1, units)
    assert late.value.code == "superseded"


async def test_reads_are_answered(clients: Clients) -> None:
    await clients.commit(["c"] * SENDERS)
    assert await clients.channels[0].call("call", "list_conversations", ("", 10)) == ["c"]
