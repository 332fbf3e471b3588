"""Blocks: a package template of a job with all its packages, which exist only as numbers and formulas."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from pilotage.language.expansion.lists import Column, Indices, Items, Tags
from pilotage.language.expansion.software import find_software
from pilotage.language.parsing.kinds import FieldPath
from pilotage.language.text.names import tidy_name
from pilotage.language.text.patterns import is_pattern, literal
from pilotage.language.text.programs import script_position
from pilotage.language.text.templates import (
    Part,
    Placeholder,
    Template,
    Values,
    literal_text,
    parse_template,
    part_of_name,
    render,
)
from pilotage.model.jobs.definition import Binary, Definition, InputFile, Line, OutputFile, Package
from pilotage.model.jobs.layout import StageLayout

Constants = Mapping[str, str]
_BINARY = 7  # index of the binary's number in paths such as stages/0/lines/0/packages/0/binaries/2/inputs/0


class Block:
    """The packages of one package template, over the items of its stage and its line."""

    __slots__ = (
        "_inputs",
        "_outputs",
        "activity",
        "constants",
        "declared",
        "items",
        "layout",
        "line_items",
        "name",
        "number",
        "package",
        "stage",
        "template",
    )

    def __init__(
        self,
        *,
        definition: Definition,
        layout: StageLayout,
        stage: int,
        template: int,
        number: int,
        stage_items: Items,
        line_items: Items,
        stage_name: str,
        name: str,
    ) -> None:
        """`stage`, `template` and `number` locate the package template; `name` is the part of package names before the tag."""
        line = definition.stages[stage].lines[template]
        self.layout = layout
        self.stage = stage
        self.template = template
        self.number = number
        self.items = stage_items
        self.line_items = line_items
        self.declared = line.packages[number]  # as written in the document
        self.package = self.declared  # with additions from the descriptors of its software
        self.activity = _software_of(self.package) or stage_name
        # An iteration variable hides a constant of the same name.
        iterated = {*stage_items.columns, *line_items.columns}
        constants = definition.constants
        self.constants: Constants = {name: text for name, text in constants.items() if name not in iterated}
        self.name = name
        if any(_has_descriptor(definition, binary) for binary in self.package.binaries):
            self.package = self._with_descriptors(definition)
        self._outputs = tuple(self._find_outputs())
        self._inputs = tuple(self._find_inputs())

    @property
    def count(self) -> int:
        """The number of its packages."""
        return self.items.count * self.line_items.count

    @property
    def place(self) -> FieldPath:
        """The path of its template in the definition."""
        return ("stages", self.stage, "lines", self.template, "packages", self.number)

    def packages(self) -> range | list[int]:
        """The numbers of its packages in the job."""
        layout, each = self.layout, self.layout.templates[self.template].packages
        first = layout.package(template=self.template, item=0, line=0, number=self.number)
        if self.line_items.count == 1:
            return range(first, first + self.items.count * layout.package_period, layout.package_period or 1)
        if self.items.count == 1:
            return range(first, first + self.line_items.count * each, each)
        outer = np.arange(self.items.count, dtype=np.int64) * layout.package_period
        inner = np.arange(self.line_items.count, dtype=np.int64) * each
        numbers: list[int] = (first + outer[:, None] + inner[None, :]).ravel().tolist()
        return numbers

    def package_array(self) -> Indices:
        """The numbers of its packages as an array."""
        return as_array(self.packages())

    def position(self, package: int) -> int:
        """The position in the block of the package with this number in the job."""
        _, item, line, _ = self.layout.locate(package)
        return item * self.line_items.count + line

    def variables(self) -> set[str]:
        """The names that placeholders in its texts may use besides `inputs`, `outputs` and `arguments`."""
        own = {*self.items.columns, *self.line_items.columns, *self.constants}
        return own | {"tag", "package"}

    def column(self, name: str) -> Column | None:
        """The column of an iteration variable over all packages of the block."""
        stage_column, line_column = self.items.columns.get(name), self.line_items.columns.get(name)
        if line_column is not None:
            if self.items.count == 1:
                return line_column
            return line_column.taken(np.tile(np.arange(self.line_items.count, dtype=np.int32), self.items.count))
        if stage_column is None or self.line_items.count == 1:
            return stage_column
        return stage_column.taken(np.repeat(np.arange(self.items.count, dtype=np.int32), self.line_items.count))

    def is_list(self, name: str) -> bool:
        """Whether a variable holds a list for each package."""
        column = self.line_items.columns.get(name) or self.items.columns.get(name)
        return column is not None and column.is_list

    def tag(self, position: int) -> str:
        """The tag of one of its packages; empty without an iteration."""
        item, line = divmod(position, self.line_items.count)
        outer, inner = self.items.tag(item), self.line_items.tag(line)
        return f"{outer}_{inner}" if outer and inner else outer or inner

    def tag_rows(self, positions: Sequence[int]) -> Tags:
        """The tags of some of its packages, a row each."""
        outer, inner = np.divmod(np.asarray(positions, dtype=np.int64), self.line_items.count)
        return np.hstack([self.items.tags[outer], self.line_items.tags[inner]]).astype(np.int32)

    def values(self, position: int) -> dict[str, str | tuple[str, ...]]:
        """The values of all placeholders for one of its packages, except `inputs`, `outputs` and `arguments`."""
        item, line = divmod(position, self.line_items.count)
        found: dict[str, str | tuple[str, ...]] = dict(self.constants)
        found.update(self.items.values(item))
        found.update(self.line_items.values(line))
        found["tag"] = self.tag(position)
        found["package"] = self.dotted(position)
        return found

    def dotted(self, position: int) -> str:
        """The dotted number of one of its packages: `1.2.1`."""
        item, line = divmod(position, self.line_items.count)
        number = self.layout.package(template=self.template, item=item, line=line, number=self.number)
        return self.layout.id(number).dotted

    def package_name(self, position: int) -> str:
        """The name of one of its packages."""
        if self.package.name:
            return render(self.bound(self.package.name), self.values(position))
        tag = self.tag(position)
        return f"{self.name}-{tag}" if tag else self.name

    def output_name(self, position: int, ordinal: int) -> str:
        """The name or pattern of one output of one of its packages."""
        return self.written_output(self.outputs()[ordinal][1], self.values(position))

    def output_names(self, position: int) -> list[str]:
        """The names and patterns of all outputs of one of its packages."""
        values = self.values(position)
        return [self.written_output(output, values) for _, output in self.outputs()]

    def made(self, position: int, *, before_binary: int | None = None) -> list[tuple[str, bool]]:
        """The outputs of one of its packages, or of its first binaries: each name, and whether it is a pattern.

        The text alone does not show that: a name whose value contains `*` is not a pattern.
        """
        values = self.values(position)
        outputs = [o for place, o in self.outputs() if before_binary is None or binary_of(place) < before_binary]
        return [(self.written_output(output, values), self.makes_pattern(output)) for output in outputs]

    def makes_pattern(self, output: OutputFile) -> bool:
        """Whether an output is a pattern; this is the same for all packages."""
        return is_pattern(literal_text(self.output_template(output)))

    def written_output(self, output: OutputFile, values: Values) -> str:
        """The name or pattern of an output with its placeholders filled in."""
        escape = literal if self.makes_pattern(output) else None
        return tidy_name(render(self.output_template(output), values, quote=escape))

    def output_template(self, output: OutputFile) -> Template:
        """The template of an output's names; for a regular expression, the pattern of its folder."""
        if output.expression:
            return self.bound(f"{output.folder}/**" if output.folder else "**")
        return self.bound(output.name)

    def bound(self, text: str) -> Template:
        """A text with the constants of the job filled in."""
        return bind(parse_template(text), self.constants)

    def binaries(self) -> Iterator[tuple[FieldPath, Binary]]:
        """Its binaries with their paths in the definition."""
        for position, binary in enumerate(self.package.binaries):
            yield (*self.place, "binaries", position), binary

    def outputs(self) -> tuple[tuple[FieldPath, OutputFile], ...]:
        """All its outputs: those of its binaries, and their standard streams that are kept."""
        return self._outputs

    def inputs(self) -> tuple[tuple[FieldPath, InputFile], ...]:
        """All its inputs: those of its binaries, and their standard input."""
        return self._inputs

    def _with_descriptors(self, definition: Definition) -> Package:
        """The package with the files, container and resources that descriptors of its software add."""
        # Few jobs use descriptors, and importing their reader takes time.
        from pilotage.language.expansion import tool_software

        known = tool_software.known_values(self)
        binaries = []
        for binary in self.package.binaries:
            found = tool_software.tool_of_binary(definition, binary)
            binaries.append(tool_software.with_described_files(binary, found, known) if found else binary)
        return msgspec.structs.replace(
            self.package,
            binaries=tuple(binaries),
            container=tool_software.container_of(definition, self.package),
            resources=tool_software.resources_of(definition, self.package),
        )

    def _find_outputs(self) -> list[tuple[FieldPath, OutputFile]]:
        found: list[tuple[FieldPath, OutputFile]] = []
        for place, binary in self.binaries():
            found.extend(((*place, "outputs", i), output) for i, output in enumerate(binary.outputs))
            declared = {output.name for output in binary.outputs}
            for stream in dict.fromkeys((binary.stdout, binary.stderr)):
                if stream and stream not in declared:
                    field = "stdout" if stream == binary.stdout else "stderr"
                    found.append(((*place, field), OutputFile(name=stream)))
        return found

    def _find_inputs(self) -> list[tuple[FieldPath, InputFile]]:
        found: list[tuple[FieldPath, InputFile]] = []
        for place, binary in self.binaries():
            found.extend(((*place, "inputs", i), given) for i, given in enumerate(binary.inputs))
            if binary.stdin and binary.stdin not in {given.name for given in binary.inputs}:
                found.append(((*place, "stdin"), InputFile(name=binary.stdin)))
        return found


