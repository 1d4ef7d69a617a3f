"""Recorded conversations, again and again, while actors, store and supervisor are killed; then everything must fit.

    python benchmarks/soak.py --seconds 300 --seed 1 --file conversations.jsonl
    python benchmarks/soak.py --seconds 30 --file conversations.jsonl --json

Each round replays the file under fresh conversation ids until the time is over; then the killing stops, what is under
way settles, and the convergence check runs over the whole store. Tools are readonly, idempotent or uncertain by their
names' first word; a reconciler, which reads the file of executions, knows of each uncertain call whether it was made,
so that none of them may ever be made twice. It fails when a submission is not settled within a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

import laneway
from laneway import Agent, Completed, NeverStarted, Tool, ToolContext
from laneway.agents import Recording, read_recordings, replay_agent
from laneway.agents.protocol import Emit, Model, ModelRequest, ModelResponse
from laneway.cluster.chaos import ChaosPlan, parse_kinds
from laneway.cluster.executions import counted, read_lines
from laneway.cluster.replay import AGENT_NAME, Replay, as_json

RECORDINGS = "LANEWAY_SOAK_FILE"
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data" / "airline-conversations.jsonl"
READING = frozenset({"calculate", "find", "get", "list", "look", "search", "think"})
REPEATABLE = frozenset({"set", "update"})
PATIENCE_S = 60.0
PROGRESS_S = 10.0


def recorded_id(conversation_id: str) -> str:
    """The id in the file; a round's number stands behind it."""
    return conversation_id.rpartition("~")[0]


def rounds(recordings: Sequence[Recording], until: float) -> Iterator[Recording]:
    """The recordings under fresh ids, round after round, up to that moment of the monotonic clock."""
    for number in itertools.count(1):
        for recording in recordings:
            if time.monotonic() >= until:
                return
            yield dataclasses.replace(recording, id=f"{recording.id}~{number}")


class RoundsModel:
    """The recordings' model, whatever round a conversation is of."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def identity(self) -> dict[str, Any]:
        return self._model.identity()

    async def respond(self, request: ModelRequest, emit: Emit) -> ModelResponse:
        conversation_id = recorded_id(request.conversation_id)
        return await self._model.respond(msgspec.structs.replace(request, conversation_id=conversation_id), emit)


class RoundsTool:
    """A recorded tool's function, whatever round a conversation is of; it takes time, so that kills find it at work."""

    def __init__(self, tool: Tool, delay_s: float) -> None:
        self._function = tool.function
        self._delay_s = delay_s

    async def __call__(self, ctx: ToolContext, arguments: dict[str, Any]) -> Any:
        await asyncio.sleep(self._delay_s)
        ctx = dataclasses.replace(ctx, conversation_id=recorded_id(ctx.conversation_id))
        return await self._function(ctx, arguments)


class Proof:
    """Looks an uncertain call up where its execution was noted: the process that made it is gone."""

    def __init__(self, function: RoundsTool, executions: str) -> None:
        self._function = function
        self._executions = executions

    async def __call__(self, ctx: ToolContext, arguments: dict[str, Any]) -> Completed | NeverStarted:
        if not any(line.get("call_id") == ctx.call_id for line in read_lines(Path(self._executions))):
            return NeverStarted()
        message = await self._function(ctx, arguments)
        return Completed(message.content)


def soak_agent(recordings: Sequence[Recording], executions: Path, delay_s: float) -> Agent:
    """The agent of the recordings with tools of all three effect classes; all that it does is counted in the file."""
    agent = replay_agent(recordings, name=AGENT_NAME, delay_s=delay_s)
    tools: list[Tool] = []
    for tool in agent.tools:
        assert isinstance(tool, Tool)
        verb = tool.name.partition("_")[0]
        function = RoundsTool(tool, delay_s)
        if verb in READING:
            tools.append(dataclasses.replace(tool, function=function, effect="readonly"))
        elif verb in REPEATABLE:
            tools.append(dataclasses.replace(tool, function=function, effect="idempotent"))
        else:
            proof = Proof(function, str(executions))
            tools.append(dataclasses.replace(tool, function=function, effect="uncertain", reconcile=proof))
    assert not isinstance(agent.model, str)
    return counted(dataclasses.replace(agent, model=RoundsModel(agent.model), tools=tools), executions)


