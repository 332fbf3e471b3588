"""Exports an expanded job as a DAG file and submit files, as the DØ job definition describes.

It writes lines such as `Job Stage1Line1Package1Reco reco.sub`, and PARENT and CHILD lines for the edges of the graph.
Values that differ between packages of one kind are VARS lines, so that these share a submit file.
"""

from __future__ import annotations

import itertools
import math
import posixpath
import re
import shlex
from collections.abc import Mapping
from functools import cache

import msgspec

from pilotage.language.expansion.edge_files import edges_across
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.packages import SHELL, ConcreteBinary, ConcreteInput, ConcretePackage
from pilotage.language.formats.dagman.lexer import is_outside
from pilotage.language.formats.dagman.translate import activity_of_command
from pilotage.language.formats.dagman.values import SCRIPT_HEAD, join_arguments
from pilotage.language.losses import Losses
from pilotage.language.text.names import FreeNames, is_url
from pilotage.language.text.patterns import is_pattern
from pilotage.model.jobs.definition import Binary, Container, Definition, InputFile, OutputFile, Package, Script, Value

# The fields of a definition that DAGMan cannot express, with the reasons.

_TARGET = "DAGMan has no word for it"
_ESTIMATE = "DAGMan takes no estimates"
_MODEL = "submit descriptions say this in ClassAd expressions of the pool"

FIELD_LOSSES: dict[type[Value], dict[str, str]] = {
    Definition: {
        "id": _TARGET,
        "owner": "the owner is whoever submits",
        "created": _TARGET,
        "description": _TARGET,
        "priority": "give it to condor_submit_dag with -priority",
        "hold": _TARGET,
        "provenance": _TARGET,
        "compare": _TARGET,
    },
    Package: {
        "node_restriction": _MODEL,
        "platform": _MODEL,
        "executor": "the pool that is submitted to runs everything",
        "job_type": "the command of this type is written out",
        "failure_patterns": _TARGET,
        "progress": _TARGET,
        "side_effects": "HTCondor never runs two copies of a job",
        "startup_parameters": "they are written out as arguments",
    },
    Binary: {
        "software": "its command is written out",
        "shell": "it is written out as a command of /bin/sh",
        "data_handling": _MODEL,
        "cpu_percent": _ESTIMATE,
        "work_bytes": _ESTIMATE,
        "run_time_seconds": _ESTIMATE,
    },
    InputFile: {"size_bytes": _ESTIMATE, "sha256": _TARGET, "disposition": _TARGET},
    OutputFile: {"size_bytes": _ESTIMATE, "dispositions": _TARGET, "locator": _TARGET, "replicas": _TARGET},
    Container: {"engine": "the pool chooses what starts the image"},
}

OTHER_EXPORT_LOSSES: dict[str, str] = {
    "acquisition": "files are brought by HTCondor; `prefetch` has no counterpart",
    "activity": "a name that cannot stand in a DAG file",
    "binaries": "several binaries become one script",
    "category": "a name that cannot stand in a DAG file",
    "cores": "parts of a core are rounded up",
    "defer_seconds": "parts of a second are rounded up, a missing one of the two numbers means none",
    "early_start": "DAGMan starts a node when its parents are done",
    "each": "a stage whose list is not known yet, and the exact order behind it",
    "environment": "settings of pilotage for one package",
    "inputs": "a file that is not known yet, or whose name cannot stand in a list",
    "locator": "HTCondor names a file after its path or URL",
    "memory": "sizes are rounded up to kilobytes",
    "name": "a name that cannot stand in a DAG file",
    "outputs": "a pattern or an expression, a name that cannot stand in a list, or a file that is an input too",
    "retry": "rules other than one exit code that gives up, or without a number of attempts",
    "role": "a DAG has one FINAL and one PROVISIONER node; these and SERVICE nodes have no edges",
    "scratch": "sizes are rounded up to kilobytes",
    "scripts": "an argument with white space",
    "subjob": "only a DAG file can be a SUBDAG",
    "wall_time": "parts of a second are rounded up",
}

