"""What watchers are handed: whole runs of records, deltas once, and never a gap."""

from __future__ import annotations

import asyncio

from lane_records import began, ended, said

from laneway.actors.lane.feed import Cursor, Feed
from laneway.agents.protocol import Delta


def delta(text: str) -> Delta:
    return Delta(kind="text", text=text)


async def test_records_that_follow_each_other_are_handed_out() -> None:
    feed = Feed()
    feed.committed(1, (said(), began()))
    feed.committed(3, (ended(),))
    assert feed.records_after(0) == [(1, said()), (2, began()), (3, ended())]
    assert feed.records_after(2) == [(3, ended())]
    assert feed.records_after(3) == []


async def test_a_gap_sends_watchers_to_the_store() -> None:
    """Others have written in between: what this feed does not have it must not skip (F13)."""
    feed = Feed()
    feed.committed(1, (said(),))
    feed.committed(4, (ended(),))
    assert feed.records_after(0) is None
    assert feed.records_after(2) is None
    assert feed.records_after(3) == [(4, ended())]
    feed.forget()
    assert feed.records_after(3) is None


async def test_a_watcher_far_behind_reads_the_store() -> None:
    feed = Feed()
    for sequence in range(1, 301):
        feed.committed(sequence, (said(),))
    assert feed.records_after(0) is None
    assert len(feed.records_after(100) or ()) == 200


async def test_deltas_are_handed_out_once_and_belong_to_their_response() -> None:
    feed = Feed()
    feed.delta(delta("a"))
    feed.delta(delta("b"))
    found, count = feed.deltas_after(Cursor())
    assert ([item.text for item in found], count) == (["a", "b"], 2)
    cursor = Cursor(generation=feed.generation, delta=count)
    assert feed.deltas_after(cursor) == ([], 2)
    feed.committed(1, (said(),))
    feed.delta(delta("c"))
    assert [item.text for item in feed.deltas_after(cursor)[0]] == ["c"]


async def test_a_watcher_that_looked_before_a_change_is_not_left_waiting() -> None:
    feed = Feed()
    version = feed.version
    feed.committed(1, (said(),))
    async with asyncio.timeout(1):
        await feed.changed(60, version)
    waiting = asyncio.create_task(feed.changed(60, feed.version))
    await asyncio.sleep(0)
    assert feed.watched == 1
    feed.stirred()
    async with asyncio.timeout(1):
        await waiting
    assert feed.watched == 0
