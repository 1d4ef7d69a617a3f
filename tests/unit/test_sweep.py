"""The sweep: pages and their cursor, outages in the middle of a pass, alerts; supervisors that die, planned drains."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lane_world import Gate, ProcessLink, Script, Trouble, World, agent_of, until
from local_crew import LocalCrew, a_supervisor, control
from store_builders import Conversation

from laneway.actors.store_client import StoreClient
from laneway.actors.sweep import Sweep
from laneway.recovery.alerts import Alerts, AlertSettings
from laneway.recovery.attention import attention
from laneway.storage.commands import MarkUnknown
from laneway.storage.contract import ControlRow
from laneway.storage.errors import LanewayError
from laneway.storage.ledger import State
from laneway.storage.records import RecoveryDecided

SETTINGS = AlertSettings(unknown_s=10, approval_s=100, settlement_s=5, interval_s=60)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World("memory", tmp_path)
    yield world
    await world.close()


def sweep_of(world: World, trouble: Any = lambda kind: None, *, rows_max: int = 10) -> tuple[Sweep, ProcessLink]:
    link = ProcessLink(world.store, trouble)
    store = StoreClient(link, random.Random(7))
    return Sweep(store, Alerts(SETTINGS), Counter(), world.clock, rows_max=rows_max), link


def backlog(world: World, count: int) -> list[str]:
    names = [f"c{number:03}" for number in range(count)]
    for name in names:
        Conversation(world.store, name).submit(f"sub_{name}", text='{"content":"hi"}')
    return names


# --- pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("DUR-014")
async def test_an_outage_in_the_middle_of_a_scan_loses_nothing(world: World) -> None:
    """F2: the store goes away while 100 rows are scanned: the pass goes on at its page, nothing is deleted."""
    names = backlog(world, 100)
    trouble = Trouble()
    sweep, link = sweep_of(world, trouble)
    found: list[str] = []

    async def activate(conversation_ids: list[str]) -> None:
        found.extend(conversation_ids)
        if len(found) == 50:
            trouble.down = True

    async def back() -> None:
        await until(lambda: trouble.lost >= 3)
        trouble.down = False

    await asyncio.gather(sweep.run(activate), back())
    assert found == names
    assert link.reads["scan_nonterminal"] == 10 + trouble.lost
    assert len(world.store.scan_nonterminal().rows) == 100
    link.close()


@pytest.mark.requirement("DUR-003", "DUR-014")
async def test_a_hundred_submissions_are_recovered_through_an_outage(world: World) -> None:
    """F2: the store is away for everybody in the middle of the recovery: all settle later, each is charged once."""
    gate = Gate()

    async def answer(request: Any) -> str:
        await gate.wait()
        return "done"

    lost = await world.process(agent_of(Script(answer)))
    receipts = [await lost.submit("go", conversation=f"c{number:03}") for number in range(100)]
    await gate.reached()
    await world.kill(lost)
    rows = {row.submission_id for row in world.store.list_rows()}
    trouble, crew = Trouble(), LocalCrew(world)
    crew.trouble = trouble
    real = crew.activate

    async def activate(member: Any, conversation_ids: list[str]) -> None:
        await real(member, conversation_ids)
        if len({name for _, names in crew.activated for name in names}) >= 30:
            trouble.down = not trouble.lost

    crew.activate = activate  # type: ignore[method-assign]
    supervisor = a_supervisor(world, crew, trouble, sweep_rows=10)
    await supervisor.start()
    await until(lambda: trouble.lost >= 5)
    assert not all(world.row(receipt).settled for receipt in receipts)
    trouble.down = False
    await until(lambda: all(world.row(receipt).settled for receipt in receipts))
    await supervisor.close()
    assert {row.submission_id for row in world.store.list_rows()} == rows
    assert {world.row(receipt).attempts for receipt in receipts} == {2}
    for receipt in receipts:
        assert world.decisions(receipt.conversation_id) == ["resume_turn"]
    assert world.store.quarantined() == []
    assert world.converged().outcomes == {"completed": 100}


async def test_a_pass_that_was_broken_off_goes_on_at_its_page(world: World) -> None:
    """Recovery is a loop: what stops one pass neither starts it again from the beginning nor loses its page."""
    names = backlog(world, 30)
    sweep, link = sweep_of(world)
    found: list[str] = []
    broken = [20]

    async def activate(conversation_ids: list[str]) -> None:
        if broken and len(found) + len(conversation_ids) > broken[0]:
            broken.clear()
            raise LanewayError("nobody can be asked")
        found.extend(conversation_ids)

    with pytest.raises(LanewayError):
        await sweep.run(activate)
    assert found == names[:20]
    await sweep.run(activate)
    assert found == names
    await sweep.run(activate)
    assert found == names * 2
    link.close()


async def test_a_lane_that_spans_pages_is_decided_by_its_head(world: World) -> None:
    """What stands in a later page behind a live owner needs nobody."""
    lane = Conversation(world.store, "a")
    lane.start("sub_0", "o1")
    for number in range(1, 8):
        lane.submit(f"sub_{number}")
    backlog(world, 1)
    for rows_max in (1, 2, 3, 100):
        sweep, link = sweep_of(world, rows_max=rows_max)
        found: list[str] = []

        async def activate(conversation_ids: list[str], found: list[str] = found) -> None:
            found.extend(conversation_ids)

        await sweep.run(activate)
        assert found == ["c000"], rows_max
        link.close()


def test_pages_give_what_the_whole_scan_gives() -> None:
    chance = random.Random(11)
    for _ in range(300):
        rows = [
            control(
                chance.choice([State.READY, State.RUNNING, State.UNKNOWN, State.SUSPENDED, State.ADMITTED]),
                number,
                f"c{number // 4}",
                owner_live=chance.random() < 0.3,
                parked=chance.random() < 0.3,
                abort_requested=chance.random() < 0.1,
                quarantined=number // 4 == 2,
            )
            for number in range(16)
        ]
        found: dict[str, None] = {}
        decided = None
        size = chance.randint(1, 16)
        for start in range(0, len(rows), size):
            needed, decided = attention(rows[start : start + size], 10, decided)
            found |= dict.fromkeys(needed)
        assert list(found) == attention(rows, 10)[0]
        assert "c2" not in found


@pytest.mark.requirement("DUR-016")
def test_what_joined_an_ended_run_is_closed_before_the_head_has_its_turn() -> None:
    """Steering passes its queue: the host may have ended while an earlier submission waits for a person."""
    joined = control(State.JOINED, 2)
    assert attention([control(State.SUSPENDED, 1), joined], 10)[0] == ["c"]
    assert attention([control(State.RUNNING, 1, owner_live=True), joined], 10)[0] == []
    assert attention([control(State.SUSPENDED, 1), control(State.READY, 2)], 10)[0] == []


# --- alerts ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("DUR-017")
def test_overdue_work_is_told_once_an_interval() -> None:
    alerts = Alerts(SETTINGS)
    rows = [
        control(State.UNKNOWN, 1, updated_at_ms=0),
        control(State.SUSPENDED, 2, "d", updated_at_ms=0),
        control(State.TERMINALIZING, 3, "e", updated_at_ms=0),
        control(State.RUNNING, 4, "f", updated_at_ms=0),
        control(State.READY, 5, "g", updated_at_ms=0, quarantined=True),
        control(State.READY, 6, "g", updated_at_ms=0, quarantined=True),
    ]

    def told(now_s: int) -> list[tuple[str, str]]:
        found = [(alert.kind, alert.submission_id) for alert in alerts.due(rows, now_s * 1000)]
        counts.append(alerts.pass_over())
        return found

    counts: list[int] = []
    assert told(4) == [("quarantined", "s5")]
    assert told(9) == [("settlement_overdue", "s3")]
    assert told(10) == [("unknown_overdue", "s1")]
    assert told(63) == []
    assert told(64) == [("quarantined", "s5")]
    assert told(100) == [("unknown_overdue", "s1"), ("approval_overdue", "s2"), ("settlement_overdue", "s3")]
    assert counts == [1, 2, 3, 3, 3, 4]
    del rows[0]
    assert told(101) == []
    assert counts[-1] == 3


def test_work_that_was_settled_and_comes_again_is_told_again() -> None:
    alerts = Alerts(SETTINGS)
    row = control(State.UNKNOWN, updated_at_ms=0)
    assert len(alerts.due([row], 10_000)) == 1
    alerts.pass_over()
    alerts.pass_over()
    assert len(alerts.due([row], 11_000)) == 1


@pytest.mark.requirement("DUR-017")
def test_work_that_nobody_looks_after_is_told() -> None:
    """Heads alone, whatever they wait for, and accepted aborts; not what runs, nor what stands behind another."""
    alerts = Alerts(msgspec.structs.replace(SETTINGS, work_s=20.0))

    def told(rows: list[ControlRow], now_s: int, *, page: int = 100) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        decided = None
        for start in range(0, len(rows), page):
            part = rows[start : start + page]
            found += [(alert.kind, alert.submission_id) for alert in alerts.due(part, now_s * 1000, decided)]
            _, decided = attention(part, now_s * 1000, decided)
        alerts.pass_over()
        return [name for kind, name in found if kind == "work_overdue"]

    def rows(now_s: int, **lost: Any) -> list[ControlRow]:
        return [
            control(State.READY, 1, "absent", not_before_ms=now_s * 1000 + 15_000, updated_at_ms=now_s * 1000),
            control(State.READY, 2, "absent"),
            control(State.READY, 3, "absent", abort_requested=True),
            control(State.RUNNING, 4, "busy", owner_live=True),
            control(State.READY, 5, "busy"),
            control(State.RUNNING, 6, "lost", **lost),
            control(State.UNKNOWN, 7, "parked", parked=True),
            control(State.READY, 8, "parked"),
            control(State.SUSPENDED, 9, "waits"),
            control(State.READY, 10, "waits"),
        ]

    assert told(rows(1000), 1000) == []
    assert told(rows(1019), 1019, page=1) == []
    assert told(rows(1020), 1020, page=2) == ["s1", "s3", "s6", "s8"]
    assert told(rows(1021), 1021) == []
    assert told(rows(1022, owner_live=True), 1022) == []
    assert told(rows(1023), 1023) == []  # "lost" had an owner meanwhile: its time begins anew
    assert told(rows(1042), 1042) == []
    assert told(rows(1060), 1060) == ["s6"]


@pytest.mark.requirement("DUR-017")
async def test_the_supervisor_tells_of_unknown_work(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """One line of JSON an obligation, and counters."""
    crew = LocalCrew(world)
    supervisor = a_supervisor(world, crew, sweep_s=0.005, alerts=SETTINGS)
    lane = Conversation(world.store, "c")
    lane.start("sub_1")
    lane.do(MarkUnknown(submission_id="sub_1", calls={"call_1": "nobody knows"}))
    with caplog.at_level(logging.WARNING, "laneway.alerts"):
        await supervisor.start()
        await until(lambda: supervisor.counts["sweeps"] > 2)
        assert supervisor.counts["alerts:unknown_overdue"] == 0
        world.clock.advance(10_000)
        await until(lambda: supervisor.counts["overdue"] == 1)
        before = supervisor.counts["sweeps"]
        await until(lambda: supervisor.counts["sweeps"] > before + 2)
    await supervisor.close()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "laneway.alerts"]
    assert json.loads(line) == {
        "alert": "unknown_overdue",
        "submission_id": "sub_1",
        "conversation_id": "c",
        "queue_sequence": 1,
        "state": "unknown",
        "age_s": 10.0,
        "limit_s": 10.0,
    }
    assert supervisor.counts["alerts:unknown_overdue"] == 1


# --- the supervisor dies, a process is drained -----------------------------------------------------------------------


@pytest.mark.requirement("DUR-013", "DUR-014")
async def test_a_supervisor_that_dies_in_a_recovery_of_a_hundred_is_followed_by_one_that_finishes_it(
    world: World,
) -> None:
    """K24: all settle after the restart; each submission is recovered once an epoch."""
    gate = Gate()

    async def answer(request: Any) -> str:
        await gate.wait()
        return "done"

    lost = await world.process(agent_of(Script(answer)))
    receipts = [await lost.submit("go", conversation=f"c{number:03}") for number in range(100)]
    await gate.reached()
    await world.kill(lost)
    crew = LocalCrew(world)
    killed = a_supervisor(world, crew, sweep_rows=10)
    real = crew.activate

    async def last_act(member: Any, conversation_ids: list[str]) -> None:
        await real(member, conversation_ids)
        if len({name for _, names in crew.activated for name in names}) >= 50:
            killed._closed = True  # from here on it does nothing, and leaves nothing behind
            for task in killed._tasks:
                task.cancel()

    crew.activate = last_act  # type: ignore[method-assign]
    await killed.start()
    await until(lambda: killed._closed)
    await until(lambda: not killed._tasks)
    crew.activate = real  # type: ignore[method-assign]
    first = {name for _, names in crew.activated for name in names}
    assert 50 <= len(first) < 100
    following = a_supervisor(world, crew.for_another(), sweep_rows=10)
    await following.start()
    await until(lambda: all(world.row(receipt).settled for receipt in receipts))
    await following.close()
    await killed._store.close()
    for receipt in receipts:
        decided = [record for record in world.records(receipt.conversation_id) if isinstance(record, RecoveryDecided)]
        assert len(decided) == len({record.epoch for record in decided}) == 1
        assert world.row(receipt).attempts == 2
    assert world.converged().outcomes == {"completed": 100}


@pytest.mark.requirement("DUR-014")
async def test_a_drained_process_is_replaced_and_its_work_goes_on_elsewhere(world: World) -> None:
    gate = Gate()

    async def answer(request: Any) -> str:
        await gate.wait()
        return "done"

    crew = LocalCrew(world)
    crew.agent = agent_of(Script(answer))
    supervisor = a_supervisor(world, crew)
    await supervisor.start()
    member = await supervisor.locate("c")
    receipt = await crew.alive[member.name][1].submit("go")
    await gate.reached()
    real = crew.end

    async def end(ended: Any) -> None:
        assert (await supervisor.locate("c")).name != member.name
        assert member.name not in supervisor.loads()
        await real(ended)

    crew.end = end  # type: ignore[method-assign]
    assert await supervisor.drain(member.name, "ann")
    assert not await supervisor.drain(member.name, "ann")
    gate.open()
    await until(lambda: world.row(receipt).settled)
    await until(lambda: supervisor.counts["ended"] == 1)
    assert supervisor.counts["died"] == 0
    assert member.name not in {known.name for known in supervisor.members()}
    assert (await supervisor.locate("c")).name != member.name
    assert world.decisions() == []
    assert not await supervisor.drain("nobody", "ann")
    await supervisor.close()
    world.converged()