DOCUMENTED_EXPORT_LOSSES = frozenset(OTHER_EXPORT_LOSSES) | {
    name for fields in FIELD_LOSSES.values() for name in fields
}
_HARMLESS: Mapping[tuple[type[Value], str], frozenset[object]] = {
    (Container, "engine"): frozenset({"docker"}),
}


@cache
def _watched(kind: type[Value]) -> tuple[tuple[str, object, str], ...]:
    """The fields of a type without a counterpart, with their defaults and reasons."""
    known = FIELD_LOSSES.get(kind, {})
    return tuple((f.name, f.default, known[f.name]) for f in msgspec.structs.fields(kind) if f.name in known)


def list_fields(value: Value, losses: Losses, *, place: str) -> None:
    """List all fields of a value that are set and have no counterpart."""
    for name, default, reason in _watched(type(value)):
        found = getattr(value, name)
        if found != default and found not in _HARMLESS.get((type(value), name), ()):
            losses.add(name, reason, file=place)


# Quotes values for VARS lines and submit commands.

_UNSAYABLE = re.compile(r"[\n\r]|^\s|\s$|^\"|^$|\\$")


def protected(text: str) -> str:
    """A text with escaped macros."""
    return text.replace("$", "$(DOLLAR)")


def variable(name: str, value: str) -> str:
    """`name="value"` in the syntax of VARS."""
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{quoted}"'


def command(name: str, value: str) -> str:
    """One line of a submit description."""
    return f"{name} = {value}\n"


def is_sayable(text: str) -> bool:
    """Whether a text can be the value of a submit command."""
    return _UNSAYABLE.search(text) is None


def is_listable(name: str) -> bool:
    """Whether a file name can be an item of a comma-separated list."""
    return is_sayable(name) and "," not in name


def environment(variables: Mapping[str, str]) -> str:
    """The variables in the new syntax, with the double quotes around them."""
    words = []
    for name, value in variables.items():
        word = f"{name}={value}"
        words.append("'" + word.replace("'", "''") + "'" if re.search(r"[\s']", word) else word)
    return '"' + " ".join(words).replace('"', '""') + '"'


def size(count_bytes: int) -> str:
    """A size in the largest unit that expresses it exactly, otherwise in kilobytes, rounded up."""
    for unit, factor in (("GB", 1024**3), ("MB", 1024**2)):
        if count_bytes and count_bytes % factor == 0:
            return f"{count_bytes // factor} {unit}"
    return f"{-(-count_bytes // 1024)} KB"


# Writes one package as a submit description, with its own values as variables.


class SubmitDescription(msgspec.Struct, frozen=True):
    """A submit description, its variables for VARS, and the scripts that it runs."""

    submit: str
    variables: dict[str, str]
    scripts: dict[str, str]


def describe(package: ConcretePackage, *, node: str, losses: Losses) -> SubmitDescription:
    """The submit description of a package."""
    work = _Description(package, node, losses)
    work.write_command()
    work.write_files()
    work.write_needs()
    return SubmitDescription("".join(work.lines) + "queue\n", work.variables, work.scripts)


