"""Users and operators: what they may do is a list, and what they are told is held against the log."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulation.agents import AGENTS, PLANNED
from simulation.approvers import approve, deny, disagree, misread
from simulation.network import SimulatedLink
from simulation.world import SimulatedBackend, child_of

from laneway.actors.lane.values import Admission
from laneway.actors.store_client import StoreClient
from laneway.cluster.client import Client
from laneway.cluster.inputs import check_admission
from laneway.storage.commands import ResolveUnknown, Unit
from laneway.storage.errors import AdmissionConflict, Refused, StoreFull, StoreUnavailable
from laneway.storage.ids import new_id
from laneway.storage.ledger import Receipt, Row, State
from laneway.storage.values import DEFAULT_LIMITS

if TYPE_CHECKING:
    from simulation.world import World

_PRINCIPALS = ("alice", "bob")
_NO_ANSWER = (StoreUnavailable, StoreFull, TimeoutError)


@dataclass
class Message:
    """What a user wants done, and what came of it so far."""

    conversation_id: str
    admission: Admission
    receipt: Receipt | None = None


@dataclass
class User:
    """Somebody who talks to one conversation, and sometimes repeats, aborts or looks on."""

    world: World
    conversation_id: str
    name: str
    agent: str
    chance: random.Random
    messages: list[Message] = field(default_factory=list[Message])
    said: int = 0

    def __post_init__(self) -> None:
        self.client = Client(SimulatedBackend(self.world), self.world.loop.time)  # type: ignore[arg-type]

    async def act(self, times: int) -> None:
        """Do `times` things, one after another, each drawn from `ACTS`."""
        weights = [weight for weight, _ in ACTS]
        acts = [act for _, act in ACTS]
        for _ in range(times):
            await asyncio.sleep(self.chance.choice((0.0, 0.01, 0.5, 4.0)) * self.chance.random())
            act = submit if not self.messages else self.chance.choices(acts, weights)[0]
            try:
                await act(self)
            except _NO_ANSWER:
                self.world.reached[f"no_answer:{act.__name__}"] += 1
            else:
                self.world.reached[f"act:{act.__name__}"] += 1

    def message(self, plan: list[list[tuple[str, int]]], *, steering: bool = False) -> Message:
        """What to say next, under a key of its own."""
        self.said += 1
        admission = check_admission(
            agent=self.agent,
            content=json.dumps({"plan": plan, "number": self.said}),
            idempotency_key=f"{self.name}-{self.said}",
            principal=self.chance.choice(_PRINCIPALS),
            extra=None,
            limits=DEFAULT_LIMITS,
            steering=steering,
        )
        return Message(self.conversation_id, admission)

    def accepted(self) -> list[Message]:
        return [message for message in self.messages if message.receipt is not None]

    async def send(self, message: Message) -> None:
        """Submit and hold the receipt against the ledger."""
        receipt = await self.client.submit(self.conversation_id, message.admission, timeout_s=30.0)
        if message.receipt is not None and not receipt.replayed:
            self.world.fail(f"{receipt} is new, and its key was acknowledged before")
        message.receipt = receipt
        self.world.trace("receipt", receipt)
        self.world.auditor.acknowledged(self.world.store.store, receipt)

    async def told(self, message: Message, timeout_s: float) -> None:
        """Wait for the outcome and hold it against the log. Raises: TimeoutError."""
        assert message.receipt is not None
        settled = await self.client.settlement(self.conversation_id, message.receipt.submission_id, timeout_s)
        self.world.auditor.told(self.conversation_id, settled)


async def submit(user: User) -> None:
    """Something new, under a key of its own."""
    chance = user.chance
    plan = [chance.choices(PLANNED, k=chance.choice((1, 1, 2, 3))) for _ in range(chance.choice((0, 1, 1, 2)))]
    message = user.message(plan)
    user.messages.append(message)
    await user.send(message)


async def submit_many(user: User) -> None:
    """Several at once: their order is the ledger's."""
    await asyncio.gather(*(submit(user) for _ in range(3)))


async def steer(user: User) -> None:
    """Something for the run that is under way, if one is."""
    message = user.message([], steering=True)
    try:
        message.receipt = await user.client.steer(user.conversation_id, message.admission, timeout_s=30.0)
    except Refused as error:
        user.world.reached[f"steering_refused:{error.code}"] += 1
        return
    user.messages.append(message)
    user.world.auditor.acknowledged(user.world.store.store, message.receipt)


async def repeat(user: User) -> None:
    """The same thing again, from a program that has forgotten its ids."""
    message = user.chance.choice([message for message in user.messages if not message.admission.steering])
    fresh = dataclasses.replace(message.admission, submission_id=new_id("sub"), receipt_id=new_id("rcp"))
    again = Message(user.conversation_id, fresh, message.receipt)
    await user.send(again)
    message.receipt = again.receipt


