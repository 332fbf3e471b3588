"""Counts the different files that a job makes or needs, without writing out its packages."""

from __future__ import annotations

from pilotage.language.expansion.blocks import Block, BlockColumns
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import Column, Groups, files_key
from pilotage.language.expansion.producers import general_pattern
from pilotage.language.expansion.resolve import ProducedNames
from pilotage.language.text.names import tidy_name, tidy_names
from pilotage.language.text.patterns import can_both_match, is_pattern, literal
from pilotage.language.text.templates import Template, literal_text, part_of_name, render_column


def count_files(expansion: Expansion) -> int:
    """The number of distinct file names; files that match an output pattern are not known yet and not counted."""
    made = 0
    made_by: list[tuple[Block, Template]] = []
    for block in expansion.blocks:
        for _, output in block.outputs():
            template = block.output_template(output)
            if block.count and not block.makes_pattern(output):
                # No two packages make the same name, or the job would have been rejected: all these names differ.
                made += block.count
                made_by.append((block, template))
    needed, generals = _needed(expansion)
    for block, template in made_by:
        if not needed:
            break
        if not _is_worth_comparing(block, generals) or _can_match_any(general_pattern(template), generals):
            needed.difference_update(_names(block, template))
    return made + len(needed)


def _is_worth_comparing(block: Block, generals: set[str]) -> bool:
    """Whether it is cheaper to compare patterns of the names than to write the names out."""
    return block.count > 100 * len(generals)


def _can_match_any(pattern: str, generals: set[str]) -> bool:
    return any(can_both_match(pattern, general) for general in generals)


def _needed(expansion: Expansion) -> tuple[set[str], set[str]]:
    """The names of all inputs, with patterns resolved on disk, and general patterns of these names."""
    names: set[str] = set()
    generals: set[str] = set()
    for block in expansion.blocks:
        if not block.count:
            continue
        columns = BlockColumns(block)
        for _, given in block.inputs():
            template = block.bound(given.name)
            if _is_made(block, template):
                continue
            if any(block.is_list(placeholder.name) for placeholder in template.placeholders):
                names.update(_listed(block, template))
                generals.add("**")
            elif is_pattern(literal_text(template)):
                patterns = set(render_column(template, columns, block.count, escape=literal))
                for pattern in patterns:
                    names.update(expansion.resolved.lists.get(files_key(tidy_name(pattern)), ()))
                generals.add(general_pattern(template))
            else:
                names.update(_names(block, template, columns))
                generals.add(general_pattern(template))
    return names, generals


def _is_made(block: Block, template: Template) -> bool:
    """Whether an input is just the name of an output of an earlier stage, which is counted there.

    Writing out such names would take longer than everything else together.
    """
    if len(template.parts) != 1 or isinstance(template.parts[0], str) or template.parts[0].attribute:
        return False
    column = _column(block, template.parts[0].name)
    if column is None:
        return False
    values = column.values.values if isinstance(column.values, Groups) else column.values
    return isinstance(values, ProducedNames)


def _column(block: Block, name: str) -> Column | None:
    return block.line_items.columns.get(name) or block.items.columns.get(name)


def _listed(block: Block, template: Template) -> list[str]:
    placeholder = next(p for p in template.placeholders if block.is_list(p.name))
    column = _column(block, placeholder.name)
    values = column.values.values if column is not None and isinstance(column.values, Groups) else ()
    return tidy_names([part_of_name(value, placeholder.attribute) for value in values])


def _names(block: Block, template: Template, columns: BlockColumns | None = None) -> list[str]:
    if not template.placeholders:
        return tidy_names([literal_text(template)])
    return tidy_names(render_column(template, columns or BlockColumns(block), block.count))
