"""The client's patience: a call that has a bound ends within it, whatever does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from laneway.cluster import client as client_module
from laneway.cluster.client import Client
from laneway.cluster.inputs import check_admission
from laneway.storage.errors import StoreUnavailable
from laneway.storage.values import DEFAULT_LIMITS

ADMISSION = check_admission(
    agent="a", content="hi", idempotency_key="k", principal="p", extra=None, limits=DEFAULT_LIMITS
)


class Silent:
    """A backend whose supervisor, or whose hosts, never answer."""

    limits = DEFAULT_LIMITS

    def __init__(self, *, supervisor: bool) -> None:
        self._supervisor = supervisor

    async def host_of(self, conversation_id: str) -> Any:
        if self._supervisor:
            await asyncio.Event().wait()
        return self

    async def submit(self, conversation_id: str, admission: Any) -> Any:
        await asyncio.Event().wait()

    async def settlement(self, conversation_id: str, submission_id: str, timeout_s: float) -> Any:
        await asyncio.Event().wait()

    async def read(self, method: str, *args: Any) -> Any:
        raise StoreUnavailable("nobody is there")

    async def lost(self, conversation_id: str, host: Any) -> None:
        return


@pytest.mark.parametrize("supervisor", [True, False])
async def test_silence_ends_a_bounded_call(supervisor: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that is started again while the store is away answers nobody: callers are told, and may repeat."""
    monkeypatch.setattr(client_module, "_GRACE_S", 0.01)
    client = Client(Silent(supervisor=supervisor))  # pyright: ignore[reportArgumentType]
    with pytest.raises(StoreUnavailable) as silent:
        await client.submit("c", ADMISSION, timeout_s=0.01)
    assert silent.value.code == "indeterminate"
    assert "repeat it with the same key" in silent.value.message
    with pytest.raises(TimeoutError, match="still open"):
        await client.settlement("c", "sub_1", 0.01)
