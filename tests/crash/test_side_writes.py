"""Kills round what is stored beside the ledger and the log: an owner and its end, a quarantine and its release."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from crash_matrix import Row, charging
from lane_world import Process, World

from laneway.storage.failpoints import Point, SimulatedCrash
from laneway.storage.ledger import State

BEFORE, AFTER = Point.BEFORE_SIDE_WRITE, Point.AFTER_SIDE_WRITE
PLAIN = Row("plain", BEFORE)


@dataclass(frozen=True)
class Kill:
    """A kill in `command`: whether the conversation stands aside then."""

    command: str
    point: Point
    aside: bool

    def __str__(self) -> str:
        return f"{self.command}-{self.point}"


MATRIX = [
    Kill("quarantine", BEFORE, aside=False),
    Kill("quarantine", AFTER, aside=True),
    Kill("release_quarantine", BEFORE, aside=True),
    Kill("release_quarantine", AFTER, aside=False),
]
ARGUMENTS = {"quarantine": ("c", "looking", "ann"), "release_quarantine": ("c", "ann")}


async def a_process(world: World) -> Process:
    return await world.process(charging(world.supplier, world.failpoints, PLAIN), stepwise=True)


@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
@pytest.mark.parametrize("kill", MATRIX, ids=str)
async def test_a_crash_in_a_quarantine_or_a_release(kill: Kill, adapter: str, tmp_path: Path) -> None:
    """Specification 16: it is whole or not there, and repeated it comes to the same; the work waits and is not lost."""
    world = World(adapter, tmp_path)
    first = await a_process(world)
    assert (await first.run("pay")).outcome == "completed"
    await first.at_rest()
    if kill.command == "release_quarantine":
        await first.link.call("quarantine", *ARGUMENTS["quarantine"])
    world.failpoints.plan({kill.point: 1})
    begun = first.begin(first.link.call(kill.command, *ARGUMENTS[kill.command]))
    await first.crashed()
    await world.kill(first)
    begun.close()

    second = await a_process(world)
    assert [found.reason for found in world.store.quarantined()] == (["looking"] if kill.aside else [])
    receipt = await second.submit("pay again")
    await second.recover()
    await second.at_rest()
    if kill.aside:
        assert world.row(receipt).state is State.READY
        assert world.supplier.count("charge") == 1
    await second.link.call(kill.command, *ARGUMENTS[kill.command])  # the command that had no answer is repeated
    assert len(world.store.quarantined()) == (kill.command == "quarantine")
    await second.link.call("release_quarantine", *ARGUMENTS["release_quarantine"])
    await second.recover()
    assert (await second.settled(receipt)).outcome == "completed"
    await second.at_rest()
    assert world.supplier.count("charge") == 2
    world.converged()
    await world.close()


@pytest.mark.requirement("DUR-006")
@pytest.mark.parametrize("adapter", ["memory", "duckdb"])
@pytest.mark.parametrize("point", [BEFORE, AFTER])
@pytest.mark.parametrize("end", [False, True], ids=["announced", "retired"])
async def test_a_crash_in_the_announcement_or_the_end_of_an_owner(
    end: bool, point: Point, adapter: str, tmp_path: Path
) -> None:
    """An owner that is half announced holds nothing, one that is half retired holds it until its lease ends."""
    world = World(adapter, tmp_path)
    if end:
        held = await a_process(world)
        world.failpoints.plan({Point.AFTER_CLAIM: 1})
        begun = held.begin_submit("pay", key="k")
        await held.crashed()
        await held.kill()
        world.processes.remove(held)
        begun.close()
        world.failpoints.disarm()
        world.failpoints.plan({point: 1})
        with pytest.raises(SimulatedCrash):
            world.store.retire_owner(held.host.owner_id)
    else:
        world.failpoints.plan({point: 1})
        with pytest.raises(SimulatedCrash):
            await a_process(world)
        await world.processes.pop().kill()
    world.failpoints.disarm()
    if adapter == "duckdb":
        world.store.close()
        world.store = world._open()
        assert len(world.store.owners()) == ((point is BEFORE) if end else (point is AFTER))
    world.clock.advance(60_000)
    second = await a_process(world)
    receipt = await second.submit("pay", key="k")
    await second.recover()
    assert receipt.replayed is end
    assert (await second.settled(receipt)).outcome == "completed"
    await second.at_rest()
    assert world.supplier.count("charge") == 1
    world.converged()
    await world.close()
