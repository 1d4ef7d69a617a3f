"""A process that a crash test kills, and the one that recovers: `lane_victim.py STORE SUPPLIER SPEC`.

SPEC is a `Spec` as JSON. `charge` submits one charge under one key, `steps` one whose tool has durable steps, `abort
queued` and `abort active` abort such work, `quarantine` and `release` set its conversation aside and let it go. The
process that recovers submits the same under the same keys, waits for the end, and prints what it was told as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from crash_matrix import OPERATOR, Row, charging
from lane_world import Crash, Script, Supplier, agent_of, call, calls

import laneway
from laneway import Agent, Receipt, Runtime, Tool
from laneway.storage.failpoints import Point

WAIT_S = 30


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do, as JSON."""

    act: str
    row: Row
    mode: str = "stepwise"
    kill: bool = True
    """Stop at the row's point; without it, recover."""


class Victim:
    """One process. `plan` arms the row's failpoint, counted from there, in the process that is to be killed."""

    def __init__(self, supplier: Supplier, spec: Spec) -> None:
        self.supplier = supplier
        self.spec = spec
        self.failpoints = Crash(exit_code=137)
        self.asked = threading.Event()
        self.aside: list[str] = []

    def plan(self) -> None:
        if self.spec.kill:
            self.failpoints.plan({self.spec.row.point: self.spec.row.at})

    def agent(self) -> Agent:
        match self.spec.act:
            case "steps":
                return self._stepping()
            case "abort queued" | "abort active":
                return agent_of(Script(self._held, supplier=self.supplier))
            case _:
                return charging(self.supplier, self.failpoints, self.spec.row)

    async def _held(self, request: Any) -> str:
        self.asked.set()
        if self.spec.kill:  # the process ends before this does
            await asyncio.get_running_loop().create_future()
        return "done"

    def _stepping(self) -> Agent:
        supplier, failpoints = self.supplier, self.failpoints

        async def charge(ctx: Any, arguments: dict[str, Any]) -> dict[str, Any]:
            supplier.book("charge", ctx.call_id)
            failpoints.hit(Point.DURING_TOOL)
            for number in (1, 2):
                await ctx.step(f"step {number}", lambda n=number: supplier.book(f"step {n}", ctx.call_id))
            return {"charged": ctx.call_id}

        tool = Tool.raw("charge", charge, effect="idempotent", version="1")
        return agent_of(Script(calls(call("charge")), "done", supplier=supplier), tool)

    def run(self, runtime: Runtime) -> dict[str, Any]:
        acts: dict[str, Callable[[Runtime], list[Receipt]]] = {
            "abort queued": self._abort,
            "abort active": self._abort,
            "quarantine": self._set_aside,
            "release": self._set_aside,
        }
        receipts = acts.get(self.spec.act, self._charge)(runtime)
        settlements = [receipt.result(timeout=WAIT_S) for receipt in receipts]
        report = runtime.verify(require_settled=True)
        return {
            "receipts": [receipt.as_dict() for receipt in receipts],
            "outcomes": [settlement.outcome for settlement in settlements],
            "aside": self.aside,
            "problems": [problem.message for problem in report.problems],
        }

    def _charge(self, runtime: Runtime) -> list[Receipt]:
        self.plan()
        receipt = runtime.conversation("c").submit("pay", idempotency_key="k")
        if self.spec.row.outcome == "unknown":
            self._answer_for(runtime, receipt)
        return [receipt]

    def _answer_for(self, runtime: Runtime, receipt: Receipt) -> None:
        """Wait until it is unknown and at rest; then an operator says what became of the call."""
        row = self.spec.row
        while receipt.status() != "unknown":
            self._still_open(receipt)
        self._still_open(receipt)  # nobody goes on by himself
        assert (self.supplier.count("charge"), self.supplier.count("model")) == (row.tool, row.model)
        report = runtime.verify()
        assert report.passed, report.problems
        if row.then == OPERATOR:
            runtime.resolve_unknown(receipt.submission_id, "never_started", author="ann", reason="saw the statement")
        else:
            receipt.abort(author="ann", reason="refund by hand")

    def _still_open(self, receipt: Receipt) -> None:
        try:
            settlement = receipt.result(timeout=0.1)
        except TimeoutError:
            return
        raise AssertionError(f"it settled by itself: {settlement}")

    def _abort(self, runtime: Runtime) -> list[Receipt]:
        conversation = runtime.conversation("c")
        receipts = [conversation.submit("one", idempotency_key="k1")]
        if self.spec.act == "abort queued":
            receipts.append(conversation.submit("two", idempotency_key="k2"))
        if self.spec.kill:
            assert self.asked.wait(WAIT_S)
            self.plan()
            receipts[-1].abort(author="bob", reason="enough", abort_id="abt_1")
        return receipts

    def _set_aside(self, runtime: Runtime) -> list[Receipt]:
        """The conversation is known before it is set aside; what comes meanwhile waits until it is released."""
        conversation = runtime.conversation("c")
        receipt = conversation.submit("pay", idempotency_key="k")
        receipt.result(timeout=WAIT_S)
        if self.spec.kill:
            if self.spec.act == "quarantine":
                self.plan()
            runtime.quarantine("c", reason="looking", author="ann")
            self.plan()
            runtime.release_quarantine("c", author="ann")
        self.aside = [found.reason for found in runtime.quarantined()]
        waiting = conversation.submit("pay again", idempotency_key="k2")
        if self.aside:
            self._still_open(waiting)
            runtime.release_quarantine("c", author="ann")
        return [receipt, waiting]


def main(store: str, supplier_path: str, text: str) -> None:
    spec = msgspec.json.decode(text, type=Spec)
    victim = Victim(Supplier(Path(supplier_path)), spec)
    stepwise = spec.mode == "stepwise"
    with laneway.local(victim.agent(), store, failpoints=victim.failpoints, stepwise=stepwise) as runtime:
        print(json.dumps(victim.run(runtime)))


if __name__ == "__main__":
    main(*sys.argv[1:])
