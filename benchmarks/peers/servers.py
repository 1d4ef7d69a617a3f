"""Processes that a peer starts. Their ids stand in a file, so that they are ended even when the peer was killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

END_S_MAX = 10.0


class Servers:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, pid: int) -> None:
        with (self._folder / "pids").open("a") as file:
            file.write(f"{pid}\n")

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.note(process.pid)
        return process

    def end_noted(self) -> None:
        """End what is noted and still runs, each by its id."""
        noted = self._folder / "pids"
        for line in reversed(noted.read_text().split() if noted.exists() else []):
            end(int(line))


def end(pid: int) -> None:
    """Ask the process to end, which is SIGINT to every server here, and kill it when it does not."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if not running(pid):
            return
        os.kill(pid, number)
        deadline = time.monotonic() + END_S_MAX
        while running(pid) and time.monotonic() < deadline:
            time.sleep(0.02)


def running(pid: int) -> bool:
    """Whether the process is there, and is not a dead one that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface; all are held until all are found."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def confirmed(asked: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
    """The settings, when they are as wanted."""
    if asked != wanted:
        raise RuntimeError(f"the store is set to {asked}, not to {wanted}")
    return asked
