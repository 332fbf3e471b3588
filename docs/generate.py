"""Writes the generated parts of the documentation anew: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path

from pilotage.app.documents.retry_rules import rules_table
from pilotage.language.parsing.schema import reference_tables, sites_tables
from pilotage.model.reference import compound_table, event_tables, state_diagram, state_table, transition_table
from pilotage.model.settings.settings import settings_tables

FOLDER = Path(__file__).parent
PAGES = tuple(
    FOLDER / page
    for page in (
        "reference/document.md",
        "reference/events.md",
        "explanation/engine.md",
        "explanation/states.md",
        "reference/settings.md",
        "reference/sites.md",
    )
)
PARTS = {
    "fields": reference_tables,
    "rules": rules_table,
    "events": event_tables,
    "states": state_table,
    "diagram": state_diagram,
    "transitions": transition_table,
    "compounds": compound_table,
    "settings": settings_tables,
    "sites": sites_tables,
}
PART = re.compile(r"(<!-- generated: ([a-z]+) -->\n).*?(<!-- end of generated -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """The page with its generated parts as they should be."""
    return PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", page)


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(with_tables(each.read_text("utf-8")), "utf-8")
