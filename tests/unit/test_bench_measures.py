"""What the benchmarks' figures are made of, without a cluster."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from laneway.benchmarks import growth_file, processes, recovery, recovery_cluster
from laneway.benchmarks.contents import content_bytes, text
from laneway.benchmarks.gates import Noted, until
from laneway.benchmarks.history import RECORDS_A_SUBMISSION, grow
from laneway.benchmarks.result import NotDone
from laneway.cluster.executions import append_line
from laneway.recovery.convergence import Report
from laneway.storage.duckdb_store import DuckDBStore
from laneway.storage.records import AnyRecord, InputRecorded, ModelResponded, ToolCall, ToolCallSettled, encode_records

QUIET = lambda what, done, total: None  # noqa: E731

SAID: list[AnyRecord] = [
    InputRecorded(id="r1", submission_id="s", queue_sequence=1, content="Grüße"),
    ModelResponded(
        id="r2",
        run_id="run",
        turn=1,
        content=None,
        tool_calls=(ToolCall(id="c", provider_id="p", name="look_up", arguments='{"a":1}'),),
    ),
    ToolCallSettled(id="r3", run_id="run", call_id="c", outcome="succeeded", result={"found": [1, 2]}),
    ModelResponded(id="r4", run_id="run", turn=2, content="done"),
]


def test_content_is_counted_once_and_in_bytes() -> None:
    assert content_bytes(SAID) == {"inputs": 7, "responses": 4, "arguments": 7, "results": 15}


def test_the_fields_of_records_add_up_to_their_bytes() -> None:
    found = growth_file.field_bytes(SAID)
    assert found["input_recorded.content"] == len('"Grüße"'.encode())
    extra = len(SAID)  # of each object, two braces for one comma; and the array's own
    assert abs(found.total() - (len(encode_records(tuple(SAID))) - extra)) <= len(SAID) + 2


def test_texts_differ_have_their_length_and_come_again_from_the_same_seed() -> None:
    texts = [text(random.Random(seed), 300, 2_000) for seed in range(50)]
    assert len(set(texts)) == 50
    assert all(300 <= len(one) <= 2_000 for one in texts)
    assert text(random.Random(7), 300, 2_000) == texts[7]


def test_lines_of_a_growing_file_are_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    noted = Noted(path)
    assert noted.more() == []
    append_line(str(path), {"number": 1})
    with path.open("ab") as file:
        file.write(b'{"num')
    assert noted.more() == [{"number": 1}]
    with path.open("ab") as file:
        file.write(b'ber":2}\n')
    assert noted.more() == [{"number": 2}]
    assert noted.more() == []


def test_what_never_holds_is_no_figure() -> None:
    assert until(lambda: 7, "a number") == 7
    with pytest.raises(NotDone, match="a miracle: not within"):
        until(lambda: None, "a miracle", patience_s=0.01)


def test_a_family_of_processes_is_found_and_ended() -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert processes.family(parent.pid) == {parent.pid, child}
        assert 0 < processes.resident_bytes(parent.pid) < processes.all_resident_bytes(parent.pid)
        processes.kill_all({parent.pid, child})
        parent.wait()
        until(lambda: not processes.lives(child), "the end of the child", 10)
    with pytest.raises((ProcessLookupError, FileNotFoundError)):
        processes.resident_bytes(parent.pid)


def test_times_of_kills_are_held_against_their_bounds() -> None:
    found = recovery.figures([0.3, 0.2, 1.9], {"bound_median_s": 0.5, "bound_worst_s": 2.0})
    assert (found["kills"], found["median_s"], found["worst_s"], found["within_bounds"]) == (3, 0.3, 1.9, True)
    assert not recovery.figures([0.6], {"bound_median_s": 0.5, "bound_worst_s": 2.0})["within_bounds"]
    assert not recovery.figures([2.1], {"bound_worst_s": 2.0})["within_bounds"]


def test_what_moves_is_told_by_process_in_the_order_of_their_first_calls() -> None:
    found = recovery_cluster.by_process([(10.5, 7), (11.0, 8), (11.25, 7)], 10.0)
    assert found == [{"moving": 2, "first_s": 0.5, "last_s": 1.25}, {"moving": 1, "first_s": 1.0, "last_s": 1.0}]


def test_a_history_written_in_bulk_is_one_that_lanes_could_have_left(tmp_path: Path) -> None:
    store = DuckDBStore(tmp_path / "long.duckdb")
    records = grow(store, "c", 200)
    report = Report()
    report.add(store.list_rows("c"), store.read_log("c", limit=1_000).batches, require_settled=True)
    store.close()
    assert report.problems == []
    assert 200 <= report.records == records < 200 + RECORDS_A_SUBMISSION
    assert report.outcomes == {"completed": report.submissions}


def test_every_move_of_a_ledger_is_counted(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    found = growth_file.ledger_moves(tmp_path, 800, lambda what, done, total: told.append((done, total)))
    assert (found["transitions"], found["submissions"]) == (800, 20)
    assert found["file_bytes_most"] >= found["file_bytes_at_end"] > 0
    assert told[-1] == (800, 800)


def test_a_store_s_bytes_are_told_beside_those_of_its_contents(tmp_path: Path) -> None:
    found = growth_file.bytes_of_turns(tmp_path, 3, QUIET)
    assert found["turns"] == 3
    assert set(found["content_bytes_by_kind"]) == {"inputs", "responses", "arguments", "results"}
    assert sum(found["content_bytes_by_kind"].values()) == found["content_bytes"]
    assert found["file_bytes"] == (tmp_path / "turns.duckdb").stat().st_size
    assert found["bytes_by_column"]["batch_log.body"] > found["content_bytes"]
