"""What is read of a damaged log says so with a typed error, whatever is asked."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

import laneway
from laneway import Agent, ScriptedModel
from laneway.storage.errors import StoreCorrupt


def test_a_batch_with_other_bytes_is_a_typed_error(tmp_path: Path) -> None:
    """F23: the damaged body decodes, and what follows it speaks of a run that nobody has heard of."""
    path = tmp_path / "store.duckdb"
    agent = Agent(name="a", model=ScriptedModel(["one", "two"]))
    with laneway.local(agent, path, stepwise=True) as runtime:
        receipt = runtime.conversation("c").submit("hi")
        assert receipt.result(timeout=10).text == "one"
    with duckdb.connect(path) as file:
        file.execute("UPDATE batch_log SET body = '[]' WHERE body LIKE '%\"type\":\"run_started\"%'")
    with laneway.local(agent, path) as runtime:
        for ask in (runtime.conversation("c").messages, lambda: runtime.explain(receipt.submission_id)):
            with pytest.raises(StoreCorrupt, match="does not match its digest") as told:
                ask()
            assert told.value.details["conversation_id"] == "c"
