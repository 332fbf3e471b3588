"""Addresses of packages: the number in the job and the path `job/stage/line/package`, computed from each other.

The lines of a stage repeat: for each item of the stage, each line template gives as many lines as its own iteration has
items, each with the template's packages. Nothing is stored per package.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Sequence

import msgspec

_PATH = re.compile(r"(?:(.+)/)?([0-9]{3,9})/([0-9]{3,9})/([0-9]{3,9})")


class PackageId(msgspec.Struct, frozen=True, order=True):
    """The address of a package within its job; each part counts from 1."""

    stage: int
    line: int
    number: int

    def path(self, job: str) -> str:
        """As in the DØ job definition: `reco001/001/002/001`."""
        return f"{job}/{self.stage:03}/{self.line:03}/{self.number:03}"

    @property
    def dotted(self) -> str:
        """As in URLs and file names: `1.2.1`."""
        return f"{self.stage}.{self.line}.{self.number}"


def parse_path(path: str) -> PackageId | None:
    """The address in a path, or None."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    place = PackageId(int(found[2]), int(found[3]), int(found[4]))
    # Each package has one path: `0001` is not another way to write `001`.
    return place if place.path("") == f"/{found[2]}/{found[3]}/{found[4]}" else None


class TemplateLayout(msgspec.Struct, frozen=True):
    """One line template of a stage: lines per item of the stage, and packages per line."""

    lines: int
    packages: int


class StageLayout:
    """The packages of one stage, numbered from `first` on."""

    __slots__ = (
        "_alike",
        "_line_starts",
        "_package_starts",
        "_prefix",
        "count",
        "first",
        "items",
        "line_period",
        "package_period",
        "stage",
        "templates",
    )

    def __init__(self, *, stage: int, first: int, items: int, templates: Sequence[TemplateLayout]) -> None:
        """Lay out `items` repetitions of the line templates; `stage` counts from 1."""
        self.stage = stage
        self._prefix = f"{stage}."  # of each address as text
        self.first = first
        self.items = items
        self.templates = tuple(templates)
        self._line_starts = _starts(template.lines for template in self.templates)
        self._package_starts = _starts(template.lines * template.packages for template in self.templates)
        self.line_period = self._line_starts.pop()
        self.package_period = self._package_starts.pop()
        self.count = items * self.package_period
        self._alike = (
            self.templates[0].packages if len(self.templates) == 1 else 0
        )  # packages per line, if all lines are equal

    @property
    def lines(self) -> int:
        """How many lines the stage has."""
        return self.items * self.line_period

    def package(self, *, template: int, item: int, line: int, number: int) -> int:
        """The number of a package in the job, from its template, the stage's item, the line's item and its position."""
        offset = line * self.templates[template].packages + number
        return self.first + item * self.package_period + self._package_starts[template] + offset

    def locate(self, package: int) -> tuple[int, int, int, int]:
        """The template, the stage's item, the line's item and the position of a package."""
        item, rest = divmod(package - self.first, self.package_period)
        template = bisect.bisect_right(self._package_starts, rest) - 1
        line, number = divmod(rest - self._package_starts[template], self.templates[template].packages)
        return template, item, line, number

    def id(self, package: int) -> PackageId:
        """The address of a package."""
        return PackageId(*self.place(package))

    def place(self, package: int) -> tuple[int, int, int]:
        """The address of a package as plain numbers: stage, line and number, each from 1."""
        alike = self._alike
        if alike == 1:
            return self.stage, package - self.first + 1, 1
        if alike:
            line, number = divmod(package - self.first, alike)
            return self.stage, line + 1, number + 1
        item, rest = divmod(package - self.first, self.package_period)
        template = bisect.bisect_right(self._package_starts, rest) - 1
        line, number = divmod(rest - self._package_starts[template], self.templates[template].packages)
        return self.stage, item * self.line_period + self._line_starts[template] + line + 1, number + 1

    def named(self, package: int) -> tuple[str, tuple[int, int, int]]:
        """The address of a package as text, and as plain numbers."""
        if self._alike == 1:
            line = package - self.first + 1
            return f"{self._prefix}{line}.1", (self.stage, line, 1)
        place = self.place(package)
        return f"{self._prefix}{place[1]}.{place[2]}", place

    def number(self, place: PackageId) -> int | None:
        """The number in the job of the package at an address, or None if the stage has no such package."""
        return self.number_at(line=place.line, number=place.number)

    def number_at(self, *, line: int, number: int) -> int | None:
        """As `number`, for an address in this stage as plain numbers."""
        item, rest = divmod(line - 1, self.line_period) if self.line_period else (self.items, 0)
        if line < 1 or item >= self.items:
            return None
        template = bisect.bisect_right(self._line_starts, rest) - 1
        packages = self.templates[template].packages
        if not 1 <= number <= packages:
            return None
        offset = (rest - self._line_starts[template]) * packages + number - 1
        return self.first + item * self.package_period + self._package_starts[template] + offset


def _starts(counts: Iterable[int]) -> list[int]:
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    return starts
