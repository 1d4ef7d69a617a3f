"""The lane: one conversation's owner in this process. It claims, drives what it claimed, and tells who waits."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from ...recovery.attention import NOBODY_RUNS
from ...recovery.classify import Decision, Evidence, classify
from ...storage.commands import (
    Abandon,
    AbortAnswer,
    Admitted,
    Arrived,
    Claim,
    Fence,
    Grant,
    NotClaimed,
    RequestAbort,
    Unit,
)
from ...storage.errors import (
    Fenced,
    IllegalTransition,
    LanewayError,
    NotFound,
    Refused,
    StaleTail,
    StoreCorrupt,
    described,
)
from ...storage.failpoints import Point
from ...storage.ids import new_id, new_token
from ...storage.ledger import Receipt, Row, State
from ...storage.projection import ConversationView
from ...storage.records import AnyRecord
from . import facts, unowned
from .arrivals import Arrivals
from .attempt import Attempt
from .claimed import Claimed
from .faults import Faults, Unclassified, reason_of
from .feed import Feed
from .history import load_settlement, load_view
from .outbox import Outbox
from .services import LaneServices
from .values import Admission, admission_commands

_log = logging.getLogger("laneway.lane")
_HAND_OVER_S = 2.0  # bounds what a stopped lane may take to commit its release; a store that is away must not hold it


class Lane:
    """Runs the submissions of one conversation in queue order, one at a time (DUR-004, DUR-005).

    A visiting lane (`may_run` false) admits, aborts and looks on, while every place of its host is taken.
    """

    def __init__(self, conversation_id: str, services: LaneServices, *, may_run: bool = True) -> None:
        self.conversation_id = conversation_id
        self._services = services
        self._may_run = may_run
        self._view: ConversationView | None = None
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._closing = False
        self.nothing_to_do: str | None = None
        self._attempt: Attempt | None = None
        self._last_attempt_id: str | None = None
        self._held: tuple[str, Fence] | None = None  # the claim that this lane got last, whatever became of it
        self._faults = Faults(services)
        self._pausing = False
        self._last_queue_sequence = 0
        self._arrivals = Arrivals()
        self._admitting = asyncio.Lock()  # one submission at a time may claim, and they are admitted in their order
        self._on_their_way = 0  # submissions that only join the queue: their commits may travel together
        self._woken = False
        self._abandoned_aborts = False
        self._looking: asyncio.Task[None] | None = None
        self.feed = Feed()
        self.used_at = services.monotonic()

    # --- what the host asks ------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs and nobody submits: the lane may leave memory."""
        return self._task is None and not self._admitting.locked() and not self._on_their_way

    @property
    def idle(self) -> bool:
        """At rest, and nobody watches."""
        return self.at_rest and not self.feed.watched

    async def submit(self, admission: Admission) -> Receipt:
        """Admit durably and return the receipt; on an idle lane the claim and the input travel in the same commit."""
        self.used_at = self._services.monotonic()
        try:
            async with self._admitting:
                receipt = await self._admit_and_claim(admission)
                if receipt is not None:
                    return receipt
                self._on_their_way += 1
        finally:
            if self._woken and not self._admitting.locked():
                self._woken = False
                self.wake()
        try:
            receipt = await self._admit(admission)
        finally:
            self._on_their_way -= 1
        self.wake()
        return receipt

    async def steer(self, admission: Admission) -> Receipt:
        """Admit durably into the stream of the run that is active now, wherever that is driven.

        Raises: Refused with code "nothing_to_steer".
        """
        self.used_at = self._services.monotonic()
        self._on_their_way += 1
        try:
            receipt = await self._admit(admission)
        finally:
            self._on_their_way -= 1
        self.wake()
        return receipt

    async def _admit_and_claim(self, admission: Admission) -> Receipt | None:
        """Admission and claim in one commit; None when the lane has, or is about to have, other work."""
        at_work = self._task is not None or self._on_their_way
        if not self._may_run or at_work or self._services.settings.stepwise or self._closing:
            return None
        if self._view is None:
            # Most lanes that start are new conversations: the store says so, or refuses the unit by its tail.
            receipt = await self._submit_and_claim(admission, ConversationView(keep="open"))
            if receipt is not None:
                return receipt
        try:
            view = await self._loaded()
        except StoreCorrupt:
            return None  # admission needs no log; the claim that follows finds the damage, and says so
        return await self._submit_and_claim(admission, view)

    async def _admit(self, admission: Admission) -> Receipt:
        commands = admission_commands(admission)
        together = commands[:1] if self._services.settings.stepwise else commands
        accepted = await self._services.store.commit(Unit(conversation_id=self.conversation_id, commands=together))
        admitted = accepted.results[0]
        assert isinstance(admitted, Admitted)
        self._services.failpoints.hit(Point.AFTER_ADMISSION)
        for command in commands[len(together) :]:  # by the receipt's id: the key may have been admitted before
            step = msgspec.structs.replace(command, submission_id=admitted.receipt.submission_id)
            await self._services.store.commit(Unit(conversation_id=self.conversation_id, commands=(step,)))
        sequence = admitted.receipt.queue_sequence
        self._last_queue_sequence = max(self._last_queue_sequence, sequence)
        self._arrivals.learn(Arrived(queued=sequence, steering=sequence if admission.steering else 0))
        return admitted.receipt

    @property
    def quiet(self) -> bool:
        """Whether the lane looked for work and nothing is owed."""
        return self._task is None and self.nothing_to_do == "empty"

    def wake(self) -> None:
        """Look for work: claim the head if nobody live owns it, and drive."""
        if not self._may_run:
            return
        if self._admitting.locked() and self._task is None:
            self._woken = True  # an admission is on its way that may claim, too: look when it is through
        else:
            self._start(None)

    def recover(self) -> None:
        """Look for work that others may have left: aborts that were asked for and not carried out, then the head."""
        self._abandoned_aborts = True
        if self._attempt is not None and self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look_for_abort(self._attempt))
        self.wake()

    async def _look_for_abort(self, attempt: Attempt) -> None:
        try:
            await attempt.look_for_abort()
        except LanewayError as error:
            _log.info("%s: an abort is noticed later: %s", self.conversation_id, error)
        finally:
            self._looking = None

    def retire(self) -> None:
        """Claim nothing more: what runs comes to its end here, and what is queued goes on in another process."""
        self._may_run = False

    async def abort(self, submission_id: str, abort_id: str, author: str, reason: str) -> AbortAnswer:
        """DUR-012: the intent is durable first; queued work settles at once, active work is then interrupted.

        Raises: Refused with code "already_settled", or "joined" where its input stands in another submission's run and
        it settles with that; NotFound.
        """
        self.used_at = self._services.monotonic()
        attempt = self._attempt
        if attempt is not None and attempt.submission_id == submission_id and not attempt.over:
            try:
                answer = await attempt.abort(abort_id, author, reason)
            except Fenced:
                pass  # it has let go of the lane meanwhile
            else:
                if answer.state in NOBODY_RUNS:
                    await self._settle_aborted(submission_id)
                    self.wake()
                return answer
        request = RequestAbort(submission_id=submission_id, abort_id=abort_id, author=author, reason=reason)
        async with self._arrivals.claiming:
            unit = Unit(conversation_id=self.conversation_id, commands=(request,))
            accepted = await self._services.store.commit(unit)
            answer = accepted.results[0]
            assert isinstance(answer, AbortAnswer)
            await self._settle_aborted(submission_id)
        self.wake()
        return answer

    async def close(self, grace_s: float = 0.0) -> None:
        """A planned stop: tool calls in flight get `grace_s` to finish, then what runs is released at a safe boundary.

        What cannot be released in time is left to whoever claims next; what is committed stays.
        """
        self._closing = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        task = self._task
        if task is not None and not self._pausing:
            if self._attempt is not None:
                self._attempt.drain()
            await asyncio.wait({task}, timeout=grace_s)
            if self._attempt is not None:
                self._attempt.stop()
            await asyncio.wait({task}, timeout=_HAND_OVER_S + self._services.settings.abort_grace_s)
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_HAND_OVER_S)  # a tool may refuse to end, and its process ends it
        self.feed.close()

    # --- admission ---------------------------------------------------------------------------------------------------

    async def _submit_and_claim(self, admission: Admission, view: ConversationView) -> Receipt | None:
        """Admit, claim and apply the input in one unit; None when the lane has other work first, or another tail."""
        if self._task is not None or self._services.registry.get(admission.agent) is None:
            return None
        claim = self._claim_command(admission.submission_id)
        sequence = max(self._last_queue_sequence, view.last_queue_sequence) + 1
        row = facts.admitted_row(admission, self.conversation_id, claim, sequence)
        outbox = self._outbox(row.submission_id, claim.token, None, None, view)
        outbox.command(*admission_commands(admission), claim)
        attempt = Attempt(self._claimed(row, claim.attempt_id, outbox, view))
        attempt.prepare_start()
        try:
            await outbox.flush()
        except (Refused, NotFound, Fenced, StaleTail, IllegalTransition):
            self._view = None  # somebody else has written here: the plain way, and a fresh look at the log
            return None
        except LanewayError:
            self._view = None
            raise
        assert outbox.receipt is not None
        self._view = view
        self._last_queue_sequence = sequence
        self._last_attempt_id = attempt.attempt_id
        self._held = row.submission_id, Fence(token=claim.token, epoch=outbox.epoch)
        self._start(attempt)
        return outbox.receipt

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _start(self, attempt: Attempt | None) -> None:
        if self._closing:
            return
        if self._task is not None:
            self._again = True
            return
        self.nothing_to_do = None
        self._task = asyncio.get_running_loop().create_task(self._run(attempt), name=f"lane {self.conversation_id}")

    async def _run(self, attempt: Attempt | None) -> None:
        try:
            while not self._closing or attempt is not None:
                self._again = False
                try:
                    if self._abandoned_aborts and attempt is None:
                        self._abandoned_aborts = False
                        await self._settle_abandoned_aborts()
                    if attempt is None and not self._may_run:
                        self.nothing_to_do = "retired"
                    else:
                        attempt = attempt or await self._claim()
                    while attempt is not None:
                        attempt = await self._drive(attempt)
                except Fenced as error:  # another attempt owns the lane, and this one ends itself
                    _log.info("%s: attempt ended: %s", self.conversation_id, error)
                    self._view, attempt = None, None
                except (StoreCorrupt, Unclassified) as error:
                    self._view, attempt = None, None
                    await self._stand_still(reason_of(error))
                except Exception as error:
                    _log.warning("%s: the lane failed: %s", self.conversation_id, error, exc_info=_trace_of(error))
                    self._view, attempt = None, None
                    reason = self._faults.add(error)
                    if reason is None:
                        await self._pause()
                    else:
                        await self._stand_still(reason)
                if not self._again and self.nothing_to_do is not None:
                    return
        finally:
            self._attempt = None
            self._task = None
            self.used_at = self._services.monotonic()
            self.feed.stirred()
            self._services.lane_idle()

    async def _pause(self) -> None:
        """Try again, and never in a hot loop."""
        self._again = self._pausing = True
        try:
            await asyncio.sleep(self._faults.wait_s())
        finally:
            self._pausing = False

    async def _stand_still(self, reason: str) -> None:
        """Quarantine the conversation: nobody claims it before an operator has looked (Specification 16)."""
        _log.error("%s: quarantined: %s", self.conversation_id, reason)
        self._services.counts["quarantined"] += 1
        self._faults.over()
        self._again = False
        self.nothing_to_do = "quarantined"
        try:
            await self._services.store.quarantine(self.conversation_id, reason, "lane")
            if self._held is not None:
                (submission_id, fence), self._held = self._held, None
                commands = (Abandon(submission_id=submission_id),)
                await self._services.store.commit(
                    Unit(conversation_id=self.conversation_id, commands=commands, fence=fence)
                )
        except LanewayError as error:
            _log.info("%s: %s", self.conversation_id, error)  # it was fenced, or the damage is in its very row

    async def _drive(self, attempt: Attempt) -> Attempt | None:
        """Drive one claimed submission to its end; the attempt for the next one if its claim came with the end."""
        self._attempt = attempt
        self._last_attempt_id = attempt.attempt_id
        if self._closing:
            attempt.drain()
        try:
            self.nothing_to_do = None
            grant = await attempt.drive(self._next_claim)
        finally:
            self._attempt = None
            self.feed.turn_over()
        self._faults.over()
        if isinstance(grant, NotClaimed) and grant.submission_id is None:
            self.nothing_to_do = grant.reason  # where it names a head, `_claim` looks what can be done for that
        return await self._granted(grant) if isinstance(grant, Grant) else None

    async def _claim(self) -> Attempt | None:
        await self._loaded()
        command = self._claim_command("")
        accepted = await self._services.store.commit(Unit(conversation_id=self.conversation_id, commands=(command,)))
        grant = accepted.results[0]
        if isinstance(grant, NotClaimed):
            head = grant.submission_id
            if head is not None and grant.reason == State.ADMITTED:
                await unowned.finish_materialization(head, self.conversation_id, self._services)
                return await self._claim()
            suspended = head if grant.reason == State.SUSPENDED else None
            if suspended and await unowned.expire_approvals(suspended, self.conversation_id, self._services):
                return await self._claim()
            self.nothing_to_do = grant.reason
            return None
        assert isinstance(grant, Grant)
        attempt = await self._granted(grant)
        self._services.failpoints.hit(Point.AFTER_CLAIM)
        return attempt

    async def _granted(self, grant: Grant) -> Attempt:
        """The attempt that was granted, with the log as it stands: others may have written before the claim."""
        self._last_attempt_id = grant.attempt_id
        self._held = grant.row.submission_id, Fence(token=grant.token, epoch=grant.epoch)  # before anything can fail
        view = await self._loaded()
        if grant.tail_sequence != view.tail_sequence:
            self._view = None
            view = await self._loaded()
        settled = grant.settlement_sequence
        if settled is not None and grant.row.submission_id not in view.settlements:
            await load_settlement(self.conversation_id, self._services, view, settled)
        return self._attempt_of(grant)

    def _attempt_of(self, grant: Grant) -> Attempt:
        assert self._view is not None
        outbox = self._outbox(grant.row.submission_id, grant.token, grant.epoch, grant.tail_digest, self._view)
        self._arrivals.learn(grant.arrived)
        attempt = Attempt(self._claimed(grant.row, grant.attempt_id, outbox, self._view))
        self._last_queue_sequence = max(self._last_queue_sequence, grant.row.queue_sequence)
        if grant.recovering:
            attempt.recover(
                self._classified(grant.row, self._view), grant.joining, planned=grant.planned, replaces=grant.replaces
            )
        return attempt

    def _classified(self, row: Row, view: ConversationView) -> Decision:
        try:
            return classify(Evidence(row, None, view))
        except Exception as error:
            raise Unclassified(f"what is stored of {row.submission_id} has no decision: {described(error)}") from error

    def _claimed(self, row: Row, attempt_id: str, outbox: Outbox, view: ConversationView) -> Claimed:
        agent = self._services.registry.get(row.agent)
        self._arrivals.begin(row.queue_sequence)
        return Claimed(row, attempt_id, agent, outbox, view, self._services, self.feed, self._arrivals)

    def _next_claim(self) -> Claim | None:
        """The claim that travels with the end of what runs: none where the lane is to come to its end, too."""
        return self._claim_command("") if self._may_run and not self._closing else None

    def _claim_command(self, submission_id: str) -> Claim:
        return Claim(
            submission_id=submission_id,
            owner_id=self._services.owner_id,
            attempt_id=new_id("att"),
            token=new_token(),
            replaces=self._last_attempt_id if self._attempt is None else None,
        )

    def _outbox(
        self, submission_id: str, token: str, epoch: int | None, tail_digest: str | None, view: ConversationView
    ) -> Outbox:
        return Outbox(
            self.conversation_id,
            submission_id,
            self._services.store,
            view,
            token=token,
            epoch=epoch,
            tail_digest=tail_digest,
            producer_id=self._services.owner_id,
            published=self._published,
            stepwise=self._services.settings.stepwise,
            limits=self._services.settings.limits,
            arrivals=self._arrivals,
            failpoints=self._services.failpoints,
        )

    # --- the log -----------------------------------------------------------------------------------------------------

    async def _loaded(self) -> ConversationView:
        """What the log says, read once and kept from then on."""
        if self._view is None:
            self._view = await load_view(self.conversation_id, self._services)
        return self._view

    def _published(self, first_sequence: int, records: tuple[AnyRecord, ...]) -> None:
        self.feed.committed(first_sequence, records)
        self._services.recorded(self.conversation_id, records)

    async def _settle_abandoned_aborts(self) -> None:
        """Aborts that were accepted and whose process ended before it settled them (Specification 13)."""
        for submission_id in await self._services.store.aborts_owed(self.conversation_id):
            await self._settle_aborted(submission_id)

    async def _settle_aborted(self, submission_id: str) -> None:
        """Settle work that nobody runs by its abort intent; where somebody runs it, the intent alone stands."""
        if not await unowned.settle_aborted(submission_id, self.conversation_id, self._services):
            return
        if self.at_rest:
            self._view = None  # at work, the outbox takes these records in when it meets them
        self.feed.forget()
        self._services.settled(submission_id)


def _trace_of(error: Exception) -> Exception | None:
    """What the program's log needs beyond the message: an error of ours names its cause by itself."""
    return None if isinstance(error, LanewayError) else error
