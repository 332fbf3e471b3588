"""What this version cannot do for a job, refused by name before anything is spent; a field is never ignored."""

from __future__ import annotations

from collections.abc import Iterator

from pilotage.model.definition import Binary, Definition, InputFile, OutputFile, Package
from pilotage.model.errors import Problem

_STORES = "so far every file is in the folder of the document"


def refusals(definition: Definition, *, file: str) -> list[Problem]:
    """The fields of a definition that cannot be honoured yet, each with where it stands in words."""
    found = []
    for number, stage in enumerate(definition.stages, start=1):
        where = f"stage {stage.name!r}" if stage.name else f"stage {number}"
        for line in stage.lines:
            for package in line.packages:
                for field, why in _of_package(package):
                    message = f"{where}: this version does not know how to honour {field}"
                    found.append(Problem(file=file, code="not-supported", message=message, hint=why))
    return list(dict.fromkeys(found))


def _of_package(package: Package) -> Iterator[tuple[str, str]]:
    if package.resources.nodes > 1:
        yield f"nodes: {package.resources.nodes}", "so far a package runs on one node"
    if package.subjob:
        yield f"subjob: {package.subjob}", "run that document by itself first, and take its files as inputs"
    if package.role in ("service", "provisioner"):
        yield f"role: {package.role}", "start it beside the job, by hand"
    if package.node_restriction:
        yield f"node_restriction: {', '.join(package.node_restriction)}", "name a site with `executor` instead"
    if package.scripts.hold is not None:
        yield "scripts.hold", "subscribe to the event of the hold instead"
    for binary in package.binaries:
        yield from _of_binary(binary)


def _of_binary(binary: Binary) -> Iterator[tuple[str, str]]:
    for given in binary.inputs:
        yield from _of_input(given)
    for output in binary.outputs:
        yield from _of_output(output)


def _of_input(given: InputFile) -> Iterator[tuple[str, str]]:
    if given.acquisition == "prefetch":
        yield f"acquisition: prefetch of the input {given.name!r}", _STORES
    elif given.locator and given.acquisition != "self":
        yield f"locator: {given.locator} of the input {given.name!r}", f"{_STORES}, or fetched by the binary: `self`"


def _of_output(output: OutputFile) -> Iterator[tuple[str, str]]:
    name = output.name or output.expression
    if output.locator:
        yield f"locator: {output.locator} of the output {name!r}", _STORES
    if output.replicas > 1:
        yield f"replicas: {output.replicas} of the output {name!r}", _STORES
    if "store" in output.dispositions:
        yield f"disposition `store` of the output {name!r}", _STORES