async def contradict(user: User) -> None:
    """Another content under a key that is taken must be refused."""
    message = user.chance.choice(user.messages)
    if message.receipt is None:
        return
    other = check_admission(
        agent=user.agent,
        content=json.dumps({"plan": [], "number": -1}),
        idempotency_key=message.admission.idempotency_key,
        principal=message.admission.principal,
        extra=None,
        limits=DEFAULT_LIMITS,
    )
    try:
        receipt = await user.client.submit(user.conversation_id, other, timeout_s=30.0)
    except AdmissionConflict:
        return
    user.world.fail(f"{receipt} was given for another payload under a key that is taken")


async def abort(user: User) -> None:
    """Queued, active or settled work; what was accepted as an abort stands in the ledger."""
    accepted = user.accepted()
    if not accepted:
        return
    receipt = user.chance.choice(accepted).receipt
    assert receipt is not None
    try:
        answer = await user.client.abort(receipt.submission_id, "enough", "bob")
    except Refused as error:
        user.world.reached[f"abort_refused:{error.code}"] += 1
        return
    row = user.world.store.store.lookup(receipt.submission_id)
    if row is None or row.abort != answer.abort:
        user.world.fail(f"the abort of {receipt.submission_id} was accepted and is not in the ledger")


async def wait(user: User) -> None:
    """Wait a while for an outcome."""
    accepted = user.accepted()
    if accepted:
        await user.told(user.chance.choice(accepted), user.chance.choice((0.1, 3.0, 12.0)))


async def watch(user: User) -> None:
    """Look on for a while from some record on: each canonical one is seen once, in order."""
    after = user.chance.choice((0, 0, 3))
    expected = after + 1
    async with asyncio.timeout(user.chance.choice((0.2, 2.0, 8.0))):
        async for event in user.client.events(user.conversation_id, after, provisional=True):
            if event.sequence is None:
                continue
            if event.sequence != expected:
                user.world.fail(f"a watcher saw {event.sequence} and not {expected}")
            expected += 1
            user.world.auditor.saw(user.conversation_id, event.sequence, event.type)


Act = Callable[[User], Awaitable[None]]

ACTS: list[tuple[int, Act]] = [
    (6, submit),
    (2, submit_many),
    (2, steer),
    (2, repeat),
    (1, contradict),
    (3, abort),
    (2, wait),
    (2, watch),
    (2, approve),
    (1, deny),
    (1, disagree),
    (1, misread),
]
"""What users do, and how often: a new act is one more line."""


class Operator:
    """Somebody with access to the supplier's books, who answers for what nobody else can prove."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._chance = child_of(seed, "operator")
        self._store = StoreClient(SimulatedLink(world), child_of(seed, "operator's store"))
        self.on_duty = True
        self.thorough = False

    async def work(self) -> None:
        """Look for Unknown work from time to time and answer for some of it, for all of it when `thorough`."""
        while True:
            await asyncio.sleep(1.0 if self.thorough else self._chance.uniform(1.0, 12.0))
            if not self.on_duty:
                continue
            rows: list[Row] = await self._store.read("list_rows", None, str(State.UNKNOWN), 1000)
            for row in rows:
                if self.thorough or self._chance.random() < 0.7:
                    await self._answer(row)

    async def _answer(self, row: Row) -> None:
        for call_id, call in row.unknown_calls.items():
            if call.resolution is not None:
                continue
            resolution, result = self._truth(call_id)
            command = ResolveUnknown(
                submission_id=row.submission_id,
                call_id=call_id,
                resolution=resolution,
                author="ann",
                reason="saw the books",
                result=result,
            )
            try:
                await self._store.commit(Unit(conversation_id=row.conversation_id, commands=(command,)))
            except Refused as error:
                self._world.reached[f"resolution_refused:{error.code}"] += 1
            except StoreFull:
                return

    def _truth(self, call_id: str) -> tuple[Any, Any]:
        """What the books say, or now and then that the run is to end."""
        done = self._world.supplier.last(call_id)
        if self._chance.random() < 0.15:
            return "abort", None
        if done is not None:
            return "completed_with_result", done.value
        return self._chance.choice(("never_started", "safe_to_retry")), None


def users_of(world: World, seed: int) -> list[User]:
    """The users of one seed: a few conversations, some with two users."""
    chance = child_of(seed, "users")
    users: list[User] = []
    for number in range(chance.choice((1, 2, 2, 3))):
        agent = chance.choice(AGENTS).name
        for who in range(chance.choice((1, 1, 2))):
            name = f"user-{number}-{who}"
            users.append(User(world, f"conversation-{number}", name, agent, child_of(seed, name)))
    return users
