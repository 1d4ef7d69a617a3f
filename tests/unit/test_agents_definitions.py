"""Agents: what is checked, what the digest covers, how they travel and where they are loaded from."""

from __future__ import annotations

import operator
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from laneway.agents import Agent, FunctionModel, PydanticAIModel, Registry, ScriptedModel, Tool, load_agents, tool
from laneway.agents.registry import load_authorize
from laneway.storage.errors import InvalidInput
from laneway.storage.values import digest_of, encode

MODEL = ScriptedModel(["hello"])


@tool
def look(place: str) -> str:
    return place


def plain(x: int) -> int:
    return x


def test_defaults() -> None:
    agent = Agent(name="a", model=MODEL, tools=[look, plain])
    assert [item.name for item in agent.tools if isinstance(item, Tool)] == ["look", "plain"]
    assert isinstance(agent.tools, tuple)
    assert agent.tool("look") is look
    wrapped = agent.tool("plain")
    assert wrapped is not None
    assert wrapped.effect == "uncertain"
    assert agent.tool("other") is None


@pytest.mark.parametrize(
    ("field", "members"),
    [
        ("name", {"name": ""}),
        ("name", {"name": 3}),
        ("name", {"name": "x" * 257}),
        ("name", {"name": "\ud800"}),
        ("model", {"model": None}),
        ("model", {"model": ScriptedModel}),
        ("model", {"model": ""}),
        ("tools", {"tools": "look"}),
        ("tools", {"tools": look}),
        ("tools[1]", {"tools": [look, 3]}),
        ("tools[1]", {"tools": [look, look]}),
        ("instructions", {"instructions": None}),
        ("instructions", {"instructions": "x" * ((1 << 20) + 1)}),
        ("on_unknown", {"on_unknown": "wait"}),
        ("turns_max", {"turns_max": 0}),
        ("turns_max", {"turns_max": True}),
        ("turns_max", {"turns_max": 1.5}),
        ("turns_max", {"turns_max": 100_001}),
        ("model_timeout_s", {"model_timeout_s": 0}),
        ("model_timeout_s", {"model_timeout_s": float("inf")}),
        ("run_timeout_s", {"run_timeout_s": -1}),
        ("model_attempts_max", {"model_attempts_max": 0}),
        ("model_attempts_max", {"model_attempts_max": 101}),
    ],
)
def test_bad_definitions(field: str, members: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Agent(**{"name": "a", "model": MODEL, **members})
    assert caught.value.details["field"] == field


def test_an_identity_must_be_json() -> None:
    class Odd:
        def identity(self) -> dict[str, Any]:
            return {"x": object()}

        async def respond(self, request: Any, emit: Any) -> Any: ...

    with pytest.raises(InvalidInput, match="not JSON"):
        Agent(name="a", model=Odd())


def test_digest_covers_everything() -> None:
    base = {"name": "a", "model": MODEL, "tools": [look]}
    changes: list[dict[str, Any]] = [
        {"name": "b"},
        {"model": ScriptedModel(["bye"])},
        {"tools": []},
        {"tools": [look, plain]},
        {"instructions": "x"},
        {"on_unknown": "park"},
        {"turns_max": 1},
        {"model_timeout_s": 1},
        {"run_timeout_s": 1},
        {"model_attempts_max": 1},
        {"join": True},
    ]
    digests = {Agent(**base).digest, *(Agent(**{**base, **change}).digest for change in changes)}
    assert len(digests) == len(changes) + 1
    assert Agent(**base).digest == Agent(**base).digest


def test_an_agent_that_does_not_join_keeps_the_digest_that_was_recorded() -> None:
    """A setting that came later is part of the digest only where it is used."""
    agent = Agent(name="a", model=MODEL)
    before = {
        "name": "a",
        "model": MODEL.identity(),
        "tools": [],
        "instructions": "",
        "on_unknown": "hold",
        "turns_max": 50,
        "model_timeout_s": 120.0,
        "run_timeout_s": None,
        "model_attempts_max": 3,
    }
    assert agent.digest == digest_of(encode(before))
    with pytest.raises(InvalidInput, match="join must be True or False"):
        Agent(name="a", model=MODEL, join=1)  # pyright: ignore[reportArgumentType]


def test_travels() -> None:
    def local(x: int) -> int:
        return x

    agent = Agent(name="a", model=FunctionModel(lambda request: "hi"), tools=[look, local])
    assert agent.digest
    twin = cloudpickle.loads(cloudpickle.dumps(agent))
    assert twin.digest == agent.digest
    assert twin.tool("look") is look
    assert twin.tool("local").parse('{"x": 1}') == {"x": 1}


SCRIPT = """
import sys
from dataclasses import dataclass
from ray import cloudpickle
from laneway.agents import Agent, FunctionModel, tool

LIMIT = 3

@tool(effect="readonly", approval=lambda arguments: arguments["x"] > LIMIT)
def look(ctx, x: int) -> int:
    return x + LIMIT

def answer(request):
    return "hi"

agent = Agent(name="a", model=FunctionModel(answer), tools=[look])
if __name__ == "__main__":
    print(agent.digest)
    with open(sys.argv[1], "wb") as file:
        cloudpickle.dump(agent, file)
"""


def test_an_agent_of_main_travels_to_another_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    digest = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "agent")], capture_output=True, text=True, check=True
    ).stdout.strip()
    agent = cloudpickle.loads((tmp_path / "agent").read_bytes())
    assert agent.digest == digest
    found = agent.tool("look")
    assert found.parse('{"x": "4"}') == {"x": 4}
    assert found.needs_approval({"x": 4})
    assert found(None, 4) == 7


