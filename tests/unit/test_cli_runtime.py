"""up, down, doctor and demo as far as they go without Ray, and what `up` remembers."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from cli_runs import json_of, refused
from cli_runs import laneway as run

import laneway
from laneway.cluster import cli_runtime, doctor, launch, ray_head, runtime_file
from laneway.cluster.demo import fresh_paths, play
from laneway.cluster.demo_agent import demo_agent
from laneway.storage.errors import InvalidInput, RuntimeUnreachable

FILE = runtime_file.RuntimeFile(
    namespace="laneway", address="127.0.0.1:1", store="/a/store.duckdb", agents=("support",)
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANEWAY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LANEWAY_ADDRESS", raising=False)
    monkeypatch.delenv("LANEWAY_NAMESPACE", raising=False)
    return tmp_path


# --- what is remembered ----------------------------------------------------------------------------------------------


def test_a_runtime_is_remembered_and_forgotten(folder: Path) -> None:
    assert runtime_file.load("laneway") is None
    path = runtime_file.save(FILE)
    assert path == folder / "home" / "laneway.json"
    assert runtime_file.load("laneway") == FILE
    assert [entry.name for entry in path.parent.iterdir()] == ["laneway.json"]
    runtime_file.forget("laneway")
    runtime_file.forget("laneway")
    assert runtime_file.load("laneway") is None


def test_others_on_the_same_cluster_are_found() -> None:
    for namespace, address in (("a", "h:1"), ("b", "h:1"), ("c", "h:2")):
        runtime_file.save(runtime_file.RuntimeFile(namespace=namespace, address=address, store="s"))
    (runtime_file.home() / "broken.json").write_text("{")
    assert [found.namespace for found in runtime_file.others_at("h:1", "a")] == ["b"]


def test_a_damaged_file_says_what_to_do() -> None:
    runtime_file.save(FILE)
    runtime_file.path_of("laneway").write_text("{")
    with pytest.raises(InvalidInput, match="remove it or name --address"):
        runtime_file.load("laneway")
    assert refused("ps")["details"]["field"] == "address"


def test_commands_go_to_the_address_that_is_remembered() -> None:
    runtime_file.save(FILE)
    error = refused("ps", code=3)
    assert error["details"]["address"] == "127.0.0.1:1"
    assert "--store /a/store.duckdb" in error["message"]
    assert refused("ps", "--address", "127.0.0.1:2", code=3)["details"]["address"] == "127.0.0.1:2"


# --- up and down -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--agents", "no_such_module:agents"), "agents"),
        (("--agents", "cli_agents"), "agents"),
        (("--agents", "cli_agents:nothing"), "agents"),
        (("--agents", "cli_agents:one", "--namespace", "not a name"), "namespace"),
        (("--agents", "cli_agents:one", "--working-dir", "missing"), "working-dir"),
        (("--agents", "cli_agents:one", "--runtime-env", "missing.json"), "runtime-env"),
        (("--agents", "cli_agents:one", "--runtime-env", "{"), "runtime-env"),
        (("--agents", "cli_agents:one", "--runtime-env", '{"working_dir": "."}', "--working-dir", "."), "working-dir"),
    ],
)
def test_up_refuses_bad_input_before_anything_starts(options: tuple[str, ...], field: str) -> None:
    assert refused("up", *options)["details"]["field"] == field


def test_up_at_an_address_where_nobody_listens() -> None:
    error = refused("up", "--agents", "cli_agents:one", "--address", "127.0.0.1:1", code=3)
    assert error["code"] == "runtime_unreachable"
    assert runtime_file.load("laneway") is None


def test_the_runtime_environment_comes_from_a_file_or_from_the_line(folder: Path) -> None:
    (folder / "env.json").write_text('{"pip": ["x"]}')
    environment = cli_runtime._environment
    assert environment(None, None) is None
    assert environment("env.json", None) == {"pip": ["x"]}
    assert environment('{"pip": []}', folder) == {"pip": [], "working_dir": str(folder)}


def test_down_forgets_a_runtime_that_does_not_answer() -> None:
    assert refused("down", "--address", "127.0.0.1:1", code=3)["code"] == "runtime_unreachable"
    runtime_file.save(FILE)
    assert json_of("down") == {"namespace": "laneway", "runtime_ended": False, "cluster_ended": False}
    assert runtime_file.load("laneway") is None


def test_down_leaves_a_process_alone_that_is_no_cluster() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        runtime_file.save(
            runtime_file.RuntimeFile(namespace="laneway", address="127.0.0.1:1", store="s", cluster_pid=child.pid)
        )
        assert json_of("down")["cluster_ended"] is False
        assert child.poll() is None
    finally:
        child.communicate(timeout=30)


def test_a_cluster_that_another_namespace_uses_is_handed_over() -> None:
    for namespace, pid in (("laneway", 2**22), ("other", None)):
        runtime_file.save(
            runtime_file.RuntimeFile(namespace=namespace, address="127.0.0.1:1", store="s", cluster_pid=pid)
        )
    assert json_of("down")["cluster_ended"] is False
    heir = runtime_file.load("other")
    assert heir is not None
    assert heir.cluster_pid == 2**22


def test_an_address_is_tried_before_ray_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert ray_head.resolved(address) == address
        assert os.environ.pop("RAY_AUTH_MODE") == "token"
        assert ray_head.resolved(f"ray://{address}") == f"ray://{address}"
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert ray_head.resolved("auto") == address
        assert os.environ["RAY_AUTH_MODE"] == "disabled"
    for nobody in (address, f"ray://{address}", "no-such-host.invalid:1", "nonsense"):
        with pytest.raises(RuntimeUnreachable):
            ray_head.resolved(nobody)


# --- doctor ----------------------------------------------------------------------------------------------------------


def names(found: dict[str, Any], verdict: str) -> list[str]:
    return [check["name"] for check in found["checks"] if check["verdict"] == verdict]


def look(*arguments: str, code: int = 0) -> dict[str, Any]:
    return json_of("doctor", *arguments, code=code)


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_head, "standing_cluster", lambda: None)
    monkeypatch.setattr(doctor, "_ray_imports", lambda: doctor._check("ray", doctor.Verdict.OK, "it imports"))


@pytest.mark.usefixtures("no_cluster")
def test_doctor_passes_here_and_names_what_it_looked_at() -> None:
    found = look()
    assert found["passed"] is True
    assert {"python", "package duckdb", "disk space", "current folder", "memory", "ray", "store"} <= {
        check["name"] for check in found["checks"]
    }
    assert run("doctor").stdout.startswith("ok       python: ")


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.requirement("DUR-017")
@pytest.mark.parametrize(("has_check", "verdict"), [(False, "warning"), (True, "ok")])
def test_doctor_tells_a_runtime_that_asks_nobody_who_may_act(
    monkeypatch: pytest.MonkeyPatch, has_check: bool, verdict: str
) -> None:
    with laneway.local(
        [laneway.Agent(name="echo", model=laneway.FunctionModel(lambda request: "done"))],
        authorize=(lambda act: True) if has_check else None,
    ) as runtime:
        monkeypatch.setattr(ray_head, "standing_cluster", lambda: "127.0.0.1:1")
        monkeypatch.setattr(launch, "connect", lambda address, namespace: contextlib.nullcontext(runtime))
        checks = {check["name"]: check for check in look()["checks"]}
    assert checks["authority of "]["verdict"] == verdict
    assert ("--authorize" in checks["authority of "]["advice"]) is not has_check


@pytest.mark.usefixtures("no_cluster")
def test_doctor_fails_for_a_store_that_was_named_and_does_not_open(folder: Path) -> None:
    (folder / "text.duckdb").write_text("no store" * 1000)
    assert names(look("--store", "text.duckdb", code=1), "failed") == ["store"]
    (folder / "laneway.duckdb").write_text("no store" * 1000)
    assert names(look(), "warning") == ["store"]
    with laneway.local([], "held.duckdb"):
        assert names(look("--store", "held.duckdb"), "failed") == []


@pytest.mark.usefixtures("no_cluster")
def test_doctor_says_what_to_do_when_space_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 100 << 20))
    monkeypatch.setattr(doctor, "_memory_free", lambda: 600 << 20)
    found = look(code=1)
    assert names(found, "failed") == ["disk space", "disk space for Ray"]
    assert names(found, "warning") == ["shared memory", "memory"]
    assert all(check["advice"] for check in found["checks"] if check["verdict"] != "ok")


@pytest.mark.usefixtures("no_cluster")
def test_doctor_notices_packages_and_folders(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    wanted = [("no-such-package", lambda version: True), ("typer", lambda version: False)]
    monkeypatch.setattr(doctor, "_requirements", lambda: iter(wanted))
    monkeypatch.setenv("RAY_TMPDIR", str(folder / ("long" * 20)))
    failed = names(look(code=1), "failed")
    assert failed == ["package no-such-package", "package typer", "folder of Ray"]


@pytest.mark.usefixtures("no_cluster")
def test_doctor_notices_a_runtime_that_has_gone() -> None:
    runtime_file.save(FILE)
    found = look()
    assert names(found, "warning") == ["runtime laneway"]
    assert found["passed"] is True


# --- demo ------------------------------------------------------------------------------------------------------------


def test_a_demonstration_takes_names_that_nothing_has(folder: Path) -> None:
    assert [path.name for path in fresh_paths(folder)] == ["laneway-demo.duckdb", "laneway-demo.calls.jsonl"]
    (folder / "laneway-demo.duckdb").write_text("somebody's file")
    (folder / "laneway-demo-2.calls.jsonl").write_text("somebody's file")
    (folder / "laneway-demo-3.duckdb.wal").write_text("somebody's file")
    assert [path.name for path in fresh_paths(folder)] == ["laneway-demo-4.duckdb", "laneway-demo-4.calls.jsonl"]
    assert len(list(folder.iterdir())) == 3


def test_the_demonstration_without_processes_to_kill_books_once_and_does_not_pass(folder: Path) -> None:
    store, calls = fresh_paths(folder)
    told: list[str] = []
    with laneway.local([demo_agent(str(calls))], store) as runtime:
        story = play(runtime, store, calls, told.append)
    assert [settlement["outcome"] for settlement in story.settlements] == ["completed"] * 3
    assert (story.tool_calls, story.tool_invocations, story.problems) == (3, 3, [])
    assert [row["state"] for row in story.submissions] == ["completed"] * 3
    assert story.kill is None
    assert not story.passed
    assert told[1] == "  completed: Done. Table 12 is yours at 19:00, laid for 2. See you then!"


def test_with_nothing_up_each_command_says_what_helps_it() -> None:
    at = ("--address", "127.0.0.1:1")
    ended = str(refused("down", *at, code=3)["message"])
    assert ended.startswith("nothing to end: ")
    assert "laneway up" not in ended
    assert str(refused("ps", *at, code=3)["message"]).endswith("or read a store with --store PATH")
    asked = str(refused("submit", "c", "hello", *at, code=3)["message"])
    assert "laneway up --agents" in asked
    assert "--store" not in asked
