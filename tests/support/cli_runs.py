"""Running the command line in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from laneway.cluster.cli import app


def laneway(*arguments: str, input: str | bytes | None = None) -> Result:
    """Run a command; what it raises beyond an exit code is a failure of the test."""
    return CliRunner().invoke(app, list(arguments), input=input, catch_exceptions=False)


def json_of(*arguments: str, code: int = 0, input: str | bytes | None = None) -> Any:
    """Run a command with --json, and read the one value that it prints."""
    result = laneway(*arguments, "--json", input=input)
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    assert result.stderr == ""
    return json.loads(result.stdout)


def refused(*arguments: str, code: int = 2, input: str | bytes | None = None) -> dict[str, Any]:
    """Run a command that must fail: with --json it says why as a value, without it in one line on standard error."""
    error = json_of(*arguments, code=code, input=input)["error"]
    plain = laneway(*arguments, input=input)
    assert (plain.exit_code, plain.stdout) == (code, "")
    assert len(plain.stderr.splitlines()) == 1
    assert plain.stderr.startswith(f"error[{error['code']}]: ")
    for name in ("field", "limit"):
        if name in error["details"]:
            assert f"{name}: {error['details'][name]}" in plain.stderr
    return error
