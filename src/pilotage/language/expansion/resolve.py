"""Resolves an iteration to its items, with lists from earlier stages, from disk or from the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np

from pilotage.language.expansion.blocks import BlockIndex
from pilotage.language.expansion.lists import (
    ONE,
    Column,
    Groups,
    Items,
    ListFault,
    Lists,
    RangeTexts,
    Tags,
    cross,
    dot,
    flat_cross,
    match,
)
from pilotage.language.expansion.producers import MatchedNames, OutputIndex
from pilotage.language.parsing.iterations import RESERVED, sources
from pilotage.language.text.names import tidy_name
from pilotage.language.text.patterns import is_pattern
from pilotage.language.text.templates import parse_template
from pilotage.model.errors import did_you_mean
from pilotage.model.jobs.definition import Combination, Iteration, Source


class NotYetKnown(Exception):
    """A list depends on files that are not made yet by `stages` and `packages`."""

    def __init__(
        self, *, stages: Sequence[int], packages: Sequence[int], patterns: tuple[tuple[str, int | None], ...]
    ) -> None:
        """`patterns` are those of the files, each with the only stage whose outputs count, or None."""
        super().__init__(*patterns)
        self.stages = tuple(stages)
        self.packages = tuple(packages)
        self.patterns = patterns


class ProducedNames(Sequence[str]):
    """Output names of earlier stages, stored as package and output numbers and written out when needed."""

    __slots__ = ("_names", "_ordinals", "_writer", "packages")

    def __init__(self, found: MatchedNames, writer: Callable[[int, int], str]) -> None:
        """`writer` returns the name of an output from the numbers of its package and output."""
        self.packages = found.packages
        self._ordinals = found.ordinals
        self._writer = writer
        self._names: list[str] | None = found.names

    def forget(self) -> None:
        """Drop the cached texts; from now on each is written out when needed."""
        self._names = None

    def __len__(self) -> int:
        return len(self.packages)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names) if self._names is not None else (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[str]: ...
    def __getitem__(self, position: int | slice) -> str | Sequence[str]:
        if self._names is not None:
            return self._names[position]
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        return self._writer(int(self.packages[position]), int(self._ordinals[position]))


class ItemResolver:
    """Resolves the iterations of a job's stages."""

    def __init__(
        self,
        *,
        makers: OutputIndex,
        lists: Lists,
        index: BlockIndex,
        stage_names: Sequence[str],
        variables: dict[str, str],
    ) -> None:
        self._makers = makers
        self._lists = lists
        self._index = index
        self._stage_names = list(stage_names)
        self._variables = variables
        self.produced: list[ProducedNames] = []
        self.growing: int | None = None  # the late stage that is being expanded; other late stages have no lists yet

    def items(self, iteration: Iteration, *, stage: int) -> Items:
        """The items of an iteration; raises `ListFault`, or `NotYetKnown` if a list is not known yet."""
        if isinstance(iteration, Combination):
            operands = self._operands(iteration, stage=stage)
            if iteration.operator == "dot":
                return dot([(_operand_name(item), items) for item, items in zip(iteration.of, operands, strict=True)])
            return {"cross": cross, "flat-cross": flat_cross, "match": match}[iteration.operator](operands)
        return self._source(iteration, stage=stage)

    def _operands(self, combination: Combination, *, stage: int) -> list[Items]:
        """The items of each operand.

        All are resolved even if one is not known yet: files are read at submission, and all waits are reported together.
        """
        found: list[Items] = []
        waits: list[NotYetKnown] = []
        faults: list[ListFault] = []
        for item in combination.of:
            try:
                found.append(self.items(item, stage=stage))
            except NotYetKnown as wait:
                waits.append(wait)
            except ListFault as fault:
                faults.append(fault)
        if faults:
            raise faults[0]
        if waits:
            raise NotYetKnown(
                stages=sorted({s for wait in waits for s in wait.stages}),
                packages=sorted({p for wait in waits for p in wait.packages}),
                patterns=tuple(dict.fromkeys(pattern for wait in waits for pattern in wait.patterns)),
            )
        return found

    def shape(self, iteration: Iteration | None) -> Items:
        """Empty items with the variables of an iteration, to check texts before its lists are known."""
        columns: dict[str, Column] = {}
        for source in sources(iteration):
            if source.variable:
                columns[source.variable] = Column(Groups((), source.group) if source.group else ())
            else:
                columns.update({name: Column(()) for name in self._lists.columns(self._filled(source.csv))})
        return Items(0, columns)

    def _source(self, source: Source, *, stage: int) -> Items:
        values: Sequence[str]
        tags = None
        if source.csv:
            columns = self._lists.columns(self._filled(source.csv))
            if not source.variable:
                self._refuse_reserved(columns, source.csv)
                count = len(next(iter(columns.values())))
                self._refuse_empty(count, f"the table {source.csv!r} has no rows")
                return Items(count, {name: Column(column) for name, column in columns.items()})
            if source.column not in columns:
                hint = did_you_mean(source.column, columns)
                raise ListFault("unknown-column", f"the table {source.csv!r} has no column {source.column!r}", hint)
            values = columns[source.column]
            self._refuse_empty(len(values), f"the table {source.csv!r} has no rows")
        elif source.range:
            values = RangeTexts(source.range)
        elif source.lines:
            values = self._lists.lines(self._filled(source.lines))
            self._refuse_empty(len(values), f"the file {source.lines!r} has no lines")
        elif source.files:
            values, tags = self._files(source, stage=stage)
        else:
            values = source.values or ()
            self._refuse_empty(len(values), f"the list of {source.variable!r} is empty")
        if source.group:
            return Items(-(-len(values) // source.group), {source.variable: Column(Groups(values, source.group))})
        return Items(len(values), {source.variable: Column(values)}, tags)

    def _files(self, source: Source, *, stage: int) -> tuple[Sequence[str], Tags | None]:
        if source.site:
            pattern = self._filled(source.files)
            cached = self._lists.cached(source.site, pattern)
            self._refuse_empty(len(cached), f"no file in the cache of the site {source.site!r} matches {pattern!r}")
            return cached, None
        pattern = tidy_name(self._filled(source.files))
        if source.job:
            found = self._lists.outputs(source.job, pattern)
            self._refuse_empty(len(found), f"no output of the job {source.job!r} matches {pattern!r}")
            return found, None
        only = self._stage_number(source.stage) if source.stage else None
        late = self._lists.late(stage, pattern, only) if stage == self.growing else None
        if late is not None:
            return late.names, _tags_by_makers(late.makers, self._index)
        waiting = [s for s in self._makers.awaits(pattern, before_stage=stage) if only in (None, s)]
        makers = self._makers.patterns.makers_of(pattern, before_stage=stage, stage=only)
        if waiting or makers:
            raise NotYetKnown(stages=waiting, packages=makers, patterns=((pattern, only),))
        made = self._makers.matching(pattern, before_stage=stage, stage=only)
        if made is not None:
            produced = ProducedNames(made, self._index.output_name)
            self.produced.append(produced)
            return produced, _tags_of(made)
        if self.growing is not None:
            # The stage waited for these files, and none was made: no lines. Files on disk at submission are in the record.
            return self._lists.files_read(pattern), None
        if source.stage:
            raise ListFault("no-match", f"no output of the stage {source.stage!r} matches {pattern!r}")
        on_disk = self._lists.files(pattern)
        if not on_disk:
            noun = "files match" if is_pattern(pattern) else "file exists:"
            raise ListFault("no-match", f"no {noun} {pattern!r}, and no earlier stage makes any")
        return on_disk, None

    def _stage_number(self, name: str) -> int:
        if name not in self._stage_names:
            hint = did_you_mean(name, self._stage_names)
            raise ListFault("unknown-stage", f"the job has no stage {name!r}", hint)
        return self._stage_names.index(name)

    def _filled(self, text: str) -> str:
        """The text of a source with the variables of the job filled in; no others are known before the items."""
        template = parse_template(text)
        if template.fault:
            raise ListFault("bad-template", f"in {text!r}: {template.fault}")
        filled = []
        for part in template.parts:
            if not isinstance(part, str):
                if part.name not in self._variables or part.attribute:
                    hint = did_you_mean(part.name, self._variables)
                    raise ListFault("unknown-placeholder", f"{part} is not known when lists are read", hint)
                filled.append(self._variables[part.name])
            else:
                filled.append(part)
        return "".join(filled)

    def _refuse_reserved(self, columns: dict[str, tuple[str, ...]], table: str) -> None:
        for name in sorted(RESERVED & columns.keys()):
            message = f"the column {name!r} of the table {table!r} cannot be a variable: {{{name}}} has its own meaning"
            hint = f"use it under another name: {{my_{name}: {{csv: {table}, column: {name}}}}}"
            raise ListFault("reserved-name", message, hint)

    def _refuse_empty(self, count: int, message: str) -> None:
        if not count:
            raise ListFault("empty-list", message)


def _tags_of(found: MatchedNames) -> Tags | None:
    """The tags of the producers; names with equal tags also get a number. None: number from 0."""
    if len(found.pieces) == 1:
        chunk, positions = found.pieces[0]
        if len(positions) == chunk.block.items.count and chunk.block.line_items is ONE:
            return chunk.block.items.own_tags
    rows = [chunk.block.tag_rows(positions) for chunk, positions in found.pieces]
    if len({piece.shape[1] for piece in rows}) != 1:
        return None
    joined = np.vstack(rows)
    return _distinct(joined if found.order is None else joined[found.order])


def _tags_by_makers(makers: Sequence[int], index: BlockIndex) -> Tags | None:
    """As `_tags_of`, for a list of producers."""
    rows = []
    for package in makers:
        block = index.of(package)
        rows.append(block.tag_rows([block.position(package)])[0])
    if len({len(row) for row in rows}) != 1:
        return None
    return _distinct(np.vstack(rows))


def _distinct(tags: Tags) -> Tags:
    """The tags; if some are equal, each with its number among its equals."""
    _, which, counts = np.unique(tags, axis=0, return_inverse=True, return_counts=True)
    if (counts == 1).all():
        return tags.astype(np.int32)
    which = which.reshape(-1)
    order = np.argsort(which, kind="stable")
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    numbers = np.empty(len(tags), np.int64)
    numbers[order] = np.arange(len(tags)) - np.repeat(starts, counts)
    return np.hstack([tags, numbers[:, None]]).astype(np.int32)


def _operand_name(iteration: Iteration) -> str:
    """The name of an operand for a message."""
    if isinstance(iteration, Source):
        return repr(iteration.variable) if iteration.variable else f"the table {iteration.csv!r}"
    return f"{iteration.operator} of {', '.join(map(_operand_name, iteration.of))}"
