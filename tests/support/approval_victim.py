"""A process that a crash test kills: `approval_victim.py STORE SUPPLIER submit|look|approve POINT|none`.

It submits one charge that needs approval and dies at POINT, or looks where the work stands, or approves it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from lane_world import Script, Supplier, agent_of, call, calls

import laneway
from laneway import Tool
from laneway.storage.failpoints import Failpoints, Point


def main(store: str, supplier_path: str, act: str, point: str) -> None:
    supplier = Supplier(Path(supplier_path))
    failpoints = Failpoints({} if point == "none" else {Point(point): 1}, exit_code=137)

    async def charge(ctx: Any, arguments: dict[str, Any]) -> str:
        supplier.book("charge", ctx.call_id)
        return "charged"

    tool = Tool.raw("charge", charge, effect="uncertain", approval=True, version="1")
    agent = agent_of(Script(calls(call("charge")), "done", supplier=supplier), tool)
    with laneway.local(agent, store, failpoints=failpoints, stepwise=True) as runtime:
        conversation = runtime.conversation("c")
        if act == "submit":
            conversation.submit("pay", idempotency_key="k").result(timeout=30)
            raise AssertionError("nobody was killed")
        (row,) = runtime.submissions()
        if act == "approve":
            runtime.approve(row.submission_id, author="ann")
        receipt = runtime.receipt(row.submission_id)
        told: dict[str, Any] = {"state": "suspended"}
        try:
            settlement = receipt.result(timeout=30 if act == "approve" else 1)
        except TimeoutError:
            told["state"] = receipt.status()
        else:
            report = runtime.verify()
            told = {"outcome": settlement.outcome, "passed": report.passed}
        types = [record["type"] for record in conversation.log()]
    told["requests"] = types.count("approval_requested")
    if act == "approve":
        told["decisions"] = types.count("approval_decided")
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
