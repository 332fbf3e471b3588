"""Warnings about a valid job, and checks that need its packages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pilotage.language.expansion.blocks import Block, BlockColumns
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.placeholders import unused_variables
from pilotage.language.expansion.producers import general_pattern
from pilotage.language.expansion.software import filled_parameters, find_software
from pilotage.language.folder import Folder
from pilotage.language.parsing.document import Document
from pilotage.language.parsing.iterations import sources
from pilotage.language.parsing.kinds import FieldPath
from pilotage.language.parsing.rules import MarkOf, values_in
from pilotage.language.text.names import tidy_name, why_outside
from pilotage.language.text.patterns import can_both_match, literal
from pilotage.language.text.templates import parse_template
from pilotage.language.text.tree import Mark, Report
from pilotage.model.errors import did_you_mean
from pilotage.model.jobs.definition import Binary, Container, Definition, InputFile, OutputFile, Package, Source

if TYPE_CHECKING:
    from pilotage.language.expansion.tool_outputs import KnownValues
    from pilotage.language.expansion.tool_software import BoutiquesTool

NO_OUTPUTS = "no-outputs"
PARAMETERS_CHECKED_MAX = 10_000
PARTS_SHOWN_MAX = 10
PART_HINTS = {
    "output-files": "declare the files in outputs",
    "file-template": "write the file in an earlier binary",
    "container-image": "give the package a container",
}


def advise(definition: Definition, report: Report, mark: MarkOf, *, executors: Collection[str]) -> None:
    """Warn about what is allowed but probably not intended."""
    for place, variable in unused_variables(definition):
        report.warn("unused-variable", f"nothing uses the variable {variable!r}", mark(place))
    for place, variable, files in _unused_files(definition):
        message = (
            f"the stage iterates over the files {files!r}, but none of its packages has {{{variable}}} as an input"
        )
        hint = f'add inputs: ["{{{variable}}}"], so that each package waits for its file and gets it'
        report.warn("not-taken", message, mark(place), hint=hint)
    for place, output in _unused_outputs(definition):
        message = f"nothing uses the output {output!r}, and it may be deleted"
        report.warn("unused-output", message, mark(place), hint="keep it, or leave it out")
    for place, value in values_in(definition):
        if isinstance(value, Package) and value.executor and value.executor not in executors:
            message = f"no site and no kind of site is called {value.executor!r} here: it may run anywhere"
            report.warn(
                "unknown-executor", message, mark((*place, "executor")), hint=did_you_mean(value.executor, executors)
            )


def advise_on_outputs(definition: Definition, report: Report, mark: MarkOf) -> None:
    """Warn about each stage without outputs: its files are removed with the folders of its packages."""
    for number, stage in enumerate(definition.stages):
        packages = [package for line in stage.lines for package in line.packages]
        if packages and not any(map(_may_give_files, packages)):
            who = f"the stage {stage.name!r}" if stage.name else "the stage"
            message = f"{who} declares no outputs: all files that it writes are removed when its package ends"
            hint = "name the files to keep, as in outputs: [result.dat]; a stage that only prints or sends something needs none"
            report.warn(NO_OUTPUTS, message, mark(("stages", number)), hint=hint)


def _may_give_files(package: Package) -> bool:
    """Whether a package declares outputs or needs none: it acts elsewhere, or a descriptor may declare its outputs."""
    if package.noop or package.done or package.subjob or package.side_effects:
        return True
    return any(b.outputs or b.stdout or b.stderr or b.software for b in package.binaries)


def check_parameters(expansion: Expansion, report: Report, mark: MarkOf) -> None:
    """Check parameters of software against its Boutiques descriptor, and warn about unused parts of the descriptor."""
    warned: set[tuple[str, str, str]] = set()
    for block in expansion.blocks:
        for number, binary in enumerate(block.declared.binaries):
            place: FieldPath = (*block.place, "binaries", number)
            software = find_software(expansion.definition, binary) if binary.software else None
            if software is None or software.boutiques is None or not block.count:
                continue
            # Few documents use descriptors, and importing their reader takes time.
            from pilotage.language.expansion.tool_software import container_of, known_values, tool_of_descriptor

            found = tool_of_descriptor(software.boutiques)
            _check_distinct(found, block, binary, report, mark((*place, "parameters")))
            image = container_of(expansion.definition, block.declared)
            parts = _parts_unused(found, block, binary, known_values(block), image=image)
            subject = (binary.software, binary.version, "; ".join(parts))
            if parts and subject not in warned:
                warned.add(subject)
                _warn_of_parts(parts, binary, report, mark((*place, "software")))


def _check_distinct(found: BoutiquesTool, block: Block, binary: Binary, report: Report, at: Mark) -> None:
    """Check each set of parameters once, however many packages use it."""
    names = sorted({p.name for text in texts_in(binary.parameters) for p in parse_template(text).placeholders})
    columns, varying = BlockColumns(block), [name for name in names if name not in block.constants]
    first: dict[tuple[str, ...], int] = {}
    for position, row in enumerate(zip(*(columns[name] for name in varying), strict=True)):
        first.setdefault(row, position)
    refused: dict[str, int] = {}
    for row, position in islice((first or {(): 0}).items(), PARAMETERS_CHECKED_MAX):
        values = {**block.constants, **dict(zip(varying, row, strict=True))}
        for message in found.refusals(filled_parameters(binary.parameters, values)):
            refused.setdefault(message, position)
    for message, position in refused.items():
        report.error("bad-parameters", f"{block.package_name(position)} ({binary.software}): {message}", at)
    if len(first) > PARAMETERS_CHECKED_MAX:
        message = (
            f"of {len(first):,} different sets of parameters for {binary.software!r} "
            f"the first {PARAMETERS_CHECKED_MAX:,} were checked"
        )
        report.warn("parameters-unchecked", message, at)


def _parts_unused(
    found: BoutiquesTool, block: Block, binary: Binary, known: KnownValues, *, image: Container | None
) -> list[str]:
    """The parts of a descriptor that the job does not use."""
    parts = found.unsupported(binary.parameters, known)
    if binary.outputs:
        parts = [part for part in parts if not part.startswith("output-files:")]
    if block.declared.container is not None:
        parts = [part for part in parts if not part.startswith("container-image:")]
    elif found.container is not None and image is None:
        parts.append("container-image: the binaries of the package do not share it")
    return parts


def _warn_of_parts(parts: Sequence[str], binary: Binary, report: Report, at: Mark) -> None:
    shown = "; ".join(parts[:PARTS_SHOWN_MAX])
    more = f"; and {len(parts) - PARTS_SHOWN_MAX} more" if len(parts) > PARTS_SHOWN_MAX else ""
    fields = {part.partition(":")[0] for part in parts}
    hints = [hint for field, hint in PART_HINTS.items() if field in fields]
    message = f"parts of the descriptor of {binary.software!r} are not used: {shown}{more}"
    report.warn("descriptor-part-unused", message, at, hint="; ".join(hints))


def texts_in(value: object) -> Iterator[str]:
    """The texts inside a parameter's value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_in(item)


