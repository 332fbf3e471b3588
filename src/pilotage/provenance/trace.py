"""Traces a file through recorded jobs: the packages and inputs that made it, or what used it, across jobs.

A trace is a list of lines with depths, so that a chain of any length can be read and shown as it is found. A package is followed
once; where it is met again, the line says so.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, Protocol

import msgspec

from pilotage.model.states import ADOPTED, MADE_BEFORE
from pilotage.provenance.history import FileUse, History, PackageHistory

LINES_MAX = 10_000
"""Lines of a trace, unless another limit is given."""

_JOBS_HELD_MAX = 8
_MAKERS_MAX = 100  # jobs that made one content and are looked into for its name
_EMPTY = hashlib.sha256(b"").hexdigest()

Direction = Literal["consumed", "produced"]
Names = Literal["same", "base", "any"]
Origin = Literal["package", "captured", "outside"]


class RecordedFiles(Protocol):
    """Records by the files of their jobs."""

    def jobs_with_file(self, sha256: str, direction: Direction) -> Sequence[str]:
        """The recorded jobs that used or made a content, the earliest first."""
        ...

    def history(self, job: str) -> History | None:
        """The record of a job, opened; None if there is none."""
        ...


class TraceLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file, or the package that made or used it; what belongs to it follows one deeper."""

    depth: int
    kind: Literal["file", "package"]
    job: str = ""
    package: str = ""  # dotted
    name: str = ""  # of the file or the package
    sha256: str | None = None
    size_bytes: int | None = None
    origin: Origin | None = None  # of a file without a maker: it came with the submission, or from outside
    locator: str = ""
    command: str = ""
    site: str = ""
    node: str = ""
    ended_at: float | None = None
    followed_above: bool = False
    cut: bool = False  # there is more, beyond the limit of lines


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """A package of a job, or a file and the package that made it, at a depth."""

    depth: int
    job: str
    file: FileUse | None = None
    package: PackageHistory | None = None


def trace_back(
    files: RecordedFiles, start: Sequence[tuple[str, FileUse]], *, lines_max: int = LINES_MAX
) -> Iterator[TraceLine]:
    """What made files, each given with the job that knows it (empty: a file by its checksum alone)."""
    return _lines([_Found(depth=0, job=job, file=file) for job, file in start], _Backward(files), lines_max)


def trace_forward(
    files: RecordedFiles, start: Sequence[tuple[str, FileUse]], *, lines_max: int = LINES_MAX
) -> Iterator[TraceLine]:
    """What used files, and what was made of them."""
    return _lines([_Found(depth=0, job=job, file=file) for job, file in start], _Forward(files), lines_max)


class _Follows(Protocol):
    def of_file(self, found: _Found, file: FileUse) -> list[_Found]:
        """The packages that belong to a file."""
        ...

    def of_package(self, found: _Found, package: PackageHistory) -> list[_Found]:
        """The files that belong to a package."""
        ...


def _lines(start: list[_Found], follows: _Follows, lines_max: int) -> Iterator[TraceLine]:
    waiting = list(reversed(start))
    followed: set[tuple[str, ...]] = set()
    for _ in range(lines_max):
        if not waiting:
            return
        found = waiting.pop()
        if found.package is not None:
            key = found.job, found.package.id
            yield _package_line(found, found.package, followed_above=key in followed)
            more = follows.of_package(found, found.package) if key not in followed else []
            followed.add(key)
        else:
            assert found.file is not None
            more = follows.of_file(found, found.file)
            yield _file_line(found, found.file, is_made=any(each.package is not None for each in more))
        waiting.extend(reversed(more))
    if waiting:
        yield TraceLine(depth=waiting[-1].depth, kind="file" if waiting[-1].file is not None else "package", cut=True)


class _Backward:
    """From a file to the package that made it, and from a package to the files that it read."""

    def __init__(self, files: RecordedFiles) -> None:
        self._files = files
        self._job_files = _JobFiles(files)

    def of_file(self, found: _Found, file: FileUse) -> list[_Found]:
        maker = self._own_maker(found, file)
        if (maker is None or _is_adopted(maker)) and file.sha256 is not None:
            others = [job for job in self._files.jobs_with_file(file.sha256, "produced") if job != found.job]
            for names in ("base", "any"):
                for job in others[:_MAKERS_MAX]:
                    for earlier in self._job_files.packages(job, file, "produced", names):
                        return [_Found(depth=found.depth + 1, job=job, package=earlier)]
        return [_Found(depth=found.depth + 1, job=found.job, package=maker)] if maker is not None else []

    def _own_maker(self, found: _Found, file: FileUse) -> PackageHistory | None:
        history = self._files.history(found.job) if file.package else None
        return history.package(file.package) if history is not None else None

    def of_package(self, found: _Found, package: PackageHistory) -> list[_Found]:
        return [_Found(depth=found.depth + 1, job=found.job, file=each) for each in package.consumed]


