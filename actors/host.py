"""The host of many lanes in one process. It knows no Ray: actors and the local runtime are shells round it."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from ..agents.authority import Act, act_on, require
from ..agents.protocol import Delta
from ..agents.registry import Registry
from ..storage.commands import AbortAnswer, Decided, Moved
from ..storage.contract import Quarantine
from ..storage.errors import InvalidInput, LanewayError, NotFound
from ..storage.failpoints import NO_FAILPOINTS, Failpoints
from ..storage.ids import new_id
from ..storage.ledger import Receipt, Row
from ..storage.readback import wall_clock_ms
from ..storage.records import AnyRecord, SubmissionSettled, decode_records
from . import operations
from .decisions import Decision, carry_out
from .lane.feed import Cursor
from .lane.lane import Lane
from .lane.services import LaneServices
from .lane.settings import LaneSettings
from .lane.stopping import Adrift
from .lane.values import Admission, Settlement, settlement_of
from .operations import Operation
from .sharded_client import store_client
from .store_client import StoreClient, StoreLink

_log = logging.getLogger("laneway.host")
_T = TypeVar("_T")
_SETTLED_KEPT = 4096  # outcomes that are told without a read; older ones are in the store
_ADMISSIONS_S = 1.0  # an admission takes milliseconds where the store answers at all
_RECHECK_S = 2.0  # how long a waiter trusts that this host would be told of a settlement


class Poll(msgspec.Struct, frozen=True, kw_only=True):
    """What a watcher gets: canonical records with their sequence, provisional deltas, and where to go on.

    `quiet` says that nothing is owed in this conversation: the stream has come to its end.
    """

    records: list[tuple[int, AnyRecord]]
    deltas: list[Delta]
    cursor: Cursor
    quiet: bool


class LaneHost:
    """Hosts up to `lanes_per_actor` lanes, passivates idle ones, and holds one lease for all of them."""

    def __init__(
        self,
        link: StoreLink,
        registry: Registry,
        settings: LaneSettings,
        *,
        failpoints: Failpoints = NO_FAILPOINTS,
        chance: random.Random | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
        monotonic: Callable[[], float] = time.monotonic,
        owner_id: str | None = None,
    ) -> None:
        self.owner_id = owner_id or new_id("own")
        self._link = link
        self._settings = settings
        self._monotonic = monotonic
        self._chance = chance or random.Random()
        self.store = store_client(link, self._chance)
        self._registry = registry
        self._lanes: OrderedDict[str, Lane] = OrderedDict()
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._waiters: dict[str, set[asyncio.Future[Settlement | None]]] = {}
        self._owed = set[str]()
        self._told: OrderedDict[str, Settlement] = OrderedDict()
        self._counts: Counter[str] = Counter()
        self._adrift = Adrift(self._counts)
        self._retired = False
        self._closed = threading.Event()
        self._draining = False
        self._closing: asyncio.Task[None] | None = None
        self._at_work: set[asyncio.Task[Any]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._services = LaneServices(
            store=self.store,
            registry=registry,
            owner_id=self.owner_id,
            settings=settings,
            now_ms=now_ms,
            monotonic=monotonic,
            chance=self._chance,
            recorded=self._recorded,
            settled=self._settled,
            lane_idle=self._lane_idle,
            failpoints=failpoints,
            counts=self._counts,
            adrift=self._adrift,
        )

    async def start(self, *, keep_lease: bool = True) -> None:
        """Take the process's lease and keep it from a thread, so that a busy event loop never loses it.

        Without `keep_lease` the caller keeps it: by `renew_lease`, every `lease_ttl_s` / 3.
        """
        await self.renew_lease()
        if keep_lease:
            threading.Thread(target=self._renew, name="laneway-lease", daemon=True).start()
        self._tasks.append(asyncio.get_running_loop().create_task(self._passivate_idle()))

    async def close(self) -> None:
        """A planned stop: lanes are released at safe boundaries, tool calls in flight get `drain_grace_s`, and the
        lease is given back; others may claim at once. It is done once, however often and by whomever it is asked."""
        if self._closing is None:
            self._draining = True
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._admitted()  # what admissions under way have claimed has to be released
        grace_s = self._settings.drain_grace_s
        await asyncio.gather(*(lane.close(grace_s) for lane in self._lanes.values()), return_exceptions=True)
        await self._admitted()
        self._closed.set()
        for task in list(self._at_work):
            task.cancel()
        await asyncio.gather(*self._at_work, return_exceptions=True)
        await self.store.close()
        try:
            await self._link.call("retire_owner", self.owner_id)
        except LanewayError as error:
            _log.info("the lease runs out by itself: %s", error)

    # --- what callers ask --------------------------------------------------------------------------------------------

    async def submit(self, conversation_id: str, admission: Admission) -> Receipt:
        """Durable admission (DUR-001). Raises: AdmissionConflict, InvalidInput for an unknown agent, Refused."""
        if self._registry.get(admission.agent) is None:
            known = ", ".join(self._registry.names()) or "none"
            raise InvalidInput(f"no agent is named {admission.agent!r}; this runtime knows {known}", field="agent")
        receipt = await self._to_its_end(self._lane_or_visitor(conversation_id).submit(admission))
        if not receipt.replayed and receipt.submission_id not in self._told:
            self._owed.add(receipt.submission_id)
        return receipt

    async def steer(self, conversation_id: str, admission: Admission) -> Receipt:
        """Durable admission into the stream of the active run. Raises: AdmissionConflict; Refused with code
        "nothing_to_steer" where nothing runs."""
        receipt = await self._to_its_end(self._lane_or_visitor(conversation_id).steer(admission))
        if not receipt.replayed and receipt.submission_id not in self._told:
            self._owed.add(receipt.submission_id)
        return receipt

    async def activate(self, conversation_ids: list[str]) -> None:
        """Look for work in these conversations; harmless where there is none."""
        for conversation_id in conversation_ids:
            self._lane_or_visitor(conversation_id).recover()

    async def settlement(self, conversation_id: str, submission_id: str, timeout_s: float) -> Settlement | None:
        """Wait for the outcome, `timeout_s` at most; None when it is still open then. Raises: NotFound."""
        deadline = self._monotonic() + timeout_s
        future: asyncio.Future[Settlement | None]
        sure = submission_id not in self._owed  # what was admitted here is told here; the store is asked if it is not
        while True:
            future = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(submission_id, set()).add(future)
            try:
                async with asyncio.timeout(_RECHECK_S):  # the store may be away, and waits are bounded all the same
                    settled = await self._recorded_settlement(conversation_id, submission_id, sure=sure)
                sure = True
                remaining = deadline - self._monotonic()
                if settled is not None or remaining <= 0:
                    return settled
                async with asyncio.timeout(min(remaining, _RECHECK_S)):
                    settled = await future
                if settled is not None:
                    return settled
            except TimeoutError:
                if self._monotonic() >= deadline:
                    return None
            finally:
                waiters = self._waiters.get(submission_id)
                if waiters is not None:
                    waiters.discard(future)
                    if not waiters:
                        del self._waiters[submission_id]

    async def poll(self, conversation_id: str, cursor: Cursor, timeout_s: float) -> Poll:
        """Records behind the cursor and provisional deltas; waits for some, `timeout_s` at most."""
        deadline = self._monotonic() + timeout_s
        while True:
            lane = self._lane_or_visitor(conversation_id)
            if lane.nothing_to_do is None and lane.idle:
                lane.wake()
            quiet, version = lane.quiet, lane.feed.version
            records = await self._records(lane, cursor.after, sure=quiet)
            deltas, count = lane.feed.deltas_after(cursor)
            remaining = deadline - self._monotonic()
            if records or deltas or quiet or remaining <= 0:
                after = records[-1][0] if records else cursor.after
                return Poll(
                    records=records,
                    deltas=deltas,
                    cursor=Cursor(after=after, generation=lane.feed.generation, delta=count),
                    quiet=quiet,
                )
            await lane.feed.changed(min(remaining, _RECHECK_S), version)

    async def abort(
        self, conversation_id: str, submission_id: str, abort_id: str, author: str, reason: str
    ) -> AbortAnswer:
        """DUR-012. Raises: Refused with code "already_settled" or "not_authorised"; NotFound."""
        if self._registry.authorize is not None:
            row: Row | None = await self.store.read("lookup", submission_id)
            if row is None:
                raise NotFound(f"no submission {submission_id}", submission_id=submission_id)
            await self.permit(act_on(row, "abort", author, reason))
        lane = self._lane_or_visitor(conversation_id)
        return await self._to_its_end(lane.abort(submission_id, abort_id, author, reason))

    async def operate(self, conversation_id: str, operation: Operation) -> Receipt | Quarantine | None:
        """What an operator does to work that is stuck or has failed. Raises: what `operations.carry_out` raises."""
        answer = await operations.carry_out(
            self.store, self._registry.authorize, self.submit, operation, self._services.now_ms()
        )
        self._lane_or_visitor(conversation_id).recover()
        return answer

    async def decide(self, conversation_id: str, decision: Decision) -> Decided | Moved:
        """What a person decides on open work; the lane goes on when nothing else is waited for.

        Raises: what `decisions.carry_out` raises.
        """
        answer = await self._to_its_end(carry_out(self.store, self._registry.authorize, decision))
        self._lane_or_visitor(conversation_id).wake()
        return answer

    async def permit(self, act: Act) -> None:
        """Ask the runtime's check for an act that is carried out elsewhere. Raises: Refused, code "not_authorised"."""
        await require(self._registry.authorize, act)

    def resident(self) -> list[str]:
        """The conversations whose lanes are in memory here."""
        return list(self._lanes)

    def stats(self) -> dict[str, Any]:
        """Counters of this process since it started."""
        return {
            "owner_id": self.owner_id,
            "lanes": len(self._lanes),
            "waiting": len(self._waiting),
            "at_work": self._at_work_count(),
            "adrift": self._adrift.running,
            "stained": self._adrift.running > 0,
            "retired": self._retired,
            "draining": self._draining,
            **dict(self._counts),
        }

    def retire(self) -> bool:
        """Take nothing new: lanes end what they run and claim no more. Whether nothing is at work here any longer."""
        if not self._retired:
            self._retired = True
            self._waiting.clear()
            for lane in self._lanes.values():
                lane.retire()
        return self._at_work_count() == 0

    def _at_work_count(self) -> int:
        return sum(not lane.at_rest for lane in self._lanes.values()) + len(self._at_work)

    async def _admitted(self) -> None:
        """Let what callers have handed over already reach the store."""
        if self._at_work:
            await asyncio.wait(list(self._at_work), timeout=_ADMISSIONS_S)

    # --- lanes -------------------------------------------------------------------------------------------------------

    async def _to_its_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await work that must not stop half-way when its caller loses interest: what it claimed has to be driven."""
        task = asyncio.get_running_loop().create_task(work)
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)
        return await asyncio.shield(task)

    def _lane_or_visitor(self, conversation_id: str) -> Lane:
        """The conversation's lane, made if there is room for it; while every lane here is at work, one that runs
        nothing, and the conversation waits for its place."""
        lane = self._lanes.get(conversation_id)
        if lane is None:
            if self._retired or self._draining:
                return Lane(conversation_id, self._services, may_run=False)
            if not self._make_room():
                self._waiting[conversation_id] = None
                return Lane(conversation_id, self._services, may_run=False)
            lane = self._lanes[conversation_id] = Lane(conversation_id, self._services)
            self._waiting.pop(conversation_id, None)
        else:
            self._lanes.move_to_end(conversation_id)
        return lane

    def _make_room(self) -> bool:
        if len(self._lanes) < self._settings.lanes_per_actor:
            return True
        watched: str | None = None  # a watcher alone holds no place: it looks again
        for name, lane in self._lanes.items():
            if lane.idle:
                self._passivate(name)
                return True
            if watched is None and lane.at_rest:
                watched = name
        if watched is not None:
            self._passivate(watched)
        return watched is not None

    def _passivate(self, conversation_id: str) -> None:
        lane = self._lanes.pop(conversation_id)
        lane.feed.close()
        self._counts["passivated"] += 1

    def _lane_idle(self) -> None:
        if self._waiting and not self._draining:
            asyncio.get_running_loop().call_soon(self._admit_waiting)

    def _admit_waiting(self) -> None:
        while self._waiting and self._make_room():
            conversation_id, _ = self._waiting.popitem(last=False)
            lane = self._lanes[conversation_id] = Lane(conversation_id, self._services)
            lane.wake()

    async def _passivate_idle(self) -> None:
        while True:
            await asyncio.sleep(min(5.0, self._settings.idle_s))
            before = self._monotonic() - self._settings.idle_s
            for name in [name for name, lane in self._lanes.items() if lane.idle and lane.used_at < before]:
                self._passivate(name)

    # --- what lanes tell ---------------------------------------------------------------------------------------------

    def _recorded(self, conversation_id: str, records: tuple[AnyRecord, ...]) -> None:
        for record in records:
            if isinstance(record, SubmissionSettled):
                self._counts[f"settled:{record.outcome}"] += 1
                settled = self._told[record.submission_id] = settlement_of(record)
                if len(self._told) > _SETTLED_KEPT:
                    self._told.popitem(last=False)
                self._owed.discard(record.submission_id)
                for future in self._waiters.get(record.submission_id, ()):
                    if not future.done():
                        future.set_result(settled)

    def _settled(self, submission_id: str) -> None:
        self._owed.discard(submission_id)
        for future in self._waiters.get(submission_id, ()):
            if not future.done():
                future.set_result(None)

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _recorded_settlement(self, conversation_id: str, submission_id: str, *, sure: bool) -> Settlement | None:
        seen = self._told.get(submission_id)
        if seen is not None or not sure:
            return seen
        row: Row | None = await self.store.read("lookup", submission_id)
        if row is None:
            raise NotFound(f"no submission {submission_id}", submission_id=submission_id)
        if row.settlement_sequence is None:
            lane = self._lane_or_visitor(conversation_id)
            if lane.at_rest:  # one that works looks for more by itself, and another look would cost a call
                lane.wake()
            return None
        return await read_settlement(self.store, row)

    async def _records(self, lane: Lane, after: int, *, sure: bool) -> list[tuple[int, AnyRecord]]:
        """Records behind `after`; `sure` asks the store before it says that there are none."""
        recent = lane.feed.records_after(after)
        if recent or (recent is not None and not sure):
            return recent
        page = await self.store.read_log(lane.conversation_id, after, self._settings.limits.page_records_max)
        found: list[tuple[int, AnyRecord]] = []
        for batch in page.batches:
            records = decode_records(batch.body, where=f"{lane.conversation_id} at {batch.first_sequence}")
            found.extend((batch.first_sequence + index, record) for index, record in enumerate(records))
        return [(sequence, record) for sequence, record in found if sequence > after]

    # --- the lease ---------------------------------------------------------------------------------------------------

    async def renew_lease(self) -> None:
        """Let the lease run `lease_ttl_s` from now; an outage of the store is waited out."""
        await self.store.read("renew_lease", self.owner_id, self._lease_ms)

    @property
    def _lease_ms(self) -> int:
        return int(self._settings.lease_ttl_s * 1000)

    def _renew(self) -> None:
        while not self._closed.wait(self._settings.lease_ttl_s / 3):
            try:
                self._link.call_blocking("renew_lease", self.owner_id, self._lease_ms)
            except (LanewayError, RuntimeError) as error:
                if not self._closed.is_set():
                    _log.warning("the lease was not renewed: %s", error)


async def read_settlement(store: StoreClient, row: Row) -> Settlement:
    """The canonical settlement of a settled row: history is the authority, not the row (DUR-015)."""
    assert row.settlement_sequence is not None
    page = await store.read_log(row.conversation_id, row.settlement_sequence - 1, 1)
    for batch in page.batches:
        for record in decode_records(batch.body, where=f"{row.conversation_id} at {batch.first_sequence}"):
            if isinstance(record, SubmissionSettled) and record.submission_id == row.submission_id:
                return settlement_of(record)
    raise NotFound(f"the settlement of {row.submission_id} is not in the log", submission_id=row.submission_id)
