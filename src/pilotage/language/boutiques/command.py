"""From a descriptor and the values of its inputs to the command line, the paths of its outputs, and what else it needs.

All of it is substitution of value keys, one after the other in the order of the descriptor, inputs first, as bosh does
it; the result is a line for a shell. Call `check_invocation` first: nothing is refused here.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from pilotage.language.boutiques import conditions
from pilotage.language.boutiques.descriptor import Descriptor, Input, Output
from pilotage.language.boutiques.values import Value


class OutputPath(msgspec.Struct, frozen=True):
    """Where an output will be: a path, or a pattern with wildcards; None when no condition of it holds."""

    id: str
    path: str | None
    optional: bool
    is_list: bool


class ConfigurationFile(msgspec.Struct, frozen=True):
    """A file that must be there before the tool starts, made from a `file-template`."""

    path: str
    text: str


class _Purpose(Enum):
    """What a template is for; it decides about flags, quotes and keys without a value."""

    COMMAND = "command line"
    PATH = "path of an output"
    CONFIGURATION = "line of a configuration file"


def completed(descriptor: Descriptor, invocation: Mapping[str, Value]) -> dict[str, Value]:
    """The invocation with the default of every input that it leaves out or gives as null."""
    values = dict(invocation)
    for input_ in descriptor.inputs:
        if input_.default_value is not None and values.get(input_.id) is None:
            values[input_.id] = input_.default_value
    return values


def command_line(descriptor: Descriptor, invocation: Mapping[str, Value], *, directory: str = ".") -> str:
    """The command line that `bosh exec simulate` prints; `directory` is where outputs with absolute paths will be."""
    values = completed(descriptor, invocation)
    names = _output_names(descriptor, values, directory=directory, faults=[])
    return _Filler(descriptor, values, names).filled(descriptor.command_line, _Purpose.COMMAND)


def output_paths(
    descriptor: Descriptor, invocation: Mapping[str, Value], *, directory: str = "."
) -> tuple[OutputPath, ...]:
    """The path of each output, in the order of the descriptor."""
    values = completed(descriptor, invocation)
    names = _output_names(descriptor, values, directory=directory, faults=[])
    return tuple(
        OutputPath(output.id, names.get(output.id), optional=output.optional, is_list=output.is_list)
        for output in descriptor.outputs
    )


def configuration_files(
    descriptor: Descriptor, invocation: Mapping[str, Value], *, directory: str = "."
) -> tuple[ConfigurationFile, ...]:
    """The files that the tool reads its settings from; a line with a key that has no value is left empty."""
    values = completed(descriptor, invocation)
    names = _output_names(descriptor, values, directory=directory, faults=[])
    filler = _Filler(descriptor, values, names)
    files = []
    for output in descriptor.outputs:
        if output.file_template is None or output.id not in names:
            continue
        stripped = output.path_template_stripped_extensions
        lines = [filler.filled(line, _Purpose.CONFIGURATION, stripped=stripped) for line in output.file_template]
        files.append(ConfigurationFile(names[output.id], "\n".join(lines)))
    return tuple(files)


def environment(descriptor: Descriptor, invocation: Mapping[str, Value]) -> dict[str, str]:
    """The environment variables of the tool; one that stands for an input without a value is left out."""
    values = completed(descriptor, invocation)
    inputs = {input_.value_key: input_.id for input_ in descriptor.inputs if input_.value_key is not None}
    variables = {}
    for variable in descriptor.environment_variables:
        if variable.value not in inputs:
            variables[variable.name] = variable.value
        elif values.get(inputs[variable.value]) is not None:
            variables[variable.name] = str(values[inputs[variable.value]])
    return variables


def condition_faults(descriptor: Descriptor, invocation: Mapping[str, Value]) -> list[str]:
    """Why conditions of outputs cannot be decided with these values, each reason once."""
    faults: list[str] = []
    _output_names(descriptor, completed(descriptor, invocation), directory=".", faults=faults)
    return list(dict.fromkeys(faults))


def _output_names(
    descriptor: Descriptor, values: Mapping[str, Value], *, directory: str, faults: list[str]
) -> dict[str, str]:
    """The paths of the outputs by id; undecidable conditions go to `faults` and count as false."""
    names: dict[str, str] = {}
    for _ in range(2):  # the second time for paths that speak of outputs further down
        for output in descriptor.outputs:
            template = _template_of(output, descriptor, {**values, **names}, faults=faults)
            if output.path_template is not None:
                template = names.get(output.id, output.path_template)
            if template is None:
                names.pop(output.id, None)
                continue
            stripped = output.path_template_stripped_extensions
            name = _Filler(descriptor, values, names).filled(template, _Purpose.PATH, stripped=stripped)
            if output.uses_absolute_path:
                name = posixpath.normpath(posixpath.join(directory, name))
            names[output.id] = name
    return names


def _template_of(
    output: Output, descriptor: Descriptor, values: Mapping[str, Value], *, faults: list[str]
) -> str | None:
    """The path of the first condition that holds."""
    for entry in output.conditional_path_template:
        text, template = next(iter(entry.items()))
        if text.split() == [conditions.DEFAULT]:
            return template
        ids = {input_.id for input_ in descriptor.inputs} | {other.id for other in descriptor.outputs}
        try:
            if conditions.parsed(text, ids).holds(values):
                return template
        except conditions.ConditionError as fault:
            faults.append(f"the condition {text!r} of the output {output.id!r}: {fault}")
    return None


class _Filler:
    """Puts values in the place of their keys."""

    def __init__(self, descriptor: Descriptor, values: Mapping[str, Value], names: Mapping[str, str]) -> None:
        self.items: tuple[Input | Output, ...] = (*descriptor.inputs, *descriptor.outputs)
        self.values = values
        self.names = names

    def filled(self, template: str, purpose: _Purpose, *, stripped: Sequence[str] = ()) -> str:
        for item in self.items:
            key = item.value_key
            if key is None:
                continue
            value = self.names[item.id] if item.id in self.names else self.values.get(item.id)
            if value is not None:
                text = self._text(item, value, purpose)
                if isinstance(item, Input) and item.type in {"File", "String"}:
                    for extension in stripped:
                        text = text.replace(extension, "")
                    if item.type == "File" and purpose is _Purpose.PATH and template.find(key) > 0:
                        text = posixpath.basename(text)
                template = template.replace(key, text) if text else template.replace(f" {key}", "")
            elif purpose is _Purpose.COMMAND:
                template = template.replace(f" {key}" if f" {key}" in template else key, "")
            elif purpose is _Purpose.CONFIGURATION and key in template:
                return ""
        return template

    def _text(self, item: Input | Output, value: Value, purpose: _Purpose) -> str:
        kind = item.type if isinstance(item, Input) else ""
        quoted = item.id in self.names or (purpose is not _Purpose.PATH and kind in {"String", "File"})
        if isinstance(value, list):
            separator = item.list_separator if isinstance(item, Input) else " "
            text = separator.join(shlex.quote(str(part)) if quoted else str(part) for part in value)
        else:
            text = shlex.quote(str(value)) if quoted else str(value)
        if purpose is not _Purpose.COMMAND or item.command_line_flag is None:
            return text
        if kind == "Flag":
            return "" if value is False else item.command_line_flag
        return f"{item.command_line_flag}{item.command_line_flag_separator}{text}"
