"""Inputs in the tree of an earlier job that a package releases: which outputs of that job they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import earlier_outputs
from pilotage.language.expansion.packages import list_in
from pilotage.language.text.locators import job_of
from pilotage.language.text.names import tidy_name
from pilotage.language.text.templates import Values, render
from pilotage.model.jobs.definition import InputFile


def releases_of(expansion: Expansion) -> Callable[[int], Sequence[str]] | None:
    """By package, the locators of the files in the tree that it releases; None if no package releases any."""
    if not any(_released(block) for block in expansion.blocks):
        return None
    locators = earlier_outputs(expansion.resolved.lists)

    def releases(package: int) -> Sequence[str]:
        block, position = expansion.locate(package)
        given = _released(block)
        names = _names(block, given, block.values(position)) if given else ()
        return [locators[name] for name in dict.fromkeys(names) if name in locators]

    return releases


class ReleasedNames(NamedTuple):
    """The names of files in the tree that the packages of a job release."""

    jobs: frozenset[str]  # the earlier jobs that made them
    unknown: tuple[str, ...]  # names of no listed output of an earlier job


def released_names(expansion: Expansion) -> ReleasedNames:
    """What the known packages of a job release."""
    asked = [(block, given) for block in expansion.blocks if (given := _released(block))]
    known = earlier_outputs(expansion.resolved.lists) if asked else {}
    jobs, unknown = set[str](), dict[str, None]()
    for block, given in asked:
        for position in range(block.count):
            for name in _names(block, given, block.values(position)):
                if name in known:
                    jobs.add(job_of(known[name]))
                else:
                    unknown[name] = None
    return ReleasedNames(frozenset(jobs), tuple(unknown))


def _released(block: Block) -> list[InputFile]:
    if block.package.noop or block.package.done:
        return []
    return [given for _, given in block.inputs() if given.disposition == "release" and not given.locator]


def _names(block: Block, given: Sequence[InputFile], values: Values) -> Iterator[str]:
    """The names of some inputs of a package; of a list, one for each of its values."""
    for each in given:
        name = block.bound(each.name)
        variable = list_in(block, (name,))
        listed = values[variable] if variable else ""
        for value in listed if isinstance(listed, tuple) else ("",):
            yield tidy_name(render(name, {**values, variable: value} if variable else values))
