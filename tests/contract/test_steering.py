"""Steering in the store: a stream of its own beside the queue (Specification 5)."""

from __future__ import annotations

import msgspec
import pytest
from store_builders import Conversation, Maker, admission, append_of, input_record, note, raised, steering

from laneway.storage.commands import (
    Appended,
    Arrived,
    ClaimJoining,
    Joining,
    MarkJoined,
    MarkReady,
    MarkUnknown,
    Materialize,
    NotClaimed,
    Release,
    RequestAbort,
)
from laneway.storage.errors import AdmissionConflict, Refused
from laneway.storage.ledger import State


def claimed(lane: Conversation, host: str = "sub_1", limit: int = 64) -> list[str]:
    joining: Joining = lane.do(ClaimJoining(submission_id=host, limit=limit))[0]
    return [row.submission_id for row in joining.rows]


def join(lane: Conversation, submission_id: str, queue_sequence: int) -> None:
    lane.do(
        append_of(submission_id, input_record(submission_id, queue_sequence)), MarkJoined(submission_id=submission_id)
    )


@pytest.mark.requirement("DUR-004", "DUR-016")
def test_a_host_claims_its_steering_past_the_queue(make: Maker, lane: Conversation) -> None:
    """With limit 0 it takes its steering alone; the queue behind it stays as it is."""
    lane.start("sub_1")
    lane.submit("sub_2")
    lane.do(*steering("sub_3"))
    lane.do(*steering("sub_4"))
    grant, lane = lane.grant, Conversation(make.reopen(lane.store))
    lane.grant = grant
    assert [lane.row(name).steers for name in ("sub_2", "sub_3", "sub_4")] == [None, "sub_1", "sub_1"]
    assert claimed(lane, limit=0) == ["sub_3", "sub_4"]
    assert lane.row("sub_2").state is State.READY
    join(lane, "sub_3", 3)
    join(lane, "sub_4", 4)
    for name in ("sub_3", "sub_4", "sub_1"):
        lane.settle(name)
    assert lane.claim().row.submission_id == "sub_2"
    lane.check_chain()


def test_with_a_limit_both_streams_are_claimed_in_queue_order(lane: Conversation) -> None:
    lane.start("sub_1")
    lane.submit("sub_2")
    lane.do(*steering("sub_3"))
    lane.submit("sub_4")
    assert claimed(lane, limit=1) == ["sub_2", "sub_3"]
    assert claimed(lane, limit=2) == ["sub_2", "sub_3", "sub_4"]


def test_a_row_that_is_not_ready_ends_its_own_stream_alone(lane: Conversation) -> None:
    """Each stream keeps its order; what was stopped by a row that is not ready may be claimed later."""
    lane.start("sub_1")
    lane.do(*steering("sub_2", ready=False))
    lane.do(*steering("sub_3"))
    lane.submit("sub_4")
    joining: Joining = lane.do(ClaimJoining(submission_id="sub_1"))[0]
    assert ([row.submission_id for row in joining.rows], joining.more) == (["sub_4"], True)
    lane.do(Materialize(submission_id="sub_2"), MarkReady(submission_id="sub_2"))
    joining = lane.do(ClaimJoining(submission_id="sub_1"))[0]
    assert ([row.submission_id for row in joining.rows], joining.more) == (["sub_2", "sub_3", "sub_4"], False)


def test_the_limit_says_that_more_may_be_claimed(lane: Conversation) -> None:
    lane.start("sub_1")
    for number in (2, 3):
        lane.submit(f"sub_{number}")
    first: Joining = lane.do(ClaimJoining(submission_id="sub_1", limit=1))[0]
    join(lane, "sub_2", 2)
    second: Joining = lane.do(ClaimJoining(submission_id="sub_1", limit=1))[0]
    assert (first.more, second.more) == (True, False)
    lane.do(*steering("sub_4", ready=False))
    lane.do(admission("sub_5"))
    none: Joining = lane.do(ClaimJoining(submission_id="sub_1", limit=0))[0]
    assert none.more  # the steering; the queue is not looked at


