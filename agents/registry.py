"""Where agents come from: a module named on the command line, and the table of them that a runtime keeps."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ..storage.errors import InvalidInput
from .agent import Agent
from .authority import Authorize, checked_authorize


class Registry:
    """The agents of a runtime by name, and the check that operators' acts must pass (None: everybody may act).

    Raises: InvalidInput with `field` "agents" for two agents of one name.
    """

    def __init__(self, agents: Iterable[Agent], authorize: Authorize | None = None) -> None:
        self.authorize = checked_authorize(authorize)
        self._agents: dict[str, Agent] = {}
        for index, agent in enumerate(agents):
            if not isinstance(agent, Agent):
                raise InvalidInput(f"agents[{index}] must be an Agent, not {type(agent).__name__}", field="agents")
            if agent.name in self._agents:
                raise InvalidInput(f"two agents have the name {agent.name}", field="agents")
            self._agents[agent.name] = agent

    def get(self, name: str) -> Agent | None:
        """The agent of that name; None when this runtime does not know it."""
        return self._agents.get(name)

    def names(self) -> tuple[str, ...]:
        """The names in the order in which the agents were given."""
        return tuple(self._agents)


def load_agents(target: str) -> list[Agent]:
    """Import the agents that `target`, "module:name", names: an Agent, a list, tuple or dict of them, or a function
    without arguments that returns one of these. The current directory is searched, too.

    Raises: InvalidInput with `field` "agents".
    """
    found = _named(target)
    if callable(found) and not isinstance(found, Agent):
        try:
            found = found()
        except Exception as error:
            raise _invalid(f"calling {target} failed: {type(error).__name__}: {error}") from error
    agents = _as_list(found)
    if not agents or not all(isinstance(agent, Agent) for agent in agents):
        raise _invalid(f"{target} must be an Agent, or a list, tuple or dict of them, not {_describe(found)}")
    Registry(agents)
    return agents


def load_authorize(target: str) -> Authorize:
    """Import the check that `target`, "module:name", names. Raises: InvalidInput with `field` "authorize"."""
    try:
        found = _named(target)
    except InvalidInput as error:
        raise InvalidInput(error.message, field="authorize") from error
    if not callable(found):
        raise InvalidInput(f"{target} must be a function of the act, not {_describe(found)}", field="authorize")
    return found


def _named(target: str) -> Any:
    module_name, separator, attribute = target.partition(":")
    if not separator or not module_name or not attribute:
        raise _invalid(f"{target!r} must have the form module:name, such as my_agents:support")
    found: Any = _import(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise _invalid(f"module {module_name} has no {attribute}")
        found = getattr(found, part)
    return found


def _as_list(found: Any) -> list[Any]:
    if isinstance(found, Mapping):
        return list(found.values())
    return list(found) if isinstance(found, list | tuple) else [found]


def _import(name: str) -> Any:
    # An installed command has its own directory first on the path, where `python -m` has the current one.
    directory = os.getcwd()
    if directory not in sys.path and "" not in sys.path:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _invalid(f"no module named {name}; it was looked for in {directory} and on sys.path") from error
        raise _invalid(f"module {name} needs {error.name}, which is not installed") from error
    except Exception as error:
        raise _invalid(f"importing {name} failed: {type(error).__name__}: {error}") from error


def _describe(found: object) -> str:
    if isinstance(found, list | tuple | Mapping):
        foreign = [type(item).__name__ for item in _as_list(found) if not isinstance(item, Agent)]
        return f"one that holds a {foreign[0]}" if foreign else "an empty one"
    return f"a {type(found).__name__}"


def _invalid(message: str) -> InvalidInput:
    return InvalidInput(message[:1_000], field="agents")
