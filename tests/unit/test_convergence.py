"""The convergence check finds every fault that is planted, and names its rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from lane_records import (
    a_row,
    began,
    call_id,
    ended,
    joined,
    responded,
    returned,
    said,
    settled,
)

from laneway.recovery.convergence import Report, check_conversation
from laneway.storage.header import Batch
from laneway.storage.ledger import Reservation, Row, State, UnknownCall
from laneway.storage.records import AnyRecord, RepairAnnotated, chained_digest, encode_records
from laneway.storage.values import digest_of

FIRST: list[tuple[AnyRecord, ...]] = [
    (said("sub_1", 1), began("sub_1")),
    (responded(1, "note"),),
    (returned(call_id(1, 0)),),
    (responded(2), ended(), settled()),
]
SECOND: list[tuple[AnyRecord, ...]] = [
    (said("sub_2", 2), began("sub_2")),
    (responded(1, submission_id="sub_2"), ended(submission_id="sub_2"), settled(submission_id="sub_2")),
]


def a_log(*groups: Sequence[AnyRecord]) -> list[Batch]:
    batches: list[Batch] = []
    sequence, digest = 0, ""
    for records in groups:
        body = encode_records(tuple(records)).decode()
        chained = chained_digest(digest, body)
        batches.append(
            Batch(
                conversation_id="c",
                submission_id="sub_1",
                batch_id=f"bat_{len(batches)}",
                first_sequence=sequence + 1,
                last_sequence=sequence + len(records),
                producer_id="own_1",
                epoch=1,
                schema_version=1,
                previous_digest=digest,
                digest=chained,
                body=body,
                committed_at_ms=1,
            )
        )
        sequence, digest = sequence + len(records), chained
    return batches


def closed(submission_id: str, queue_sequence: int, settlement_sequence: int, **more: Any) -> Row:
    values = {"state": State.COMPLETED, "outcome": "completed", **more}
    return a_row(submission_id, queue_sequence=queue_sequence, settlement_sequence=settlement_sequence, **values)


ROWS = [closed("sub_1", 1, 7), closed("sub_2", 2, 12)]


def checks(rows: Sequence[Row], batches: Sequence[Batch], *, require_settled: bool = True) -> set[str]:
    return {problem.check for problem in check_conversation(rows, batches, require_settled=require_settled)[1]}


def test_a_sound_conversation_passes() -> None:
    found, problems = check_conversation(ROWS, a_log(*FIRST, *SECOND), require_settled=True)
    assert (found, problems) == (12, [])


def _gap(log: list[Batch]) -> list[Batch]:
    return [*log[:2], *log[3:]]


def _digest(log: list[Batch]) -> list[Batch]:
    return [log[0], msgspec.structs.replace(log[1], digest="0" * 64), *log[2:]]


def _body(log: list[Batch]) -> list[Batch]:
    changed = log[1].body.replace("note", "pay!")
    assert changed != log[1].body
    return [log[0], msgspec.structs.replace(log[1], body=changed), *log[2:]]


def _undecodable(log: list[Batch]) -> list[Batch]:
    body = '[{"type":"no_such_record","id":"x"}]'
    return a_log_with(log, 1, body)


def _miscounted(log: list[Batch]) -> list[Batch]:
    body = encode_records((responded(1, "note"), RepairAnnotated(id="r", subject="s", note="n"))).decode()
    return a_log_with(log, 1, body)


def a_log_with(log: list[Batch], index: int, body: str) -> list[Batch]:
    """The log with another body at `index`, and a chain that is computed anew: only the body is wrong."""
    changed: list[Batch] = []
    digest = ""
    for position, batch in enumerate(log):
        text = body if position == index else batch.body
        chained = chained_digest(digest, text)
        changed.append(msgspec.structs.replace(batch, body=text, previous_digest=digest, digest=chained))
        digest = chained
    return changed


@pytest.mark.requirement("DUR-007")
@pytest.mark.parametrize("damage", [_gap, _digest, _body, _undecodable, _miscounted])
def test_damage_to_the_log_is_found(damage: Callable[[list[Batch]], list[Batch]]) -> None:
    assert "c" in checks(ROWS, damage(a_log(*FIRST, *SECOND)))


def test_a_record_id_that_is_used_twice_is_found() -> None:
    note = RepairAnnotated(id="same", subject="s", note="n")
    assert "c" in checks([closed("sub_1", 1, 9)], a_log(FIRST[0], (note,), (note,), *FIRST[1:]))


@pytest.mark.requirement("DUR-011")
def test_a_second_settlement_is_found() -> None:
    second = msgspec.structs.replace(settled("failed"), id="other")
    assert "b" in checks([closed("sub_1", 1, 7)], a_log(*FIRST, (second,)))


@pytest.mark.requirement("DUR-015")
@pytest.mark.parametrize(
    "row",
    [
        closed("sub_1", 1, 7, state=State.FAILED, outcome="failed"),
        closed("sub_1", 1, 6),
    ],
)
def test_a_ledger_that_disagrees_is_found(row: Row) -> None:
    assert checks([row], a_log(*FIRST)) == {"b"}


def test_a_settled_row_without_a_settlement_in_the_log_is_found() -> None:
    assert checks([closed("sub_1", 1, 7)], a_log(*FIRST[:3])) == {"b"}


def test_a_settlement_of_nobody_is_found() -> None:
    assert "a" in checks([closed("sub_1", 1, 7)], a_log(*FIRST, *SECOND))


@pytest.mark.parametrize(("require_settled", "found"), [(True, {"a"}), (False, set())])
def test_open_work_is_a_problem_when_all_has_to_be_settled(require_settled: bool, found: set[str]) -> None:
    row = a_row("sub_1", state=State.RUNNING, input_sequence=1)
    assert checks([row], a_log(*FIRST[:3]), require_settled=require_settled) == found


def waiting(state: State) -> Row:
    calls = {call_id(1, 0): UnknownCall(reason="nobody can say", since_ms=1)} if state is State.UNKNOWN else {}
    return a_row("sub_1", state=state, input_sequence=1, unknown_calls=calls)


@pytest.mark.parametrize("state", [State.UNKNOWN, State.SUSPENDED])
def test_work_that_visibly_waits_for_a_person_is_no_problem(state: State) -> None:
    assert checks([waiting(state)], a_log(*FIRST[:2])) == set()


@pytest.mark.requirement("DUR-002", "DUR-015")
@pytest.mark.parametrize("require_settled", [True, False])
@pytest.mark.parametrize("state", [State.UNKNOWN, State.SUSPENDED])
def test_work_that_the_log_settles_waits_for_nobody(state: State, require_settled: bool) -> None:
    assert checks([waiting(state)], a_log(*FIRST), require_settled=require_settled) == {"b"}


@pytest.mark.requirement("DUR-017")
def test_unknown_work_that_names_no_call_is_found() -> None:
    row = a_row("sub_1", state=State.UNKNOWN, input_sequence=1)
    assert checks([row], a_log(*FIRST[:2])) == {"a"}


@pytest.mark.requirement("DUR-001")
@pytest.mark.parametrize("numbers", [(1, 3), (2, 3), (1, 1), (1, 10**12)])
def test_an_accepted_submission_that_vanished_is_found(numbers: tuple[int, int]) -> None:
    """Admission numbers without a gap, so one that is gone is told by its neighbours, though nothing else names it."""
    rows = [a_row(f"sub_{place}", state=State.READY, queue_sequence=number) for place, number in enumerate(numbers, 1)]
    assert checks(rows, [], require_settled=False) == {"a"}
    sound = [a_row(f"sub_{place}", state=State.READY, queue_sequence=place) for place in (1, 2)]
    assert checks(sound, [], require_settled=False) == set()


@pytest.mark.requirement("DUR-015")
@pytest.mark.parametrize(("input_sequence", "found"), [(1, set()), (2, {"a"}), (None, set())])
def test_an_input_that_is_not_where_the_ledger_says_is_found(input_sequence: int | None, found: set[str]) -> None:
    assert checks([closed("sub_1", 1, 7, input_sequence=input_sequence)], a_log(*FIRST)) == found


def test_an_input_that_the_log_does_not_have_is_found() -> None:
    row = a_row("sub_1", state=State.RUNNING, input_sequence=1)
    assert checks([row], [], require_settled=False) == {"a"}


@pytest.mark.requirement("DUR-011")
@pytest.mark.parametrize("state", [State.TERMINALIZING, State.COMPLETED])
def test_a_settlement_that_is_not_the_reserved_one_is_found(state: State) -> None:
    """K17: the ledger keeps the digest of what was reserved, also when the row is closed and the bytes are gone."""
    body = encode_records((settled(),)).decode()
    reserved = Reservation(settlement_id="set_1", outcome="completed", body="", digest=digest_of(body.encode()))
    other = msgspec.structs.replace(reserved, digest=digest_of(body.replace("completed", "aborted").encode()))
    for reservation, found in ((reserved, set[str]()), (other, {"b"})):
        row = closed("sub_1", 1, 7, reservation=reservation)
        if state is State.TERMINALIZING:
            row = a_row("sub_1", state=state, reservation=reservation)
        assert checks([row], a_log(*FIRST), require_settled=False) == found


@pytest.mark.requirement("DUR-004")
def test_inputs_out_of_order_are_found() -> None:
    rows = [closed("sub_1", 1, 12), closed("sub_2", 2, 5)]
    assert checks(rows, a_log(*SECOND, *FIRST)) == {"d"}


@pytest.mark.requirement("DUR-004")
def test_settlements_out_of_order_are_found() -> None:
    rows = [closed("sub_1", 1, 6), closed("sub_2", 2, 5)]
    log = a_log((said("sub_1", 1), began("sub_1")), (said("sub_2", 2), began("sub_2")))
    late = a_log(
        (said("sub_1", 1), began("sub_1"), said("sub_2", 2), began("sub_2")),
        (settled(submission_id="sub_2"),),
        (settled(submission_id="sub_1"),),
    )
    assert log
    assert checks(rows, late) == {"d"}


def test_an_input_that_does_not_carry_its_place_is_found() -> None:
    assert "d" in checks([closed("sub_1", 1, 4)], a_log((said("sub_1", 3), began(), ended(), settled())))


@pytest.mark.parametrize(
    ("more", "started"), [({"parked": True}, True), ({"host_id": "sub_0"}, True), ({"abort": None}, False)]
)
def test_work_that_may_settle_out_of_turn_does(more: dict[str, Any], started: bool) -> None:
    """Parked and joined work, and work that never ran, are no disorder."""
    first = [said("sub_1", 1), *([began("sub_1")] if started else [])]
    rows = [closed("sub_1", 1, len(first) + 4, **more), closed("sub_2", 2, len(first) + 3)]
    log = a_log(first, (said("sub_2", 2), began("sub_2"), settled(submission_id="sub_2")), (settled(),))
    assert checks(rows, log) == set()


def test_an_orphan_call_in_a_prompt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule g judges what the projection gives: one that forgot to leave out an incomplete batch is caught."""
    from laneway.storage.prompt import TurnEntry

    log = a_log((said(), began()), (responded(1, "a", "b"),), (returned(call_id(1, 1)), returned(call_id(1, 0))))
    row = a_row(state=State.RUNNING, input_sequence=1)
    assert checks([row], log, require_settled=False) == set()
    monkeypatch.setattr(TurnEntry, "complete", property(lambda turn: call_id(1, 1) in turn.results))
    monkeypatch.setattr(
        "laneway.storage.prompt.turn_messages",
        lambda turn: iter([{"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]}]),
    )
    assert checks([row], log, require_settled=False) == {"g"}


def test_a_report_counts_and_collects() -> None:
    report = Report()
    report.add(ROWS, a_log(*FIRST, *SECOND), require_settled=True)
    report.add([a_row("sub_3", state=State.RUNNING)], [], require_settled=True)
    assert (report.conversations, report.submissions, report.records) == (2, 3, 12)
    assert (report.outcomes, report.open) == ({"completed": 2}, {"running": 1})
    assert [problem.submission_id for problem in report.problems] == ["sub_3"]
    assert not report.passed


def test_reports_share_nothing() -> None:
    Report().add(ROWS, a_log(*FIRST, *SECOND), require_settled=True)
    assert Report().outcomes == {}


# --- joining ----------------------------------------------------------------------------------------------------------

JOINED_LOG: tuple[AnyRecord, ...] = (
    said("sub_1", 1),
    began("sub_1"),
    responded(1, "note"),
    returned(call_id(1, 0)),
    joined("sub_2", 2, "sub_1"),
    joined("sub_3", 3, "sub_1", "steering"),
    responded(2),
    ended(),
    settled(),
    msgspec.structs.replace(settled(submission_id="sub_2"), run_id=began("sub_1").run_id),
    msgspec.structs.replace(settled(submission_id="sub_3"), run_id=began("sub_1").run_id),
)
JOINED_ROWS = [
    closed("sub_1", 1, 9),
    closed("sub_2", 2, 10, host_id="sub_1"),
    closed("sub_3", 3, 11, host_id="sub_1", steers="sub_1"),
]


def moved(record: int, to: int) -> list[AnyRecord]:
    """The log of joined work with one record elsewhere."""
    records = list(JOINED_LOG)
    records.insert(to, records.pop(record))
    return records


@pytest.mark.requirement("DUR-004", "DUR-016")
def test_joined_work_passes() -> None:
    assert check_conversation(JOINED_ROWS, a_log(JOINED_LOG), require_settled=True) == (11, [])


@pytest.mark.requirement("DUR-004")
def test_steering_is_a_stream_of_its_own() -> None:
    """It may pass what was queued before it; within itself it keeps its order."""
    assert checks(JOINED_ROWS, a_log(moved(5, 4))) == set()
    rows = [JOINED_ROWS[0], *(msgspec.structs.replace(row, steers="sub_1") for row in JOINED_ROWS[1:])]
    both = [msgspec.structs.replace(item, kind="steering") if i == 4 else item for i, item in enumerate(JOINED_LOG)]
    assert checks(rows, a_log(both)) == set()
    both[4], both[5] = both[5], both[4]
    assert checks(rows, a_log(both)) == {"d"}


@pytest.mark.parametrize(
    ("rows", "records"),
    [
        (JOINED_ROWS, moved(4, 3)),  # while a call was open
        (JOINED_ROWS, moved(4, 2)),  # before the first turn
        (JOINED_ROWS, moved(4, 7)),  # when the run had decided to finish
        ([JOINED_ROWS[0], closed("sub_2", 2, 10, host_id="sub_9"), JOINED_ROWS[2]], JOINED_LOG),
        ([JOINED_ROWS[0], closed("sub_2", 2, 10, host_id="sub_1", steers="sub_1"), JOINED_ROWS[2]], JOINED_LOG),
        (
            JOINED_ROWS,
            [msgspec.structs.replace(item, run_id="run_9") if i == 9 else item for i, item in enumerate(JOINED_LOG)],
        ),
        (
            [
                a_row("sub_1", state=State.RUNNING),
                closed("sub_2", 2, 9, host_id="sub_1"),
                closed("sub_3", 3, 10, host_id="sub_1", steers="sub_1"),
            ],
            [item for index, item in enumerate(JOINED_LOG) if index != 8],
        ),
    ],
    ids=["open call", "no turn yet", "completed", "another host", "not steering", "another run", "before its host"],
)
def test_a_fault_of_joined_work_is_found(rows: list[Row], records: Sequence[AnyRecord]) -> None:
    assert checks(rows, a_log(records), require_settled=False) == {"d"}
