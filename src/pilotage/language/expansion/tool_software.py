"""Software described by a Boutiques descriptor, as a binary of a job uses it.

A `BoutiquesTool` is made once per descriptor and cached. Files, variables, image and resources of the descriptor apply where
the document declares none.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import msgspec

from pilotage.language import boutiques
from pilotage.language.boutiques import Descriptor, Input, check_invocation, command_line
from pilotage.language.expansion.software import find_software
from pilotage.language.expansion.tool_outputs import (
    KnownValues,
    OutputTemplates,
    bound,
    boutiques_values,
    escaped,
    literal_name,
    nothing_known,
    output_templates,
    plain_value,
)
from pilotage.language.text.names import tidy_name
from pilotage.language.text.patterns import literal
from pilotage.language.text.templates import Placeholder, parse_template
from pilotage.language.text.tree import Report, tree_of
from pilotage.model.errors import DocumentError
from pilotage.model.jobs.definition import (
    Binary,
    Container,
    Definition,
    InputFile,
    OutputFile,
    Package,
    Resources,
    Software,
)

GIGABYTE = 10**9
ERROR_CODE_CHARACTERS_MAX = 300
"""The longest description of an exit code, which becomes a line of a message."""
_KEPT_MAX = 64
_ELSEWHERE = re.compile(r"/|~|[A-Za-z][A-Za-z0-9+.-]*:/")  # outside the job's tree: an absolute path or a URL
_INDEX = re.compile(r"[A-Za-z0-9]+://")
_IMAGE_FILE = re.compile(r".*\.(sif|simg|img)")


class BoutiquesTool:
    """A software with a Boutiques descriptor: its command, inputs and outputs for given parameters.

    `command`, `refusals` and `environment` take parameters that are filled in; `inputs`, `outputs` and `unsupported` take those
    of the document, with placeholders, and `known` returns the values of these.
    """

    def __init__(self, descriptor: Mapping[str, object]) -> None:
        """Read a descriptor; raises `DocumentError` if it is invalid."""
        report = Report("descriptor")
        found = boutiques.read_descriptor(tree_of(descriptor), report)
        if found is None:
            raise DocumentError(report.errors)
        self.descriptor: Descriptor = found

    def refusals(self, parameters: Mapping[str, object]) -> list[str]:
        """The reasons why bosh would reject a set of parameters."""
        report = Report("parameters")
        check_invocation(self.descriptor, boutiques_values(self.descriptor, parameters), report)
        return [problem.message for problem in report.errors]

    def command(self, parameters: Mapping[str, object]) -> str:
        """The shell command for a set of parameters; raises `DocumentError` if bosh would reject them."""
        report, values = Report("parameters"), boutiques_values(self.descriptor, parameters)
        check_invocation(self.descriptor, values, report)
        report.refuse_if_faulty()
        return command_line(self.descriptor, values)

    def argv(self, parameters: Mapping[str, object]) -> tuple[str, ...]:
        """The argument list: the shell of the descriptor with the command."""
        return (self.descriptor.shell, "-c", self.command(parameters))

    def environment(self, parameters: Mapping[str, object]) -> dict[str, str]:
        """The environment variables of the tool, without those of inputs that have no value."""
        return boutiques.environment(self.descriptor, boutiques_values(self.descriptor, parameters))

    @property
    def container(self) -> Container | None:
        """The image: a docker image runs in any engine, a singularity image in apptainer."""
        image = self.descriptor.container_image
        if image is None or image.type == "rootfs":
            return None
        if image.type == "docker":
            name = image.image.removeprefix("docker://")
            index = _INDEX.sub("", image.index or "").strip("/")
            if index and not name.startswith(f"{index}/"):
                name = f"{index}/{name}"
            return Container(image=escaped(name), engine="any")
        name = image.image
        if not _INDEX.match(name) and (image.index or not _IMAGE_FILE.fullmatch(name)):
            index = image.index or "shub://"
            name = f"{index if index.endswith('/') else index + '/'}{name}"
        return Container(image=escaped(name), engine="apptainer")

    @property
    def resources(self) -> Resources:
        """The resources that the author suggests, without the estimated time, which is not a limit."""
        suggested = self.descriptor.suggested_resources
        return Resources(
            cores=suggested.cpu_cores or 1,
            memory_bytes=None if suggested.ram is None else round(suggested.ram * GIGABYTE),
            nodes=suggested.nodes or 1,
            scratch_bytes=None if suggested.disk_space is None else round(suggested.disk_space * GIGABYTE),
        )

    @property
    def error_codes(self) -> dict[str, str]:
        """The meaning of exit codes; of a code that is described twice, the first description, as in bosh."""
        found: dict[str, str] = {}
        for each in self.descriptor.error_codes:
            found.setdefault(str(each.code), " ".join(each.description.split())[:ERROR_CODE_CHARACTERS_MAX])
        return found

    @property
    def run_time_seconds(self) -> float | None:
        """The estimated time of one run, for `Binary.run_time_seconds`."""
        return self.descriptor.suggested_resources.walltime_seconds

    def outputs(self, parameters: Mapping[str, object], known: KnownValues = nothing_known) -> tuple[OutputFile, ...]:
        """The outputs that can be expressed as templates."""
        return self._templates(parameters, known).outputs

    def inputs(self, parameters: Mapping[str, object], known: KnownValues = nothing_known) -> tuple[InputFile, ...]:
        """The files of File inputs in the job's tree, as templates."""
        names: dict[str, InputFile] = {}
        paths = {path for output in self.descriptor.outputs for path in _paths_of(output)}
        for item in self.descriptor.inputs:
            # An input whose value is the path of an output names a file that the tool makes.
            if item.type == "File" and (item.value_key is None or item.value_key not in paths):
                for name in _file_names(item, parameters.get(item.id), known):
                    names.setdefault(name, InputFile(name=name))
        return tuple(names.values())

    def unsupported(self, parameters: Mapping[str, object], known: KnownValues = nothing_known) -> list[str]:
        """The parts of the descriptor that a job cannot use, each with the name of its field before a colon."""
        found = [f"output-files: {part}" for part in self._templates(parameters, known).unsupported]
        found += [
            f"file-template: the configuration file {output.id!r} is not written"
            for output in self.descriptor.outputs
            if output.file_template is not None
        ]
        image = self.descriptor.container_image
        if image is not None:
            if image.type == "rootfs":
                found.append("container-image: no engine runs a root file system")
            if image.entrypoint:
                found.append("container-image: the entrypoint of the image is ignored; only the command line runs")
            if image.container_opts:
                found.append(f"container-image: the options {' '.join(image.container_opts)!r} are not passed on")
            if image.working_directory:
                found.append("container-image: the working directory is the package's own")
            if image.container_hash:
                found.append("container-image: the hash is not compared")
        return found

    def _templates(self, parameters: Mapping[str, object], known: KnownValues) -> OutputTemplates:
        return output_templates(self.descriptor, parameters, known)


