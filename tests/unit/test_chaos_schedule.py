"""The schedule of kills: fixed by its seed, fair to its kinds, bounded in time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.cluster.chaos import KINDS_DEFAULT, ChaosPlan, Kill, Kind, parse_kinds
from laneway.storage.errors import InvalidInput


def schedule(seed: int, kinds: Sequence[Kind], every_s: float, until_s: float | None = None) -> Iterator[Kill]:
    return ChaosPlan(seed=seed, kinds=tuple(kinds), every_s=every_s, until_s=until_s).kills()


KINDS = st.lists(st.sampled_from(list(Kind)), min_size=1, max_size=4, unique=True)
SEEDS = st.integers(0, 2**32)


@given(seed=SEEDS, kinds=KINDS)
def test_the_same_seed_gives_the_same_schedule(seed: int, kinds: list[Kind]) -> None:
    first, second = (list(itertools.islice(schedule(seed, kinds, 2.0), 40)) for _ in range(2))
    assert first == second
    assert [kill.at_s for kill in first] == [2.0 * number for number in range(1, 41)]


def test_another_seed_gives_another_schedule() -> None:
    schedules = {tuple(itertools.islice(schedule(seed, list(Kind), 1.0), 20)) for seed in range(50)}
    assert len(schedules) == 50


@given(seed=SEEDS, kinds=KINDS)
def test_each_round_has_each_kind_once(seed: int, kinds: list[Kind]) -> None:
    found = [kill.kind for kill in itertools.islice(schedule(seed, kinds, 1.0), 5 * len(kinds))]
    for start in range(0, len(found), len(kinds)):
        assert sorted(found[start : start + len(kinds)]) == sorted(kinds)


def test_a_schedule_ends_with_its_time() -> None:
    assert [kill.at_s for kill in schedule(0, [Kind.STORE], 2.0, until_s=7.0)] == [2.0, 4.0, 6.0]
    assert list(schedule(0, list(Kind), 2.0, until_s=1.9)) == []


@given(seed=SEEDS, count=st.integers(1, 9))
def test_the_victim_is_one_of_the_candidates(seed: int, count: int) -> None:
    kill = next(schedule(seed, KINDS_DEFAULT, 1.0))
    assert kill.victim(range(count)) in range(count)
    assert kill.victim([]) is None
    assert kill.victim(["only"]) == "only"


def test_every_candidate_is_a_victim_at_some_time() -> None:
    kills = itertools.islice(schedule(7, KINDS_DEFAULT, 1.0), 200)
    assert {kill.victim("abcde") for kill in kills} == set("abcde")
    assert Kill(at_s=1.0, kind=Kind.ACTORS, choice=0.999999).victim("abcde") == "e"


@pytest.mark.parametrize("every_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_pause_that_is_none_is_refused(every_s: float) -> None:
    with pytest.raises(InvalidInput) as refused:
        ChaosPlan(every_s=every_s)
    assert refused.value.details == {"field": "kill-every", "limit": 0}


def test_kinds_are_read_from_a_comma_list() -> None:
    assert parse_kinds("actors") == (Kind.ACTORS,)
    assert parse_kinds("store, actors,store,node,supervisor") == (
        Kind.STORE,
        Kind.ACTORS,
        Kind.NODE,
        Kind.SUPERVISOR,
    )
    for wrong in ("", "actors,", "actor", "ACTORS"):
        with pytest.raises(InvalidInput) as refused:
            parse_kinds(wrong)
        assert refused.value.details["field"] == "chaos"
        assert refused.value.details["limit"] == "actors, store, supervisor, node"
