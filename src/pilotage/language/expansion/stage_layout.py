"""Expands the stages of a job in order, and records their outputs.

This is the working state of an expansion. It holds all output names of a job, and is dropped when the graph is built.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator

from pilotage.language.expansion.blocks import Block, BlockColumns, BlockIndex, stage_names, template_names
from pilotage.language.expansion.expansion import Expansion, LateStage
from pilotage.language.expansion.lists import ONE, Items, ListFault, Lists
from pilotage.language.expansion.placeholders import check_placeholders, check_script_values
from pilotage.language.expansion.producers import OutputIndex, OutputNames, general_pattern, late_outputs
from pilotage.language.expansion.resolve import ItemResolver, NotYetKnown
from pilotage.language.parsing.iterations import ITEMS_MAX
from pilotage.language.parsing.kinds import FieldPath
from pilotage.language.parsing.rules import MarkOf
from pilotage.language.text.names import outside, tidy_name, tidy_names, why_outside
from pilotage.language.text.patterns import can_both_match, is_pattern, literal
from pilotage.language.text.templates import literal_text, parse_template, render_column
from pilotage.language.text.tree import Report
from pilotage.model.jobs.definition import Definition, Iteration
from pilotage.model.jobs.layout import StageLayout, TemplateLayout

PACKAGES_MAX = ITEMS_MAX


class ExpansionBuilder:
    """The working state of one expansion."""

    def __init__(self, definition: Definition, lists: Lists, report: Report, mark: MarkOf) -> None:
        """`mark` returns the position in the document of a path in the definition."""
        self.definition = definition
        self.lists = lists
        self.report = report
        self.mark = mark
        self.makers = OutputIndex()
        self.blocks: list[Block] = []
        self.index = BlockIndex()
        self.layouts: dict[int, StageLayout] = {}
        self.late: dict[int, LateStage] = {}
        self.count = 0
        self.faulty = False
        self.faulty_blocks: set[int] = set()
        self.late_blocks: list[Block] = []  # of late stages, without packages yet
        self.packages_by_name: dict[str, int] = {}  # for names that the document gives
        self.new_blocks = 0
        self.names = stage_names(definition)
        self.columns: dict[int, BlockColumns] = {}
        self.resolver = ItemResolver(
            makers=self.makers,
            lists=lists,
            index=self.index,
            stage_names=self.names,
            variables=definition.constants,
        )

    def error(self, code: str, message: str, place: FieldPath, hint: str = "", *, at: str = "") -> None:
        """Report a fault at a path of the definition, and at the faulty text `at` there, if given."""
        self.faulty = True
        self.report.error(code, message, self.report.found(self.mark(place), at), hint=hint)

    # --- laying out -------------------------------------------------------------------------------------------------

    def lay_out_all(self) -> None:
        """Expand all stages that are not late."""
        for stage in range(len(self.definition.stages)):
            self.lay_out(stage)

    def take_over(self, expansion: Expansion) -> None:
        """Continue an earlier expansion: its names are written out again, to be compared with new ones."""
        self.blocks = list(expansion.blocks)
        self.layouts = dict(expansion.layouts)
        self.late = {late.stage - 1: late for late in expansion.late}
        self.count = expansion.graph.count
        self.new_blocks = len(self.blocks)
        for stage in self.late:
            self._note_late_outputs(stage)
        concerned = self._concerned_patterns(expansion)
        for block in self.blocks:
            self.index.add(block)
            self._note_outputs(block, concerned)
            self._check_names(block)

    def _concerned_patterns(self, expansion: Expansion) -> list[str]:
        """Patterns of the names that matter when a job grows: outputs of late stages, and files still awaited."""
        patterns = [pattern for _, pattern in self.makers.late]
        patterns += [pattern for late in self.late.values() for pattern in late.patterns]
        waiting = [given for position in expansion.late_waits for _, given in self.blocks[position].inputs()]
        for stage in self.late:
            lines = self.definition.stages[stage].lines
            binaries = [binary for line in lines for package in line.packages for binary in package.binaries]
            waiting += [given for binary in binaries for given in binary.inputs]
            patterns += [general_pattern(parse_template(b.stdin)) for b in binaries if b.stdin]
        return list(dict.fromkeys(patterns + [general_pattern(parse_template(given.name)) for given in waiting]))

    def lay_out_from(self, stage: int) -> None:
        """Expand a late stage, and later ones whose lists are known then."""
        self.resolver.growing = stage
        for number in [stage, *(late for late in sorted(self.late) if late > stage)]:
            self.late.pop(number)
            self.makers.late = [(s, pattern) for s, pattern in self.makers.late if s != number]
            self.lay_out(number)

    def lay_out(self, stage: int) -> None:
        """Number the packages of a stage and record their outputs."""
        definition = self.definition.stages[stage]
        place: FieldPath = ("stages", stage)
        waiting: list[NotYetKnown] = []
        stage_items = self._items(definition.each, stage, (*place, "each"), waiting)
        line_items = [
            self._items(line.each, stage, (*place, "lines", t, "each"), waiting)
            for t, line in enumerate(definition.lines)
        ]
        if waiting:
            wanted = dict.fromkeys(pair for wait in waiting for pair in wait.patterns)
            self.late[stage] = LateStage(
                stage=stage + 1,
                name=self.names[stage],
                patterns=tuple(pattern for pattern, _ in wanted),
                stages=tuple(sorted({s + 1 for wait in waiting for s in wait.stages})),
                packages=tuple(sorted({p for wait in waiting for p in wait.packages})),
                within=tuple(0 if only is None else only + 1 for _, only in wanted),
            )
            self._note_late_outputs(stage)
            self._check_late(stage)
            return
        if stage_items is None or None in line_items:
            self._note_late_outputs(stage)  # so that consumers of its outputs are not reported as faulty
            return
        self._number(stage, stage_items, [items for items in line_items if items is not None])

    def _number(self, stage: int, stage_items: Items, line_items: list[Items]) -> None:
        lines = self.definition.stages[stage].lines
        templates = [
            TemplateLayout(items.count, len(line.packages)) for items, line in zip(line_items, lines, strict=True)
        ]
        layout = StageLayout(stage=stage + 1, first=self.count, items=stage_items.count, templates=templates)
        if self.count + layout.count > PACKAGES_MAX:
            message = (
                f"the job would have {self.count + layout.count:,} packages; at most {PACKAGES_MAX:,} are possible"
            )
            self.error("too-many-packages", message, ("stages", stage))
            return
        if not layout.count:
            message = f"the stage {self.names[stage]!r} has no lines: nothing matched"
            self.report.warn("empty-stage", message, self.mark(("stages", stage)))
        self.layouts[stage] = layout
        self.count += layout.count
        for block in self._blocks(layout, stage_items, line_items):
            self.blocks.append(block)
            self.index.add(block)
            if check_placeholders(block, self.definition, self.error):
                self._note_outputs(block)
                self._check_names(block)
                check_script_values(block, self.definition, self.block_columns(block), self.error)
            else:
                self.faulty_blocks.add(len(self.blocks) - 1)
                self._check_literal_outputs(block)
                self._note_late_outputs(stage)

    def _blocks(self, layout: StageLayout, stage_items: Items, line_items: list[Items]) -> Iterator[Block]:
        stage = layout.stage - 1
        lines = self.definition.stages[stage].lines
        names = template_names(lines, self.names[stage])
        for template, line in enumerate(lines):
            for number in range(len(line.packages)):
                yield Block(
                    definition=self.definition,
                    layout=layout,
                    stage=stage,
                    template=template,
                    number=number,
                    stage_items=stage_items,
                    line_items=line_items[template],
                    stage_name=self.names[stage],
                    name=names[template][number],
                )

    def _check_late(self, stage: int) -> None:
        """Check the texts of a late stage now, rather than when its files exist."""
        definition = self.definition.stages[stage]
        try:
            stage_items = self.resolver.shape(definition.each)
            line_items = [self.resolver.shape(line.each) for line in definition.lines]
        except ListFault:
            return  # reported when the list was resolved
        templates = [TemplateLayout(0, len(line.packages)) for line in definition.lines]
        layout = StageLayout(stage=stage + 1, first=0, items=0, templates=templates)
        for block in self._blocks(layout, stage_items, line_items):
            if check_placeholders(block, self.definition, self.error):
                self.late_blocks.append(block)

    def _check_names(self, block: Block) -> None:
        """Report a name in the document that two packages have."""
        if not block.package.name:
            return
        template = block.bound(block.package.name)
        names = render_column(template, self.block_columns(block), block.count)
        for name, package in zip(names, block.packages(), strict=True):
            other = self.packages_by_name.setdefault(name, package)
            if other != package:
                message = f"two packages are called {name!r}: {self.path(other)} and {self.path(package)}"
                hint = "make the name depend on the item, for example with {tag}"
                self.error("duplicate-name", message, (*block.place, "name"), hint)
                return

    def refuse_equal_names(self) -> None:
        """Report generated names that are equal, such as item 0 of a stage `x` and a stage `x-0`."""
        if len(set(self.names)) < len(self.names):
            return  # reported already, as two stages of the same name
        unwritten = [block for block in self.blocks if not block.package.name and block.count]
        counts = Counter(block.name for block in unwritten)
        bases, written = sorted(counts), sorted(self.packages_by_name)
        by_name = dict(self.packages_by_name)
        for block in unwritten:
            begun = f"{block.name}-"
            beginnings = (block.name[:i] for i, character in enumerate(block.name) if character == "-")
            if not (
                counts[block.name] > 1
                or block.name in self.packages_by_name
                or _any_begins(bases, begun)
                or _any_begins(written, begun)
                or any(beginning in counts for beginning in beginnings)
            ):
                continue
            for position, package in enumerate(block.packages()):
                name = block.package_name(position)
                other = by_name.setdefault(name, package)
                if other != package:
                    message = f"two packages are called {name!r}: {self.path(other)} and {self.path(package)}"
                    self.error("duplicate-name", message, block.place, "give the stage or the line a name of its own")
                    break

    def _items(
        self, iteration: Iteration | None, stage: int, place: FieldPath, waiting: list[NotYetKnown]
    ) -> Items | None:
        if iteration is None:
            return ONE
        try:
            return self.resolver.items(iteration, stage=stage)
        except NotYetKnown as wait:
            waiting.append(wait.with_traceback(None))  # a traceback would keep all names of the job in memory
        except ListFault as fault:
            self.error(fault.code, fault.message, place, fault.hint)
        return None

    # --- what is made -----------------------------------------------------------------------------------------------

    def _note_outputs(self, block: Block, concerned: list[str] | None = None) -> None:
        """Record the outputs of a block; of an older block, only those that match `concerned` patterns."""
        packages = block.packages()
        for ordinal, (place, output) in enumerate(block.outputs()):
            template = block.output_template(output)
            if concerned is not None and not any(can_both_match(general_pattern(template), c) for c in concerned):
                continue
            pattern = is_pattern(literal_text(template))
            names = render_column(template, self.block_columns(block), block.count, escape=literal if pattern else None)
            bad = outside(names)
            if bad:
                name, reason = bad[0]
                more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
                self.error("outside-tree", f"the output {name!r}{more} is not allowed: {reason}", place)
                self.makers.late.append((block.stage, general_pattern(template)))
                continue
            written, names = names, tidy_names(names)
            # A value may contain folders; then nothing is known about the names before they are written out.
            moved = names is not written and len(template.placeholders) > 0
            general = "**" if moved else tidy_name(general_pattern(template))
            if pattern:
                self.makers.patterns.add(zip(names, packages, strict=True), stage=block.stage)
                continue
            chunk = OutputNames(
                block,
                ordinal=ordinal,
                place=place,
                general=general,
                names=names,
                packages=packages,
            )
            doubles = self.makers.add(chunk)
            if doubles:
                self._refuse_doubles(doubles, block, place)

    def _check_literal_outputs(self, block: Block) -> None:
        """Check output names without placeholders, even if another text of the block is faulty."""
        for place, output in block.outputs():
            template = block.output_template(output)
            reason = "" if template.placeholders else why_outside(literal_text(template))
            if reason:
                self.error("outside-tree", f"the output {literal_text(template)!r} is not allowed: {reason}", place)

    def _refuse_doubles(self, doubles: list[tuple[str, int, int]], block: Block, place: FieldPath) -> None:
        name, first, second = doubles[0]
        others = len({double[0] for double in doubles}) - 1
        again = sum(double[0] == name for double in doubles) - 1
        more = (
            f" (and {others:,} more names)"
            if others
            else f" (and {again:,} more {'does' if again == 1 else 'do'})"
            if again
            else ""
        )
        other = self.block_of(first)
        there = self.mark(next(c.place for c in self.makers.chunks if c.block is other and name in c.names))
        where = f", by its output at line {there.line}" if there.line and there != self.mark(place) else ""
        message = (
            f"two packages make {name!r}{more}: {self.path(first)} ({self.package_name(first)}){where}, "
            f"and {self.path(second)} ({self.package_name(second)})"
        )
        if first == second:
            message = f"{self.path(first)} ({self.package_name(first)}) makes {name!r}{more} twice{where}"
        hint = "make the name depend on the item, for example with {tag}" if other is block else ""
        self.error("two-makers", message, place, hint)

    def _note_late_outputs(self, stage: int) -> None:
        """Record patterns of the outputs of a late stage."""
        self.makers.late.extend((stage, pattern) for pattern in late_outputs(self.definition, stage))

    # --- asked for by others ----------------------------------------------------------------------------------------

    def block_columns(self, block: Block) -> BlockColumns:
        """The texts of a block's variables, cached for this expansion."""
        key = id(block)
        if key not in self.columns:
            self.columns[key] = BlockColumns(block)
        return self.columns[key]

    def block_of(self, package: int) -> Block:
        """The block of a package."""
        return self.index.of(package)

    def path(self, package: int) -> str:
        """The path of a package."""
        return self.block_of(package).layout.id(package).path(self.definition.job)

    def package_name(self, package: int) -> str:
        """The name of a package."""
        block = self.block_of(package)
        return block.package_name(block.position(package))


def _any_begins(names: list[str], beginning: str) -> bool:
    """Whether one of the sorted names has this prefix."""
    position = bisect.bisect_left(names, beginning)
    return position < len(names) and names[position].startswith(beginning)
