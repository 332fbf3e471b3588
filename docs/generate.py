"""Writes the generated parts of the reference pages anew: `make docs`."""

from __future__ import annotations

import re
from pathlib import Path

from pilotage.language.reading.reference import reference_tables

PAGE = Path(__file__).parent / "reference" / "document.md"
PART = re.compile(r"(<!-- generated: fields -->\n).*?(<!-- end of generated -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """The page with its tables as they should be."""
    return PART.sub(lambda found: f"{found[1]}\n{reference_tables()}\n{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")
