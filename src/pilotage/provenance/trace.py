"""Traces a file through recorded jobs: the packages and inputs that made it, or what used it, across jobs.

A trace is a list of lines with depths, so that a chain of any length can be read and shown as it is found. A package is followed
once; where it is met again, the line says so. From job to job a file is recognized by its content, so time decides, too: a maker has
ended before the use began, and no path enters a job twice.
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
_NAMES: tuple[Names, ...] = ("base", "any")  # of a file in another job: first under its own name
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
    origin: Origin | None = None  # it came with the submission, or was made by a package, or came from outside
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
    time: float | None = None  # of a file: when its use began, or forward, when it was made; None: not known
    path: tuple[str, ...] = ()  # the jobs from the start to here


def trace_back(
    files: RecordedFiles, start: Sequence[tuple[str, FileUse]], *, lines_max: int = LINES_MAX
) -> Iterator[TraceLine]:
    """What made files, each given with the job that knows it (empty: a file by its checksum alone)."""
    follows = _Backward(files)
    return _lines([follows.start(job, file) for job, file in start], follows, lines_max)


def trace_forward(
    files: RecordedFiles, start: Sequence[tuple[str, FileUse]], *, lines_max: int = LINES_MAX
) -> Iterator[TraceLine]:
    """What used files, and what was made of them."""
    follows = _Forward(files)
    return _lines([follows.start(job, file) for job, file in start], follows, lines_max)


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

    def start(self, job: str, file: FileUse) -> _Found:
        """A file of a job, or of none; if packages of the job read it, the first use counts."""
        began: float | None = None
        if file.direction == "consumed" and (history := self._files.history(job)) is not None:
            users = (each for each in history.packages() if any(use.name == file.name for use in each.consumed))
            began = min((time for user in users if (time := _use_began(history, user, file)) is not None), default=None)
        return _Found(depth=0, job=job, file=file, time=began, path=(job,) if job else ())

    def of_file(self, found: _Found, file: FileUse) -> list[_Found]:
        history = self._files.history(found.job) if file.package else None
        maker = history.package(file.package) if history is not None else None
        if (maker is None or _is_adopted(maker)) and file.sha256 is not None:
            needed_at = found.time
            if history is not None and maker is not None:
                needed_at = _ended(history, maker)
            if (earlier := self._earlier_maker(found, file, needed_at)) is not None:
                return [earlier]
        return [_Found(depth=found.depth + 1, job=found.job, package=maker, path=found.path)] if maker else []

    def _earlier_maker(self, found: _Found, file: FileUse, needed_at: float | None) -> _Found | None:
        """The package of another job that had made the content when it was needed."""
        assert file.sha256 is not None
        others = [job for job in self._files.jobs_with_file(file.sha256, "produced") if job not in found.path]
        for names in _NAMES:
            for job in others[:_MAKERS_MAX]:
                for maker in self._job_files.packages(job, file, "produced", names):
                    if _is_before(self._ended(job, maker), needed_at):
                        return _Found(depth=found.depth + 1, job=job, package=maker, path=(*found.path, job))
        return None

    def _ended(self, job: str, package: PackageHistory) -> float | None:
        history = self._files.history(job)
        return _ended(history, package) if history is not None else None

    def of_package(self, found: _Found, package: PackageHistory) -> list[_Found]:
        history = self._files.history(found.job)
        assert history is not None
        return [
            _Found(
                depth=found.depth + 1,
                job=found.job,
                file=each,
                time=_use_began(history, package, each),
                path=found.path,
            )
            for each in package.consumed
        ]


class _Forward:
    """From a file to all packages that read it, and from a package to the files that it made."""

    def __init__(self, files: RecordedFiles) -> None:
        self._files = files
        self._job_files = _JobFiles(files)

    def start(self, job: str, file: FileUse) -> _Found:
        """A file of a job, or of none."""
        made: float | None = None
        if file.package and (history := self._files.history(job)) is not None:
            maker = history.package(file.package)
            made = _ended(history, maker) if maker is not None else None
        return _Found(depth=0, job=job, file=file, time=made, path=(job,) if job else ())

    def of_file(self, found: _Found, file: FileUse) -> list[_Found]:
        if file.sha256 is None:
            return []
        more: list[_Found] = []
        for job in self._files.jobs_with_file(file.sha256, "consumed"):
            if job == found.job:
                users = self._job_files.packages(job, file, "consumed", "same")
                more += [_Found(depth=found.depth + 1, job=job, package=user, path=found.path) for user in users]
            elif job not in found.path:
                path = (*found.path, job)
                users = self._later_users(job, file, found.time)
                more += [_Found(depth=found.depth + 1, job=job, package=user, path=path) for user in users]
        return more

    def _later_users(self, job: str, file: FileUse, made_at: float | None) -> list[PackageHistory]:
        """The packages of another job that began to use a content after it was made."""
        history = self._files.history(job)
        for names in _NAMES:
            users = self._job_files.packages(job, file, "consumed", names)
            if users and history is not None:
                uses = ((user, [each for each in user.consumed if each.sha256 == file.sha256]) for user in users)
                return [
                    user
                    for user, read in uses
                    if any(_is_before(made_at, _use_began(history, user, each)) for each in read)
                ]
        return []

    def of_package(self, found: _Found, package: PackageHistory) -> list[_Found]:
        history = self._files.history(found.job)
        made = _ended(history, package) if history is not None else None
        return [
            _Found(depth=found.depth + 1, job=found.job, file=each, time=made, path=found.path)
            for each in package.produced
        ]


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


def _use_began(history: History, package: PackageHistory, file: FileUse) -> float | None:
    """When a package began to use a file; what came with the submission was there by then."""
    if file.source == "captured":
        return history.job.submitted_at
    starts = (each.started_at for each in package.attempts if each.started_at is not None)
    return min(starts, default=history.job.submitted_at)


def _ended(history: History, package: PackageHistory) -> float | None:
    """When a package had made its outputs."""
    granted = package.granted
    ended = (granted.ended_at, granted.granted_at) if granted is not None else ()
    return next((each for each in (*ended, history.job.ended_at) if each is not None), None)


def _is_before(made_at: float | None, used_at: float | None) -> bool:
    """Whether a content was made before it was used, as far as the times are known."""
    return made_at is None or used_at is None or made_at <= used_at


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _file_line(found: _Found, file: FileUse, *, is_made: bool) -> TraceLine:
    origin: Origin = file.source
    if file.package or (is_made and file.source != "captured"):
        origin = "package"
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
