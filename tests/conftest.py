"""What all tests share: `--traced`, one process for all that starts Ray, and a unit suite that cannot start it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

UNIT = Path(__file__).parent / "unit"
CLUSTER = Path(__file__).parent / "cluster"
LANES = (UNIT, Path(__file__).parent / "crash")

ALL = tuple(f"DUR-{number:03}" for number in range(1, 18))
BASE = tuple(f"DUR-{number:03}" for number in (1, 3, 4, 5, 6, 7, 8, 11, 12, 15))
SETS = {"base": BASE, "all": ALL}

TESTS_PER_REQUIREMENT = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--traced",
        choices=sorted(SETS),
        help="fail when a requirement of this set has no test marked with it, and print how many each one has",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count marked tests before anything is deselected; a test that is always skipped proves nothing.

    Among several processes (`-n 2`), one takes all of `tests/cluster`: they mostly wait for the one Ray they share.
    """
    counts = Counter[str]()
    for item in items:
        if CLUSTER in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("ray"))
        named = {name for marker in item.iter_markers("requirement") for name in marker.args}
        unknown = named.difference(ALL)
        if unknown:
            raise pytest.UsageError(f"{item.nodeid} names unknown requirements: {', '.join(sorted(unknown))}")
        if item.get_closest_marker("skip") is None:
            counts.update(named)
    config.stash[TESTS_PER_REQUIREMENT] = counts
    if hasattr(config, "workeroutput"):
        config.workeroutput["tests_per_requirement"] = dict(counts)


class CountsOfWorkers:
    """Each worker collects everything; the process that reports collects nothing and takes their counts."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        counts = getattr(node, "workeroutput", {}).get("tests_per_requirement")
        if counts is not None:
            node.config.stash[TESTS_PER_REQUIREMENT] = Counter(counts)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CountsOfWorkers())


def _untested(config: pytest.Config) -> list[str]:
    counts = config.stash.get(TESTS_PER_REQUIREMENT, Counter[str]())
    return [name for name in SETS.get(config.getoption("--traced"), ()) if not counts[name]]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    passed = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if passed and _untested(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    wanted = SETS.get(config.getoption("--traced"), ())
    if not wanted:
        return
    counts = config.stash.get(TESTS_PER_REQUIREMENT, Counter[str]())
    terminalreporter.section(f"tests of each requirement ({config.getoption('--traced')})")
    for name in wanted:
        terminalreporter.line(f"{name}  {counts[name]:5}", red=not counts[name])
    untested = _untested(config)
    if untested:
        terminalreporter.line(f"ERROR: no test is marked with {', '.join(untested)}", red=True, bold=True)


@pytest.fixture(autouse=True)
def no_ray(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In `tests/unit`, `ray.init` raises; Ray itself is never imported for that."""
    if UNIT not in request.path.parents:
        yield
        return

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a unit test may not start Ray; move it to tests/cluster")

    loaded = sys.modules.get("ray")
    if loaded is not None:
        monkeypatch.setattr(loaded, "init", refuse)
    yield
    # A test that imported Ray itself found the real `init`.
    ray = sys.modules.get("ray")
    if loaded is None and ray is not None and ray.is_initialized():
        ray.shutdown()
        raise AssertionError(f"{request.node.nodeid} started Ray; move it to tests/cluster")


@pytest.fixture(autouse=True)
def recoveries(request: pytest.FixtureRequest) -> Iterator[None]:
    """DUR-013: in tests of lanes, what a recovery does first is what it put on record."""
    if request.path.parent not in LANES or "lane_world" not in sys.modules:
        yield
        return
    from agreement import watched_recoveries

    with watched_recoveries() as found:
        yield
    assert found == []
