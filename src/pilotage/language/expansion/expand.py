"""Expands a definition and its lists to numbered packages and their dependency graph.

First all stages are expanded in order and their outputs recorded; then a producer is looked up for each input. A stage
whose list is not known yet is late: `grow` expands it when the files it iterates over exist. Nothing here reads the disk
or a clock: the lists come from `Lists`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.edge_files import EdgeFiles
from pilotage.language.expansion.edges import EdgeCollector
from pilotage.language.expansion.expansion import Expansion, LateStage
from pilotage.language.expansion.lists import Lists, RecordedLists, RecordingLists, late_key, makers_key
from pilotage.language.expansion.stage_layout import ExpansionBuilder
from pilotage.language.expansion.targets import restrict
from pilotage.language.parsing.document import Document
from pilotage.language.parsing.kinds import DocumentParse, FieldPath
from pilotage.language.parsing.rules import MarkOf
from pilotage.language.text.patterns import matches
from pilotage.language.text.tree import NOWHERE, Mark, Report
from pilotage.model.errors import near_name
from pilotage.model.jobs.definition import Definition
from pilotage.model.jobs.graph import Graph, Segment
from pilotage.model.jobs.submission import EXPANDER_VERSION

_SHOWN_MAX = 5
_CYCLES_MAX = 10


def expand(definition: Definition, lists: Lists, report: Report, *, mark: MarkOf | None = None) -> Expansion | None:
    """The packages of a job and their graph; None, with all faults in the report, if there are any.

    Late stages whose lists are already recorded are expanded again in the original order.
    """
    version = lists.resolved.expander_version
    if version != EXPANDER_VERSION:
        message = f"the job was expanded by version {version} of the expander, this is version {EXPANDER_VERSION}"
        report.error("other-expander", message, hint="expand it with the program that submitted it")
        return None
    builder = ExpansionBuilder(definition, lists, report, mark or (lambda _: NOWHERE))
    builder.lay_out_all()
    expansion = _finish(builder, None)
    for stage in lists.resolved.growth:
        if expansion is not None:
            expansion = _grown(expansion, stage, lists, report)
    return expansion


def grow(expansion: Expansion, stage: int, produced: Mapping[int, Iterable[str]], report: Report) -> Expansion | None:
    """A new expansion in which a late stage is expanded; `produced` has the names that each package made.

    `stage` counts from 1. Its lists, in the order of the producers and sorted for each, become part of the resolved lists.
    None, with all faults in the report, if there are any; the given expansion does not change.
    """
    late = expansion.late_stage(stage)
    if late.stages:
        raise ValueError(f"stage {stage} waits for the stages {late.stages}, which are not expanded yet")
    if not _made_once(expansion, produced, report):
        return None
    lists: dict[str, tuple[str, ...]] = {}
    for pattern, within in zip(late.patterns, late.within, strict=True):
        only = within - 1 if within else None
        found = set(expansion.known_outputs(pattern, before_stage=stage - 1, stage=only))
        for package, names in produced.items():
            maker = expansion.block(package).stage
            if maker < stage - 1 and only in (None, maker):
                found.update((package, name) for name in names if matches(pattern, name))
        key = late_key(stage - 1, pattern, only)
        lists[key] = tuple(name for _, name in sorted(found))
        lists[makers_key(key)] = tuple(str(package) for package, _ in sorted(found))
    return _grown(expansion, stage, RecordedLists(expansion.resolved.with_growth(stage, lists)), report)


def _made_once(expansion: Expansion, produced: Mapping[int, Iterable[str]], report: Report) -> bool:
    """Whether no two packages made the same name, which patterns cannot tell beforehand."""
    makers: dict[str, int] = {}
    for package, names in produced.items():
        for name in names:
            other = makers.setdefault(name, package)
            if other != package:
                message = f"two packages made {name!r}: {expansion.path(other)} and {expansion.path(package)}"
                report.error("two-makers", message)
                return False
    return True


def _grown(expansion: Expansion, stage: int, lists: Lists, report: Report) -> Expansion | None:
    builder = ExpansionBuilder(expansion.definition, lists, report, lambda _: NOWHERE)
    builder.take_over(expansion)
    builder.lay_out_from(stage - 1)
    return _finish(builder, expansion, laid_out=(*expansion.laid_out, expansion.late_stage(stage)))


def _finish(
    builder: ExpansionBuilder, earlier: Expansion | None, *, laid_out: tuple[LateStage, ...] = ()
) -> Expansion | None:
    """Find the producers, build the graph, and drop all texts that can be computed again."""
    builder.refuse_equal_names()
    needs = EdgeCollector(builder)
    for position, block in enumerate(builder.blocks):
        if position in builder.faulty_blocks:
            continue
        if position >= builder.new_blocks or (earlier and position in earlier.late_waits):
            needs.add_block(position, block)
    for block in builder.late_blocks:
        needs.check_late_block(block)
    first = earlier.graph.count if earlier else 0
    sources, targets, kinds = needs.edges(first_source=first if earlier else None)
    segment = Segment(first, builder.count - first, sources=sources, targets=targets, kinds=kinds)
    graph = (earlier.graph if earlier else Graph()).grown(segment)
    for produced in builder.resolver.produced:
        produced.forget()
    expansion = Expansion(
        definition=builder.definition,
        resolved=builder.lists.resolved,
        graph=graph,
        blocks=tuple(builder.blocks),
        layouts=builder.layouts,
        stage_names=tuple(builder.names),
        late=tuple(builder.late[stage] for stage in sorted(builder.late)),
        late_waits={block: tuple(s + 1 for s in stages) for block, stages in needs.late_waits.items()},
        laid_out=laid_out,
        late_blocks=(*_still_late(builder, earlier), *builder.late_blocks),
    )
    # Even if there are other faults: the edges found so far are right, and so are their cycles.
    for loop in itertools.islice(expansion.graph.cycles(), _CYCLES_MAX):
        _refuse_cycle(builder, expansion, loop)
    return None if builder.faulty else restrict(expansion, builder.report, earlier=earlier)


def _still_late(builder: ExpansionBuilder, earlier: Expansion | None) -> list[Block]:
    """The blocks of stages that are still late, after another one was expanded."""
    looked_at = {block.stage for block in builder.late_blocks}
    known = earlier.late_blocks if earlier else ()
    return [block for block in known if block.stage in builder.late and block.stage not in looked_at]


def _refuse_cycle(builder: ExpansionBuilder, expansion: Expansion, loop: list[int]) -> None:
    """Report packages that wait for each other, with the files and the lines in the document."""
    shown = loop if len(loop) <= 2 * _SHOWN_MAX else loop[:_SHOWN_MAX]
    steps = []
    on_edges = EdgeFiles(expansion)
    for package, following in zip(shown, [*shown[1:], loop[0]], strict=True):
        files = on_edges.between(package, following)
        through = f" ─[{', '.join(files[:2])}]→ " if files else " → "
        steps.append(f"{builder.package_name(package)}{through}")
    dots = "" if len(shown) == len(loop) else f"… ({len(loop) - len(shown)} more) → "
    message = f"these packages wait for each other: {''.join(steps)}{dots}{builder.package_name(loop[0])}"
    lines = sorted({builder.mark(builder.block_of(package).place).line for package in shown} - {0})
    hint = f"they are at the lines {', '.join(map(str, lines))}" if len(lines) > 1 else ""
    builder.error("cycle", message, builder.block_of(loop[0]).place, hint)


# Further faults of a document that is already rejected: those of its texts and lists.

# Faults that cannot follow from another one. An unknown or missing name may be defined in a part that was not readable.
_SURE = frozenset(
    {
        "bad-table",
        "duplicate-name",
        "duplicate-variable",
        "empty-list",
        "empty-table",
        "list-in-text",
        "misplaced-placeholder",
        "missing-file",
        "not-utf8",
        "nul-character",
        "outside-tree",
        "too-many-items",
        "two-makers",
        "unequal-lengths",
        "unknown-column",
        "unknown-placeholder",
    }
)


# Of these, the ones that no unreadable field of the same record can cause.
_NEVER_FOLLOWS = frozenset({"bad-table", "not-utf8", "outside-tree", "too-many-items", "two-makers"})

# Unreadable fields that do not affect the number, the names and the files of packages.
_HARMLESS = frozenset(
    {
        "abort_on",
        "activity",
        "category",
        "container",
        "cpu_percent",
        "created",
        "description",
        "dispositions",
        "environment",
        "executor",
        "failure_patterns",
        "hold",
        "limits",
        "node_restriction",
        "owner",
        "priority",
        "progress",
        "replicas",
        "resources",
        "retry",
        "run_time_seconds",
        "scripts",
        "side_effects",
        "size_bytes",
        "work_bytes",
    }
)
# An unknown field may be a misspelling of one of these.
_OF_FILES = (
    *("stages", "lines", "packages", "binaries", "each", "variables", "name", "software", "catalogue"),
    *("run", "shell", "inputs", "outputs", "stdin", "stdout", "stderr", "arguments", "parameters", "after"),
)


class _SearchingReport(Report):
    """A report that remembers the original position of each text that was searched."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.file, report.lines)
        self._from: dict[Mark, Mark] = {}

    def found(self, mark: Mark, text: str) -> Mark:
        """As in `Report`, and remember the start of the search."""
        found = super().found(mark, text)
        self._from[found] = mark
        return found

    def begun(self, mark: Mark) -> Mark:
        """The position from which a search that found this one started."""
        return self._from.get(mark, mark)


