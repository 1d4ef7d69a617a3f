"""Checkpoints: what a lane decides and what its models read is the same from one and from the whole log."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator

import msgspec
import pytest
from generated_logs import LogMaker
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from lane_records import ABORT, a_row, a_view, began, reserved, responded, said, settled

from laneway.actors.lane import facts
from laneway.actors.lane.turn import next_action
from laneway.recovery.classify import Evidence, classify
from laneway.recovery.convergence import prompt_fault
from laneway.storage import checkpoint as checkpoints
from laneway.storage.checkpoint import checkpoint_body, view_from
from laneway.storage.header import Checkpoint
from laneway.storage.ledger import Row, State, UnknownCall
from laneway.storage.projection import ConversationView, prompt_messages
from laneway.storage.prompt import TurnEntry
from laneway.storage.records import AnyRecord, RunStarted, SubmissionSettled


def saved(view: ConversationView, tail_digest: str = "digest") -> Checkpoint:
    return Checkpoint(
        conversation_id="c",
        tail_sequence=view.tail_sequence,
        tail_digest=tail_digest,
        body=checkpoint_body(view, tail_digest),
    )


def folded(records: list[AnyRecord]) -> ConversationView:
    view = ConversationView(keep="open")
    view.extend(records)
    return view


def open_submissions(records: list[AnyRecord], known: list[str]) -> Iterator[str]:
    """Those whose ledger row may be open: no settlement in the log, or one that no other run followed."""
    closed, last = set[str](), set[str]()
    for record in records:
        if isinstance(record, SubmissionSettled):
            last.add(record.submission_id)
        elif isinstance(record, RunStarted):
            closed, last = closed | last, set()
    yield from (name for name in known if name not in closed)


def rows(name: str, view: ConversationView, host: str | None) -> Iterator[Row]:
    """The states that the ledger may be in, as far as a decision looks at them."""
    run = view.run_of(name)
    calls = (
        {call.call.id: UnknownCall(reason="?", since_ms=1, resolution="abort") for call in run.open_calls}
        if run
        else {}
    )
    if host is not None:
        yield a_row(name, state=State.JOINING, host_id=host)
        yield a_row(name, state=State.JOINED, host_id=host, input_sequence=1)
        return
    for sequence in (None, 1):
        yield a_row(name, input_sequence=sequence)
        yield a_row(name, input_sequence=sequence, abort=ABORT)
        yield a_row(name, input_sequence=sequence, reservation=reserved(), state=State.TERMINALIZING)
        yield a_row(name, input_sequence=sequence, unknown_calls=calls, state=State.RECOVERY)


@settings(max_examples=30, deadline=None, phases=(Phase.reuse, Phase.generate))  # shrinking one takes minutes
@given(chance=st.randoms(use_true_random=False), size=st.integers(1, 40))
def test_a_checkpoint_and_what_follows_decide_like_the_whole_log(chance: random.Random, size: int) -> None:
    """F20: at every cut point of a generated log, and at every tail behind it."""
    maker = LogMaker(chance)
    records = maker.make(size)
    runs = [facts.run_id_of(name) for name in maker.submissions[-3:]]
    whole = [a_view(*records[:end]) for end in range(len(records) + 1)]
    for cut in range(len(records) + 1):
        before = folded(records[:cut])
        after = view_from(saved(before))
        assert after is not None
        for end in range(cut, len(records) + 1):
            if end > cut:
                before.add(records[end - 1])
                after.add(records[end - 1])
            full = whole[end]
            for run_id in runs:
                assert prompt_fault(prompt_messages(full, run_id)) is None
                assert prompt_messages(before, run_id) == prompt_messages(full, run_id)
            responses = sum(isinstance(entry, TurnEntry) and entry.complete for entry in full.prompt.entries)
            assert before.prompt.responses == full.prompt.responses == responses
            assert before.last_queue_sequence == after.last_queue_sequence == full.last_queue_sequence
            for name in open_submissions(records[:end], [*maker.submissions, "sub_new"]):
                for row in rows(name, full, maker.hosts.get(name)):
                    expected = next_action(row, full, 50)
                    assert next_action(row, before, 50) == expected
                    assert next_action(row, after, 50) == expected
                    assert classify(Evidence(row, None, after)) == classify(Evidence(row, None, full))
        for sequence in range(after.prompt.tail + 1, len(records) + 1):
            after.prompt.add(sequence, records[sequence - 1])
        for run_id in runs:
            assert prompt_messages(after, run_id) == prompt_messages(whole[-1], run_id)
        assert after.prompt.responses == whole[-1].prompt.responses


def test_a_folded_view_forgets_what_is_closed() -> None:
    """A settlement stays until another run starts: until then its row may be open (K18)."""
    view = folded([said(), began(), responded(1, content="done"), settled()])
    assert [len(run.turns) for run in view.runs.values()] == [0]
    assert (set(view.settlements), view.calls) == ({"sub_1"}, {})
    view.add(said("sub_2", 2))
    view.add(began("sub_2"))
    assert view.settlements == {}
    assert set(view.runs) == {facts.run_id_of("sub_2")}
    assert (set(view.inputs), view.last_queue_sequence) == ({"sub_2"}, 2)


def test_a_checkpoint_holds_each_field_that_does_not_follow_from_others() -> None:
    held = json.loads(checkpoint_body(ConversationView(keep="open"), "digest"))["view"]
    names = {field.name for field in dataclasses.fields(ConversationView)}
    assert set(held) == names - {"calls", "prompt", "checkpointed"}


def test_the_calls_of_a_checkpoint_are_those_of_its_runs() -> None:
    """One object a call: what is recorded later of a call reaches the run and the index alike."""
    view = view_from(saved(folded([said(), began(), responded(1, "a", "b")])))
    assert view is not None
    run = view.run_of("sub_1")
    assert run is not None
    assert [call is view.calls[call.call.id] for call in run.open_calls] == [True, True]


def test_the_shape_is_that_of_the_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of views with other fields is foreign, whoever forgot to count the format up."""
    view = folded([said(), began()])
    made = saved(view)
    assert view_from(made) is not None
    monkeypatch.setattr(checkpoints, "shape", lambda: "another")
    assert view_from(made) is None
    monkeypatch.undo()
    monkeypatch.setattr(checkpoints, "FORMAT", checkpoints.FORMAT + 1)
    assert view_from(made) is None


def test_no_damaged_checkpoint_is_read() -> None:
    """Any change of a character is noticed, and so are another tail and another conversation's view."""
    made = saved(folded([said(), began(), responded(1, "a")]))
    for place in range(len(made.body)):
        changed = made.body[:place] + ("x" if made.body[place] != "x" else "y") + made.body[place + 1 :]
        assert view_from(msgspec.structs.replace(made, body=changed)) is None, place
    for body in ("", "{}", "[]", "null", made.body[:-1], made.body * 2, "\ud800", "[" * 100_000):
        assert view_from(msgspec.structs.replace(made, body=body)) is None
    assert view_from(msgspec.structs.replace(made, tail_digest="other")) is None
    assert view_from(msgspec.structs.replace(made, tail_sequence=4)) is None


def test_a_whole_view_is_no_checkpoint() -> None:
    assert view_from(saved(a_view(said()))) is None
