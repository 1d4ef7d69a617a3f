"""A store of four shards on Ray: four processes, four files, and each conversation in one of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_agents import noted, until

import laneway
from laneway.cluster.chaos import ChaosPlan, Kind
from laneway.cluster.offline import open_offline
from laneway.cluster.ray_chaos import Chaos
from laneway.storage.shard_names import shard_path
from laneway.storage.sharding import shard_of

Start = Callable[..., laneway.Runtime]
SHARDS = 4
NAMES = [f"c{number}" for number in range(12)]
BY_SHARD = {shard: [name for name in NAMES if shard_of(name, SHARDS) == shard] for shard in range(SHARDS)}


def check(runtime: laneway.Runtime) -> None:
    report = runtime.verify(require_settled=True)
    assert report.passed, report.problems


def completed(runtime: laneway.Runtime, text: str) -> None:
    receipts = [runtime.conversation(name).submit(text) for name in NAMES]
    assert {receipt.result(timeout=60).outcome for receipt in receipts} == {"completed"}


def test_four_shards_hold_the_conversations_and_stay_four(start: Start, folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "laneway.duckdb"
    runtime = start(shards=SHARDS, store=store, namespace="shards")
    completed(runtime, "look shoes")
    found = runtime.describe()
    assert (found.store["path"], found.store["shards"]) == (str(store), SHARDS)
    assert len(set(found.store_pids)) == SHARDS
    assert runtime.conversations() == sorted(NAMES)
    assert [row[0] for row in runtime.query("SELECT count(*) FROM submissions").rows] == list(range(SHARDS))
    check(runtime)
    with laneway.connect(namespace="shards") as other:
        assert len(other.submissions()) == len(NAMES)
        assert other.conversation("c0").submit("hello").result(timeout=30).text == "you said hello"
    runtime.stop()

    assert not store.exists()
    for shard, theirs in BY_SHARD.items():
        with open_offline(shard_path(str(store), shard, SHARDS)) as one:
            assert one.conversations() == sorted(theirs)
    with open_offline(store) as whole:
        assert whole.conversations() == sorted(NAMES)
        check(whole)

    for other_number in (1, 2):
        with pytest.raises(laneway.LanewayError) as refused:
            start(shards=other_number, store=store, namespace="shards")
        assert (refused.value.code, refused.value.details["stored"]) == ("shards_differ", [SHARDS])
    again = start(shards=SHARDS, store=store, namespace="shards")
    assert len(again.submissions()) == len(NAMES) + 1
    completed(again, "hello")
    check(again)


@pytest.mark.requirement("DUR-010", "DUR-011")
def test_a_killed_shard_holds_up_its_own_conversations_alone(start: Start, folder: Path) -> None:
    """A stopped process gives no answer at all, as long as it takes: the others' conversations come to their ends."""
    runtime = start(shards=SHARDS)
    completed(runtime, "hello")
    pid = runtime.describe().store_pids[1]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        receipts = {
            name: runtime.conversation(name).submit("look shoes", idempotency_key="k")
            for shard, names in BY_SHARD.items()
            for name in names
            if shard != 1
        }
        assert {receipt.result(timeout=60).outcome for receipt in receipts.values()} == {"completed"}
    finally:
        os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGKILL)
    receipts |= {name: runtime.conversation(name).submit("look shoes") for name in BY_SHARD[1]}
    assert {receipt.result(timeout=60).outcome for receipt in receipts.values()} == {"completed"}
    assert runtime.describe().store_pids[1] != pid
    check(runtime)


def test_work_goes_on_elsewhere_while_a_shard_is_away(start: Start, folder: Path) -> None:
    """A process that hosts lanes dies while a shard is silent: what the other shards hold is recovered all the same."""
    runtime = start(shards=SHARDS, max_actors=2)
    completed(runtime, "hello")
    (folder / "gate-shoes").touch()
    receipts = [runtime.conversation(name).submit("look shoes") for name in NAMES]
    until(lambda: len(noted("look_up")) == len(NAMES))
    pid = runtime.describe().store_pids[1]
    assert pid is not None
    hosts = {actor.pid for actor in runtime.describe().actors if actor.conversations}
    os.kill(pid, signal.SIGSTOP)
    try:
        for host in hosts:
            os.kill(host, signal.SIGKILL)
        elsewhere = [name for name in NAMES if shard_of(name, SHARDS) != 1]
        until(lambda: len(noted("look_up")) >= len(NAMES) + len(elsewhere), timeout_s=60)
        (folder / "gate-shoes").unlink()
        others = [receipt for receipt in receipts if receipt.conversation_id in elsewhere]
        assert {receipt.result(timeout=60).outcome for receipt in others} == {"completed"}
    finally:
        os.kill(pid, signal.SIGCONT)
    assert {receipt.result(timeout=60).outcome for receipt in receipts} == {"completed"}
    check(runtime)


async def test_chaos_kills_shards_of_the_store(start: Start, folder: Path) -> None:
    runtime = start(shards=2, namespace="chaos-shards")
    before = runtime.describe().store_pids
    chaos = Chaos("chaos-shards", ChaosPlan(every_s=0.2, kinds=(Kind.STORE,), until_s=0.3))
    await chaos.run()
    assert chaos.kills[Kind.STORE] == 1
    receipts = [runtime.conversation(name).submit("hello") for name in NAMES]
    assert {receipt.result(timeout=60).outcome for receipt in receipts} == {"completed"}
    assert sum(pid in before for pid in runtime.describe().store_pids) == 1
    check(runtime)
