"""What is needed to run a recorded job again: its definition, or that of one of its packages, and the files that it reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from pilotage.language.recorded_jobs import read_canonical
from pilotage.language.text.names import why_outside
from pilotage.language.text.tree import tree_of
from pilotage.model.errors import PilotageError
from pilotage.model.jobs.definition import Combination, Definition, Iteration, Line, Package, Source, Stage, plain
from pilotage.model.jobs.submission import ResolvedLists
from pilotage.provenance.history import FileUse, History, PackageHistory

_NUMBERED = re.compile(r"(?<![${]){(tag|package)}(?!})")


class NotRepeatable(PilotageError):
    """The record does not have what a run needs: a job of another scheduler has no definition."""


class NeededFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that must be in the folder of a run; what is not known of it is None."""

    name: str
    sha256: str | None = None
    size_bytes: int | None = None
    executable: bool = False
    kept: bool = False  # its content is a part of the record
    locator: str = ""  # where the agent fetches it from


class Reconstruction(msgspec.Struct, frozen=True, kw_only=True):
    """What to run again."""

    definition: Definition
    lists: ResolvedLists | None  # as they were read for the first run; None: they are read again
    files: tuple[NeededFile, ...]
    compared: frozenset[str] | None = None  # the packages whose outputs are compared; None: all


def reconstruct(history: History, *, package: str = "", executor: str = "") -> Reconstruction:
    """What to run again: the whole job, or one package by its place or name; `executor` is where, if that is chosen anew.

    Raises `NotRepeatable`.
    """
    if history.job.definition is None:
        raise NotRepeatable(
            "the record has no definition: another scheduler ran the job", subject=f"job {history.job.id}"
        )
    if not package:
        definition = _placed(history.job.definition, executor)
        return Reconstruction(definition=definition, lists=history.lists, files=_of_job(history))
    found = find_package(history, package)
    return Reconstruction(
        definition=_placed(_of_package(history, found), executor),
        lists=None,
        files=_files(
            history, {each.name: each for each in found.consumed}
        ),  # not all of the job: patterns may match them
        compared=frozenset((found.id,)),
    )


def find_package(history: History, word: str) -> PackageHistory:
    """A package by its place or its name. Raises `NotRepeatable` if there is none, or it cannot be run alone."""
    found = history.package(word) or next((each for each in history.packages() if each.name == word), None)
    if found is None or found.number is None:
        raise NotRepeatable(f"there is no package {word!r}", subject=f"job {history.job.id}")
    if not found.commands:
        raise NotRepeatable(
            f"the package {found.id} runs no command of its own",
            subject=f"job {history.job.id}",
            next_step="run the whole job",
        )
    return found


def _of_job(history: History) -> tuple[NeededFile, ...]:
    """The files that packages of a job read and that no package before them made, and all that came with the submission."""
    found = {each.name: each for package in history.packages() for each in package.consumed if each.source != "package"}
    for name, captured in history.job.captured.items():
        found[name] = FileUse(
            name=name,
            direction="consumed",
            source="captured",
            sha256=captured.sha256,
            size_bytes=captured.size_bytes,
            executable=captured.executable,
        )
    return _files(history, found)


def _files(history: History, read: dict[str, FileUse]) -> tuple[NeededFile, ...]:
    """The files that a run needs, in the order of their names."""
    parts = {part.sha256 for part in history.record.parts}
    found = {
        name: NeededFile(
            name=name,
            sha256=each.sha256,
            size_bytes=each.size_bytes,
            executable=each.executable,
            kept=each.sha256 in parts,
            locator=each.locator,
        )
        for name, each in read.items()
    }
    for name in found:
        if why := why_outside(name):  # a record may come from anywhere
            raise NotRepeatable(f"the file {name!r} cannot be written: {why}", subject=f"job {history.job.id}")
    return tuple(found[name] for name in sorted(found))


def _placed(definition: Definition, executor: str) -> Definition:
    """A definition for another run: it has no id yet, its owner is who runs it, and it is not held."""
    replace = msgspec.structs.replace
    found = replace(definition, id="", owner="", hold=False)
    if not executor:
        return found

    def elsewhere(package: Package) -> Package:
        return replace(package, executor=executor, node_restriction=(), platform="")

    return _with_packages(found, elsewhere)


def _with_packages(definition: Definition, change: Callable[[Package], Package]) -> Definition:
    replace = msgspec.structs.replace
    stages = []
    for stage in definition.stages:
        lines = [replace(line, packages=tuple(map(change, line.packages))) for line in stage.lines]
        stages.append(replace(stage, lines=tuple(lines)))
    return replace(definition, stages=tuple(stages))


def _of_package(history: History, package: PackageHistory) -> Definition:
    """The definition of a job with one package, whose iteration has the values of the first run."""
    whole = history.job.definition
    assert whole is not None
    assert package.number is not None
    declared, tag = history.declared(package.number)
    alone = msgspec.structs.replace(declared, after=(), role="work", category="")
    sources = tuple(_source(name, value) for name, value in package.parameters.items())
    each: Iteration | None = Combination(operator="cross", of=sources) if len(sources) > 1 else (sources or (None,))[0]
    stage = Stage(name=_stage_name(whole, package), lines=(Line(each=each, packages=(alone,)),))
    found = plain(msgspec.structs.replace(whole, stages=(stage,), limits={}))
    numbers = {"tag": tag, "package": package.id}
    found["stages"] = _filled(found["stages"], numbers)
    return read_canonical(tree_of(found), f"package {package.id} of {history.job.id}")


def _stage_name(definition: Definition, package: PackageHistory) -> str:
    return definition.stages[int(package.id.partition(".")[0]) - 1].name


def _source(name: str, value: str | tuple[str, ...]) -> Source:
    if isinstance(value, str):
        return Source(variable=name, values=(value,))
    return Source(variable=name, values=value, group=max(len(value), 1))


def _filled(value: Any, numbers: dict[str, str]) -> Any:
    """Plain data with the numbers of the first run in place of `{tag}` and `{package}`, which would be others now."""
    if isinstance(value, str):
        return _NUMBERED.sub(lambda found: numbers[found[1]], value)
    if isinstance(value, list):
        return [_filled(each, numbers) for each in value]
    if isinstance(value, dict):
        return {name: _filled(each, numbers) for name, each in value.items()}
    return value