def report_more_faults(document: Document, reading: DocumentParse) -> None:
    """Report further faults in the texts and lists of a rejected document, unless they may follow from another fault."""
    spoilt: set[Mark] = set()
    unreadable: set[Mark] = set()

    def mark(place: FieldPath) -> Mark:
        found = document.mark(place)
        moved = any(place[:end] in reading.moved for end in range(1, len(place) + 1))
        # A fault in a record covers everything inside it, except for the document itself and its levels.
        if moved or any(place[:end] in around for end in range(2, len(place) + 1)):
            spoilt.add(found)
        if moved or place in around:
            unreadable.add(found)
        return found

    losses = {place for place in reading.lost if not _HARMLESS.intersection(place)}
    losses |= {place for place in reading.unknown if near_name(str(place[-1]), _OF_FILES, cutoff=0.75)}
    around = {place[:end] for place in losses for end in range(len(place) + 1)}
    report = document.report
    further = _SearchingReport(report)
    expand(document.definition, RecordingLists(reading.folder), further, mark=mark)
    known = {Mark(problem.line, problem.column) for problem in report.errors}
    # An unknown field may be a misspelling of `variables`, and variables may have been unreadable.
    unsure = bool({("variables",), ("parameters",)} & reading.faulty) or () in reading.with_unknown_fields
    for problem in further.errors:
        place = Mark(problem.line, problem.column)
        if losses and (problem.code not in _SURE or (unsure and problem.code == "unknown-placeholder")):
            continue
        begun = further.begun(place)
        follows = begun in unreadable or (begun in spoilt and problem.code not in _NEVER_FOLLOWS)
        if not follows and place not in known:
            report.errors.append(problem)
