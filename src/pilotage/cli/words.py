"""Numbers, times and tables as people read them: aligned, in one width, without anything that steers a terminal."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pilotage.cli.output import columns, shown

GAP = "  "


def plural(count: int, noun: str) -> str:
    """A count with its noun: `1 file`, `2 binaries`."""
    many = noun if count == 1 else f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {many}"


def no_service(ended: str) -> str:
    """That the service of this folder has ended, and why where it did so by itself."""
    return f"the service ended by itself: {ended}; its service.log says more" if ended else "no service runs here"


def duration(seconds: float) -> str:
    """A time in its two largest units."""
    if seconds < 60:
        return f"{seconds:g} s"
    whole = round(seconds)
    parts: list[str] = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, whole = divmod(whole, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)


def one_line(value: object) -> str:
    """A value of a cell: nothing for None, and on one line."""
    return "" if value is None else shown(str(value).replace("\n", " ").replace("\t", " "))


def fields_of(data: Mapping[str, Any]) -> str:
    """The fields of an event as `name=value`, what is not plain as JSON."""
    import json

    words = (
        f"{name}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        for name, value in data.items()
        if name != "learned"  # hundreds of characters that only programs read: --json has them
    )
    return one_line(" ".join(words))


def room() -> int | None:
    """How wide a line may be: as wide as the terminal, or as COLUMNS says; None in a pipe, where nothing is cut."""
    return columns() if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else None


def table(rows: Iterable[Sequence[object]], *, header: Sequence[str] = (), indent: str = "") -> Iterator[str]:
    """Lines of aligned cells; columns that are empty in every row are left out, and a line is cut where it must be."""
    cells = [[one_line(value) for value in row] for row in rows]
    wanted = [number for number in range(len(cells[0]) if cells else 0) if any(row[number] for row in cells)]
    if header and cells:
        cells.insert(0, list(header))
    widths = {number: max(text_width(row[number]) for row in cells) for number in wanted}
    width = room()
    for row in cells:
        line = indent + GAP.join(row[number] + " " * (widths[number] - text_width(row[number])) for number in wanted)
        yield f"{cut(line.rstrip(), width)}\n"


def cut(line: str, width: int | None) -> str:
    """A line that fits the width, with a mark where something is missing."""
    if width is None or text_width(line) <= width:
        return line
    used, kept = 1, 0
    for kept, character in enumerate(line):  # noqa: B007 # how far it came is what counts
        used += text_width(character)
        if used > width:
            break
    return f"{line[:kept]}…"


def text_width(text: str) -> int:
    """How many cells of a terminal a text fills."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
