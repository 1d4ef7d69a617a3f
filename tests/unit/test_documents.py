"""The README is read by machines, too: what it prints runs, and what it links exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()


def test_links_lead_somewhere() -> None:
    missing = [
        link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link and not (ROOT / link).exists()
    ]
    assert missing == []


def test_each_folder_stands_in_the_table() -> None:
    told = set(re.findall(r"^\| `(\w+)/` \|", README, re.MULTILINE))
    found = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} | {"tests", "docs"}
    assert told == found


def test_the_example_has_ten_lines() -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    assert len([line for line in code[1].splitlines() if line.strip()]) <= 10
