"""The supervisor without Ray: directory, deaths, the sweep; two of them; processes that do not start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lane_world import Gate, Script, Trouble, World, agent_of, until
from local_crew import LocalCrew, a_supervisor, control

from laneway.agents.authority import Act
from laneway.recovery.attention import attention
from laneway.storage.contract import ControlRow
from laneway.storage.errors import Refused
from laneway.storage.ledger import CLAIMABLE, State


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World("memory", tmp_path)
    yield world
    await world.close()


async def test_conversations_are_placed_and_stay_where_they_are(world: World) -> None:
    crew = LocalCrew(world)
    supervisor = a_supervisor(world, crew)
    await supervisor.start()
    first = await supervisor.locate("c1")
    second = await supervisor.locate("c2")
    assert first.name != second.name
    assert (await supervisor.locate("c1")).name == first.name
    for number in range(3, 9):
        await supervisor.locate(f"c{number}")
    assert sorted(supervisor.loads().values()) == [2, 3, 3]
    assert supervisor.counts["started"] == 3
    await supervisor.close()


@pytest.mark.requirement("DUR-006")
async def test_a_death_moves_open_work_to_a_live_process(world: World) -> None:
    crew = LocalCrew(world)
    supervisor = a_supervisor(world, crew)
    await supervisor.start()
    member = await supervisor.locate("c")
    _, process, _ = crew.alive[member.name]
    process.link.before_commit = None
    world.failpoints.hits.clear()
    receipt = await process.submit("go")
    await process.settled(receipt)
    # Work that the process owned when it died: admitted by another one, claimed by this one, never driven.
    from store_builders import Conversation

    held = Conversation(world.store, "c")
    held.submit("sub_held", text='{"content":"hi"}')
    held.claim(process.host.owner_id)
    crew.die(member.name)
    await until(lambda: world.row("sub_held").state is State.COMPLETED)
    assert supervisor.counts["died"] == 1
    assert member.owner_id not in world.store.owners()
    assert (await supervisor.locate("c")).name != member.name
    assert world.row("sub_held").epoch > 1
    assert world.decisions() == ["apply_input"]
    await supervisor.close()
    world.converged()


async def test_a_process_that_did_not_answer_a_new_supervisor_joins_later(world: World) -> None:
    """A process that its supervisor did not live to see start is no orphan: a later sweep takes it in."""
    crew = LocalCrew(world)
    first = a_supervisor(world, crew)
    await first.start()
    member = await first.locate("c")
    await first.close()
    later = crew.for_another()
    later.mute.add(member.name)
    second = a_supervisor(world, later, sweep_s=0.005)
    await second.start()
    assert member.name not in {found.name for found in second.members()}
    later.mute.clear()
    await until(lambda: member.name in {found.name for found in second.members()})
    crew.die(member.name)
    await until(lambda: second.counts["died"] == 1)
    await second.close()


async def test_a_new_supervisor_declares_whoever_is_not_there_dead_and_finds_the_others(world: World) -> None:
    crew = LocalCrew(world)
    first = a_supervisor(world, crew)
    await first.start()
    member = await first.locate("c")
    await crew.alive[member.name][1].run("go")
    await first.close()
    world.store.renew_lease("own_of_the_dead", 1_000_000)
    second = a_supervisor(world, crew.for_another())
    await second.start()
    assert "own_of_the_dead" not in world.store.owners()
    assert member.owner_id in world.store.owners()
    assert (await second.locate("c")).name == member.name
    await second.close()


@pytest.mark.requirement("DUR-006")
async def test_a_new_supervisor_leaves_a_slow_process_its_lease(world: World) -> None:
    """A live owner that does not answer is preempted when its lease is over, or its process gone, and never before."""
    crew = LocalCrew(world)
    first = a_supervisor(world, crew)
    await first.start()
    slow = await first.locate("c")
    await until(lambda: len(first.members()) == 2)
    (gone,) = [member for member in first.members() if member.name != slow.name]
    await first.close()
    for member in (slow, gone):
        world.store.renew_lease(member.owner_id, 1_000_000)
    later = crew.for_another()
    later.mute.update({slow.name, gone.name})
    crew.die(gone.name)
    second = a_supervisor(world, later, sweep_s=0.005)
    await second.start()
    assert slow.owner_id in world.store.owners()
    assert gone.owner_id not in world.store.owners()
    swept = second.counts["sweeps"]
    await until(lambda: second.counts["sweeps"] > swept + 2)
    assert slow.owner_id in world.store.owners()
    crew.alive[slow.name][1].link.cut = True  # nor does it renew its lease any more
    world.clock.now += 1_000_001
    await until(lambda: slow.owner_id not in world.store.owners())
    await second.close()


@pytest.mark.requirement("DUR-014")
async def test_a_process_whose_drain_its_supervisor_did_not_live_to_end_is_ended(world: World) -> None:
    gate = Gate()

    async def answer(request: Any) -> str:
        await gate.wait()
        return "done"

    crew = LocalCrew(world, agent=agent_of(Script(answer)))
    first = a_supervisor(world, crew)
    await first.start()
    member = await first.locate("c")
    process = crew.alive[member.name][1]
    receipt = await process.submit("go")
    await gate.reached()
    await first.close()
    await process.host.close()  # what it had asked for; its process is left behind
    assert process.host.stats()["draining"]
    assert not crew.alive[member.name][2].is_set()
    gate.open()
    second = a_supervisor(world, crew.for_another(), sweep_s=0.005)
    await second.start()
    await until(lambda: crew.alive[member.name][2].is_set())
    await until(lambda: member.name not in {found.name for found in second.members()})
    assert (second.counts["drained"], second.counts["ended"], second.counts["died"]) == (1, 1, 0)
    await until(lambda: world.row(receipt).settled)
    assert world.row(receipt).outcome == "completed"
    await second.close()
    world.converged()


@pytest.mark.requirement("DUR-017")
async def test_a_drain_needs_the_authority(world: World) -> None:
    """The check is asked in a process that answers, the one in question last; nobody drains where none answers."""

    def check(act: Act) -> bool:
        return act.author == "ann"

    crew = LocalCrew(world)
    supervisor = a_supervisor(world, crew)
    await supervisor.start()
    member = await supervisor.locate("c")
    await until(lambda: len(supervisor.members()) == 2)
    (other,) = [found for found in supervisor.members() if found.name != member.name]
    for _, process, _ in crew.alive.values():
        process.host._registry.authorize = check
    with pytest.raises(Refused) as caught:
        await supervisor.drain(member.name, "bob", "to see")
    assert (caught.value.code, caught.value.details["author"]) == ("not_authorised", "bob")
    ((name, act),) = crew.asked
    assert (name, act.action, act.details, act.reason) == (other.name, "drain", {"process": member.name}, "to see")
    crew.mute.update({member.name, other.name})
    with pytest.raises(Refused) as caught:
        await supervisor.drain(member.name, "ann")
    assert caught.value.code == "not_authorised"
    assert [name for name, _ in crew.asked[1:]] == [other.name, member.name]
    assert supervisor.counts["drained"] == 0
    crew.mute.discard(member.name)
    assert await supervisor.drain(member.name, "ann")
    assert supervisor.counts["drained"] == 1
    await supervisor.close()


async def test_a_silent_process_gets_no_conversations_until_it_renews_its_lease(world: World) -> None:
    """It may be stopped, and it may live: its work moves, and it is not ended."""
    crew = LocalCrew(world)
    supervisor = a_supervisor(world, crew, sweep_s=0.005)
    await supervisor.start()
    member = await supervisor.locate("c")
    await until(lambda: len(supervisor.loads()) == 2)
    world.store.retire_owner(member.owner_id)
    await until(lambda: supervisor.counts["silent"] == 1)
    assert member.name not in supervisor.loads()
    assert (await supervisor.locate("c")).name != member.name
    assert member.name in {known.name for known in supervisor.members()}
    world.store.renew_lease(member.owner_id, 1_000_000)
    await until(lambda: member.name in supervisor.loads())
    assert supervisor.counts["died"] == 0
    await supervisor.close()


@pytest.mark.requirement("DUR-012")
async def test_a_process_with_an_effect_that_cannot_be_ended_is_replaced(world: World) -> None:
    """F18: nothing that runs in it is interrupted; what is queued moves, and it is ended when it is at rest."""
    gate, other = Gate(), Gate()

    async def answer(request: Any) -> str:
        if request.conversation_id == "stuck" and request.queue_sequence == 1:
            while not gate._open.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await gate.wait()
        if request.conversation_id == "neighbour" and request.queue_sequence == 1:
            await other.wait()
        return "done"

    crew = LocalCrew(world, agent=agent_of(Script(answer)), abandon_after_s=0.01)
    supervisor = a_supervisor(world, crew, sweep_s=0.005, max_actors=1)
    await supervisor.start()
    member = await supervisor.locate("stuck")
    process = crew.alive[member.name][1]
    stuck = await process.submit("go", conversation="stuck")
    neighbour = await process.submit("go", conversation="neighbour")
    queued = await process.submit("later", conversation="neighbour")
    await gate.reached()
    await other.reached()
    await process.abort(stuck)
    await until(lambda: supervisor.counts["stained"] == 1)
    await until(lambda: world.row(stuck).state is State.ABORTED)  # its commit follows
    await until(lambda: process.host.stats()["retired"])
    assert (await supervisor.locate("stuck")).name != member.name
    assert world.row(neighbour).state is State.RUNNING
    assert supervisor.counts["replaced"] == 0
    other.open()
    await until(lambda: world.row(queued).settled)
    await until(lambda: supervisor.counts["died"] == 1)
    assert supervisor.counts["replaced"] == 1
    assert member.name not in {known.name for known in supervisor.members()}
    assert [world.row(receipt).attempts for receipt in (neighbour, queued)] == [1, 1]
    gate.open()
    await supervisor.close()
    world.converged()


async def test_two_supervisors_are_safe(world: World) -> None:
    """What they decide about ownership counts through the store's fence alone."""
    crew = LocalCrew(world)
    supervisors = [a_supervisor(world, crew, sweep_s=0.005) for _ in range(2)]
    for supervisor in supervisors:
        await supervisor.start()
    from store_builders import Conversation

    for number in range(10):
        Conversation(world.store, f"c{number}").submit(f"sub_{number}", text='{"content":"hi"}')
    await until(lambda: all(world.row(f"sub_{number}").settled for number in range(10)))
    for supervisor in supervisors:
        await supervisor.close()
    assert world.converged().outcomes == {"completed": 10}


