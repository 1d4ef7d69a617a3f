"""SQL for people: the views, what they show, and what may be asked (design, section 4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from store_builders import Clock, Conversation, Maker, append_of, note

from laneway.storage.commands import MarkUnknown, ResolveUnknown
from laneway.storage.contract import Store
from laneway.storage.errors import InvalidInput, Refused
from laneway.storage.memory_store import MemoryStore
from laneway.storage.records import (
    AnyRecord,
    ErrorFact,
    ModelResponded,
    ToolCall,
    ToolCallPrepared,
    ToolCallResolved,
    ToolCallSettled,
    ToolCallUnknown,
)


def call(number: int) -> ToolCall:
    return ToolCall(id=f"call_{number}", provider_id=f"call-{number % 2}", name="charge", arguments='{"amount": 5}')


def prepared(number: int) -> ToolCallPrepared:
    return ToolCallPrepared(
        id=f"prepared_{number}",
        run_id="run_sub_1",
        call_id=f"call_{number}",
        tool="charge",
        tool_digest="d",
        input_digest="d",
        effect="uncertain",
        idempotency_key=f"key_{number}",
    )


def resolved(number: int, resolution: Any, result: Any = None) -> ToolCallResolved:
    return ToolCallResolved(
        id=f"resolved_{number}",
        run_id="run_sub_1",
        call_id=f"call_{number}",
        resolution=resolution,
        author="operator",
        reason="looked",
        result=result,
    )


def settled(number: int, **more: Any) -> ToolCallSettled:
    return ToolCallSettled(id=f"settled_{number}", run_id="run_sub_1", call_id=f"call_{number}", **more)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One conversation with a call in every state, settled; another one that runs. Nobody changes it."""
    maker = Maker("duckdb", tmp_path_factory.mktemp("query"), Clock())
    store = maker()
    lane = Conversation(store)
    lane.start("sub_1")
    facts: list[AnyRecord] = [
        ModelResponded(id="m", run_id="run_sub_1", turn=1, tool_calls=tuple(call(number) for number in range(8))),
        *(prepared(number) for number in range(1, 8)),
        settled(2, outcome="succeeded", result={"paid": 5}),
        settled(3, outcome="failed", error=ErrorFact(code="no_money", message="broke")),
        *(
            ToolCallUnknown(id=f"unknown_{n}", run_id="run_sub_1", call_id=f"call_{n}", reason="lost")
            for n in (4, 5, 6, 7)
        ),
        resolved(5, "completed_with_result", "ok"),
        resolved(6, "never_started"),
        resolved(7, "abort"),
    ]
    lane.append("sub_1", *facts)
    lane.settle("sub_1", output={"text": "done"})
    other = Conversation(store, "other")
    other.submit("sub_2", 'it\'s "quoted"', principal="bob")
    other.claim("o2")
    yield store
    maker.close()


def rows(store: Store, sql: str) -> list[dict[str, Any]]:
    table = store.query(sql)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_batches_and_records(store: Store) -> None:
    """Views `batches` and `records`: one row each, in order, with their times and the chain."""
    batches = rows(store, "SELECT * FROM batches WHERE conversation_id = 'c' ORDER BY first_sequence")
    assert [(row["first_sequence"], row["last_sequence"]) for row in batches] == [(1, 1), (2, 18), (19, 19)]
    assert [row["previous_digest"] for row in batches[1:]] == [row["digest"] for row in batches[:-1]]
    assert batches[0]["committed_at"] == "2023-11-14T22:13:20.000Z"
    records = rows(store, "SELECT * FROM records ORDER BY sequence")
    assert [row["sequence"] for row in records] == list(range(1, 20))
    assert [row["type"] for row in records][:3] == ["input_recorded", "model_responded", "tool_call_prepared"]
    assert records[9]["record"]["result"] == {"paid": 5}
    assert records[9]["run_id"] == "run_sub_1"


