"""Translates a node and its submit description to drafts of packages."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence

import msgspec

from pilotage.language.expansion.packages import SHELL
from pilotage.language.folder import Folder
from pilotage.language.formats.dagman.lexer import (
    Inline,
    ScriptCommand,
    decode,
    found_instead,
    is_outside,
    located,
    program,
)
from pilotage.language.formats.dagman.macros import Notes, expand
from pilotage.language.formats.dagman.node_commands import Dag, DagNode
from pilotage.language.formats.dagman.submit import Origin, SubmitJob, SubmitReader
from pilotage.language.formats.dagman.values import (
    HARMLESS,
    LOST_FAMILIES,
    MEANT,
    OTHER_LOSSES,
    SCRIPT_HEAD,
    SEARCHED,
    SUBMIT_LOSSES,
    UNKNOWN,
    WRAPPED,
    InvalidValue,
    is_yes,
    size_bytes,
    split_arguments,
    split_environment,
    split_list,
    split_remaps,
)
from pilotage.language.losses import Losses
from pilotage.language.text.names import is_url, why_outside
from pilotage.language.text.patterns import is_pattern
from pilotage.language.text.templates import escape_braces
from pilotage.language.text.tree import NOWHERE, Report
from pilotage.model.jobs.definition import (
    AbortOn,
    Container,
    Environment,
    Package,
    Resources,
    Retry,
    RetryRule,
    Role,
    Script,
    Scripts,
)

# The default activity of a command: reader and writer must agree on it.


def activity_of_command(command: Sequence[str]) -> str:
    """The name of the program, which is the activity of a package that declares none."""
    return escape_braces(command[0]).rpartition("/")[2] if command else ""


# A draft is an incomplete package: its files are plain paths, not yet related to other packages.


class DraftFile(msgspec.Struct, frozen=True):
    """An input or output of a node, by its path in the DAG's folder, or in a folder or URL elsewhere."""

    path: str
    origin: Origin
    locator: str = ""


class Draft(msgspec.Struct, kw_only=True):
    """The draft of a package for one queued job of a node."""

    node: int
    package: Package
    origin: Origin
    command: tuple[str, ...] = ()
    inputs: list[DraftFile] = []
    outputs: list[DraftFile] = []
    stdin: DraftFile | None = None
    stdout: DraftFile | None = None
    stderr: DraftFile | None = None

    def needed(self) -> list[DraftFile]:
        """All inputs from the DAG's folder."""
        found = [*self.inputs, self.stdin] if self.stdin is not None else self.inputs
        return [file for file in found if not file.locator]

    def made(self) -> list[DraftFile]:
        """All outputs, including standard streams."""
        return [*self.outputs, *(stream for stream in (self.stdout, self.stderr) if stream is not None)]


# The resources of a job: cores, memory, disk, GPUs, machines, time, and its image.

_KNOWN_UNIVERSES = frozenset({"", "vanilla", "container", "docker", "parallel", "5"})
_WHOLE = re.compile(r"[+-]?[0-9]{1,9}")


def whole_number(job: SubmitJob, losses: Losses, *names: str) -> int | None:
    """The integer value of a command; any other value is listed as a loss."""
    text = job.text(*names)
    if not text:
        return None
    if not _WHOLE.fullmatch(text):
        _lose(job, losses, *names)
        return None
    return int(text)


def _lose(job: SubmitJob, losses: Losses, *names: str) -> None:
    origin = job.origin(*names)
    losses.add(names[0], f"{job.text(*names)}: {OTHER_LOSSES[names[0]]}", file=origin.file, mark=origin.mark)


def _size(job: SubmitJob, losses: Losses, *names: str, unit: int) -> int | None:
    text = job.text(*names)
    found = size_bytes(text, unit=unit) if text else None
    if text and found is None:
        _lose(job, losses, *names)
    return found


def resources(job: SubmitJob, losses: Losses) -> Resources:
    """The resources that a description requests."""
    universe = job.text("universe").lower()
    if universe not in _KNOWN_UNIVERSES:
        origin = job.origin("universe")
        losses.add("universe", f"{universe}: {OTHER_LOSSES['universe']}", file=origin.file, mark=origin.mark)
    cores = whole_number(job, losses, "request_cpus", "requestcpus")
    gpus = whole_number(job, losses, "request_gpus", "requestgpus")
    nodes = whole_number(job, losses, "machine_count", "machinecount", "node_count", "nodecount")
    durations = [whole_number(job, losses, name) for name in ("allowed_job_duration", "allowed_execute_duration")]
    limits = [seconds for seconds in durations if seconds is not None and seconds > 0]
    return Resources(
        cores=cores if cores is not None and cores > 0 else 1,
        memory_bytes=_size(job, losses, "request_memory", "requestmemory", unit=1024**2),
        gpus=gpus if gpus is not None and gpus > 0 else 0,
        nodes=nodes if nodes is not None and nodes > 0 else 1,
        wall_time_seconds=min(limits) if limits else None,
        scratch_bytes=_size(job, losses, "request_disk", "requestdisk", unit=1024),
    )


