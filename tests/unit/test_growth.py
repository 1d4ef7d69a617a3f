"""What activation and a warm turn cost, in work: it must not grow with the history (F20)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lane_world import Process, Script, World, agent_of

from laneway.agents import Compaction
from laneway.benchmarks.history import grow
from laneway.storage import duckdb_reads
from laneway.storage.duckdb_store import DuckDBStore

SIZES = (100, 100_000)
COSTS = ("pages_read", "batches_read", "records_read", "log_bytes_read", "checkpoint_bytes_read")
COMPACTED = Compaction(after_messages=40, keep_messages=20)


class CountingCursor:
    """Counts the rows and the characters that a read takes out of the database."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.statements = self.rows = self.characters = 0

    def execute(self, query: str, parameters: Mapping[str, Any], /) -> CountingCursor:
        self.statements += 1
        self._cursor.execute(query, parameters)
        return self

    def fetchall(self) -> list[tuple[Any, ...]]:
        found = self._cursor.fetchall()
        self.rows += len(found)
        self.characters += sum(len(value) for row in found for value in row if isinstance(value, str))
        return found

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._cursor.fetchone()


def header_cost(store: DuckDBStore) -> dict[str, int]:
    with store._reading() as cursor:
        counting = CountingCursor(cursor)
        found = duckdb_reads.residents(counting, ["c"])["c"]
    assert found.header.tail_sequence > 0
    return {"statements": counting.statements, "rows": counting.rows, "characters": counting.characters}


async def work_of(process: Process, turn: Any) -> dict[str, int]:
    """What the process reads, writes and sends to the model while `turn` runs."""
    counts, reads, units = Counter(process.host.stats()), process.link.reads.copy(), len(process.link.units)
    await turn
    await process.at_rest()
    after = process.host.stats()
    calls = process.link.reads - reads
    return {
        **{name: after.get(name, 0) - counts.get(name, 0) for name in COSTS},
        "units": len(process.link.units) - units,
        "commands": sum(len(unit.commands) for unit in process.link.units[units:]),
        "read_log": calls["read_log"],
        "reads": sum(number for name, number in calls.items() if name not in ("renew_lease", "lookup")),
    }


async def costs(folder: Path, records: int, compaction: Compaction | None) -> dict[str, dict[str, int]]:
    """What a conversation costs that has `records` records and was checkpointed by the process before."""
    world = World("duckdb", folder)
    assert isinstance(world.store, DuckDBStore)
    assert grow(world.store, "c", records) >= records
    script = Script("done")
    agent = agent_of(script, compaction=compaction)
    first = await world.process(agent)
    assert (await first.run("hello")).outcome == "completed"
    assert first.host.stats()["checkpoint_made"] == 1
    await first.at_rest()
    await world.kill(first)
    assert isinstance(world.store, DuckDBStore)
    found = {"header": header_cost(world.store)}
    second = await world.process(agent)
    found["wake"] = await work_of(second, second.host.activate(["c"]))
    await world.kill(second)
    third = await world.process(agent)
    found["activation"] = await work_of(third, third.run("again"))
    assert third.host.stats()["checkpoint_loaded"] == 1
    assert "checkpoint_rejected" not in third.host.stats()
    before = len(script.requests)
    found["warm"] = await work_of(third, third.run("and again"))
    found["warm"]["messages"] = len(script.requests[before].messages)
    if records <= 1_000:  # the same builder, and the check takes its time
        world.converged()
    await world.close()
    return found


async def test_activation_and_a_warm_turn_cost_at_100000_records_what_they_cost_at_100(tmp_path: Path) -> None:
    """F20: pages, batches, records and bytes that are read, statements and rows behind a header, and the prompt."""
    small, large = [await costs(tmp_path / str(records), records, COMPACTED) for records in SIZES]
    assert small.keys() == large.keys()
    for what, figures in small.items():
        for name, figure in figures.items():
            assert large[what][name] <= 1.5 * figure, (what, name, figure, large[what][name])
    assert small["warm"]["records_read"] == large["warm"]["records_read"] == 0
    assert large["activation"]["records_read"] < 500
    assert large["warm"]["units"] == 2  # admission to run start, then the response to the settlement


async def test_an_uncompacted_conversation_is_activated_by_its_checkpoint_too(tmp_path: Path) -> None:
    """F20: its prompt holds everything and is read when a model call is due, not before."""
    small, large = [await costs(tmp_path / str(records), records, None) for records in (100, 10_000)]
    for what in ("header", "wake"):
        for name, figure in small[what].items():
            assert large[what][name] <= 1.5 * figure, (what, name, figure, large[what][name])
    assert large["wake"]["records_read"] < 100
    assert large["activation"]["records_read"] > 10_000  # the prompt, once
    assert large["warm"]["records_read"] == 0
