"""Every state that random legal commands can reach is classified, and the turn machine has an answer for it."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import pytest
from agreement import FIRST_ACTIONS, NOBODY_DRIVES, disagreement
from hypothesis import HealthCheck, given, settings
from lane_records import (
    asked_abort,
    asked_approval,
    began,
    call_id,
    decided,
    ended,
    joined,
    prepared,
    resolved,
    responded,
    returned,
    said,
    unknown,
)
from store_builders import Clock, Conversation, append_of, reserve, settlement, steering

from laneway.actors.lane import turn
from laneway.recovery.classify import Evidence, classify, evidence_of
from laneway.recovery.convergence import check_conversation, prompt_fault
from laneway.storage.commands import (
    Accepted,
    ApprovalRequest,
    ClaimJoining,
    DecideApproval,
    Grant,
    MarkInputApplied,
    MarkJoined,
    MarkUnknown,
    Rejected,
    Release,
    RequestAbort,
    ResolveUnknown,
    Resume,
    RevertJoining,
    Suspend,
)
from laneway.storage.errors import IllegalTransition, InvalidInput
from laneway.storage.ledger import TERMINAL, Row, State
from laneway.storage.memory_store import MemoryStore
from laneway.storage.projection import ConversationView, chat_messages
from laneway.storage.records import AnyRecord

MOVES = (
    *("submit", "claim", "lose", "resume", "input", "start", "mark", "answer", "ask", "prepare", "return", "unknown"),
    *("mark_unknown", "resolve", "abort", "abort_record", "end", "reserve", "settle", "finalize", "release"),
    *("join", "joined_input", "mark_joined", "revert", "steer", "request", "suspend", "decide", "decided"),
    "resolution",
)
JOINING = (State.JOINING, State.JOINED)
step = st.tuples(st.sampled_from(MOVES), st.integers(0, 5))


class Driver:
    """Carries out moves as a lane might, in any order; what the store refuses changes nothing."""

    def __init__(self) -> None:
        self.store = MemoryStore(now_ms=Clock())
        self.conversation = Conversation(self.store)
        self.view = ConversationView()
        self.decisions = set[str]()

    def rows(self) -> list[Row]:
        return self.store.list_rows("c", limit=1000)

    def log(self) -> list[AnyRecord]:
        return self.conversation.records()

    def move(self, name: str, number: int) -> None:
        rows = self.rows()
        if name == "submit":
            if len(rows) < 3:
                self.conversation.submit(f"sub_{len(rows)}")
            return
        if name == "steer":
            if len(rows) < 4:
                self.conversation.answer(*steering(f"sub_{len(rows)}"))
            return
        if name == "lose":
            self.store.retire_owner("o1")
            self.store.retire_owner("o2")
            return
        if name == "claim":
            self.conversation.try_claim(f"o{1 + number % 2}")
            return
        if not rows:
            return
        owned = self.conversation.grant.row.submission_id if self.conversation.grant else rows[0].submission_id
        subject = owned if number < 4 else rows[number % len(rows)].submission_id
        self.view = ConversationView()
        self.view.extend(self.log())
        commands = self.commands(name, number, subject, rows)
        if commands:
            self.conversation.answer(*commands)

    def commands(self, name: str, number: int, subject: str, rows: list[Row]) -> tuple[Any, ...]:
        row = next(row for row in rows if row.submission_id == subject)
        run = self.view.run_of(subject)
        count = len(run.turns) if run else 0
        call = call_id(count, number % 2, subject)
        view = self.view.calls.get(call)
        more = {"submission_id": subject}

        def append(record: AnyRecord) -> tuple[Any, ...]:
            return (append_of(subject, record),)

        match name:
            case "resume":
                return (Resume(**more),)
            case "input":
                return append(said(subject, row.queue_sequence))
            case "start":
                return append(began(subject)) if run is None and subject in self.view.inputs else ()
            case "mark":
                return (MarkInputApplied(**more, run_id="run"),)
            case "ask" | "answer" if run is not None and not run.open_calls:
                tools = ("charge", "note") if name == "ask" else ()
                return append(responded(count + 1, *tools, submission_id=subject))
            case "prepare" if view is not None and view.open:
                effect = "uncertain" if number % 2 else "idempotent"
                return append(prepared(call, effect, view.preparations + 1, subject))
            case "request" if view is not None and view.open and view.prepared is None and view.approval is None:
                return append(asked_approval(call, subject))
            case "suspend" if view is not None and view.approval is not None:
                approval_id = view.approval.approval_id
                asked = ApprovalRequest(approval_id=approval_id, call_id=call, input_digest="digest")
                return (Suspend(**more, approvals=(asked,)),)
            case "decide" if view is not None and view.approval is not None:
                approval_id = view.approval.approval_id
                return (DecideApproval(**more, approval_id=approval_id, call_id=call, decision="denied", author="ann"),)
            case "decided" if view is not None and view.approval is not None and view.decision is None:
                return append(decided(call, "denied", subject))
            case "return" if view is not None and view.open:
                return append(returned(call, submission_id=subject))
            case "unknown" if view is not None and view.open and view.unknown is None:
                return append(unknown(call, view.preparations, subject))
            case "mark_unknown" if view is not None and view.open:
                return (MarkUnknown(**more, calls={call: "?"}, park=number == 3),)
            case "resolve":
                resolution: Any = ("never_started", "safe_to_retry", "completed_with_result", "abort")[number % 4]
                return (ResolveUnknown(**more, call_id=call, resolution=resolution, author="ann", reason="r"),)
            case "resolution" if view is not None and view.unknown is not None and view.resolved is None:
                answer: Any = ("never_started", "safe_to_retry", "completed_with_result", "abort")[number % 4]
                return append(resolved(call, answer, number=view.preparations, submission_id=subject))
            case "abort":
                return (RequestAbort(**more, abort_id="abt", author="bob", reason=""),)
            case "abort_record":
                return append(asked_abort(subject))
            case "end" if run is not None and run.completed is None:
                return append(ended(submission_id=subject))
            case "reserve":
                return (reserve(settlement(subject, ("completed", "failed", "aborted")[number % 3])),)
            case "settle":
                return append(settlement(subject, ("completed", "failed", "aborted")[number % 3]))
            case "finalize":
                from laneway.storage.commands import Finalize

                return (Finalize(**more),)
            case "release":
                return (Release(**more),)
            case "join":
                return (ClaimJoining(**more, limit=number),)
            case "joined_input":
                joining = next((other for other in rows if other.host_id == subject), None)
                if joining is None:
                    return ()
                name, record = joining.submission_id, joined(joining.submission_id, joining.queue_sequence, subject)
                return (append_of(name, record), MarkJoined(submission_id=name))
            case "mark_joined":
                return (MarkJoined(**more),)
            case "revert":
                return (RevertJoining(**more),)
        return ()

    def check(self) -> None:
        log = self.log()
        view = ConversationView()
        view.extend(log)
        for row in self.rows():
            decision = classify(evidence_of(self.store.snapshot(row.submission_id)))
            self.decisions.add(decision.name)
            assert (decision.name == "nothing") == (row.state in TERMINAL)
            whole = classify(Evidence(row, self.store.snapshot(row.submission_id).host, view))
            assert whole == decision  # a submission's own batches tell as much as the whole log
            if row.state not in TERMINAL:
                for waiting in (False, True):
                    action = turn.next_action(row, view, turns_max=3, waiting=waiting)
                    assert isinstance(action, turn.Action)
                    assert disagreement(decision.name, action, row, view) is None
                    assert not isinstance(action, turn.Join) or (waiting and row.state not in JOINING)
        _, problems = check_conversation(self.rows(), self.conversation.batches(), require_settled=False)
        # Whatever is asked of it, the store keeps a sound log: the rules of the log and of settlement hold.
        assert [problem for problem in problems if problem.check in "abc"] == []


@pytest.mark.requirement("DUR-007", "DUR-011", "DUR-013", "DUR-015")
@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, min_size=10, max_size=45))
def test_every_reachable_snapshot_is_decided(steps: list[tuple[str, int]]) -> None:
    driver = Driver()
    driver.move("submit", 0)
    driver.move("claim", 0)
    driver.move("input", 0)
    driver.move("start", 0)
    driver.move("mark", 0)
    for name, number in steps:
        driver.move(name, number)
        driver.check()
    view = ConversationView()
    for record in driver.log():  # every prefix
        view.add(record)
        assert prompt_fault(chat_messages(view)) is None
        for row in driver.rows():
            classify(Evidence(row, None, view))
            for waiting in (False, True):
                turn.next_action(row, view, turns_max=3, waiting=waiting)


def test_random_moves_reach_every_decision() -> None:
    """Otherwise the two machines would be compared on less than there is; ADMITTED is for moves that stop half way."""
    chance, reached = random.Random(1), set[str]()
    wanted = {*FIRST_ACTIONS, *NOBODY_DRIVES} - {"finish_materialization"}
    for _ in range(1500):
        driver = Driver()
        lead, number = ("submit", "claim", "input", "start", "mark", "ask", "prepare", "unknown"), chance.randint(0, 1)
        for name in lead[: chance.randint(2, len(lead))]:
            driver.move(name, number)
        for _ in range(chance.randint(10, 40)):
            driver.move(chance.choice(MOVES), chance.randint(0, 5))
            driver.check()
        reached |= driver.decisions
        if reached >= wanted:
            return
    assert wanted - reached == set()


def test_the_driver_reaches_far() -> None:
    """Otherwise the property above would prove little."""
    driver = Driver()
    for name, number in [
        *(("submit", 0), ("submit", 0), ("claim", 0), ("input", 0), ("start", 0), ("mark", 0), ("ask", 0)),
        *(("prepare", 1), ("lose", 0), ("claim", 1), ("mark_unknown", 1), ("unknown", 1), ("resolve", 1)),
        *(("claim", 1), ("prepare", 1), ("return", 1), ("return", 0), ("answer", 0), ("end", 0), ("reserve", 0)),
        *(("settle", 0), ("finalize", 0), ("claim", 1)),
    ]:
        driver.move(name, number)
        driver.check()
    states = [str(row.state) for row in driver.rows()]
    assert states == ["completed", "running"]


def test_refusals_are_typed() -> None:
    driver = Driver()
    driver.move("submit", 0)
    answer = driver.conversation.answer(*driver.commands("finalize", 0, "sub_0", driver.rows()))
    assert isinstance(answer, Rejected)
    assert not isinstance(answer, Accepted | Grant)
    assert not isinstance(answer.error(), IllegalTransition | InvalidInput)
