"""What a job says that WfFormat has no word for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import msgspec

from pilotage.language.expansion.expansion import Expansion
from pilotage.language.losses import Losses
from pilotage.language.reading.rules import values_in
from pilotage.model.definition import (
    Binary,
    Container,
    Definition,
    Environment,
    InputFile,
    Line,
    OutputFile,
    Package,
    Progress,
    Resources,
    Retry,
    Scripts,
    Software,
    Stage,
    Value,
)
from pilotage.model.graph import EdgeKind

# The fields that an export carries, or that are used up by it: templates, iteration and software are written out.
_CARRIED: dict[type[Value], frozenset[str]] = {
    Definition: frozenset(
        {"pilotage", "job", "created", "description", "variables", "software", "stages", "environment"}
    ),
    Stage: frozenset({"each", "lines"}),
    Line: frozenset({"each", "packages"}),
    Package: frozenset(
        {"name", "activity", "startup_script", "startup_parameters", "resources", "priority", "after", "binaries"}
        | {"environment", "container", "retry", "progress", "scripts"}  # each of these is listed as what it is itself
    ),
    Binary: frozenset(
        {"run", "shell", "software", "version", "invoking_script", "parameters", "arguments", "inputs", "outputs"}
        | {"stdin", "stdout", "stderr", "cpu_percent", "run_time_seconds", "environment"}
    ),
    Resources: frozenset({"cores", "memory_bytes"}),
    InputFile: frozenset({"name", "size_bytes"}),
    OutputFile: frozenset({"name", "expression", "folder", "size_bytes"}),
}
_WORDS: dict[type[Value], str] = {
    Definition: "job",
    Stage: "stage",
    Line: "line",
    Package: "package",
    Binary: "binary",
    Resources: "resources",
    InputFile: "input",
    OutputFile: "output",
}
_WHOLE: dict[type[Value], str] = {
    Environment: "environment",
    Container: "package.container",
    Retry: "package.retry",
    Progress: "package.progress",
    Scripts: "package.scripts",
}
_SAYS_NOTHING: tuple[Value, ...] = (Environment(), Retry(), Scripts())
_NO_WORD = "WfFormat has no word for it"

_UNSAID = frozenset(
    f"{_WORDS[kind]}.{field}" for kind in _WORDS for field in kind.__struct_fields__ if field not in _CARRIED[kind]
) | frozenset(_WHOLE.values())

# What is said differently rather than not at all; here, in the writer, and where commands are written.
_CHANGED = frozenset(
    {"binary.arguments", "binary.stdout", "execution", "input.name", "line.early_start", "output.name"}
    | {"package.binaries", "resources.cores", "runtimeInSeconds", "sizeInBytes", "stage.each", "tasks"}
)

EXPORT_KEYWORDS = _UNSAID | _CHANGED


def note_unsaid(expansion: Expansion, losses: Losses) -> None:
    """List every field of a job that is set and that an export cannot carry, once each."""
    for keyword in _unsaid(expansion.definition):
        losses.add(keyword, _NO_WORD, file="")
    if any((segment.kinds & int(EdgeKind.AWAITED) == 0).any() for segment in expansion.graph.segments):
        losses.add("line.early_start", "a task follows its parents: nothing starts early", file="")
    if any(block.makes_pattern(output) for block in expansion.blocks if block.count for _, output in block.outputs()):
        losses.add("output.name", "a pattern is no file: what will match is not known, the edge alone is kept", file="")


def _unsaid(definition: Definition) -> Iterator[str]:
    for _, value in values_in(definition):
        kind = type(value)
        if isinstance(value, Software):
            continue
        if kind in _WHOLE:
            if value not in _SAYS_NOTHING:
                yield _WHOLE[kind]
        elif kind in _CARRIED:
            for name, default in _unsaid_fields(kind):
                if getattr(value, name) != default:
                    yield f"{_WORDS[kind]}.{name}"


@cache  # asking msgspec evaluates the annotations anew each time
def _unsaid_fields(kind: type[Value]) -> list[tuple[str, object]]:
    """The fields of a record that an export cannot carry, with their defaults."""
    fields = [field for field in msgspec.structs.fields(kind) if field.name not in _CARRIED[kind]]
    # A mapping has a factory for its default, and says nothing when it is empty.
    return [(field.name, {} if field.default is msgspec.NODEFAULT else field.default) for field in fields]
