"""The content of a drawing: boxes and arrows, one box per package of a small job, one per activity of a large one."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.edge_files import EdgeFiles, blocks_after, inputs_from
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import Indices

GROUPS_MAX = 60
ACTIVITIES_MAX = 100
_SAMPLES = 4
_FILES_KEPT_MAX = 12


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A package, the packages of one activity, or a stage whose packages are not known yet."""

    label: str
    stage: int  # from 1; 0 if its packages belong to several stages
    stage_name: str
    activity: str
    count: int  # number of packages; 0 while it is unknown
    paths: tuple[str, ...]  # of its first and last package
    inner: int = 0  # edges between its own packages
    awaits: tuple[str, ...] = ()  # the patterns that a late stage waits for


class Arrow(msgspec.Struct, frozen=True, kw_only=True):
    """All edges from the packages of one box to those of another."""

    source: int
    target: int
    edges: int
    files: tuple[str, ...]  # names and patterns, or their templates; perhaps not all
    more: bool = False  # whether some files are not listed


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """All boxes and arrows, and the counts of the job."""

    job: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    packages: int
    edges: int
    stages: int
    summarised: bool


def picture_of(expansion: Expansion, *, packages_max: int, edges_max: int) -> Picture:
    """A box per package, or per activity if the job has more packages or edges than allowed."""
    summarised = expansion.count > packages_max or expansion.graph.edge_count > edges_max
    boxes, groups = _groups(expansion) if summarised else _packages(expansion)
    arrows = list(_arrows(expansion, groups, len(boxes), boxes))
    arrows += _late_arrows(expansion, groups, boxes)
    boxes, arrows = _by_stage(boxes, arrows)
    return Picture(
        job=expansion.definition.job,
        boxes=tuple(boxes),
        arrows=tuple(arrows),
        packages=expansion.count,
        edges=expansion.graph.edge_count,
        stages=len(expansion.definition.stages),
        summarised=summarised,
    )


def _late_arrows(expansion: Expansion, groups: Indices, boxes: list[Box]) -> list[Arrow]:
    """Add a box for each late stage without packages yet; return the arrows into and out of these boxes."""
    places = {late.stage: len(boxes) + i for i, late in enumerate(expansion.late)}
    files: dict[tuple[int, int], dict[str, None]] = {}
    for late in expansion.late:
        place = places[late.stage]
        box = Box(
            label=late.name,
            stage=late.stage,
            stage_name=late.name,
            activity=late.name,
            count=0,
            paths=(),
            awaits=late.patterns,
        )
        boxes.append(box)
        sources = {int(groups[package]) for package in late.packages}
        sources |= {places[stage] for stage in late.stages if stage in places}
        for source in sorted(sources):
            files.setdefault((source, place), {}).update(dict.fromkeys(late.patterns))
        for block in blocks_after(expansion, late.stage):
            taken = dict.fromkeys(inputs_from(expansion, block, late.stage))
            for target in np.unique(groups[block.package_array()]).tolist():
                files.setdefault((place, target), {}).update(taken)
    return [Arrow(source=s, target=t, edges=0, files=tuple(found)) for (s, t), found in files.items()]


def _by_stage(boxes: list[Box], arrows: list[Arrow]) -> tuple[list[Box], list[Arrow]]:
    """The boxes in the order of their stages, and their arrows with the new positions."""
    order = sorted(range(len(boxes)), key=lambda i: boxes[i].stage)
    new = {old: place for place, old in enumerate(order)}
    moved = [msgspec.structs.replace(a, source=new[a.source], target=new[a.target]) for a in arrows]
    return [boxes[i] for i in order], moved


def _packages(expansion: Expansion) -> tuple[list[Box], Indices]:
    boxes = []
    for package in range(expansion.count):
        block = expansion.block(package)
        box = Box(
            label=block.package_name(block.position(package)),
            stage=block.stage + 1,
            stage_name=expansion.stage_names[block.stage],
            activity=_label(block, expansion),
            count=1,
            paths=(expansion.path(package),),
        )
        boxes.append(box)
    return boxes, np.arange(expansion.count, dtype=np.int32)


def _label(block: Block, expansion: Expansion) -> str:
    """The label of packages: the name of their stage if it has one, unless they say themselves what they run."""
    package, stage = block.declared, expansion.definition.stages[block.stage]
    described = package.activity or any(binary.software for binary in package.binaries)
    return stage.name if stage.name and not described else block.activity


def _groups(expansion: Expansion) -> tuple[list[Box], Indices]:
    """A box per activity of a stage; if these are too many, per activity of the whole job."""
    filled = [block for block in expansion.blocks if block.count]
    by_stage = {(block.stage + 1, block.activity) for block in filled}
    apart = len(by_stage) <= GROUPS_MAX
    members: dict[tuple[int, str], list[Block]] = {}
    for block in filled:
        members.setdefault((block.stage + 1 if apart else 0, block.activity), []).append(block)
    if len(members) > ACTIVITIES_MAX:
        members = _largest(members)
    groups = np.zeros(expansion.count, np.int32)
    alone = Counter(stage for stage, _ in members)
    boxes = []
    for position, ((stage, activity), blocks) in enumerate(members.items()):
        first, last = expansion.count, 0
        for block in blocks:
            packages = block.package_array()
            groups[packages] = position
            first, last = min(first, int(packages[0])), max(last, int(packages[-1]))
        count = sum(block.count for block in blocks)
        called = _label(blocks[0], expansion) if stage and alone[stage] == 1 else activity
        box = Box(
            label=called,
            stage=stage,
            stage_name=expansion.stage_names[stage - 1] if stage else "",
            activity=called,
            count=count,
            paths=(expansion.path(first), expansion.path(last)) if count > 1 else (expansion.path(first),),
        )
        boxes.append(box)
    return boxes, groups


