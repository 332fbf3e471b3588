"""Items: what an iteration yields, as columns over numbered items with tags, nothing copied that can be computed.

A tag is a row of integers, written `0_1`. One list has the tags 0, 1, 2 …; `cross` joins tags, `flat-cross` counts
anew, `dot` keeps those of its first operand, `match` those of the last: it pairs an item with every item on its right
whose tag begins with its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from pilotage.language.expansion.lists import ListFault
from pilotage.language.reading.iterations import ITEMS_MAX, range_of, range_width

Indices = NDArray[np.int32]
Tags = NDArray[np.int32]


class RangeTexts(Sequence[str]):
    """The integers of a range as texts, made when asked for."""

    def __init__(self, text: str) -> None:
        """Take a range such as `1..1000` or `001..100`."""
        self._range = range_of(text)
        self._width = range_width(text)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._range)

    def __iter__(self) -> Iterator[str]:
        """Each in turn."""
        return map(self._text, self._range) if self._width else map(str, self._range)

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[str]: ...
    def __getitem__(self, position: int | slice) -> str | Sequence[str]:
        """One of them, or some."""
        if isinstance(position, slice):
            return [self._text(value) for value in self._range[position]]
        return self._text(self._range[position])

    def _text(self, value: int) -> str:
        return f"{value:0{self._width + (value < 0)}}" if self._width else str(value)


class Groups(Sequence[tuple[str, ...]]):
    """The values of a list, so many at a time."""

    def __init__(self, values: Sequence[str], size: int) -> None:
        """Cut `values` into groups of `size`; the last may be shorter."""
        self.values = values
        self.size = size

    def __len__(self) -> int:
        """How many groups there are."""
        return (len(self.values) + self.size - 1) // self.size

    def sizes(self) -> Indices:
        """How many values each group has."""
        sizes = np.full(len(self), self.size if len(self) > 1 else len(self.values), np.int64)
        if len(self) > 1:
            sizes[-1] = len(self.values) - (len(self) - 1) * self.size
        return sizes.astype(np.int32)

    @overload
    def __getitem__(self, position: int) -> tuple[str, ...]: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[tuple[str, ...]]: ...
    def __getitem__(self, position: int | slice) -> tuple[str, ...] | Sequence[tuple[str, ...]]:
        """One group, or some."""
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        if not 0 <= position < len(self):
            raise IndexError(position)
        return tuple(self.values[position * self.size : (position + 1) * self.size])


class Column:
    """The values of one variable: a list, and for each item which of its elements it takes."""

    __slots__ = ("take", "values")

    def __init__(self, values: Sequence[str] | Groups, take: Indices | None = None) -> None:
        """Without `take`, item i has element i."""
        self.values = values
        self.take = take

    @property
    def is_list(self) -> bool:
        """Whether each value is itself a list."""
        return isinstance(self.values, Groups)

    def value(self, item: int) -> str | tuple[str, ...]:
        """The value of one item."""
        return self.values[item if self.take is None else int(self.take[item])]

    def texts(self) -> list[str]:
        """The values of all items; not for columns of lists."""
        values: list[str] = list(self.values)  # type: ignore[arg-type] # columns of lists are never asked
        return values if self.take is None else list(map(values.__getitem__, self.take.tolist()))

    def taken(self, take: Indices) -> Column:
        """The column for other items, each given by the number of an item of this one."""
        return Column(self.values, take if self.take is None else self.take[take])


class Items:
    """Numbered items with their variables and tags."""

    __slots__ = ("_tags", "columns", "count")

    def __init__(self, count: int, columns: Mapping[str, Column], tags: Tags | None = None) -> None:
        """Without `tags` item i has the tag i."""
        self.count = count
        self.columns = dict(columns)
        self._tags = tags

    @property
    def own_tags(self) -> Tags | None:
        """The tags as they are kept: None where item i has the tag i."""
        return self._tags

    @property
    def tags(self) -> Tags:
        """The tags, a row each."""
        return np.arange(self.count, dtype=np.int32)[:, None] if self._tags is None else self._tags

    def tag(self, item: int) -> str:
        """The tag of one item as text."""
        if self._tags is None:
            return str(item)
        return "_".join(map(str, self._tags[item].tolist())) if self._tags.shape[1] else ""

    def values(self, item: int) -> dict[str, str | tuple[str, ...]]:
        """The variables of one item."""
        return {name: column.value(item) for name, column in self.columns.items()}

    def taken(self, take: Indices) -> dict[str, Column]:
        """The columns for other items, each given by the number of an item of these."""
        return {name: column.taken(take) for name, column in self.columns.items()}


ONE = Items(1, {}, np.zeros((1, 0), np.int32))  # what stands without `each` is there once, without a tag


def dot(operands: Sequence[tuple[str, Items]]) -> Items:
    """Pair by position; all must be equally long. Each operand comes with what it is called in a fault."""
    first_name, first = operands[0]
    for name, other in operands[1:]:
        if other.count != first.count:
            message = f"dot pairs lists of one length: {first_name} has {first.count}, {name} has {other.count}"
            raise ListFault("unequal-lengths", message, "use cross for every pair, or match to pair by tags")
    return Items(first.count, _columns([items for _, items in operands]), first.own_tags)


def cross(operands: Sequence[Items]) -> Items:
    """Every combination, the last operand running fastest; tags are joined."""
    total = 1
    for items in operands:
        total *= items.count
    if total > ITEMS_MAX:
        raise ListFault("too-many-items", f"the combination has {total:,} items; at most {ITEMS_MAX:,} are possible")
    columns: dict[str, Column] = {}
    tags: list[Tags] = []
    inner = total
    for items in operands:
        inner = inner // items.count if items.count else 0
        outer = total // (inner * items.count) if inner and items.count else 0
        take = np.tile(np.repeat(np.arange(items.count, dtype=np.int32), inner), outer)
        _add(columns, items.taken(take))
        tags.append(items.tags[take])
    return Items(total, columns, np.hstack(tags))


def flat_cross(operands: Sequence[Items]) -> Items:
    """Every combination, counted anew."""
    crossed = cross(operands)
    return Items(crossed.count, crossed.columns)


def match(operands: Sequence[Items]) -> Items:
    """Pair each item with every item of the next operand whose tag begins with its own."""
    left = operands[0]
    for right in operands[1:]:
        depth = left.tags.shape[1]
        begun: dict[tuple[int, ...], list[int]] = {}
        if right.tags.shape[1] >= depth:
            for position, tag in enumerate(map(tuple, right.tags[:, :depth].tolist())):
                begun.setdefault(tag, []).append(position)
        pairs = [(i, j) for i, tag in enumerate(map(tuple, left.tags.tolist())) for j in begun.get(tag, ())]
        if len(pairs) > ITEMS_MAX:
            raise ListFault("too-many-items", f"match gives {len(pairs):,} items; at most {ITEMS_MAX:,} are possible")
        take = np.array(pairs, dtype=np.int32).reshape(-1, 2)
        columns = left.taken(take[:, 0])
        _add(columns, right.taken(take[:, 1]))
        left = Items(len(pairs), columns, right.tags[take[:, 1]])
    return left


def _columns(operands: Sequence[Items]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for items in operands:
        _add(columns, items.columns)
    return columns


def _add(columns: dict[str, Column], more: Mapping[str, Column]) -> None:
    for name, column in more.items():
        if name in columns:
            raise ListFault("duplicate-variable", f"the variable {name!r} is given twice in one iteration")
        columns[name] = column
