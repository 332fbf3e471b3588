"""An expanded job: its graph, and its packages, which are numbers until they are written out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec
import numpy as np

from pilotage.language.expansion.blocks import Block, BlockColumns, BlockIndex
from pilotage.language.expansion.lists import files_read
from pilotage.language.expansion.packages import ConcretePackage, write_package
from pilotage.language.expansion.producers import general_pattern, late_outputs
from pilotage.language.text.names import tidy_names
from pilotage.language.text.patterns import can_both_match, matches, matching
from pilotage.language.text.templates import render_column
from pilotage.model.jobs.definition import Definition
from pilotage.model.jobs.graph import EdgeKind, Graph
from pilotage.model.jobs.layout import PackageId, StageLayout, parse_path
from pilotage.model.jobs.submission import ResolvedLists

Produced = Mapping[int, tuple[str, ...]]
NOTHING_PRODUCED: Produced = {}


class LateStage(msgspec.Struct, frozen=True):
    """A late stage: the patterns it will iterate over, and the stages and packages that it waits for."""

    stage: int
    name: str
    patterns: tuple[str, ...]
    stages: tuple[int, ...]  # late stages it waits for, counted from 1
    packages: tuple[int, ...]  # packages that make matching files
    within: tuple[int, ...] = ()  # for each pattern, the only stage whose outputs count, from 1, or 0 for all


class Expansion:
    """The result of an expansion. It never changes; a job that grows gets a new one."""

    def __init__(
        self,
        *,
        definition: Definition,
        resolved: ResolvedLists,
        graph: Graph,
        blocks: tuple[Block, ...],
        layouts: Mapping[int, StageLayout],
        stage_names: tuple[str, ...],
        late: tuple[LateStage, ...],
        late_waits: Mapping[int, tuple[int, ...]],
        laid_out: tuple[LateStage, ...] = (),
        late_blocks: tuple[Block, ...] = (),
        left_out: frozenset[int] = frozenset(),
    ) -> None:
        """Built by `expand` and `grow`."""
        self.definition = definition
        self.resolved = resolved
        self.graph = graph
        self.blocks = blocks
        self.layouts = layouts
        self.stage_names = stage_names
        self.late = late
        self.laid_out = laid_out  # formerly late stages, as they were before their expansion, in its order
        self.late_blocks = late_blocks  # the blocks of late stages, without packages yet
        self.left_out = left_out  # packages that no target needs
        self.late_waits = late_waits  # index of a block → the late stages, from 1, that its packages wait for
        self._late_patterns: dict[int, list[str]] = {}
        self._index = BlockIndex()
        for block in blocks:
            self._index.add(block)

    @property
    def count(self) -> int:
        """The number of known packages."""
        return self.graph.count

    @property
    def wanted(self) -> int:
        """The number of known packages that are not left out."""
        return self.count - len(self.left_out)

    def restricted(self, *, left_out: frozenset[int], late: Collection[int]) -> Expansion:
        """A copy with packages left out, which keeps only the given late stages, counted from 1."""
        waits = {block: tuple(s for s in stages if s in late) for block, stages in self.late_waits.items()}
        return Expansion(
            definition=self.definition,
            resolved=self.resolved,
            graph=self.graph,
            blocks=self.blocks,
            layouts=self.layouts,
            stage_names=self.stage_names,
            late=tuple(each for each in self.late if each.stage in late),
            late_waits={block: stages for block, stages in waits.items() if stages},
            laid_out=self.laid_out,
            late_blocks=tuple(block for block in self.late_blocks if block.stage + 1 in late),
            left_out=left_out,
        )

    @property
    def lines(self) -> int:
        """The number of known lines."""
        return sum(layout.lines for layout in self.layouts.values())

    @property
    def binaries(self) -> int:
        """The number of binaries of all known packages."""
        return sum(block.count * len(block.package.binaries) for block in self.blocks)

    def block(self, package: int) -> Block:
        """The block of a package."""
        return self._index.of(package)

    def locate(self, package: int) -> tuple[Block, int]:
        """The block of a package, and its position there."""
        return self._index.locate(package)

    def id(self, package: int) -> PackageId:
        """The stage, line and number of a package."""
        return self.block(package).layout.id(package)

    def path(self, package: int) -> str:
        """The path of a package: `job/001/002/001`."""
        return self.id(package).path(self.definition.job)

    def number(self, path: str) -> int | None:
        """The number of the package with a path, or None."""
        place = parse_path(path) if path.startswith(f"{self.definition.job}/") else None
        layout = self.layouts.get(place.stage - 1) if place else None
        return layout.number(place) if layout and place else None

    def name(self, package: int) -> str:
        """The name of a package."""
        block = self.block(package)
        return block.package_name(block.position(package))

    def package(self, package: int, produced: Produced = NOTHING_PRODUCED) -> ConcretePackage:
        """A package written out; `produced` has, by package, the files that matched output patterns."""
        block = self.block(package)
        return write_package(
            block,
            package,
            definition=self.definition,
            inputs=lambda pattern, binary: self.matching_inputs(package, pattern, produced, binary=binary),
        )

    def packages(self) -> Iterator[ConcretePackage]:
        """Every known package written out, in order."""
        return map(self.package, range(self.count))

    def outputs(self, package: int) -> list[str]:
        """The names and patterns of a package's outputs."""
        block = self.block(package)
        return block.output_names(block.position(package))

    def _made(self, package: int) -> list[tuple[str, bool]]:
        block = self.block(package)
        return block.made(block.position(package))

    def matching_inputs(
        self, package: int, pattern: str, produced: Produced = NOTHING_PRODUCED, *, binary: int = 0
    ) -> tuple[str, ...] | None:
        """The files that match an input pattern of a binary; None while some are not made yet."""
        own = self.block(package)
        # A binary may read outputs of earlier binaries of its package.
        made = own.made(own.position(package), before_binary=binary) if binary else []
        names = [name for name, is_open in made if not is_open and matches(pattern, name)]
        waiting = False
        for maker in self.graph.predecessors(package).tolist():
            for output, is_open in self._made(maker):
                if not is_open:
                    if matches(pattern, output):
                        names.append(output)
                elif maker not in produced and can_both_match(pattern, output):
                    waiting = waiting or self.takes_by_pattern(package, maker)
            names.extend(name for name in sorted(produced.get(maker, ())) if matches(pattern, name))
        if waiting or self._awaits_late_stage(package, pattern):
            return None
        return tuple(dict.fromkeys(names)) or files_read(self.resolved.lists, pattern)

    def takes_by_pattern(self, package: int, maker: int) -> bool:
        """Whether a package reads the files that match an output pattern of another one."""
        for segment in self.graph.segments:
            start, end = segment.predecessors.span(package)
            for position in range(start, end):
                if segment.predecessors.others[position] == maker:
                    return bool(int(segment.kinds[position]) & EdgeKind.PATTERN)
        return False

    def _awaits_late_stage(self, package: int, pattern: str) -> bool:
        block = self.block(package)
        return any(
            late.stage - 1 < block.stage
            and any(can_both_match(made, pattern) for made in self._late_outputs(late.stage))
            for late in self.late
        )

    def _late_outputs(self, stage: int) -> list[str]:
        if stage not in self._late_patterns:
            self._late_patterns[stage] = late_outputs(self.definition, stage - 1)
        return self._late_patterns[stage]

    def late_stage(self, stage: int) -> LateStage:
        """The late stage with a number, counted from 1."""
        for late in self.late:
            if late.stage == stage:
                return late
        raise LookupError(f"stage {stage} is not late")

    def known_outputs(self, pattern: str, *, before_stage: int, stage: int | None = None) -> list[tuple[int, str]]:
        """The known output names of earlier stages, or of one stage, that match, each with its package."""
        found: list[tuple[int, str]] = []
        for block in self.blocks:
            if block.stage < before_stage and stage in (None, block.stage):
                columns = BlockColumns(block)
                for _, output in block.outputs():
                    template = block.output_template(output)
                    if not block.makes_pattern(output) and can_both_match(general_pattern(template), pattern):
                        names = tidy_names(render_column(template, columns, block.count))
                        packages = block.packages()
                        found.extend((packages[i], names[i]) for i in matching(pattern, names))
        return found

    def critical_path_seconds(self) -> float | None:
        """The length of the critical path by estimated run times; None if no package has one."""
        seconds = np.zeros(self.count)
        known = False
        for block in self.blocks:
            estimates = [b.run_time_seconds for b in block.package.binaries if b.run_time_seconds is not None]
            if estimates:
                known = True
                seconds[block.package_array()] = sum(estimates)
        return self.graph.critical_path_seconds(seconds) if known else None
