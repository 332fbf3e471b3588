"""What a writer should know about a valid job, and what can only be checked once its packages are known."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.makers import general_pattern
from pilotage.language.expansion.placeholders import unused_variables
from pilotage.language.expansion.software import filled_parameters, find_software
from pilotage.language.reading.kinds import Place
from pilotage.language.reading.rules import MarkOf, values_in
from pilotage.language.text.patterns import can_both_match
from pilotage.language.text.templates import parse_template
from pilotage.language.text.tree import Report
from pilotage.model.definition import Binary, Definition, InputFile, OutputFile, Package, Source
from pilotage.model.errors import did_you_mean

PARAMETERS_CHECKED_MAX = 1000


def advise(definition: Definition, report: Report, mark: MarkOf, *, executors: Collection[str]) -> None:
    """Note what is allowed and probably not meant."""
    for place, variable in unused_variables(definition):
        report.warn("unused-variable", f"nothing uses the variable {variable!r}", mark(place))
    for place, output in _unused_outputs(definition):
        message = f"nobody uses the output {output!r}, and it may be deleted"
        report.warn("unused-output", message, mark(place), hint="let it be kept, or leave it out")
    for place, value in values_in(definition):
        if isinstance(value, Package) and value.executor and value.executor not in executors:
            message = f"no executor {value.executor!r} is known here: the default is taken"
            report.warn(
                "unknown-executor", message, mark((*place, "executor")), hint=did_you_mean(value.executor, executors)
            )


def check_parameters(expansion: Expansion, report: Report, mark: MarkOf) -> None:
    """Hold the parameters of software that Boutiques describes against its descriptor, for the first thousand packages."""
    for block in expansion.blocks:
        for place, binary in block.binaries():
            software = find_software(expansion.definition, binary) if binary.software else None
            if software is None or software.boutiques is None:
                continue
            from pilotage.language.expansion.described import check_parameters as refusals

            seen: dict[str, int] = {}
            for position in range(min(block.count, PARAMETERS_CHECKED_MAX)):
                values = {**block.values(position), "inputs": (), "outputs": (), "arguments": ()}
                for message in refusals(software.boutiques, filled_parameters(binary.parameters, values)):
                    seen.setdefault(message, position)
            for message, position in seen.items():
                name = _first_name(block, position)
                report.error("bad-parameters", f"{name}: {message}", mark((*place, "parameters")))


def _first_name(block: Block, position: int) -> str:
    return f"{block.package_name(position)} ({block.package.binaries[0].software})"


def _unused_outputs(definition: Definition) -> Iterator[tuple[Place, str]]:
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
