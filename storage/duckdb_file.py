"""One DuckDB file: opening it, recognising it as a Laneway store, and the meaning of the driver's errors."""

from __future__ import annotations

import os
import re
import threading
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb

from .errors import InvalidInput, LanewayError, StoreBusy, StoreFull, StoreUnavailable
from .sharding import UNSHARDED, Shard
from .values import digest_of

STORE_VERSION = 1
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 1,  # a second one made no commit faster and would take a core from the lanes
    "checkpoint_threshold": "4MB",  # bounds the WAL
    "enable_external_access": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
}
_HELD = re.compile(r"Conflicting lock is held in (?P<program>.*?) \(PID (?P<pid>\d+)\)")
_DISK_FULL = ("no space left on device", "disk quota exceeded", "file too large", "not enough space on the disk")
_FATAL = ("invalidated", "fatal error", "must be restarted")

_open_paths = set[
    str
]()  # DuckDB shares one database among openers of one process: two writers would not see each other
_open_paths_lock = threading.Lock()


def is_disk_full(error: BaseException) -> bool:
    """Whether the driver failed for want of space."""
    text = str(error).lower()
    return any(sign in text for sign in _DISK_FULL)


def is_fatal(error: BaseException) -> bool:
    """Whether the database object is of no use any more and the file must be opened again."""
    text = str(error).lower()
    dead = isinstance(error, duckdb.FatalException | duckdb.InternalException | duckdb.ConnectionException)
    return dead or any(sign in text for sign in _FATAL)


def unavailable(error: BaseException, path: str) -> LanewayError:
    """The answer to a driver error whose effect is not known."""
    return StoreUnavailable(f"the store {path} gave no answer: {error}", path=path)


def full(path: str, free_bytes: int | None = None) -> StoreFull:
    """The answer when space is short and nothing was stored."""
    left = "no space" if free_bytes is None else f"{free_bytes:,} bytes"
    return StoreFull(f"the file system of {path} has {left} left", path=path, free_bytes=free_bytes)


