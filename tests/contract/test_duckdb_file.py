"""The DuckDB file in the field: kills, a second process, a full disk, damage, growth (K23, F16, F21 to F24)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest
from store_builders import Conversation, Maker, admit_ready, append_of, check_chain, note, raised
from store_writer import LANES

from laneway.storage.commands import Accepted, Claim, Fence, Release
from laneway.storage.duckdb_store import DuckDBStore
from laneway.storage.errors import (
    InvalidInput,
    Refused,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreUnavailable,
)
from laneway.storage.ledger import State
from laneway.storage.records import decode_records

WRITER = Path(__file__).parent.parent / "support" / "store_writer.py"

WAL_BYTES_MAX, FILE_BYTES_MAX = 8 << 20, 4 << 20
"""F21: what ledger transitions alone may take, however many of them there are."""


@contextmanager
def writer(path: Path, groups: int, *more: str) -> Iterator[subprocess.Popen[str]]:
    """The writing process, once it is ready."""
    command = [sys.executable, str(WRITER), str(path), str(groups), *more]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@contextmanager
def raw(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The file as anybody with DuckDB may open it."""
    connection = duckdb.connect(str(path))
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.requirement("DUR-007")
@pytest.mark.parametrize("kill_after", [0, 25])
def test_a_kill_loses_nothing_acknowledged_and_leaves_nothing_partial(duckdb_make: Maker, kill_after: int) -> None:
    """K23: SIGKILL while groups of 20 units are in flight: each group is wholly in or wholly out, in one copy."""
    with writer(duckdb_make.path, 10_000) as process:
        assert process.stdout is not None
        acknowledged = -1
        while acknowledged < kill_after:
            acknowledged = int(process.stdout.readline().split()[1])
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        acknowledged = max([acknowledged, *(int(line.split()[1]) for line in rest.splitlines() if line[-1:].isdigit())])
    read_only = duckdb_make(read_only=True)
    lengths = {read_only.inspect_tail(f"c{number:02}").sequence for number in range(LANES)}
    read_only.close()
    store = duckdb_make()
    assert lengths in ({acknowledged + 1}, {acknowledged + 2})
    for number in range(LANES):
        lane = Conversation(store, f"c{number:02}")
        lane.check_chain()
        assert {store.inspect_tail(lane.id).sequence} == lengths
    again = Conversation(store, "c00")
    again.grant = None
    store.retire_owner("o1")
    again.claim("o2")
    again.append("sub_c00", note("after the kill"))


def test_a_second_process_is_told_the_owner_and_what_to_do(duckdb_make: Maker) -> None:
    """F24: the message names the owner's pid and the command to use instead, for readers and writers alike."""
    with writer(duckdb_make.path, 1) as process:
        for read_only in (False, True):
            with pytest.raises(StoreBusy) as caught:
                duckdb_make(read_only=read_only)
            assert caught.value.details["pid"] == process.pid
            assert str(process.pid) in caught.value.message
            assert "without --store" in caught.value.message
            assert caught.value.retryable
    assert duckdb_make().scan_nonterminal().rows[0].state is State.RUNNING


def test_one_process_opens_a_file_once(duckdb_make: Maker) -> None:
    """F24: two writers of one process would not see each other; a file that was closed can be opened again."""
    first = duckdb_make()
    os.symlink(duckdb_make.path, duckdb_make.folder / "link.duckdb")
    for path in (duckdb_make.path, duckdb_make.folder / "link.duckdb"):
        with pytest.raises(StoreBusy) as caught:
            DuckDBStore(path)
        assert caught.value.details["pid"] == os.getpid()
    first.close()
    duckdb_make()


def test_a_closed_store_says_so(duckdb_make: Maker) -> None:
    """Contract: close is idempotent; what comes later is refused, not opened again."""
    store = duckdb_make()
    units = [Conversation(store).unit(*admit_ready("sub_1"))]
    store.close()
    store.close()
    for call in (lambda: store.lookup("sub"), lambda: store.commit(units), lambda: store.renew_lease("o", 1)):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert caught.value.code == "store_closed"


# --- a full disk -----------------------------------------------------------------------------------------------------