class _Forward:
    """From a file to all packages that read it, and from a package to the files that it made."""

    def __init__(self, files: RecordedFiles) -> None:
        self._files = files
        self._job_files = _JobFiles(files)

    def of_file(self, found: _Found, file: FileUse) -> list[_Found]:
        if file.sha256 is None:
            return []
        more: list[_Found] = []
        for job in self._files.jobs_with_file(file.sha256, "consumed"):
            if job == found.job:
                users = self._job_files.packages(job, file, "consumed", "same")
            else:
                users = self._job_files.packages(job, file, "consumed", "base")
                users = users or self._job_files.packages(job, file, "consumed", "any")
            more += [_Found(depth=found.depth + 1, job=job, package=user) for user in users]
        return more

    def of_package(self, found: _Found, package: PackageHistory) -> list[_Found]:
        return [_Found(depth=found.depth + 1, job=found.job, file=each) for each in package.produced]


class _JobFiles:
    """Which packages of a job have which contents: a job is read once, however often it is asked."""

    def __init__(self, files: RecordedFiles) -> None:
        self._history = files.history
        self._uses = lru_cache(maxsize=_JOBS_HELD_MAX)(self._read)

    def packages(self, job: str, file: FileUse, direction: Direction, names: Names) -> list[PackageHistory]:
        """The packages that used or made a content; small files of one content are common, so the name may count, too."""
        uses = self._uses(job).get((file.sha256 or "", direction), ())
        if names == "same":
            places = [place for place, name in uses if name == file.name]
        elif names == "base" or file.sha256 == _EMPTY:
            places = [place for place, name in uses if _base(name) == _base(file.name)]
        else:
            places = [place for place, _ in uses]
        history = self._history(job)
        found = (history.package(place) for place in dict.fromkeys(places)) if history is not None else ()
        return [package for package in found if package is not None]

    def _read(self, job: str) -> dict[tuple[str, Direction], list[tuple[str, str]]]:
        """The places of packages and the names of files, by content and direction."""
        history = self._history(job)
        found: dict[tuple[str, Direction], list[tuple[str, str]]] = {}
        for package in history.packages() if history is not None else ():
            for each in package.files:
                if each.sha256 is not None:
                    found.setdefault((each.sha256, each.direction), []).append((package.id, each.name))
        return found


def _is_adopted(package: PackageHistory) -> bool:
    """Whether an earlier job made the outputs of a package, and nothing was run."""
    granted = package.granted
    return granted is None or granted.site == ADOPTED or granted.reason == MADE_BEFORE


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _file_line(found: _Found, file: FileUse, *, is_made: bool) -> TraceLine:
    origin: Origin = "package" if is_made or file.package else file.source
    return TraceLine(
        depth=found.depth,
        kind="file",
        job=found.job,
        name=file.name,
        sha256=file.sha256,
        size_bytes=file.size_bytes,
        origin=origin,
        locator=file.locator,
    )


def _package_line(found: _Found, package: PackageHistory, *, followed_above: bool) -> TraceLine:
    granted = package.granted
    return TraceLine(
        depth=found.depth,
        kind="package",
        job=found.job,
        package=package.id,
        name=package.name,
        command=" && ".join(shlex.join(each.argv) for each in package.commands),
        site=(granted.site or "") if granted is not None else "",
        node=(granted.node or "") if granted is not None else "",
        ended_at=granted.ended_at if granted is not None else None,
        followed_above=followed_above,
    )


def file_in_job(history: History, name: str) -> FileUse | None:
    """A file of a job by its name: made by one of its packages, or else read by one."""
    read: FileUse | None = None
    for package in history.packages():
        for file in package.files:
            if file.name == name:
                if file.direction == "produced":
                    return msgspec.structs.replace(file, package=package.id)
                read = read or file
    return read