def _paths_of(output: boutiques.Output) -> Iterator[str]:
    if output.path_template is not None:
        yield output.path_template
    for entry in output.conditional_path_template:
        yield from entry.values()


def _file_names(item: Input, value: object, known: KnownValues) -> Iterator[str]:
    """The templates of the files of one input, or of its default in the descriptor."""
    if value is None:
        default = item.default_value
        texts = [escaped(text) for text in (default if isinstance(default, list) else [default]) if text is not None]
    else:
        texts = [str(bound(text, known)) for text in (value if isinstance(value, list) else [value])]
    for text in texts:
        plain = plain_value(text)
        if isinstance(plain, str):
            if plain and not _ELSEWHERE.match(plain):
                yield literal_name(tidy_name(plain))
        elif not _is_elsewhere(text, known):
            parts = parse_template(text).parts
            yield "".join(escaped(literal(part)) if isinstance(part, str) else str(part) for part in parts)


def _is_elsewhere(text: str, known: KnownValues) -> bool:
    """Whether a file is outside the job's tree for all its values."""
    first = parse_template(text).parts[0]
    if not isinstance(first, Placeholder):
        return _ELSEWHERE.match(first) is not None
    values = known(first.name)
    return bool(values) and all(_ELSEWHERE.match(value) for value in values or ())


