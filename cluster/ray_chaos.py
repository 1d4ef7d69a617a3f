"""Carrying out a schedule of kills on a runtime on Ray: SIGKILL for processes that belong to it, and for no others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from typing import Any, Protocol

import ray

from ..actors.ray_calls import RAY_FAILURES, named_actors
from ..actors.supervisor_actor import MEMBER_PREFIX
from ..storage.errors import InvalidInput
from .chaos import ChaosPlan, Kind
from .ray_backend import SUPERVISOR_NAME
from .ray_stores import store_names

_ANSWER_S = 1.0  # one that is being started again has no process to kill: the kill is left out, and the next one comes


class Nodes(Protocol):
    """A cluster whose nodes may be killed."""

    def kill_node(self) -> None:
        """End one node with all of its processes, and start another one.

        It blocks, and Ray starts nodes from a program's main thread alone; a runtime's own calls go on meanwhile.
        """
        ...


class Chaos:
    """Kills what the plan says, while `run` is awaited. `kills` counts by kind what was really killed."""

    def __init__(self, namespace: str, plan: ChaosPlan, nodes: Nodes | None = None) -> None:
        if Kind.NODE in plan.kinds and nodes is None:
            raise InvalidInput(
                "nodes are killed only in a cluster of several nodes that this program has started itself",
                field="chaos",
            )
        self._namespace = namespace
        self._plan = plan
        self._nodes = nodes
        self.kills: Counter[Kind] = Counter()

    async def run(self) -> None:
        """Follow the plan to its end. A kill for which there is no process at that moment is left out."""
        clock = asyncio.get_running_loop().time
        began = clock()
        for kill in self._plan.kills():
            await asyncio.sleep(max(0.0, began + kill.at_s - clock()))
            if kill.kind is Kind.NODE:
                assert self._nodes is not None
                self._nodes.kill_node()
                self.kills[kill.kind] += 1
            elif (victim := kill.victim(await self._pids(kill.kind))) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    self.kills[kill.kind] += 1

    async def _pids(self, kind: Kind) -> list[int]:
        """The processes of that kind, asked one by one at this moment: neither store nor supervisor is needed."""
        match kind:
            case Kind.STORE:
                names = store_names(await asyncio.to_thread(named_actors, self._namespace))
                found = await asyncio.gather(*(self._ask(name, "pid") for name in names))
                return [pid for pid in found if pid is not None]
            case Kind.SUPERVISOR:
                pid = await self._ask(SUPERVISOR_NAME, "pid")
                return [] if pid is None else [pid]
            case _:
                names = await asyncio.to_thread(named_actors, self._namespace)
                members = sorted(name for name in names if name.startswith(MEMBER_PREFIX))
                found = await asyncio.gather(*(self._ask(name, "identity") for name in members))
                known = [answer for answer in found if answer is not None]
                busy = [pid for _, pid, resident in known if resident]
                return busy or [pid for _, pid, _ in known]

    async def _ask(self, name: str, method: str) -> Any:
        try:
            async with asyncio.timeout(_ANSWER_S):
                handle = await asyncio.to_thread(ray.get_actor, name, self._namespace)
                return await getattr(handle, method).remote()
        except (TimeoutError, ValueError, *RAY_FAILURES):
            return None
