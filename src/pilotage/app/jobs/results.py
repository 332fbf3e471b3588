"""Results of a job, for Python: its counts, its failures, and GASW's output object of each package."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from pilotage.app.jobs.watch import JobWatcher, exit_code_of, is_over
from pilotage.client.jobs import Jobs
from pilotage.client.server import path_of
from pilotage.model.answers import (
    FailureGroup,
    LogPlace,
    Measured,
    Progress,
    PublishedFile,
    StageProgress,
    UnmadeTarget,
)
from pilotage.model.errors import PilotageError
from pilotage.model.exit_codes import ExitCode

_GOOD = ("DONE", "CLEARED")


class PackagesFailed(PilotageError):
    """A job ended, and some packages failed, or a target was not made; `result` has them."""

    exit_code = ExitCode.FAILED

    def __init__(self, result: Result) -> None:
        """Say how many, and why the first ones."""
        progress = result.progress
        causes = ", ".join(f"{group.count} of {group.card.reason or group.card.cause}" for group in result.failures[:3])
        bad = progress.failed + progress.cancelled
        what = f"{bad} of {progress.packages} packages failed" + (f" ({causes})" if causes else "")
        if not bad and progress.unmade:
            what = f"{', '.join(each.target for each in progress.unmade[:3])} was asked for and was not made"
        super().__init__(
            what,
            subject=result.job,
            next_step=progress.stuck,
        )
        self.result = result


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one package: GASW's output object, with its logs and its existing output files."""

    id: str  # JOB/1.2.1
    package: str  # 1.2.1
    state: str
    exit_code: str  # GASW's; empty until it ends
    exit_message: str = ""
    exit_status: int | None = None
    signal: int | None = None
    attempt: int | None = None
    standard_output: str = ""  # as far as stored
    standard_error: str = ""
    application_output: str = ""
    application_error: str = ""
    uploaded: tuple[Path, ...] = ()
    measured: Measured = Measured()

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.state in _GOOD


class Outputs:
    """The results of a job's packages: each is requested in turn, every time anew."""

    def __init__(self, following: JobWatcher, *, packages: int) -> None:
        self._following = following
        self._packages = packages

    def __iter__(self) -> Iterator[Output]:
        """One after another, in the order of the document."""
        cursor: str | None = None
        try:
            while True:
                page = self._page(cursor)
                for package in page["packages"]:
                    yield output_of(self._following, package["id"])
                cursor = page["next"]
                if cursor is None:
                    return
        finally:
            self._following.close()

    def _page(self, cursor: str | None) -> Any:
        asked = {"cursor": cursor, "limit": 1000}
        job = self._following.job
        return self._following.ask(lambda server: server.get(path_of("jobs", job, "packages"), asked))

    def __len__(self) -> int:
        """How many there are."""
        return self._packages

    def __repr__(self) -> str:
        what = "1 package" if self._packages == 1 else f"{self._packages:,} packages"
        return f"<Outputs of {self._following.job}: {what}; iterate over them, or ask for one with output('1.2.1')>"


