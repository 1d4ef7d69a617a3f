"""Admission keys of a conversation with more submissions than a header holds keys: looked up, with the same answers."""

from __future__ import annotations

from typing import Any

import pytest
from store_builders import Maker, admission, admit_ready, raised

from laneway.storage.commands import Accepted, Admitted, Unit
from laneway.storage.contract import Store
from laneway.storage.engine import KEYS_HELD_MAX
from laneway.storage.errors import AdmissionConflict, InvalidInput


def admitted(store: Store, *names: str, conversation: str = "c", **more: Any) -> list[Admitted]:
    """Admit in one group, each submission in a unit of its own."""
    units = [Unit(conversation_id=conversation, commands=admit_ready(name, **more)) for name in names]
    found: list[Admitted] = []
    for answer in store.commit(units):
        assert isinstance(answer, Accepted), answer
        result = answer.results[0]
        assert isinstance(result, Admitted)
        found.append(result)
    return found


@pytest.fixture(params=["grown", "reopened"])
def store(request: pytest.FixtureRequest, make: Maker) -> Store:
    """A conversation that came to have many keys while it was in memory, or that was read back with them."""
    store = make()
    admitted(store, *(f"s{number}" for number in range(KEYS_HELD_MAX + 10)))
    return make.reopen(store) if request.param == "reopened" else store


@pytest.mark.requirement("DUR-001")
@pytest.mark.parametrize("name", ["s0", f"s{KEYS_HELD_MAX + 9}"])
def test_a_key_gets_its_first_receipt_however_many_there_are(store: Store, name: str) -> None:
    before = store.lookup(name)
    assert before is not None
    (again,) = admitted(store, "other", key=f"key-{name}")
    assert again.receipt.replayed
    assert (again.receipt.submission_id, again.receipt.queue_sequence) == (name, before.queue_sequence)
    command = admission("other", f"key-{name}", digest="another")
    (refused,) = store.commit([Unit(conversation_id="c", commands=(command,))])
    assert isinstance(raised(refused), AdmissionConflict)


@pytest.mark.requirement("DUR-001")
def test_a_new_key_is_admitted_once_within_a_group(store: Store) -> None:
    """Two units of one group name the same new key, and a third names one of another conversation."""
    first, second = admitted(store, "x", "y", key="fresh")
    assert (first.receipt.replayed, second.receipt.replayed) == (False, True)
    assert second.receipt.submission_id == "x"
    assert first.receipt.queue_sequence == KEYS_HELD_MAX + 11
    (other,) = admitted(store, "z", key="fresh", conversation="d")
    assert not other.receipt.replayed
    (mine,) = admitted(store, "w", key="fresh", principal="bob")
    assert not mine.receipt.replayed
    (again,) = admitted(store, "v", key="fresh")
    assert again.receipt.submission_id == "x"


def test_a_refused_group_leaves_no_key_behind(store: Store) -> None:
    """A unit that admits and then fails was not admitted: its key is free."""
    broken = admit_ready("x", "fresh")[0], admission("y", "k" * 10_000)
    (answer,) = store.commit([Unit(conversation_id="c", commands=broken)])
    assert isinstance(raised(answer), InvalidInput)
    (first,) = admitted(store, "z", key="fresh")
    assert not first.receipt.replayed


def test_a_key_that_no_store_can_hold_spoils_no_neighbour(store: Store) -> None:
    bad = Unit(conversation_id="c", commands=(admission("bad", "\ud800"),))
    good = Unit(conversation_id="c", commands=admit_ready("good"))
    refused, accepted = store.commit([bad, good])
    assert isinstance(raised(refused), InvalidInput)
    assert isinstance(accepted, Accepted)
