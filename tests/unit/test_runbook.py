"""The runbook tells what there is: its commands, settings, alerts and reasons are those of the program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cli_runs import laneway as run

from laneway.cluster.settings import load_settings
from laneway.recovery.alerts import AlertSettings
from laneway.recovery.obligations import EXHAUSTION_CODES
from laneway.storage.errors import InvalidInput

RUNBOOK = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading."""
    section = RUNBOOK.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


@pytest.mark.requirement("DUR-017")
def test_its_commands_exist() -> None:
    commands = set(re.findall(r"laneway ((?:quarantine )?[a-z-]+)", RUNBOOK))
    assert {"obligations", "quarantine list", "quarantine release", "dead-letters", "retry", "down"} <= commands
    for command in commands:
        result = run(*command.split(), "--help")
        assert result.exit_code == 0, command


def test_its_settings_have_these_defaults() -> None:
    settings: Any = load_settings()
    told = {name.strip("`"): float(default) for name, default, _ in table("Settings")}
    assert told == {name: float(getattr(settings, name)) for name in told}
    names = {name for name in type(settings).model_fields if name.startswith("alert_") or name == "faults_max"}
    assert names <= told.keys()


def test_its_alerts_and_errors_are_those_of_the_program() -> None:
    assert {row[0].strip("`") for row in table("Alerts")} == {
        "unknown_overdue",
        "approval_overdue",
        "settlement_overdue",
        "work_overdue",
        "quarantined",
    }
    assert len(AlertSettings.__struct_fields__) == 5
    codes = {code for row in table("Dead letters") for code in re.findall(r"`(\w+)`", row[0])}
    assert codes == set(EXHAUSTION_CODES)


def test_its_links_lead_to_headings() -> None:
    headings = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.+)$", RUNBOOK, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", RUNBOOK)) <= headings


def test_an_unknown_setting_is_told_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"no setting is named 'frob'; there are .*sweep_s") as caught:
        load_settings(frob=1)
    assert caught.value.details["field"] == "frob"
