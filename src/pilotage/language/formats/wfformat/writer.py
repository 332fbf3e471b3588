"""Exports WfFormat 1.5: one task for each package of an expanded job."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from pilotage.language.expansion.edge_files import edges_across
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.packages import SHELL, ConcreteBinary, ConcretePackage
from pilotage.language.formats.wfformat.instance import OWN_SYSTEM, file_id, task_id
from pilotage.language.formats.wfformat.schema import SCHEMA_VERSION
from pilotage.language.losses import Losses
from pilotage.language.parsing.rules import values_in
from pilotage.language.text.patterns import is_pattern
from pilotage.model.jobs.definition import (
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
from pilotage.model.jobs.graph import EdgeKind
from pilotage.model.version import VERSION

# Makes the single command of a task from the binaries of a package.

COMMAND = "package.binaries"


def command_of(package: ConcretePackage, losses: Losses) -> tuple[str, ...]:
    """Program and arguments; several binaries and redirections become a shell command. Empty if nothing runs."""
    if package.startup:
        if package.binaries:
            losses.add(COMMAND, "the startup script is the command; the binaries it runs are not named", file="")
        return _safe(package.startup, losses)
    if not package.binaries:
        losses.add(COMMAND, "a package without a binary is a task without a command", file="")
        return ()
    if len(package.binaries) == 1 and not _redirected(package.binaries[0]):
        return _safe(package.binaries[0].argv, losses)
    if len(package.binaries) > 1:
        losses.add(COMMAND, "a task has one command: several binaries became one line for the shell", file="")
    if any(map(_redirected, package.binaries)):
        losses.add(
            "binary.stdout", "a task has no streams: stdin, stdout and stderr became a line for the shell", file=""
        )
    return (*SHELL, " && ".join(_shell_line(binary) for binary in package.binaries))


def _safe(argv: tuple[str, ...], losses: Losses) -> tuple[str, ...]:
    if all(argv):
        return argv
    losses.add(
        "binary.arguments", "WfFormat forbids an empty argument: the command became a line for the shell", file=""
    )
    return (*SHELL, shlex.join(argv))


def _redirected(binary: ConcreteBinary) -> bool:
    return bool(binary.stdin or binary.stdout or binary.stderr)


def _shell_line(binary: ConcreteBinary) -> str:
    line = shlex.join(binary.argv)
    for sign, name in (("<", binary.stdin), (">", binary.stdout)):
        if name:
            line += f" {sign} {shlex.quote(name)}"
    if binary.stderr:
        line += " 2>&1" if binary.stderr == binary.stdout else f" 2> {shlex.quote(binary.stderr)}"
    return line


# The fields of a job that WfFormat cannot express.

# The fields that an export contains or resolves: templates, iteration and software are written out.
_CARRIED: dict[type[Value], frozenset[str]] = {
    Definition: frozenset(
        {"pilotage", "job", "created", "description", "variables", "software", "stages", "environment"}
    ),
    Stage: frozenset({"each", "lines"}),
    Line: frozenset({"each", "packages"}),
    Package: frozenset(
        {"name", "activity", "startup_script", "startup_parameters", "resources", "priority", "after", "binaries"}
        | {"environment", "container", "retry", "progress", "scripts"}  # each of these is listed by itself
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

_INEXPRESSIBLE = frozenset(
    f"{_WORDS[kind]}.{field}" for kind in _WORDS for field in kind.__struct_fields__ if field not in _CARRIED[kind]
) | frozenset(_WHOLE.values())

# Keywords of values that an export changes rather than loses.
_CHANGED = frozenset(
    {"binary.arguments", "binary.stdout", "execution", "input.name", "line.early_start", "output.name"}
    | {"package.binaries", "resources.cores", "runtimeInSeconds", "sizeInBytes", "stage.each", "tasks"}
)

EXPORT_KEYWORDS = _INEXPRESSIBLE | _CHANGED


def note_inexpressible(expansion: Expansion, losses: Losses) -> None:
    """List all fields of a job that are set and that an export cannot express, once each."""
    for keyword in _inexpressible(expansion.definition):
        losses.add(keyword, _NO_WORD, file="")
    if any((segment.kinds & int(EdgeKind.AWAITED) == 0).any() for segment in expansion.graph.segments):
        losses.add("line.early_start", "a task follows its parents: nothing starts early", file="")
    if any(block.makes_pattern(output) for block in expansion.blocks if block.count for _, output in block.outputs()):
        losses.add("output.name", "a pattern is no file: what will match is not known, the edge alone is kept", file="")


def _inexpressible(definition: Definition) -> Iterator[str]:
    for _, value in values_in(definition):
        kind = type(value)
        if isinstance(value, Software):
            continue
        if kind in _WHOLE:
            if value not in _SAYS_NOTHING:
                yield _WHOLE[kind]
        elif kind in _CARRIED:
            for name, default in _inexpressible_fields(kind):
                if getattr(value, name) != default:
                    yield f"{_WORDS[kind]}.{name}"


@cache  # msgspec evaluates the annotations at each call
def _inexpressible_fields(kind: type[Value]) -> list[tuple[str, object]]:
    """The fields of a record that an export cannot express, with their defaults."""
    fields = [field for field in msgspec.structs.fields(kind) if field.name not in _CARRIED[kind]]
    # A mapping has a factory for its default, and says nothing when it is empty.
    return [(field.name, {} if field.default is msgspec.NODEFAULT else field.default) for field in fields]


# WfFormat requires the time of the run if there are commands: this obviously is not a real one.
NEVER = "1970-01-01T00:00:00Z"

Json = dict[str, Any]


def write_wfformat(expansion: Expansion) -> tuple[str, Losses]:
    """The JSON text of an instance with all known packages, files and edges, and the losses."""
    writing = _Writing(expansion)
    instance = writing.instance()
    return json.dumps(instance, indent=2) + "\n", writing.losses


class _Writing:
    """The state of one export."""

    def __init__(self, expansion: Expansion) -> None:
        self.losses = Losses()
        self._expansion = expansion
        self._sizes: dict[str, int | None] = {}
        # Package names are unique, and so are their ids.
        self._ids = [task_id(expansion.name(n) or expansion.path(n)) for n in range(expansion.count)]
        self._parents: dict[int, set[int]] = {}  # additional edges, which replace late stages
        self._children: dict[int, set[int]] = {}

    def instance(self) -> Json:
        """The whole document."""
        definition = self._expansion.definition
        note_inexpressible(self._expansion, self.losses)
        self._bridge_late_stages()
        specified: list[Json] = []
        executed: list[Json] = []
        for package in self._expansion.packages():
            specified.append(self._specified(package))
            executed.append(self._executed(package))
        if not specified:
            self.losses.add("tasks", "no package is known yet, but WfFormat requires at least one task", file="")
        instance: Json = {"name": definition.job}
        if definition.description:
            instance["description"] = definition.description
        if definition.created:
            instance["createdAt"] = definition.created
        instance["schemaVersion"] = SCHEMA_VERSION
        instance["runtimeSystem"] = {"name": OWN_SYSTEM, "version": VERSION}
        specification = {"tasks": specified, "files": self._files()}
        reason = f"the job has not run: WfFormat requires times of a run, so {NEVER} and estimates are written"
        self.losses.add("execution", reason, file="")
        execution = {
            "makespanInSeconds": self._expansion.critical_path_seconds() or 0,
            "executedAt": NEVER,
            "tasks": executed,
        }
        instance["workflow"] = {"specification": specification, "execution": execution}
        return instance

    def _bridge_late_stages(self) -> None:
        """Connect the packages after a late stage to those before it."""
        if not self._expansion.late:
            return
        edges = edges_across(self._expansion)
        order = "packages that wait for them follow the tasks before that stage: the exact order after it is lost"
        if edges is None:
            order = "packages that wait for them do not wait for anything instead"
        for late in self._expansion.late:
            reason = f"the packages of stage {late.stage} ({late.name!r}) are not known before the job has run in part"
            self.losses.add("stage.each", f"{reason}; {order}", file="")
        for parent, child in edges or ():
            self._parents.setdefault(child, set()).add(parent)
            self._children.setdefault(parent, set()).add(child)

    def _specified(self, package: ConcretePackage) -> Json:
        graph, number = self._expansion.graph, package.number
        parents = self._parents.get(number, set()).union(graph.predecessors(number).tolist())
        children = self._children.get(number, set()).union(graph.successors(number).tolist())
        return {
            "name": package.activity or self._ids[package.number],
            "id": self._ids[package.number],
            "parents": [self._ids[other] for other in sorted(parents)],
            "children": [self._ids[other] for other in sorted(children)],
            "inputFiles": self._inputs(package),
            "outputFiles": self._outputs(package),
        }

    def _inputs(self, package: ConcretePackage) -> list[str]:
        names: dict[str, None] = {}
        made: set[str] = set()  # by an earlier binary of the package, so the task does not wait for it
        for binary in package.binaries:
            for given in binary.inputs:
                # The size of a pattern is the total of its files.
                size = given.declared.size_bytes if len(given.names) == 1 else None
                self._take(names, [name for name in given.names if name not in made], size)
                if given.awaited:
                    reason = "a pattern is no file: what will match is not known, the edge alone is kept"
                    self.losses.add("input.name", reason, file="")
            if binary.stdin and binary.stdin not in made:
                self._take(names, [binary.stdin], None)
            made.update(output.name for output in binary.outputs)
            made.update((binary.stdout, binary.stderr))
        return [file_id(name) for name in names]

    def _outputs(self, package: ConcretePackage) -> list[str]:
        names: dict[str, None] = {}
        block = self._expansion.block(package.number)
        for binary in package.binaries:
            for output in binary.outputs:
                if not block.makes_pattern(output.declared):  # listed once for the whole job
                    self._take(names, [output.name], output.declared.size_bytes)
            self._take(names, [stream for stream in (binary.stdout, binary.stderr) if stream], None)
        return [file_id(name) for name in names]

    def _take(self, names: dict[str, None], found: list[str], size: int | None) -> None:
        for name in found:
            if is_pattern(name):
                reason = "a name with the characters of a pattern is left out, its edge is kept"
                self.losses.add("input.name", reason, file="")
                continue
            names.setdefault(name)
            if self._sizes.get(name) is None:
                self._sizes[name] = size

    def _files(self) -> list[Json]:
        if None in self._sizes.values():
            self.losses.add(
                "sizeInBytes", "WfFormat requires a size for every file: 0 is written if it is unknown", file=""
            )
        return [{"id": file_id(name), "sizeInBytes": size or 0} for name, size in self._sizes.items()]

    def _executed(self, package: ConcretePackage) -> Json:
        declared = package.declared
        binaries = [binary.declared for binary in package.binaries]
        estimates = [binary.run_time_seconds for binary in binaries if binary.run_time_seconds is not None]
        if not estimates:
            reason = "WfFormat requires a run time for every task: 0 is written without an estimate"
            self.losses.add("runtimeInSeconds", reason, file="")
        found: Json = {"id": self._ids[package.number], "runtimeInSeconds": sum(estimates)}
        command = command_of(package, self.losses)
        if command:
            found["command"] = {"program": command[0], "arguments": list(command[1:])}
        if declared.resources.cores >= 1:
            found["coreCount"] = declared.resources.cores
        else:
            self.losses.add("resources.cores", "WfFormat allows no less than one core: left out", file="")
        shares = [binary.cpu_percent for binary in binaries if binary.cpu_percent is not None]
        if shares:
            found["avgCPU"] = max(shares)
        if declared.resources.memory_bytes is not None:
            found["memoryInBytes"] = declared.resources.memory_bytes
        if declared.priority is not None:
            found["priority"] = declared.priority
        return found
