"""Logs as lanes write them, drawn at random: calls, Unknown and parked work, aborts, joined input, compactions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import msgspec
from lane_records import (
    asked_abort,
    asked_approval,
    began,
    ended,
    prepared,
    resolved,
    responded,
    returned,
    said,
    settled,
    unknown,
)

from laneway.actors.lane import facts
from laneway.actors.lane.compaction import covered_entries
from laneway.storage.projection import ConversationView, RunView
from laneway.storage.prompt import TurnEntry
from laneway.storage.records import (
    AnyRecord,
    ApprovalDecided,
    ModelInterrupted,
    RecoveryDecided,
    StepSettled,
    record_id,
)


@dataclass
class LogMaker:
    """Grows `records` step by step; `submissions` are all that took part, and `closed` those whose row is closed."""

    chance: random.Random
    records: list[AnyRecord] = field(default_factory=list)
    submissions: list[str] = field(default_factory=list)
    view: ConversationView = field(default_factory=lambda: ConversationView(keep="open"))
    current: str | None = None
    parked: list[str] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)
    hosts: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    """Joined work that a lost owner left open beside its settled host; later work may run first."""

    def make(self, size: int) -> list[AnyRecord]:
        while len(self.records) < size:
            if self.current is None:
                self._begin()
            else:
                self._go_on(self.current)
        return self.records

    def _put(self, *records: AnyRecord) -> None:
        for record in records:
            self.records.append(record)
            self.view.add(record)

    def _new(self) -> str:
        self.submissions.append(f"sub_{len(self.submissions) + 1}")
        return self.submissions[-1]

    def _begin(self) -> None:
        choice = self.chance.random()
        if self.late and self.chance.random() < 0.5:
            self._put(settled("completed", self.late.pop(0)))
        elif choice < 0.15 and self.parked:
            self.current = self.parked.pop(0)
        elif choice < 0.25:
            never_ran = self._new()
            self._put(asked_abort(never_ran), settled("aborted", never_ran))
        else:
            self.current = self._new()
            self._put(said(self.current, len(self.submissions), f"question of {self.current}"), began(self.current))

    def _go_on(self, submission: str) -> None:
        run = self.view.run_of(submission)
        assert run is not None
        if self.chance.random() < 0.05:
            epoch = len(self.records)
            recovery = RecoveryDecided(
                id=record_id("recovery_decided", submission, epoch),
                submission_id=submission,
                attempt_id="att",
                epoch=epoch,
                decision="resume_turn",
                evidence="",
            )
            self._put(recovery)
        if self.chance.random() < 0.05:
            self._put(*([] if submission in self.view.aborts else [asked_abort(submission)]))
            self._end("aborted", submission)
        elif run.open_calls:
            self._call(submission, run)
        elif run.last_turn is not None and not run.last_turn.calls:
            self._end("completed", submission)
        else:
            self._turn(submission, run)

    def _call(self, submission: str, run: RunView) -> None:
        call = self.chance.choice(run.open_calls)
        name = call.call.id
        choice = self.chance.random()
        if call.prepared is None and choice < 0.2 and call.approval is None:
            self._put(asked_approval(name, submission))
        elif call.approval is not None and call.decision is None:
            approval = call.approval.approval_id
            decided = ApprovalDecided(
                id=record_id("decided", approval),
                run_id=run.run_id,
                approval_id=approval,
                decision="approved",
                author="ann",
            )
            self._put(decided)
        elif call.prepared is None or call.resolved is not None:
            self._put(prepared(name, number=call.preparations + 1, submission_id=submission))
        elif call.unknown is not None:
            self._put(resolved(name, "safe_to_retry", call.preparations, submission))
        elif choice < 0.3 and len(call.steps) < 2:
            step = StepSettled(
                id=record_id("step", name, len(self.records)),
                run_id=run.run_id,
                call_id=name,
                step_id=f"step-{len(call.steps)}",
                name="fetch",
                version=1,
                result={"n": len(self.records)},
            )
            self._put(step)
        elif choice < 0.45:
            self._put(unknown(name, call.preparations, submission))
            self.parked.append(submission)
            self.current = None
        else:
            self._put(returned(name, f"result of {name}", submission))

    def _turn(self, submission: str, run: RunView) -> None:
        prompt = self.view.prompt
        number = len(run.turns) + 1
        after, keep = self.chance.choice([(6, 3), (5, 4), (3, 2), (2, 1)])
        covered = covered_entries(prompt, run.run_id, after, keep) if self.chance.random() < 0.7 else []
        if covered:
            responses = prompt.covered_responses + sum(isinstance(entry, TurnEntry) for entry in covered)
            artifact = self.chance.choice(["what was said", [{"role": "user", "content": "much was said"}]])
            self._put(facts.compaction_created(run.run_id, covered[-1].sequence, responses, artifact))
            return
        if self.chance.random() < 0.1 and not self.joined:
            joining = self._new()
            self.joined.append(joining)
            self.hosts[joining] = submission
            entered = said(joining, len(self.submissions), "and one thing more")
            self._put(msgspec.structs.replace(entered, kind="follow_up", run_id=run.run_id))
        if self.chance.random() < 0.1:
            interrupted = ModelInterrupted(
                id=record_id("interrupted", run.run_id, number, len(self.records)),
                run_id=run.run_id,
                turn=number,
                attempt_id="att",
                reason="lost",
            )
            self._put(interrupted)
        tools = ("a", "b", "c")[: self.chance.choice([0, 1, 1, 2, 3])]
        self._put(responded(number, *tools, submission_id=submission))

    def _end(self, outcome: str, submission: str) -> None:
        self._put(ended(outcome, submission_id=submission), settled(outcome, submission))
        for joined in self.joined:
            if self.chance.random() < 0.5:
                self._put(settled(outcome, joined))
            else:
                self.late.append(joined)
        self.joined = []
        self.current = None
