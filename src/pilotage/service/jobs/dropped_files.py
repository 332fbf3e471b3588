"""Removes the files of a dropped line, unless another job has or reads them, and records it in the book.

The order to remove is in the book before any file is touched (`RemovalOrdered`), and the outcome afterwards
(`FilesRemoved`). So if a service dies in between, the next one finishes it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from pilotage.book.codec import Checked, Codec
from pilotage.book.query import Query, parse
from pilotage.book.rows.rows import EventRow, JobRow
from pilotage.engine.engine import Engine
from pilotage.engine.inbound.operations import readers
from pilotage.engine.state.jobs import JobState
from pilotage.language.text.locators import job_of
from pilotage.model.events.events import Event, parse_dotted
from pilotage.model.events.payloads import FilesRemoved, KeptFile, OutputFile, RemovalOrdered
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import LineFiles
from pilotage.ports import Clock, JobTree, Journal, ResultsIndex, StoreError
from pilotage.ports.store import NotInStore
from pilotage.service.jobs.active_jobs import ActiveJob, ActiveJobs
from pilotage.service.jobs.clean import FileUses, files_there, identity, name_in
from pilotage.service.jobs.resubmission import folder_of, unfinished_jobs
from pilotage.service.journal.writer import Batch, Writer
from pilotage.service.works.job_files import GrantedFile, JobFiles
from pilotage.service.works.manifests import Manifests
from pilotage.service.works.stored_copies import deletable_outputs

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Ask = Callable[[Callable[[Engine], Result]], "Future[Result]"]

LEFTOVERS_AGAIN_SECONDS = 60.0
"""When to look again at copies that could not be removed: they were being written, or their store did not answer."""
NAMES_MAX = 1000
"""Names of removed and kept files in an answer; the book has all of them."""
_EVENT_BYTES = 64 * 1024  # of the names in one event, or one name more
_EVENTS_AT_ONCE = 1000
_OF_REMOVALS = parse("type = RemovalOrdered or type = FilesRemoved")
_GRANTS = parse("type = CommitGranted")
_OUTCOMES = parse("type = FilesRemoved")
_OF_DISPOSALS = parse("type = OutputsDisposed or type = FilesRemoved")
_encode = msgspec.json.Encoder().encode
_ordered = msgspec.json.Decoder(RemovalOrdered).decode
_removed = msgspec.json.Decoder(FilesRemoved).decode


class RemovalOrder(NamedTuple):
    """An attempt whose files are to be removed, the epoch it was granted in, and who ordered it."""

    ref: AttemptRef
    epoch: int
    by: str


class GrantedOutputs(NamedTuple):
    """A granted attempt of a line, and the packages that read its outputs."""

    ref: AttemptRef
    readers: tuple[str, ...]


class _RemovalOutcome(NamedTuple):
    """The outcome for the files of one attempt."""

    removed: list[OutputFile]
    gone: list[str]
    kept: list[KeptFile]


def packages_of_line(at_work: ActiveJob, stage: int, line: int) -> dict[str, bool]:
    """The packages of a line, dotted, and whether each of them makes files."""
    found: dict[str, bool] = {}
    while (number := at_work.number(dotted := f"{stage}.{line}.{len(found) + 1}")) is not None:
        block = at_work.expansion.block(number)
        found[dotted] = bool(block.outputs()) and not (block.package.done or block.package.noop)
    return found


def granted_in(job: str, packages: Collection[str], engine: Engine) -> list[GrantedOutputs]:
    """The granted attempts of some packages of a line, and their readers; only within a query."""
    state = engine.state.jobs.by_id.get(job)
    if state is None:
        return []
    places = (parse_dotted(package) for package in packages)
    numbers = [state.number((at.stage, at.line, at.number)) for at in places if at is not None]
    known = [number for number in numbers if number is not None]
    found = [number for number in known if state.granted[number]]
    return [
        GrantedOutputs(
            AttemptRef(job, state.dotted(number), state.granted[number]),
            tuple(state.dotted(each) for each in readers(state, number, set(known))),
        )
        for number in found
    ]


def unfinished_removals(engine: Engine) -> dict[str, list[str]]:
    """By job, the packages whose ordered removal may be unfinished; only within a query."""
    found: dict[str, list[str]] = {}
    for job in engine.state.jobs.by_id.values():
        for number in job.epochs:  # the order began a new epoch
            if (work := job.work.get(number)) is not None and work.dropped and not job.granted[number]:
                found.setdefault(job.id, []).append(job.dotted(number))
    return found


class ReleasedFile(NamedTuple):
    """An output of a job that a later job of its owner does not need any more."""

    locator: str
    owner: str


def released_by(job: JobState, package: str) -> list[ReleasedFile]:
    """The outputs of earlier jobs that a package releases when it is done; only within a query."""
    place = parse_dotted(package)
    number = job.number((place.stage, place.line, place.number)) if place is not None else None
    if number is None:
        return []
    locators = job.files.released_by(number) if job.files is not None else []
    locators += job.plan.releases(number) if job.plan.releases is not None else ()
    return [ReleasedFile(each, job.owner) for each in locators if job_of(each)]


def released_until_now(engine: Engine) -> dict[str, dict[str, list[ReleasedFile]]]:
    """By job and package, the outputs of earlier jobs that done packages have released; only within a query."""
    found: dict[str, dict[str, list[ReleasedFile]]] = {}
    for job in engine.state.jobs.by_id.values():
        if job.plan.releases is None and (job.files is None or not job.files.plan.released.any()):
            continue
        packages = (job.dotted(number) for number, attempt in enumerate(job.granted) if attempt)
        by_package = {package: files for package in packages if (files := released_by(job, package))}
        if by_package:
            found[job.id] = by_package
    return found


class Removals:
    """Carries out ordered removals; for one thread, not the engine's."""

    def __init__(
        self,
        jobs: ActiveJobs,
        *,
        journal: Journal,
        writer: Writer,
        codec: Codec,
        clock: Clock,
        tree: JobTree,
        index: ResultsIndex,
        ask: Ask[set[str]],
    ) -> None:
        """Take the jobs and the book, the files, and how to query the engine."""
        self._jobs = jobs
        self._journal = journal
        self._writer = writer
        self._codec = codec
        self._clock = clock
        self._tree = tree
        self._index = index
        self._ask = ask

    def finish(self, job: str, packages: Iterable[str]) -> LineFiles:
        """Remove files that were ordered to be and not recorded as done; returns when the book has the outcome."""
        row, at_work = self._journal.job(job), self._jobs.get(job)
        if row is None or at_work is None:
            return LineFiles()
        ordered = [each for package in packages for each in self._ordered_of(row, package)]
        others = list(self._others(job)) if ordered else []
        manifests, total = Manifests(self._journal), LineFiles()
        for each in ordered:
            manifest = manifests.of(each.ref) or ()
            try:
                self._tree.discard(at_work.folder, each.ref, len(manifest))  # it may never have been published
            except StoreError as fault:
                log.warning("%s: %s", each.ref, fault)  # it only takes space, until the job is over
            dealt = self._remove(at_work.folder, each.ref, manifest, others)
            self._note(each, dealt)
            total = _sum(total, dealt)
        return total

    def dispose(self, orders: Sequence[RemovalOrder]) -> None:
        """Remove deletable outputs of granted attempts that no package needs any more; they still count as made."""
        manifests, others = Manifests(self._journal), dict[str, list[_Other]]()
        events: list[Checked] = []
        for order in orders:
            at_work, manifest = self._jobs.get(order.ref.job), manifests.of(order.ref)
            number = at_work.number(order.ref.package) if at_work is not None else None
            if at_work is None or number is None or not manifest:
                continue
            if order.ref.job not in others:
                others[order.ref.job] = list(self._others(order.ref.job))
            files = deletable_outputs(at_work.expansion, number, manifest)
            self._index.note_disposed(at_work.folder, files)  # first: a file that is gone without that is missed
            dealt = self._remove(at_work.folder, order.ref, files, others[order.ref.job])
            events += self._events(order, dealt)
            if len(events) >= _EVENTS_AT_ONCE:
                self._writer.submit(Batch(events, own=True)).result()
                events = []
        if events:
            self._writer.submit(Batch(events, own=True)).result()

    def release(self, released: Iterable[ReleasedFile]) -> list[ReleasedFile]:
        """Remove outputs that a later job of their owner has released; return those that an unfinished job uses, which stay."""
        known = JobFiles(self._journal, self._tree, folder_of=partial(folder_of, self._journal))
        by_attempt: dict[RemovalOrder, list[OutputFile]] = {}
        used: list[ReleasedFile] = []
        others = list(self._others(""))
        for each in released:
            made, row = _granted(known, each), self._journal.job(job_of(each.locator))
            at_work = self._jobs.get(made.ref.job) if made is not None else None
            if made is None or at_work is None or row is None or row.owner != each.owner:
                continue
            kept = self._why_kept(at_work.folder, made.ref.job, made.file, others)
            if kept is not None and kept.reason in ("read", "made"):
                used.append(each)
            else:
                by_attempt.setdefault(RemovalOrder(made.ref, made.epoch, each.owner), []).append(made.file)
        events: list[Checked] = []
        for order, files in by_attempt.items():
            at_work = self._jobs.get(order.ref.job)
            if at_work is not None:
                self._index.note_disposed(at_work.folder, files)  # it counts as made, as a disposed one does
                events += self._events(order, self._remove(at_work.folder, order.ref, files, others))
        if events:
            self._writer.submit(Batch(events, own=True)).result()
        return used

    def unfinished_releases(self, released: Mapping[str, Mapping[str, Sequence[ReleasedFile]]]) -> list[ReleasedFile]:
        """Of released files, by job and package, those that the book has no outcome of, and that nobody made again since."""
        known = JobFiles(self._journal, self._tree, folder_of=partial(folder_of, self._journal))
        outcomes: dict[str, dict[str, int]] = {}  # by job and name: the position of the last
        found: dict[ReleasedFile, None] = {}
        for job, by_package in released.items():
            granted_at = {f"{e.stage}.{e.line}.{e.number}": e.position for e in self._events_of(job, _GRANTS)}
            for package, files in by_package.items():
                at = granted_at.get(package, 0)
                for each in files:
                    made, maker = _granted(known, each), job_of(each.locator)
                    if maker not in outcomes:
                        outcomes[maker] = self._outcomes(maker)
                    if made is not None and made.position < at and outcomes[maker].get(made.file.name, 0) < at:
                        found[each] = None
        return list(found)

    def _outcomes(self, job: str) -> dict[str, int]:
        """The position of the last removal of each file of a job that was removed, or stays."""
        found: dict[str, int] = {}
        for event in self._events_of(job, _OUTCOMES):
            data = _removed(event.data)
            names = (*data.removed, *data.gone, *(kept.name for kept in data.kept))
            found.update(dict.fromkeys(names, event.position))
        return found

    def _events_of(self, job: str, query: Query) -> Iterator[EventRow]:
        row = self._journal.job(job)
        after, more = 0, row is not None
        while more and row is not None:
            page = self._journal.find_events(query, after=after, limit=_EVENTS_AT_ONCE, job=row)
            for each in page.items:
                after = each.row.position
                yield each.row
            more = page.more
            after = page.scanned_to if page.scanned_to is not None else after

    def unfinished_disposals(self, jobs: Iterable[str]) -> list[RemovalOrder]:
        """The disposals of some jobs that the book has no outcome of."""
        found: dict[AttemptRef, RemovalOrder] = {}
        for job in jobs:
            row = self._journal.job(job)
            after, more = 0, row is not None
            while more and row is not None:
                page = self._journal.find_events(_OF_DISPOSALS, after=after, limit=_EVENTS_AT_ONCE, job=row)
                for event in (each.row for each in page.items):
                    after = event.position
                    ref = AttemptRef(job, f"{event.stage}.{event.line}.{event.number}", event.attempt)
                    if event.type == "OutputsDisposed":
                        found[ref] = RemovalOrder(ref, event.epoch, "")
                    elif not _removed(event.data).more:
                        found.pop(ref, None)
                more = page.more
                after = page.scanned_to if page.scanned_to is not None else after
        return list(found.values())

    def count(self, job: str, standing: Sequence[GrantedOutputs]) -> LineFiles:
        """The published files of granted attempts that exist, and stay."""
        at_work, manifests, names = self._jobs.get(job), Manifests(self._journal), set[str]()
        for each in standing if at_work is not None else ():
            names.update(file.name for file in manifests.of(each.ref) or ())
        return LineFiles(kept=len(self._tree.look_up(at_work.folder, names)) if at_work is not None else 0)

    def kept_for_readers(self, total: LineFiles, standing: Sequence[GrantedOutputs]) -> LineFiles:
        """Add the files of attempts that had readers."""
        manifests = Manifests(self._journal)
        for each in standing:
            who = f"{each.readers[0]} reads it" if each.readers else "it was still being read"
            message = f"{who}: ask again when that is over"
            kept = [KeptFile(name=file.name, reason="read", message=message) for file in manifests.of(each.ref) or ()]
            total = _sum(total, _RemovalOutcome([], [], kept))
        return total

    def _ordered_of(self, row: JobRow, package: str) -> list[RemovalOrder]:
        found: dict[int, RemovalOrder] = {}
        place, after, more = parse_dotted(package), 0, True
        while more:
            page = self._journal.find_events(_OF_REMOVALS, after=after, limit=_EVENTS_AT_ONCE, job=row, place=place)
            for event in (each.row for each in page.items):
                after = event.position
                if event.type == "RemovalOrdered":
                    by = _ordered(event.data).by
                    found[event.attempt] = RemovalOrder(AttemptRef(row.job, package, event.attempt), event.epoch, by)
                elif not _removed(event.data).more:
                    found.pop(event.attempt, None)
            more = page.more
            after = page.scanned_to if page.scanned_to is not None else after
        return list(found.values())

    # --- files ---

    def _remove(
        self, folder: str, ref: AttemptRef, manifest: Sequence[OutputFile], others: Sequence[_Other]
    ) -> _RemovalOutcome:
        dealt = _RemovalOutcome([], [], [])
        there = self._tree.look_up(folder, [file.name for file in manifest])
        if there:
            self._tree.is_ours(folder, list(there.values()))  # the index learns from the book what it lost
        for file in manifest:
            if file.name not in there:
                dealt.gone.append(file.name)
                continue
            try:
                kept = self._why_kept(folder, ref.job, file, others)
                if kept is None and not self._tree.remove(folder, file.name, sha256=file.sha256):
                    kept = _changed(file)  # it was, a moment ago
            except StoreError as fault:
                kept = KeptFile(name=file.name, reason="not-removed", message=fault.what)
            if kept is None:
                dealt.removed.append(file)
            else:
                dealt.kept.append(kept)
        return dealt

    def _why_kept(self, folder: str, job: str, file: OutputFile, others: Sequence[_Other]) -> KeptFile | None:
        name = file.name
        if self._tree.checksum(folder, name) != file.sha256:
            return _changed(file)
        maker = self._index.maker(folder, name, sha256=file.sha256)
        if maker not in ("", job):
            return KeptFile(name=name, reason="made", message=f"the job {maker} has made or adopted it since")
        there = self._tree.look_up(folder, [name]).get(name)
        for other in others:
            other_job = f"the unfinished job {other.job}"
            inner = name_in(other.folder, folder=folder, name=name)
            if inner and (other.uses.makes(inner) or other.uses.may_make(inner)):
                return KeptFile(name=name, reason="made", message=f"{other_job} makes it as well")
            if inner and other.uses.reads(inner):
                return KeptFile(name=name, reason="read", message=f"{other_job} reads it")
            if there is not None and identity(there) in other.files_read:
                return KeptFile(name=name, reason="read", message=f"{other_job} reads it through a link")
        return None

    def _others(self, job: str) -> Iterator[_Other]:
        unfinished = self._ask(unfinished_jobs).result() - {job}
        for other in sorted(unfinished):
            if (at_work := self._jobs.get(other)) is not None:
                uses = FileUses(at_work.expansion, [*at_work.origin.captured, at_work.origin.document])
                read = files_there(self._tree, at_work.folder, uses.names_read())
                yield _Other(other, at_work.folder, uses, frozenset(map(identity, read)))

    # --- the book ---

    def _note(self, ordered: RemovalOrder, dealt: _RemovalOutcome) -> None:
        self._writer.submit(Batch(self._events(ordered, dealt), own=True)).result()

    def _events(self, ordered: RemovalOrder, dealt: _RemovalOutcome) -> list[Checked]:
        stream = f"files-{secrets.token_hex(6)}"  # a stream of its own
        events = []
        for n, data in enumerate(_in_events(ordered.by, dealt), 1):
            event = Event(
                source="service", stream=stream, n=n, type="FilesRemoved", time=self._clock.now(), epoch=ordered.epoch,
                seen=self._journal.position(), job=ordered.ref.job, package=ordered.ref.package,
                attempt=ordered.ref.attempt, data=msgspec.Raw(_encode(data)),
            )  # fmt: skip
            checked = self._codec.check(event)
            assert isinstance(checked, Checked)
            events.append(checked)
        text = "%s: %d files were removed, %d were gone, %d are kept"
        log.info(text, ordered.ref, len(dealt.removed), len(dealt.gone), len(dealt.kept))
        return events


