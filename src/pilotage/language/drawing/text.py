"""The graph as text for a terminal: each box with the boxes it waits for."""

from __future__ import annotations

from collections.abc import Iterator

from pilotage.language.drawing.picture import Arrow, Box, Picture, cells, clipped, padded, picture_of, shortened
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.text.names import plural

PACKAGES_MAX = 100
EDGES_MAX = 400
_COLUMNS_MIN = 40
_LABEL_MAX = 32
_LINES_MAX = 3  # for the sources of one box
_FILES_MAX = 3


def text_lines(expansion: Expansion, *, columns: int) -> Iterator[str]:
    """The lines of the drawing, each with a newline."""
    picture = picture_of(expansion, packages_max=PACKAGES_MAX, edges_max=EDGES_MAX)
    width = max(columns, _COLUMNS_MIN)
    yield from (line.rstrip() + "\n" for line in _lines(picture, width))


def _lines(picture: Picture, width: int) -> Iterator[str]:
    yield clipped(f"{picture.job}: {_counts(picture)}", width)
    if picture.summarised:
        yield clipped("drawn by activity; --format json lists every package", width)
    shown = picture.boxes
    label_width = min(_LABEL_MAX, max((cells(box.label) for box in shown), default=0))
    size_width = max((len(_size(box)) for box in shown), default=0) if picture.summarised else 0
    into: dict[int, list[Arrow]] = {}
    for arrow in picture.arrows:
        into.setdefault(arrow.target, []).append(arrow)
    stage = None
    for position, box in enumerate(shown):
        if (box.stage, box.stage_name) != stage:
            stage = (box.stage, box.stage_name)
            yield ""
            yield clipped(_heading(picture, box), width)
        head = f"  {padded(shortened(box.label, label_width), label_width)}"
        if picture.summarised:
            head += f"  {_size(box):>{size_width}}"
        yield from _row(head, _sources(picture, box, into.get(position, [])), width)


def _counts(picture: Picture) -> str:
    return (
        f"{plural(picture.packages, 'package')} in {plural(picture.stages, 'stage')}, {plural(picture.edges, 'edge')}"
    )


def _heading(picture: Picture, box: Box) -> str:
    if not box.stage:
        return "activities"
    inside = sum(other.count for other in picture.boxes if other.stage == box.stage)
    size = plural(inside, "package") if inside else "packages not known yet"
    return f"stage {box.stage}: {box.stage_name} ({size})"


def _size(box: Box) -> str:
    return f"\u00d7 {box.count:,}" if box.count else "\u00d7 ?"


def _sources(picture: Picture, box: Box, arrows: list[Arrow]) -> list[str]:
    """The sources of a box, a text for each arrow into it."""
    found = []
    if box.inner:
        found.append(f"each other ({plural(box.inner, 'edge')})")
    for arrow in arrows:
        notes = [plural(arrow.edges, "edge")] if picture.summarised and arrow.edges else []
        files = ", ".join(shortened(name, _LABEL_MAX) for name in arrow.files[:_FILES_MAX])
        if len(arrow.files) > _FILES_MAX or arrow.more:
            files += ", …"
        notes += [files] if files else []
        label = shortened(picture.boxes[arrow.source].label, _LABEL_MAX)
        found.append(f"{label} ({': '.join(notes)})" if notes else label)
    if box.awaits and not arrows:
        found.append(", ".join(box.awaits))
    return found


def _row(head: str, sources: list[str], width: int) -> Iterator[str]:
    """A box and its sources, on a few lines if they do not fit on one."""
    if not sources:
        yield head
        return
    indent = cells(head) + 4
    if indent + 20 > width:
        yield head
        head, indent = " " * 4, 8
    lines = _wrapped(sources, width - indent)
    yield f"{head}  ← {lines[0]}"
    yield from (" " * indent + line for line in lines[1:])


def _wrapped(items: list[str], room: int) -> list[str]:
    """Items with commas, on a few lines; the last line tells how many are left out."""
    rest = f"and {len(items):,} more"
    lines: list[list[str]] = [[]]
    for position, item in enumerate(items):
        last = position == len(items) - 1
        text = clipped(item, room - (0 if last else len(rest) + 2)) + ("" if last else ",")
        if lines[-1] and cells(" ".join([*lines[-1], text])) > room:
            if len(lines) == _LINES_MAX:
                # The line may be full: make room for the last words.
                left = len(items) - position
                while len(lines[-1]) > 1 and cells(" ".join([*lines[-1], rest])) > room:
                    lines[-1].pop()
                    left += 1
                lines[-1].append(f"and {left:,} more")
                break
            lines.append([])
        lines[-1].append(text)
    return [" ".join(line) for line in lines]
