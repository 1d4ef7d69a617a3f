"""Restate: its server, a service of its Python SDK in processes of its own, and calls through its ingress."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from . import workload
from .servers import Servers, confirmed, end, free_ports

STARTUP_S_MAX = 60.0
CPUS = os.cpu_count() or 1
CONFIGURATION = """
bind-address = "127.0.0.1:{node}"
advertised-address = "http://127.0.0.1:{node}"
listen-mode = "tcp"
disable-telemetry = true
log-filter = "warn"
# With this and the workers below it did more turns than with its defaults (24 partitions, one worker), in one try each.
default-num-partitions = {partitions}
[admin]
bind-address = "127.0.0.1:{admin}"
[ingress]
bind-address = "127.0.0.1:{ingress}"
"""


def installed() -> Path | None:
    """The server's program, where `make bench-peers` puts it."""
    found = sorted((Path(sys.prefix) / "node" / "node_modules" / "@restatedev").glob("*/bin/restate-server"))
    return found[0] if found else None


def effective(command: list[str]) -> dict[str, Any]:
    """The settings that the server runs with, its defaults included."""
    dumped = subprocess.run([*command, "--dump-config"], check=True, capture_output=True, text=True, timeout=30)
    return tomllib.loads(dumped.stdout)


class RestatePeer:
    def __init__(self, client: aiohttp.ClientSession, ports: dict[str, int], settings: dict[str, Any]) -> None:
        self._client = client
        self._ingress = f"http://127.0.0.1:{ports['ingress']}"
        self._admin = f"http://127.0.0.1:{ports['admin']}"
        self._service = f"http://127.0.0.1:{ports['service']}"
        self._settings = settings

    async def register(self) -> None:
        await self._post(f"{self._admin}/deployments", {"uri": self._service})

    async def turn(self, conversation: str, text: str) -> str:
        return await self._post(f"{self._ingress}/Conversation/{conversation}/turn", text)

    async def settled(self) -> int:
        """The server keeps finished invocations for a day, its default."""
        statement = "SELECT count(*) AS turns FROM sys_invocation WHERE completion_result = 'success'"
        return (await self._post(f"{self._admin}/query", {"query": statement}))["rows"][0]["turns"]

    async def store(self) -> dict[str, str]:
        async with self._client.get(f"{self._admin}/version") as response:
            version = (await response.json())["version"]
        asked = {
            "default-provider": self._settings["bifrost"]["default-provider"],
            "rocksdb-disable-wal-fsync": str(self._settings["log-server"]["rocksdb-disable-wal-fsync"]),
        }
        return {"version": version} | confirmed(
            asked, {"default-provider": "replicated", "rocksdb-disable-wal-fsync": "False"}
        )

    async def _post(self, url: str, body: Any) -> Any:
        async with self._client.post(url, json=body, headers={"accept": "application/json"}) as response:
            response.raise_for_status()
            return await response.json()


async def until(once: Callable[[], Awaitable[Any]]) -> None:
    """Try until it works: the server needs a few seconds until it listens and leads its partitions."""
    deadline = time.monotonic() + STARTUP_S_MAX
    while True:
        try:
            await once()
            return
        except aiohttp.ClientError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


@asynccontextmanager
async def restate(folder: Path, servers: Servers) -> AsyncIterator[RestatePeer]:
    program = installed()
    assert program is not None
    ports = dict(zip(("node", "admin", "ingress", "service"), free_ports(4), strict=True))
    configuration = folder / "restate.toml"
    configuration.write_text(CONFIGURATION.format(**ports, partitions=2 * CPUS))
    command = [str(program), "--no-logo", "--config-file", str(configuration), "--base-dir", str(folder / "restate")]
    settings = effective(command)
    server = servers.start("restate", command)
    # A worker a core, with uvloop: see the partitions above.
    workers = ["--workers", str(CPUS), "--worker-class", "uvloop", "--bind", f"127.0.0.1:{ports['service']}"]
    service = servers.start(
        "service", [sys.executable, "-P", "-m", "hypercorn", *workers, f"{__package__}.restate_service:app"]
    )
    try:
        connections = aiohttp.TCPConnector(limit=workload.CONCURRENCY_MAX)
        async with aiohttp.ClientSession(connector=connections) as client:
            peer = RestatePeer(client, ports, settings)
            await until(peer.register)
            await until(peer.settled)
            yield peer
    finally:
        for process in (service, server):
            end(process.pid)