def test_what_is_claimed_at_once_is_bounded_by_size(lane: Conversation) -> None:
    """All inputs travel in one answer: about one record of them, and at least one."""
    lane.start("sub_1")
    large = '"' + "x" * (3 << 20) + '"'
    for number in (2, 3, 4):
        lane.submit(f"sub_{number}", text=large)
    lane.do(*steering("sub_5", text=large))
    joining: Joining = lane.do(ClaimJoining(submission_id="sub_1"))[0]
    assert ([row.submission_id for row in joining.rows], joining.more) == (["sub_2", "sub_3"], True)
    again: Joining = lane.do(ClaimJoining(submission_id="sub_1"))[0]
    assert again.rows == joining.rows
    for number in (2, 3):
        join(lane, f"sub_{number}", number)
    rest: Joining = lane.do(ClaimJoining(submission_id="sub_1"))[0]
    assert ([row.submission_id for row in rest.rows], rest.more) == (["sub_4", "sub_5"], False)


def test_another_agents_row_ends_the_prefix(lane: Conversation) -> None:

    lane.start("sub_1")
    other = msgspec.structs.replace(admission("sub_2"), agent="other")
    lane.do(other, Materialize(submission_id="sub_2"), MarkReady(submission_id="sub_2"))
    lane.submit("sub_3")
    joining: Joining = lane.do(ClaimJoining(submission_id="sub_1"))[0]
    assert (joining.rows, joining.more) == ((), False)


def test_steering_waits_in_no_ones_way_and_is_queued_when_its_run_has_ended(make: Maker, lane: Conversation) -> None:
    """While its run is open it is not the head of the lane; then it stands in its place of the queue."""
    lane.start("sub_1")
    lane.do(*steering("sub_2"))
    lane.submit("sub_3")
    lane.do(MarkUnknown(submission_id="sub_1", calls={"call": "no proof"}, park=True))
    assert lane.claim("o2").row.submission_id == "sub_3"
    lane.apply_input("sub_3", 3)
    lane.settle("sub_3")
    assert lane.try_claim("o2") == NotClaimed(reason="empty")
    lane.do(RequestAbort(submission_id="sub_1", abort_id="abt", author="ann", reason="no"))
    lane.settle("sub_1", "aborted")
    lane = Conversation(make.reopen(lane.store))
    grant = lane.claim("o2")
    assert (grant.row.submission_id, grant.row.steers) == ("sub_2", "sub_1")


def test_nothing_to_steer(lane: Conversation) -> None:
    """Work that nobody has begun, that has a settlement reserved, that is to be aborted or is parked is not steered."""
    assert lane.refused(*steering("sub_9")).code == "nothing_to_steer"
    lane.submit("sub_1")
    assert lane.refused(*steering("sub_9")).code == "nothing_to_steer"
    lane.claim()
    lane.do(*steering("sub_2"))
    lane.apply_input("sub_1", 1)
    lane.do(MarkUnknown(submission_id="sub_1", calls={"call": "no proof"}, park=True))
    error = lane.refused(*steering("sub_9"))
    assert isinstance(error, Refused)
    assert error.details["conversation_id"] == "c"


def test_a_run_that_ends_or_is_aborted_is_not_steered(lane: Conversation) -> None:
    lane.start("sub_1")
    lane.do(RequestAbort(submission_id="sub_1", abort_id="abt", author="ann", reason="no"))
    assert lane.refused(*steering("sub_9")).code == "nothing_to_steer"
    lane.settle("sub_1", "aborted")
    assert lane.refused(*steering("sub_9")).code == "nothing_to_steer"


