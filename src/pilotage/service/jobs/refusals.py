"""Rejects a job that asks for something not supported yet, and names it; no field is ever ignored."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pilotage.book.rows.rows import JobRow
from pilotage.language import Expansion
from pilotage.language.expansion.producers import general_pattern
from pilotage.language.expansion.software import described_settings
from pilotage.language.file_checks import scheme_fault
from pilotage.language.file_plan import jobs_read
from pilotage.language.named_files import wanted_column
from pilotage.language.package_inputs import is_brought
from pilotage.language.released_inputs import released_names
from pilotage.language.stored_outputs import archives_beside
from pilotage.language.text.locators import CONTENT, InstalledSchemes, scheme_of, shown_locator
from pilotage.language.text.patterns import can_both_match
from pilotage.language.text.templates import parse_template
from pilotage.model.errors import Problem
from pilotage.model.jobs.definition import Binary, Definition, InputFile, OutputFile, Package
from pilotage.model.jobs.plan import JobPlan
from pilotage.ports import NotOurs, StoreError
from pilotage.reading.access import owner_may_read
from pilotage.service.works.stored_copies import contents_named

_SHOWN_MAX = 20


def refusals(definition: Definition, *, file: str, stores: KnownStores | None = None) -> list[Problem]:
    """The fields of a definition that are not supported yet, or need stores that are not there, with their places in words."""
    known = stores or KnownStores()
    found = []
    made = _made_by(definition) if _wishes_anything(definition) else []
    for number, stage in enumerate(definition.stages, start=1):
        where = f"stage {stage.name!r}" if stage.name else f"stage {number}"
        for line in stage.lines:
            for package in line.packages:
                for field, why in (*_of_package(package, made), *_of_settings(definition, package)):
                    message = f"{where}: {field} is not supported yet"
                    found.append(Problem(file=file, code="not-supported", message=message, hint=why))
                for message, why in _of_stores(package, known):
                    found.append(Problem(file=file, code="no-store", message=f"{where}: {message}", hint=why))
    for software in definition.software:
        for archive in software.archives:
            for message, why in _of_scheme(archive.locator, f"software {software.id!r}", known):
                found.append(Problem(file=file, code="no-store", message=message, hint=why))
    return list(dict.fromkeys(found))


def endings_refused(plan: JobPlan, *, file: str) -> list[Problem]:
    """Final packages that others wait for, and `abort_on: 0` in a job whose packages are not all known."""
    found = []
    final = np.array([each.final for each in plan.templates], np.bool_)[plan.template_of]
    for producer in np.flatnonzero(final).tolist():
        name = plan.place(producer).dotted
        late = next((each.stage for each in plan.late if producer in each.packages), None)
        if late is not None or _feeds_others(plan, producer, final):
            message = (
                f"{name} has the role `final`, and {f'stage {late}' if late is not None else 'others'} wait for it"
            )
            hint = "a package that others need cannot run last: give it the role `work`"
            found.append(Problem(file=file, code="not-supported", message=message, hint=hint))
    if plan.late and any(each.abort_on is not None and each.abort_on.exit_code == 0 for each in plan.templates):
        message = "abort_on: 0 is not supported yet in a job with late stages"
        found.append(Problem(file=file, code="not-supported", message=message, hint="end with another exit code"))
    return found


def _feeds_others(plan: JobPlan, producer: int, final: NDArray[np.bool_]) -> bool:
    """Whether a package that is not final waits for one that is."""
    for segment in plan.graph.segments:
        start, end = segment.successors.span(producer)
        if not final[segment.successors.others[start:end]].all():
            return True
    return False


def _of_package(package: Package, made: Sequence[str]) -> Iterator[tuple[str, str]]:
    if package.resources.nodes > 1 and package.container is not None:
        yield (
            f"container of a package of {package.resources.nodes} nodes",
            "its launcher starts the ranks: let that start the container, as in `mpirun apptainer exec IMAGE PROGRAM`",
        )
    if package.subjob:
        yield f"subjob: {package.subjob}", "run that document separately first, and use its files as inputs"
    if package.role in ("service", "provisioner"):
        yield f"role: {package.role}", "start it next to the job yourself"
    if package.role == "final" and package.abort_on is not None:
        yield "abort_on of a package that runs last", "nothing is left that it could end"
    if package.scripts.hold is not None:
        yield "scripts.hold", "subscribe to the event of the hold instead"
    for binary in package.binaries:
        yield from _of_binary(binary, made)


_SETTINGS = {
    "account": "a site's entry sets the account: give a cluster one entry per account, and choose it by `executor`",
    "interval_seconds": "the setting `engine.interval_seconds` is the interval of all reports",
    "queue": "a site's entry sets the queue: give a cluster one entry per queue, and choose it by `executor`",
}
_KNOWN_AT_THE_SITE = frozenset({"keep_failed"})


def _of_settings(definition: Definition, package: Package) -> Iterator[tuple[str, str]]:
    """Settings without effect for a single package, and those that depend on the site, which they help to choose."""
    levels = [definition.environment, package.environment, *(each.environment for each in package.binaries)]
    given = {name for level in levels for name in level.setting}
    for binary in package.binaries:
        agreed, differing = described_settings(definition, package, binary)
        given.update(agreed)
        for name in differing:
            if name in _SETTINGS:
                given.add(name)
            elif name not in given and name not in _KNOWN_AT_THE_SITE:
                yield (
                    f"the setting {name} of the software {binary.software!r}, which differs by infrastructure",
                    "set it for the release, or for the package: demands must be known before the site is chosen",
                )
    yield from ((f"the setting {name} of a package", why) for name, why in _SETTINGS.items() if name in given)


def _of_binary(binary: Binary, made: Sequence[str]) -> Iterator[tuple[str, str]]:
    for given in binary.inputs:
        yield from _of_input(given, made)


def _wishes_anything(definition: Definition) -> bool:
    return any(
        given.disposition
        for stage in definition.stages
        for line in stage.lines
        for package in line.packages
        for binary in package.binaries
        for given in binary.inputs
    )


def _made_by(definition: Definition) -> list[str]:
    """Patterns of all files that packages of a job may make."""
    outputs = [
        output
        for stage in definition.stages
        for line in stage.lines
        for package in line.packages
        for binary in package.binaries
        for output in binary.outputs
    ]
    names = [each.name or (f"{each.folder}/**" if each.folder else "**") for each in outputs]
    return [general_pattern(parse_template(name)) for name in dict.fromkeys(names)]


def _of_input(given: InputFile, made: Sequence[str]) -> Iterator[tuple[str, str]]:
    in_place = given.present and scheme_of(given.locator) == "file"
    if given.disposition in ("", "retain-indefinitely") or (is_brought(given) and not in_place):
        return
    if given.disposition == "release" and not given.locator:
        return  # the lists tell which earlier job made it: see `others_files_refused`
    if given.locator:
        yield (
            f"disposition `{given.disposition}` of the input {given.name!r}, which is not brought to a site,",
            "give it the locator that it has in the cache of the site: see `pilotage files list`",
        )
    elif not any(can_both_match(general_pattern(parse_template(given.name)), each) for each in made):
        yield (
            f"disposition `{given.disposition}` of the input {given.name!r}, which no package of the job makes,",
            "leave it out: pilotage never removes files that it did not make",
        )


# Stores: whether they exist is known here, and not to the language.


class KnownStores(NamedTuple):
    """The stores that a service has: the URLs of those that outputs are archived to, and the schemes of installed ones."""

    archives: Sequence[str] | None = None  # None: not known here
    find_job: Callable[[str], JobRow | None] | None = None  # for the files of jobs; none: not known here
    installed: InstalledSchemes = tuple
    may_read: Callable[[str, str], bool] | None = (
        None  # whether a user holds a content, by sha256; None: not known here
    )


def unreadable_contents(expansion: Expansion, *, owner: str, file: str, stores: KnownStores | None) -> list[Problem]:
    """The contents of the service's own store that a job names as inputs, and that its owner does not hold."""
    may_read = stores.may_read if stores is not None else None
    if may_read is None:
        return []
    lacking = [each for each in sorted(contents_named(expansion)) if not may_read(each, owner)]
    return [
        Problem(
            file=file,
            code="no-content",
            message=f"{CONTENT}{sha256} is not stored here, or not for {owner}",
            hint="send the file: pilotage files put FILE",
        )
        for sha256 in lacking[:_SHOWN_MAX]
    ]


