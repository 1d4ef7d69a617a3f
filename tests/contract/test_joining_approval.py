"""Scenarios, section 3, joining and approvals (DUR-015, DUR-016)."""

from __future__ import annotations

from typing import Any

import pytest
from store_builders import Conversation, Maker, admission, append_of, input_record, note, reserve, settlement

from laneway.storage.commands import (
    ApprovalRequest,
    ClaimJoining,
    DecideApproval,
    Fence,
    Finalize,
    MarkJoined,
    MarkReady,
    MarkUnknown,
    Materialize,
    NotClaimed,
    Release,
    RequestAbort,
    RevertJoining,
    Suspend,
)
from laneway.storage.errors import Fenced, Refused
from laneway.storage.ledger import State

# --- joining ---------------------------------------------------------------------------------------------------------


def joined_ids(lane: Conversation, host: str = "sub_1", limit: int = 64) -> list[str]:
    joining = lane.do(ClaimJoining(submission_id=host, limit=limit))[0]
    return [row.submission_id for row in joining.rows]


def join(lane: Conversation, submission_id: str, queue_sequence: int) -> None:
    lane.do(
        append_of(submission_id, input_record(submission_id, queue_sequence)), MarkJoined(submission_id=submission_id)
    )


@pytest.mark.requirement("DUR-004", "DUR-016")
def test_the_contiguous_ready_prefix_joins_and_settles_with_its_host(make: Maker, lane: Conversation) -> None:
    """Section 3 joining, K15, K19: in order, each input once, settled under the host's run."""
    lane.start("sub_1")
    for number in (2, 3, 4):
        lane.submit(f"sub_{number}")
    assert joined_ids(lane, limit=2) == ["sub_2", "sub_3"]
    assert joined_ids(lane, limit=2) == ["sub_2", "sub_3"]
    assert lane.refused(MarkJoined(submission_id="sub_2")).code == "input_not_canonical"
    for number in (2, 3):
        join(lane, f"sub_{number}", number)
    assert lane.do(MarkJoined(submission_id="sub_2"))[0].replayed
    assert joined_ids(lane, limit=2) == ["sub_4"]
    lane.do(RevertJoining(submission_id="sub_4"))
    lane.settle("sub_2")
    lane.settle("sub_3")
    lane.settle("sub_1")
    lane = Conversation(make.reopen(lane.store))
    rows = {row.submission_id: row for row in lane.store.list_rows("c")}
    assert [rows[f"sub_{n}"].run_id for n in (1, 2, 3, 4)] == ["run_sub_1"] * 3 + [None]
    assert rows["sub_4"].state is State.READY
    assert lane.claim().row.submission_id == "sub_4"
    lane.check_chain()


def test_an_admitted_row_breaks_the_prefix(lane: Conversation) -> None:
    """Section 3 joining: an admitted row breaks the prefix; once it is ready all join."""
    lane.start("sub_1")
    lane.submit("sub_2")
    lane.do(admission("sub_3"))
    lane.submit("sub_4")
    assert joined_ids(lane) == ["sub_2"]
    lane.do(Materialize(submission_id="sub_3"), MarkReady(submission_id="sub_3"))
    assert joined_ids(lane) == ["sub_2", "sub_3", "sub_4"]


def test_an_aborted_settled_row_is_walked_over(lane: Conversation) -> None:
    """Section 3 joining: an aborted-settled row is a closed obligation, not a gap."""
    lane.start("sub_1")
    for number in (2, 3):
        lane.submit(f"sub_{number}")
    lane.do(RequestAbort(submission_id="sub_2", abort_id="abt", author="alice", reason="no need"))
    lane.settle("sub_2", "aborted")
    assert joined_ids(lane) == ["sub_3"]


@pytest.mark.requirement("DUR-006", "DUR-016")
def test_revert_needs_the_hosts_current_token_and_no_input(lane: Conversation) -> None:
    """Section 3 joining: the token of the host's current attempt, and only before the input is canonical."""
    lane.start("sub_1")
    lane.submit("sub_2")
    joined_ids(lane)
    stale = lane.fence()
    lane.recover()
    for fence in (stale, Fence(token="guessed")):
        assert isinstance(lane.refused(RevertJoining(submission_id="sub_2"), fence=fence), Fenced)
    lane.do(append_of("sub_2", input_record("sub_2", 2)))
    assert lane.refused(RevertJoining(submission_id="sub_2")).code == "input_already_canonical"
    lane.do(MarkJoined(submission_id="sub_2"))
    assert lane.row("sub_2").state is State.JOINED