def test_submissions(store: Store) -> None:
    """View `submissions`: state and times as text; no token, whatever is asked."""
    found = {row["submission_id"]: row for row in rows(store, "FROM submissions")}
    assert (found["sub_1"]["state"], found["sub_1"]["outcome"], found["sub_1"]["attempts"]) == (
        "completed",
        "completed",
        1,
    )
    assert found["sub_1"]["settled_at"] == found["sub_1"]["admitted_at"] == "2023-11-14T22:13:20.000Z"
    assert (found["sub_2"]["state"], found["sub_2"]["settled_at"], found["sub_2"]["owner_id"]) == (
        "running",
        None,
        "o2",
    )
    assert (found["sub_2"]["idempotency_key"], found["sub_2"]["agent"]) == ('it\'s "quoted"', "support")
    assert "tok_" not in json.dumps(found)


def test_tool_calls(store: Store) -> None:
    """View `tool_calls`: declared, prepared, succeeded, failed, unknown; in the order of declaration."""
    found = rows(store, "FROM tool_calls")
    assert [row["state"] for row in found] == [
        "declared",
        "prepared",
        "succeeded",
        "failed",
        "unknown",
        "succeeded",
        "declared",
        "unknown",
    ]
    assert [row["call_id"] for row in found] == [f"call_{number}" for number in range(8)]
    assert found[2]["result"] == {"paid": 5}
    assert found[3]["result"]["code"] == "no_money"
    assert found[5]["result"] == "ok"
    row = found[2]
    assert (row["tool"], row["effect"], row["turn"], row["provider_id"]) == ("charge", "uncertain", 1, "call-0")
    assert row["arguments"] == '{"amount": 5}'


def test_settlements(store: Store) -> None:
    """View `settlements`: the outcome as it stands in the log."""
    (row,) = rows(store, "FROM settlements")
    assert (row["submission_id"], row["outcome"], row["sequence"], row["output"]) == (
        "sub_1",
        "completed",
        19,
        {"text": "done"},
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 AS one",
        "WITH t AS (SELECT * FROM submissions) SELECT count(*) FROM t",
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 3) SELECT * FROM t",
        "FROM records SELECT type, count(*) GROUP BY ALL",
        "VALUES (1)",
        "SELECT * FROM main.batches JOIN submissions USING (conversation_id)",
        "SELECT (SELECT count(*) FROM records r WHERE r.submission_id = s.submission_id) FROM submissions s",
        "SELECT unnest([1, 2])",
        "SELECT * FROM range(3)",
        "SELECT e.key FROM records, json_each(record) AS e",
        "DESCRIBE tool_calls",
        "SUMMARIZE submissions",
        "SHOW TABLES",
        "PRAGMA show_tables;",
        "EXPLAIN SELECT * FROM records",
        "explain analyze SELECT * FROM records",
        "SELECT table_name FROM information_schema.tables",
    ],
)
def test_what_may_be_asked(store: Store, sql: str) -> None:
    """Contract: read-only questions over the views."""
    assert store.query(sql).rows


@pytest.mark.parametrize(
    "sql",
    [
        "",
        ";",
        "SELEC 1",
        "SELECT * FROM nothing",
        "SELECT nothing FROM records",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE ledger",
        "SELECT * FROM ledger",
        "SELECT token FROM (SELECT detail AS token FROM main.ledger)",
        "WITH ledger AS (SELECT 1) SELECT * FROM ledger",
        "SELECT * FROM submissions WHERE EXISTS (FROM batch_log)",
        "WITH x AS (SELECT * FROM owners) SELECT * FROM x",
        "SELECT * FROM query('SELECT * FROM ledger')",
        "SELECT * FROM query_table('ledger')",
        "SELECT * FROM duckdb_tables()",
        "SELECT * FROM pragma_storage_info('ledger')",
        "SELECT * FROM duckdb_settings()",
        "DESCRIBE ledger",
        "SUMMARIZE ledger",
        "EXPLAIN SELECT * FROM ledger",
        "EXPLAIN ANALYZE INSERT INTO owners VALUES ('x', 1)",
        "INSERT INTO owners VALUES ('x', 1)",
        "WITH a AS (SELECT 1) INSERT INTO owners SELECT 'x', 1 FROM a",
        "UPDATE ledger SET state = 'ready'",
        "DELETE FROM batch_log",
        "DROP VIEW records",
        "CREATE TABLE t (a INTEGER)",
        "CREATE TEMP TABLE t AS SELECT 1",
        "COPY records TO 'out.csv'",
        "COPY (SELECT 1) TO 'out.csv'",
        "EXPORT DATABASE 'out'",
        "ATTACH 'other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 8",
        "PRAGMA threads = 8",
        "PRAGMA database_list",
        "CALL pragma_version()",
        "CHECKPOINT",
        "VACUUM",
        "BEGIN",
        "COMMIT",
        "USE memory",
        "PREPARE p AS SELECT 1",
        "SELECT * FROM 'store.duckdb'",
        "SELECT * FROM read_csv('/etc/hostname')",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM glob('/*')",
        "SELECT 1 FROM range((SELECT count(*) FROM ledger))",
        "SELECT '\ud800'",
    ],
)
def test_what_may_not_be_asked(store: Store, sql: str) -> None:
    """Contract: everything that writes, reads files, or reaches behind the views is InvalidInput with field `sql`."""
    with pytest.raises(InvalidInput) as caught:
        store.query(sql)
    assert caught.value.details["field"] == "sql"
    assert len(store.query("FROM records").rows) == 19