def test_importing_agents_needs_no_provider() -> None:
    code = (
        "import sys, laneway.agents; print([n for n in ('pydantic_ai', 'openai', 'ray', 'duckdb') if n in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_missing_dependency_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="pip install 'laneway\\[models\\]'") as caught:
        Agent(name="a", model="openai:gpt-4o")
    assert caught.value.code == "dependency_missing"


def test_a_models_name() -> None:
    agent = Agent(name="a", model="openai:gpt-4o")
    assert isinstance(agent.model, PydanticAIModel)
    assert agent.model.identity() == {"kind": "pydantic_ai", "model": "openai:gpt-4o", "settings": {}}
    warm = Agent(name="a", model=PydanticAIModel("openai:gpt-4o", {"temperature": 1.0}))
    assert warm.digest != agent.digest
    assert cloudpickle.loads(cloudpickle.dumps(agent)).digest == agent.digest


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("model", (3,)),
        ("model", ("",)),
        ("settings", ("x", {"a": float("nan")})),
        ("settings.a", ("x", {"a": object()})),
    ],
)
def test_bad_provider_models(field: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput) as caught:
        PydanticAIModel(*arguments)
    assert caught.value.details["field"].startswith(field)


def test_an_sdk_object_does_not_travel() -> None:
    class Sdk:
        model_name = "m"

    model = PydanticAIModel(Sdk())
    assert model.identity()["model"] == "Sdk:m"
    with pytest.raises(InvalidInput, match="function that makes it"):
        cloudpickle.dumps(model)
    made = cloudpickle.loads(cloudpickle.dumps(PydanticAIModel(lambda: Sdk())))
    assert made.identity()["model"].startswith("test_an_sdk_object_does_not_travel")


def test_registry() -> None:
    one, two = Agent(name="one", model=MODEL), Agent(name="two", model=MODEL)
    registry = Registry([one, two])
    assert registry.names() == ("one", "two")
    assert registry.get("two") is two
    assert registry.get("three") is None
    for bad in ([one, one], [one, 3]):
        with pytest.raises(InvalidInput) as caught:
            Registry(bad)  # type: ignore[arg-type]
        assert caught.value.details["field"] == "agents"


MODULE = """
from laneway.agents import Agent, ScriptedModel
from laneway.storage.values import digest_of, encode

one = Agent(name="one", model=ScriptedModel(["1"]))
two = Agent(name="two", model=ScriptedModel(["2"]))
listed, packed, mapped = [one, two], (one, two), {"x": one, "y": two}
empty, mixed, number, twice = [], [one, 3], 3, [one, one]

def make():
    return listed

def fails():
    raise RuntimeError("no luck")

class Holder:
    agents = listed
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"agents_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_broken.py").write_text("1 / 0")
    (tmp_path / f"{name}_needs.py").write_text("import no_such_module_at_all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return name


@pytest.mark.parametrize("attribute", ["listed", "packed", "mapped", "make", "Holder.agents"])
def test_load(module: str, attribute: str) -> None:
    assert [agent.name for agent in load_agents(f"{module}:{attribute}")] == ["one", "two"]


def test_load_one(module: str) -> None:
    assert [agent.name for agent in load_agents(f"{module}:one")] == ["one"]


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("{}", "module:name"),
        ("{}:", "module:name"),
        (":one", "module:name"),
        ("no_such_module_at_all:one", "looked for in"),
        ("no_such.module:one", "looked for in"),
        ("{}.inner:one", "looked for in"),
        ("{}:three", "has no three"),
        ("{}:number", "not a int"),
        ("{}:empty", "empty"),
        ("{}:mixed", "holds a int"),
        ("{}:twice", "two agents"),
        ("{}:fails", "no luck"),
        ("{}_broken:one", "ZeroDivisionError"),
        ("{}_needs:one", "no_such_module_at_all, which is not installed"),
    ],
)
def test_bad_targets(module: str, target: str, part: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_agents(target.format(module))
    assert caught.value.details["field"] == "agents"
    assert part in caught.value.message


def test_a_check_is_loaded_by_its_name() -> None:
    assert load_authorize("operator:truth") is operator.truth
    for target in ("operator", "operator:none_such", "no_such_module:x", "operator:__doc__"):
        with pytest.raises(InvalidInput) as caught:
            load_authorize(target)
        assert caught.value.details["field"] == "authorize"


def test_a_plain_function_as_a_model_is_told_what_wraps_it() -> None:
    with pytest.raises(InvalidInput, match=r"not function; wrap it: FunctionModel\(function\)"):
        Agent(name="a", model=lambda request: "x")  # pyright: ignore[reportArgumentType]
