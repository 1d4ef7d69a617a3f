"""One seed from its beginning to its end: first whatever may go wrong, then calm, and everything must be settled."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from simulation.approvers import Approver
from simulation.loop import SimulationLoop, Stuck
from simulation.promises import Violation
from simulation.users import Operator, users_of
from simulation.world import LogWatch, World, child_of

from laneway.recovery.convergence import check_conversation
from laneway.storage.ids import IdSource, ids_from

DUCKDB_EVERY = 100  # one seed in so many keeps its store in a file: it costs twenty times as much
_TROUBLE_S = 60.0
_LIVENESS_S = 600.0  # virtual; leases, backoffs and the waits of several submissions one behind another
_ANSWERED_S = 60.0


@dataclass
class Outcome:
    """What became of a seed: its digest, what it reached, and the promise that it broke, if any."""

    seed: int
    digest: str = ""
    steps: int = 0
    submissions: int = 0
    reached: Counter[str] = field(default_factory=Counter[str])
    violation: str | None = None


def run_seed(seed: int, listener: Callable[[str], None] | None = None) -> Outcome:
    """Run one seed; the same seed gives the same outcome. `listener` is told what happens, line by line."""
    folder = Path(tempfile.mkdtemp(prefix="simulation-")) if seed % DUCKDB_EVERY == 0 else None
    loop = SimulationLoop(child_of(seed, "loop"))
    ids = child_of(seed, "ids")
    source = IdSource(random_bytes=ids.randbytes, now_ms=lambda: int(loop.time() * 1000))
    logger, before = logging.getLogger("laneway"), random.getstate()
    random.seed(seed)
    gc_was_on = gc.isenabled()
    gc.disable()  # a coroutine that the collector closes would run its cleanup inside of this seed
    outcome = Outcome(seed)
    worlds: list[World] = []
    watch: LogWatch | None = None
    try:
        with ids_from(source):

            async def main() -> None:
                nonlocal watch
                world = World(seed, loop, folder, listener)
                worlds.append(world)
                watch = LogWatch(world)
                logger.addHandler(watch)
                await _live(world, seed)

            loop.run(main())
    except (Violation, Stuck) as violation:
        outcome.violation = f"{type(violation).__name__}: {violation}"
    except Exception as error:  # of the runtime or of the simulation itself: either way the seed has found something
        outcome.violation = "".join(traceback.format_exception(error)[-6:])
    finally:
        if watch is not None:
            logger.removeHandler(watch)
        random.setstate(before)
        for world in worlds:
            world.store.store.close()
        if folder is not None:
            shutil.rmtree(folder)
        if gc_was_on:
            gc.enable()
    world = worlds[0]
    outcome.digest, outcome.steps, outcome.reached = world.digest(), loop.steps, world.reached
    outcome.submissions = sum(len(world.auditor.rows(name)) for name in world.auditor.conversations())
    return outcome


async def _live(world: World, seed: int) -> None:
    chance = child_of(seed, "phases")
    users = users_of(world, seed)
    operator, approver = Operator(world, seed), Approver(world, seed)
    works = (world.break_things(), world.keep_supervisor(), operator.work(), approver.work())
    background = [asyncio.ensure_future(work) for work in works]
    acting = [asyncio.ensure_future(user.act(chance.randint(2, 6))) for user in users]
    await asyncio.wait(acting, timeout=_TROUBLE_S)
    await asyncio.sleep(chance.choice((0.0, 1.0, 10.0)))
    world.calm_down()
    approver.thorough = True
    operator.on_duty = operator.thorough = chance.random() < 0.8
    await asyncio.gather(*acting)
    await _settled(world)
    for user in users:
        for message in user.accepted():
            row = world.store.store.lookup(message.receipt.submission_id) if message.receipt else None
            if row is not None and row.settled:
                await user.told(message, _ANSWERED_S)
    check_all(world)
    for task in background:
        task.cancel()


async def _settled(world: World) -> None:
    """Liveness: with nothing in its way, all that is owed comes to its end, or waits for a person."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _LIVENESS_S
    while owed := world.auditor.still_open():
        if loop.time() > deadline:
            states = ", ".join(f"{row.submission_id} is {row.state}" for row in owed)
            raise Violation(f"{_LIVENESS_S:.0f} s of calm were not enough: {states}")
        await asyncio.sleep(1.0)


def check_all(world: World) -> None:
    """The convergence check over the whole store, as `verify` does it."""
    for conversation_id in world.auditor.conversations():
        rows = world.store.store.list_rows(conversation_id, limit=1_000_000)
        batches = world.store.store.read_log(conversation_id, 0, 1_000_000).batches
        _, problems = check_conversation(rows, batches, require_settled=False)
        if problems:
            raise Violation(f"the convergence check: {problems}")
