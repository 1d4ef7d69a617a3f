"""Connecting this program to Ray: to a cluster of its own, or to one that is up."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from ..storage.errors import RuntimeUnreachable

OBJECT_STORE_BYTES = 128 << 20  # no payload of Laneway goes through it; Ray's floor is 75 MiB
_RAY_SWITCHES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Read by Ray when it is imported: no report leaves the machine, no notice about accelerators."""
_log = logging.getLogger("laneway.ray")


def connect_ray(address: str | None, runtime_env: dict[str, Any] | None) -> Callable[[], None]:
    """Connect this program to Ray, None for a cluster of its own; returns how to let go again.

    A program that is connected already stays as it is. Raises: RuntimeUnreachable.
    """
    prepare_ray()
    import ray

    if ray.is_initialized():
        return lambda: None
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if runtime_env:
        options["runtime_env"] = runtime_env
    if address is None:
        options |= {
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
        }
    from .ray_head import resolved

    chosen = "local" if address is None else resolved(address)
    try:
        ray.init(address=chosen, **options)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise RuntimeUnreachable(
            f"no Ray cluster answers at {address or 'this machine'}: {str(error)[:300]}", address=address
        ) from error
    return ray.shutdown


def prepare_ray() -> None:
    """Before anything else of Ray is used: no reports, and standard output stays this program's own."""
    for name, value in _RAY_SWITCHES.items():
        os.environ.setdefault(name, value)
    _keep_standard_output()


def _keep_standard_output() -> None:
    """Ray prints what it hears of dying workers to standard output, which belongs to this program's own answers."""
    from ray._private import worker

    def to_log(data: dict[str, Any], *_: Any, **__: Any) -> None:
        for line in data.get("lines", ()):
            _log.debug("%s", line)

    if hasattr(worker, "print_worker_logs"):
        worker.print_worker_logs = to_log
