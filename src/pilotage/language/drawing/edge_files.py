"""The files on the edges into one package, found for all its edges at once.

Asking edge by edge would write out the whole list of a merge for each of its thousand inputs.
"""

from __future__ import annotations

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.text.paths import tidy_name
from pilotage.language.text.patterns import can_both_match, is_pattern, literal, matches
from pilotage.language.text.templates import render, render_arguments


class Needed:
    """What one package needs: names, and patterns of names."""

    __slots__ = ("_names", "_patterns")

    def __init__(self, block: Block, position: int) -> None:
        """Fill in the inputs of one package of a block."""
        values = block.values(position)
        self._names: set[str] = set()
        self._patterns: list[str] = []
        for _, given in block.inputs():
            template = block.bound(given.name)
            lists = [p for p in template.placeholders if isinstance(values.get(p.name), tuple)]
            if lists:
                self._names.update(map(tidy_name, render_arguments((str(lists[0]),), values)))
            elif is_pattern("".join(part for part in template.parts if isinstance(part, str))):
                self._patterns.append(tidy_name(render(template, values, quote=literal)))
            else:
                self._names.add(tidy_name(render(template, values)))

    def takes(self, made: str) -> bool:
        """Whether a name or pattern that another package makes is, or may be, among what is needed."""
        if not is_pattern(made):
            return made in self._names or any(matches(pattern, made) for pattern in self._patterns)
        if any(matches(made, name) for name in self._names):
            return True
        return any(can_both_match(made, pattern) for pattern in self._patterns)


def needed_by(expansion: Expansion, package: int) -> Needed:
    """What one package needs."""
    block = expansion.block(package)
    return Needed(block, block.position(package))


def files_between(expansion: Expansion, maker: int, needed: Needed) -> list[str]:
    """The names and patterns of what a maker gives to a package; empty for an edge without a file."""
    return [made for made in dict.fromkeys(expansion.outputs(maker)) if needed.takes(made)]
