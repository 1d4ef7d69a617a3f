"""What `laneway up` leaves behind for later commands: where the runtime of a namespace is."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ..storage.errors import InvalidInput

HOME_VARIABLE = "LANEWAY_HOME"


class RuntimeFile(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the Ray cluster and the store; `cluster_pid` is of a cluster that `laneway up` has started."""

    namespace: str
    address: str
    store: str
    agents: tuple[str, ...] = ()
    cluster_pid: int | None = None


def home() -> Path:
    """The folder of these files: $LANEWAY_HOME, or ~/.laneway."""
    named = os.environ.get(HOME_VARIABLE)
    return Path(named) if named else Path.home() / ".laneway"


def path_of(namespace: str) -> Path:
    """The file of a namespace, whose name has been checked."""
    return home() / f"{namespace}.json"


def load(namespace: str) -> RuntimeFile | None:
    """What is remembered of the namespace; None when nothing is. Raises: InvalidInput for a file that is damaged."""
    path = path_of(namespace)
    try:
        return msgspec.json.decode(path.read_bytes(), type=RuntimeFile)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}; remove it or name --address", field="address") from error


def save(found: RuntimeFile) -> Path:
    """Remember a runtime. Raises: InvalidInput when the folder cannot be written."""
    path = path_of(found.namespace)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(msgspec.json.encode(found) + b"\n")
        partial.replace(path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error}", field=HOME_VARIABLE) from error
    return path


def others_at(address: str, namespace: str) -> list[RuntimeFile]:
    """What is remembered of other namespaces on the same cluster; damaged files are passed over."""
    found: list[RuntimeFile] = []
    for path in sorted(home().glob("*.json")):
        try:
            other = msgspec.json.decode(path.read_bytes(), type=RuntimeFile)
        except (OSError, msgspec.MsgspecError):
            continue
        if other.address == address and other.namespace != namespace:
            found.append(other)
    return found


def forget(namespace: str) -> None:
    """Remove what is remembered; harmless when nothing is."""
    path_of(namespace).unlink(missing_ok=True)
