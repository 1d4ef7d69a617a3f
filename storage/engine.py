"""Group commit: many units, one machine, one physical transaction. Adapters supply the `Backing`."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Protocol

from .commands import Admit, Answer, Command, Rejected, Unit
from .errors import LanewayError, StoreBusy, StoreUnavailable
from .failpoints import Failpoints, Point
from .header import Changes, Header, Trace
from .ledger import Row
from .machine import apply, check_unit
from .values import Limits

_RESIDENT_HEADERS = 50_000  # about 2 kB each; beyond it the least recently used is read again when it is named


KEYS_HELD_MAX = 1024
"""So many admission keys of a conversation stay in memory; beyond it they are looked up when a unit names them."""

Key = tuple[str, str, str]
"""Conversation, principal and idempotency key."""


@dataclasses.dataclass(slots=True)
class Resident:
    """A conversation that the engine keeps at hand: its header, and all its admission keys, None where they are many.

    A header's cost must not grow with the submissions that a conversation has had.
    """

    header: Header
    keys: dict[tuple[str, str], str] | None

    def hold(self, row: Row) -> None:
        """A submission was admitted."""
        if self.keys is not None:
            self.keys[row.principal, row.idempotency_key] = row.submission_id
            if len(self.keys) > KEYS_HELD_MAX:
                self.keys = None


@dataclasses.dataclass(slots=True)
class _Group:
    """Units of one commit: what they leave so far, before anything is stored."""

    now_ms: int
    answers: list[Answer] = dataclasses.field(default_factory=list[Answer])
    accepted: list[Changes] = dataclasses.field(default_factory=list[Changes])
    staged: dict[str, tuple[Resident, Header]] = dataclasses.field(default_factory=dict[str, tuple[Resident, Header]])
    closed: dict[str, tuple[Row, Trace]] = dataclasses.field(default_factory=dict[str, tuple[Row, Trace]])
    """Submissions that this group settled: not open any more, and not stored yet."""
    keys: dict[Key, str | None] = dataclasses.field(default_factory=dict[Key, str | None])
    """Who holds the keys that this group names, as far as they were looked up or admitted in it."""


class Backing(Protocol):
    """What differs between adapters: how a header is read and how changes are stored."""

    def load(self, conversation_ids: Sequence[str]) -> Mapping[str, Resident | LanewayError]:
        """What is stored of each; a conversation that cannot be read is answered with its error."""
        ...

    def load_keys(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        """The submissions that hold these keys, where there are any."""
        ...

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
        quarantined: Container[str],
        limits: Limits,
        failpoints: Failpoints,
    ) -> None:
        self._backing = backing
        self._now_ms = now_ms
        self._leases = leases
        self._quarantined = quarantined
        self._limits = limits
        self._failpoints = failpoints
        self._resident: OrderedDict[str, Resident] = OrderedDict()
        self.commits = self.units = self.rejected = self.batches = self.rows = self.body_bytes = 0

    def commit(self, units: Sequence[Unit]) -> list[Answer]:
        group = _Group(now_ms=self._now_ms())
        try:
            self._prefetch(units, group)
            for unit in units:
                group.answers.append(self._decide(unit, group))
            if any(changes.rows or changes.batches or changes.checkpoint for changes in group.accepted):
                self._failpoints.hit(Point.BEFORE_COMMIT)
                self._backing.write(group.accepted)
                self._failpoints.hit(Point.AFTER_COMMIT)
                self.commits += 1
        except BaseException:
            self.forget(group.staged)
            raise
        for resident, header in group.staged.values():
            resident.header = header
        self._count(group)
        self._shrink()
        return group.answers

    def _prefetch(self, units: Sequence[Unit], group: _Group) -> None:
        """Read what a group misses at once: one by one, a hundred new lanes would cost a hundred reads."""
        missing = {unit.conversation_id: None for unit in units if unit.conversation_id not in self._resident}
        if len(missing) > 1:
            for conversation_id, found in self._backing.load(list(missing)).items():
                if isinstance(found, Resident):
                    self._resident[conversation_id] = found
        if len(units) > 1:
            many = (unit for unit in units if self._has_many_keys(unit.conversation_id) and self._sound(unit))
            self._look_up(many, group)

    def _has_many_keys(self, conversation_id: str) -> bool:
        resident = self._resident.get(conversation_id)
        return resident is not None and resident.keys is None

    def _sound(self, unit: Unit) -> bool:
        try:
            check_unit(unit, self._limits)
        except LanewayError:
            return False  # refused on its own turn, and not allowed to spoil what is asked for the others
        return True

    def _look_up(self, units: Iterable[Unit], group: _Group) -> None:
        """Find out who holds the keys of conversations that have too many of them to be held here."""
        wanted: dict[Key, None] = {}
        for unit in units:
            wanted |= dict.fromkeys(key for key in _keys_of(unit) if key not in group.keys)
        if wanted:
            group.keys |= dict.fromkeys(wanted) | dict(self._backing.load_keys(list(wanted)))

    def _decide(self, unit: Unit, group: _Group) -> Answer:
        try:
            check_unit(unit, self._limits)
            staged = group.staged.get(unit.conversation_id)
            resident, header = staged or self._loaded(unit.conversation_id)
            if resident.keys is None:
                self._look_up((unit,), group)
            header = self._with_named(unit, header, resident.keys, group)
            if any(_admits_anew(command, header) for command in unit.commands):
                refusal = self._backing.refuse_admission()
                if refusal is not None:
                    raise refusal
        except (StoreUnavailable, StoreBusy):
            raise  # no answer about one unit: the whole group is to be repeated
        except LanewayError as error:
            return Rejected.from_error(error)
        applied = apply(
            header,
            unit,
            now_ms=group.now_ms,
            leases=self._leases,
            limits=self._limits,
            quarantined=self._quarantined,
        )
        if isinstance(applied, Rejected):
            return applied
        group.staged[unit.conversation_id] = resident, applied.header
        group.closed.update(applied.closed)
        group.accepted.append(applied.changes)
        for row in applied.changes.rows:
            if row.submission_id in applied.changes.admitted:
                group.keys[row.conversation_id, row.principal, row.idempotency_key] = row.submission_id
                resident.hold(row)
        return applied.answer

    def forget(self, conversation_ids: Iterable[str] | None = None) -> None:
        """Drop headers, all by default: they are read again from what was really stored."""
        if conversation_ids is None:
            self._resident.clear()
            return
        for conversation_id in conversation_ids:
            self._resident.pop(conversation_id, None)

    def header(self, conversation_id: str) -> Header:
        """The conversation's header between units. Raises: StoreCorrupt, and what the backing raises."""
        return self._loaded(conversation_id)[1]

    def _loaded(self, conversation_id: str) -> tuple[Resident, Header]:
        resident = self._resident.get(conversation_id)
        if resident is None:
            found = self._backing.load([conversation_id])[conversation_id]
            if isinstance(found, LanewayError):
                raise found
            resident = self._resident[conversation_id] = found
        else:
            self._resident.move_to_end(conversation_id)
        return resident, resident.header

    def _with_named(
        self,
        unit: Unit,
        header: Header,
        keys: Mapping[tuple[str, str], str] | None,
        group: _Group,
    ) -> Header:
        """Add what the unit names beyond the open rows: held keys, settled rows and their traces."""
        named: dict[tuple[str, str], str] = {}
        wanted: dict[str, None] = {}
        fresh = set[str]()
        for command in unit.commands:
            if isinstance(command, Admit):
                key = (command.principal, command.idempotency_key)
                holder = group.keys.get((unit.conversation_id, *key)) if keys is None else keys.get(key)
                if holder is not None:
                    named[key] = holder
                    wanted[holder] = None
                fresh.add(command.submission_id)
            elif command.submission_id and command.submission_id not in fresh:
                wanted[command.submission_id] = None
        closed: dict[str, Row] = {}
        traces = dict[str, Trace]()
        for submission_id in wanted:
            if submission_id in header.rows:
                continue
            found = group.closed.get(submission_id) or self._backing.load_closed(unit.conversation_id, submission_id)
            if found is not None and found[0].settled and found[0].conversation_id == unit.conversation_id:
                closed[submission_id], traces[submission_id] = found
        if not named and not closed:
            return header
        return dataclasses.replace(header, closed=closed, keys=named, traces={**header.traces, **traces})

    def _count(self, group: _Group) -> None:
        self.units += len(group.answers)
        self.rejected += sum(isinstance(answer, Rejected) for answer in group.answers)
        for changes in group.accepted:
            self.batches += len(changes.batches)
            self.rows += len(changes.rows)
            self.body_bytes += sum(len(batch.body) for batch in changes.batches)

    def _shrink(self) -> None:
        while len(self._resident) > _RESIDENT_HEADERS:
            self._resident.popitem(last=False)


def _admits_anew(command: Command, header: Header) -> bool:
    """Whether the command asks for a row that is not there: a repeat gets its answer even when nothing more fits."""
    return isinstance(command, Admit) and (command.principal, command.idempotency_key) not in header.keys


def _keys_of(unit: Unit) -> list[Key]:
    return [
        (unit.conversation_id, command.principal, command.idempotency_key)
        for command in unit.commands
        if isinstance(command, Admit)
    ]
