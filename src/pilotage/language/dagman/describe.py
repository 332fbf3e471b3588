"""One package as a submit description, with what is its own in variables."""

from __future__ import annotations

import math
import posixpath
import shlex

import msgspec

from pilotage.language.dagman.export_losses import list_fields
from pilotage.language.dagman.fields import join_arguments
from pilotage.language.dagman.paths import is_outside
from pilotage.language.dagman.submit_text import command, environment, is_listable, is_sayable, protected, size
from pilotage.language.dagman.vocabulary import SCRIPT_HEAD
from pilotage.language.expansion.packages import SHELL, ConcreteBinary, ConcreteInput, ConcretePackage
from pilotage.language.losses import Losses
from pilotage.language.text.names import is_url
from pilotage.language.text.patterns import is_pattern


class Described(msgspec.Struct, frozen=True):
    """A submit description, the variables that VARS sets for it, and scripts that it starts."""

    submit: str
    variables: dict[str, str]
    scripts: dict[str, str]


def describe(package: ConcretePackage, *, node: str, losses: Losses) -> Described:
    """The submit description of a package."""
    work = _Description(package, node, losses)
    work.write_command()
    work.write_files()
    work.write_needs()
    return Described("".join(work.lines) + "queue\n", work.variables, work.scripts)


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
        """Set a command to a value of this package alone."""
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
        """A script that runs a command which has no place on a line; the attribute says how to unwrap it."""
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
                # What an earlier binary of the same package makes is there already.
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
            self._lose("outputs", f"{name!r} is also an input: who reads the DAG takes it as an input only")
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
        """How the transfer list names the files of one input."""
        if given.awaited:
            self._lose("inputs", f"{given.declared.name!r} stands for files that are not known yet")
        if given.declared.acquisition == "prefetch":
            self._lose("acquisition", "files are brought by HTCondor; `prefetch` has no counterpart")
        paths = []
        for name in given.names:
            path = name
            if is_url(given.locator):
                path = given.locator
            elif given.locator:
                path = posixpath.join(given.locator, name)
            if given.locator and not _tells_both(path, name):
                self._lose("locator", f"{name!r} from {given.locator!r} is named after its path")
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
    """Whether a reader of the list finds the same name and locator again."""
    is_elsewhere = is_url(path) or is_outside(path)
    return is_elsewhere and posixpath.basename(path.rstrip("/")) == name


def _shell_line(binary: ConcreteBinary) -> str:
    words = [f"{name}={shlex.quote(value)}" for name, value in binary.environment.exported.items()]
    line = " ".join(["env", *words, shlex.join(binary.argv)] if words else [shlex.join(binary.argv)])
    for sign, path in (("<", binary.stdin), (">", binary.stdout), ("2>", binary.stderr)):
        if path:
            line += f" {sign} {shlex.quote(path)}"
    return line + "\n"
