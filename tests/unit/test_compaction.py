"""Compaction: when it is due, what it covers, what a model reads afterwards, and what becomes of one that fails."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from lane_records import a_view, asked_abort, began, call_id, ended, responded, returned, said, settled, unknown
from lane_world import Gate, Script, World, agent_of, call, calls, until

from laneway import Agent, InvalidInput, Tool
from laneway.actors.lane import facts
from laneway.actors.lane.compaction import covered_entries
from laneway.agents import Compaction, ScriptedModel, leave_out
from laneway.agents.compaction import LEFT_OUT
from laneway.recovery.convergence import prompt_fault
from laneway.storage.projection import ConversationView, chat_messages, prompt_messages
from laneway.storage.prompt import Prompt
from laneway.storage.records import AnyRecord, CompactionCreated, record_id

# --- what is covered -------------------------------------------------------------------------------------------------


def turns(submission_id: str, number: int, count: int = 1) -> list[AnyRecord]:
    """A run of `count` turns with two calls each, and a last answer: 2 + 3 * count messages."""
    log: list[AnyRecord] = [said(submission_id, number, f"question {number}"), began(submission_id)]
    for turn in range(1, count + 1):
        log.append(responded(turn, "a", "b", submission_id=submission_id))
        log += [returned(call_id(turn, place, submission_id), "ok", submission_id) for place in (0, 1)]
    answer = responded(count + 1, submission_id=submission_id, content=f"answer {number}")
    return [*log, answer, ended(submission_id=submission_id), settled(submission_id=submission_id)]


def prompt_of(*records: AnyRecord) -> Prompt:
    view = ConversationView(keep="open")
    view.extend(records)
    return view.prompt


def covered(prompt: Prompt, submission_id: str, after: int, keep: int) -> list[int]:
    run_id = facts.run_id_of(submission_id)
    return [entry.sequence for entry in covered_entries(prompt, run_id, after, keep)]


def test_nothing_is_covered_while_the_prompt_is_short_enough() -> None:
    prompt = prompt_of(*turns("sub_1", 1), said("sub_2", 2), began("sub_2"))
    assert covered(prompt, "sub_2", 6, 1) == []
    assert covered(prompt, "sub_2", 5, 1) == [1, 3, 6]


def test_a_cut_never_parts_a_call_from_its_results() -> None:
    """Whatever number of messages is to stay, a turn stays or goes as a whole."""
    prompt = prompt_of(*turns("sub_1", 1), *turns("sub_2", 2), said("sub_3", 3), began("sub_3"))
    for keep in range(1, 11):
        entries = covered_entries(prompt, facts.run_id_of("sub_3"), 10, keep)
        rest = [entry for entry in prompt.entries if entry not in entries]
        assert sum(entry.size for entry in rest) >= keep
        for part in (entries, rest):
            assert prompt_fault([message for entry in part for message in entry.messages()]) is None


def test_the_run_at_work_keeps_its_own_messages_while_there_are_others() -> None:
    """What was asked, steered or joined in this run stays, until this run alone is too long."""
    log = turns("sub_2", 2, 3)[:-3]
    prompt = prompt_of(*turns("sub_1", 1), *log)
    assert covered(prompt, "sub_2", 5, 1) == [1, 3, 6]
    alone = prompt_of(*log)
    assert covered(alone, "sub_2", 5, 1) == [1, 3, 6]


def test_a_turn_that_waits_for_results_is_not_covered() -> None:
    """Parked work goes on some day, and its results belong behind its call."""
    parked = [said("sub_1", 1), began("sub_1"), responded(1, "a"), unknown(call_id(1, 0))]
    prompt = prompt_of(*parked, *turns("sub_2", 2, 4), said("sub_3", 3), began("sub_3"))
    assert covered(prompt, "sub_3", 5, 1) == [1]


def test_parked_work_that_goes_on_keeps_its_question() -> None:
    """It stands before what others have said meanwhile; nothing is covered until its run is over."""
    parked = [said("sub_1", 1), began("sub_1"), responded(1, "a"), unknown(call_id(1, 0))]
    prompt = prompt_of(*parked, *turns("sub_2", 2, 4), returned(call_id(1, 0)))
    assert covered(prompt, "sub_1", 5, 1) == []
    over = prompt_of(*parked, *turns("sub_2", 2, 4), returned(call_id(1, 0)), responded(2), ended(), settled())
    assert len(covered(over, "sub_3", 5, 1)) > 2


def test_what_joined_a_run_stays_with_the_turn_that_it_followed() -> None:
    """The run that it was said to is known from that turn."""
    first, *rest = turns("sub_1", 1, 2)[1:]
    log = [said("sub_1", 1), first, *rest[:3], said("sub_2", 2, "and one thing more"), *rest[3:-3]]
    prompt = prompt_of(*log)
    assert [type(entry).__name__ for entry in prompt.entries] == [
        "InputEntry",
        "TurnEntry",
        "InputEntry",
        "TurnEntry",
    ]
    assert {entry.run_id for entry in prompt.entries} == {facts.run_id_of("sub_1")}
    assert covered(prompt, "sub_1", 5, 1) == covered(prompt, "sub_1", 5, 3) == [1, 3, 6]
    assert covered(prompt, "sub_1", 5, 4) == covered(prompt, "sub_1", 5, 5) == [1]


def compacted(run: str, covers: int, artifact: Any = "so far", responses: int = 1) -> CompactionCreated:
    return CompactionCreated(
        id=record_id("compaction_created", run, covers),
        run_id=run,
        covers_sequence=covers,
        covers_responses=responses,
        artifact=artifact,
    )


@pytest.mark.parametrize("artifact", ["so far", [{"role": "user", "content": "so far"}]])
def test_an_artifact_stands_for_what_it_covers_in_prompts_and_nowhere_else(artifact: Any) -> None:
    """The log and the export keep everything."""
    view = a_view(*turns("sub_1", 1), said("sub_2", 2, "more"), began("sub_2"), compacted("run", 8, artifact, 2))
    assert prompt_messages(view, "run") == [{"role": "user", "content": "so far"}, {"role": "user", "content": "more"}]
    assert len(chat_messages(view)) == 6
    assert view.prompt.responses == 2


def test_an_older_compaction_behind_a_newer_cut_changes_nothing() -> None:
    """Read from the newer cut on, the record of the older one is met again."""
    log = [*turns("sub_1", 1), *turns("sub_2", 2), said("sub_3", 3), compacted("r", 1, "old", 0)]
    log += [compacted("r", 6, "new", 2), said("sub_4", 4)]
    whole = a_view(*log)
    late = Prompt.behind(6)
    for sequence, record in enumerate(log[6:], 7):
        late.add(sequence, record)
    assert late.messages("r") == prompt_messages(whole, "r")
    assert late.messages("r")[0]["content"] == "new"


def test_records_of_others_that_came_first_move_the_places() -> None:
    """An abort of queued work entered the log before what this lane was about to write."""
    mine = [said("sub_1", 1), began("sub_1"), responded(1)]
    others = [settled("aborted", "sub_9")]
    view = ConversationView(keep="open")
    view.extend(mine)
    view.insert(2, others)
    straight = prompt_of(*mine[:2], *others, *mine[2:])
    assert [entry.sequence for entry in view.prompt.entries] == [entry.sequence for entry in straight.entries] == [1, 4]
    assert view.tail_sequence == view.prompt.tail == straight.tail == 4


def test_parked_work_that_others_abort_leaves_the_prompt_of_a_run_at_work() -> None:
    """Its settlement is met when this run's records are in the view already: its orphan declaration goes, too."""
    log = [
        said("sub_1", 1),
        began("sub_1"),
        responded(1, "a"),
        unknown(call_id(1, 0)),
        said("sub_2", 2),
        began("sub_2"),
    ]
    view = ConversationView(keep="open")
    view.extend([*log, responded(1, submission_id="sub_2", content="mine")])
    run = facts.run_id_of("sub_2")
    assert [message["role"] for message in prompt_messages(view, run)] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
    ]
    view.insert(6, [asked_abort("sub_1"), settled("aborted", "sub_1")])
    assert [message["role"] for message in prompt_messages(view, run)] == ["user", "user", "assistant"]
    straight = prompt_of(*log, asked_abort("sub_1"), settled("aborted", "sub_1"))
    straight.add(9, responded(1, submission_id="sub_2", content="mine"))
    assert [entry.sequence for entry in view.prompt.entries] == [entry.sequence for entry in straight.entries]
    assert straight.messages(run) == prompt_messages(view, run)


