"""The public surface: a runtime, its conversations, and receipts; what waits has an async form, too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Literal, Self, TypeVar

from ..actors.decisions import ApprovalDecision
from ..actors.lane.values import Admission, Settlement
from ..recovery.convergence import Report
from ..recovery.explain import Explanation
from ..recovery.obligations import Obligation
from ..storage.commands import AbortAnswer, Decided, Moved
from ..storage.contract import DeadLetter, Quarantine, Table
from ..storage.errors import InvalidInput, NotFound
from ..storage.ledger import Receipt as LedgerReceipt
from ..storage.ledger import Row
from ..storage.records import Resolution
from ..storage.values import check_text
from . import operations
from .backend import Backend, Description
from .client import Client, Event, as_dict
from .inputs import PRINCIPAL_DEFAULT, check_admission, check_author, check_resolution
from .runtime_loop import RuntimeLoop

_T = TypeVar("_T")


class Receipt:
    """Acceptance of one submission: from here on, exactly one outcome will be recorded (DUR-001, DUR-002).

    It is as durable as the store: class DR in a DuckDB file, class E in memory.
    """

    def __init__(self, runtime: Runtime, receipt: LedgerReceipt) -> None:
        self._runtime = runtime
        self.submission_id = receipt.submission_id
        self.receipt_id = receipt.receipt_id
        self.conversation_id = receipt.conversation_id
        self.queue_sequence = receipt.queue_sequence
        self.replayed = receipt.replayed

    def result(self, timeout: float | None = None) -> Settlement:
        """Wait for the outcome, `timeout` seconds at most. Raises: TimeoutError when it is still open then."""
        return self._runtime.run(self._result(timeout))

    async def aresult(self, timeout: float | None = None) -> Settlement:
        """The same from async code."""
        return await self._runtime.arun(self._result(timeout))

    async def _result(self, timeout_s: float | None) -> Settlement:
        client = self._runtime.client
        return await client.settlement(self.conversation_id, self.submission_id, timeout_s)

    def status(self) -> str:
        """The ledger's state now."""
        return str(self._runtime.submission(self.submission_id).state)

    def abort(self, reason: str = "", author: str = PRINCIPAL_DEFAULT, *, abort_id: str | None = None) -> AbortAnswer:
        """Ask durably for the abort of this submission."""
        return self._runtime.abort(self.submission_id, reason=reason, author=author, abort_id=abort_id)

    def as_dict(self) -> dict[str, Any]:
        return {
            "submission_id": self.submission_id,
            "receipt_id": self.receipt_id,
            "conversation_id": self.conversation_id,
            "queue_sequence": self.queue_sequence,
            "replayed": self.replayed,
        }

    def __repr__(self) -> str:
        return f"Receipt({self.submission_id}, {self.conversation_id} #{self.queue_sequence})"