@pytest.mark.requirement("DUR-015", "DUR-016")
@pytest.mark.parametrize("canonical", [False, True], ids=["before the input", "after the input"])
def test_a_host_that_settled_strands_no_joining_row(make: Maker, lane: Conversation, canonical: bool) -> None:
    """K14, K15: the host ended while a row was joining: ready again before its input, joined for good after it."""
    lane.start("sub_1")
    lane.submit("sub_2")
    joined_ids(lane)
    if canonical:
        lane.do(append_of("sub_2", input_record("sub_2", 2)))
    lane.settle("sub_1")
    lane = Conversation(make.reopen(lane.store))
    grant = lane.claim("o2")
    assert (grant.row.submission_id, grant.row.state) == ("sub_2", State.JOINED if canonical else State.RUNNING)
    assert grant.recovering is canonical
    assert lane.try_claim("o3") == NotClaimed(reason="owned")
    if not canonical:
        assert grant.row.host_id is None
        lane.apply_input("sub_2", 2)
    lane.settle("sub_2")
    assert sum(record.id == input_record("sub_2").id for record in lane.records()) == 1
    assert lane.try_claim("o3") == NotClaimed(reason="empty")


def test_a_repeated_revert_gets_its_first_answer(lane: Conversation) -> None:
    """F16: the answer to the first one was lost; by then the row belongs to nobody."""
    lane.start("sub_1")
    lane.submit("sub_2")
    joined_ids(lane)
    revert = RevertJoining(submission_id="sub_2")
    assert [lane.do(revert)[0].replayed for _ in range(2)] == [False, True]
    assert lane.row("sub_2").state is State.READY


def test_a_repeated_revert_gets_its_first_answer_though_the_row_was_claimed_since(lane: Conversation) -> None:
    """F16: one unit reverts the row, settles the host and claims the row as the next head; its answer is lost."""
    grant = lane.start("sub_1")
    lane.submit("sub_2")
    joined_ids(lane)
    revert = RevertJoining(submission_id="sub_2")
    lane.do(revert)
    lane.settle("sub_1")
    assert lane.claim("o1").row.submission_id == "sub_2"
    before = lane.state()
    (again,) = lane.do(revert, fence=Fence(token=grant.token, epoch=grant.epoch, expected_tail=0))
    assert (again.replayed, again.state) == (True, State.RUNNING)
    assert lane.state() == before


def test_rows_that_joined_a_parked_host_wait_for_it_and_let_others_pass(lane: Conversation) -> None:
    """Design 5: parked Unknown work lets later input run, also past the rows that settle with it."""
    lane.start("sub_1")
    for number in (2, 3, 4):
        lane.submit(f"sub_{number}")
    assert joined_ids(lane, limit=2) == ["sub_2", "sub_3"]
    join(lane, "sub_2", 2)
    lane.do(MarkUnknown(submission_id="sub_1", calls={"call": "no proof"}, park=True))
    assert lane.claim("o2").row.submission_id == "sub_3"
    lane.apply_input("sub_3", 3)
    lane.settle("sub_3")
    assert lane.claim("o2").row.submission_id == "sub_4"
    assert lane.row("sub_2").state is State.JOINED


def test_a_joined_row_is_settled_by_its_hosts_owner_alone(lane: Conversation) -> None:
    """DUR-006: reserve and append for a joined row carry the host's fence; finalize follows history."""
    lane.start("sub_1")
    lane.submit("sub_2")
    joined_ids(lane)
    join(lane, "sub_2", 2)
    lane.submit("sub_3")
    assert isinstance(lane.refused(reserve(settlement("sub_3"))), Fenced)
    owner, lane.grant = lane.grant, None
    assert isinstance(lane.refused(reserve(settlement("sub_2"))), Fenced)
    lane.grant = owner
    record = settlement("sub_2")
    lane.do(reserve(record), append_of("sub_2", record))
    lane.grant = None
    assert lane.do(Finalize(submission_id="sub_2"))[0].state is State.COMPLETED


# --- approvals -------------------------------------------------------------------------------------------------------


def request(approval_id: str, digest: str = "args") -> ApprovalRequest:
    return ApprovalRequest(approval_id=approval_id, call_id=f"call_{approval_id}", input_digest=digest)


def decide(approval_id: str, decision: Any = "approved", *, digest: str | None = "args", **more: Any) -> DecideApproval:
    return DecideApproval(
        submission_id="sub_1",
        approval_id=approval_id,
        decision=decision,
        author=more.pop("author", "boss"),
        reason="fine",
        call_id=f"call_{approval_id}",
        input_digest=digest,
    )