class Progress:
    """A line on standard error now and then."""

    def __init__(self) -> None:
        self._began = self._told = time.monotonic()
        self._count = 0

    def __call__(self, count: int) -> None:
        self._count += count
        now = time.monotonic()
        if now - self._told >= PROGRESS_S:
            self._told = now
            print(f"{now - self._began:6.0f} s  {self._count:,} submissions settled", file=sys.stderr, flush=True)


def soak(chosen: argparse.Namespace) -> dict[str, Any]:
    recordings, bad_lines = read_recordings(chosen.file)
    if bad_lines or not recordings:
        raise SystemExit(f"{chosen.file}: {bad_lines[0] if bad_lines else 'no conversations'}")
    plan = ChaosPlan(
        every_s=chosen.kill_every, kinds=parse_kinds(chosen.chaos), seed=chosen.seed, until_s=chosen.seconds
    )
    with tempfile.TemporaryDirectory(prefix="laneway-soak-") as folder:
        executions = Path(folder) / "executions.jsonl"
        store = chosen.store or Path(folder) / "soak.duckdb"
        with laneway.start([soak_agent(recordings, executions, chosen.delay)], store=store) as runtime:
            replay = Replay(
                runtime,
                rounds(recordings, time.monotonic() + chosen.seconds),
                executions,
                chosen.concurrency,
                chaos=plan,
                patience_s=PATIENCE_S,
                require_settled=True,
                settled=(lambda count: None) if chosen.json else Progress(),
            )
            summary = replay.run()
    uncertain = summary.tool_executions_repeated_by_effect["uncertain"]
    result = as_json(summary)
    return {
        **result,
        "passed": summary.passed and not uncertain,
        "seed": chosen.seed,
        "kill_every_s": chosen.kill_every,
    }


def show(result: dict[str, Any]) -> None:
    def line(name: str, value: Any) -> None:
        print(f"{name:>36}  {value:,}" if isinstance(value, int) else f"{name:>36}  {value}")

    line("class", "DR/duckdb on Ray")
    line("seconds", result["seconds"])
    line("seed", result["seed"])
    line("conversations", result["conversations"])
    line("submissions settled", sum(result["outcomes"].values()))
    for outcome, count in result["outcomes"].items():
        line(outcome, count)
    for title, counts in (("killed", "kills_by_kind"), ("recovered", "recoveries_by_decision")):
        for name, count in result[counts].items():
            line(f"{title}: {name}", count)
    line("model calls", result["model_calls_made"])
    line("made again", result["model_calls_repeated"])
    line("tool executions", result["tool_executions"])
    for effect, count in result["tool_executions_repeated_by_effect"].items():
        line(f"duplicate, {effect}", count)
    line("of a call with a committed result", result["tool_executions_after_commit"])
    for trouble in result["troubles"][:10]:
        line("TROUBLE", f"{trouble['conversation_id']} #{trouble['input_number']}: {trouble['code']}")
    for problem in result["problems"][:10]:
        line("PROBLEM", f"{problem['check']} {problem['conversation_id']}: {problem['message']}")
    line("convergence check", "passed" if not result["problems"] else f"{len(result['problems'])} problems")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, help=f"recordings (default: ${RECORDINGS}, else {BESIDE.name} beside us)")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long it kills and replays (default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="fixes what is killed and when (default: 0)")
    parser.add_argument("--kill-every", type=float, default=2.0, help="seconds between two kills (default: 2)")
    parser.add_argument("--chaos", default="actors,store,supervisor", help="what is killed (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, default=16, help="conversations at a time (default: 16)")
    parser.add_argument(
        "--delay", type=float, default=0.2, help="seconds that a model call and a tool take (default: 0.2)"
    )
    parser.add_argument("--store", type=Path, help="keep the store's file there (default: it is thrown away)")
    parser.add_argument("--result", type=Path, help="write the result as JSON into this file, too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    chosen.file = chosen.file or Path(os.environ.get(RECORDINGS) or BESIDE)
    result = soak(chosen)
    if chosen.result is not None:
        chosen.result.write_text(json.dumps(result) + "\n")
    if chosen.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