# --- the built-in compactor ------------------------------------------------------------------------------------------


def test_leave_out_says_so_and_keeps_what_nobody_has_answered() -> None:
    said_first = {"role": "user", "content": "first"}
    answered = [said_first, {"role": "assistant", "content": "yes"}]
    note = {"role": "user", "content": LEFT_OUT}
    assert leave_out(answered) == [note]
    pending = {"role": "user", "content": "and now?"}
    working = {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}
    assert leave_out([*answered, pending, working, {"role": "tool", "content": "1"}]) == [note, pending]
    assert leave_out([note, pending, working]) == [note, pending]


# --- definitions -----------------------------------------------------------------------------------------------------

MODEL = ScriptedModel(["done"])


def shorten(messages: list[dict[str, Any]]) -> str:
    return f"{len(messages)} messages"


def test_a_compaction_counts_in_the_digest_when_there_is_one() -> None:
    plain = Agent(name="a", model=MODEL)
    assert Agent(name="a", model=MODEL, compaction=None).digest == plain.digest
    variants = [
        Compaction(),
        Compaction(after_messages=9, keep_messages=8),
        Compaction(keep_messages=8),
        Compaction(compactor=shorten),
        Compaction(timeout_s=1),
    ]
    assert len({plain.digest, *(Agent(name="a", model=MODEL, compaction=item).digest for item in variants)}) == 6