def test_admission_is_refused_before_the_disk_is_full(duckdb_make: Maker) -> None:
    """F22: below the reserve nothing is admitted, work that runs goes on; usable again when space is back."""
    free = [100]
    asked: list[str] = []

    def free_bytes(path: str) -> int:
        asked.append(path)
        return free[0]

    store = duckdb_make(free_bytes=free_bytes, free_bytes_min=50)
    lane = Conversation(store)
    lane.start("sub_1")
    free[0] = 49
    lane.submit("sub_2")
    assert len(asked) == 1
    duckdb_make.clock.advance(1000)
    error = lane.refused(*admit_ready("sub_3"))
    assert isinstance(error, StoreFull)
    assert (error.retryable, error.details["free_bytes"]) == (True, 49)
    assert lane.submit("sub_other", key="key-sub_2") == lane.submit("sub_2")  # nothing new: it gets its receipt
    lane.append("sub_1", note("goes on"))
    lane.settle("sub_1")
    free[0] = 50
    duckdb_make.clock.advance(1000)
    assert lane.submit("sub_3").queue_sequence == 3


@pytest.mark.requirement("DUR-007")
def test_a_commit_that_finds_no_space_acknowledges_nothing(duckdb_make: Maker) -> None:
    """F22: no file may grow beyond 1.5 MB: a clear error, all acknowledged is there, usable again with space."""
    with writer(duckdb_make.path, 10_000, "1500000") as process:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
    lines = output.splitlines()
    committed = sum(line.startswith("committed") for line in lines)
    assert lines[-2] == f"refused {committed} store_full"
    assert lines[-1] == f"after {LANES}"
    assert committed > 3
    store = duckdb_make()
    for number in range(LANES):
        batches = Conversation(store, f"c{number:02}").batches()
        check_chain(batches, committed + 1)
        assert decode_records(batches[-1].body)[0].id == note(f"c{number:02}/after").id