def _has_descriptor(definition: Definition, binary: Binary) -> bool:
    """Whether a Boutiques descriptor describes the software of a binary."""
    software = find_software(definition, binary) if binary.software else None
    return software is not None and software.boutiques is not None


def binary_of(place: FieldPath) -> int:
    """The number, from 0, of the binary in the path of an input or output."""
    return int(place[_BINARY])


def as_array(packages: Sequence[int]) -> Indices:
    """Package numbers as an array; a range is converted without a loop."""
    if isinstance(packages, range):
        return np.arange(packages.start, packages.stop, packages.step, dtype=np.int32)
    return np.asarray(packages, dtype=np.int32)


class BlockColumns(Mapping[str, Sequence[str]]):
    """The texts of a block's variables over all its packages, computed at first use."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._made: dict[str, Sequence[str]] = {}

    def __getitem__(self, name: str) -> Sequence[str]:
        """The texts of one variable."""
        if name not in self._made:
            column = self._block.column(name)
            if column is not None:
                self._made[name] = column.texts()
            elif name == "tag":
                self._made[name] = list(map(self._block.tag, range(self._block.count)))
            elif name == "package":
                self._made[name] = list(map(self._block.dotted, range(self._block.count)))
            else:
                raise KeyError(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the variables."""
        return iter({*self._block.items.columns, *self._block.line_items.columns, "tag", "package"})

    def __len__(self) -> int:
        """How many variables there are."""
        return sum(1 for _ in self)


