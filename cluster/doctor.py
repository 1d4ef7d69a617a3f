"""What has to be right on a machine for Laneway to run there: checks that say what to do."""

from __future__ import annotations

import enum
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..storage.errors import InvalidInput, LanewayError, StoreBusy

if TYPE_CHECKING:
    from .backend import Description

_GIB = 1 << 30
_MIB = 1 << 20
_DISK_NEEDED = 256 * _MIB  # the store refuses admission below 64 MiB; Ray writes logs beside it
_DISK_GOOD = 2 * _GIB
_SHARED_GOOD = 192 * _MIB  # the object store of 128 MiB, and what Ray adds
_MEMORY_NEEDED = 512 * _MIB
_MEMORY_GOOD = 2 * _GIB  # six processes of about 70 MB, Ray's own, the object store
_SOCKET_PATH_MAX = 107  # of AF_UNIX; Ray adds about 70 characters to its folder
_RAY_PATH_ADDED = 70
_PYTHON_MIN = (3, 11)


class Verdict(enum.StrEnum):
    """`failed` would stop `laneway demo`; a `warning` may surprise later."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at; `advice` says what to do about it."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def examine(namespace: str, store: Path | None, folder: Path) -> Iterator[Check]:
    """All checks, for a runtime of `namespace` that keeps its store in `folder` or at `store`."""
    yield _python()
    yield from _packages()
    yield _disk("disk space", folder)
    yield _disk("disk space for Ray", _ray_folder())
    yield _writable(folder)
    yield _socket_path()
    yield _loopback()
    yield _shared_memory()
    yield _memory()
    yield _ray_imports()
    yield from _runtime(namespace)
    yield _store(store, folder)


def _check(name: str, verdict: Verdict, found: str, advice: str = "") -> Check:
    return Check(name=name, verdict=verdict, found=found, advice="" if verdict is Verdict.OK else advice)


def _python() -> Check:
    good = sys.version_info >= _PYTHON_MIN
    verdict = Verdict.OK if good else Verdict.FAILED
    return _check("python", verdict, f"{platform.python_version()} on {platform.system()}", "use Python 3.11 or newer")


def _packages() -> Iterator[Check]:
    for requirement, wanted in _requirements():
        try:
            version = metadata.version(requirement)
        except metadata.PackageNotFoundError:
            yield _check(f"package {requirement}", Verdict.FAILED, "not installed", f"pip install '{requirement}'")
            continue
        good = wanted(version)
        advice = "install Laneway again: pip install --upgrade laneway"
        yield _check(f"package {requirement}", Verdict.OK if good else Verdict.FAILED, version, advice)


def _requirements() -> Iterator[tuple[str, Callable[[str], bool]]]:
    """What the installed distribution needs by itself, and whether a version is within its range."""
    from packaging.requirements import Requirement

    for text in metadata.requires("laneway") or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name, lambda version, spec=requirement.specifier: spec.contains(version, prereleases=True)


def _disk(name: str, folder: Path) -> Check:
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    free = shutil.disk_usage(existing).free
    verdict = _graded(free, _DISK_NEEDED, _DISK_GOOD)
    return _check(name, verdict, f"{_size(free)} free for {folder}", f"have {_size(_DISK_GOOD)} or more free there")


def _ray_folder() -> Path:
    return Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray"


def _writable(folder: Path) -> Check:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return _check("current folder", Verdict.OK, f"{folder} can be written")
    except OSError as error:
        advice = "change to a folder that can be written, or pass --store PATH"
        return _check("current folder", Verdict.FAILED, f"{folder}: {error.strerror}", advice)


def _socket_path() -> Check:
    folder = _ray_folder()
    length = len(str(folder)) + _RAY_PATH_ADDED
    verdict = Verdict.OK if length <= _SOCKET_PATH_MAX else Verdict.FAILED
    return _check("folder of Ray", verdict, str(folder), "name a shorter folder with RAY_TMPDIR: sockets live in it")


def _loopback() -> Check:
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return _check("loopback", Verdict.OK, "127.0.0.1 takes connections")
    except OSError as error:
        return _check("loopback", Verdict.FAILED, str(error.strerror), "Ray needs ports on 127.0.0.1: allow them")


def _shared_memory() -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return _check("shared memory", Verdict.OK, "no /dev/shm; Ray uses its folder")
    free = shutil.disk_usage(folder).free
    advice = "in a container, raise --shm-size to 256m; else Ray falls back to a slower folder"
    verdict = Verdict.OK if free >= _SHARED_GOOD else Verdict.WARNING
    return _check("shared memory", verdict, f"{_size(free)} free in {folder}", advice)


def _memory() -> Check:
    free = _memory_free()
    if free is None:
        return _check("memory", Verdict.OK, "this system does not say")
    advice = f"free memory first, or pass --max-actors 1; {_size(_MEMORY_GOOD)} are comfortable"
    return _check("memory", _graded(free, _MEMORY_NEEDED, _MEMORY_GOOD), f"{_size(free)} free", advice)


def _memory_free() -> int | None:
    """What is free for this process: of the machine, or of its container where that has less."""
    free: int | None = None
    for line in _lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    for most, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, current = ("".join(_lines(Path(name))).strip() for name in (most, used))
        if free is not None and limit.isdigit() and current.isdigit():
            free = min(free, int(limit) - int(current))
    return free


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _ray_imports() -> Check:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except Exception as error:  # whatever a broken installation raises
        return _check("ray", Verdict.FAILED, f"{type(error).__name__}: {error}", "install Laneway again")
    return _check("ray", Verdict.OK, f"{ray.__version__} imports")


def _runtime(namespace: str) -> Iterator[Check]:
    from . import ray_head, runtime_file
    from .launch import connect

    name = f"runtime {namespace}"
    try:
        remembered = runtime_file.load(namespace)
    except InvalidInput as error:
        yield _check(name, Verdict.WARNING, error.message, "remove that file")
        return
    address = remembered.address if remembered else ray_head.standing_cluster()
    if address is None:
        yield _check(name, Verdict.OK, "none is up, and no Ray cluster; `laneway demo` starts its own")
        return
    try:
        with connect(address, namespace=namespace) as runtime:
            found = runtime.describe()
    except LanewayError as error:
        if remembered is None:
            yield _check(name, Verdict.OK, f"none is up; a Ray cluster is at {address}")
            return
        advice = "it has ended without `laneway down`: run that, then `laneway up` again"
        yield _check(name, Verdict.WARNING, f"it does not answer at {address}: {error.message}", advice)
        return
    yield _check(name, Verdict.OK, f"up at {address} with {len(found.actors)} processes, store {found.store['path']}")
    yield authority(found)


def authority(found: Description) -> Check:
    """Whether somebody checks who may act on a runtime's work (DUR-017)."""
    name = f"authority of {found.namespace}"
    if found.has_check:
        return _check(name, Verdict.OK, "operators' acts must pass the runtime's check")
    advice = "before its tools move money, start it with `laneway up --authorize module:check`"
    return _check(name, Verdict.WARNING, "it has no check: whoever reaches it may approve, resolve and abort", advice)


def _store(store: Path | None, folder: Path) -> Check:
    from ..storage.open_store import open_store
    from ..storage.shard_names import files_found
    from .settings import STORE_DEFAULT

    path = store or folder / STORE_DEFAULT
    if store is None and not files_found(str(path)):
        return _check("store", Verdict.OK, f"there is no {path} yet")
    try:
        opened = open_store(path, read_only=True)
    except StoreBusy as error:
        return _check("store", Verdict.OK, f"{path} belongs to process {error.details.get('pid')}, which runs")
    except LanewayError as error:
        # The demonstration makes a store of its own, so only a store that was named is a reason to fail.
        verdict = Verdict.WARNING if store is None else Verdict.FAILED
        return _check("store", verdict, error.message, "name another file with --store, or move this one away")
    opened.close()
    return _check("store", Verdict.OK, f"{path} opens")


def _graded(value: int, needed: int, good: int) -> Verdict:
    return Verdict.OK if value >= good else Verdict.WARNING if value >= needed else Verdict.FAILED


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"
