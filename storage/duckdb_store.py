"""The DuckDB adapter, class DR: one process owns one file, writes with the Appender, commits once a group."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import duckdb

from . import duckdb_query, duckdb_reads, duckdb_side
from .commands import Answer, Unit
from .contract import DeadLetter, LogPage, Quarantine, ScanPage, Snapshot, StoreInfo, Table, Tail
from .duckdb_codec import LEDGER_UPDATED, admitted_values, batch_values, updated_values
from .duckdb_file import DuckDBFile, full, is_disk_full, is_fatal, unavailable
from .engine import Engine, Key, Resident
from .errors import LanewayError, Refused, StoreUnavailable
from .failpoints import NO_FAILPOINTS, Failpoints, Point
from .header import Changes, Checkpoint, Trace
from .ledger import Row
from .readback import checked_quarantine, page_of, public, trace_of, wall_clock_ms
from .sharding import UNSHARDED, Shard
from .values import DEFAULT_LIMITS, Limits

_FREE_CHECK_MS = 1000  # admission looks at the disk this often; a runaway log needs longer for the reserve below
FREE_BYTES_MIN = 64 << 20


def free_bytes_of(path: str) -> int:
    """Free space on the file system of `path`."""
    return shutil.disk_usage(Path(path).resolve().parent).free


class DuckDBStore:
    """Class DR: what was acknowledged survives the process. It keeps the contract of `storage.contract.Store`.

    Methods may be called from several threads: writers take turns, readers have cursors of their own and see what was
    committed when they began.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        limits: Limits = DEFAULT_LIMITS,
        failpoints: Failpoints = NO_FAILPOINTS,
        read_only: bool = False,
        shard: Shard = UNSHARDED,
        free_bytes_min: int = FREE_BYTES_MIN,
        free_bytes: Callable[[str], int] = free_bytes_of,
    ) -> None:
        self._path = str(path)
        self._now_ms = now_ms
        self._failpoints = failpoints
        self._read_only = read_only
        self._shard = shard
        self._free_bytes_min = free_bytes_min
        self._free_bytes = free_bytes
        self._free_checked_ms: int | None = None
        self._free_last = 0
        self._closed = False
        self._turn = threading.RLock()
        """Held by whoever writes, loads headers or replaces the file handle."""
        self._file: DuckDBFile | None = None
        self._writer: _Writer | None = None
        self._leases: dict[str, int] = {}
        self._ttls: dict[str, int] = {}
        self._quarantined: dict[str, Quarantine] = {}
        self._limits = limits
        self._engine = Engine(
            self,
            now_ms=now_ms,
            leases=self._leases,
            quarantined=self._quarantined,
            limits=limits,
            failpoints=failpoints,
        )
        self._open()
        self._revive()

    # --- the contract ------------------------------------------------------------------------------------------------

    def commit(self, units: Sequence[Unit]) -> list[Answer]:
        if self._read_only:
            raise Refused(f"{self._path} is open for reading alone", code="read_only")
        with self._turn:
            return self._engine.commit(units)

    def read_log(self, conversation_id: str, after: int = 0, limit: int = 1024) -> LogPage:
        with self._reading() as cursor:  # each batch holds a record, so limit + 1 batches are enough for any page
            batches = duckdb_reads.log_after(cursor, conversation_id, after, max(limit, 1) + 1)
        return page_of(batches, after, limit)

    def inspect_tail(self, conversation_id: str) -> Tail:
        with self._reading() as cursor:
            return duckdb_reads.tail_of(cursor, conversation_id)

    def snapshot(self, submission_id: str) -> Snapshot:
        with self._reading() as cursor:
            return duckdb_reads.snapshot(cursor, submission_id)

    def scan_nonterminal(self, cursor: tuple[str, int] | None = None, limit: int = 1024) -> ScanPage:
        with self._reading() as reader:
            rows = duckdb_reads.control_rows(reader, cursor, limit + 1, self._leases, self._quarantined, self._now_ms())
        page = tuple(rows[:limit])
        more = len(rows) > limit and page
        return ScanPage(rows=page, cursor=(page[-1].conversation_id, page[-1].queue_sequence) if more else None)

    def lookup(self, submission_id: str) -> Row | None:
        with self._reading() as cursor:
            row = duckdb_reads.find_row(cursor, submission_id)
        return public(row) if row else None

    def lookup_key(self, conversation_id: str, principal: str, idempotency_key: str) -> Row | None:
        condition = "conversation_id = $name AND principal = $principal AND idempotency_key = $key"
        with self._reading() as cursor:
            rows = duckdb_reads.rows_where(
                cursor, condition, {"name": conversation_id, "principal": principal, "key": idempotency_key}
            )
        return public(rows[0]) if rows else None

    def list_rows(self, conversation_id: str | None = None, state: str | None = None, limit: int = 1000) -> list[Row]:
        with self._reading() as cursor:
            return duckdb_reads.list_rows(cursor, conversation_id, state, limit)

    def list_conversations(self, after: str = "", limit: int = 1000) -> list[str]:
        sql = "SELECT DISTINCT conversation_id FROM ledger WHERE conversation_id > $after ORDER BY ALL LIMIT $limit"
        with self._reading() as cursor:
            return [name for (name,) in cursor.execute(sql, {"after": after, "limit": limit}).fetchall()]

    def load_checkpoint(self, conversation_id: str) -> Checkpoint | None:
        with self._reading() as cursor:
            return duckdb_reads.load_checkpoint(cursor, conversation_id)

    def renew_lease(self, owner_id: str, ttl_ms: int) -> int:
        """Only a new owner or another `ttl_ms` is written: after a restart of the store each lease runs anew."""
        if self._ttls.get(owner_id) != ttl_ms:
            self._write_aside("INSERT OR REPLACE INTO owners VALUES ($id, $ttl)", {"id": owner_id, "ttl": ttl_ms})
            self._ttls[owner_id] = ttl_ms
        end_ms = self._leases[owner_id] = self._now_ms() + ttl_ms
        return end_ms

    def retire_owner(self, owner_id: str) -> None:
        self._leases.pop(owner_id, None)
        if self._ttls.pop(owner_id, None) is not None:
            self._write_aside("DELETE FROM owners WHERE owner_id = $id", {"id": owner_id})

    def owners(self) -> dict[str, int]:
        return dict(self._leases)

    def quarantine(self, conversation_id: str, reason: str, author: str) -> Quarantine:
        found = checked_quarantine(conversation_id, reason, author, now_ms=self._now_ms(), limits=self._limits)
        with self._turn:
            known = self._quarantined.get(conversation_id)
            if known is None:
                self._write_aside(duckdb_side.QUARANTINE, duckdb_side.quarantine_values(found))
                known = self._quarantined[conversation_id] = found
        return known

    def release_quarantine(self, conversation_id: str, author: str) -> Quarantine | None:
        with self._turn:
            known = self._quarantined.get(conversation_id)
            if known is not None:
                checked = checked_quarantine(
                    conversation_id, known.reason, author, now_ms=self._now_ms(), limits=self._limits
                )
                values = {"id": conversation_id, "author": checked.author, "now": checked.since_ms}
                self._write_aside(duckdb_side.RELEASE, values)
                del self._quarantined[conversation_id]
                return known
        with self._reading() as cursor:
            return duckdb_side.released(cursor, conversation_id, author)

    def quarantined(self, after: str = "", limit: int = 1000) -> list[Quarantine]:
        known = dict(self._quarantined)
        return [known[name] for name in sorted(known) if name > after][:limit]

    def dead_letters(self, codes: Sequence[str] | None = None, limit: int = 1000) -> list[DeadLetter]:
        with self._reading() as cursor:
            return duckdb_reads.dead_letters(cursor, codes, limit)

    def query(self, sql: str, limit: int = 10_000) -> Table:
        """Answer one read-only statement over the views of views.sql; the tables behind them are not offered."""
        with self._reading() as cursor:
            return duckdb_query.answer(cursor, sql, limit)

    def info(self) -> StoreInfo:
        engine = self._engine
        return StoreInfo(
            adapter="duckdb",
            deployment_class="DR",
            path=self._path,
            commits=engine.commits,
            units=engine.units,
            rejected=engine.rejected,
            batches=engine.batches,
            rows=engine.rows,
            body_bytes=engine.body_bytes,
        )

    def close(self) -> None:
        with self._turn:
            self._closed = True
            self._drop()

    # --- what the engine needs (`engine.Backing`) --------------------------------------------------------------------

    def load(self, conversation_ids: Sequence[str]) -> Mapping[str, Resident | LanewayError]:
        with self._reading() as cursor:
            return duckdb_reads.residents(cursor, list(conversation_ids))

    def load_keys(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        with self._reading() as cursor:
            return duckdb_reads.key_holders(cursor, keys)

    def load_closed(self, conversation_id: str, submission_id: str) -> tuple[Row, Trace] | None:
        with self._reading() as cursor:
            row = duckdb_reads.find_row(cursor, submission_id)
            if row is None or row.conversation_id != conversation_id:
                return None
            return row, trace_of(duckdb_reads.submission_batches(cursor, conversation_id, [submission_id]))

    def write(self, changes: Sequence[Changes]) -> None:
        """One transaction. Raises: StoreFull when nothing is stored, StoreUnavailable when that is not known."""
        writer = self._open()
        connection = writer.connection
        try:
            connection.begin()
            writer.stage(changes, self._now_ms(), self._failpoints)
        except BaseException as error:
            self._abandon(writer, error)
        try:
            connection.commit()
        except duckdb.Error as error:  # the file may hold the group or not: look again, and answer that
            self._drop()
            if is_disk_full(error) and not self._landed(changes):
                raise full(self._path) from error
            raise unavailable(error, self._path) from error
        except BaseException:
            self._drop()
            raise

    def refuse_admission(self) -> LanewayError | None:
        now_ms = self._now_ms()
        if self._free_checked_ms is None or not 0 <= now_ms - self._free_checked_ms < _FREE_CHECK_MS:
            self._free_checked_ms = now_ms
            self._free_last = self._free_bytes(self._path)
        return full(self._path, self._free_last) if self._free_last < self._free_bytes_min else None

    # --- the file ----------------------------------------------------------------------------------------------------

    def _open(self) -> _Writer:
        """The writer of the open file; opens it again when it was given up. Raises: what DuckDBFile raises."""
        with self._turn:
            if self._closed:
                raise StoreUnavailable(f"the store {self._path} is closed", code="store_closed", path=self._path)
            if self._writer is None:
                self._file = DuckDBFile(self._path, read_only=self._read_only, now_ms=self._now_ms(), shard=self._shard)
                self._writer = _Writer(self._file.cursor(), read_only=self._read_only)
            return self._writer

    def _drop(self) -> None:
        """Close the file; what was read from it is forgotten. The WAL stays for the next opening."""
        with self._turn:
            writer, self._writer = self._writer, None
            file, self._file = self._file, None
            self._engine.forget()
            if writer is not None:
                writer.close()
            if file is not None:
                file.close()

    def _abandon(self, writer: _Writer, error: BaseException) -> NoReturn:
        """Roll back what was staged before COMMIT, and raise what `error` means: nothing of it is stored."""
        try:
            writer.roll_back()
        except duckdb.Error:
            self._drop()
        if not isinstance(error, duckdb.Error):
            raise error
        if is_fatal(error):
            self._drop()
        if is_disk_full(error):
            raise full(self._path) from error
        raise unavailable(error, self._path) from error

    def _landed(self, changes: Sequence[Changes]) -> bool:
        """Whether the file holds this group: its first batch, or its first row as it was to become."""
        batch = next((batch for change in changes for batch in change.batches), None)
        rows = {row.submission_id: row for change in changes for row in change.rows}
        with self._reading() as cursor:
            if batch is not None:
                tail = duckdb_reads.log_after(cursor, batch.conversation_id, batch.first_sequence - 1, 1)
                return bool(tail) and tail[0].batch_id == batch.batch_id
            return any(duckdb_reads.find_row(cursor, submission_id) == row for submission_id, row in rows.items())

    @contextmanager
    def _reading(self) -> Generator[duckdb.DuckDBPyConnection, None, None]:
        """A cursor with a read-only transaction: one consistent view, beside the writer."""
        file = self._file
        if file is None:
            with self._turn:
                self._open()
                file = self._file
        assert file is not None
        broken = False
        try:
            cursor = file.cursor()
            try:
                cursor.execute("BEGIN TRANSACTION READ ONLY")
                yield cursor
            finally:
                cursor.close()
        except duckdb.Error as error:
            broken = is_fatal(error)
            raise unavailable(error, self._path) from error
        finally:
            if broken and not self._closed:
                with self._turn:
                    if self._file is file:
                        self._drop()

    def _write_aside(self, sql: str, parameters: dict[str, str | int]) -> None:
        if self._read_only:
            raise Refused(f"{self._path} is open for reading alone", code="read_only")
        with self._turn:
            connection = self._open().connection
            self._failpoints.hit(Point.BEFORE_SIDE_WRITE)
            try:
                connection.execute(sql, parameters)
            except duckdb.Error as error:
                self._drop()
                raise (full(self._path) if is_disk_full(error) else unavailable(error, self._path)) from error
            self._failpoints.hit(Point.AFTER_SIDE_WRITE)

    def _revive(self) -> None:
        """What is kept in memory beside the headers: owners with their leases, quarantined conversations."""
        with self._reading() as cursor:
            self._quarantined.update(duckdb_side.quarantined(cursor))
            self._ttls.update(cursor.execute("SELECT owner_id, ttl_ms FROM owners").fetchall())
        now_ms = self._now_ms()
        self._leases.update({owner_id: now_ms + ttl_ms for owner_id, ttl_ms in self._ttls.items()})


class _Writer:
    """The one writing connection and its appenders, which are made once: making one costs as much as a small batch."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, *, read_only: bool) -> None:
        self.connection = connection
        self._appenders: list[duckdb.Appender] = []
        if read_only:
            return
        self._conversations = connection.appender("conversations")
        self._batches = connection.appender("batch_log")
        self._admitted = connection.appender("ledger")
        # Update by key: 2.5 ms a group where the upsert action costs 6 to 9 ms with as many columns.
        self._updated = connection.appender(
            "ledger", action="update", key=["submission_id"], columns=list(LEDGER_UPDATED)
        )
        self._checkpoints = connection.appender("checkpoints", action="upsert")
        self._appenders = [self._conversations, self._batches, self._admitted, self._updated, self._checkpoints]

    def stage(self, changes: Sequence[Changes], now_ms: int, failpoints: Failpoints) -> None:
        """Write a group inside the open transaction: batches first, then what they mean."""
        failpoints.hit(Point.APPEND_BEGUN)
        _fill(self._batches, [batch_values(batch) for change in changes for batch in change.batches])
        failpoints.hit(Point.APPEND_BATCHES_WRITTEN)
        rows = {row.submission_id: row for change in changes for row in change.rows}
        admitted = {submission_id for change in changes for submission_id in change.admitted}
        _fill(
            self._admitted,
            [admitted_values(rows[submission_id]) for submission_id in rows if submission_id in admitted],
        )
        _fill(self._updated, [updated_values(row) for row in rows.values() if row.submission_id not in admitted])
        created = {
            row.conversation_id: change.materialized
            for change in changes
            for row in change.rows
            if change.materialized is not None
        }
        _fill(self._conversations, [(name, agent, now_ms) for name, agent in created.items()])
        checkpoints = {change.checkpoint.conversation_id: change.checkpoint for change in changes if change.checkpoint}
        _fill(
            self._checkpoints,
            [(name, point.tail_sequence, point.tail_digest, point.body) for name, point in checkpoints.items()],
        )
        failpoints.hit(Point.APPEND_ROWS_WRITTEN)

    def roll_back(self) -> None:
        """Forget what is staged; after it the connection is as good as new, or raises."""
        for appender in self._appenders:
            appender.clear()
        self.connection.rollback()

    def close(self) -> None:
        self._appenders.clear()
        for name in ("_conversations", "_batches", "_admitted", "_updated", "_checkpoints"):
            self.__dict__.pop(name, None)  # an appender keeps the database open
        self.connection.close()


def _fill(appender: duckdb.Appender, rows: list[tuple[object, ...]]) -> None:
    if rows:
        appender.append_rows(rows)
        appender.flush()