class DuckDBFile:
    """An open store file. Its root connection makes cursors and runs nothing itself.

    Raises: StoreBusy when another process or another store of this process holds the file, InvalidInput (codes
    `not_a_store`, `schema_too_new`, `path_not_usable`, `shards_differ`, `shard_missing`) when it is none of ours or not
    the one that is asked for, StoreFull, StoreUnavailable.

    `make` lets a missing file be made; for one of several shards that is done once for all (`shard_files.make_shards`).
    """

    def __init__(
        self, path: str, *, read_only: bool, now_ms: int, shard: Shard = UNSHARDED, make: bool | None = None
    ) -> None:
        self.path = path
        self._read_only = read_only
        self._shard = shard
        self._make = shard.of == 1 if make is None else make
        self._claim_path()
        try:
            self._root = self._connect()
            self._cursors = threading.Lock()
            try:
                self._prepare(now_ms)
            except BaseException:
                self._root.close()
                raise
        except BaseException:
            self._free_path()
            raise

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection of its own; the caller closes it."""
        with self._cursors:
            return self._root.cursor()

    def close(self) -> None:
        """Close the file once all cursors are closed. A failing last checkpoint loses nothing: the WAL stays."""
        try:
            self._root.close()
        except duckdb.Error:
            pass  # the WAL holds every commit; the next opening replays it
        finally:
            self._free_path()

    def _claim_path(self) -> None:
        self._key = os.path.realpath(self.path)
        with _open_paths_lock:
            if self._key in _open_paths:
                raise _busy(self.path, os.getpid(), "another store of this very process")
            _open_paths.add(self._key)

    def _free_path(self) -> None:
        with _open_paths_lock:
            _open_paths.discard(self._key)

    def _connect(self) -> duckdb.DuckDBPyConnection:
        folder = Path(self._key).parent
        if not folder.is_dir():
            raise _unusable(self.path, f"there is no folder {folder}", "path_not_usable")
        if not self._make and not Path(self._key).exists():
            raise _unusable(self.path, f"the file of shard {self._shard.index} is not there", "shard_missing")
        if self._read_only and not Path(self._key).exists():
            raise _unusable(self.path, "there is no such file", "path_not_usable")
        try:
            return duckdb.connect(self.path, read_only=self._read_only, config=_SETTINGS)
        except duckdb.Error as error:
            raise self._refusal(error) from error

    def _refusal(self, error: duckdb.Error) -> LanewayError:
        held = _HELD.search(str(error))
        if held is not None:
            return _busy(self.path, int(held["pid"]), held["program"])
        if is_disk_full(error):
            return full(self.path)
        if "not a valid DuckDB database" in str(error):
            return _unusable(self.path, "it is no DuckDB file", "not_a_store")
        if any(sign in str(error) for sign in ("Cannot open file", "Cannot open database", "Is a directory")):
            return _unusable(self.path, str(error), "path_not_usable")
        return unavailable(error, self.path)

    def _prepare(self, now_ms: int) -> None:
        cursor = self._root.cursor()
        try:
            try:
                found = cursor.execute("SELECT schema_version, shards, views_digest FROM manifest").fetchall()
            except (duckdb.CatalogException, duckdb.BinderException) as error:
                tables = cursor.execute("SELECT count(*) FROM duckdb_tables()").fetchone()
                if tables != (0,) or self._read_only:
                    raise _unusable(self.path, "it is a DuckDB file, but no Laneway store", "not_a_store") from error
                _create(cursor, now_ms, self._shard)
            else:
                self._check_manifest(cursor, found)
            cursor.execute("SET lock_configuration = true")
        except duckdb.Error as error:
            raise (full(self.path) if is_disk_full(error) else unavailable(error, self.path)) from error
        finally:
            cursor.close()

    def _check_manifest(self, cursor: duckdb.DuckDBPyConnection, found: list[Any]) -> None:
        if len(found) != 1:
            raise _unusable(self.path, "its manifest is not of a Laneway store", "not_a_store")
        version, shards, views_digest = found[0]
        if version > STORE_VERSION:
            raise _unusable(self.path, f"it has schema {version}; this program knows {STORE_VERSION}", "schema_too_new")
        self._check_shard(cursor, shards)
        views = _sql("additions.sql") + _sql("views.sql")
        if views_digest != digest_of(views.encode()) and not self._read_only:
            cursor.begin()
            cursor.execute(views)
            cursor.execute("UPDATE manifest SET views_digest = ?", [digest_of(views.encode())])
            cursor.commit()

    def _check_shard(self, cursor: duckdb.DuckDBPyConnection, shards: int) -> None:
        if shards == 1 == self._shard.of or (self._shard.of == 1 and self._read_only):
            return  # a single shard may be read for itself
        if shards != self._shard.of:
            why = f"it was made with {shards} shards, and {self._shard.of} are asked for"
            raise _unusable(self.path, why, "shards_differ", stored=[shards])
        found = cursor.execute("SELECT position FROM shard").fetchall()
        if found != [(self._shard.index,)]:
            raise _unusable(self.path, f"it is not shard {self._shard.index} of {shards}", "shards_differ")


def _create(cursor: duckdb.DuckDBPyConnection, now_ms: int, shard: Shard) -> None:
    views = _sql("additions.sql") + _sql("views.sql")
    cursor.begin()
    cursor.execute(_sql("schema.sql"))
    cursor.execute(views)
    values = [STORE_VERSION, now_ms, shard.of, digest_of(views.encode())]
    cursor.execute("INSERT INTO manifest VALUES (?, 'DR', ?, ?, ?)", values)
    if shard.of > 1:
        cursor.execute("INSERT INTO shard VALUES (?)", [shard.index])
    cursor.commit()


def _sql(name: str) -> str:
    return resources.files("laneway.storage").joinpath(name).read_text(encoding="utf-8")


def _busy(path: str, pid: int, program: str) -> StoreBusy:
    return StoreBusy(
        f"the store {path} is open in process {pid} ({program}). Ask the runtime that owns it: run the same `laneway` "
        f"command without --store, or stop that runtime with `laneway down` first",
        path=path,
        pid=pid,
    )


def _unusable(path: str, why: str, code: str, **details: Any) -> InvalidInput:
    return InvalidInput(f"{path} cannot be opened as a store: {why}", code=code, field="path", path=path, **details)
