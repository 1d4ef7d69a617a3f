"""The README's Python runs as printed, twice, on a Ray of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent.parent / "README.md"


def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert code is not None
    program = tmp_path / "program.py"
    program.write_text(code[1])
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.splitlines()[-1] == "You said: Where is my order?"
    assert (tmp_path / "laneway.duckdb").exists()