class HasColumns(Protocol):
    """The variables of a block of packages."""

    constants: Mapping[str, str]

    def column(self, name: str) -> _Texts | None:
        """The column of an iteration variable."""
        ...

    def is_list(self, name: str) -> bool:
        """Whether each value is a list."""
        ...


class _Texts(Protocol):
    def texts(self) -> list[str]: ...


def known_values(block: HasColumns) -> KnownValues:
    """A function that returns the values of a block's variables, cached."""
    kept: dict[str, frozenset[str] | None] = {}

    def known(name: str) -> frozenset[str] | None:
        if name not in kept:
            kept[name] = values_of(name)
        return kept[name]

    def values_of(name: str) -> frozenset[str] | None:
        if name in block.constants:
            return frozenset((block.constants[name],))
        column = None if block.is_list(name) else block.column(name)
        return None if column is None else frozenset(column.texts())

    return known


_kept: OrderedDict[int, tuple[Mapping[str, object], BoutiquesTool]] = OrderedDict()


def tool_of_descriptor(descriptor: Mapping[str, object]) -> BoutiquesTool:
    """The software of a descriptor, read once for all packages that use it."""
    # The key is the identity of the descriptor, which the cache keeps alive.
    entry = _kept.get(id(descriptor))
    if entry is not None and entry[0] is descriptor:
        return entry[1]
    found = BoutiquesTool(descriptor)
    _kept[id(descriptor)] = (descriptor, found)
    while len(_kept) > _KEPT_MAX:
        _kept.popitem(last=False)
    return found


def tool_of_software(software: Software | None) -> BoutiquesTool | None:
    """The Boutiques description of a software, or None."""
    return None if software is None or software.boutiques is None else tool_of_descriptor(software.boutiques)


def tool_of_binary(definition: Definition, binary: Binary) -> BoutiquesTool | None:
    """The Boutiques description of the software of a binary, or None."""
    return tool_of_software(find_software(definition, binary)) if binary.software else None


def with_described_files(binary: Binary, found: BoutiquesTool, known: KnownValues = nothing_known) -> Binary:
    """A binary with the files of its descriptor; a file that the document declares under the same name wins."""
    declared_inputs = {tidy_name(given.name) for given in binary.inputs}
    declared_outputs = {tidy_name(output.name) for output in binary.outputs if output.name}
    outputs = [o for o in found.outputs(binary.parameters, known) if tidy_name(o.name) not in declared_outputs]
    made = declared_outputs | {tidy_name(output.name) for output in outputs}
    inputs = [i for i in found.inputs(binary.parameters, known) if tidy_name(i.name) not in declared_inputs | made]
    run_time = found.run_time_seconds if binary.run_time_seconds is None else binary.run_time_seconds
    return msgspec.structs.replace(
        binary,
        inputs=(*binary.inputs, *inputs),
        outputs=(*binary.outputs, *outputs),
        run_time_seconds=run_time,
    )


def container_of(definition: Definition, package: Package) -> Container | None:
    """The image of a package: that of the document, or the one that the descriptors of all its binaries name."""
    if package.container is not None:
        return package.container
    found = [tool_of_binary(definition, binary) for binary in package.binaries]
    images = {None if one is None else one.container for one in found}
    return images.pop() if len(images) == 1 else None


def resources_of(definition: Definition, package: Package) -> Resources:
    """The resources of a package: those of the document, or else the maximum that its descriptors suggest."""
    own, usual = package.resources, Resources()
    suggested = [one.resources for b in package.binaries if (one := tool_of_binary(definition, b)) is not None]

    def most(field: str) -> Any:
        own_value = getattr(own, field)
        if own_value != getattr(usual, field):
            return own_value
        known = (own_value, *(getattr(one, field) for one in suggested))
        return max((amount for amount in known if amount is not None), default=None)

    return Resources(**{field: most(field) for field in Resources.__struct_fields__})
