"""Names of a store's files: the path itself for one shard, and beside it `laneway.0-of-4.duckdb` ... for several.

The number of shards stands in each name, so files of another number are noticed before anything is opened.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_NAME = re.compile(r"(?P<base>.+)\.(?P<index>\d+)-of-(?P<of>\d+)(?P<suffix>\.[^.]*)?")


def shard_path(path: str, index: int, of: int) -> str:
    """The file of one shard of the store at `path`."""
    if of == 1:
        return path
    whole = Path(path)
    return str(whole.with_name(f"{whole.stem}.{index}-of-{of}{whole.suffix}"))


def base_path(path: str) -> str:
    """The store's path, from that of one of its files."""
    found = _NAME.fullmatch(Path(path).name)
    return path if found is None else str(Path(path).with_name(f"{found['base']}{found['suffix'] or ''}"))


def files_found(path: str) -> dict[int, set[int]]:
    """What lies at `path` and beside it: for each number of shards, those whose file is there."""
    whole = Path(path)
    found: dict[int, set[int]] = {}
    with contextlib.suppress(OSError, ValueError):  # a path that cannot be: opening it says why
        if whole.exists():
            found[1] = {0}
        for other in sorted(whole.parent.iterdir()):
            name = _NAME.fullmatch(other.name)
            if name is not None and (name["base"], name["suffix"] or "") == (whole.stem, whole.suffix):
                found.setdefault(int(name["of"]), set()).add(int(name["index"]))
    return found