def suspend(*approval_ids: str) -> Suspend:
    return Suspend(submission_id="sub_1", approvals=tuple(request(name) for name in approval_ids))


def test_a_suspended_lane_holds_no_permit_and_waits(make: Maker, lane: Conversation) -> None:
    """K13, F8: suspended after recovery, nothing is granted, suspending again changes nothing, the head blocks."""
    lane.start("sub_1")
    lane.submit("sub_2")
    stale = lane.fence()
    assert lane.do(suspend("a1"))[0].state is State.SUSPENDED
    assert lane.do(suspend("a1"))[0].replayed
    lane = Conversation(make.reopen(lane.store))
    assert lane.try_claim("o2") == NotClaimed(reason="suspended", submission_id="sub_1")
    assert isinstance(lane.refused(append_of("sub_1", note("x")), fence=stale), Fenced)
    assert lane.do(decide("a1"))[0].state is State.READY
    approval = lane.claim("o2").row.approvals["a1"]
    assert (approval.decision, approval.author, approval.reason) == ("approved", "boss", "fine")


def test_suspend_after_a_decision_resumes_at_once(lane: Conversation) -> None:
    """Section 3 approval: a decision that raced ahead counts; the attempt keeps its lane."""
    lane.start("sub_1")
    assert lane.do(decide("a1"))[0].state is State.RUNNING
    assert lane.do(suspend("a1"))[0].state is State.RUNNING
    lane.append("sub_1", note("goes on"))


def test_all_requests_must_be_decided(lane: Conversation) -> None:
    """F6: three approvals in one turn; the lane reopens with the last decision."""
    lane.start("sub_1")
    lane.do(decide("a2", "denied"))
    lane.do(suspend("a1", "a2", "a3"))
    assert lane.do(decide("a3"))[0].state is State.SUSPENDED
    assert lane.do(decide("a1"))[0].state is State.READY
    assert {name: item.decision for name, item in lane.row("sub_1").approvals.items()} == {
        "a1": "approved",
        "a2": "denied",
        "a3": "approved",
    }


def test_the_first_decision_wins(make: Maker, lane: Conversation) -> None:
    """Section 3 approval: approve then deny → the first wins and is returned; the same again is idempotent."""
    lane.start("sub_1")
    lane.do(suspend("a1"))
    first = lane.do(decide("a1", "approved"))[0]
    lane = Conversation(make.reopen(lane.store))
    for again in (decide("a1", "denied", author="other"), decide("a1", "approved")):
        result = lane.do(again)[0]
        assert (result.decision, result.author, result.replayed) == ("approved", "boss", True)
    assert not first.replayed


def test_one_denial_ends_the_call_not_the_conversation(lane: Conversation) -> None:
    """Section 3 approval: denied work is ready again; its lane goes on to its settlement and to the next row."""
    lane.start("sub_1")
    lane.do(suspend("a1"))
    assert lane.do(decide("a1", "denied"))[0].state is State.READY
    lane.claim()
    lane.settle("sub_1")
    lane.submit("sub_2")
    assert lane.claim().row.submission_id == "sub_2"


def test_a_decision_binds_the_arguments(lane: Conversation) -> None:
    """Section 3 approval: it is for these arguments; other ones are refused in either order."""
    lane.start("sub_1")
    lane.do(decide("a1", digest="other"))
    assert lane.refused(suspend("a1")).code == "approval_digest_mismatch"
    lane.do(suspend("a2"))
    assert lane.refused(decide("a2", digest="other")).code == "approval_digest_mismatch"
    assert lane.do(decide("a2", digest=None))[0].state is State.READY


def test_an_abort_frees_a_suspended_lane(lane: Conversation) -> None:
    """F7: approval pending, abort, next submission; a late decision is refused."""
    lane.start("sub_1")
    lane.submit("sub_2")
    lane.do(suspend("a1"))
    lane.grant = None
    lane.do(RequestAbort(submission_id="sub_1", abort_id="abt", author="alice", reason="no need"))
    lane.settle("sub_1", "aborted")
    error = lane.refused(decide("a1"))
    assert isinstance(error, Refused)
    assert error.code == "already_settled"
    assert lane.claim().row.submission_id == "sub_2"


def test_released_work_cannot_be_suspended(lane: Conversation) -> None:
    """DUR-006: suspending is a write of the owner."""
    lane.start("sub_1")
    stale = lane.fence()
    lane.do(Release(submission_id="sub_1"))
    assert isinstance(lane.refused(suspend("a1"), fence=stale), Fenced)
