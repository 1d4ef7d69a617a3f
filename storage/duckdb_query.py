"""Questions in SQL: read-only statements over the views, and their answers as JSON values."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterator
from typing import Any

import duckdb

from .contract import Table
from .errors import InvalidInput

VIEWS = frozenset({"batches", "quarantines", "records", "submissions", "tool_calls", "settlements"})
_FUNCTIONS = frozenset({"unnest", "range", "generate_series", "json_each", "json_tree"})
_QUERY_S_MAX = 30.0  # a question is for people; a longer one would keep a core from the lanes
_EXPLAIN = re.compile(r"\s*explain\s+(?:analyze\s+)?(?P<asked>.+)", re.IGNORECASE | re.DOTALL)
_SHOW_TABLES = re.compile(r"\s*(?:show\s+(?:all\s+)?tables|pragma\s+show_tables)\s*;?\s*", re.IGNORECASE)
_TABLES_ASKED = f"SELECT unnest({sorted(VIEWS)}) AS name"
_INTEGER_MIN, _INTEGER_MAX = -(2**63), 2**64 - 1


def answer(cursor: duckdb.DuckDBPyConnection, sql: str, limit: int) -> Table:
    """Run one read-only statement over the views on `cursor`, which has a read-only transaction open.

    Raises: InvalidInput with field `sql` for anything else, and for a question that runs too long.
    """
    _check_text(sql)
    if _SHOW_TABLES.fullmatch(sql):
        sql = _TABLES_ASKED
    try:
        _check(cursor, sql)
        return _run(cursor, sql, limit)
    except duckdb.InterruptException as error:
        raise _invalid(f"it ran longer than {_QUERY_S_MAX:g} s") from error
    except (duckdb.IOException, duckdb.FatalException, duckdb.InternalException, duckdb.ConnectionException):
        raise
    except duckdb.Error as error:
        raise _invalid(str(error)) from error


def _check_text(sql: str) -> None:
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise _invalid("it holds a lone surrogate") from error


def _run(cursor: duckdb.DuckDBPyConnection, sql: str, limit: int) -> Table:
    alarm = threading.Timer(_QUERY_S_MAX, cursor.interrupt)
    alarm.daemon = True
    alarm.start()
    try:
        result = cursor.execute(sql)
        description = result.description or []
        found = result.fetchmany(limit) if limit > 0 else []
    finally:
        alarm.cancel()
    as_json = [str(column[1]) == "JSON" for column in description]
    rows = tuple(
        tuple(
            json.loads(value) if holds and value else _json_value(value)
            for value, holds in zip(row, as_json, strict=True)
        )
        for row in found
    )
    return Table(columns=tuple(str(column[0]) for column in description), rows=rows)


def _check(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = cursor.extract_statements(sql)
    if len(statements) != 1:
        raise _invalid(f"it has {len(statements)} statements; ask one at a time")
    kind = statements[0].type
    if kind == duckdb.StatementType.EXPLAIN:
        explained = _EXPLAIN.fullmatch(sql)
        if explained is None:
            raise _invalid("this form of EXPLAIN is not offered")
        return _check(cursor, explained["asked"])
    if kind != duckdb.StatementType.SELECT:
        raise _invalid("only SELECT, WITH, SHOW TABLES, DESCRIBE, SUMMARIZE and EXPLAIN are answered")
    row = cursor.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    tree: dict[str, Any] = json.loads(row[0]) if row else {"error": True}
    if tree.get("error"):
        raise _invalid(str(tree.get("error_message", "it does not parse")))
    _check_tree(tree)
    return None


def _check_tree(tree: dict[str, Any]) -> None:
    """Every table that the question names is a view of views.sql or a name of its own; no function reads elsewhere."""
    nodes = list(_nodes(tree))
    own_names = {
        str(entry["key"]).lower()
        for node in nodes
        if isinstance(named := node.get("cte_map"), dict)
        for entry in named.get("map", ())
    }
    for name in own_names & _HIDDEN:
        raise _invalid(f"{name} is the name of a table of the store; use another one")
    for node in nodes:
        if node.get("type") == "BASE_TABLE":
            name = str(node.get("table_name", "")).lower()
            schema = str(node.get("schema_name", "")).lower()
            catalog = str(node.get("catalog_name", "")).lower()
            known = name in VIEWS and schema in ("", "main")
            own = name in own_names and not schema
            described = schema == "information_schema" and name in ("tables", "columns")
            if catalog or not (known or own or described):
                raise _invalid(f"there is no view {name!r}; there are {', '.join(sorted(VIEWS))}")
        elif node.get("type") == "TABLE_FUNCTION":
            function = str((node.get("function") or {}).get("function_name", "")).lower()
            if function not in _FUNCTIONS:
                raise _invalid(f"the table function {function} is not offered")
        elif node.get("type") == "SHOW_REF" and node.get("table_name"):
            raise _invalid("ask SHOW TABLES or DESCRIBE <view>")


_HIDDEN = frozenset({"manifest", "conversations", "ledger", "batch_log", "checkpoints", "owners", "shard"})


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield node
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if _INTEGER_MIN <= value <= _INTEGER_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): _json_value(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(member) for member in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _invalid(why: str) -> InvalidInput:
    return InvalidInput(f"the question cannot be answered: {why}", field="sql")