@pytest.mark.parametrize(
    ("compaction", "field"),
    [
        ({"after_messages": 10}, "compaction"),
        (Compaction(after_messages=0), "compaction.after_messages"),
        (Compaction(keep_messages=0), "compaction.keep_messages"),
        (Compaction(after_messages=5, keep_messages=5), "compaction.keep_messages"),
        (Compaction(after_messages=100_001), "compaction.after_messages"),
        (Compaction(compactor="short"), "compaction.compactor"),  # pyright: ignore[reportArgumentType]
        (Compaction(timeout_s=0), "compaction.timeout_s"),
    ],
)
def test_a_bad_compaction_is_refused(compaction: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Agent(name="a", model=MODEL, compaction=compaction)
    assert caught.value.details["field"] == field


# --- in a lane -------------------------------------------------------------------------------------------------------


async def prompts(
    world: World, compaction: Compaction, runs: int = 4, **settings: Any
) -> tuple[list[list[dict[str, Any]]], Any]:
    """The prompts of some runs of one turn each, and the counts of the process."""
    script = Script("done")
    process = await world.process(agent_of(script, compaction=compaction), **settings)
    for number in range(1, runs + 1):
        assert (await process.run(f"question {number}")).outcome == "completed"
    await process.at_rest()
    for request in script.requests:
        assert prompt_fault(request.messages) is None
    world.converged()
    return [request.messages for request in script.requests], process.host.stats()


def contents(messages: list[dict[str, Any]]) -> list[Any]:
    return [message["content"] for message in messages]


async def async_shorten(messages: list[dict[str, Any]]) -> str:
    await asyncio.sleep(0)
    return shorten(messages)


@pytest.mark.parametrize("compactor", [shorten, async_shorten])
async def test_a_prompt_is_compacted_before_the_model_reads_it(compactor: Any, tmp_path: Path) -> None:
    """The artifact is committed first, and a later one is made of the earlier one and what came since."""
    world = World("memory", tmp_path)
    found, counts = await prompts(world, Compaction(after_messages=3, keep_messages=1, compactor=compactor), runs=5)
    assert contents(found[1]) == ["question 1", "done", "question 2"]
    assert contents(found[2]) == ["4 messages", "question 3"]
    assert contents(found[3]) == ["4 messages", "question 3", "done", "question 4"]
    assert contents(found[4]) == ["5 messages", "question 5"]
    assert counts["compactions"] == 2
    tags = world.tags()
    assert tags.count("compaction_created") == 2
    assert tags[tags.index("compaction_created") + 1] == "model_responded"
    await world.close()


async def test_the_log_and_the_export_keep_everything(tmp_path: Path) -> None:
    world = World("memory", tmp_path)
    await prompts(world, Compaction(after_messages=3, keep_messages=1))
    view = a_view(*world.records())
    assert contents(chat_messages(view)) == [text for n in range(1, 5) for text in (f"question {n}", "done")]
    await world.close()


@pytest.mark.parametrize("checkpoint_records", [1, 1_000])
async def test_a_compaction_is_read_back_by_the_next_process(checkpoint_records: int, tmp_path: Path) -> None:
    """From a checkpoint and from the whole log alike."""
    world = World("memory", tmp_path)
    compaction = Compaction(after_messages=3, keep_messages=1, compactor=shorten)
    await prompts(world, compaction, runs=3, checkpoint_records=checkpoint_records)
    assert (world.store.load_checkpoint("c") is not None) == (checkpoint_records == 1)
    await world.kill(world.processes[0])
    script = Script("done")
    process = await world.process(agent_of(script, compaction=compaction))
    await process.run("question 4")
    assert contents(script.requests[0].messages) == ["4 messages", "question 3", "done", "question 4"]
    assert script.requests[0].responses == 3
    assert process.host.stats().get("checkpoint_loaded", 0) == (checkpoint_records == 1)
    await process.at_rest()
    await world.close()


async def test_a_script_keeps_its_place_over_a_compaction(tmp_path: Path) -> None:
    """A scripted model counts responses, those that were compacted away included."""
    world = World("memory", tmp_path)
    model = ScriptedModel([f"answer {number}" for number in range(1, 7)])
    compaction = Compaction(after_messages=3, keep_messages=1)
    process = await world.process(Agent(name="support", model=model, compaction=compaction))
    assert [(await process.run("next")).text for _ in range(6)] == [f"answer {number}" for number in range(1, 7)]
    assert process.host.stats()["compactions"] > 1
    await world.close()


def raises(messages: list[dict[str, Any]]) -> str:
    raise ValueError("no")


def exits(messages: list[dict[str, Any]]) -> str:
    raise SystemExit(3)


async def cancels(messages: list[dict[str, Any]]) -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return "never"


async def hangs(messages: list[dict[str, Any]]) -> str:
    await asyncio.get_running_loop().create_future()
    return "never"


BAD_ARTIFACTS: list[Any] = [
    None,
    "",
    [],
    7,
    "x" * (2 << 20),
    "\ud800",
    [{"role": "assistant", "content": "I begin"}],
    [{"role": "tool", "content": "?"}],
    [{"role": "user"}],
    [{"role": "user", "content": float("nan")}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": []}],
    ["text"],
]


@pytest.mark.parametrize("compactor", [raises, exits, cancels, hangs, *BAD_ARTIFACTS])
async def test_a_compactor_that_fails_costs_nothing_but_the_compaction(compactor: Any, tmp_path: Path) -> None:
    """The run goes on with the whole prompt; the failure is counted, once a run."""
    world = World("memory", tmp_path)
    function = compactor if callable(compactor) else lambda messages: compactor
    setting = Compaction(after_messages=3, keep_messages=1, compactor=function, timeout_s=0.05)
    found, counts = await prompts(world, setting, runs=3)
    assert contents(found[2]) == ["question 1", "done", "question 2", "done", "question 3"]
    assert counts["compaction_failed"] == 1
    assert "compaction_created" not in world.tags()
    await world.close()


async def test_an_abort_ends_a_compactor(tmp_path: Path) -> None:
    """An effect like others: the abort is canonical, then the compactor is interrupted."""
    world = World("memory", tmp_path)
    gate = Gate()

    async def waits(messages: list[dict[str, Any]]) -> str:
        await gate.wait()
        return "late"

    compaction = Compaction(after_messages=3, keep_messages=1, compactor=waits)
    process = await world.process(agent_of(Script("done"), compaction=compaction))
    for number in range(2):
        await process.run(f"question {number}")
    receipt = await process.submit("too long")
    await gate.reached()
    await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == "aborted"
    assert "compaction_created" not in world.tags()
    world.converged()
    await world.close()


@pytest.mark.parametrize("how", ["time", "abort"])
async def test_a_compactor_that_ignores_its_end_is_left_behind(how: str, tmp_path: Path) -> None:
    """Neither its time nor an abort may make a lane wait on foreign code that never ends."""
    world = World("memory", tmp_path)
    gate = Gate()

    async def stuck(messages: list[dict[str, Any]]) -> str:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await gate.wait()
                return "late"

    timeout_s = 0.02 if how == "time" else 1000.0
    compaction = Compaction(after_messages=3, keep_messages=1, compactor=stuck, timeout_s=timeout_s)
    agent = agent_of(Script("done"), compaction=compaction)
    process = await world.process(agent, abort_grace_s=0.02, abandon_after_s=0.02)
    for number in range(2):
        await process.run(f"question {number}")
    receipt = await process.submit("too long")
    await gate.reached()
    if how == "abort":
        await process.abort(receipt)
    assert (await process.settled(receipt)).outcome == ("aborted" if how == "abort" else "completed")
    await process.at_rest()
    assert (process.host.stats()["abandoned_effects"], process.host.stats()["stained"]) == (1, True)
    gate.open()
    await until(lambda: not process.host.stats()["adrift"])
    assert "compaction_created" not in world.tags()
    world.converged()
    await world.close()


async def test_a_sync_compactor_does_not_block_the_loop(tmp_path: Path) -> None:
    world = World("memory", tmp_path)
    threads: list[str] = []

    def noted(messages: list[dict[str, Any]]) -> str:
        threads.append(threading.current_thread().name)
        return "short"

    await prompts(world, Compaction(after_messages=3, keep_messages=1, compactor=noted), runs=3)
    assert threads
    assert threading.main_thread().name not in threads
    await world.close()


async def test_a_long_run_is_compacted_between_its_turns(tmp_path: Path) -> None:
    """A run of many turns: each prompt stays short and valid, and the question stays in it."""
    world = World("memory", tmp_path)
    requests: list[Any] = []

    async def respond(request: Any, emit: Any) -> Any:
        requests.append(request)
        return calls(call("a")) if request.turn <= 12 else "done"

    async def work(ctx: Any, arguments: dict[str, Any]) -> str:
        return "ok"

    from laneway import FunctionModel

    tool = Tool.raw("a", work, effect="idempotent", version="1")
    agent = Agent(
        name="support",
        model=FunctionModel(respond),
        tools=[tool],
        compaction=Compaction(after_messages=6, keep_messages=2),
    )
    process = await world.process(agent)
    assert (await process.run("the question")).outcome == "completed"
    assert len(requests) == 13
    for request in requests:
        assert prompt_fault(request.messages) is None
        assert "the question" in contents(request.messages)
        assert len(request.messages) <= 8
    assert process.host.stats()["compactions"] >= 3
    await process.at_rest()
    world.converged()
    await world.close()
