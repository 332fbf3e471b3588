"""Writes out one package: its commands, its inputs and outputs, and its variables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from pilotage.language.expansion.blocks import Block, binary_of
from pilotage.language.expansion.software import (
    Choose,
    Way,
    environment_levels,
    filled_parameters,
    find_software,
    parameter_texts,
    way_beforehand,
    ways_of,
)
from pilotage.language.parsing.records import fields_of
from pilotage.language.text.locators import locator_of, origin_of
from pilotage.language.text.names import tidy_name
from pilotage.language.text.patterns import is_pattern, literal
from pilotage.language.text.templates import (
    Template,
    Values,
    literal_text,
    parse_template,
    render,
    render_arguments,
    render_shell,
)
from pilotage.model.errors import PilotageError
from pilotage.model.jobs.definition import (
    Binary,
    Container,
    Definition,
    Environment,
    FailurePattern,
    InputFile,
    OutputFile,
    Package,
    Progress,
    Scripts,
    Value,
)
from pilotage.model.jobs.layout import PackageId

Record = TypeVar("Record", bound=Value)
MatchingInputs = Callable[[str, int], tuple[str, ...] | None]  # of a pattern, for the binary of this number
SHELL = ("/bin/sh", "-c")


class ConcreteInput(msgspec.Struct, frozen=True, kw_only=True):
    """One input and its files. `awaited`: further files may match a pattern that is not made yet."""

    declared: InputFile
    names: tuple[str, ...]
    locator: str  # of the first file
    locators: tuple[str, ...] = ()  # of each file; none: it is in the job's tree
    awaited: bool = False


class ConcreteOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One output: a name, a pattern, or a regular expression with its folder."""

    declared: OutputFile
    name: str
    locator: str


class ConcreteBinary(msgspec.Struct, frozen=True, kw_only=True):
    """One command with its files; `argv` is complete."""

    declared: Binary
    software: str  # id@version of its description, or empty
    argv: tuple[str, ...]
    inputs: tuple[ConcreteInput, ...]
    outputs: tuple[ConcreteOutput, ...]
    stdin: str
    stdout: str
    stderr: str
    environment: Environment
    error_codes: Mapping[str, str] = {}  # the meaning of exit codes, from its description


class ConcretePackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package with all placeholders filled in."""

    number: int
    id: PackageId
    path: str
    name: str
    activity: str
    tag: str
    declared: Package
    startup: tuple[str, ...]
    container: Container | None
    scripts: Scripts
    progress: Progress | None
    failure_patterns: tuple[FailurePattern, ...]
    subjob: str
    binaries: tuple[ConcreteBinary, ...]

    @property
    def awaited(self) -> bool:
        """Whether some of its inputs are not known yet, so that its commands cannot run."""
        return any(given.awaited for binary in self.binaries for given in binary.inputs)

    @property
    def needed(self) -> list[str]:
        """The names of all inputs, and the patterns of those that are not made yet."""
        found = [name for binary in self.binaries for given in binary.inputs for name in given.names]
        found += [g.declared.name for b in self.binaries for g in b.inputs if g.awaited and is_pattern(g.declared.name)]
        return found + [binary.stdin for binary in self.binaries if binary.stdin]

    @property
    def made(self) -> list[str]:
        """The names and patterns of all outputs."""
        found = [output.name for binary in self.binaries for output in binary.outputs]
        streams = [stream for b in self.binaries for stream in (b.stdout, b.stderr) if stream]
        return list(dict.fromkeys(found + streams))


def write_package(
    block: Block,
    package: int,
    *,
    definition: Definition,
    inputs: MatchingInputs,
    left_out: Collection[str] = (),
    choose: Choose | None = None,
) -> ConcretePackage:
    """Write out one package of a block; `inputs` finds the files that match a pattern.

    Names in `left_out`, whose producers were dropped, appear in no list of inputs. `choose` selects how the software is
    started at the site of the package; without it, a way that may be possible is taken.
    """
    choose = choose or way_beforehand(block.package)
    position = block.position(package)
    values = block.values(position)
    declared = block.package
    place = block.layout.id(package)
    binaries = tuple(
        _write_binary(binary, number, block, values, definition, inputs, left_out, choose)
        for number, binary in enumerate(declared.binaries)
    )
    startup: tuple[str, ...] = ()
    if declared.startup_script:
        lists = _file_lists(binaries)
        startup = (
            render(parse_template(declared.startup_script), values),
            *render_arguments(declared.startup_parameters, {**values, **lists, "arguments": ()}),
        )
    return ConcretePackage(
        number=package,
        id=place,
        path=place.path(definition.job),
        name=block.package_name(position),
        activity=block.activity,
        tag=block.tag(position),
        declared=declared,
        startup=startup,
        container=filled(declared.container, values) if declared.container else None,
        scripts=filled(declared.scripts, values),
        progress=filled(declared.progress, values) if declared.progress else None,
        failure_patterns=tuple(filled(pattern, values) for pattern in declared.failure_patterns),
        subjob=_name(declared.subjob, values),
        binaries=binaries,
    )


def filled(record: Record, values: Values) -> Record:
    """A record with the placeholders filled in in all its texts and inner records."""
    changed: dict[str, object] = {}
    for field in fields_of(type(record)):
        found = getattr(record, field.name)
        if isinstance(found, Value):
            changed[field.name] = filled(found, values)
        elif "template" in field.marks and isinstance(found, str):
            changed[field.name] = render(parse_template(found), values)
        elif "template" in field.marks and isinstance(found, tuple):
            changed[field.name] = render_arguments(found, values)
    return msgspec.structs.replace(record, **changed)


def needed_names(block: Block, package: int, inputs: MatchingInputs) -> list[str]:
    """The names of all inputs of a package, and the patterns of those that are not made yet, without writing commands."""
    values = block.values(block.position(package))
    found: list[str] = []
    for place, given in block.inputs():
        written = _write_input(given, binary_of(place), block, values, inputs)
        found.extend(written.names)
        if written.awaited and is_pattern(given.name):
            found.append(given.name)
    return found


def _file_lists(binaries: tuple[ConcreteBinary, ...]) -> dict[str, tuple[str, ...]]:
    return {
        "inputs": tuple(name for binary in binaries for given in binary.inputs for name in given.names),
        "outputs": tuple(output.name for binary in binaries for output in binary.outputs),
    }


def _write_binary(
    binary: Binary,
    number: int,
    block: Block,
    values: Values,
    definition: Definition,
    matching: MatchingInputs,
    left_out: Collection[str],
    choose: Choose,
) -> ConcreteBinary:
    inputs = tuple(_write_input(given, number, block, values, matching, left_out) for given in binary.inputs)
    outputs = tuple(_write_output(output, block, values) for output in binary.outputs)
    known = dict(values)
    known["inputs"] = tuple(name for given in inputs for name in given.names)
    known["outputs"] = tuple(output.name for output in outputs)
    known["arguments"] = render_arguments(binary.arguments, known)
    software = find_software(definition, binary) if binary.software else None
    way: Way | None = None
    if software is not None and software.boutiques is None:
        way = _chosen(binary, block.package, definition, choose)
        software = way.release
    environment = environment_levels(definition, block.package, binary, values, way)
    error_codes: Mapping[str, str] = {}
    if software is not None and software.boutiques is not None:
        from pilotage.language.expansion.tool_software import tool_of_descriptor

        described = tool_of_descriptor(software.boutiques)
        error_codes = described.error_codes
        outer = described.environment(filled_parameters(binary.parameters, values))
        environment = msgspec.structs.replace(environment, exported={**outer, **environment.exported})
    return ConcreteBinary(
        declared=binary,
        software="@".join(filter(None, (software.id, software.version))) if software else "",
        argv=command_of(binary, known, definition, way),
        inputs=inputs,
        outputs=outputs,
        stdin=_name(binary.stdin, values),
        stdout=_name(binary.stdout, values),
        stderr=_name(binary.stderr, values),
        environment=environment,
        error_codes=error_codes,
    )


def _write_input(
    given: InputFile,
    binary: int,
    block: Block,
    values: Values,
    matching: MatchingInputs,
    left_out: Collection[str] = (),
) -> ConcreteInput:
    template = block.bound(given.name)
    lists = [p for p in template.placeholders if isinstance(values.get(p.name), tuple)]
    if lists:
        names: tuple[str, ...] | None = tuple(map(tidy_name, render_arguments((str(lists[0]),), values)))
    elif is_pattern(literal_text(template)):
        names = matching(tidy_name(render(template, values, quote=literal)), binary)
    else:
        names = (tidy_name(render(template, values)),)
    if left_out and names:
        names = tuple(name for name in names if name not in left_out)
    if not given.locator:
        return ConcreteInput(declared=given, names=names or (), locator="", awaited=names is None)
    located = {each.name: each.locator for each in located_files(block, given, values)}
    first = next(iter(located.values()), "")
    locators = tuple(located.get(name, first) for name in names or ())
    return ConcreteInput(declared=given, names=names or (), locator=first, locators=locators, awaited=names is None)


class LocatedFile(NamedTuple):
    """A file of an input with a locator."""

    name: str
    locator: str
    sha256: str  # that the document requires; empty: any


def located_files(block: Block, given: InputFile, values: Values) -> Iterator[LocatedFile]:
    """The files of an input with a locator; of a list, one for each of its values."""
    templates = [block.bound(text) for text in (given.name, given.locator, given.sha256)]
    variable = list_in(block, templates)
    listed = values[variable] if variable else ""
    for value in listed if isinstance(listed, tuple) else ("",):
        known = {**values, variable: value} if variable else values
        name, locator, sha256 = (render(template, known) for template in templates)
        name = tidy_name(name)
        yield LocatedFile(name, origin_of(locator_of(locator, name)), sha256.lower())


def list_in(block: Block, templates: Sequence[Template]) -> str:
    """The variable whose values are lists among those of some texts, or an empty text."""
    return next((gap.name for each in templates for gap in each.placeholders if block.is_list(gap.name)), "")


def _write_output(output: OutputFile, block: Block, values: Values) -> ConcreteOutput:
    locator = render(block.bound(output.locator), values) if output.locator else ""
    return ConcreteOutput(declared=output, name=block.written_output(output, values), locator=locator)


def _name(text: str, values: Values) -> str:
    return tidy_name(render(parse_template(text), values)) if text else ""


def command_of(binary: Binary, values: Values, definition: Definition, way: Way | None = None) -> tuple[str, ...]:
    """The complete argument list of a binary; `way` is the chosen way to start its software."""
    if not binary.software:
        return _command(binary.run, binary.shell, binary.invoking_script, values)
    parameters = filled_parameters(binary.parameters, values)
    if way is not None:
        execution, known = way.execution, {**values, **parameter_texts(parameters)}
        return _command(execution.run, execution.shell, execution.invoking_script, known)
    software = find_software(definition, binary)
    if software is None or software.boutiques is None:
        raise PilotageError(f"no software {binary.software!r} is described", subject=definition.job)
    from pilotage.language.expansion.tool_software import tool_of_descriptor

    return tool_of_descriptor(software.boutiques).argv(parameters)


def _chosen(binary: Binary, package: Package, definition: Definition, choose: Choose) -> Way:
    way = choose(ways_of(definition, package, binary))
    if way is None:
        message = f"the software {binary.software!r} has no execution for job type {package.job_type!r} at this site"
        raise PilotageError(message, subject=definition.job)
    return way


def _command(run: tuple[str, ...], shell: str, invoking_script: str, values: Values) -> tuple[str, ...]:
    arguments = values["arguments"]
    extra = arguments if isinstance(arguments, tuple) else (arguments,)
    if shell:
        return (*SHELL, render_shell(shell, values))
    if invoking_script:
        return (render(parse_template(invoking_script), values), *extra)
    placed = any(p.name == "arguments" for text in run for p in parse_template(text).placeholders)
    return render_arguments(run, values) + (() if placed else extra)