def _unused_files(definition: Definition) -> Iterator[tuple[FieldPath, str, str]]:
    """Files that a stage iterates over and none of its packages has as an input."""
    for number, stage in enumerate(definition.stages):
        taken = {
            placeholder.name
            for line in stage.lines
            for package in line.packages
            for binary in package.binaries
            for text in (binary.stdin, *(given.name for given in binary.inputs))
            for placeholder in parse_template(text).placeholders
        }
        described = any(b.software for line in stage.lines for package in line.packages for b in package.binaries)
        for source in (s for each in (stage.each, *(line.each for line in stage.lines)) for s in sources(each)):
            if source.files and source.variable not in taken and not described:
                yield ("stages", number), source.variable, source.files


def _unused_outputs(definition: Definition) -> Iterator[tuple[FieldPath, str]]:
    """Outputs that may be deleted, are not stored, and match no input."""
    values = list(values_in(definition))
    texts = [v.name for _, v in values if isinstance(v, InputFile)]
    texts += [v.stdin for _, v in values if isinstance(v, Binary) and v.stdin]
    texts += [v.files for _, v in values if isinstance(v, Source) and v.files]
    needed = [general_pattern(parse_template(text)) for text in texts]
    for place, output in values:
        if not isinstance(output, OutputFile) or "deletable" not in output.dispositions:
            continue
        if "store" in output.dispositions or output.locator:
            continue
        text = output.name or (f"{output.folder}/**" if output.folder else "**")
        made = general_pattern(parse_template(text))
        if not any(can_both_match(made, pattern) for pattern in needed):
            yield (*place, "dispositions"), text


# Programs that a document names by a path and that do not exist: their packages cannot start.


def warn_of_missing_programs(document: Document, folder: Folder) -> None:
    """Warn about each program such as `./simulate` that is neither in the folder nor made by a package."""
    definition, warned = document.definition, set[str]()
    for place, package in values_in(definition):
        if not isinstance(package, Package) or package.container is not None or package.noop or package.done:
            continue
        for number, binary in enumerate(package.binaries):
            field = "run" if binary.run else "invoking_script"
            word = binary.run[0] if binary.run else binary.invoking_script
            program = _named_by_a_path(word)
            if not program or program in warned or folder.exists(program) or _is_made(program, definition):
                continue
            warned.add(program)
            where = document.report.found(document.mark((*place, "binaries", number, field)), word)
            message = f"the program {word!r} does not exist, and no package makes it: the command cannot start"
            hint = "names are relative to the folder of the document; a program in the PATH is named without a folder"
            document.report.warn("missing-program", message, where, hint=hint)


def _named_by_a_path(word: str) -> str:
    """The file of a program that is named by a path within the folder; otherwise empty."""
    if "/" not in word or "{" in word or word.startswith(("/", "~", "$")) or why_outside(word):
        return ""
    return tidy_name(word)


def _is_made(program: str, definition: Definition) -> bool:
    """Whether a package may make a program, or has it as an input."""
    for _, binary in values_in(definition):
        if not isinstance(binary, Binary):
            continue
        texts = [output.name or f"{output.folder or '.'}/**" for output in binary.outputs]
        texts += [
            binary.stdout,
            *(given.name for given in binary.inputs if given.locator or given.acquisition == "self"),
        ]
        if any(
            text and can_both_match(tidy_name(general_pattern(parse_template(text))), literal(program))
            for text in texts
        ):
            return True
    return False
