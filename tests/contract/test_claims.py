"""Scenarios, section 3, claims and fencing (DUR-005, DUR-006)."""

from __future__ import annotations

import pytest
from store_builders import (
    LEASE_MS,
    Clock,
    Conversation,
    Maker,
    admission,
    admit_ready,
    append_of,
    input_record,
    note,
    one,
    reserve,
    settlement,
    settling,
)

from laneway.storage.commands import (
    Accepted,
    Claim,
    Fence,
    Grant,
    MarkInputApplied,
    MarkUnknown,
    NotClaimed,
    Release,
    RequestAbort,
    Resume,
    SaveCheckpoint,
    Suspend,
)
from laneway.storage.errors import Fenced
from laneway.storage.ledger import State


@pytest.mark.requirement("DUR-004", "DUR-005")
def test_only_the_head_is_granted(lane: Conversation) -> None:
    """Section 3 claim: only the head, in the order of admission."""
    lane.submit("sub_1")
    lane.submit("sub_2")
    assert lane.try_claim(submission_id="sub_2") == NotClaimed(reason="not_head")
    assert lane.claim().row.submission_id == "sub_1"
    lane.apply_input("sub_1")
    lane.settle("sub_1")
    assert lane.claim().row.submission_id == "sub_2"
    assert [row.state for row in lane.store.list_rows("c")] == [State.COMPLETED, State.RUNNING]


@pytest.mark.requirement("DUR-005")
def test_a_second_claimer_gets_nothing(lane: Conversation) -> None:
    """Section 3 claim: one live owner a conversation; nothing to claim is an answer, no error."""
    assert lane.try_claim() == NotClaimed(reason="empty")
    lane.submit("sub_1")
    lane.claim("o1")
    lane.submit("sub_2")
    assert lane.try_claim("o2") == NotClaimed(reason="owned")
    assert lane.try_claim("o1") == NotClaimed(reason="owned")


def test_an_admitted_head_is_not_claimed(lane: Conversation) -> None:
    """Section 3 claim: accepted but not ready work is not run, and is not passed by later work."""
    lane.do(admission("sub_1"))
    lane.submit("sub_2")
    assert lane.try_claim() == NotClaimed(reason="admitted", submission_id="sub_1")


def test_the_same_claim_again_gets_the_same_grant(make: Maker, lane: Conversation) -> None:
    """Section 3 claim, F16: a claim whose answer was lost is repeated with its token, also after a restart."""
    lane.submit("sub_1")
    first = lane.claim()
    command = Claim(submission_id="", owner_id="o1", attempt_id=first.attempt_id, token=first.token)
    again = lane.do(command)[0]
    assert isinstance(again, Grant)
    assert (again.epoch, again.attempt_id, again.row.attempts) == (first.epoch, first.attempt_id, 1)
    lane = Conversation(make.reopen(lane.store))
    again = lane.do(command)[0]
    assert isinstance(again, Grant)
    assert again.epoch == first.epoch


@pytest.mark.requirement("DUR-006")
def test_an_expired_lease_is_reclaimed_and_the_stale_token_can_do_nothing(lane: Conversation, clock: Clock) -> None:
    """Section 3 claim, K22: a stale token can no longer mark, reserve, append, release, join, suspend or checkpoint."""
    first = lane.start("sub_1", "o1")
    stale = lane.fence()
    clock.advance(LEASE_MS + 1)
    second = lane.claim("o2")
    assert (second.epoch, second.recovering) == (first.epoch + 1, True)
    assert lane.row("sub_1").state is State.RECOVERY
    tail = lane.store.inspect_tail("c")
    for command in (
        append_of("sub_1", note("late")),
        MarkInputApplied(submission_id="sub_1", run_id="other"),
        reserve(settlement("sub_1")),
        Release(submission_id="sub_1"),
        Resume(submission_id="sub_1"),
        MarkUnknown(submission_id="sub_1", calls={"call": "lost"}),
        Suspend(submission_id="sub_1", approvals=()),
        SaveCheckpoint(submission_id="sub_1", tail_sequence=tail.sequence, tail_digest=tail.digest, body="{}"),
    ):
        error = lane.refused(command, fence=stale)
        assert isinstance(error, Fenced), command
        assert error.details["epoch"] == second.epoch
    lane.do(Resume(submission_id="sub_1"))
    lane.append("sub_1", note("new owner"))


