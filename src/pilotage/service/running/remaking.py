"""What a job that goes on has made, needs, and does not find any more: whoever made it runs again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from pilotage.engine.engine import Engine
from pilotage.language import Expansion
from pilotage.model.graph import EdgeKind
from pilotage.ports import FileStore

_FILES = int(EdgeKind.FILE | EdgeKind.PATTERN)


class Standings(msgspec.Struct, frozen=True, kw_only=True):
    """How far the packages of a job are, by number."""

    unfinished: tuple[int, ...]
    granted: frozenset[int]


def standings_of(job: str, engine: Engine) -> Standings:
    """How far the packages of a job are; to be asked within a question."""
    state = engine.state.jobs.by_id.get(job)
    if state is None:
        return Standings(unfinished=(), granted=frozenset())
    return Standings(
        unfinished=tuple(number for number in range(state.count) if not state.is_final(number)),
        granted=frozenset(number for number, attempt in enumerate(state.granted) if attempt),
    )


def lost(expansion: Expansion, standings: Standings, *, folder: str, store: FileStore) -> list[str]:
    """The packages, dotted, of which a file is gone that something needs which is not over or must run again.

    Whoever others of them read from comes first. What nobody needs any more may be gone.
    """
    found: list[str] = []
    looked_at: set[int] = set()
    readers: Sequence[int] = standings.unfinished
    while readers:
        read = {each for number in readers for each in _producers(expansion, number)}
        makers = sorted((read & standings.granted) - looked_at)
        looked_at.update(makers)
        readers = _without_their_files(expansion, makers, folder=folder, store=store)
        found = [*(expansion.id(number).dotted for number in readers), *found]
    return found


def _without_their_files(expansion: Expansion, makers: Iterable[int], *, folder: str, store: FileStore) -> list[int]:
    names = {number: _named_outputs(expansion, number) for number in makers}
    there = store.look_up(folder, {name for each in names.values() for name in each})
    return [number for number, each in names.items() if any(name not in there for name in each)]


def _named_outputs(expansion: Expansion, number: int) -> list[str]:
    """The files that a package must have made, as far as their names are known before."""
    block = expansion.block(number)
    if block.package.done:
        return []
    values = block.values(block.position(number))
    named = (each for _, each in block.outputs() if not each.expression and not block.makes_pattern(each))
    return [block.written_output(each, values) for each in named]


def _producers(expansion: Expansion, number: int) -> list[int]:
    found: list[int] = []
    for segment in expansion.graph.segments:
        start, end = segment.predecessors.span(number)
        numbers, kinds = segment.predecessors.numbers, segment.kind_numbers
        found += [numbers[at] for at in range(start, end) if kinds[at] & _FILES]
    return found