class Result:
    """A job and its results so far; `refresh` and `wait` update it."""

    def __init__(self, following: JobWatcher, progress: Progress, *, folder: Path) -> None:
        """`folder` is where the files of the job appear."""
        self._following = following
        self.progress = progress
        self.folder = folder

    @property
    def job(self) -> str:
        """The id of the job."""
        return self.progress.job

    @property
    def state(self) -> str:
        """The state of the job, as recorded in the book."""
        return self.progress.state

    @property
    def counts(self) -> dict[str, int]:
        """How many packages there are, and how many are done, running, failed and so on."""
        names = ("packages", "done", "running", "failed", "cancelled", "dropped", "adopted", "healed")
        return {name: getattr(self.progress, name) for name in names}

    @property
    def finished(self) -> bool:
        """Whether it has ended for good."""
        return is_over(self.progress)

    @property
    def ok(self) -> bool:
        """Whether all packages are done, and every target made."""
        return self.exit_code == ExitCode.COMPLETE

    @property
    def exit_code(self) -> int:
        """The exit code that `pilotage run` would have."""
        return exit_code_of(self.progress)

    @property
    def failures(self) -> tuple[FailureGroup, ...]:
        """The failures, grouped by cause, each group with the card of one package."""
        return self.progress.failures

    @property
    def unmade(self) -> tuple[UnmadeTarget, ...]:
        """The targets that were not made, once the job is over."""
        return self.progress.unmade

    @property
    def outputs(self) -> Outputs:
        """The result of each package, one after another."""
        return Outputs(self._following, packages=self.progress.packages)

    def output(self, package: str) -> Output:
        """The result of one package, named `1.2.1`."""
        try:
            return output_of(self._following, package)
        finally:
            self._following.close()

    def refresh(self) -> Result:
        """Update; returns itself."""
        self.progress = self._following.progress()
        self._following.close()
        return self

    def wait(self) -> Result:
        """Wait until it is over, or nothing can move; returns itself."""
        for progress in self._following.until_over():
            self.progress = progress
        self._following.close()
        return self

    def raise_for_failures(self) -> Result:
        """Raise `PackagesFailed` unless everything succeeded; returns itself."""
        if not self.ok:
            raise PackagesFailed(self)
        return self

    def __repr__(self) -> str:
        progress = self.progress
        return f"<Result {self.job}: {self.state}, {progress.done}/{progress.packages} done, {progress.failed} failed>"

    def _repr_html_(self) -> str:
        """The job as a notebook shows it: a bar for each stage, and its failures."""
        progress = self.progress
        bars = "".join(map(_bar_html, progress.stages))
        failures = "".join(map(_failure_html, progress.failures))
        stuck = f"<p><b>nothing can move:</b> {escape(progress.stuck)}</p>" if progress.stuck else ""
        unmade = "".join(
            f"<p><b>not made:</b> {escape(each.target)}: {escape(each.why)}</p>" for each in progress.unmade
        )
        head = f"<b>{escape(self.job)}</b>: {escape(self.state)}, {progress.done:,} of {progress.packages:,} done"
        counts = "".join(
            f", {getattr(progress, word):,} {word}"
            for word in ("running", "failed", "cancelled", "healed", "adopted")
            if getattr(progress, word)
        )
        return f"<div class='pilotage-job'><p>{head}{counts}</p><table>{bars}</table>{stuck}{unmade}{failures}</div>"


def _bar_html(stage: StageProgress) -> str:
    name = escape(stage.name or f"stage {stage.stage}")
    if stage.late and not stage.packages:
        return f"<tr><td>{name}</td><td>not known yet</td><td></td></tr>"
    total = max(1, stage.packages)
    bad = stage.failed + stage.cancelled
    widths = ((100 * stage.done / total, "#2e7d32"), (100 * bad / total, "#c62828"))
    parts = "".join(
        f"<span style='display:inline-block;height:100%;width:{width:.2f}%;background:{colour}'></span>"
        for width, colour in widths
    )
    bar = f"<div style='width:20em;height:1em;background:#ddd;line-height:0'>{parts}</div>"
    counts = f"{stage.done:,}/{stage.packages:,}" + (f", {bad:,} failed" if bad else "")
    return f"<tr><td>{name}</td><td>{bar}</td><td>{counts}</td></tr>"


def _failure_html(group: FailureGroup) -> str:
    card = group.card
    what = escape(card.reason or card.cause or card.exit_code)
    message = f"<pre>{escape(card.exit_message)}</pre>" if card.exit_message else ""
    return f"<details><summary>{group.count:,} of {what}, such as {escape(card.package)}</summary>{message}</details>"


def output_of(following: JobWatcher, package: str) -> Output:
    """The result of a package, with the texts of its logs."""
    return following.ask(lambda server: _output(Jobs(server), following.job, package))


def _output(jobs: Jobs, job: str, package: str) -> Output:
    found = jobs.output(job, package)
    texts: dict[str, str] = {}

    def text(place: LogPlace | None) -> str:
        if place is None:
            return ""
        if place.url not in texts:
            texts[place.url] = jobs.log_text(place)
        return texts[place.url]

    return Output(
        id=found.id,
        package=package,
        state=found.state,
        exit_code=found.exit_code or "",
        exit_message=found.exit_message or "",
        exit_status=found.exit_status,
        signal=found.signal,
        attempt=found.attempt,
        standard_output=text(found.standard_output),
        standard_error=text(found.standard_error),
        application_output=text(found.application_output),
        application_error=text(found.application_error),
        uploaded=tuple(Path(found.folder, each.name) for each in found.outputs),
        measured=found.measured,
    )


def nothing_to_do(name: str, *, packages: int) -> Progress:
    """The progress of a job that was not needed: all its outputs exist."""
    return Progress(job="", name=name, state="DONE", packages=packages, done=packages, adopted=packages)