class Conversation:
    """A handle on one conversation; it finds the owner, wherever that lives now."""

    def __init__(self, runtime: Runtime, conversation_id: str, agent: str | None) -> None:
        self._runtime = runtime
        self.id = conversation_id
        self.agent = agent

    def submit(
        self,
        content: str | list[dict[str, Any]],
        *,
        idempotency_key: str | None = None,
        principal: str = PRINCIPAL_DEFAULT,
        message_keys: dict[str, Any] | None = None,
    ) -> Receipt:
        """Hand over one input; returns when its acceptance is durable.

        The same `idempotency_key` of the same `principal` gives the same receipt, `replayed`. `message_keys` are
        further keys of the user's chat message.

        Raises: InvalidInput (`field`, `limit`); AdmissionConflict for a key that came with another payload.
        """
        return self._runtime.run(self._submit(content, idempotency_key, principal, message_keys))

    async def asubmit(
        self,
        content: str | list[dict[str, Any]],
        *,
        idempotency_key: str | None = None,
        principal: str = PRINCIPAL_DEFAULT,
        message_keys: dict[str, Any] | None = None,
    ) -> Receipt:
        """The same from async code."""
        return await self._runtime.arun(self._submit(content, idempotency_key, principal, message_keys))

    async def _submit(
        self, content: object, idempotency_key: str | None, principal: str, message_keys: dict[str, Any] | None
    ) -> Receipt:
        if self.agent is None:  # asked once a handle
            self.agent = await self._runtime.client.agent_of(self.id) or await self._runtime.only_agent()
        admission = self._admission(self.agent, content, idempotency_key, principal, message_keys)
        return Receipt(self._runtime, await self._runtime.client.submit(self.id, admission))

    def steer(
        self,
        content: str | list[dict[str, Any]],
        *,
        idempotency_key: str | None = None,
        principal: str = PRINCIPAL_DEFAULT,
        message_keys: dict[str, Any] | None = None,
    ) -> Receipt:
        """Say something to the run that is under way; returns when its acceptance is durable.

        It passes everything that waits in the queue: it enters the log behind the run's next complete turn, before the
        next model call, and settles with that run. Where the run ends first, it becomes an ordinary submission of the
        same agent in its place of the queue, and its input's record names the submission that it was to steer
        (`steers`). Keys are those of `submit`, and one key serves one of the two.

        Raises: Refused with code "nothing_to_steer" when nothing runs; InvalidInput; AdmissionConflict.
        """
        return self._runtime.run(self._steer(content, idempotency_key, principal, message_keys))

    async def asteer(
        self,
        content: str | list[dict[str, Any]],
        *,
        idempotency_key: str | None = None,
        principal: str = PRINCIPAL_DEFAULT,
        message_keys: dict[str, Any] | None = None,
    ) -> Receipt:
        """The same from async code."""
        return await self._runtime.arun(self._steer(content, idempotency_key, principal, message_keys))

    async def _steer(
        self, content: object, idempotency_key: str | None, principal: str, message_keys: dict[str, Any] | None
    ) -> Receipt:
        admission = self._admission("", content, idempotency_key, principal, message_keys, steering=True)
        return Receipt(self._runtime, await self._runtime.client.steer(self.id, admission))

    def _admission(
        self,
        agent: str,
        content: object,
        idempotency_key: str | None,
        principal: str,
        message_keys: dict[str, Any] | None,
        *,
        steering: bool = False,
    ) -> Admission:
        return check_admission(
            agent=agent,
            content=content,
            idempotency_key=idempotency_key,
            principal=principal,
            extra=message_keys,
            limits=self._runtime.client.backend.limits,
            steering=steering,
        )

    def log(self, after: int = 0) -> list[dict[str, Any]]:
        """Canonical records behind sequence `after`, as JSON values with their `sequence`."""
        records = self._runtime.run(self._runtime.client.log(self.id, after))
        return [{"sequence": sequence, **as_dict(record)} for sequence, record in records]

    def messages(self) -> list[dict[str, Any]]:
        """The conversation in OpenAI's chat format, as the next prompt would carry it."""
        return self._runtime.run(self._runtime.client.messages(self.id))

    def events(self, after: int = 0, *, provisional: bool = True) -> Iterator[Event]:
        """Events behind sequence `after` until nothing is owed: canonical ones once each, deltas as provisional.

        To go on after a break, hand over the last sequence that was seen.
        """
        stream = self._runtime.client.events(self.id, after, provisional)

        async def following() -> Event | None:
            return await anext(stream, None)

        try:
            while (event := self._runtime.run(following())) is not None:
                yield event
        finally:
            self._runtime.run(_close_stream(stream))

    async def aevents(self, after: int = 0, *, provisional: bool = True) -> AsyncIterator[Event]:
        """The same from async code."""
        stream = self._runtime.client.events(self.id, after, provisional)

        async def following() -> Event | None:
            return await anext(stream, None)

        try:
            while (event := await self._runtime.arun(following())) is not None:
                yield event
        finally:
            await self._runtime.arun(_close_stream(stream))

    @property
    def actor(self) -> Any:
        """The plain Ray handle of the actor that hosts this conversation now; None without Ray."""

        async def find() -> Any:
            backend = self._runtime.client.backend
            return backend.actor_handle(self.id, await backend.host_of(self.id))

        return self._runtime.run(find())


