"""People who decide on approvals: at once, late, twice over, or by arguments that they did not read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from simulation.network import Lost
from simulation.world import SimulatedBackend, child_of

from laneway.actors.decisions import ApprovalDecision
from laneway.cluster.client import Client
from laneway.storage.commands import Decided
from laneway.storage.errors import NotFound, Refused, StoreFull, StoreUnavailable
from laneway.storage.projection import CallView
from laneway.storage.values import digest_of

if TYPE_CHECKING:
    from simulation.users import User
    from simulation.world import World

Answer = Literal["approved", "denied"]

_LOOKS_S = 6.0  # how long somebody waits for something to decide on
_OTHER_ARGUMENTS = digest_of(b'{"amount":2}')


async def decide(world: World, client: Client, asked: tuple[str, CallView], answer: Answer, author: str) -> None:
    """Decide, and hold what is said about it against the ledger."""
    submission_id, call = asked
    assert call.approval is not None
    name = call.approval.approval_id
    decision = ApprovalDecision(submission_id=submission_id, decision=answer, author=author, approval=name)
    try:
        decided = await client.decide(decision)
    except Refused as error:
        world.reached[f"decision_refused:{error.code}"] += 1
        return
    assert isinstance(decided, Decided)
    row = world.store.store.lookup(submission_id)
    known = row.approvals.get(name) if row is not None else None
    if known is None or (known.decision, known.author) != (decided.decision, decided.author):
        world.fail(f"{author} was told {decided}, and the ledger has {known}")


async def approve(user: User) -> None:
    """What is asked for now, or next."""
    asked = await _next_request(user)
    if asked is not None:
        await decide(user.world, user.client, asked, "approved", user.name)


async def deny(user: User) -> None:
    """The same, the other way."""
    asked = await _next_request(user)
    if asked is not None:
        await decide(user.world, user.client, asked, "denied", user.name)


async def disagree(user: User) -> None:
    """Two people decide at the same time, each differently: one of them counts, whoever it is."""
    asked = await _next_request(user)
    if asked is not None:
        answers: tuple[Answer, Answer] = ("approved", "denied")
        await asyncio.gather(
            *(decide(user.world, user.client, asked, answer, f"{user.name} {answer}") for answer in answers)
        )


async def misread(user: User) -> None:
    """A decision on other arguments than were asked for must be refused."""
    asked = await _next_request(user)
    if asked is None:
        return
    submission_id, call = asked
    decision = ApprovalDecision(
        submission_id=submission_id,
        decision="approved",
        author=user.name,
        approval=call.call.id,
        arguments_digest=_OTHER_ARGUMENTS,
    )
    try:
        decided = await user.client.decide(decision)
    except Refused as error:
        user.world.reached[f"decision_refused:{error.code}"] += 1
        return
    if isinstance(decided, Decided) and decided.author == user.name and not decided.replayed:
        user.world.fail(f"{decided} was taken for arguments that nobody asked about")


async def _next_request(user: User) -> tuple[str, CallView] | None:
    """A request that is open, or the next one: somebody who looks on sees it as soon as it stands in the log."""
    auditor, name = user.world.auditor, user.conversation_id
    if not auditor.waiting(name):
        try:
            async with asyncio.timeout(_LOOKS_S):
                await auditor.next_request(name)
        except TimeoutError:
            return None
    waiting = auditor.waiting(name)
    return user.chance.choice(waiting) if waiting else None


class Approver:
    """Somebody who answers for what others leave open, for all of it once `thorough`."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._chance = child_of(seed, "approver")
        self._client = Client(SimulatedBackend(world), world.loop.time)  # type: ignore[arg-type]
        self.thorough = False

    async def work(self) -> None:
        """Look for open requests from time to time and answer some."""
        while True:
            await asyncio.sleep(1.0 if self.thorough else self._chance.uniform(0.5, 8.0))
            for conversation_id in self._world.auditor.conversations():
                for asked in self._world.auditor.waiting(conversation_id):
                    if self.thorough or self._chance.random() < 0.5:
                        await self._answer(asked)

    async def _answer(self, asked: tuple[str, CallView]) -> None:
        """Mostly yes; now and then the whole work is not wanted any more, with all that joined it meanwhile."""
        answer: Answer = "approved" if self._chance.random() < 0.7 else "denied"
        try:
            if self._chance.random() < (0.5 if self._world.auditor.joined_by_others(asked[0]) else 0.05):
                await self._client.abort(asked[0], "not at all", "ann")
            else:
                await decide(self._world, self._client, asked, answer, "ann")
        except Refused as error:
            self._world.reached[f"abort_refused:{error.code}"] += 1
        except (StoreUnavailable, StoreFull, TimeoutError, NotFound, Lost):
            self._world.reached["no_answer:approver"] += 1