__all__ = ["Output", "Outputs", "PackagesFailed", "Result", "nothing_to_do", "output_of"]


# Hands over the results of a job: compares every file with its grant, and copies or receives it on request.

_PIECE_BYTES = 2**20
_GONE = "it is gone"
_AT_SERVICE = "it is at the service, whose folder is not on this computer"
_TAKEN = "another file is there already"
_CANNOT_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EACCES, errno.ENOSYS})


FileCondition = Literal["well", "gone", "changed", "in-the-way", "not-here"]
"""The condition of a file: well; missing; changed; well, but its new place is taken; or at another computer."""


class HandedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file: where it is now, or its fault."""

    file: PublishedFile
    path: str
    problem: str = ""
    kind: FileCondition = "well"
    received: bool = False  # from the service, over the network


class Receive(Protocol):
    """Receives a file from the service."""

    def __call__(self, file: PublishedFile, target: Path, *, replace: bool) -> None:
        """Put a file at a path; raises `FileThere`, `FileChanged`, `ServerError` and `OSError`."""
        ...


def hand_over(
    files: Iterable[tuple[str, PublishedFile]],
    *,
    to: Path | None,
    replace: bool = False,
    receive: Receive | None = None,
) -> Iterator[HandedFile]:
    """Verify files in their folders, and copy them into another one if given.

    Files that are not in their folder here are received from the service, if `receive` is given. A different file that
    exists there already is left alone and reported, unless `replace`.
    """
    for folder, file in files:
        source = Path(folder, file.name)
        if Path(file.name).is_absolute() or ".." in Path(file.name).parts:
            yield HandedFile(file=file, path=str(source), problem="its name leads out of the folder", kind="changed")
            continue
        path, problem = source, _difference(source, file)
        kind: FileCondition = "well" if not problem else "gone" if problem == _GONE else "changed"
        if not problem and to is not None:
            path = to / file.name
            problem = _put(source, path, file, replace=replace)
            kind = "in-the-way" if problem else "well"
        handed = HandedFile(file=file, path=str(path), problem=problem, kind=kind)
        if kind in ("gone", "changed") and receive is not None:
            # The folder may be that of another computer, where the service is.
            if to is not None:
                handed = _received(handed, to / file.name, receive, replace=replace)
            elif not Path(folder).is_dir():
                handed = HandedFile(file=file, path=str(source), problem=_AT_SERVICE, kind="not-here")
        yield handed


def _received(here: HandedFile, path: Path, receive: Receive, *, replace: bool) -> HandedFile:
    """A file that is not well here: received from the service, unless it is not well there either."""
    from pilotage.client.contents import FileChanged, FileThere
    from pilotage.client.errors import ServerRefused

    file = here.file
    if not _difference(path, file):
        return HandedFile(file=file, path=str(path))  # received before
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and not replace:
            raise FileThere(_TAKEN, subject=str(path))
        receive(file, path, replace=replace)
    except FileThere as fault:
        return HandedFile(file=file, path=str(path), problem=fault.what, kind="in-the-way")
    except FileChanged:
        return here
    except ServerRefused as refused:
        if refused.status not in (404, 409):
            raise
        return here
    except OSError as error:
        why = f"it cannot be written: {error.strerror}"
        return HandedFile(file=file, path=str(path), problem=why, kind="in-the-way")
    return HandedFile(file=file, path=str(path), received=True)


def _difference(path: Path, file: PublishedFile) -> str:
    """The fault of a file; empty if it is the granted one."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size != file.size_bytes:
                return f"it has {size:,} bytes, and {file.size_bytes:,} were granted"
            digest = hashlib.sha256()
            while piece := stream.read(_PIECE_BYTES):
                digest.update(piece)
    except FileNotFoundError:
        return _GONE
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return "" if digest.hexdigest() == file.sha256 else "its content is not what was granted"


def _put(source: Path, path: Path, file: PublishedFile, *, replace: bool) -> str:
    """Copy a verified file to a path, unless an equal one is there; returns why not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, path)
        except FileExistsError:
            if not _difference(path, file):
                return ""
            if not replace:
                return _TAKEN
            _copy(source, path)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            _copy(source, path)
    except FileExistsError:
        return _TAKEN
    except OSError as error:
        return f"it cannot be written: {error.strerror}"
    return ""


def _copy(source: Path, path: Path) -> None:
    """Copy a file so that it appears whole."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")
    os.close(handle)
    draft = Path(name)
    try:
        shutil.copy2(source, draft)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
