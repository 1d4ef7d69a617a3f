"""A process that a crash test kills in a join: `joining_victim.py STORE SUPPLIER POINT AT MODE`; `none` recovers.

It runs a local runtime on a DuckDB file, submits two inputs and steers with a third, and prints the outcomes."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

from joining_world import KEYS, TEXTS
from lane_world import Supplier, call, calls

import laneway
from laneway import Agent, FunctionModel, Tool
from laneway.storage.failpoints import Failpoints, Point


def main(store: str, supplier_path: str, point: str, at: str, mode: str) -> None:
    supplier = Supplier(Path(supplier_path))
    failpoints = Failpoints({} if point == "none" else {Point(point): int(at)}, exit_code=137)
    asked, admitted = threading.Event(), threading.Event()

    async def respond(request: Any, emit: Any) -> Any:
        supplier.book("model", request.operation_id)
        asked.set()
        if request.turn == 1:
            await asyncio.to_thread(admitted.wait, 30)
        return "done" if request.turn > 1 else calls(call("charge"))

    async def charge(ctx: Any, arguments: dict[str, Any]) -> str:
        supplier.book("charge", ctx.call_id)
        return "charged"

    tool = Tool.raw("charge", charge, effect="idempotent", version="1")
    agent = Agent(name="support", model=FunctionModel(respond, name="hosted"), tools=[tool], join=True)
    with laneway.local(agent, store, failpoints=failpoints, stepwise=mode == "stepwise") as runtime:
        conversation = runtime.conversation("c")
        receipts = [conversation.submit(TEXTS[0], idempotency_key=KEYS[0])]
        if not receipts[0].replayed:
            assert asked.wait(30)
        receipts.append(conversation.submit(TEXTS[1], idempotency_key=KEYS[1]))
        receipts.append(conversation.steer(TEXTS[2], idempotency_key=KEYS[2]))
        admitted.set()
        settlements = [receipt.result(timeout=30) for receipt in receipts]
        log = conversation.log()
        report = runtime.verify()
    inputs = [record for record in log if record["type"] == "input_recorded"]
    print(
        json.dumps(
            {
                "outcomes": [[item.outcome, item.text] for item in settlements],
                "replayed": [receipt.replayed for receipt in receipts],
                "run_ids": len({item.run_id for item in settlements}),
                "inputs": [[record.get("kind", "user"), record["content"]] for record in inputs],
                "decisions": [record["decision"] for record in log if record["type"] == "recovery_decided"],
                "passed": report.passed,
                "problems": [problem.message for problem in report.problems],
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
