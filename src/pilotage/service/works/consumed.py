"""Describes in the book the inputs that jobs read in place: files that neither came with the job nor were made by it.

Their checksums are worked out in the background, after the attempts that read them. A file is described once for each
content that it had, whatever the number of packages that read it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from pilotage.book.query import parse
from pilotage.book.rows.rows import JobRow
from pilotage.language import Expansion
from pilotage.language.named_files import ConsumedFile, NamesMade, consumed_by, input_names
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import InputInPlace, InputsDescribed
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.graph import EdgeKind
from pilotage.model.jobs.layout import PackageId
from pilotage.model.jobs.submission import CAPTURED, Captured, Origin
from pilotage.ports import Clock, JobTree, Journal, ResultsIndex, StoredFile, StoreError
from pilotage.reading.views import FileView, InputSource
from pilotage.service.works.manifests import Manifests

log = logging.getLogger(__name__)

TOGETHER_MAX = 1000
"""Files that one event describes."""
_SEEN_MAX = 100_000  # files of one job that are not described again
_EVENTS_AT_ONCE = 1000
_DESCRIBED = parse("type = InputsDescribed")
_described = msgspec.json.Decoder(InputsDescribed)

Placed = Mapping[str, StoredFile | None]
"""Files by name as they were when they were read; None: a file was changed since."""
Tell = Callable[[str, Sequence[InputInPlace]], None]
"""Writes the description of inputs of a job, durable on return."""


class InputsInPlace:
    """A thread that works out the checksums of inputs in place. Any thread may use it."""

    def __init__(self, tree: JobTree, index: ResultsIndex, tell: Tell) -> None:
        """Read files from a tree, and which job made them from an index."""
        self._tree = tree
        self._index = index
        self._tell = tell
        self._waiting: dict[str, tuple[str, dict[str, StoredFile | None]]] = {}  # by job: its folder, its files
        self._seen: dict[str, set[int]] = {}  # by job: digests of the files that were taken
        self._known: dict[str, list[InputInPlace]] = {}  # by job: files whose checksums need not be worked out
        self._complete: set[str] = set()
        self._busy = ""
        self.reading = threading.Lock()  # held while a file is read: another thread may want the same checksum
        self._change = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="inputs", daemon=True)

    def read(self, job: str, folder: str, placed: Placed) -> None:
        """Attempts of a job have read these files."""
        if not placed:
            return
        with self._change:
            seen = self._seen.setdefault(job, set())
            files = self._waiting.get(job, (folder, {}))[1]
            for name, file in placed.items():
                digest = hash((name, file and (file.size_bytes, file.modified_ns, file.inode)))
                if digest not in seen:
                    seen.add(digest)
                    files[name] = file
            if len(seen) > _SEEN_MAX:
                seen.clear()
            if files:
                self._waiting[job] = folder, files
                if self._thread.ident is None:
                    self._thread.start()
                self._change.notify_all()

    def know(self, job: str, files: Sequence[InputInPlace]) -> None:
        """Attempts of a job have read files whose checksums are known: they came from the cache of their site."""
        if not files:
            return
        with self._change:
            seen = self._seen.setdefault(job, set())
            for file in files:
                digest = hash((file.name, file.sha256, file.locator))
                if digest not in seen:
                    seen.add(digest)
                    self._known.setdefault(job, []).append(file)
            if job in self._known:
                self._waiting.setdefault(job, ("", {}))
                if self._thread.ident is None:
                    self._thread.start()
                self._change.notify_all()

    def is_pending(self, job: str) -> bool:
        """Whether checksums of inputs that a job has read are still being worked out."""
        with self._change:
            return job in self._waiting or self._busy == job

    def settle(self) -> None:
        """Wait until nothing is pending."""
        with self._change:
            self._change.wait_for(lambda: self._stopping or not (self._waiting or self._busy))

    def follow(self, job: str) -> None:
        """All attempts of a job from here on are reported: it is new, or what earlier services left out is known."""
        self._complete.add(job)

    def is_followed(self, job: str) -> bool:
        """Whether all attempts of a job were reported."""
        return job in self._complete

    def forget(self, job: str) -> None:
        """A job is over."""
        with self._change:
            self._seen.pop(job, None)

    def stop(self) -> None:
        """End after the present files; the next service describes the others."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                self._busy = ""
                self._change.notify_all()
                self._change.wait_for(lambda: self._stopping or self._waiting)
                if self._stopping:
                    return
                job = self._busy = next(iter(self._waiting))
                folder, files = self._waiting[job]
                taken = {name: files.pop(name) for name in list(files)[:TOGETHER_MAX]}
                known = self._known.pop(job, [])
                if not files:
                    del self._waiting[job]
            found = [*known, *self._described(job, folder, taken)]
            try:
                self._tell(job, found)
            except Exception:
                # The book says why it cannot be written; the next service describes them.
                log.exception("%d inputs of job %s were not described", len(found), job)

    def _described(self, job: str, folder: str, files: Placed) -> Iterator[InputInPlace]:
        for name, file in files.items():
            if not self._stopping:
                yield self._describe(job, folder, name, file)

    def _describe(self, job: str, folder: str, name: str, file: StoredFile | None) -> InputInPlace:
        try:
            sha256 = self._checksum(folder, name, file) if file is not None else None
            maker = self._index.maker(folder, name, sha256=sha256) if sha256 is not None else ""
        except StoreError as fault:
            log.warning("the input %s of job %s has no checksum: %s", name, job, fault)
            sha256, maker = None, ""
        return InputInPlace(
            name=name,
            size_bytes=file.size_bytes if file is not None else None,
            sha256=sha256,
            origin="job" if maker and maker != job else "folder",
            job=maker if maker and maker != job else None,
        )

    def _checksum(self, folder: str, name: str, file: StoredFile) -> str | None:
        """The checksum of a file, if it is still the one that was read."""
        if not self._is_like(folder, name, file):
            return None
        with self.reading:
            sha256 = self._tree.checksum(folder, name)
        return sha256 if self._is_like(folder, name, file) else None

    def _is_like(self, folder: str, name: str, file: StoredFile) -> bool:
        now = self._tree.look_up(folder, [name]).get(name)
        return now is not None and now.is_like(file)


