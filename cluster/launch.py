"""How a program gets a runtime: `start` one on Ray, `connect` to one, or have one `local` to the process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..agents.agent import Agent
from ..agents.authority import Authorize
from ..storage.failpoints import NO_FAILPOINTS, Failpoints
from ..storage.open_store import open_store
from .local import LocalBackend
from .runtime import Runtime
from .settings import NAMESPACE_DEFAULT, STORE_DEFAULT, load_settings


def local(
    agents: Sequence[Agent] | Agent,
    store: str | Path | None = None,
    *,
    authorize: Authorize | None = None,
    failpoints: Failpoints = NO_FAILPOINTS,
    **settings: Any,
) -> Runtime:
    """The same surface in this process, without Ray: for unit tests, notebooks and small programs.

    `store` is the path of a DuckDB file (class DR/duckdb), or None for memory (class E, which answers no SQL). Open
    work in the file goes on. `settings` are those of the README's Limits and the runbook's Settings, such as
    `sweep_s=1.0`. `authorize(act)` says who may approve, resolve, abort and so on (`laneway.Act`); without it
    everybody may.
    Raises: InvalidInput; StoreBusy when another process has the file.
    """
    chosen = load_settings(**settings)
    opened = open_store(store, shards=chosen.shards, limits=chosen.lane_settings().limits, failpoints=failpoints)
    try:
        backend = LocalBackend(
            _listed(agents),
            opened,
            chosen.lane_settings(),
            failpoints,
            sweep_s=chosen.sweep_s,
            authorize=authorize,
            alerts=chosen.alert_settings(),
        )
        return Runtime(backend, owns=True)
    except BaseException:
        opened.close()
        raise


def start(
    agents: Sequence[Agent] | Agent,
    store: str | Path = STORE_DEFAULT,
    *,
    address: str | None = None,
    namespace: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    authorize: Authorize | None = None,
    **settings: Any,
) -> Runtime:
    """Start a runtime on Ray, class DR/duckdb: a local cluster by default, or the one at `address`.

    `store` is a path on the node that this program runs on; with `shards=4` its four files lie beside it. `runtime_env`
    reaches Ray's workers. `authorize` and `settings` are as for `local`. Leaving the context manager ends the runtime,
    and a cluster that was started for it.
    Raises: InvalidInput, with code "shards_differ" for a store that was made with another number of them;
    RuntimeUnreachable when no cluster answers at `address`; StoreBusy.
    """
    from .ray_cluster import connect_ray

    chosen = load_settings(namespace=namespace, **settings)
    release = connect_ray(address, runtime_env)
    try:
        from .ray_backend import RayBackend

        backend = RayBackend.launching(_listed(agents), Path(store).resolve(), chosen, authorize)
        return Runtime(backend, owns=True, on_stop=release)
    except BaseException:
        release()
        raise


def connect(address: str = "auto", *, namespace: str | None = None) -> Runtime:
    """Reach a runtime that is up: `address` is "auto", "host:port" or "ray://host:port".

    Raises: RuntimeUnreachable when no cluster or no runtime answers there.
    """
    from .ray_cluster import connect_ray

    chosen = load_settings(namespace=namespace)
    release = connect_ray(address, None)
    try:
        from .ray_backend import RayBackend

        return Runtime(RayBackend.joining(chosen.namespace or NAMESPACE_DEFAULT), owns=False, on_stop=release)
    except BaseException:
        release()
        raise


def _listed(agents: Sequence[Agent] | Agent) -> list[Agent]:
    return [agents] if isinstance(agents, Agent) else list(agents)
