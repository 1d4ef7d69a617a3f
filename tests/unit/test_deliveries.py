"""Commits of one sender: in order, each once."""

from __future__ import annotations

import pytest

from laneway.actors import deliveries
from laneway.actors.deliveries import Deliveries
from laneway.storage.errors import StoreUnavailable


def test_what_comes_in_order_is_let_through() -> None:
    found = Deliveries()
    for number in (1, 2, 5):
        found.take("a", number)
    found.take("b", 1)


@pytest.mark.requirement("DUR-006")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_comes_late_or_twice_is_refused_and_may_be_repeated(number: int) -> None:
    """A claim that is carried out when its sender has moved on would give the lane to nobody."""
    found = Deliveries()
    found.take("a", 3)
    with pytest.raises(StoreUnavailable) as caught:
        found.take("a", number)
    assert (caught.value.code, caught.value.retryable) == ("superseded", True)
    found.take("a", 4)


def test_only_so_many_senders_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "_SENDERS_MAX", 2)
    found = Deliveries()
    for sender in ("a", "b", "a", "c"):
        found.take(sender, 1 if sender != "a" else len(found._last) + 1)
    assert list(found._last) == ["a", "c"]