async def test_an_outage_stops_no_sweep(world: World) -> None:
    """F2: nothing is lost and nothing is deleted; the sweep goes on when the store is back."""
    trouble = Trouble()
    crew = LocalCrew(world)
    supervisor = a_supervisor(world, crew, trouble, sweep_s=0.005)
    await supervisor.start()
    await supervisor.locate("c")
    trouble.down = True
    await until(lambda: trouble.lost > 2)
    from store_builders import Conversation

    for number in range(20):
        Conversation(world.store, f"c{number}").submit(f"sub_{number}", text='{"content":"hi"}')
    trouble.down = False
    await until(lambda: all(world.row(f"sub_{number}").settled for number in range(20)))
    assert {world.row(f"sub_{number}").attempts for number in range(20)} == {1}
    await supervisor.close()
    world.converged()


async def test_a_process_that_does_not_start_is_tried_again(world: World) -> None:
    crew = LocalCrew(world, failures=4)
    supervisor = a_supervisor(world, crew)
    await supervisor.start()
    async with asyncio.timeout(10):
        member = await supervisor.locate("c")
    assert member.name in crew.alive
    await supervisor.close()


# --- what needs somebody ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [state for state in State if state is not State.PROPOSED])
def test_which_heads_need_somebody(state: State) -> None:
    expected = ["c"] if state in {*CLAIMABLE, State.ADMITTED, State.JOINING, State.JOINED} else []
    assert attention([control(state)], 10)[0] == expected
    assert attention([control(state, owner_live=True)], 10)[0] == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([control(State.READY, not_before_ms=11)], []),
        ([control(State.READY, not_before_ms=10)], ["c"]),
        ([control(State.UNKNOWN), control(State.READY, 2)], []),
        ([control(State.UNKNOWN, parked=True), control(State.READY, 2)], ["c"]),
        ([control(State.RUNNING, owner_live=True), control(State.READY, 2)], []),
        ([control(State.SUSPENDED), control(State.READY, 2)], []),
        ([control(State.READY), control(State.READY, 2)], ["c"]),
        ([control(State.READY), control(State.READY, 1, "d")], ["c", "d"]),
        # an abort that was accepted settles wherever it stands
        ([control(State.UNKNOWN, abort_requested=True)], ["c"]),
        ([control(State.UNKNOWN), control(State.READY, 2, abort_requested=True)], ["c"]),
        ([control(State.RUNNING, owner_live=True), control(State.READY, 2, abort_requested=True)], ["c"]),
        # and of one that runs, its owner is told
        ([control(State.RUNNING, owner_live=True, abort_requested=True)], ["c"]),
        ([control(State.TERMINALIZING, owner_live=True, abort_requested=True)], []),
    ],
)
def test_which_lanes_need_somebody(rows: list[ControlRow], expected: list[str]) -> None:
    assert attention(rows, 10)[0] == expected
