"""The granted files of jobs of this service as a store: `job:JOB/NAME`, to be read only.

A file is what its package was granted, or it is not there: one that somebody changed since is never given out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from pilotage.book.query import parse
from pilotage.book.rows.rows import JobRow
from pilotage.language.text.locators import job_locator
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.locators import parse_locator, shown_locator
from pilotage.ports import JobTree, Journal, StoreError
from pilotage.ports.store import CHUNK_BYTES, AccessDenied, FileChanged, NotInStore, PresignedRequest, StoreObject

_JOBS_MAX = 8  # whose files are remembered: the latest
_EVENTS_AT_ONCE = 1000
_MADE_OR_GRANTED = parse("type = OutputsStaged or type = AttemptFinished or type = CommitGranted")

_Attempt = tuple[int, int, int, int]  # stage, line, number, attempt


class _Made(msgspec.Struct, frozen=True):
    manifest: tuple[OutputFile, ...] | None = None


_made = msgspec.json.Decoder(_Made).decode


class GrantedFile(NamedTuple):
    """A file that a package was granted, the attempt that made it, and the position of its grant in the book."""

    file: OutputFile
    ref: AttemptRef
    epoch: int
    position: int


class _JobContents:
    """The files that a job was granted, as far as its events were read."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.granted: dict[str, GrantedFile] = {}  # by name; the last grant counts
        self.staged: dict[_Attempt, tuple[OutputFile, ...]] = {}  # not granted yet
        self.read_to = 0


class JobFiles:
    """The files of all jobs; any thread may use it."""

    def __init__(self, journal: Journal, tree: JobTree, *, folder_of: Callable[[JobRow], str | None]) -> None:
        """Take the book, which says what was granted, the tree of files, and what tells the folder of a job that ran here."""
        self._journal = journal
        self._folder_of = folder_of
        self._tree = tree
        self._jobs: OrderedDict[str, _JobContents] = OrderedDict()
        self._guard = threading.Lock()

    def stat(self, locator: str) -> StoreObject | None:
        """A granted file; None if the job was granted none of that name, or it is not there any more."""
        job, name = job_and_name(locator)
        contents = self._contents(job, locator)
        granted = made.file if (made := contents.granted.get(name)) is not None else None
        there = self._tree.look_up(contents.folder, [name]).get(name) if granted is not None else None
        if granted is None or there is None:
            return None
        if there.size_bytes != granted.size_bytes or self._tree.checksum(contents.folder, name) != granted.sha256:
            raise FileChanged(
                "the file is not what its package was granted: it was changed since",
                subject=shown_locator(locator),
                next_step="restore it, or run its package again",
            )
        return StoreObject(
            locator=locator,
            size_bytes=granted.size_bytes,
            modified_at=there.modified_ns / 1e9,
            version=granted.sha256,
            sha256=granted.sha256,
        )

    def granted(self, locator: str) -> GrantedFile | None:
        """The file that a job was granted under a locator, whether it is there or not. Raises `StoreError`."""
        job, name = job_and_name(locator)
        return self._contents(job, locator).granted.get(name)

    def is_folder(self, locator: str) -> bool:
        """There are none."""
        return False

    def read(self, locator: str, *, offset: int = 0, version: str = "") -> Iterator[bytes]:
        """The content from an offset on; its checksum is verified by whoever takes it."""
        found = self.stat(locator)
        if found is None:
            raise NotInStore("no such file", subject=shown_locator(locator))
        if version and found.version != version:
            raise FileChanged("the package was granted another file since", subject=shown_locator(locator))
        job, name = job_and_name(locator)
        folder = self._contents(job, locator).folder
        while offset < found.size_bytes:
            piece = self._tree.read(folder, name, offset=offset, size_bytes=min(CHUNK_BYTES, found.size_bytes - offset))
            if not piece:
                raise FileChanged("the file changed while it was read", subject=shown_locator(locator))
            yield piece
            offset += len(piece)

    def checksum(self, locator: str, *, version: str = "") -> str:
        """The sha256 of a file, which is that of the granted manifest."""
        found = self.stat(locator)
        if found is None:
            raise NotInStore("no such file", subject=shown_locator(locator))
        if version and found.version != version:
            raise FileChanged("the package was granted another file since", subject=shown_locator(locator))
        return found.sha256

    def list(self, prefix: str) -> Iterator[StoreObject]:
        """The files of a job that are there, by locator."""
        job, begins = job_and_name(prefix.rstrip("/") + "/")
        contents = self._contents(job, prefix)
        names = [name for name in contents.granted if name.startswith(begins)]
        found = [self.stat(job_locator(job, name)) for name in names]
        return iter(sorted((each for each in found if each is not None), key=lambda each: each.locator))

    def put(
        self, source: str, locator: str, *, replaces: str = "", sent: Callable[[int], None] = lambda _: None
    ) -> StoreObject:
        """Refused: only packages make files of jobs."""
        raise _read_only(locator)

    def delete(self, locator: str) -> bool:
        """Refused: a job's files go with their job."""
        raise _read_only(locator)

    def presigned_get(self, locator: str, *, seconds: float) -> PresignedRequest | None:
        """There are none."""
        return None

    def presigned_put(self, locator: str, *, seconds: float, content_type: str) -> PresignedRequest | None:
        """There are none."""
        return None

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _contents(self, job: str, locator: str) -> _JobContents:
        """What a job was granted by now."""
        with self._guard:
            contents = self._jobs.get(job)
            row = self._journal.job(job)
            folder = self._folder_of(row) if row is not None and row.place != "purged" else None
            if row is None or folder is None:
                raise NotInStore("no job of this service has this id", subject=shown_locator(locator))
            if contents is None:
                contents = self._jobs[job] = _JobContents(folder)
                if len(self._jobs) > _JOBS_MAX:
                    self._jobs.popitem(last=False)
            self._jobs.move_to_end(job)
            more = True
            while more:
                page = self._journal.find_events(
                    _MADE_OR_GRANTED, after=contents.read_to, limit=_EVENTS_AT_ONCE, job=row
                )
                for event in (each.row for each in page.items):
                    contents.read_to = event.position
                    attempt = (event.stage, event.line, event.number, event.attempt)
                    if event.type == "CommitGranted":
                        package = f"{event.stage}.{event.line}.{event.number}"
                        ref = AttemptRef(job, package, event.attempt)
                        for file in contents.staged.pop(attempt, ()):
                            contents.granted[file.name] = GrantedFile(file, ref, event.epoch, event.position)
                    elif (manifest := _made(event.data).manifest) is not None:
                        contents.staged[attempt] = manifest
                more = page.more
                if page.scanned_to is not None:
                    contents.read_to = page.scanned_to
            return contents


def job_and_name(locator: str) -> tuple[str, str]:
    """The job and the name in a locator. Raises `BadLocator`, `NotInStore`."""
    job, slash, name = parse_locator(locator).path.partition("/")
    if not job or not slash:
        raise NotInStore("not a file of a job", subject=shown_locator(locator), expected="job:JOB/NAME")
    return job, name


def _read_only(locator: str) -> StoreError:
    return AccessDenied(
        "files of jobs are only read: packages make them",
        subject=shown_locator(locator),
        next_step="name a store for the copy",
    )
