"""Where each package stands: in the place its name tells when our own export wrote it, else by its depth in the DAG."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pilotage.model.definition import Line, Package, Stage
from pilotage.model.order import depths, followers

_POSITION = re.compile(r"Stage([1-9][0-9]{0,8})Line([1-9][0-9]{0,8})Package([1-9][0-9]{0,8})(?![0-9]).*", re.DOTALL)


Place = tuple[int, int, int]


def told_places(names: Sequence[str]) -> list[Place] | None:
    """The stage, line and number that each node's name tells, or None unless all do and no place is left out."""
    places: list[Place] = []
    for name in names:
        found = _POSITION.fullmatch(name)
        if found is None:
            return None
        places.append((int(found[1]), int(found[2]), int(found[3])))
    before = (0, 0, 0)
    for stage, line, number in sorted(places):
        follows = (
            (before[0] + 1, 1, 1) if stage != before[0] else (stage, before[1] + 1, 1) if line != before[1] else None
        )
        if (stage, line, number) != (follows or (stage, line, before[2] + 1)):
            return None
        before = (stage, line, number)
    return places or None


def sequences(places: Sequence[Place]) -> set[tuple[int, int]]:
    """The pairs of positions in the list that stand one after the other in a line."""
    at = {place: position for position, place in enumerate(places)}
    following = (((stage, line, number - 1), i) for (stage, line, number), i in at.items())
    return {(at[before], i) for before, i in following if before in at}


def stages_by_place(places: Sequence[Place], packages: Sequence[Package]) -> tuple[Stage, ...]:
    """The packages in the places that their nodes' names told."""
    stages: dict[int, dict[int, list[Package]]] = {}
    for (stage, line, _), package in sorted(zip(places, packages, strict=True), key=lambda entry: entry[0]):
        stages.setdefault(stage, {}).setdefault(line, []).append(package)
    return tuple(Stage(lines=tuple(Line(packages=tuple(line)) for line in lines.values())) for lines in stages.values())


def stages_by_depth(packages: Sequence[Package], edges: Iterable[tuple[int, int]]) -> tuple[Stage, ...]:
    """One stage per depth, one line per package, in the order of the nodes; what runs in the end has the last stage."""
    deep = depths(followers(len(packages), edges))
    last = max((d for d, p in zip(deep, packages, strict=True) if p.role == "work"), default=-1) + 1
    lines: dict[int, list[Line]] = {}
    for depth, package in zip(deep, packages, strict=True):
        place = last if package.role == "final" else depth
        lines.setdefault(place, []).append(Line(packages=(package,)))
    return tuple(Stage(lines=tuple(lines[depth])) for depth in sorted(lines))
