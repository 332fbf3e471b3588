"""Whether the values of a block can stand where its `shell:` scripts have them: in arithmetic, in here-documents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.placeholders import NoteFault
from pilotage.language.expansion.software import filled_parameters, parameter_texts, ways_of
from pilotage.language.reading.kinds import Place
from pilotage.language.text.templates import Values, parse_template, shell_script, unfit_value
from pilotage.model.definition import Binary, Definition

_FILE_LISTS = frozenset({"inputs", "outputs", "arguments"})
_SMALL_NUMBER = re.compile(r"[0-9]{1,18}")


def check_script_values(
    block: Block, definition: Definition, columns: Mapping[str, Sequence[str]], error: NoteFault
) -> None:
    """Note the first value of each script that cannot be filled in; of most scripts none has to be looked at.

    Names of files that `{inputs}` and `{outputs}` stand for are not known here: a script that cannot take one fails.
    """
    for place, binary in block.binaries():
        for text, inner, parameters in _scripts(binary, block, definition):
            script = shell_script(text)
            if script.fault or script.takes_any_value:
                continue
            lists = [
                gap
                for gap, slot in zip(parse_template(text, "shell").placeholders, script.slots, strict=True)
                if slot.context == "arithmetic" and gap.name in _FILE_LISTS
            ]
            if lists:
                error("list-in-text", f"{lists[0]} is a list, and only a number can stand in $(( ))", (*place, *inner))
                continue
            unfit = list(_unfit(text, block, columns, parameters, numbers_fit=not script.documents))
            if unfit:
                position, reason = unfit[0]
                more = f" (and {len(unfit) - 1:,} more)" if len(unfit) > 1 else ""
                error("unfit-value", f"{block.package_name(position)}{more}: {reason}", (*place, *inner))


def _scripts(
    binary: Binary, block: Block, definition: Definition
) -> Iterator[tuple[str, Place, Mapping[str, object] | None]]:
    """The scripts of a binary, or of its software with the parameters that it is given."""
    if binary.shell:
        yield binary.shell, ("shell",), None
    for way in ways_of(definition, block.package, binary):
        if way.execution.shell:
            yield way.execution.shell, ("software",), binary.parameters


def _unfit(
    text: str,
    block: Block,
    columns: Mapping[str, Sequence[str]],
    parameters: Mapping[str, object] | None,
    *,
    numbers_fit: bool,
) -> Iterator[tuple[int, str]]:
    """The packages whose values do not fit, with the reason."""
    names = {gap.name for gap in parse_template(text, "shell").placeholders}
    if names & _FILE_LISTS:
        return
    if parameters is not None or any(block.is_list(name) for name in names):
        for position in range(block.count):
            values: Values = block.values(position)
            if parameters is not None:
                values = {**values, **parameter_texts(filled_parameters(parameters, values))}
            reason = unfit_value(text, values)
            if reason:
                yield position, reason
        return
    varying = [name for name in sorted(names) if name not in block.constants]
    rows = zip(*(columns[name] for name in varying), strict=True) if varying else [()] * min(block.count, 1)
    constants_fit = numbers_fit and all(_SMALL_NUMBER.fullmatch(block.constants[name]) for name in names - {*varying})
    for position, row in enumerate(rows):
        if constants_fit and all(map(_SMALL_NUMBER.fullmatch, row)):
            continue
        reason = unfit_value(text, {**block.constants, **dict(zip(varying, row, strict=True))})
        if reason:
            yield position, reason