def container(job: SubmitJob) -> Container | None:
    """The image a job runs in."""
    docker = job.text("docker_image")
    image = docker or job.text("container_image")
    if not image:
        return None
    return Container(image=escape_braces(image), engine="docker" if docker else "any")


# Finds commands of submit descriptions that have no meaning here, and unused values.

_OURS = frozenset({"pilotage_activity", "pilotage_name"})


class Reviewer:
    """Reviews the descriptions of all nodes; a finding that several nodes share is reported once."""

    def __init__(self, report: Report, losses: Losses) -> None:
        self._report = report
        self._losses = losses
        self._noted: set[tuple[str, str, Origin]] = set()

    def review(self, node: DagNode, job: SubmitJob) -> None:
        """List all commands of a description that are not supported, and warn about unused values."""
        for name, origin in job.origins.items():
            if name not in MEANT and name not in (SEARCHED, WRAPPED):
                self._command(node, job, name, origin)
        where = job.origin("executable")
        for keyword, written in job.notes.losses.items():
            self._lose(keyword, f"{written}: {OTHER_LOSSES.get(keyword, '')}", where)
        for fault in job.notes.faults:
            if self._is_new("bad-macro", fault, where):
                self._report.error("bad-macro", fault, where.mark, file=where.file)
        for name in job.notes.undefined:
            self._undefined(name, job.mentions.get(name.lower(), where))

    def _command(self, node: DagNode, job: SubmitJob, name: str, origin: Origin) -> None:
        if name.startswith("my."):
            self._lose("+ATTRIBUTE", f"{name[3:]}: {OTHER_LOSSES['+ATTRIBUTE']}", origin)
        elif name == "transfer_executable" and job.text("executable").startswith("/"):
            return
        elif name in SUBMIT_LOSSES:
            if job.text(name).lower() not in HARMLESS.get(name, ()):
                self._lose(name, SUBMIT_LOSSES[name], origin)
        elif name.startswith("request_"):
            self._lose("request_…", f"{name}: {SUBMIT_LOSSES['request_…']}", origin)
        elif name not in job.notes.used:
            self._unused(node, name, origin)

    def review_unread(self, node: DagNode) -> None:
        """List the values of a node without a submit description."""
        for name, variable in node.variables.items():
            if name not in _OURS:
                reason = f"{name}: the node has no submit description that could use it"
                self._lose("VARS", reason, Origin(variable.file, variable.mark))

    def _unused(self, node: DagNode, name: str, origin: Origin) -> None:
        family = next((prefix for prefix in LOST_FAMILIES if name.startswith(prefix)), "")
        if family:
            self._lose(f"{family}…", f"{name}: {SUBMIT_LOSSES[f'{family}…']}", origin)
            return
        given = any(name == key.lower() and origin.mark == v.mark for key, v in node.variables.items())
        keyword = "VARS" if given else UNKNOWN
        self._lose(keyword, f"{name}: {OTHER_LOSSES[keyword]}", origin)
        message = f"nothing uses {name!r}; a misspelt command?"
        if self._is_new("unused-variable", message, origin):
            self._report.warn("unused-variable", message, origin.mark, file=origin.file)

    def _undefined(self, name: str, origin: Origin) -> None:
        message = f"$({name}) is set nowhere and counts as empty"
        if self._is_new("undefined-macro", message, Origin(origin.file, NOWHERE)):
            self._report.warn("undefined-macro", message, origin.mark, file=origin.file)

    def _lose(self, keyword: str, reason: str, origin: Origin) -> None:
        self._losses.add(keyword, reason, file=origin.file, mark=origin.mark)

    def _is_new(self, code: str, message: str, origin: Origin) -> bool:
        known = len(self._noted)
        self._noted.add((code, message, origin))
        return len(self._noted) > known


_SCRIPT_MACRO = re.compile(r"\$[A-Z_]+")
_ROLES: dict[str, Role] = {"final": "final", "provisioner": "provisioner", "service": "service"}