def test_a_run_that_was_given_back_in_the_middle_is_steered(lane: Conversation) -> None:
    lane.start("sub_1")
    lane.do(Release(submission_id="sub_1"))
    lane.do(*steering("sub_2"))
    assert (lane.row("sub_2").steers, lane.row("sub_2").agent) == ("sub_1", "support")


@pytest.mark.requirement("DUR-001")
def test_steering_is_admitted_once_a_key(lane: Conversation) -> None:
    """The same key and payload give the same receipt, whatever has become of the run."""
    lane.start("sub_1")
    lane.do(*steering("sub_2", "k"))
    lane.settle("sub_1")
    again = lane.do(*steering("sub_3", "k"))[0].receipt
    assert (again.submission_id, again.replayed) == ("sub_2", True)
    error = raised(lane.answer(*steering("sub_4", "k", digest="other")))
    assert isinstance(error, AdmissionConflict)


def test_an_owner_is_told_what_arrived(make: Maker, lane: Conversation) -> None:
    """With its grant, with each append and with each claim of joining rows; the same after a restart."""
    lane.start("sub_1")
    lane.do(*steering("sub_2"))
    lane.submit("sub_3")
    appended: Appended = lane.append("sub_1", note("a"))
    assert appended.arrived == Arrived(queued=3, steering=2)
    joining: Joining = lane.do(ClaimJoining(submission_id="sub_1", limit=0))[0]
    assert joining.arrived == Arrived(queued=3, steering=2)
    lane = Conversation(make.reopen(lane.store), grant=lane.grant)
    assert lane.recover().arrived == Arrived(queued=3, steering=2)


@pytest.mark.requirement("DUR-016")
def test_the_next_owner_is_told_what_was_joining(lane: Conversation) -> None:
    """K14, K15: rows between their claim and their marker come with the grant."""
    lane.start("sub_1")
    lane.submit("sub_2")
    lane.do(*steering("sub_3"))
    lane.submit("sub_4")
    assert claimed(lane) == ["sub_2", "sub_3", "sub_4"]
    join(lane, "sub_2", 2)
    lane.do(append_of("sub_3", input_record("sub_3", 3)))
    grant = lane.recover()
    assert [row.submission_id for row in grant.joining] == ["sub_3", "sub_4"]


@pytest.mark.requirement("DUR-012")
def test_joined_work_is_not_aborted_alone(lane: Conversation) -> None:
    """Specification 5: it settles with its host; before its input is canonical it is still queued work."""
    lane.start("sub_1")
    for number in (2, 3):
        lane.submit(f"sub_{number}")
    lane.do(ClaimJoining(submission_id="sub_1"))
    lane.do(append_of("sub_2", input_record("sub_2", 2)))
    abort = RequestAbort(submission_id="sub_2", abort_id="abt", author="ann", reason="no")
    for _ in range(2):
        error = lane.refused(abort)
        assert (error.code, error.details["host_id"]) == ("joined", "sub_1")
        if lane.row("sub_2").state is State.JOINING:
            lane.do(MarkJoined(submission_id="sub_2"))
    lane.do(RequestAbort(submission_id="sub_3", abort_id="abt", author="ann", reason="no"))
    assert lane.settle("sub_3", "aborted").state is State.ABORTED
    refused = lane.refused(append_of("sub_3", input_record("sub_3", 3)))
    assert refused.code == "already_settled"


def test_the_settlement_of_joined_work_needs_its_host(lane: Conversation) -> None:
    """A joined row is reserved under its host's fence and closed from history."""
    lane.start("sub_1")
    lane.do(*steering("sub_2"))
    lane.do(ClaimJoining(submission_id="sub_1", limit=0))
    join(lane, "sub_2", 2)
    lane.settle("sub_1")
    grant = lane.claim("o2")
    assert (grant.row.submission_id, grant.row.host_id, grant.recovering) == ("sub_2", "sub_1", True)
    lane.settle("sub_2")
    assert lane.try_claim("o3") == NotClaimed(reason="empty")
