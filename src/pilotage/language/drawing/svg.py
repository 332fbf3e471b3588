"""The graph as a self-contained SVG: layers from left to right, a colour per activity, details as tooltips."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pilotage.language.drawing.picture import (
    Arrow,
    Box,
    Colour,
    Picture,
    cells,
    colour_of_activities,
    picture_of,
    shortened,
)
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.text.names import plural
from pilotage.model.jobs.graph import depths, followers

# Lays out boxes in layers from left to right: each is to the right of the boxes it waits for (after Sugiyama).
#
# First each box gets a layer, the length of the longest path to it. An arrow that crosses layers gets a bend in each, so
# that it goes between the boxes. Then boxes are reordered within the layers to reduce crossings, and finally moved up and
# down towards their neighbours without overlap.

_SWEEPS = 12
_ROUNDS = 24


class Layout(msgspec.Struct, frozen=True):
    """The layout: the layer and the centre of each box, and the bends of each arrow."""

    layers: tuple[int, ...]
    middles: tuple[float, ...]
    bends: tuple[tuple[tuple[int, float], ...], ...]  # for each arrow: (layer, height), from its source on
    backward: frozenset[int]  # arrows from right to left, which only a drawing by activity can have


class _Slot:
    """A box, or a bend of an arrow, with its neighbours on both sides."""

    __slots__ = ("after", "before", "height", "layer", "middle", "order")

    def __init__(self, *, layer: int, height: float) -> None:
        self.layer = layer
        self.height = height
        self.order = 0
        self.middle = 0.0
        self.before: list[_Slot] = []
        self.after: list[_Slot] = []


def lay_out(picture: Picture, heights: Sequence[float], *, gap: float, bend_height: float) -> Layout:
    """Lay out a picture whose boxes have the given heights, with a gap between neighbours in a layer."""
    layers, backward = _layers(picture)
    boxes = [_Slot(layer=layer, height=height) for layer, height in zip(layers, heights, strict=True)]
    slots = list(boxes)
    bends: list[list[_Slot]] = []
    for position, arrow in enumerate(picture.arrows):
        chain: list[_Slot] = []
        if position not in backward:
            previous = boxes[arrow.source]
            for layer in range(previous.layer + 1, layers[arrow.target]):
                bend = _Slot(layer=layer, height=bend_height)
                _join(previous, bend)
                chain.append(bend)
                previous = bend
            _join(previous, boxes[arrow.target])
        bends.append(chain)
        slots += chain
    columns = _columns(slots)
    _reduce_crossings(columns)
    _place(columns, gap)
    top = min((slot.middle - slot.height / 2 for slot in slots), default=0.0)
    return Layout(
        layers=tuple(layers),
        middles=tuple(slot.middle - top for slot in boxes),
        bends=tuple(tuple((bend.layer, bend.middle - top) for bend in chain) for chain in bends),
        backward=backward,
    )


def _join(left: _Slot, right: _Slot) -> None:
    left.after.append(right)
    right.before.append(left)


def _layers(picture: Picture) -> tuple[list[int], frozenset[int]]:
    """The layer of each box, and the backward arrows, which are ignored for the layers."""
    count = len(picture.boxes)
    backward = _backward(picture.arrows, count)
    forward = (arrow for position, arrow in enumerate(picture.arrows) if position not in backward)
    return depths(followers(count, ((arrow.source, arrow.target) for arrow in forward))), backward


def _backward(arrows: Sequence[Arrow], count: int) -> frozenset[int]:
    """The arrows that close a cycle, found by a depth-first search."""
    out: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for position, arrow in enumerate(arrows):
        out[arrow.source].append((arrow.target, position))
    unseen, inside, done = 0, 1, 2
    state = [unseen] * count
    found: set[int] = set()
    for start in range(count):
        if state[start] != unseen:
            continue
        state[start] = inside
        path = [(start, iter(out[start]))]
        while path:
            box, following = path[-1]
            step = next(following, None)
            if step is None:
                state[box] = done
                path.pop()
            elif state[step[0]] == inside:
                found.add(step[1])
            elif state[step[0]] == unseen:
                state[step[0]] = inside
                path.append((step[0], iter(out[step[0]])))
    return frozenset(found)


def _columns(slots: list[_Slot]) -> list[list[_Slot]]:
    columns: list[list[_Slot]] = [[] for _ in range(max((slot.layer for slot in slots), default=-1) + 1)]
    for slot in slots:
        slot.order = len(columns[slot.layer])
        columns[slot.layer].append(slot)
    return columns


def _reduce_crossings(columns: list[list[_Slot]]) -> None:
    """Sort each layer by the average position of its neighbours, forwards and backwards, and keep the best order."""
    best, fewest = [list(column) for column in columns], _crossings(columns)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for column in columns[1:] if forward else columns[-2::-1]:
            column.sort(key=lambda slot: _average(slot, slot.before if forward else slot.after))
            for order, slot in enumerate(column):
                slot.order = order
        crossings = _crossings(columns)
        if crossings < fewest:
            best, fewest = [list(column) for column in columns], crossings
        if not fewest:
            break
    for column, kept in zip(columns, best, strict=True):
        column[:] = kept
        for order, slot in enumerate(column):
            slot.order = order


def _average(slot: _Slot, neighbours: list[_Slot]) -> float:
    return sum(other.order for other in neighbours) / len(neighbours) if neighbours else slot.order


def _crossings(columns: list[list[_Slot]]) -> int:
    """The number of arrow crossings, counted as inversions layer by layer."""
    total = 0
    for column in columns:
        ends = [order for slot in column for order in sorted(other.order for other in slot.after)]
        total += _inversions(ends)
    return total


def _inversions(values: list[int]) -> int:
    """The number of inversions, counted with a Fenwick tree."""
    tree = [0] * (max(values, default=0) + 2)
    found = 0
    for earlier, value in enumerate(values):
        index, smaller = value + 1, 0
        while index:
            smaller += tree[index]
            index &= index - 1
        found += earlier - smaller
        index = value + 1
        while index < len(tree):
            tree[index] += 1
            index += index & -index
    return found


def _place(columns: list[list[_Slot]], gap: float) -> None:
    """Stack each layer, then move each slot towards the centre of its neighbours as far as there is room."""
    for column in columns:
        height = sum(slot.height + gap for slot in column) - gap
        top = -height / 2
        for slot in column:
            slot.middle = top + slot.height / 2
            top += slot.height + gap
    for turn in range(_ROUNDS):
        forward = turn % 2 == 0
        for column in columns if forward else reversed(columns):
            wished = [_wish(slot, forward=forward) for slot in column]
            _settle(column, wished, gap)


def _wish(slot: _Slot, *, forward: bool) -> float:
    neighbours = (slot.before or slot.after) if forward else (slot.after or slot.before)
    return sum(other.middle for other in neighbours) / len(neighbours) if neighbours else slot.middle


def _settle(column: list[_Slot], wished: list[float], gap: float) -> None:
    """Move each slot to its wished position; slots that would overlap move together to the average of their wishes."""
    runs: list[tuple[float, list[_Slot], list[float]]] = []  # centre of the first, the slots, wishes for the first
    for slot, wish in zip(column, wished, strict=True):
        start, members, wishes = wish, [slot], [wish]
        while runs:
            before_start, before, before_wishes = runs[-1]
            offset = _extent(before, gap) + before[-1].height / 2 + gap + members[0].height / 2
            if before_start + offset <= start + 1e-9:
                break
            runs.pop()
            wishes = before_wishes + [one - offset for one in wishes]
            members = before + members
            start = sum(wishes) / len(wishes)
        runs.append((start, members, wishes))
    for start, members, _ in runs:
        middle = start
        previous: _Slot | None = None
        for slot in members:
            if previous is not None:
                middle += previous.height / 2 + gap + slot.height / 2
            slot.middle = middle
            previous = slot


def _extent(members: list[_Slot], gap: float) -> float:
    """The distance from the centre of the first slot to that of the last."""
    inner = sum(slot.height + gap for slot in members[:-1])
    return inner - members[0].height / 2 + members[-1].height / 2 if len(members) > 1 else 0.0


PACKAGES_MAX = 120
EDGES_MAX = 400
_LABEL_MAX = 34
_ACTIVITIES_SHOWN_MAX = 12

_MARGIN = 24.0
_HEAD = 56.0
_GAP = 16.0
_BEND_HEIGHT = 6.0
_LAYER_GAP = 76.0
_LAYER_GAP_MAX = 220.0
_BELOW = 44.0  # room for backward arrows
_CHARACTER = 7.25  # the width of a cell at 12 px in DejaVu Sans Mono, the widest of the common fonts
_SMALL_CHARACTER = 6.1
_PADDING = 12.0
_CAPTION_MAX = 26
_CAPTIONED_BOXES_MAX = 12

_STYLE = (
    "text{font-family:'DejaVu Sans Mono','Liberation Mono',Menlo,Consolas,monospace;font-size:12px;fill:#1c1c1c}"
    ".job{font-size:16px;font-weight:bold}"
    ".small{font-size:10px;fill:#555}"
    ".note{font-size:10px;fill:#333}"
    ".arrow path{fill:none;stroke:#8a8f98;stroke-width:1.3}"
    ".arrow:hover path{stroke:#111;stroke-width:2.2}"
    ".arrow .ground{stroke:#fff;stroke-width:3;paint-order:stroke}"
    ".control path{stroke-dasharray:5 4}"
    ".box rect{stroke-width:1.4}"
    ".box:hover rect{stroke-width:2.6}"
)


class _Sheet(msgspec.Struct, frozen=True):
    """The dimensions of one drawing."""

    lefts: tuple[float, ...]  # of the layers
    widths: tuple[float, ...]  # of the layers: all boxes of a layer are equally wide, so no arrow runs behind one
    heights: tuple[float, ...]  # of the boxes
    laid: Layout
    top: float  # of the layers
    width: float
    height: float


def svg_text(expansion: Expansion) -> str:
    """The SVG of a job: every package of a small job, the activities of a large one."""
    picture = picture_of(expansion, packages_max=PACKAGES_MAX, edges_max=EDGES_MAX)
    return draw_picture(picture)


def draw_picture(picture: Picture) -> str:
    """The SVG of a picture."""
    sheet = _measure(picture)
    colours = colour_of_activities(box.activity for box in picture.boxes)
    # Arrows first, so that boxes are drawn on top of them.
    pieces = [_arrow(picture, sheet, position) for position in range(len(picture.arrows))]
    pieces += [_box(box, sheet, i, colours[box.activity]) for i, box in enumerate(picture.boxes)]
    head = _head(picture, colours)
    width, height = f"{sheet.width:.0f}", f"{sheet.height:.0f}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="graph of the job {_escaped(picture.job)}">\n'
        f"<style>{_STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0 1 10 5 0 9z" fill="#6b7078"/></marker></defs>\n'
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join([*head, *pieces]) + "\n</svg>\n"
    )


def _measure(picture: Picture) -> _Sheet:
    widths = tuple(_box_width(box) for box in picture.boxes)
    heights = tuple(40.0 if _second_line(box) else 28.0 for box in picture.boxes)
    laid = lay_out(picture, heights, gap=_GAP, bend_height=_BEND_HEIGHT)
    layers = max(laid.layers, default=-1) + 1
    column_widths = [0.0] * layers
    for layer, width in zip(laid.layers, widths, strict=True):
        column_widths[layer] = max(column_widths[layer], width)
    captions = [0.0] * layers
    for position, arrow in enumerate(picture.arrows):
        if position not in laid.backward and _is_captioned(picture, arrow):
            layer = laid.layers[arrow.source]
            captions[layer] = max(captions[layer], cells(_caption(arrow)) * _SMALL_CHARACTER)
    climbs = _climbs(picture, laid, layers)
    lefts, left = [], _MARGIN
    for layer, width in enumerate(column_widths):
        lefts.append(left)
        # Steep arrows need a wider gap, or they would overlap.
        left += width + max(_LAYER_GAP, captions[layer] + 30, min(_LAYER_GAP_MAX, climbs[layer] / 5))
    legend = _legend_width(picture)
    right = max((lefts[layer] + column_widths[layer] for layer in range(layers)), default=0.0)
    bottom = max((m + h / 2 for m, h in zip(laid.middles, heights, strict=True)), default=0.0)
    lowest = max((height for chain in laid.bends for _, height in chain), default=0.0)
    return _Sheet(
        lefts=tuple(lefts),
        widths=tuple(column_widths),
        heights=heights,
        laid=laid,
        top=_HEAD + _legend_height(picture),
        width=max(right + _MARGIN, legend + 2 * _MARGIN, _head_width(picture)),
        height=_HEAD + _legend_height(picture) + max(bottom, lowest) + (_BELOW if laid.backward else 0.0) + _MARGIN,
    )


def _climbs(picture: Picture, laid: Layout, layers: int) -> list[float]:
    """The largest vertical distance of an arrow after each layer."""
    found = [0.0] * layers
    for position, arrow in enumerate(picture.arrows):
        if position in laid.backward:
            continue
        way = [(laid.layers[arrow.source], laid.middles[arrow.source]), *laid.bends[position]]
        heights = [*(height for _, height in way[1:]), laid.middles[arrow.target]]
        for (layer, height), following in zip(way, heights, strict=True):
            found[layer] = max(found[layer], abs(following - height))
    return found


def _box_width(box: Box) -> float:
    second = cells(_second_line(box)) * _SMALL_CHARACTER
    return max(cells(shortened(box.label, _LABEL_MAX)) * _CHARACTER, second, 40.0) + 2 * _PADDING


def _second_line(box: Box) -> str:
    if not box.count:
        return "not known yet"
    return plural(box.count, "package") if len(box.paths) > 1 else ""


# --- boxes ------------------------------------------------------------------------------------------------------------


def _box(box: Box, sheet: _Sheet, position: int, colour: Colour) -> str:
    left, top = _corner(sheet, position)
    width, height = sheet.widths[sheet.laid.layers[position]], sheet.heights[position]
    dashes = ' stroke-dasharray="5 4"' if not box.count else ""
    middle = left + width / 2
    second = _second_line(box)
    label = _text(shortened(box.label, _LABEL_MAX), x=middle, y=top + (17 if second else height / 2 + 4), style="")
    note = _text(second, x=middle, y=top + 32, style="note") if second else ""
    return (
        f'<g class="box"><title>{_escaped(_title(box))}</title>'
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6" '
        f'fill="{colour.fill}" stroke="{colour.line}"{dashes}/>{label}{note}</g>'
    )


def _title(box: Box) -> str:
    lines = [box.label]
    if box.stage:
        lines.append(f"stage {box.stage}: {box.stage_name}")
    if box.activity != box.label:
        lines.append(f"activity {box.activity}")
    if box.paths:
        lines.append(" … ".join(box.paths))
    if box.inner:
        lines.append(f"{plural(box.inner, 'edge')} between its own packages")
    if box.awaits:
        lines.append(f"waits for {', '.join(box.awaits)}")
    return "\n".join(lines)


def _corner(sheet: _Sheet, position: int) -> tuple[float, float]:
    """The upper left corner of a box."""
    middle = sheet.laid.middles[position] + sheet.top
    return sheet.lefts[sheet.laid.layers[position]], middle - sheet.heights[position] / 2


# --- arrows -----------------------------------------------------------------------------------------------------------


def _arrow(picture: Picture, sheet: _Sheet, position: int) -> str:
    arrow = picture.arrows[position]
    path = _backward_path(sheet, arrow) if position in sheet.laid.backward else _forward_path(sheet, position, arrow)
    source, target = picture.boxes[arrow.source], picture.boxes[arrow.target]
    about = plural(arrow.edges, "edge") if arrow.edges > 1 else ""
    files = "\n".join(arrow.files) + ("\n…" if arrow.more else "") if arrow.files else "no file"
    title = "\n".join(filter(None, (f"{source.label} → {target.label}", about, files)))
    style = "arrow" if arrow.files and source.count and target.count else "arrow control"
    caption = ""
    if position not in sheet.laid.backward and _is_captioned(picture, arrow):
        left, top = _corner(sheet, arrow.source)
        x, y = left + sheet.widths[sheet.laid.layers[arrow.source]] + 12, top + sheet.heights[arrow.source] / 2 - 6
        caption = f'<text class="small ground" x="{x:.1f}" y="{y:.1f}">{_escaped(_caption(arrow))}</text>'
    return f'<g class="{style}"><title>{_escaped(title)}</title><path d="{path}" marker-end="url(#tip)"/>{caption}</g>'


def _is_captioned(picture: Picture, arrow: Arrow) -> bool:
    """Whether an arrow gets a caption: the picture is simple, and the arrow is the only one of its source."""
    if not arrow.files or not picture.summarised or len(picture.boxes) > _CAPTIONED_BOXES_MAX:
        return False
    return sum(other.source == arrow.source for other in picture.arrows) == 1


def _caption(arrow: Arrow) -> str:
    more = " …" if len(arrow.files) > 1 or arrow.more else ""
    return shortened(arrow.files[0], _CAPTION_MAX - len(more)) + more


def _forward_path(sheet: _Sheet, position: int, arrow: Arrow) -> str:
    """A smooth line through the bends, horizontal where it passes a layer."""
    left, top = _corner(sheet, arrow.source)
    x, y = left + sheet.widths[sheet.laid.layers[arrow.source]], top + sheet.heights[arrow.source] / 2
    path = f"M{x:.1f} {y:.1f}"
    for layer, middle in sheet.laid.bends[position]:
        height = middle + sheet.top
        path += _curve(x, y, sheet.lefts[layer], height)
        x, y = sheet.lefts[layer] + sheet.widths[layer], height
        path += f" H{x:.1f}"
    left, top = _corner(sheet, arrow.target)
    return path + _curve(x, y, left, top + sheet.heights[arrow.target] / 2)


def _curve(x: float, y: float, end_x: float, end_y: float) -> str:
    half = (x + end_x) / 2
    return f" C{half:.1f} {y:.1f} {half:.1f} {end_y:.1f} {end_x:.1f} {end_y:.1f}"


def _backward_path(sheet: _Sheet, arrow: Arrow) -> str:
    """A line below all boxes, for a backward arrow."""
    left, top = _corner(sheet, arrow.source)
    x, y = left + sheet.widths[sheet.laid.layers[arrow.source]] / 2, top + sheet.heights[arrow.source]
    target_left, target_top = _corner(sheet, arrow.target)
    end_x, end_y = (
        target_left + sheet.widths[sheet.laid.layers[arrow.target]] / 2,
        target_top + sheet.heights[arrow.target],
    )
    low = sheet.height - _MARGIN
    return f"M{x:.1f} {y:.1f} C{x:.1f} {low:.1f} {end_x:.1f} {low:.1f} {end_x:.1f} {end_y:.1f}"


# --- the head ---------------------------------------------------------------------------------------------------------


def _head(picture: Picture, colours: dict[str, Colour]) -> list[str]:
    found = [
        f'<text class="job" x="{_MARGIN}" y="30">{_escaped(shortened(picture.job, 60))}</text>',
        f'<text class="small" x="{_MARGIN}" y="46">{_escaped(_about(picture))}</text>',
    ]
    x, y = _MARGIN, _HEAD + 12
    for activity in _legend(picture):
        colour = colours[activity]
        label = shortened(activity, _LABEL_MAX)
        found.append(
            f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="11" height="11" rx="2" fill="{colour.fill}" stroke="{colour.line}"/>'
            f'<text class="note" x="{x + 17:.1f}" y="{y:.1f}">{_escaped(label)}</text>'
        )
        x += _legend_entry_width(label)
    return found


def _about(picture: Picture) -> str:
    counts = [plural(picture.packages, "package"), plural(picture.stages, "stage"), plural(picture.edges, "edge")]
    return " · ".join([*counts, "drawn by activity"] if picture.summarised else counts)


def _head_width(picture: Picture) -> float:
    job = cells(shortened(picture.job, 60)) * _CHARACTER * 16 / 12
    return max(job, cells(_about(picture)) * _SMALL_CHARACTER) + 2 * _MARGIN


def _legend(picture: Picture) -> list[str]:
    """The activities in the legend; none if the labels of the boxes show them already."""
    activities = list(dict.fromkeys(box.activity for box in picture.boxes))
    wanted = not picture.summarised and 1 < len(activities) <= _ACTIVITIES_SHOWN_MAX
    return activities if wanted else []


def _legend_width(picture: Picture) -> float:
    return sum(_legend_entry_width(shortened(activity, _LABEL_MAX)) for activity in _legend(picture))


def _legend_entry_width(label: str) -> float:
    return cells(label) * _SMALL_CHARACTER + 36


def _legend_height(picture: Picture) -> float:
    return 30.0 if _legend(picture) else 8.0


def _text(text: str, *, x: float, y: float, style: str) -> str:
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    return _clean(text)


def _clean(text: str) -> str:
    """The text without characters that XML forbids."""
    return "".join(
        c if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff") else "\ufffd"
        for c in text
    )
