"""LangGraph: a graph of three nodes and its SQLite saver; a thread for each conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict

import aiosqlite
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from . import workload
from .servers import Servers, confirmed

NODES = ("ask", "look_up", "answer")


class State(TypedDict):
    """The messages of one turn. Those of earlier turns are left out, in LangGraph's favour: it would save them again
    with each checkpoint."""

    messages: list[dict[str, Any]]


async def model(state: State) -> State:
    return {"messages": [*state["messages"], workload.model(state["messages"])]}


async def look_up(state: State) -> State:
    result = {"role": "tool", "tool_call_id": "call_1", "content": workload.look_up("x")}
    return {"messages": [*state["messages"], result]}


def graph(saver: AsyncSqliteSaver) -> Any:
    builder = StateGraph(State)
    for name, node in zip(NODES, (model, look_up, model), strict=True):
        builder.add_node(name, node)
    for source, target in zip((START, *NODES), (*NODES, END), strict=True):
        builder.add_edge(source, target)
    return builder.compile(checkpointer=saver)


class LangGraphPeer:
    def __init__(self, connection: aiosqlite.Connection, saver: AsyncSqliteSaver) -> None:
        self._connection = connection
        self._graph = graph(saver)

    async def turn(self, conversation: str, text: str) -> str:
        # "sync": a checkpoint is committed before the next node runs.
        state = await self._graph.ainvoke(
            {"messages": [{"role": "user", "content": text}]},
            {"configurable": {"thread_id": conversation}},
            durability="sync",
        )
        return state["messages"][-1]["content"]

    async def settled(self) -> int:
        counts = {
            node: int(
                await self._one(
                    f"SELECT count(*) FROM writes WHERE channel = 'messages' AND task_path LIKE '%pregel_pull, {node}'"
                )
            )
            for node in NODES
        }
        if len(set(counts.values())) != 1:
            raise RuntimeError(f"the nodes did not write equally often: {counts}")
        return counts["answer"]

    async def store(self) -> dict[str, str]:
        asked = {name: await self._one(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")}
        wanted = {"journal_mode": "wal", "synchronous": "2"}  # 2 is FULL
        return {"version": await self._one("SELECT sqlite_version()")} | confirmed(asked, wanted)

    async def _one(self, statement: str) -> str:
        async with self._connection.execute(statement) as cursor:
            row = await cursor.fetchone()
        assert row is not None
        return str(row[0])


@asynccontextmanager
async def sqlite(folder: Path, servers: Servers) -> AsyncIterator[LangGraphPeer]:
    async with aiosqlite.connect(folder / "langgraph.sqlite") as connection:
        await connection.execute("PRAGMA journal_mode=WAL")
        await connection.execute("PRAGMA synchronous=FULL")
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        yield LangGraphPeer(connection, saver)