class Runtime:
    """A running Laneway. Use it as a context manager; `stop` ends it, `close` only lets go of it."""

    def __init__(self, backend: Backend, *, owns: bool, on_stop: Callable[[], None] | None = None) -> None:
        self.client = Client(backend)
        self._owns = owns
        self._on_stop = on_stop
        self._loop = RuntimeLoop()
        self._stopped = False
        try:
            self.run(backend.start())
        except BaseException:
            self._loop.end()
            raise

    def conversation(self, conversation_id: str, agent: str | None = None) -> Conversation:
        """A handle; nothing is stored before the first submit.

        `agent` may be left out where there is only one, and in a conversation that exists: who began it goes on.
        """
        check_text(conversation_id, "conversation_id", length_max=self.client.backend.limits.id_length_max)
        return Conversation(self, conversation_id, agent)

    def conversations(self) -> list[str]:
        """Ids of all conversations in the store."""
        return self.run(self.client.conversations())

    def submission(self, submission_id: str) -> Row:
        """The ledger row of a submission. Raises: NotFound."""
        return self.run(self.client.row(submission_id))

    def receipt(self, submission_id: str) -> Receipt:
        """A receipt for a submission that was accepted before. Raises: NotFound."""
        row = self.submission(submission_id)
        return Receipt(
            self,
            LedgerReceipt(
                submission_id=row.submission_id,
                receipt_id=row.receipt_id,
                conversation_id=row.conversation_id,
                queue_sequence=row.queue_sequence,
                replayed=True,
            ),
        )

    def submissions(self, *, conversation: str | None = None, state: str | None = None, limit: int = 1000) -> list[Row]:
        """Ledger rows, newest last, narrowed by conversation or state."""
        return self.run(self.client.rows(conversation, state, limit))

    def abort(
        self,
        submission_id: str,
        *,
        reason: str = "",
        author: str = PRINCIPAL_DEFAULT,
        abort_id: str | None = None,
    ) -> AbortAnswer:
        """Ask durably for an abort; the first one counts, and the same `abort_id` again is no second one (DUR-012).

        A submission that has joined another one's run settles with that; to end it, abort the run's own submission.

        Raises: NotFound; Refused with code "already_settled", or "joined" (`host_id` names the run's submission);
        InvalidInput for what cannot be recorded.
        """
        check_author(author, reason, self.client.backend.limits)
        return self.run(self.client.abort(submission_id, reason, author, abort_id))

    def approve(
        self,
        submission_id: str,
        approval: str | None = None,
        *,
        author: str = PRINCIPAL_DEFAULT,
        reason: str = "",
        arguments_digest: str | None = None,
    ) -> Decided:
        """Let a call run that waits for approval. `approval` is its id or the call's; it may be left out for one alone.

        The decision holds for exactly the arguments that were asked about, and the first one counts.
        Raises: NotFound; InvalidInput; Refused with code "approval_not_open", "already_decided",
        "approval_digest_mismatch", "already_settled" or "not_authorised".
        """
        return self.run(self._decide_approval(submission_id, "approved", approval, author, reason, arguments_digest))

    def deny(
        self,
        submission_id: str,
        approval: str | None = None,
        *,
        author: str = PRINCIPAL_DEFAULT,
        reason: str = "",
        arguments_digest: str | None = None,
    ) -> Decided:
        """Refuse a call that waits for approval: the model reads why, and the run goes on. Raises: as `approve`."""
        return self.run(self._decide_approval(submission_id, "denied", approval, author, reason, arguments_digest))

    def resolve_unknown(
        self,
        submission_id: str,
        resolution: Resolution,
        *,
        call_id: str | None = None,
        result: Any = None,
        author: str = PRINCIPAL_DEFAULT,
        reason: str = "",
    ) -> Moved:
        """Say what became of a call whose outcome nobody could prove (DUR-009, DUR-017).

        `resolution` is "completed_with_result" with its `result`, "never_started", "safe_to_retry" or "abort". When
        every unknown call of the submission is resolved, it goes on.
        Raises: NotFound; InvalidInput; Refused with code "call_not_unknown", "already_resolved" or "not_authorised".
        """
        decision = check_resolution(
            submission_id, resolution, call_id, result, author, reason, self.client.backend.limits
        )
        moved = self.run(self.client.decide(decision))
        assert isinstance(moved, Moved)
        return moved

    def explain(self, submission_id: str) -> Explanation:
        """Why a submission is in its state, on what evidence, and what happens next. Raises: NotFound."""
        return self.run(self.client.explain(submission_id))

    def obligations(self, *, overdue_s: float = 0.0, limit: int = 10_000) -> list[Obligation]:
        """Open submissions by conversation and queue, each with the reason; those that are open for `overdue_s`."""
        return self.run(operations.obligations(self.client, overdue_s, limit))

    def dead_letters(self, *, every: bool = False, limit: int = 1000) -> list[DeadLetter]:
        """Submissions that a bound or a passing fault brought down, and all whose outcome is unknown, newest last.

        With `every`, all failed ones. `kind` tells "failed" from "unknown"; the latter are open (DUR-014).
        """
        return self.run(operations.dead_letters(self.client, every, limit))

    def retry(self, submission_id: str, *, author: str = PRINCIPAL_DEFAULT, reason: str = "") -> Receipt:
        """Try failed or aborted work again as a new submission; or let work that waits for a time be claimed now.

        Idempotent while the retry is open. The settled outcome stays as it is. Raises: NotFound; Refused with code
        "not_settled", "not_failed", "unknown_unresolved", "input_not_kept" or "not_authorised".
        """
        return Receipt(self, self.run(operations.retry(self.client, submission_id, author, reason)))

    def quarantine(self, conversation_id: str, *, reason: str, author: str = PRINCIPAL_DEFAULT) -> Quarantine:
        """Keep a conversation from running; what runs comes to its end, and submissions are admitted all the same."""
        return self.run(operations.quarantine(self.client, conversation_id, author, reason))

    def release_quarantine(self, conversation_id: str, *, author: str = PRINCIPAL_DEFAULT) -> Quarantine:
        """Let a conversation run again. Raises: Refused with code "not_quarantined"."""
        return self.run(operations.release_quarantine(self.client, conversation_id, author))

    def quarantined(self) -> list[Quarantine]:
        """Conversations whose lanes nobody claims, and why."""
        return self.run(operations.quarantined(self.client))

    def query(self, sql: str, *, limit: int = 10_000) -> Table:
        """A read-only question over the views batches, records, submissions, tool_calls, settlements, quarantines."""
        return self.run(self.client.query(sql, limit))

    def verify(self, *, require_settled: bool = False, progress: Callable[[str], None] | None = None) -> Report:
        """The convergence check over the whole store; `require_settled` makes open work a problem, too."""
        return self.run(self.client.verify(require_settled=require_settled, progress=progress))

    def describe(self) -> Description:
        """Agents, store and processes of this runtime."""
        return self.run(self.client.backend.describe())

    def drain(self, process: str, *, author: str = PRINCIPAL_DEFAULT, reason: str = "") -> None:
        """Replace a process of the runtime as planned; returns when it has ended. Its work goes on elsewhere.

        Nothing is placed there any more, its tool calls get `drain_grace_s`, and no budget of retries is used.
        Raises: NotFound when no process of that name is up; Refused with code "drain_not_supported" without Ray, or
        "not_authorised".
        """
        check_author(author, reason, self.client.backend.limits)
        check_text(process, "process", length_max=self.client.backend.limits.id_length_max)
        if not self.run(self.client.backend.drain(process, author, reason)):
            raise NotFound(f"no process is named {process}, or it is being drained", process=process)

    def stop(self) -> None:
        """End the runtime: lanes stop where they are, and what is open goes on at the next start. Idempotent."""
        self._finish(shut_down=True)

    def close(self) -> None:
        """Let go of the runtime; one that this process did not start goes on."""
        self._finish(shut_down=self._owns)

    def leave(self) -> None:
        """Let go of the runtime and leave it up, even if this process has started it."""
        self._finish(shut_down=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- the loop behind the blocking calls --------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` on the runtime's own loop and wait for it. Raises: RuntimeUnreachable, code "runtime_stopped"."""
        return self._loop.run(work)

    async def arun(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` on the runtime's own loop and await it on the caller's. Raises: as `run`."""
        return await self._loop.arun(work)

    async def _decide_approval(
        self,
        submission_id: str,
        decision: Literal["approved", "denied"],
        approval: str | None,
        author: str,
        reason: str,
        digest: str | None,
    ) -> Decided:
        check_author(author, reason, self.client.backend.limits)
        decided = await self.client.decide(
            ApprovalDecision(
                submission_id=submission_id,
                decision=decision,
                author=author,
                reason=reason,
                approval=approval,
                arguments_digest=digest,
            )
        )
        assert isinstance(decided, Decided)
        return decided

    async def only_agent(self) -> str:
        """The agent's name where the runtime has just one. Raises: InvalidInput with field "agent"."""
        names = await self.client.backend.agent_names()
        if not names:
            raise InvalidInput("this runtime has no agents: it gets them with `agents` when it starts", field="agent")
        if len(names) > 1:
            raise InvalidInput(f"name the agent: this runtime has {', '.join(names)}", field="agent")
        return names[0]

    def _finish(self, *, shut_down: bool) -> None:
        if self._stopped:
            return
        self._stopped = True
        try:
            self.run(self.client.backend.stop(shut_down=shut_down))
        finally:
            self._loop.end()
            if self._on_stop is not None:
                self._on_stop()


async def _close_stream(stream: AsyncIterator[Event]) -> None:
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
