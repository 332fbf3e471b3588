"""Writes a WfFormat 1.5 trace: the packages that ran, with their measured times, resources and machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pilotage.language.expansion.packages import SHELL
from pilotage.language.formats.wfformat.instance import OWN_SYSTEM, file_id, task_id
from pilotage.language.formats.wfformat.schema import SCHEMA_VERSION
from pilotage.language.text.patterns import is_pattern
from pilotage.model.records import RecordNode
from pilotage.model.version import VERSION
from pilotage.provenance.exports.shared import NotExportable, Section, command_line, iso_time, ran
from pilotage.provenance.history import AttemptHistory, FileUse, History, PackageHistory

Values = dict[str, Any]

_SYSTEMS = ("linux", "macos", "windows")
_encode = msgspec.json.Encoder().encode


def wfformat_trace(history: History) -> Iterator[bytes]:
    """The instance, in pieces. Raises `NotExportable` if nothing of the job ran."""
    job = history.job
    names: dict[str, str] = {}
    children: dict[str, list[str]] = {}
    for package in history.packages():
        if ran(package):
            names[package.id] = task_id(package.name or package.id)
            for before in package.after:
                children.setdefault(before, []).append(package.id)
    if not names:
        raise NotExportable("nothing of the job ran: a trace has at least one task", subject=f"job {job.id}")
    specified, executed, files = Section(), Section(), Section()
    known: set[str] = set()
    for package in history.packages():
        if package.id in names:
            for use in package.files:
                if use.name not in known and not is_pattern(use.name):
                    known.add(use.name)
                    files.add(_encode({"id": file_id(use.name), "sizeInBytes": use.size_bytes or 0}))
            specified.add(_encode(_specified(package, names, children.get(package.id, []))))
            executed.add(_encode(_executed(package, names[package.id])))
    about: Values = {
        "name": job.name,
        "description": job.description or f"a run of {job.name}, job {job.id}",
        "schemaVersion": SCHEMA_VERSION,
        "runtimeSystem": {"name": OWN_SYSTEM, "version": VERSION},
    }
    if job.submitted_at is not None:
        about["createdAt"] = iso_time(job.submitted_at)
    started = job.started_at if job.started_at is not None else history.record.made_at
    finished = job.finished_at if job.finished_at is not None else started
    execution = {"makespanInSeconds": max(finished - started, 0.0), "executedAt": iso_time(started)}
    yield _encode(about)[:-1] + b',\n"workflow":{"specification":{"tasks":['
    yield from specified.pieces()
    yield b'],\n"files":['
    yield from files.pieces()
    yield b']},\n"execution":' + _encode(execution)[:-1] + b',\n"tasks":['
    yield from executed.pieces()
    yield b"]"
    if history.nodes:
        yield b',\n"machines":' + _encode([_machine(node) for node in history.nodes])
    yield b"}}}\n"


def _specified(package: PackageHistory, names: dict[str, str], children: list[str]) -> Values:
    return {
        "name": package.activity or names[package.id],
        "id": names[package.id],
        "parents": [names[before] for before in package.after if before in names],
        "children": [names[after] for after in children],
        "inputFiles": _files(package.consumed),
        "outputFiles": _files(package.produced),
    }


def _files(uses: tuple[FileUse, ...]) -> list[str]:
    """The ids of files; a name with the characters of a pattern is left out, as in the export of a document."""
    return list(dict.fromkeys(file_id(use.name) for use in uses if not is_pattern(use.name)))


def _executed(package: PackageHistory, name: str) -> Values:
    attempt = package.granted or ran(package)[-1]
    seconds = _seconds(attempt)
    found: Values = {"id": name, "runtimeInSeconds": seconds}
    if attempt.started_at is not None:
        found["executedAt"] = iso_time(attempt.started_at)
    if command := _command(package):
        found["command"] = {"program": command[0], "arguments": list(command[1:])}
    if package.cores is not None and package.cores >= 1:
        found["coreCount"] = package.cores
    measured = attempt.measured
    if measured.cpu_seconds is not None and seconds:
        found["avgCPU"] = round(100.0 * measured.cpu_seconds / seconds, 3)
    for field, value in (
        ("readBytes", measured.read_bytes),
        ("writtenBytes", measured.written_bytes),
        ("memoryInBytes", measured.peak_memory_bytes),
    ):
        if value is not None:
            found[field] = value
    if attempt.node is not None:
        found["machines"] = [attempt.node]
    return found


def _seconds(attempt: AttemptHistory) -> float:
    """How long the application ran; if that was not measured, the whole attempt."""
    measured = [phase.seconds for phase in attempt.phases if phase.phase == "application"]
    return sum(measured) if measured else attempt.seconds or 0.0


def _command(package: PackageHistory) -> tuple[str, ...]:
    """The one command of a task; several, redirections and empty arguments become a line for the shell."""
    if not package.commands:
        return ()
    command = package.commands[0]
    plain = not (command.stdin or command.stdout or command.stderr) and all(command.argv)
    return command.argv if plain and len(package.commands) == 1 else (*SHELL, command_line(package.commands))


def _machine(node: RecordNode) -> Values:
    found: Values = {"nodeName": node.node}
    system = next((each for each in _SYSTEMS if node.system.lower().startswith(each)), None)
    if system is not None:
        found["system"] = system
    if node.memory_bytes:
        found["memoryInBytes"] = node.memory_bytes
    if node.cores:
        found["cpu"] = {"coreCount": node.cores}
    return found
