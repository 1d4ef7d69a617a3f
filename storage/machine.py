"""The ledger and log machine: `apply(header, unit)` decides every write, for every adapter (Specification 3 to 13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from . import moves_log, moves_outcome, moves_queue
from .commands import Accepted, Command, Rejected, Result, Unit
from .errors import LanewayError
from .header import Changes, Header
from .values import DEFAULT_LIMITS, Limits
from .work import Work

Move = Callable[[Work, Any], Result]

MOVES: dict[type[Command], Move] = {**moves_queue.MOVES, **moves_log.MOVES, **moves_outcome.MOVES}
"""One function a command: it reads and changes the work at hand, or raises and the whole unit changes nothing."""


class Applied(msgspec.Struct, frozen=True):
    """An accepted unit: its answer, what to store, and the header afterwards."""

    answer: Accepted
    changes: Changes
    header: Header


def apply(
    header: Header,
    unit: Unit,
    *,
    now_ms: int,
    leases: Mapping[str, int],
    limits: Limits = DEFAULT_LIMITS,
) -> Applied | Rejected:
    """Decide `unit` against `header`: pure, total, all commands or none.

    `leases` maps an owner to the moment (ms) at which its lease runs out; an owner that is missing has none.
    """
    work = Work(header, unit.fence, now_ms, leases, limits)
    results: list[Result] = []
    try:
        for command in unit.commands:
            results.append(MOVES[type(command)](work, command))
    except LanewayError as error:
        return Rejected.from_error(error)
    return Applied(Accepted(results=tuple(results)), work.changes(), work.header())