def others_files_refused(expansion: Expansion, *, owner: str, stores: KnownStores | None, file: str) -> list[Problem]:
    """Files of jobs that do not exist, or that the owner of the job may not read."""
    in_tree = released_names(expansion)
    found = [
        Problem(
            file=file,
            code="not-released",
            message=f"the input {name!r} cannot be released: no earlier job that the document iterates over made it",
            hint="iterate over {files: PATTERN, job: NAME}; pilotage never removes files that it did not make",
        )
        for name in in_tree.unknown[:_SHOWN_MAX]
    ]
    find_job = stores.find_job if stores is not None else None
    if find_job is None:
        return found
    read = jobs_read(expansion) | in_tree.jobs
    released = (jobs_read(expansion, disposition="release") if read else set()) | in_tree.jobs
    for job in sorted(read):
        row = find_job(job)
        if row is None or row.place == "purged":
            message = f"no job of this service has the id {job!r}, whose files are inputs"
            found.append(Problem(file=file, code="unknown-job", message=message, hint="see: pilotage query"))
        elif not owner_may_read(owner, row):
            message = f"{owner} may not read the job {job}, whose files are inputs"
            hint = f"ask {row.owner} for access to it" if row.owner else "ask its owner for access to it"
            found.append(Problem(file=file, code="not-allowed", message=message, hint=hint))
        elif job in released and row.owner != owner:
            message = f"{owner} may not release the files of the job {job}, which belong to {row.owner}"
            hint = "leave the disposition out: they stay as long as their owner wishes"
            found.append(Problem(file=file, code="not-allowed", message=message, hint=hint))
    return found


