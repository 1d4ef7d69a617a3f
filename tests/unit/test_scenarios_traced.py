"""Every scenario id stands in the docstring of a test: none can vanish unseen."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
IDS = [f"K{number}" for number in range(1, 27)] + [f"F{number}" for number in range(1, 26)]


def docstrings() -> list[str]:
    """Of all test functions."""
    found: list[str] = []
    for path in sorted(TESTS.glob("*/test_*.py")):
        tree = ast.parse(path.read_text())
        tests = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        ]
        found.extend(text for node in tests if (text := ast.get_docstring(node)))
    return found


def named(text: str) -> set[str]:
    """The ids in a text, ranges such as "K1 to K11" included."""
    ids = set(re.findall(r"\b[KF]\d+\b", text))
    for kind, first, other, last in re.findall(r"\b([KF])(\d+) to ([KF])(\d+)\b", text):
        if kind == other:
            ids |= {f"{kind}{number}" for number in range(int(first), int(last) + 1)}
    return ids


def test_every_scenario_is_named_by_a_test() -> None:
    traced = set[str]().union(*(named(text) for text in docstrings()))
    assert [name for name in IDS if name not in traced] == []


def test_ranges_and_single_ids_are_read() -> None:
    assert named("K1 to K3, F5; and K20 on Ray.") == {"K1", "K2", "K3", "F5", "K20"}
