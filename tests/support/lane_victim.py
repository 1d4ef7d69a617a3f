"""A process that a crash test kills: `lane_victim.py STORE SUPPLIER POINT AT MODE`; with POINT `none` it recovers.

It runs a local runtime on a DuckDB file, submits one charge under one key, and prints the outcome as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lane_world import Script, Supplier, agent_of, call, calls

import laneway
from laneway import Tool
from laneway.storage.failpoints import Failpoints, Point


def main(store: str, supplier_path: str, point: str, at: str, stepwise: str) -> None:
    supplier = Supplier(Path(supplier_path))
    failpoints = Failpoints({} if point == "none" else {Point(point): int(at)}, exit_code=137)

    async def charge(ctx: Any, arguments: dict[str, Any]) -> str:
        supplier.book("charge", ctx.call_id)
        failpoints.hit(Point.DURING_TOOL)
        for number in (1, 2):
            await ctx.step(f"step {number}", lambda n=number: supplier.book(f"step {n}", ctx.call_id))
        return "charged"

    tool = Tool.raw("charge", charge, effect="idempotent", version="1")
    agent = agent_of(Script(calls(call("charge")), "done", supplier=supplier), tool)
    with laneway.local(agent, store, failpoints=failpoints, stepwise=stepwise == "stepwise") as runtime:
        receipt = runtime.conversation("c").submit("pay", idempotency_key="k")
        settlement = receipt.result(timeout=30)
        log = runtime.conversation("c").log()
        report = runtime.verify()
    print(
        json.dumps(
            {
                "outcome": settlement.outcome,
                "text": settlement.text,
                "replayed": receipt.replayed,
                "types": [record["type"] for record in log],
                "decisions": [record["decision"] for record in log if record["type"] == "recovery_decided"],
                "passed": report.passed,
                "problems": [problem.message for problem in report.problems],
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
