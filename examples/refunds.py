"""Refunds that move money: small ones run at once, large ones wait for a person, and nothing is ever paid twice.

    python refunds.py

A file stands for the bank. The same agent under `laneway up --agents refunds:agents` waits across processes and days:

    laneway submit order-43 "Refund 250 for order 43."
    laneway explain SUBMISSION
    laneway approve SUBMISSION --author ann --reason "invoice checked"
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import laneway
from laneway import Agent, Completed, FunctionModel, ModelRequest, NeverStarted, ToolContext, tool

BANK = Path(tempfile.gettempdir()) / "laneway-example-bank.jsonl"


def booked(key: str) -> dict[str, Any] | None:
    """What the bank knows of a payment under this key."""
    lines = BANK.read_text().splitlines() if BANK.exists() else []
    return next((found for line in lines if (found := json.loads(line))["key"] == key), None)


def find_refund(ctx: ToolContext, arguments: dict[str, Any]) -> Completed | NeverStarted:
    """After a crash: the bank's book is the proof of what became of the call."""
    found = booked(ctx.idempotency_key)
    return Completed(found, "in the bank's book") if found else NeverStarted("not in the bank's book")


@tool(
    effect="uncertain",
    approval=lambda arguments: arguments["eur"] > 100,
    approval_expires_s=7 * 24 * 3600.0,
    reconcile=find_refund,
)
def refund(ctx: ToolContext, order: str, eur: int) -> dict[str, Any]:
    """Pay an order back."""
    payment = {"key": ctx.idempotency_key, "order": order, "eur": eur}
    with BANK.open("a") as book:
        book.write(json.dumps(payment) + "\n")
    return payment


def answer(request: ModelRequest) -> dict[str, Any] | str:
    """Stands for a model."""
    last = request.messages[-1]
    if last["role"] == "tool":
        return f"The bank says: {last['content']}"
    eur, order = re.findall(r"\d+", str(last["content"]))[:2]
    function = {"name": "refund", "arguments": json.dumps({"order": order, "eur": int(eur)})}
    return {"tool_calls": [{"id": "call_1", "function": function}]}


agents = [Agent(name="refunds", model=FunctionModel(answer), tools=[refund])]


def main() -> None:
    with laneway.local(agents) as runtime:
        small = runtime.conversation("order-42").submit("Refund 9 for order 42.")
        print(small.result(timeout=10).text)
        large = runtime.conversation("order-43").submit("Refund 250 for order 43.")
        try:
            large.result(timeout=0.5)
        except TimeoutError as waiting:
            print(waiting)
        runtime.approve(large.submission_id, author="ann", reason="invoice checked")
        print(large.result(timeout=10).text)


if __name__ == "__main__":
    main()
