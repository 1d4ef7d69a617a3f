from pathlib import Path

from laneway.storage import diagram
from laneway.storage.ledger import TRANSITIONS

PAGE = Path(__file__).parents[2] / "docs" / "state-diagram.md"


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == diagram.render(), "docs/state-diagram.md is stale: run `make docs`"


def test_every_move_is_drawn() -> None:
    drawn = set[tuple[str, str, str]]()
    for line in diagram.render().splitlines():
        arrow, _, events = line.strip().partition(" : ")
        before, _, after = arrow.partition(" --> ")
        drawn.update((before, event, after) for event in events.split(", ") if event)
    assert drawn == {(before, event, after) for (before, event), after in TRANSITIONS.items()}
