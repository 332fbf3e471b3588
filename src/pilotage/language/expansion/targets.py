"""Targets of a run: packages that no target needs are left out, but keep their numbers.

The targets are stored with the resolved lists, so that a later expansion leaves out the same packages. Needs of late
stages are not known exactly: if a late stage may be needed, everything that it may read is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pilotage.language.expansion.blocks import Block, BlockColumns
from pilotage.language.expansion.expansion import Expansion, LateStage
from pilotage.language.expansion.lists import targets_of
from pilotage.language.expansion.producers import general_pattern, late_outputs
from pilotage.language.parsing.iterations import sources
from pilotage.language.text.names import tidy_name, tidy_names
from pilotage.language.text.patterns import can_both_match, is_pattern, literal, matches, matching
from pilotage.language.text.templates import Template, render_column
from pilotage.language.text.tree import Report
from pilotage.model.errors import did_you_mean

_NAMES_MAX = 2000


def restrict(expansion: Expansion, report: Report, *, earlier: Expansion | None) -> Expansion | None:
    """Leave out all packages that no target needs; None, with a fault in the report, if nothing makes a target.

    In an expansion that has grown since `earlier`, older packages stay as they were. A target that nothing makes any more
    is skipped then; `unmade_targets` reports it at the end.
    """
    targets = targets_of(expansion.resolved.lists)
    if not targets:
        return expansion
    needs = _Needed(expansion)
    for target in targets:
        if not needs.take(target) and earlier is None:
            hint = did_you_mean(target, _outputs(expansion))
            message = f"nothing in this document makes {target!r}"
            report.error("unknown-target", message, hint=hint.replace("known here", "it makes"))
            return None
    if earlier is not None:
        # Late stages that are not needed were removed before, so the remaining ones only wait for their lists.
        for late in expansion.late:
            needs.take_late(late.stage)
    needs.take_upstream()
    unneeded = ~needs.packages
    if earlier is not None:
        unneeded[: earlier.count] = False
        unneeded[sorted(earlier.left_out)] = True
    late_needed = {late.stage for late in expansion.late} if earlier is not None else needs.stages
    return expansion.restricted(left_out=frozenset(np.flatnonzero(unneeded).tolist()), late=late_needed)


class UnmadeTarget(NamedTuple):
    """A target, a name or a pattern, that the job has not made, and its possible producers."""

    target: str
    packages: tuple[int, ...]  # that make it, or have a matching output pattern
    stages: tuple[int, ...]  # late stages, counted from 1, that could have made it


def unmade_targets(expansion: Expansion, made: Callable[[int], Collection[str]]) -> Iterator[UnmadeTarget]:
    """The targets that were not made; `made` returns the names that a package made."""
    needs = _Needed(expansion)
    for target in targets_of(expansion.resolved.lists):
        packages, _ = needs.makers_of(target)
        pattern = target if is_pattern(target) else literal(target)
        if not any(expansion.block(each).package.done or _is_among(pattern, made(each)) for each in packages):
            late = (each.stage for each in (*expansion.laid_out, *expansion.late))
            stages = tuple(sorted(stage for stage in late if _may_make(expansion, stage, pattern)))
            yield UnmadeTarget(target, tuple(packages), stages)


def stages_left_out(expansion: Expansion) -> frozenset[int]:
    """The stages, counted from 1, that no target needs."""
    if not targets_of(expansion.resolved.lists):
        return frozenset()
    left_out = expansion.left_out
    wanted = {late.stage for late in expansion.late}
    wanted |= {stage + 1 for stage, layout in expansion.layouts.items() if not layout.count}  # nothing is left out
    wanted |= {block.stage + 1 for block in expansion.blocks if any(each not in left_out for each in block.packages())}
    return frozenset(range(1, len(expansion.stage_names) + 1)) - wanted


def _is_among(pattern: str, names: Collection[str]) -> bool:
    return any(matches(pattern, name) for name in names)


def _may_make(expansion: Expansion, stage: int, pattern: str) -> bool:
    return any(can_both_match(made, pattern) for made in late_outputs(expansion.definition, stage - 1))


class _Needed:
    """The packages and late stages that the targets need, found by following the edges upstream."""

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion
        self._late = {late.stage: late for late in expansion.late}
        self._position = {id(block): position for position, block in enumerate(expansion.blocks)}
        self.packages: NDArray[np.bool_] = np.zeros(expansion.count, np.bool_)
        self.stages: set[int] = set()  # late ones, counted from 1
        self._left: list[int] = []  # packages whose producers are not added yet

    def take(self, target: str) -> bool:
        """Add the producers of a target; return whether there are any, or may be."""
        found, by_name = self.makers_of(target)
        self._take(found)
        if by_name:
            return True
        pattern = target if is_pattern(target) else literal(target)
        stages = [stage for stage in self._late if _may_make(self._expansion, stage, pattern)]
        for stage in stages:
            self.take_late(stage)
        return bool(found or stages)

    def makers_of(self, target: str) -> tuple[list[int], bool]:
        """The packages that make a target, or may; and whether one of them makes it by name."""
        pattern = target if is_pattern(target) else literal(target)
        by_name = [*self._makers(pattern, open_names=False)]
        if by_name and not is_pattern(target):  # a name has only one producer
            return by_name, True
        return [*by_name, *self._makers(pattern, open_names=True)], False

    def take_upstream(self) -> None:
        """Add all packages upstream of those added."""
        expansion = self._expansion
        while self._left:
            number = self._left.pop()
            self._take(expansion.graph.predecessors(number).tolist())
            for stage in expansion.late_waits.get(self._position[id(expansion.block(number))], ()):
                self.take_late(stage)

    def take_late(self, stage: int) -> None:
        """Add a late stage, with the producers of its items and of everything that its packages may read."""
        late = self._late.get(stage)
        if late is None or stage in self.stages:
            return
        self.stages.add(stage)
        self._take(late.packages)
        for other in late.stages:
            self.take_late(other)
        patterns, names = self._may_need(late)
        for pattern in patterns:
            self._take(self._makers(pattern, open_names=False))
            self._take(self._makers(pattern, open_names=True))
            for other in self._late.keys() - self.stages:
                made = late_outputs(self._expansion.definition, other - 1)
                if any(can_both_match(each, pattern) for each in made):
                    self.take_late(other)
        if names:
            called = [self._expansion.name(number) for number in range(self._expansion.count)]
            for pattern in names:
                self._take(matching(pattern, called))

    def _take(self, numbers: Sequence[int] | Iterator[int]) -> None:
        for number in numbers:
            if not self.packages[number]:
                self.packages[number] = True
                self._left.append(number)

    def _makers(self, pattern: str, *, open_names: bool) -> Iterator[int]:
        """The packages with output names that match a pattern; or those with output patterns that may match."""
        for block in self._expansion.blocks:
            for _, output in block.outputs():
                template = block.output_template(output)
                if block.makes_pattern(output) != open_names or not can_both_match(general_pattern(template), pattern):
                    continue
                names = _names(block, template, open_names=open_names)
                numbers = block.packages()
                found = (
                    (i for i, name in enumerate(names) if can_both_match(name, pattern))
                    if open_names
                    else matching(pattern, names)
                )
                yield from (numbers[i] for i in found)

    def _may_need(self, late: LateStage) -> tuple[list[str], list[str]]:
        """Patterns of the files that a late stage may read, and of the names of packages that it waits for."""
        definition = self._expansion.definition
        stage = definition.stages[late.stage - 1]
        patterns = list(late.patterns)
        lists: dict[str, str] = {}  # variable → the pattern of its files
        for source in (s for each in (stage.each, *(line.each for line in stage.lines)) for s in sources(each)):
            if source.files and not source.job:
                lists[source.variable] = source.files
                patterns.append(source.files)
        names: list[str] = []
        for block in self._expansion.late_blocks:
            if block.stage == late.stage - 1:
                patterns += [_general(block.bound(given.name), lists) for _, given in block.inputs()]
                names += [general_pattern(block.bound(each)) for each in block.package.after]
        return list(dict.fromkeys(map(tidy_name, patterns))), names


def _general(template: Template, lists: dict[str, str]) -> str:
    """A pattern that all names of a template match; a placeholder for a file is replaced by the pattern of its list."""
    if len(template.parts) == 1 and template.placeholders:
        gap = template.placeholders[0]
        if not gap.attribute and gap.name in lists:
            return lists[gap.name]
    return general_pattern(template)


def _names(block: Block, template: Template, *, open_names: bool) -> list[str]:
    escape = literal if open_names else None
    return tidy_names(render_column(template, BlockColumns(block), block.count, escape=escape))


def _outputs(expansion: Expansion) -> Iterator[str]:
    """Some output names and patterns of a job, for hints."""
    count = 0
    for block in expansion.blocks:
        for _, output in block.outputs():
            names = _names(block, block.output_template(output), open_names=block.makes_pattern(output))
            yield from names[: _NAMES_MAX - count]
            count += len(names)
            if count >= _NAMES_MAX:
                return
    for late in expansion.late:
        stage = expansion.definition.stages[late.stage - 1]
        for binary in (binary for line in stage.lines for package in line.packages for binary in package.binaries):
            yield from (output.name for output in binary.outputs if output.name)
            yield from filter(None, (binary.stdout, binary.stderr))