def bind(template: Template, constants: Constants) -> Template:
    """Fill in the constants once, so that they cost nothing per package."""
    if not any(placeholder.name in constants for placeholder in template.placeholders):
        return template
    parts: list[Part] = []
    for part in template.parts:
        found = part
        if isinstance(part, Placeholder) and part.name in constants:
            found = part_of_name(constants[part.name], part.attribute)
        if isinstance(found, str) and parts and isinstance(parts[-1], str):
            parts[-1] += found
        else:
            parts.append(found)
    return Template(tuple(parts))


def _software_of(package: Package) -> str:
    """What a package runs: its activity, its software, or its program or script, as far as that is the same for all.

    An interpreter says nothing of that: stages that have only it in common are different activities.
    """
    first = package.binaries[0] if package.binaries else None
    if package.activity or first is None or first.software or not first.run:
        return activity_of(package)
    position = script_position(first.run)
    program = first.run[position] if position is not None else ""
    return "" if parse_template(program).placeholders else program.rpartition("/")[2]


def activity_of(package: Package) -> str:
    """What a package is called that has no other name: its activity, its software, or its program."""
    if package.activity:
        return package.activity
    for binary in package.binaries:
        if binary.software:
            return f"{binary.software}@{binary.version}" if binary.version else binary.software
        program = binary.run[0] if binary.run else binary.invoking_script
        if program and not parse_template(program).placeholders:
            return program.rpartition("/")[2]
    return package.startup_script.rpartition("/")[2]


def stage_names(definition: Definition) -> list[str]:
    """The name of each stage: its own, or the activity of its first package, made unique."""
    taken = {stage.name for stage in definition.stages if stage.name}
    names: list[str] = []
    for number, stage in enumerate(definition.stages, start=1):
        first = stage.lines[0].packages[0] if stage.lines and stage.lines[0].packages else None
        base = (activity_of(first) if first else "") or f"stage{number}"
        name = stage.name or base
        while not stage.name and name in taken:
            name = f"{base}{number}" if name == base else f"{name}+"
        taken.add(name)
        names.append(name)
    return names


def template_names(lines: Sequence[Line], stage_name: str) -> list[list[str]]:
    """The names of a stage's package templates, without tags, by line and position."""
    activities = [activity_of(line.packages[0]) if line.packages else "" for line in lines]
    alike = len(set(activities)) < len(activities) or "" in activities
    names = []
    for template, line in enumerate(lines):
        parts = [stage_name]
        if len(lines) > 1:
            parts.append(line.name or activities[template] + (f"{template + 1}" if alike else ""))
        single = len(line.packages) == 1
        names.append([".".join(parts if single else [*parts, f"{n + 1}"]) for n in range(len(line.packages))])
    return names


class BlockIndex:
    """Finds the block of a package."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._layouts: list[StageLayout] = []
        self._blocks: dict[tuple[int, int, int], Block] = {}

    def add(self, block: Block) -> None:
        """Add a block; blocks are added in the order of their packages."""
        if block.layout.count and (not self._layouts or self._layouts[-1] is not block.layout):
            self._starts.append(block.layout.first)
            self._layouts.append(block.layout)
        self._blocks[block.stage, block.template, block.number] = block

    def of(self, package: int) -> Block:
        """The block of a package."""
        return self.locate(package)[0]

    def locate(self, package: int) -> tuple[Block, int]:
        """The block of a package, and its position there."""
        layout = self._layouts[bisect.bisect_right(self._starts, package) - 1]
        template, item, line, number = layout.locate(package)
        block = self._blocks[layout.stage - 1, template, number]
        return block, item * block.line_items.count + line

    def output_name(self, package: int, ordinal: int) -> str:
        """The name of an output of a package."""
        block = self.of(package)
        return block.output_name(block.position(package), ordinal)