def test_answers_are_json_values_and_bounded(store: Store) -> None:
    """Contract: times and other types come as text; `limit` rows; text from tools comes back exactly."""
    table = store.query(
        "SELECT DATE '2020-01-02', TIMESTAMP '2020-01-02 03:04:05', 1.5::DECIMAL(4, 2),"
        " 170141183460469231731687303715884105727, 'NaN'::DOUBLE, [1, 2],"
        " {'a': DATE '2020-01-02'}, 'ab'::BLOB, uuid(), NULL, true, '{\"k\": [1]}'::JSON"
    )
    row = table.rows[0]
    assert row[:8] == (
        "2020-01-02",
        "2020-01-02T03:04:05",
        "1.50",
        "170141183460469231731687303715884105727",
        "nan",
        [1, 2],
        {"a": "2020-01-02"},
        "6162",
    )
    assert row[9:] == (None, True, {"k": [1]})
    json.dumps(table.rows)
    assert len(store.query("FROM records", limit=3).rows) == 3
    assert store.query("FROM records", limit=0).rows == ()


def test_views_show_text_as_it_is(duckdb_make: Maker) -> None:
    """F25: emoji, NUL and quotes pass through the views unharmed."""
    lane = Conversation(duckdb_make())
    lane.start("sub_1")
    text = "\U0001f6e4 \u0000 \u2028 \" ' \\ "
    lane.append("sub_1", note("x", text))
    (row,) = rows(lane.store, "SELECT record FROM records WHERE type = 'repair_annotated'")
    assert row["record"]["note"] == text


def test_views_show_open_unknown_work(duckdb_make: Maker) -> None:
    """Contract: questions follow the writer at once."""
    lane = Conversation(duckdb_make())
    lane.start("sub_1")
    lane.do(
        append_of("sub_1", ModelResponded(id="m", run_id="run_sub_1", turn=1, tool_calls=(call(1),)), prepared(1)),
        append_of("sub_1", ToolCallUnknown(id="u", run_id="run_sub_1", call_id="call_1", reason="lost")),
        MarkUnknown(submission_id="sub_1", calls={"call_1": "lost"}),
    )
    assert rows(lane.store, "SELECT state FROM tool_calls") == [{"state": "unknown"}]
    assert rows(lane.store, "SELECT state FROM submissions") == [{"state": "unknown"}]
    lane.do(
        ResolveUnknown(
            submission_id="sub_1", call_id="call_1", resolution="never_started", author="operator", reason="looked"
        )
    )
    assert rows(lane.store, "SELECT state FROM submissions") == [{"state": "ready"}]


def test_the_memory_store_speaks_no_sql() -> None:
    """Contract: Refused where the adapter speaks none."""
    with pytest.raises(Refused) as caught:
        MemoryStore().query("SELECT 1")
    assert caught.value.code == "sql_not_supported"
