"""The files that a package reads, once the packages before it have made theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import files_read
from pilotage.language.expansion.packages import ConcretePackage, write_package
from pilotage.language.expansion.software import Choose
from pilotage.language.text.patterns import matches
from pilotage.model.events.payloads import OutputFile
from pilotage.model.jobs.definition import InputFile
from pilotage.model.jobs.graph import EdgeKind

ManifestOf = Callable[[int], "tuple[OutputFile, ...] | None"]
"""The granted manifest of a package by its number; None if it has none."""

_FILES = int(EdgeKind.FILE | EdgeKind.PATTERN)
_AWAITED = int(EdgeKind.AWAITED)


def concrete(
    expansion: Expansion,
    number: int,
    *,
    granted: Collection[int],
    left_out: Collection[str] = (),
    manifest_of: ManifestOf,
    choose: Choose | None = None,
) -> ConcretePackage:
    """A package filled in from granted outputs: patterns become the matching files."""
    block = expansion.block(number)

    def matching(pattern: str, binary: int) -> tuple[str, ...]:
        own = block.made(block.position(number), before_binary=binary) if binary else []
        names = [name for name, is_open in own if not is_open and matches(pattern, name)]
        for maker in granted:
            names += [name for name in made_by(expansion, maker, manifest_of) if matches(pattern, name)]
        return tuple(dict.fromkeys(names)) or files_read(expansion.resolved.lists, pattern)

    definition = expansion.definition
    return write_package(block, number, definition=definition, inputs=matching, left_out=left_out, choose=choose)


def made_by(expansion: Expansion, maker: int, manifest_of: ManifestOf) -> list[str]:
    """The output names of a granted package; for one done before, the declared ones."""
    manifest = manifest_of(maker) or ()
    names = [file.name for file in manifest]
    if not names:
        block = expansion.block(maker)
        if block.package.done or block.package.noop:
            names = [name for name, is_open in block.made(block.position(maker)) if not is_open]
    return names


def left_out_names(
    expansion: Expansion, number: int, granted: Collection[int], running: Collection[int] = ()
) -> Collection[str]:
    """The output names of dropped packages; nearly always none. `running` packages still make theirs."""
    segments = expansion.graph.segments
    total = 0
    for segment in segments:
        start, end = segment.predecessors.span(number)
        total += end - start
    if total == len(granted):
        return ()
    known = {*granted, *running}
    names: set[str] = set()
    for segment in segments:
        start, end = segment.predecessors.span(number)
        for position in range(start, end):
            maker, kind = int(segment.predecessors.others[position]), int(segment.kinds[position])
            if maker not in known and kind & _FILES:
                block = expansion.block(maker)
                names.update(name for name, is_open in block.made(block.position(maker)) if not is_open)
    return names


def early_makers(expansion: Expansion, number: int) -> list[int]:
    """The packages beside which one may start, reading their outputs while they grow; nearly always none."""
    return _early_ends(expansion, number, backward=True)


def early_readers(expansion: Expansion, number: int) -> list[int]:
    """The packages that may start beside one and read its outputs while they grow; nearly always none."""
    return _early_ends(expansion, number, backward=False)


def _early_ends(expansion: Expansion, number: int, *, backward: bool) -> list[int]:
    found: list[int] = []
    for segment in expansion.graph.segments:
        if segment.common & _AWAITED:
            continue
        for other in (segment.predecessors if backward else segment.successors).few(number):
            consumer, maker = (number, other) if backward else (other, number)
            rows = segment.predecessors
            start, end = rows.span(consumer)
            if not int(segment.kinds[start + int(np.searchsorted(rows.others[start:end], maker))]) & _AWAITED:
                found.append(int(other))
    return found


def staged_names(package: ConcretePackage) -> Iterator[str]:
    """The names of files to be staged from the job's tree: not those that come from stores, nor those an earlier binary makes."""
    made: set[str] = set()
    for binary in package.binaries:
        for given in binary.inputs:
            if given.declared.acquisition != "self" and not is_brought(given.declared):
                yield from (name for name in given.names if name not in made)
        brought = {name for given in binary.inputs if is_brought(given.declared) for name in given.names}
        if binary.stdin and binary.stdin not in made and binary.stdin not in brought:
            yield binary.stdin
        made.update(output.name for output in binary.outputs)
        made.update(stream for stream in (binary.stdout, binary.stderr) if stream)


def is_brought(given: InputFile) -> bool:
    """Whether an input comes from a store, through the cache of the site, or is at its own place, and not in the job's tree."""
    return bool(given.locator) and (given.brought or given.present)


def open_patterns(package: ConcretePackage, block: Block) -> tuple[str, ...]:
    """The output patterns of earlier binaries of a package: matching files are not staged."""
    earlier = package.binaries[:-1]
    return tuple(o.name for binary in earlier for o in binary.outputs if block.makes_pattern(o.declared))
