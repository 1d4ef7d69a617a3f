"""A Ray cluster of one node that outlives the command that started it, and the one cluster that is ended again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from ..storage.errors import RuntimeUnreachable

_PORT_DEFAULT = 6379
_OBJECT_STORE_BYTES = 128 << 20  # no payload of Laneway goes through it; Ray's floor is 75 MiB
_START_S = 60.0
_STOP_S = 20.0
_STARTED = "Ray runtime started"
_LOG_BYTES_SHOWN = 500
_AUTH_MODE = "RAY_AUTH_MODE"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that was started here: `pid` is of the process that all of its others end with."""

    address: str
    pid: int


def standing_cluster() -> str | None:
    """The address of a cluster on this machine that somebody has started with `ray start`, if one answers.

    Clusters of single programs, which end with them, do not count.
    """
    named = os.environ.get("RAY_ADDRESS")
    if named:
        return named
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray"
    try:
        address = (folder / "ray_current_cluster").read_text().strip()
    except OSError:
        return None
    return address if answers(address) else None


def answers(address: str) -> bool:
    """Whether something listens at "host:port"."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=1.0):
            return True
    except (OSError, ValueError):
        return False


def resolved(address: str) -> str:
    """The "host:port" or "ray://host:port" that `address` means, once somebody listens there; "auto" looks around.

    Ray itself would wait for minutes where nobody does. For a cluster on this machine, the token of this user is used,
    if there is one and nothing else was asked for. Raises: RuntimeUnreachable.
    """
    if address == "auto":
        address = standing_cluster() or _only_cluster()
    place = address.removeprefix("ray://")
    if not answers(place):
        raise RuntimeUnreachable(f"no Ray cluster answers at {address}", address=address)
    if _AUTH_MODE not in os.environ and _is_here(place.rpartition(":")[0]) and _has_token():
        _use_token()
    return address


def _use_token() -> None:
    """Ask Ray for its token mode, as it does by itself for "auto"; it has read the environment if it is loaded."""
    os.environ[_AUTH_MODE] = "token"
    if "ray" in sys.modules:
        from ray._raylet import Config  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]

        Config.initialize("")


def _only_cluster() -> str:
    """The one Ray cluster that runs here, even if it belongs to another program and ends with it."""
    from ray._private.services import find_gcs_addresses

    found = sorted(address for address in find_gcs_addresses() if answers(address))
    if len(found) != 1:
        which = (
            f"several Ray clusters run here: name one of {', '.join(found)}" if found else "no Ray cluster runs here"
        )
        raise RuntimeUnreachable(which, address="auto")
    return found[0]


def start_head(log: Path) -> Head:
    """Start a cluster of one node, without a dashboard and closed by this user's token; what Ray says goes into `log`.

    Raises: RuntimeUnreachable with the end of what Ray said.
    """
    if _AUTH_MODE not in os.environ and not _has_token():
        subprocess.run([*_ray_command(), "get-auth-token", "--generate"], capture_output=True, timeout=60, check=False)
    port = _free_port()
    command = [
        *_ray_command(),
        "start",
        "--head",
        "--block",
        f"--port={port}",
        "--include-dashboard=false",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        "--disable-usage-stats",
    ]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal that started it does not end it
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"},
        )
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        if _STARTED in _said(log) and answers(f"127.0.0.1:{port}"):
            process.returncode = 0  # it is left behind on purpose
            standing = standing_cluster() or ""
            known = standing if standing.endswith(f":{port}") else f"127.0.0.1:{port}"
            return Head(address=known, pid=process.pid)
        time.sleep(0.1)
    if process.poll() is None:
        stop_head(process.pid)
    raise RuntimeUnreachable(f"Ray did not start: {_said(log).strip()[-_LOG_BYTES_SHOWN:]} (all of it is in {log})")


def stop_head(pid: int) -> bool:
    """End the cluster whose first process is `pid`; False when that process is gone, or is another program by now."""
    if not _is_head(pid):
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + _STOP_S
        while time.monotonic() < deadline:
            if not _is_head(pid):
                return True
            time.sleep(0.05)
    return False


def _is_here(host: str) -> bool:
    """Whether `host` is this machine: only then can a socket be bound to it."""
    try:
        with socket.create_server((host, 0)):
            return True
    except OSError:
        return False


def _has_token() -> bool:
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return True
    return (Path.home() / ".ray" / "auth_token").exists()


def _is_head(pid: int) -> bool:
    shown = subprocess.run(
        ["ps", "-o", "stat=,args=", "-p", str(pid)], capture_output=True, text=True, timeout=10, check=False
    ).stdout
    state, _, arguments = shown.strip().partition(" ")
    return not state.startswith("Z") and "--head" in arguments and "--block" in arguments


def _free_port() -> int:
    for port in (_PORT_DEFAULT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise RuntimeUnreachable("no port on 127.0.0.1 can be opened")


def _ray_command() -> list[str]:
    script = Path(sys.executable).parent / "ray"
    return [str(script)] if script.exists() else [sys.executable, "-m", "ray.scripts.scripts"]


def _said(log: Path) -> str:
    return log.read_text(errors="replace")
