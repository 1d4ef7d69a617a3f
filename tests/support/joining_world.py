"""One run that takes in two others at its first boundary: a submission that joins it, and one that steers it."""

from __future__ import annotations

from typing import Any

from lane_world import Gate, Process, World, answers_since_user, call, calls

from laneway import Agent, FunctionModel, Tool
from laneway.storage.failpoints import Point
from laneway.storage.ledger import Receipt
from laneway.storage.records import InputRecorded

KEYS = ("k1", "k2", "k3")
TEXTS = ("pay", "two", "three")


class Hosted:
    """Processes of one world whose model is held in its first call until all three are admitted."""

    def __init__(self, world: World, *, stepwise: bool) -> None:
        self.world = world
        self.stepwise = stepwise
        self.receipts: list[Receipt] = []

    async def process(self, gate: Gate | None = None) -> Process:
        return await self.world.process(self.agent(gate), stepwise=self.stepwise)

    def agent(self, gate: Gate | None) -> Agent:
        supplier, failpoints = self.world.supplier, self.world.failpoints

        async def respond(request: Any, emit: Any) -> Any:
            supplier.book("model", request.operation_id)
            if gate is not None and request.turn == 1:
                await gate.wait()
            done = request.turn > 1 or answers_since_user(request.messages)
            return "done" if done else calls(call("charge"))

        async def charge(ctx: Any, arguments: dict[str, Any]) -> str:
            supplier.book("charge", ctx.call_id)
            failpoints.hit(Point.DURING_TOOL)
            return "charged"

        tool = Tool.raw("charge", charge, effect="idempotent", version="1")
        return Agent(name="support", model=FunctionModel(respond, name="hosted"), tools=[tool], join=True)

    async def begin(self) -> tuple[Process, Gate]:
        """A process whose run waits in its first model call, with two inputs behind it."""
        gate = Gate()
        process = await self.process(gate)
        self.receipts = [await process.submit(TEXTS[0], key=KEYS[0])]
        await gate.reached()
        self.receipts.append(await process.submit(TEXTS[1], key=KEYS[1]))
        self.receipts.append(await process.steer(TEXTS[2], key=KEYS[2]))
        return process, gate

    async def run(self) -> None:
        """All of it, without a crash."""
        process, gate = await self.begin()
        gate.open()
        await self.check(process)

    async def check(self, process: Process) -> None:
        """Whatever happened before, all three end in one run, each input delivered once (DUR-016)."""
        world = self.world
        outcomes = [await process.settled(receipt) for receipt in self.receipts]
        await process.at_rest()
        assert {(item.outcome, item.text) for item in outcomes} == {("completed", "done")}
        assert len({item.run_id for item in outcomes}) == 1
        inputs = [record for record in world.records() if isinstance(record, InputRecorded)]
        assert [record.content for record in inputs] == list(TEXTS)
        assert [record.kind for record in inputs] == ["user", "follow_up", "steering"]
        tags = world.tags()
        assert (tags.count("submission_settled"), tags.count("run_started"), tags.count("run_completed")) == (3, 1, 1)
        again = [await process.submit(text, key=key) for text, key in zip(TEXTS[:2], KEYS[:2], strict=True)]
        again.append(await process.steer(TEXTS[2], key=KEYS[2]))
        assert [item.submission_id for item in again] == [item.submission_id for item in self.receipts]
        assert all(item.replayed for item in again)
        await process.at_rest()
        world.converged()