class Translator:
    """Translates nodes to drafts, and records faults and losses."""

    def __init__(self, dag: Dag, folder: Folder, report: Report, losses: Losses) -> None:
        self._dag = dag
        self._report = report
        self._losses = losses
        self._folder = folder
        self._reader = SubmitReader(folder, report, losses)
        self._reviewer = Reviewer(report, losses)
        self._noted: set[tuple[str, str, Origin]] = set()
        self._parents: dict[int, list[str]] = {}
        for parent, child in dag.edges:
            self._parents.setdefault(child, []).append(dag.nodes[parent].name)

    def drafts(self, position: int) -> list[Draft]:
        """The drafts of one node, one for each job that its description queues."""
        node = self._dag.nodes[position]
        package = self._common(node)
        origin = Origin(node.file, node.mark)
        if node.kind == "subdag":
            self._reviewer.review_unread(node)
            return [self._subjob(node, position, package, origin)]
        jobs = self._jobs(node, position)
        if jobs is None:
            self._reviewer.review_unread(node)
            return [Draft(node=position, package=package, origin=origin)] if node.noop else []
        if not jobs:
            if not self._report.errors:
                self._error("no-items", f"expected at least one queued job for {node.name!r}, found none", origin)
            return []
        if len(jobs) > 1 and node.scripts:
            self._lose("SCRIPT", f"the scripts of {node.name!r} run for each of its {len(jobs)} jobs", origin)
        drafts = []
        for number, job in enumerate(jobs):
            name = package.name if len(jobs) == 1 else f"{package.name}.{number}"
            drafts.append(self._draft(node, position, job, msgspec.structs.replace(package, name=name)))
        self._reviewer.review(node, jobs[-1])
        return drafts

    def _lose(self, keyword: str, reason: str, origin: Origin) -> None:
        self._losses.add(keyword, reason, file=origin.file, mark=origin.mark)

    def _error(self, code: str, message: str, origin: Origin) -> None:
        """Report a fault; one that many jobs of a node share is reported once."""
        if (code, message, origin) not in self._noted:
            self._noted.add((code, message, origin))
            self._report.error(code, message, origin.mark, file=origin.file)

    def _common(self, node: DagNode) -> Package:
        """The fields that do not depend on the submit description."""
        own_name = node.variables.get("pilotage_name")
        own_activity = node.variables.get("pilotage_activity")
        retry = Retry()
        if node.retry is not None:
            code = node.retry.unless_exit
            rules = () if code is None else (RetryRule(exit_code=code, action="give-up"),)
            retry = Retry(attempts_max=node.retry.times + 1, rules=rules)
        if node.tolerance is not None:
            self._lose("TOLERANCE", OTHER_LOSSES["TOLERANCE"], Origin(node.tolerance.file, node.tolerance.mark))
        return Package(
            name=escape_braces(expand(own_name.value, {}, Notes()) if own_name else node.name),
            activity=expand(own_activity.value, {}, Notes()) if own_activity else "",
            retry=retry,
            priority=node.priority,
            category=node.category,
            role=_ROLES.get(node.kind, "work"),
            scripts=self._scripts(node),
            abort_on=AbortOn(exit_code=node.abort.status, result=node.abort.result) if node.abort else None,
            noop=node.noop,
            done=node.done,
        )

    def _scripts(self, node: DagNode) -> Scripts:
        found = {kind: self._script(node, command) for kind, command in node.scripts.items()}
        skip = node.pre_skip
        if skip is not None and "pre" not in found:
            self._lose("PRE_SKIP", f"{node.name!r} has no PRE script", Origin(skip.file, skip.mark))
            skip = None
        return Scripts(
            pre=found.get("pre"),
            post=found.get("post"),
            hold=found.get("hold"),
            skip_exit_code=skip.number if skip else None,
        )

    def _script(self, node: DagNode, command: ScriptCommand) -> Script:
        origin = Origin(command.file, command.mark)
        words = command.script.text.split()
        words[0] = program(node.directory, words[0])
        known = {"$JOB": node.name, "$NODE": node.name}
        known |= {"$MAX_RETRIES": str(node.retry.times)} if node.retry is not None else {}
        words = [known.get(word, word) for word in words]
        later = ("$RETURN", "$RETRY") if command.kind == "post" else ("$RETRY",)  # filled in when the script starts
        unknown = [word for word in words[1:] if _SCRIPT_MACRO.fullmatch(word) and word not in later]
        if unknown:
            message = f"a script of {node.name!r} gets {', '.join(unknown)} as written: only a running DAGMan knows it"
            self._report.warn("script-macro", message, origin.mark, file=origin.file)
            self._lose("SCRIPT", f"{', '.join(unknown)}: known only to a running DAGMan; kept as written", origin)
        if command.debug_file:
            self._lose("SCRIPT", "DEBUG: the output of scripts is kept with the package", origin)
        return Script(
            run=tuple(map(escape_braces, words)),
            defer_exit_code=command.defer_status,
            defer_seconds=command.defer_seconds,
        )

    def _subjob(self, node: DagNode, position: int, package: Package, origin: Origin) -> Draft:
        description = node.command.description
        path = located(node.directory, "" if isinstance(description, Inline) else description.text)
        if not self._folder.exists(path) and not node.noop:
            if "pre" not in node.scripts and position not in self._parents:
                self._error(
                    "missing-subdag-file",
                    f"expected a DAG file {path!r}, found none, and nothing runs before "
                    f"{node.name!r} that could make it",
                    origin,
                )
            else:
                self._report.warn(
                    "late-subdag",
                    f"{path!r} does not exist yet; it is expected when {node.name!r} runs",
                    origin.mark,
                    file=origin.file,
                )
        return Draft(node=position, package=msgspec.structs.replace(package, subjob=escape_braces(path)), origin=origin)

    def _jobs(self, node: DagNode, position: int) -> list[SubmitJob] | None:
        description = node.command.description
        file = node.file
        if not isinstance(description, Inline) and description.text in self._dag.descriptions:
            description = self._dag.descriptions[description.text]
        if isinstance(description, Inline):
            statements = self._reader.inline(description)
            file = description.file
        else:
            file = located(node.directory, description.text)
            known = self._reader.file(file)
            if known is None:
                if not node.noop and not self._folder.exists(file):
                    self._error(
                        "missing-submit-file",
                        f"expected a submit file {file!r}, found none",
                        Origin(node.file, description.mark),
                    )
                elif not node.noop:
                    self._error(
                        "unreadable-submit-file",
                        f"expected a submit file {file!r}, found {found_instead(self._folder, file)}",
                        Origin(node.file, description.mark),
                    )
                return None
            statements = known
        notes = Notes()
        given = {"job": node.name, "dag_parent_names": ",".join(self._parents.get(position, ()))}
        return self._reader.jobs(
            statements, file=file, directory=node.directory, given=given, variables=node.variables, notes=notes
        )

    def _draft(self, node: DagNode, position: int, job: SubmitJob, package: Package) -> Draft:
        directory = located(node.directory, job.text("initialdir", "initial_dir", "job_iwd"))
        retries = whole_number(job, self._losses, "max_retries")
        if package.retry.attempts_max is None and retries is not None:
            package = msgspec.structs.replace(package, retry=Retry(attempts_max=retries + 1))
        priority = whole_number(job, self._losses, "priority", "prio")
        package = msgspec.structs.replace(
            package,
            priority=package.priority if package.priority is not None else priority,
            resources=resources(job, self._losses),
            container=container(job),
            environment=Environment(exported=self._environment(job)),
        )
        draft = Draft(node=position, package=package, origin=job.origin("executable"))
        draft.command = self._command(node, job)
        if "pilotage_activity" not in node.variables:
            draft.package = msgspec.structs.replace(package, activity=_activity(node, draft.command))
        self._files(draft, job, directory)
        return draft

    def _command(self, node: DagNode, job: SubmitJob) -> tuple[str, ...]:
        origin = job.origin("arguments", "args")
        arguments = split_arguments(job.text("arguments", "args"))
        if isinstance(arguments, InvalidValue):
            self._error("bad-arguments", f"in arguments: {arguments.message}", origin)
            arguments = ()
        executable = job.text("executable")
        if not executable:
            if not node.noop:
                self._error(
                    "missing-executable",
                    f"expected an executable for {node.name!r}, found none",
                    Origin(node.file, node.mark),
                )
            return ()
        wrapped = self._unwrapped(node, job, executable)
        if wrapped:
            return wrapped
        if executable == "/usr/bin/env" and arguments and is_yes(job.text(SEARCHED)) is True:
            return arguments
        if is_yes(job.text("transfer_executable") or "true") is False:
            return (executable, *arguments)
        return (program(node.directory, executable), *arguments)

    def _unwrapped(self, node: DagNode, job: SubmitJob, executable: str) -> tuple[str, ...]:
        """The command inside a wrapper script of our own export, or an empty tuple."""
        kind = job.text(WRAPPED).strip('"')
        data = self._folder.read(located(node.directory, executable)) if kind else None
        text = decode(data, self._report, file=executable) if data is not None else None
        if text is None or not text.startswith(SCRIPT_HEAD):
            return ()
        inner = text.removeprefix(SCRIPT_HEAD)
        if kind == "shell":
            return (*SHELL, inner)
        try:
            words = shlex.split(inner.removeprefix("exec "))
        except ValueError:
            words = []
        return tuple(words)

    def _environment(self, job: SubmitJob) -> dict[str, str]:
        names = ("environment", "env")
        found = split_environment(job.text(*names))
        if isinstance(found, InvalidValue):
            self._error("bad-environment", f"in environment: {found.message}", job.origin(*names))
            return {}
        return {name: escape_braces(value) for name, value in found.items()}

    def _files(self, draft: Draft, job: SubmitJob, directory: str) -> None:
        keeps = is_yes(job.text("preserve_relative_paths")) is True
        names = ("transfer_input_files", "transferinputfiles")
        for item in split_list(job.text(*names)):
            file = self._input(directory, item, "transfer_input_files", job.origin(*names))
            if file is None:
                continue
            if not keeps and not file.locator and (item.endswith("/") or "/" in file.path):
                self._lose(
                    "transfer_input_files", f"{item!r} is put at {file.path!r}, not beside the program", file.origin
                )
            draft.inputs.append(file)
        self._outputs(draft, job, directory, keeps=keeps)
        source = job.text("input", "stdin")
        if source and source != "/dev/null":
            draft.stdin = self._input(directory, source, "input", job.origin("input", "stdin"))
        draft.stdout = self._stream(job, directory, "output", "stdout")
        draft.stderr = self._stream(job, directory, "error", "stderr")

    def _input(self, directory: str, item: str, keyword: str, origin: Origin) -> DraftFile | None:
        if is_url(item):
            return DraftFile(posixpath.basename(item.rstrip("/")) or item, origin, item)
        path = located(directory, item)
        if is_pattern(path):
            self._lose(keyword, f"{item!r} has characters of a pattern", origin)
            return None
        if is_outside(path):
            return DraftFile(posixpath.basename(path) or path, origin, path)
        return DraftFile(path, origin)

    def _outputs(self, draft: Draft, job: SubmitJob, directory: str, *, keeps: bool) -> None:
        names = ("transfer_output_files", "transferoutputfiles")
        origin = job.origin(*names)
        remap_names = ("transfer_output_remaps", "transferoutputremaps")
        remaps = split_remaps(job.text(*remap_names))
        if isinstance(remaps, InvalidValue):
            self._error("bad-remaps", f"in transfer_output_remaps: {remaps.message}", job.origin(*remap_names))
            remaps = {}
        for item in dict.fromkeys(split_list(job.text(*names))):
            clean = posixpath.normpath(item)
            target = remaps.get(item) or (clean if keeps else posixpath.basename(clean))
            if item in remaps:
                self._lose(
                    "transfer_output_remaps",
                    f"the program must write {remaps[item]!r} instead of {item!r}",
                    job.origin(*remap_names),
                )
            elif target != clean:
                self._lose("transfer_output_files", f"the program must write {target!r} instead of {item!r}", origin)
            path = located(directory, target)
            reason = "it is a URL" if is_url(target) else _why_no_output(path)
            if reason:
                self._lose("transfer_output_files", f"{target!r} cannot be an output: {reason}", origin)
            else:
                draft.outputs.append(DraftFile(path, origin))

    def _stream(self, job: SubmitJob, directory: str, *names: str) -> DraftFile | None:
        text = job.text(*names)
        if not text or text == "/dev/null":
            return None
        path = located(directory, text)
        reason = _why_no_output(path)
        if reason:
            self._lose(names[0], f"{text!r} cannot be an output: {reason}", job.origin(*names))
            return None
        return DraftFile(path, job.origin(*names))


def _why_no_output(path: str) -> str:
    return "it has characters of a pattern" if is_pattern(path) else why_outside(path)


def _activity(node: DagNode, command: tuple[str, ...]) -> str:
    """The name of the submit file, unless it equals the name of the program."""
    description = node.command.description
    stem = "" if isinstance(description, Inline) else posixpath.splitext(posixpath.basename(description.text))[0]
    return "" if stem == activity_of_command(command) else stem
