"""Group commit: many units, one machine, one physical transaction. Adapters supply the `Backing`."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from .commands import Admit, Answer, Rejected, Unit
from .errors import LanewayError
from .failpoints import Failpoints, Point
from .header import Changes, Header, Trace
from .ledger import Row
from .machine import apply
from .values import Limits

_RESIDENT_HEADERS = 50_000  # about 2 kB each; beyond it the least recently used is read again when it is named


@dataclasses.dataclass(slots=True)
class Resident:
    """A conversation that the engine keeps at hand: its header, and every admission key that it has seen."""

    header: Header
    keys: dict[tuple[str, str], str]


class Backing(Protocol):
    """What differs between adapters: how a header is read and how changes are stored."""

    def load(self, conversation_id: str) -> Resident: ...

    def load_closed(self, conversation_id: str, submission_id: str) -> tuple[Row, Trace] | None:
        """A settled row and its trace, or None when this conversation has no such submission."""
        ...

    def write(self, changes: Sequence[Changes]) -> None:
        """Store all of it in one transaction, or raise and store nothing, or raise StoreUnavailable and not know."""
        ...

    def refuse_admission(self) -> LanewayError | None:
        """Why nothing may be admitted now, None when all is well."""
        ...


class Engine:
    """Runs units through the machine against resident headers and hands accepted changes to the backing at once."""

    def __init__(
        self,
        backing: Backing,
        *,
        now_ms: Callable[[], int],
        leases: Mapping[str, int],
        limits: Limits,
        failpoints: Failpoints,
    ) -> None:
        self._backing = backing
        self._now_ms = now_ms
        self._leases = leases
        self._limits = limits
        self._failpoints = failpoints
        self._resident: OrderedDict[str, Resident] = OrderedDict()
        self.commits = self.units = self.rejected = self.batches = self.rows = self.body_bytes = 0

    def commit(self, units: Sequence[Unit]) -> list[Answer]:
        now_ms = self._now_ms()
        staged: dict[str, Header] = {}
        accepted: list[Changes] = []
        answers: list[Answer] = []
        for unit in units:
            answer, changes = self._decide(unit, staged, now_ms)
            answers.append(answer)
            if changes is not None:
                accepted.append(changes)
        if any(changes.rows or changes.batches or changes.checkpoint for changes in accepted):
            self._write(accepted, staged)
        for conversation_id, header in staged.items():
            self._resident[conversation_id].header = header
        for changes in accepted:
            self._count(changes)
        self.units += len(units)
        self.rejected += sum(isinstance(answer, Rejected) for answer in answers)
        self._shrink()
        return answers

    def _decide(self, unit: Unit, staged: dict[str, Header], now_ms: int) -> tuple[Answer, Changes | None]:
        try:
            if any(isinstance(command, Admit) for command in unit.commands):
                refusal = self._backing.refuse_admission()
                if refusal is not None:
                    raise refusal
            resident = self._get(unit.conversation_id)
            header = self._with_named(unit, staged.get(unit.conversation_id, resident.header), resident.keys)
        except LanewayError as error:
            return Rejected.from_error(error), None
        applied = apply(header, unit, now_ms=now_ms, leases=self._leases, limits=self._limits)
        if isinstance(applied, Rejected):
            return applied, None
        staged[unit.conversation_id] = applied.header
        for row in applied.changes.rows:
            resident.keys[row.principal, row.idempotency_key] = row.submission_id
        return applied.answer, applied.changes

    def _write(self, accepted: list[Changes], staged: dict[str, Header]) -> None:
        try:
            self._failpoints.hit(Point.BEFORE_COMMIT)
            self._backing.write(accepted)
            self._failpoints.hit(Point.AFTER_COMMIT)
        except BaseException:
            self.forget(staged)
            raise
        self.commits += 1

    def forget(self, conversation_ids: Mapping[str, object] | None = None) -> None:
        """Drop headers, all by default: they are read again from what was really stored."""
        if conversation_ids is None:
            self._resident.clear()
            return
        for conversation_id in conversation_ids:
            self._resident.pop(conversation_id, None)

    def header(self, conversation_id: str) -> Header:
        return self._get(conversation_id).header

    def _get(self, conversation_id: str) -> Resident:
        resident = self._resident.get(conversation_id)
        if resident is None:
            resident = self._resident[conversation_id] = self._backing.load(conversation_id)
        else:
            self._resident.move_to_end(conversation_id)
        return resident

    def _with_named(self, unit: Unit, header: Header, keys: Mapping[tuple[str, str], str]) -> Header:
        """Add what the unit names beyond the open rows: held keys, settled rows and their traces."""
        named: dict[tuple[str, str], str] = {}
        wanted: dict[str, None] = {}
        fresh = set[str]()
        for command in unit.commands:
            if isinstance(command, Admit):
                key = (command.principal, command.idempotency_key)
                holder = keys.get(key)
                if holder is not None:
                    named[key] = holder
                    wanted[holder] = None
                else:
                    fresh.add(command.submission_id)
            elif command.submission_id and command.submission_id not in fresh:
                wanted[command.submission_id] = None
        closed: dict[str, Row] = {}
        traces = dict[str, Trace]()
        for submission_id in wanted:
            if submission_id in header.rows:
                continue
            found = self._backing.load_closed(unit.conversation_id, submission_id)
            if found is not None and found[0].settled:
                closed[submission_id], traces[submission_id] = found
        if not named and not closed:
            return header
        return dataclasses.replace(header, closed=closed, keys=named, traces={**header.traces, **traces})

    def _count(self, changes: Changes) -> None:
        self.batches += len(changes.batches)
        self.rows += len(changes.rows)
        self.body_bytes += sum(len(batch.body) for batch in changes.batches)

    def _shrink(self) -> None:
        while len(self._resident) > _RESIDENT_HEADERS:
            self._resident.popitem(last=False)