class Disposals:
    """Removes deletable outputs in a thread of its own, soon after the engine decided it."""

    def __init__(self, removals: Removals, remove_leftovers: Callable[[], int] = lambda: 0) -> None:
        """Start nothing; `remove_leftovers` removes copies in stores of attempts never granted, and counts those that stay."""
        self._removals = removals
        self._remove_leftovers = remove_leftovers
        self._again: threading.Timer | None = None  # when leftovers are looked at again
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="disposals")
        self._any_released = False  # since this service started
        self._used: dict[ReleasedFile, None] = {}  # released files that unfinished jobs use; for that thread

    def want(self, orders: Sequence[RemovalOrder]) -> None:
        """Remove the deletable outputs of some attempts."""
        self._thread.submit(self._attempt, lambda: orders)

    def release(self, released: Sequence[ReleasedFile] = ()) -> None:
        """Remove files of jobs that their owner has released, also those that a job used which is over now."""
        self._any_released = self._any_released or bool(released)
        if self._any_released:
            self._thread.submit(self._carry_out, lambda: self._release(released))
        self._look_at_leftovers()

    def _look_at_leftovers(self) -> None:
        with suppress(RuntimeError):  # the service stops: the next one does it
            self._thread.submit(self._carry_out, self._leftovers)

    def _leftovers(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._remove_leftovers():
            self._again = threading.Timer(LEFTOVERS_AGAIN_SECONDS, self._look_at_leftovers)
            self._again.daemon = True
            self._again.start()

    def _release(self, released: Sequence[ReleasedFile]) -> None:
        self._used = dict.fromkeys(self._removals.release([*self._used, *released]))

    def resume(self, engine: Engine) -> None:
        """Finish what an earlier service had decided; only within a query."""
        jobs = [
            job.id
            for job in engine.state.jobs.by_id.values()
            if any(template.disposes_outputs for template in job.plan.templates)
        ]
        if jobs:
            self._thread.submit(self._attempt, lambda: self._removals.unfinished_disposals(jobs))
        self._look_at_leftovers()
        released = released_until_now(engine)
        if released:
            self._any_released = True
            self._thread.submit(self._carry_out, lambda: self._release(self._removals.unfinished_releases(released)))

    def _attempt(self, orders: Callable[[], Sequence[RemovalOrder]]) -> None:
        self._carry_out(lambda: self._removals.dispose(orders()))

    @staticmethod
    def _carry_out(removal: Callable[[], None]) -> None:
        try:
            removal()
        except Exception:
            log.exception("deletable outputs could not be removed")

    def stop(self) -> None:
        """End after the present one; the others are removed after the next start."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._again is not None:
            self._again.cancel()


class _Other(NamedTuple):
    """Another unfinished job: its folder, the files it uses, and the identities of those it reads."""

    job: str
    folder: str
    uses: FileUses
    files_read: frozenset[tuple[int, int]]


def _granted(known: JobFiles, released: ReleasedFile) -> GrantedFile | None:
    try:
        return known.granted(released.locator)
    except NotInStore:
        return None  # its job was purged since


def _changed(file: OutputFile) -> KeptFile:
    return KeptFile(name=file.name, reason="changed", message="it was changed since it was made")


def _in_events(by: str, dealt: _RemovalOutcome) -> Iterator[FilesRemoved]:
    """The outcome, in as many events as it takes; the last one says so."""
    fields: dict[str, list[str | KeptFile]] = {}
    size_bytes = 0
    for kind, what in _each(dealt):
        more = len(_encode(what))
        if fields and size_bytes + more > _EVENT_BYTES:
            yield msgspec.convert({"by": by, "more": True, **fields}, FilesRemoved)
            fields, size_bytes = {}, 0
        fields.setdefault(kind, []).append(what)
        size_bytes += more
    yield msgspec.convert({"by": by, **fields}, FilesRemoved)


def _each(dealt: _RemovalOutcome) -> Iterator[tuple[str, str | KeptFile]]:
    yield from (("removed", file.name) for file in dealt.removed)
    yield from (("gone", name) for name in dealt.gone)
    yield from (("kept", kept) for kept in dealt.kept)


def _sum(total: LineFiles, dealt: _RemovalOutcome) -> LineFiles:
    names = (*total.removed_names, *(file.name for file in dealt.removed))
    return LineFiles(
        removed=total.removed + len(dealt.removed),
        removed_bytes=total.removed_bytes + sum(file.size_bytes for file in dealt.removed),
        gone=total.gone + len(dealt.gone),
        kept=total.kept + len(dealt.kept),
        removed_names=names[:NAMES_MAX],
        kept_files=(*total.kept_files, *dealt.kept)[:NAMES_MAX],
    )