def test_a_failing_commit_is_unknown_and_its_repeat_is_safe(
    duckdb_make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F16, F10: an error in COMMIT: unknown to the caller; the file is opened again and the repeat leaves one copy."""
    store = duckdb_make()
    assert isinstance(store, DuckDBStore)
    lane = Conversation(store)
    lane.start("sub_1")

    class Failing:
        """A writer's connection whose next COMMIT fails, before or after it took effect."""

        def __init__(self, connection: duckdb.DuckDBPyConnection, landed: bool) -> None:
            self._connection = connection
            self._landed = landed

        def commit(self) -> None:
            if self._landed:
                self._connection.commit()
            raise duckdb.FatalException("FATAL Error: database has been invalidated because of a previous fatal error")

        def __getattr__(self, name: str) -> object:
            return getattr(self._connection, name)

    for landed in (False, True):
        unit = lane.unit(append_of("sub_1", note(f"landed {landed}")))
        writer = store._open()
        monkeypatch.setattr(writer, "connection", Failing(writer.connection, landed))
        with pytest.raises(StoreUnavailable) as caught:
            store.commit([unit])
        assert caught.value.retryable
        answer = store.commit([unit])[0]
        assert isinstance(answer, Accepted)
        assert answer.results[0].replayed is landed
    assert len(lane.batches()) == 3
    lane.check_chain()


def test_an_error_before_commit_rolls_back(duckdb_make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 4: an ordinary failure while writing leaves nothing, and the same connection goes on."""
    store = duckdb_make()
    assert isinstance(store, DuckDBStore)
    lane = Conversation(store)
    lane.start("sub_1")
    unit = lane.unit(append_of("sub_1", note("a")))
    writer = store._open()
    stage = writer.stage

    def failing(*arguments: object) -> None:
        stage(*arguments)
        raise duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate")

    with monkeypatch.context() as patch:
        patch.setattr(writer, "stage", failing)
        with pytest.raises(StoreUnavailable):
            store.commit([unit])
    assert store._open() is writer
    assert len(lane.batches()) == 1
    assert isinstance(store.commit([unit])[0], Accepted)
    assert len(lane.batches()) == 2
    lane.check_chain()


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged(make: Maker, sql: str) -> DuckDBStore:
    """Three conversations with one running and one queued submission each; then `sql` on the closed file."""
    store = make()
    for name in ("a", "b", "c"):
        lane = Conversation(store, name)
        lane.start(f"sub_{name}1")
        lane.append(f"sub_{name}1", note(f"note {name}"))
        lane.submit(f"sub_{name}2")
    store.close()
    with raw(make.path) as connection:
        second = append_of("sub_b1", note("note b")).batch_id
        connection.execute(sql, {"second": second} if "$second" in sql else None)
    store = make()
    assert isinstance(store, DuckDBStore)
    return store


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE ledger SET detail = '{broken' WHERE submission_id = 'sub_b1'",
        "UPDATE ledger SET detail = '{\"approvals\": 7}' WHERE submission_id = 'sub_b1'",
        "UPDATE ledger SET admission = '' WHERE submission_id = 'sub_b1'",
    ],
)
def test_a_damaged_row_hides_no_other(duckdb_make: Maker, sql: str) -> None:
    """Section 3 scan, F23: the scan shows all open work; the damaged row is named; other conversations run."""
    store = damaged(duckdb_make, sql)
    assert len(store.scan_nonterminal().rows) == 6
    with pytest.raises(StoreCorrupt) as caught:
        store.snapshot("sub_b1")
    assert (caught.value.details["conversation_id"], caught.value.details["submission_id"]) == ("b", "sub_b1")
    answers = store.commit([Conversation(store, name).unit(*admit_ready(f"sub_{name}3")) for name in ("a", "b", "c")])
    assert [isinstance(answer, Accepted) for answer in answers] == [True, False, True]
    assert isinstance(raised(answers[1]), StoreCorrupt)
    assert store.query("SELECT count(*) FROM submissions").rows == ((8,),)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE batch_log SET body = '[broken' WHERE batch_id = $second",
        "UPDATE batch_log SET body = replace(body, 'note b', 'note x') WHERE batch_id = $second",
        "UPDATE batch_log SET digest = 'x' WHERE batch_id = $second",
        "UPDATE batch_log SET last_sequence = 3 WHERE batch_id = $second",
        "DELETE FROM batch_log WHERE conversation_id = 'b' AND first_sequence = 1 AND batch_id <> $second",
    ],
    ids=["no json", "altered", "digest", "sequence", "missing"],
)
def test_a_damaged_batch_quarantines_its_conversation_alone(duckdb_make: Maker, sql: str) -> None:
    """F23: nobody writes on top of a broken chain; the error names conversation and sequence; the others run."""
    store = damaged(duckdb_make, sql)
    answers = store.commit([Conversation(store, name).unit(*admit_ready(f"sub_{name}3")) for name in ("a", "b", "c")])
    assert [isinstance(answer, Accepted) for answer in answers] == [True, False, True]
    error = raised(answers[1])
    assert isinstance(error, StoreCorrupt)
    assert (error.details["conversation_id"], error.details["sequence"]) == ("b", 2)
    assert store.query("SELECT DISTINCT conversation_id FROM records ORDER BY ALL").rows[0] == ("a",)
    assert len(store.scan_nonterminal().rows) == 8
    Conversation(store, "c").check_chain()


@pytest.mark.parametrize("case", ["text", "foreign", "newer", "shards", "folder", "nowhere", "empty manifest"])
def test_what_is_no_store_is_refused(duckdb_make: Maker, case: str) -> None:
    """Manifest: a clear error for a newer schema, a foreign file, a path that cannot be; the file is left alone."""
    path = duckdb_make.path
    code = "not_a_store"
    if case == "text":
        path.write_text("hello" * 1000)
    elif case == "foreign":
        with raw(path) as connection:
            connection.execute("CREATE TABLE t (a INTEGER)")
    elif case in ("newer", "shards", "empty manifest"):
        duckdb_make().close()
        code = {"newer": "schema_too_new", "shards": "shards_differ"}.get(case, code)
        change = {"newer": "schema_version = 99", "shards": "shards = 4"}.get(case)
        with raw(path) as connection:
            connection.execute(f"UPDATE manifest SET {change}" if change else "DELETE FROM manifest")
    elif case == "folder":
        path.mkdir()
        code = "path_not_usable"
    else:
        duckdb_make.folder = duckdb_make.folder / "no" / "such"
        code = "path_not_usable"
    before = path.read_bytes() if path.is_file() else None
    for read_only in (False,) if case == "shards" else (False, True):  # a single shard may be read for itself
        with pytest.raises(InvalidInput) as caught:
            duckdb_make(read_only=read_only)
        assert (caught.value.code, caught.value.details["field"]) == (code, "path")
    if case in ("text", "foreign"):
        assert path.read_bytes() == before


def test_reading_alone_changes_nothing(duckdb_make: Maker) -> None:
    """`export`, `verify`, `log` on a file: all reads work, all writes are refused, a missing file is not made."""
    with pytest.raises(InvalidInput):
        duckdb_make(read_only=True)
    assert not duckdb_make.path.exists()
    store = duckdb_make()
    lane = Conversation(store)
    lane.start("sub_1")
    state = lane.state()
    store.close()
    store = duckdb_make(read_only=True)
    lane = Conversation(store)
    assert lane.state() == state
    assert store.query("SELECT count(*) FROM records").rows == ((1,),)
    assert store.snapshot("sub_1").row.state is State.RUNNING
    for write in (lambda: store.commit([]), lambda: store.renew_lease("o9", 1)):
        with pytest.raises(Refused) as caught:
            write()
        assert caught.value.code == "read_only"


# --- growth and threads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("submissions", "rounds"),
    [
        pytest.param(300, 50, id="30,000"),
        pytest.param(1_000, 500, id="1,000,000", marks=[pytest.mark.soak, pytest.mark.timeout(1_800)]),
    ],
)
def test_ledger_transitions_do_not_grow_the_file(duckdb_make: Maker, submissions: int, rounds: int) -> None:
    """F21: a claim and a release of each submission in each round: file and WAL stay within a few MB.

    The million of the scenario takes minutes, so it runs with the soak tests; any run does the smaller number. It took
    139 s on two cores; the WAL had 4.0 MB at most, the file 2.1 MB.
    """
    store = duckdb_make()
    lanes = [Conversation(store, f"c{number}") for number in range(submissions)]
    store.commit([lane.unit(*admit_ready(f"sub_{lane.id}")) for lane in lanes])
    wal = duckdb_make.path.with_suffix(".duckdb.wal")
    largest_wal = largest_file = 0
    for number in range(rounds):
        units = [
            lane.unit(
                Claim(submission_id="", owner_id="o1", attempt_id=f"att{number}", token=f"tok{number}"),
                fence=Fence(token=f"tok{number}"),
            )
            for lane in lanes
        ]
        units += [
            lane.unit(Release(submission_id=f"sub_{lane.id}"), fence=Fence(token=f"tok{number}", epoch=number + 1))
            for lane in lanes
        ]
        assert all(isinstance(answer, Accepted) for answer in store.commit(units))
        largest_wal = max(largest_wal, wal.stat().st_size if wal.exists() else 0)
        largest_file = max(largest_file, duckdb_make.path.stat().st_size)
    assert store.info().rows == submissions + 2 * submissions * rounds
    store.close()
    at_end = duckdb_make.path.stat().st_size
    told = {"WAL at most": largest_wal, "file at most": largest_file, "file at the end": at_end}
    assert largest_wal < WAL_BYTES_MAX, told
    assert max(largest_file, at_end) < FILE_BYTES_MAX, told
    assert not wal.exists()


def test_readers_go_on_beside_the_writer(duckdb_make: Maker) -> None:
    """Contract: methods may be called from several threads; a reader sees whole groups only."""
    store = duckdb_make()
    lanes = [Conversation(store, f"c{number}") for number in range(5)]
    for lane in lanes:
        lane.start(f"sub_{lane.id}")
    done = threading.Event()
    broken: list[BaseException] = []
    seen = set[int]()

    def read() -> None:
        try:
            while not done.is_set():
                counts = store.query("SELECT conversation_id, count(*) FROM batches GROUP BY ALL").rows
                assert len({count for _, count in counts}) == 1, counts
                seen.add(counts[0][1])
                snapshot = store.snapshot("sub_c1")
                check_chain(list(snapshot.batches), snapshot.tail.sequence)
                store.renew_lease("o1", 1000 + len(seen))
        except BaseException as error:
            broken.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(15):
        units = [lane.unit(append_of(f"sub_{lane.id}", note(f"{lane.id}/{number}"))) for lane in lanes]
        assert all(isinstance(answer, Accepted) for answer in store.commit(units))
    done.set()
    for reader in readers:
        reader.join()
    assert broken == []
    assert len(seen) > 1
