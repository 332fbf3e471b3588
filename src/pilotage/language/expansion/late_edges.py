"""What stands before and behind a stage that is not laid out yet, for pictures and for formats that cannot say it."""

from __future__ import annotations

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.makers import general_pattern, has_list, late_outputs
from pilotage.language.text.paths import tidy_name
from pilotage.language.text.patterns import can_both_match
from pilotage.model.order import find_loop, followers

_EDGES_MAX = 4_000_000


def stage_path(expansion: Expansion, stage: int) -> str:
    """The path of a stage, counted from 1; the paths of its packages, once it has some, begin with it."""
    return f"{expansion.definition.job}/{stage:03}"


def blocks_behind(expansion: Expansion, stage: int) -> list[Block]:
    """The blocks whose packages wait for a late stage, counted from 1."""
    return [expansion.blocks[i] for i, stages in sorted(expansion.late_waits.items()) if stage in stages]


def packages_behind(expansion: Expansion, stage: int) -> list[int]:
    """The packages that wait for a late stage, counted from 1."""
    return sorted(package for block in blocks_behind(expansion, stage) for package in block.packages())


def inputs_from(expansion: Expansion, block: Block, stage: int) -> list[str]:
    """The inputs of a block, as the document says them, that a late stage may make; empty where it waits for no file."""
    made = late_outputs(expansion.definition, stage - 1)
    found: dict[str, None] = {}
    for _, given in block.inputs():
        template = block.bound(given.name)
        pattern = tidy_name(general_pattern(template))
        if not has_list(template, block) and any(can_both_match(pattern, output) for output in made):
            found[given.name] = None
    return list(found)


def packages_before(expansion: Expansion, stage: int) -> list[int]:
    """The packages that have to be done before a late stage can be laid out, also those before late stages before it."""
    late_stages = {late.stage: late for late in expansion.late}
    found: set[int] = set()
    seen: set[int] = set()
    waiting = [stage]
    while waiting:
        late = late_stages.get(waiting.pop())
        if late is not None and late.stage not in seen:
            seen.add(late.stage)
            found.update(late.packages)
            waiting.extend(late.stages)
    return sorted(found)


def edges_across(expansion: Expansion) -> list[tuple[int, int]] | None:
    """Edges that stand for all late stages: from everyone before one to everyone behind it.

    None where these would be too many, or would close a loop.
    """
    sides = [
        (packages_before(expansion, late.stage), packages_behind(expansion, late.stage)) for late in expansion.late
    ]
    if sum(len(before) * len(behind) for before, behind in sides) > _EDGES_MAX:
        return None
    edges = {(maker, package) for before, behind in sides for maker in before for package in behind}
    if not edges:
        return []
    known = ((source, target) for source, target, _ in expansion.graph.edges())
    return None if find_loop(followers(expansion.count, [*known, *edges])) else sorted(edges)
