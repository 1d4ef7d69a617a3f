"""Ray clusters: connecting to one, starting one for this program, or one that stays."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..storage.errors import RuntimeUnreachable

_OBJECT_STORE_BYTES = 128 << 20  # no payload of Laneway goes through it; Ray's floor is 75 MiB
_START_TIMEOUT_S = 60
_RAY_SWITCHES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Read by Ray when it is imported: no report leaves the machine, no notice about accelerators."""
_log = logging.getLogger("laneway.ray")


def connect_ray(address: str | None, runtime_env: dict[str, Any] | None) -> Callable[[], None]:
    """Connect this program to Ray, None for a cluster of its own; returns how to let go again.

    A program that is connected already stays as it is. Raises: RuntimeUnreachable.
    """
    for name, value in _RAY_SWITCHES.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        return lambda: None
    _keep_standard_output()
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if runtime_env:
        options["runtime_env"] = runtime_env
    if address is None:
        options |= {
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
        }
    try:
        ray.init(address="local" if address is None else address, **options)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        raise RuntimeUnreachable(
            f"no Ray cluster answers at {address or 'this machine'}: {str(error)[:300]}", address=address
        ) from error
    return ray.shutdown


def _keep_standard_output() -> None:
    """Ray prints what it hears of dying workers to standard output, which belongs to this program's own answers."""
    from ray._private import worker

    def to_log(data: dict[str, Any], *_: Any, **__: Any) -> None:
        for line in data.get("lines", ()):
            _log.debug("%s", line)

    if hasattr(worker, "print_worker_logs"):
        worker.print_worker_logs = to_log


def cluster_is_up(address: str = "auto") -> bool:
    """Whether a Ray cluster runs on this machine, as `ray status` sees it."""
    return _ray("status", "--address", address if address != "auto" else "127.0.0.1:6379").returncode == 0


def start_cluster(port: int = 6379) -> str:
    """Start a cluster of one node on loopback that stays when this program ends; its address.

    Raises: RuntimeUnreachable with what Ray said.
    """
    done = _ray(
        "start",
        "--head",
        "--node-ip-address=127.0.0.1",
        f"--port={port}",
        "--include-dashboard=false",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        "--disable-usage-stats",
    )
    if done.returncode != 0:
        raise RuntimeUnreachable(f"Ray did not start: {(done.stderr or done.stdout).strip()[-500:]}")
    return f"127.0.0.1:{port}"


def stop_cluster() -> None:
    """End the processes of Ray clusters that run on this machine under this user."""
    _ray("stop")


def _ray(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = Path(sysconfig.get_path("scripts")) / "ray"
    if not command.exists():
        command = Path(sys.executable).parent / "ray"
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.run(
        [str(command), *arguments],
        capture_output=True,
        text=True,
        timeout=_START_TIMEOUT_S,
        env=environment,
        check=False,
    )