class _Description:
    def __init__(self, package: ConcretePackage, node: str, losses: Losses) -> None:
        self._package = package
        self._node = node
        self._losses = losses
        self.lines: list[str] = ["universe = vanilla\n"]
        self.variables: dict[str, str] = {}
        self.scripts: dict[str, str] = {}
        for binary in package.binaries:
            list_fields(binary.declared, losses, place=package.path)

    def _lose(self, keyword: str, reason: str) -> None:
        self._losses.add(keyword, reason, file=self._package.path)

    def _own(self, name: str, value: str, variable: str) -> None:
        """Set a command to a variable with the value of this package."""
        self.variables[variable] = protected(value)
        self.lines.append(command(name, f"$({variable})"))

    def write_command(self) -> None:
        argv = self._argv()
        if not is_sayable(argv[0]) or any("\n" in word for word in argv):
            argv = self._wrapped(argv)
        if "/" in argv[0]:
            self.lines.append(command("executable", protected(argv[0])))
            if argv[0].startswith("/"):
                self.lines.append(command("transfer_executable", "false"))
        else:
            argv = ("/usr/bin/env", *argv)
            self.lines.append(command("executable", argv[0]))
            self.lines.append(command("transfer_executable", "false"))
            self.lines.append(command("+PilotageSearchPath", "true"))
        if len(argv) > 1:
            self.variables["package_arguments"] = protected(join_arguments(argv[1:]))
            self.lines.append(command("arguments", '"$(package_arguments)"'))

    def _wrapped(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Wrap a command that does not fit on one line into a script, and mark it for the importer."""
        path = f"{self._node}.sh"
        if argv[:2] == SHELL and len(argv) == 3:
            self.scripts[path] = SCRIPT_HEAD + argv[2]
            self.lines.append(command("+PilotageScript", '"shell"'))
        else:
            self.scripts[path] = f"{SCRIPT_HEAD}exec {shlex.join(argv)}\n"
            self.lines.append(command("+PilotageScript", '"command"'))
        return (f"./{path}",)

    def _argv(self) -> tuple[str, ...]:
        package = self._package
        if package.startup:
            return package.startup
        if len(package.binaries) == 1:
            return package.binaries[0].argv
        path = f"{self._node}.sh"
        self.scripts[path] = f"{SCRIPT_HEAD}set -e\n" + "".join(map(_shell_line, package.binaries))
        self._lose("binaries", f"{len(package.binaries)} binaries become the script {path!r}")
        return (f"./{path}",)

    def write_files(self) -> None:
        package = self._package
        inputs: dict[str, None] = {}
        outputs: dict[str, None] = {}
        inner: set[str] = set()
        for binary in package.binaries:
            for given in binary.inputs:
                list_fields(given.declared, self._losses, place=package.path)
                # Outputs of earlier binaries of the package exist already.
                inputs.update(dict.fromkeys(path for path in self._taken(given) if path not in inner))
            for output in binary.outputs:
                list_fields(output.declared, self._losses, place=package.path)
                if output.declared.expression or is_pattern(output.name) or not is_listable(output.name):
                    self._lose("outputs", f"{output.declared.expression or output.name!r} cannot be listed")
                else:
                    outputs[output.name] = None
            if len(package.binaries) > 1:
                inputs.update({binary.stdin: None} if binary.stdin and binary.stdin not in inner else {})
                outputs.update({stream: None for stream in (binary.stdout, binary.stderr) if stream})
            inner.update(outputs)
        single = package.binaries[0] if len(package.binaries) == 1 else None
        taken = {*inputs, single.stdin} if single is not None else {*inputs}
        made = {*outputs, single.stdout, single.stderr} if single is not None else {*outputs}
        for name in sorted((taken & made) - {""}):
            self._lose("outputs", f"{name!r} is also an input: an importer of the DAG reads it as an input only")
        if inputs or outputs:
            self.lines.append(command("preserve_relative_paths", "true"))
        self.lines.append(command("should_transfer_files", "yes"))
        if inputs:
            self._own("transfer_input_files", ", ".join(inputs), "package_inputs")
        if outputs:
            self._own("transfer_output_files", ", ".join(outputs), "package_outputs")
        if single is not None:
            self._write_streams(single)

    def _write_streams(self, binary: ConcreteBinary) -> None:
        for name, path in (("input", binary.stdin), ("output", binary.stdout), ("error", binary.stderr)):
            if path and is_sayable(path):
                self._own(name, path, f"package_{name}")
            elif path:
                self._lose("inputs" if name == "input" else "outputs", f"{path!r} cannot stand on a line")

    def _taken(self, given: ConcreteInput) -> list[str]:
        """The files of one input for the transfer list."""
        if given.awaited:
            self._lose("inputs", f"{given.declared.name!r} matches files that are not known yet")
        if given.declared.acquisition == "prefetch":
            self._lose("acquisition", "files are brought by HTCondor; `prefetch` has no counterpart")
        paths = []
        for name, path in zip(given.names, given.locators or given.names, strict=True):
            if given.locator and not _tells_both(path, name):
                self._lose("locator", f"{name!r} from {path!r} is named after its path")
            if is_listable(path) and not is_pattern(path):
                paths.append(path)
            else:
                self._lose("inputs", f"{path!r} cannot stand in a list")
        return paths

    def write_needs(self) -> None:
        resources = self._package.declared.resources
        if resources.cores != 1:
            if resources.cores % 1:
                self._lose("cores", f"{resources.cores} cores are rounded up")
            self.lines.append(command("request_cpus", str(math.ceil(resources.cores))))
        for name, field, amount in (
            ("request_memory", "memory", resources.memory_bytes),
            ("request_disk", "scratch", resources.scratch_bytes),
        ):
            if amount is not None:
                if amount % 1024:
                    self._lose(field, f"{amount} bytes are rounded up")
                self.lines.append(command(name, size(amount)))
        if resources.gpus:
            self.lines.append(command("request_gpus", str(resources.gpus)))
        if resources.nodes > 1:
            self.lines[0] = command("universe", "parallel")
            self.lines.append(command("machine_count", str(resources.nodes)))
        if resources.wall_time_seconds is not None:
            if resources.wall_time_seconds % 1:
                self._lose("wall_time", f"{resources.wall_time_seconds} seconds are rounded up")
            self.lines.append(command("allowed_execute_duration", str(math.ceil(resources.wall_time_seconds))))
        self._write_surroundings()

    def _write_surroundings(self) -> None:
        container = self._package.container
        if container is not None:
            list_fields(container, self._losses, place=self._package.path)
            name = "docker_image" if container.engine == "docker" else "container_image"
            self.lines.append(command(name, protected(container.image)))
        exported: dict[str, str] = {}
        for binary in self._package.binaries:
            exported.update(binary.environment.exported)
            if binary.environment.setting:
                self._lose("environment", "settings of pilotage for one package")
        for name in [name for name, value in exported.items() if "\n" in name + value]:
            self._lose("environment", f"the value of {name!r} has several lines")
            del exported[name]
        if exported:
            self.lines.append(command("environment", protected(environment(exported))))


def _tells_both(path: str, name: str) -> bool:
    """Whether an importer of the list gets the same name and locator back."""
    is_elsewhere = is_url(path) or is_outside(path)
    return is_elsewhere and posixpath.basename(path.rstrip("/")) == name


def _shell_line(binary: ConcreteBinary) -> str:
    words = [f"{name}={shlex.quote(value)}" for name, value in binary.environment.exported.items()]
    line = " ".join(["env", *words, shlex.join(binary.argv)] if words else [shlex.join(binary.argv)])
    for sign, path in (("<", binary.stdin), (">", binary.stdout), ("2>", binary.stderr)):
        if path:
            line += f" {sign} {shlex.quote(path)}"
    return line + "\n"


_KEYWORDS = {"work": "JOB", "final": "FINAL", "provisioner": "PROVISIONER", "service": "SERVICE"}
_SUFFIX_MAX = 60


def write_dagman(expansion: Expansion) -> tuple[dict[str, str], Losses]:
    """The DAG file and its submit files, by path, and the losses."""
    return _Writer(expansion).write()


def node_name(package: ConcretePackage) -> str:
    """The node name of a package, which contains its number: `Stage1Line1Package1Reco`."""
    words = re.findall(r"[A-Za-z0-9]+", package.activity)
    suffix = "".join(word[0].upper() + word[1:] for word in words).lstrip("0123456789")[:_SUFFIX_MAX]
    place = package.id
    return f"Stage{place.stage}Line{place.line}Package{place.number}{suffix}"


class _Writer:
    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion
        self._losses = Losses()
        self._files: dict[str, str] = {}
        self._submit_of: dict[str, str] = {}
        self._stems = FreeNames(separator="~")
        self._lines: list[str] = []
        self._only: dict[str, int] = {}
        self._late_finals: list[int] = []
        self._apart: dict[int, str] = {}  # nodes that cannot have parents and children, with their keywords

    def write(self) -> tuple[dict[str, str], Losses]:
        definition = self._expansion.definition
        list_fields(definition, self._losses, place=definition.job)
        across = self._edges_across()
        for stage in definition.stages:
            if any(line.early_start for line in stage.lines):
                self._lose("early_start", "DAGMan starts a node when its parents are done", definition.job)
        names = []
        for package in self._expansion.packages():
            names.append(node_name(package))
            self._node(package, names[-1])
        self._edges(names, across)
        for category, limit in definition.limits.items():
            if self._is_word(category):
                self._lines.append(f"MAXJOBS {category} {limit}")
        dag = f"# {definition.job}, written by pilotage\n" + "\n".join(self._lines) + "\n"
        return {f"{definition.job}.dag": dag, **self._files}, self._losses

    def _edges_across(self) -> list[tuple[int, int]]:
        """The edges that replace late stages, which are listed as lost."""
        if not self._expansion.late:
            return []
        edges = edges_across(self._expansion)
        order = "packages that wait for it follow the packages before it: the exact order after it is lost"
        if edges is None:
            order = "packages that wait for it do not wait for anything instead"
        for late in self._expansion.late:
            reason = f"the stage {late.name!r} is left out, its list is not known yet; {order}"
            self._lose("each", reason, self._expansion.definition.job)
        return edges or []

    def _lose(self, keyword: str, reason: str, place: str) -> None:
        self._losses.add(keyword, reason, file=place)

    @staticmethod
    def _is_word(text: str) -> bool:
        return re.fullmatch(r"[^\s\"'#\\]+", text) is not None

    def _node(self, package: ConcretePackage, name: str) -> None:
        declared = package.declared
        list_fields(declared, self._losses, place=package.path)
        options = (" NOOP" if declared.noop else "") + (" DONE" if declared.done else "")
        keyword = self._keyword(package)
        variables: dict[str, str] = {}
        inferred = self._of_its_stage(package)  # the activity that an importer infers if none is written
        written = ""  # the activity that the node's submit file is named after
        if package.subjob:
            if not package.subjob.endswith(".dag"):
                self._lose("subjob", f"{package.subjob!r}: only a DAG file can be a SUBDAG", package.path)
            self._lines.append(f'SUBDAG EXTERNAL {name} "{_quoted(package.subjob)}"{options}')
        elif not package.binaries and not package.startup:
            self._lines.append(f"{keyword} {name} none{options}")
        else:
            described = describe(package, node=name, losses=self._losses)
            submit = self._submit_file(package, described)
            variables.update(described.variables)
            self._lines.append(f"{keyword} {name} {submit}{options}")
            inferred = activity_of_command(_command(package, name))
            written = submit.removesuffix(".sub")
        wanted = declared.activity or ("" if inferred == package.activity else package.activity)
        if wanted != ("" if written == inferred else written):
            self._say("activity", wanted, variables, place=package.path)
        self._say("name", package.name, variables, place=package.path)
        pairs = " ".join(variable(key, value) for key, value in variables.items())
        if pairs:
            self._lines.append(f"VARS {name} {pairs}")
        self._properties(package, name, declared)

    def _keyword(self, package: ConcretePackage) -> str:
        """The keyword of the node; a second FINAL or PROVISIONER becomes a JOB."""
        role = package.declared.role
        if role in ("final", "provisioner") and self._only.setdefault(role, package.number) != package.number:
            self._lose("role", f"a DAG has one {role.upper()} node; this one becomes a JOB", package.path)
            if role == "final":
                self._late_finals.append(package.number)
            return "JOB"
        if role != "work":
            self._apart[package.number] = _KEYWORDS[role]
        return _KEYWORDS[role]

    def _submit_file(self, package: ConcretePackage, described: SubmitDescription) -> str:
        self._files.update(described.scripts)
        known = self._submit_of.get(described.submit)
        if known is None:
            stem = re.sub(r"[^A-Za-z0-9._-]", "_", package.activity).lstrip(".-") or "package"
            known = f"{self._stems.take(stem)}.sub"
            self._submit_of[described.submit] = known
            self._files[known] = described.submit
        return known

    def _of_its_stage(self, package: ConcretePackage) -> str:
        """The activity of a package without a command: that of its stage, if an importer can infer it."""
        stage = self._expansion.definition.stages[package.id.stage - 1]
        return "" if stage.name or self._expansion.late else package.activity

    def _say(self, keyword: str, text: str, variables: dict[str, str], *, place: str) -> None:
        """Write a package's name or activity as a variable."""
        if "\n" in text:
            self._lose(keyword, f"{text!r} cannot stand in a DAG file", place)
        else:
            variables[f"pilotage_{keyword}"] = protected(text)

    def _properties(self, package: ConcretePackage, name: str, declared: Package) -> None:
        for kind in ("pre", "post", "hold"):
            script: Script | None = getattr(package.scripts, kind)
            if script is not None:
                self._script(package, name, kind.upper(), script)
        if package.scripts.skip_exit_code is not None:
            self._lines.append(f"PRE_SKIP {name} {package.scripts.skip_exit_code}")
        self._retry(package, name, declared)
        if declared.priority is not None:
            self._lines.append(f"PRIORITY {name} {declared.priority}")
        if declared.category:
            if self._is_word(declared.category):
                self._lines.append(f"CATEGORY {name} {declared.category}")
            else:
                self._lose("category", f"{declared.category!r} cannot stand in a DAG file", package.path)
        if declared.abort_on is not None:
            result = "" if declared.abort_on.result is None else f" RETURN {declared.abort_on.result}"
            self._lines.append(f"ABORT-DAG-ON {name} {declared.abort_on.exit_code}{result}")

    def _script(self, package: ConcretePackage, name: str, kind: str, script: Script) -> None:
        words = script.run
        if any(not word or re.search(r"\s", word) for word in words) or words[-1].endswith("\\"):
            self._lose(
                "scripts", f"the {kind} script is left out: an argument is empty or has white space", package.path
            )
            return
        defer = ""
        if script.defer_exit_code is not None and script.defer_seconds is not None:
            seconds = -int(-script.defer_seconds // 1)
            defer = f"DEFER {script.defer_exit_code} {seconds} "
        if (script.defer_exit_code is None) != (script.defer_seconds is None) or (
            script.defer_seconds is not None and script.defer_seconds % 1
        ):
            self._lose("defer_seconds", "DEFER takes an exit code and whole seconds", package.path)
        self._lines.append(f"SCRIPT {defer}{kind} {name} {' '.join(words)}")

    def _retry(self, package: ConcretePackage, name: str, declared: Package) -> None:
        retry = declared.retry
        first = retry.rules[0] if retry.rules else None
        is_unless = first is not None and first.exit_code is not None and first.action == "give-up" and not first.times
        sayable = not retry.rules or (len(retry.rules) == 1 and is_unless and retry.attempts_max is not None)
        if not sayable:
            self._lose("retry", "RETRY takes a number and one exit code that gives up", package.path)
        if retry.attempts_max is None:
            return
        unless = f" UNLESS-EXIT {first.exit_code}" if first is not None and is_unless else ""
        if declared.role == "work":
            self._lines.append(f"RETRY {name} {retry.attempts_max - 1}{unless}")
        else:
            self._lose("retry", f"a {declared.role} node is not retried", package.path)

    def _edges(self, names: list[str], across: list[tuple[int, int]]) -> None:
        children: dict[int, list[int]] = {}
        known = ((parent, child) for parent, child, _ in self._expansion.graph.edges())
        for parent, child in itertools.chain(known, across):
            if parent in self._apart or child in self._apart:
                self._lose_edge(parent, child)
            else:
                children.setdefault(parent, []).append(child)
        if self._late_finals:
            ends = [
                p.number for p in self._expansion.packages() if p.declared.role == "work" and p.number not in children
            ]
            for parent in ends:
                children[parent] = self._late_finals
        for parent in sorted(children):
            targets = " ".join(names[child] for child in sorted(set(children[parent])))
            self._lines.append(f"PARENT {names[parent]} CHILD {targets}")

    def _lose_edge(self, parent: int, child: int) -> None:
        """List an edge at a node without edges as lost, unless the node runs first or last anyway."""
        if self._apart.get(child) != "FINAL" and self._apart.get(parent) != "PROVISIONER":
            apart = parent if parent in self._apart else child
            reason = f"a {self._apart[apart]} node can have neither parents nor children"
            self._lose("role", reason, self._expansion.path(apart))


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _command(package: ConcretePackage, node: str) -> tuple[str, ...]:
    """The command that an importer finds in the package's submit file."""
    if package.startup:
        return package.startup
    return package.binaries[0].argv if len(package.binaries) == 1 else (f"{node}.sh",)