def description(job: JobRow, files: Sequence[InputInPlace], *, journal: Journal, clock: Clock) -> Event:
    """The event that describes inputs of a job, in a stream of its own."""
    return Event(
        source="service",
        stream=f"inputs-{secrets.token_hex(6)}",
        n=1,
        type=InputsDescribed.__name__,
        time=clock.now(),
        epoch=job.epoch,
        seen=journal.position(),
        job=job.job,
        data=msgspec.Raw(msgspec.json.encode(InputsDescribed(files=tuple(files)))),
    )


def described_inputs(journal: Journal, job: JobRow) -> Iterator[InputInPlace]:
    """The inputs in place of a job that the book describes, in the order of their events."""
    after = 0
    while True:
        page = journal.find_events(_DESCRIBED, after=after, limit=_EVENTS_AT_ONCE, job=job)
        for event in page.items:
            yield from _described.decode(event.row.data).files
            after = event.row.position
        if not page.more:
            return
        after = page.scanned_to if page.scanned_to is not None else after


def undescribed_inputs(
    journal: Journal, job: JobRow, expansion: Expansion, origin: Origin, tree: JobTree
) -> dict[str, StoredFile | None]:
    """The inputs in place of a job that ran under an earlier service and that the book does not describe yet.

    A file that was modified after the job started may not be what its packages read.
    """
    if job.started_at is None:
        return {}
    known = {file.name for file in described_inputs(journal, job)}
    made = NamesMade(expansion)
    names = [
        name
        for name in dict.fromkeys(input_names(expansion))
        if name not in known and name not in origin.captured and name not in made
    ]
    there = tree.look_up(origin.folder, names)
    started_ns = int(job.started_at * 1e9)
    return {name: file if file.modified_ns <= started_ns else None for name, file in there.items()}


# The inputs of one package, put together from what the book knows: granted manifests, the submission, and descriptions.

PRODUCERS_MAX = 1000
"""Producers of a package whose files are listed."""
_FILES = int(EdgeKind.FILE | EdgeKind.PATTERN)
_names = msgspec.json.Decoder(dict[str, str])
_captured = msgspec.json.Decoder(dict[str, Captured])


def package_inputs(journal: Journal, job: JobRow, place: PackageId, expansion: Expansion) -> list[FileView]:
    """The files that a package reads, by the results of its producers as they are now."""
    layout = expansion.layouts.get(place.stage - 1)
    number = layout.number(place) if layout is not None else None
    if number is None:
        return []
    stored = journal.content(_names.decode(job.lists).get(CAPTURED, ""))
    captured = _captured.decode(stored) if stored is not None else {}
    granted = _granted(journal, job, expansion, number)
    manifests = Manifests(journal)
    made = {producer: manifests.of(ref) or () for producer, ref in granted.items()}
    files = consumed_by(expansion, number, captured=captured, granted=sorted(made), manifest_of=made.get)
    in_place = {file.name: file for file in described_inputs(journal, job)} if files else {}
    return [_view(each, captured.get(each.name), in_place.get(each.name), expansion) for each in files]


def _granted(journal: Journal, job: JobRow, expansion: Expansion, number: int) -> dict[int, AttemptRef]:
    """The granted attempts of the packages whose files a package reads."""
    found: dict[int, AttemptRef] = {}
    for segment in expansion.graph.segments:
        start, end = segment.predecessors.span(number)
        numbers, kinds = segment.predecessors.numbers, segment.kind_numbers
        for producer in (numbers[at] for at in range(start, end) if kinds[at] & _FILES):
            if len(found) >= PRODUCERS_MAX:
                return found
            row = journal.package(job, expansion.id(producer))
            attempt = row.facts.attempt if row is not None else None
            if row is not None and attempt is not None and row.facts.attempts[attempt].granted_at is not None:
                found[producer] = AttemptRef(job.job, expansion.id(producer).dotted, attempt)
    return found


def _view(
    file: ConsumedFile, captured: Captured | None, in_place: InputInPlace | None, expansion: Expansion
) -> FileView:
    origin: InputSource
    if file.made is not None and file.producer is not None:
        origin, source = "package", expansion.id(file.producer).dotted
        size_bytes: int | None = file.made.size_bytes
        sha256: str | None = file.made.sha256
    elif captured is not None:
        origin, source = "captured" if captured.content else "folder", ""
        size_bytes, sha256 = captured.size_bytes, captured.sha256
    elif file.locator:
        origin, source = "locator", file.locator
        known = in_place if in_place is not None and in_place.locator else None
        size_bytes, sha256 = (known.size_bytes, known.sha256) if known is not None else (None, None)
    elif in_place is not None:
        origin, source = in_place.origin, in_place.job or ""
        size_bytes, sha256 = in_place.size_bytes, in_place.sha256
    else:
        origin, source, size_bytes, sha256 = "folder", "", None, None
    return FileView(name=file.name, size_bytes=size_bytes, sha256=sha256, direction="in", origin=origin, source=source)