@pytest.mark.requirement("DUR-006")
def test_a_guessed_or_missing_fence_is_refused(lane: Conversation) -> None:
    """Section 3 claim: no token, another token, a superseded epoch, the token for another submission."""
    lane.start("sub_1")
    lane.submit("sub_2")
    assert lane.grant is not None
    right = lane.fence()
    assert right is not None
    append = append_of("sub_1", note("x"))
    wrong = [
        Fence(token="", epoch=right.epoch, expected_tail=right.expected_tail),
        Fence(token="tok", epoch=right.epoch, expected_tail=right.expected_tail),
        Fence(token=right.token, epoch=7, expected_tail=right.expected_tail),
    ]
    for fence in wrong:
        assert isinstance(lane.refused(append, fence=fence), Fenced)
    assert isinstance(lane.refused(append_of("sub_2", input_record("sub_2", 2))), Fenced)
    lane.grant = None
    assert isinstance(lane.refused(append), Fenced)


def test_a_late_renewal_is_fine_while_nobody_has_claimed(lane: Conversation, clock: Clock) -> None:
    """Section 3 claim: late renewal is fine while nobody has claimed; age alone preempts nobody."""
    lane.start("sub_1", "o1")
    clock.advance(100 * LEASE_MS)
    assert not lane.store.scan_nonterminal().rows[0].owner_live
    lane.store.renew_lease("o1", LEASE_MS)
    assert lane.store.scan_nonterminal().rows[0].owner_live
    grant = lane.grant
    assert lane.try_claim("o2") == NotClaimed(reason="owned")
    assert lane.grant is grant
    lane.append("sub_1", note("still here"))


def test_a_dead_owner_is_replaced_at_once(lane: Conversation) -> None:
    """Section 3 claim: when the process is known to be dead its lease ends now; retiring twice is harmless."""
    lane.start("sub_1", "o1")
    lane.store.retire_owner("o1")
    lane.store.retire_owner("o1")
    assert "o1" not in lane.store.owners()
    assert lane.claim("o2").recovering


def test_an_owner_replaces_its_own_attempt(lane: Conversation) -> None:
    """Section 3 claim: an attempt that is known to have ended is replaced by its owner at once."""
    first = lane.start("sub_1", "o1")
    assert lane.try_claim("o1", replaces="att_other") == NotClaimed(reason="owned")
    second = lane.claim("o1", replaces=first.attempt_id)
    assert (second.epoch, second.recovering, second.row.attempts) == (2, True, 2)


def test_release_makes_the_head_claimable_at_once(lane: Conversation, clock: Clock) -> None:
    """Section 3 claim: release; a released attempt can do nothing more, a backoff is honoured."""
    lane.start("sub_1")
    stale = lane.fence()
    lane.do(Release(submission_id="sub_1"))
    assert lane.do(Release(submission_id="sub_1"))[0].replayed
    assert isinstance(lane.refused(append_of("sub_1", note("x")), fence=stale), Fenced)
    assert not lane.claim("o2").recovering
    lane.do(Release(submission_id="sub_1", not_before_ms=clock() + 500))
    assert lane.try_claim("o2") == NotClaimed(reason="backoff")
    clock.advance(500)
    lane.claim("o2")