def _of_stores(package: Package, stores: KnownStores) -> Iterator[tuple[str, str]]:
    for binary in package.binaries:
        for given in binary.inputs:
            if given.locator and given.brought:
                yield from _of_scheme(given.locator, f"input {given.name!r}", stores)
        for output in binary.outputs:
            what = f"output {output.name or output.expression!r}"
            if output.locator:
                yield from _of_scheme(output.locator, what, stores)
            yield from _of_replicas(output, what, stores)


def _of_scheme(locator: str, what: str, stores: KnownStores) -> Iterator[tuple[str, str]]:
    first = next(iter(parse_template(locator).parts), "")
    scheme = scheme_of(first) if isinstance(first, str) else ""
    if scheme == "job":
        yield (
            f"no store has the locator {shown_locator(locator)!r} of the {what}",
            "iterate over {files: PATTERN, job: NAME}: the files of an earlier job are read where they are",
        )
    fault = scheme_fault(locator, stores.installed)
    if fault is not None:
        yield f"{fault.message} of the {what}", fault.hint


def _of_replicas(output: OutputFile, what: str, stores: KnownStores) -> Iterator[tuple[str, str]]:
    if stores.archives is None or not output.stored:
        return
    possible = len(archives_beside(output.locator, stores.archives)) + bool(output.locator)
    if possible < output.replicas:
        asked = f"{output.replicas} copies" if output.replicas > 1 else "a copy"
        known = f"there are stores for {possible}" if possible else "there is no store for that"
        hint = "name stores in the setting files.archive, each with its own [stores.NAME]"
        yield f"{asked} of the {what} must be stored, and {known}", hint


# Whether the results of a job can be written; checked before anything is spent, as far as possible.


def refuse_unwritable(expansion: Expansion, folder: str) -> None:
    """Raise `StoreError` if this user cannot write to a folder of an output, and `NotOurs` if it is a file."""
    wanted = {""} if any(True for block in expansion.blocks for _ in block.outputs()) else set()
    for block in expansion.blocks:
        for _, output in block.outputs():
            if not block.makes_pattern(output) and not block.package.done:
                wanted |= {name.rpartition("/")[0] for name in wanted_column(expansion, block, output) if "/" in name}
    for file in sorted({blocking for each in wanted if (blocking := _in_the_way(Path(folder), each)) is not None}):
        raise NotOurs(
            "a file has the name of a folder for results",
            subject=str(file),
            next_step="move it away, or give the outputs another folder",
        )
    for parent in sorted({_nearest(Path(folder), each) for each in wanted}):
        if not os.access(parent, os.W_OK | os.X_OK):
            raise StoreError(
                f"results cannot be written here: {_why(parent)}",
                subject=str(parent),
                next_step="make it writable for this user, or run a copy of the document in a folder of your own",
            )


def _in_the_way(folder: Path, name: str) -> Path | None:
    """A file that has the name of a folder to be made."""
    path = folder
    for part in Path(name).parts:
        path /= part
        if not path.is_dir():
            return path if os.path.lexists(path) else None
    return None


def _nearest(folder: Path, name: str) -> Path:
    """The folder of a name, or the nearest existing one above: the rest is made when needed."""
    path = folder / name
    while path != folder and not path.is_dir():
        path = path.parent
    return path


def _why(folder: Path) -> str:
    number = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
    return os.strerror(number)
