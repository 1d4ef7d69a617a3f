"""A tool of two durable steps, whose process dies between them. Run this program twice:

the first run ends in the middle of the trip; the second one goes on, and does not book the flight again.
"""

import os
from pathlib import Path
from typing import Any

import laneway
from laneway import Agent, FunctionModel, ModelRequest, ToolContext, tool

BOOKED = Path("booked.txt")  # stands for the airline and the hotel


def book(what: str, key: str) -> str:
    with BOOKED.open("a") as file:
        file.write(f"{what} {key}\n")
    return f"{what} is booked"


@tool(effect="idempotent")
async def book_trip(ctx: ToolContext, city: str) -> list[str]:
    """Book a flight and a hotel. Each booking gets the call's key: a step runs at least once and is recorded once."""
    flight = await ctx.step("flight", lambda: book(f"the flight to {city}", ctx.idempotency_key))
    if ctx.attempt == 1:
        print(f"{flight}, and now this process dies", flush=True)
        os._exit(1)
    hotel = await ctx.step("hotel", lambda: book(f"the hotel in {city}", ctx.idempotency_key))
    return [flight, hotel]


def answer(request: ModelRequest) -> dict[str, Any] | str:
    """Stands for a model."""
    last = request.messages[-1]
    if last["role"] == "tool":
        return f"All done: {last['content']}"
    return {"tool_calls": [{"id": "call_1", "function": {"name": "book_trip", "arguments": '{"city": "Oslo"}'}}]}


if __name__ == "__main__":
    agent = Agent(name="travel", model=FunctionModel(answer), tools=[book_trip])
    with laneway.local(agents=[agent], store="durable_steps.duckdb") as runtime:
        trip = runtime.conversation("trip-1")
        print(trip.submit("Book me a trip to Oslo", idempotency_key="message-1").result(timeout=30).text)
        for record in trip.log():
            print(record["sequence"], record["type"], record.get("name", ""))