@pytest.mark.requirement("DUR-006")
def test_claims_give_rising_epochs_across_settlements_and_restarts(make: Maker, lane: Conversation) -> None:
    """Section 3 claim: a monotonically increasing epoch, whatever settles in between."""
    epochs = [lane.start("sub_1").epoch]
    lane.settle("sub_1")
    lane = Conversation(make.reopen(lane.store))
    epochs.append(lane.start("sub_2").epoch)
    epochs.append(lane.recover().epoch)
    lane.settle("sub_2")
    assert epochs == [1, 2, 3]
    assert lane.store.inspect_tail("c").epoch == 3


def test_the_whole_first_unit_again_gets_its_first_answer(make: Maker, lane: Conversation) -> None:
    """F16: admit, claim and input in one unit; its repeat changes nothing and answers alike."""
    lane.store.renew_lease("o1", LEASE_MS)
    unit = lane.unit(
        *admit_ready("sub_1"),
        Claim(submission_id="sub_1", owner_id="o1", attempt_id="att", token="tok"),
        append_of("sub_1", input_record("sub_1")),
        MarkInputApplied(submission_id="sub_1", run_id="run"),
        fence=Fence(token="tok", expected_tail=0),
    )
    first = lane.store.commit([unit])[0]
    state = lane.state()
    store = make.reopen(lane.store)
    second = store.commit([unit])[0]
    assert Conversation(store).state() == state
    assert [type(result) for result in second.results] == [type(result) for result in first.results]
    assert second.results[4].replayed


@pytest.mark.requirement("DUR-006", "DUR-007")
def test_a_recovery_that_ends_and_claims_on_gets_its_first_answer_again(make: Maker, lane: Conversation) -> None:
    """F16: resume, end and next claim in one unit; its repeat says again which work was granted."""
    lane.start("sub_1")
    lane.submit("sub_2")
    assert lane.grant is not None
    lane.store.retire_owner(lane.grant.row.owner_id or "")
    lane.claim("o2")
    claim = Claim(submission_id="", owner_id="o2", attempt_id="att", token="tok", replaces=lane.grant.attempt_id)
    unit = lane.unit(Resume(submission_id="sub_1"), *settling(settlement("sub_1")), claim)
    first = lane.store.commit([unit])[0]
    state = lane.state()
    store = make.reopen(lane.store)
    store.renew_lease("o2", LEASE_MS)
    second = store.commit([unit])[0]
    assert isinstance(second, Accepted), second
    assert Conversation(store).state() == state
    granted = one(first.results, Grant), one(second.results, Grant)
    assert [grant.row.submission_id for grant in granted] == ["sub_2", "sub_2"]
    assert granted[0].epoch == granted[1].epoch
    assert second.results[0].replayed


def test_a_resume_of_a_stale_attempt_is_refused(lane: Conversation) -> None:
    """K22: what another attempt has taken over is not resumed by the earlier one, also when it is settled."""
    lane.start("sub_1")
    lane.recover("o2")
    stale = lane.fence()
    lane.recover("o3")
    assert lane.refused(Resume(submission_id="sub_1"), fence=stale).code == "fenced"
    lane.settle("sub_1")
    assert lane.refused(Resume(submission_id="sub_1"), fence=stale).code == "fenced"


def test_aborted_queued_work_settles_without_heading_its_lane(lane: Conversation) -> None:
    """K20: queued work settles as aborted at once and alone, while another runs; the head is not disturbed."""
    lane.start("sub_1")
    lane.submit("sub_2")
    running = lane.grant
    lane.grant = None
    lane.do(RequestAbort(submission_id="sub_2", abort_id="abt", author="alice", reason="no need"))
    lane.settle("sub_2", "aborted")
    assert lane.row("sub_2").outcome == "aborted"
    assert "sub_2" not in {
        getattr(record, "submission_id", "") for record in lane.records() if type(record).__name__ == "InputRecorded"
    }
    lane.grant = running
    lane.append("sub_1", note("goes on"))
    lane.settle("sub_1")
    lane.check_chain()
