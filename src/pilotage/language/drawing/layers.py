"""Lays boxes out in layers from left to right: each stands to the right of what it waits for (after Sugiyama).

First every box gets a layer, the longest way to it. An arrow that crosses layers gets a bend in each, so that it goes
between the boxes and not through them. Then the order within the layers is improved until few arrows cross, and at
last everything is moved up and down towards its neighbours without overlapping.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pilotage.language.drawing.picture import Arrow, Picture
from pilotage.model.order import depths, followers

_SWEEPS = 12
_ROUNDS = 24


class Laid(msgspec.Struct, frozen=True):
    """Where everything stands: the layer of each box, the middle of each box, and the bends of each arrow."""

    layers: tuple[int, ...]
    middles: tuple[float, ...]
    bends: tuple[tuple[tuple[int, float], ...], ...]  # for each arrow: (layer, height), from its source on
    backward: frozenset[int]  # arrows against the order, which only a summary can have


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


def lay_out(picture: Picture, heights: Sequence[float], *, gap: float, bend_height: float) -> Laid:
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
    return Laid(
        layers=tuple(layers),
        middles=tuple(slot.middle - top for slot in boxes),
        bends=tuple(tuple((bend.layer, bend.middle - top) for bend in chain) for chain in bends),
        backward=backward,
    )


def _join(left: _Slot, right: _Slot) -> None:
    left.after.append(right)
    right.before.append(left)


def _layers(picture: Picture) -> tuple[list[int], frozenset[int]]:
    """The layer of each box, and the arrows that had to be left out to get them."""
    count = len(picture.boxes)
    backward = _backward(picture.arrows, count)
    forward = (arrow for position, arrow in enumerate(picture.arrows) if position not in backward)
    return depths(followers(count, ((arrow.source, arrow.target) for arrow in forward))), backward


def _backward(arrows: Sequence[Arrow], count: int) -> frozenset[int]:
    """The arrows that close a loop, found by a walk that notes which boxes it is inside of."""
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
    """Sort each layer by the average place of its neighbours, to and fro, and keep the best order seen."""
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
    """How many pairs of arrows cross, counted as inversions layer by layer."""
    total = 0
    for column in columns:
        ends = [order for slot in column for order in sorted(other.order for other in slot.after)]
        total += _inversions(ends)
    return total


def _inversions(values: list[int]) -> int:
    """How many pairs stand in the wrong order, with a Fenwick tree."""
    tree = [0] * (max(values, default=0) + 2)
    found = 0
    for seen, value in enumerate(values):
        index, smaller = value + 1, 0
        while index:
            smaller += tree[index]
            index &= index - 1
        found += seen - smaller
        index = value + 1
        while index < len(tree):
            tree[index] += 1
            index += index & -index
    return found


def _place(columns: list[list[_Slot]], gap: float) -> None:
    """Stack each layer, then move everything towards the middle of its neighbours, as far as there is room."""
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
    """Give each slot its wish; where wishes collide, a run of slots moves to the average of what its members want."""
    runs: list[tuple[float, list[_Slot], list[float]]] = []  # the middle of the first, the slots, wishes for the first
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
    """From the middle of the first to the middle of the last."""
    inner = sum(slot.height + gap for slot in members[:-1])
    return inner - members[0].height / 2 + members[-1].height / 2 if len(members) > 1 else 0.0