def _largest(members: dict[tuple[int, str], list[Block]]) -> dict[tuple[int, str], list[Block]]:
    """The largest activities, and one group for all others."""
    sizes = {key: sum(block.count for block in blocks) for key, blocks in members.items()}
    kept = set(sorted(sizes, key=lambda key: -sizes[key])[: ACTIVITIES_MAX - 1])
    found = {key: blocks for key, blocks in members.items() if key in kept}
    others = [block for key, blocks in members.items() if key not in kept for block in blocks]
    found[0, f"{len(members) - len(kept):,} other activities"] = others
    return found


def _arrows(expansion: Expansion, groups: Indices, count: int, boxes: list[Box]) -> Iterator[Arrow]:
    """The edges between different boxes; edges inside a box are counted in the box."""
    found: dict[int, tuple[int, list[tuple[int, int]]]] = {}
    for segment in expansion.graph.segments:
        rows = segment.predecessors
        targets = np.repeat(np.arange(len(rows.indptr) - 1, dtype=np.int32), np.diff(rows.indptr)) + rows.first
        keys = groups[rows.others].astype(np.int64) * count + groups[targets]
        order = np.argsort(keys, kind="stable")
        distinct, starts = np.unique(keys[order], return_index=True)
        ends = np.append(starts, len(keys))[1:]
        for key, start, end in zip(distinct.tolist(), starts.tolist(), ends.tolist(), strict=True):
            picked = order[np.unique(np.linspace(start, end - 1, min(_SAMPLES, end - start)).astype(np.int64))]
            samples = [(int(rows.others[i]), int(targets[i])) for i in picked.tolist()]
            edges, known = found.get(key, (0, []))
            found[key] = (edges + end - start, (known + samples)[:_SAMPLES])
    for key, (edges, samples) in sorted(found.items(), key=lambda item: (item[0] % count, item[0] // count)):
        source, target = divmod(key, count)
        if source == target:
            boxes[source] = msgspec.structs.replace(boxes[source], inner=edges)
            continue
        files, for_all = _sampled_files(expansion, samples)
        more = edges > len(samples) and bool(files) and not for_all
        yield Arrow(source=source, target=target, edges=edges, files=files[:_FILES_KEPT_MAX], more=more)


def _sampled_files(expansion: Expansion, samples: list[tuple[int, int]]) -> tuple[tuple[str, ...], bool]:
    """The files or templates of some edges, and whether other edges may have further ones."""
    names: dict[str, None] = {}
    for_all = False
    files = EdgeFiles(expansion)
    for maker, consumer in samples:
        many = len(samples) > 1 and expansion.block(maker).count > 1
        for carried in files.carried(maker, consumer):
            written = many and not carried.is_open and bool(carried.declared.name)
            names.setdefault(carried.declared.name if written else carried.name)
            for_all = for_all or written
    return tuple(names), for_all


# Colours of activities: light fill and dark border, so that black text is easy to read on each.
#
# The hues can be told apart with the common kinds of colour blindness (after Okabe and Ito); a job with more activities
# than colours repeats them.


class Colour(msgspec.Struct, frozen=True):
    """The fill and the border of a box."""

    fill: str
    line: str


COLOURS = (
    Colour(fill="#d6eaf8", line="#0072b2"),
    Colour(fill="#fdebd0", line="#b96a00"),
    Colour(fill="#d5f5e3", line="#00795a"),
    Colour(fill="#f9dfee", line="#a8437c"),
    Colour(fill="#fcf6c8", line="#8a7a00"),
    Colour(fill="#e4e0f7", line="#5b4bb0"),
    Colour(fill="#fde0d5", line="#b8440e"),
    Colour(fill="#d8f3f5", line="#1b7f8c"),
    Colour(fill="#e8e8e8", line="#5c5c5c"),
)


def colour_of_activities(activities: Iterable[str]) -> dict[str, Colour]:
    """A colour for each activity, in the order in which they appear."""
    distinct = dict.fromkeys(activities)
    return {activity: COLOURS[i % len(COLOURS)] for i, activity in enumerate(distinct)}


# The width of text in terminal cells: wide characters take two, combining ones none.


def cells(text: str) -> int:
    """The width of a text in terminal cells."""
    return len(text) if text.isascii() else sum(map(cell, text))


def cell(character: str) -> int:
    """The width of one character in cells."""
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def clipped(text: str, cells_max: int) -> str:
    """The text, or its beginning and an ellipsis if it is too wide."""
    text = "".join(character if character.isprintable() else "\ufffd" for character in text)
    if cells(text) <= cells_max:
        return text
    kept, used = [], 1
    for character in text:
        used += cell(character)
        if used > cells_max:
            break
        kept.append(character)
    return "".join(kept) + "…" if cells_max > 0 else ""


def shortened(text: str, cells_max: int) -> str:
    """The text, or its beginning and end if it is too wide, since names often differ at the end."""
    text = "".join(character if character.isprintable() else "\ufffd" for character in text)
    if cells(text) <= cells_max or cells_max < 8:
        return clipped(text, cells_max)
    room = (cells_max - 1) // 2
    ending = ""
    for character in reversed(text):
        if cells(ending) + cell(character) > room:
            break
        ending = character + ending
    return clipped(text, cells_max - cells(ending)) + ending


def padded(text: str, width: int) -> str:
    """The text, padded with spaces to a width in cells."""
    return text + " " * (width - cells(text))
