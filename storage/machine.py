"""The ledger and log machine: `apply(header, unit)` decides every write, for every adapter (Specification 3 to 13)."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import msgspec

from . import moves_log, moves_outcome, moves_queue
from .commands import Accepted, Command, Rejected, Result, Unit
from .errors import InvalidInput, LanewayError
from .header import Changes, Header, Trace
from .ledger import Row
from .values import DEFAULT_LIMITS, Limits, check_text
from .work import Work

Move = Callable[[Work, Any], Result]

_encoder = msgspec.msgpack.Encoder()

MOVES: dict[type[Command], Move] = {**moves_queue.MOVES, **moves_log.MOVES, **moves_outcome.MOVES}
"""One function a command: it reads and changes the work at hand, or raises and the whole unit changes nothing."""


class Applied(msgspec.Struct, frozen=True):
    """An accepted unit: its answer, what to store, and the header afterwards."""

    answer: Accepted
    changes: Changes
    header: Header
    closed: Mapping[str, tuple[Row, Trace]]
    """Submissions that the unit settled, for units behind it in the same group."""


def check_unit(unit: Unit, limits: Limits = DEFAULT_LIMITS) -> None:
    """Refuse what no adapter could store, so that one bad unit never hurts its neighbours in a group.

    Raises: InvalidInput for an unknown command, a bad conversation id, and text that UTF-8 cannot hold.
    """
    check_text(unit.conversation_id, "conversation_id", length_max=limits.id_length_max)
    for command in unit.commands:
        if type(command) not in MOVES:
            raise InvalidInput(f"there is no command {type(command).__name__}", field="commands")
    try:
        _encoder.encode(unit)
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"the unit holds the lone surrogate U+{ord(error.object[error.start]):04X}", field="commands"
        ) from None
    except (TypeError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"the unit cannot be encoded: {error}", field="commands") from error


def apply(
    header: Header,
    unit: Unit,
    *,
    now_ms: int,
    leases: Mapping[str, int],
    limits: Limits = DEFAULT_LIMITS,
    quarantined: Container[str] = frozenset(),
) -> Applied | Rejected:
    """Decide `unit` against `header`: pure, total, all commands or none.

    `leases` maps an owner to the moment (ms) at which its lease runs out; an owner that is missing has none.
    `quarantined` holds the conversations whose lanes nobody may claim.
    """
    held = header.conversation_id in quarantined
    work = Work(header, unit.fence, now_ms, leases, limits, quarantined=held)
    results: list[Result] = []
    try:
        for command in unit.commands:
            results.append(MOVES[type(command)](work, command))
    except LanewayError as error:
        return Rejected.from_error(error)
    return Applied(Accepted(results=tuple(results)), work.changes(), work.header(), work.closed())
