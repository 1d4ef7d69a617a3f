"""Rows of the DuckDB tables: the one place where a database row becomes a `Row` or a `Batch`, and back."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import msgspec

from .contract import ControlRow
from .errors import StoreCorrupt
from .header import Batch
from .ledger import TERMINAL, Row, State
from .readback import owner_is_live
from .values import encode

_KEY = ("submission_id",)
_ADMITTED = ("conversation_id", "queue_sequence", "principal", "idempotency_key", "admitted_at_ms", "admission")
_MUTABLE = (
    "state",
    "owner_id",
    "epoch",
    "parked",
    "abort_requested",
    "attempts",
    "not_before_ms",
    "updated_at_ms",
    "input",
    "detail",
)
LEDGER_COLUMNS = _KEY + _ADMITTED + _MUTABLE
LEDGER_UPDATED = _KEY + _MUTABLE
BATCH_COLUMNS = (
    "conversation_id",
    "first_sequence",
    "last_sequence",
    "submission_id",
    "batch_id",
    "producer_id",
    "epoch",
    "schema_version",
    "digest",
    "body",
    "committed_at_ms",
)
CONTROL_COLUMNS = (
    "submission_id",
    "conversation_id",
    "queue_sequence",
    "state",
    "owner_id",
    "parked",
    "abort_requested",
    "attempts",
    "not_before_ms",
    "updated_at_ms",
    "admitted_at_ms",
)
TERMINAL_SQL = ", ".join(f"'{state}'" for state in sorted(TERMINAL))

_IN_ADMISSION = ("receipt_id", "input_digest", "agent")
_DERIVED = ("admission", "abort_requested", "detail")  # columns that are no field of their own
_PLAIN = tuple(name for name in LEDGER_COLUMNS if name not in _DERIVED)
_IN_DETAIL = tuple(name for name in Row.__struct_fields__ if name not in (*_PLAIN, *_IN_ADMISSION))
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Row)}


def admitted_values(row: Row) -> tuple[Any, ...]:
    """`row` as LEDGER_COLUMNS."""
    admission = encode({name: getattr(row, name) for name in _IN_ADMISSION}).decode()
    return (
        row.submission_id,
        row.conversation_id,
        row.queue_sequence,
        row.principal,
        row.idempotency_key,
        row.admitted_at_ms,
        admission,
        *updated_values(row)[1:],
    )


def updated_values(row: Row) -> tuple[Any, ...]:
    """`row` as LEDGER_UPDATED: what may change after admission."""
    detail = {name: value for name in _IN_DETAIL if (value := getattr(row, name)) not in (None, _DEFAULTS[name], {})}
    return (
        row.submission_id,
        str(row.state),
        row.owner_id,
        row.epoch,
        row.parked,
        row.abort is not None,
        row.attempts,
        row.not_before_ms,
        row.updated_at_ms,
        row.input,
        encode(detail).decode(),
    )


def row_from(values: Sequence[Any]) -> Row:
    """A ledger row from LEDGER_COLUMNS. Raises: StoreCorrupt, naming the conversation and the submission."""
    stored: dict[str, Any] = dict(zip(LEDGER_COLUMNS, values, strict=True))
    try:
        fields = {name: stored[name] for name in _PLAIN}
        fields |= msgspec.json.decode(stored["admission"], type=dict[str, Any])
        fields |= msgspec.json.decode(stored["detail"], type=dict[str, Any])
        return msgspec.convert(fields, Row)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise StoreCorrupt(
            f"the ledger row of {stored['submission_id']} does not decode: {error}",
            conversation_id=stored["conversation_id"],
            submission_id=stored["submission_id"],
        ) from error


def batch_values(batch: Batch) -> tuple[Any, ...]:
    """`batch` as BATCH_COLUMNS."""
    return tuple(getattr(batch, name) for name in BATCH_COLUMNS)


def batch_from(values: Sequence[Any], previous: str | None) -> Batch:
    """A batch from BATCH_COLUMNS and the digest before it, None where there is no batch before it.

    Raises: StoreCorrupt, naming the conversation and the sequence.
    """
    fields = dict(zip(BATCH_COLUMNS, values, strict=True))
    if previous is None and fields["first_sequence"] == 1:
        previous = ""
    try:
        return msgspec.convert({**fields, "previous_digest": previous}, Batch)
    except msgspec.MsgspecError as error:
        what = "follows a gap" if previous is None else f"does not decode: {error}"
        raise StoreCorrupt(
            f"batch {fields['batch_id']} of {fields['conversation_id']} {what}",
            conversation_id=fields["conversation_id"],
            sequence=fields["first_sequence"],
        ) from error


_STATES = frozenset(State)


def control_from(
    values: Sequence[Any], leases: Mapping[str, int], quarantined: Container[str], now_ms: int
) -> ControlRow:
    """The control fields from CONTROL_COLUMNS; no payload is touched.

    A state that is damaged shows as one that somebody has to look after: one row must not end the scan of all, and
    whoever claims it finds the damage and sets its conversation aside.
    """
    fields = dict(zip(CONTROL_COLUMNS, values, strict=True))
    stored = fields.pop("state")
    state = State(stored) if stored in _STATES else State.RECOVERY
    live = owner_is_live(state, fields["owner_id"], leases, now_ms)
    held = fields["conversation_id"] in quarantined
    return ControlRow(**fields, state=state, owner_live=live, quarantined=held)
