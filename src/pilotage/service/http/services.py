"""The services that handlers work with, put together once and given to every request."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from pilotage.book.codec import Codec, Limits
from pilotage.book.fold.join import Change, Joined
from pilotage.book.rows.ledger import Ledger
from pilotage.book.rows.rows import JobRow
from pilotage.model.jobs.definition import plain
from pilotage.model.settings.settings import Settings
from pilotage.model.states import ADOPTED, MADE_BEFORE, UNDECLARED
from pilotage.ports import AttemptLogs, Clock, Journal
from pilotage.reading.access import Access
from pilotage.reading.queries import BookReader
from pilotage.service.http.backend import JobBackend
from pilotage.service.http.errors import BookOnly
from pilotage.service.jobs.package_names import PackageNames, Targets
from pilotage.service.journal.content_retention import remove_unused_content
from pilotage.service.journal.recording import OpenRecords, RecordKeeping
from pilotage.service.journal.retention import Action, Housekeeping
from pilotage.service.journal.writer import Afterwards, BatchCommitter, Writer
from pilotage.service.notifications.notifications import Notifications, signal_name
from pilotage.service.process import no_room

if TYPE_CHECKING:
    from litestar.types import Receive

    from pilotage.language import Expansion


# Waiting for events of a job: the writer's commits wake the waiting requests; nothing polls.


class Waiter:
    """A request that waits for events of a job, on its event loop."""

    def __init__(self) -> None:
        """Wait on the running loop."""
        self.loop = asyncio.get_running_loop()
        self.news = asyncio.Event()

    async def wait(self, *, wait_seconds: float) -> bool:
        """Wait until something may be new; False on timeout."""
        try:
            await asyncio.wait_for(self.news.wait(), wait_seconds)
        except TimeoutError:
            return False
        self.news.clear()
        return True


class CommitSignal:
    """Wakes the requests that wait for one of the jobs of a commit."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._listeners: dict[str, set[Waiter]] = {}
        self.stopped = False

    @contextmanager
    def waiting_for(self, job: str) -> Iterator[Waiter]:
        """Wait for a job. Begin before reading the book, so that no commit falls in between."""
        waiter = Waiter()
        with self._guard:
            self._listeners.setdefault(job, set()).add(waiter)
        try:
            yield waiter
        finally:
            with self._guard:
                others = self._listeners[job]
                others.discard(waiter)
                if not others:
                    del self._listeners[job]

    def notify(self, jobs: Iterable[str]) -> None:
        """Wake the requests that wait for one of these jobs; from any thread, after the commit."""
        # A request that begins to wait later reads the book after the commit.
        if not self._listeners:
            return
        with self._guard:
            woken = [waiter for job in set(jobs) for waiter in self._listeners.get(job, ())]
        _wake(woken)

    def stop(self) -> None:
        """Wake all requests for good: the service stops."""
        self.stopped = True
        with self._guard:
            woken = [waiter for listeners in self._listeners.values() for waiter in listeners]
        _wake(woken)


def _wake(listeners: Iterable[Waiter]) -> None:
    for waiter in listeners:
        waiter.loop.call_soon_threadsafe(waiter.news.set)


# Caching of expensive answers.

REMEMBERED_MAX = 10_000
PACE = 20

Result = TypeVar("Result")


class AnswerCache:
    """Caches expensive answers for a multiple of the time they took to make."""

    def __init__(self, *, seconds: Callable[[], float] = time.monotonic) -> None:
        """Measure with a monotonic clock."""
        self._seconds = seconds
        self._known: OrderedDict[str, tuple[object, object, float, Any]] = OrderedDict()

    def cached(
        self, name: str, mark: object, make: Callable[[], Result], *, pace: int = PACE, phase: object = None
    ) -> Result:
        """The cached answer, if nothing changed since (`mark` is the same) or it is too recent; else a new one.

        An answer is recent for `pace` times as long as it took, within the same `phase`: in another one it is used only
        if nothing changed.
        """
        now = self._seconds()
        known = self._known.get(name)
        if known is not None and (known[0] == mark or (known[1] == phase and now < known[2])):
            result: Result = known[3]
            return result
        made = make()
        after = self._seconds()
        self._known[name] = (mark, phase, after + pace * (after - now), made)
        self._known.move_to_end(name)
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
        return made


# Notes which jobs have unusual packages in durable events: retried, adopted, or with undeclared files.
#
# Most packages have one attempt. Counting the others means examining all packages of a job. So each batch notes whether
# one of these counts may have changed; until the next note, an earlier count holds.

DONE = frozenset({"DONE", "CLEARED"})
_UNUSUAL_REASONS = frozenset({MADE_BEFORE, UNDECLARED})  # with a success
WAITING = frozenset({"SUBMITTED", "WAITING", "READY"})
UNDER_WAY = frozenset({"SCHEDULED", "RUNNING"})

Marks = tuple[int, int]
"""Change counters for the done and for the other packages of a job: a count holds while its counter stays."""


class UnusualPackages:
    """Notes unusual changes in each transaction, and reports them when they are durable."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._last = 0
        self._marks: dict[str, Marks] = {}
        self._unmarked: Marks = (0, 0)  # for jobs that are not remembered
        self._pending: dict[str, tuple[bool, bool]] = {}  # noted, and perhaps not durable yet

    def note(self, joined: Joined, _: Ledger) -> None:
        """Examine the changes of a batch, within its transaction. Short-lived packages are never unusual."""
        for change in joined.longer():
            done, live = concerns(change)
            if done or live:
                job = change.job.job
                with self._guard:
                    before = self._pending.get(job, (False, False))
                    self._pending[job] = (before[0] or done, before[1] or live)

    def committed(self, _: Iterable[str] = ()) -> None:
        """All notes are durable, or were rolled back: new counts start here."""
        if not self._pending:
            return
        with self._guard:
            self._last += 1
            for job, (done, live) in self._pending.items():
                before = self._marks.get(job, self._unmarked)
                self._marks[job] = (self._last if done else before[0], self._last if live else before[1])
            self._pending.clear()
            if len(self._marks) > REMEMBERED_MAX:
                self._marks.clear()
                self._unmarked = (self._last, self._last)

    def marks(self, job: str) -> Marks | None:
        """The change counters of a job, to be read before counting. None if a change may be in transit."""
        with self._guard:
            return None if job in self._pending else self._marks.get(job, self._unmarked)


def concerns(change: Change) -> tuple[bool, bool]:
    """Whether a change can affect the counts of done packages (retried, adopted, untidy), and of the others."""
    package = change.package
    if package is None:
        return False, False
    facts, before = package.facts, change.state_before
    state, attempts = facts.state, len(facts.attempts)
    # The number of attempts never decreases; everything else may have changed.
    done = before in DONE or (
        state in DONE and (attempts > 1 or facts.site == ADOPTED or facts.reason in _UNUSUAL_REASONS)
    )
    live = (attempts > 0 and (state in WAITING or before in WAITING)) or (
        attempts > 1 and (state in UNDER_WAY or before in UNDER_WAY)
    )
    return done, live


READERS = 4
"""Threads that query the journal: each holds a connection, and few keep two cores busy."""

Answer = TypeVar("Answer")


class MakeBackend(Protocol):
    """Makes the part that runs jobs, over the journal and its single writer."""

    def __call__(self, journal: Journal, *, writer: Writer, codec: Codec, clock: Clock) -> JobBackend:
        """Put it together; nothing runs yet."""
        ...


class Services:
    """A journal with its writer and readers, access control, and the settings."""

    def __init__(
        self,
        journal: Journal,
        *,
        access: Access,
        settings: Settings,
        clock: Clock,
        within: Sequence[Afterwards] = (),
        notifications: Notifications | None = None,
        make_backend: MakeBackend | None = None,
        state_folder: Path | None = None,
        open_records: OpenRecords | None = None,
        at_rest: bool = False,
    ) -> None:
        """Put the parts together; nothing runs before `start`.

        Without notifications there are no subscriptions, without `make_backend` no jobs run: it serves a book alone, and
        without `open_records` no records are kept. The disk of the state folder is watched for space. `at_rest`: it will
        never be started, and only reads.
        """
        limits = Limits(event_bytes_max=settings.service.event_bytes_max, tag_bytes_max=settings.service.tag_bytes_max)
        self.journal = journal
        self.access = access
        self.settings = settings
        self.clock = clock
        self.answer_cache = AnswerCache()
        self.codec = Codec(limits=limits)
        self.commits = CommitSignal()
        self.unusual = UnusualPackages()
        self.notifications = notifications
        within = (self.unusual.note, *within)
        if notifications is not None:
            within = (*within, *notifications.within)
            notifications.subscriptions.on_news(lambda name: self.commits.notify([signal_name(name)]))
            notifications.settle_by(self._wait_settled)
        committer = BatchCommitter(
            journal, clock=clock, codec=self.codec, within=within, skew_seconds=settings.book.skew_seconds
        )
        self.writer = Writer(committer, committed=self._committed)
        self.records: RecordKeeping | None = None
        if open_records is not None:
            self.records = RecordKeeping(
                journal,
                settings=settings.provenance,
                open_store=open_records,
                clock=clock,
                logs=self._logs,
                files=self._files,
                is_incomplete=self._inputs_pending,
                sites=self._site,
                writes=not at_rest,
            )
        self.housekeeping = Housekeeping(
            journal,
            settings=settings.retention,
            writer=self.writer,
            codec=self.codec,
            clock=clock,
            stream=f"housekeeping-{secrets.token_hex(6)}",
            done=self._on_retention,
            records=self.records,
            besides=self._remove_unused_content,
        )
        self.package_names = PackageNames(journal, self._expansion_of)
        self.targets = Targets(journal, self.package_names)
        self.reader = BookReader(journal, clock=clock, settings=settings.query, find=self.package_names.find)
        self.backend: JobBackend | None = None
        if make_backend is not None:
            self.backend = make_backend(journal, writer=self.writer, codec=self.codec, clock=clock)
        self._state_folder = state_folder
        self._readers = ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="reader")

    def is_full(self) -> bool:
        """Whether the disk of the state folder is full."""
        return self._state_folder is not None and bool(no_room(self._state_folder))

    def trouble(self, *folders: str) -> str:
        """What prevents writing, of the book or into folders; empty if nothing does."""
        places = [*([str(self._state_folder)] if self._state_folder is not None else []), *folders]
        full = next((reason for each in places if each and (reason := no_room(each))), "")
        return full or self.journal.trouble or self.writer.trouble

    def _logs(self) -> AttemptLogs | None:
        """What the attempts printed that ran here."""
        return self.backend.jobs.logs if self.backend is not None else None

    def _inputs_pending(self, job: str) -> bool:
        """Whether checksums of the inputs of a job that ran here are still being worked out."""
        return self.backend is not None and self.backend.jobs.inputs_pending(job)

    def _site(self, site: str) -> bytes | None:
        """The configuration of a site and the version of its batch system, as JSON; None if it is not configured."""
        entries = (
            self.backend.sites.known.entries if self.backend is not None and self.backend.sites is not None else {}
        )
        if self.backend is None or site not in entries:
            return None
        told = {"site": site, "entry": plain(entries[site]) or {}, "scheduler": self.backend.jobs.scheduler_at(site)}
        return msgspec.json.encode(told, order="deterministic")

    def _files(self, row: JobRow) -> Callable[[str, int], bytes] | None:
        """What reads the files of a job that ran here."""
        if self.backend is None or (folder := self.backend.folder_of(row)) is None:
            return None
        tree = self.backend.jobs.tree
        return lambda name, size_bytes: tree.read(folder, name, offset=0, size_bytes=size_bytes)

    def _expansion_of(self, job: str) -> Expansion | None:
        """The expansion of a job that runs here."""
        return self.backend.jobs.expansion_of(job) if self.backend is not None else None

    def _committed(self, jobs: Iterable[str]) -> None:
        """Events of these jobs are durable; unusual ones are noted first, since a woken request may count."""
        self.unusual.committed()
        self.commits.notify(jobs)
        if self.records is not None:
            self.records.note(jobs)

    def marks(self, job: str) -> Marks | None:
        """The change counters of a job; None if only the job itself tells."""
        return self.unusual.marks(job) if self.writer.alive else None

    def _on_retention(self, action: Action) -> None:
        """A finished job was cleared, sealed or purged: the runner may release it."""
        if self.backend is not None and action.deed != "record":
            self.backend.jobs.note_retained(action)

    def _remove_unused_content(self) -> None:
        """Remove files that were sent here and that no job uses."""
        if self.backend is not None and self.backend.content is not None:
            remove_unused_content(
                self.backend.content,
                self.journal,
                self.backend.folder_of,
                now=self.clock.now(),
                content_days=self.settings.service.content_days,
                needed=self.backend.jobs.needed_contents(),
            )

    async def ask(self, question: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run a query on the book in a reader thread; the answer waits until granted files are published."""
        answer = await self.do(question, *arguments)
        await self.settled()
        return answer

    async def do(self, deed: Callable[..., Answer], *arguments: Any) -> Answer:
        """Have a reader thread do something that may wait for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, deed, *arguments)

    async def settled(self) -> None:
        """Wait until everything in the book has taken effect; to be awaited after reading, before answering."""
        if self.backend is not None and (pending_effects := self.backend.jobs.pending_effects) is not None:
            await asyncio.wrap_future(pending_effects)

    def _wait_settled(self) -> None:
        """The same, in a thread."""
        if self.backend is not None and (pending_effects := self.backend.jobs.pending_effects) is not None:
            pending_effects.result()

    def start(self) -> None:
        """Start the writer."""
        self.writer.start()
        self.housekeeping.start()
        if self.records is not None:
            self.records.start()
        if self.notifications is not None:
            self.notifications.start()
        if self.backend is not None:
            self.backend.start()

    def stop(self) -> None:
        """Wake waiting requests, write queued batches, and end the threads; the journal stays open."""
        self.commits.stop()
        self.housekeeping.stop()
        if self.records is not None:
            self.records.stop()  # while logs and files can still be read
        if self.backend is not None:
            self.backend.stop()  # while its decisions can still be written
        self.writer.stop()
        if self.notifications is not None:
            self.notifications.stop()
        self._readers.shutdown(wait=True)
        if self.records is not None:
            self.records.close()  # a last request may have opened it


def backend_of(services: Services) -> JobBackend:
    """What runs jobs here; raises `BookOnly` if nothing does."""
    if services.backend is None:
        raise BookOnly(
            "this service serves its book and runs no jobs", next_step="start it without --book-only: pilotage serve"
        )
    return services.backend


# The lifespan of services behind a server: they start before the first request, and end after the last.


async def run_lifespan(
    services: Services, receive: Receive, send: Any, *, meanwhile: AbstractContextManager[None] | None = None
) -> None:
    """Start the services, and end them after the last request; `meanwhile` is entered in between."""
    await receive()
    try:
        services.start()
    except BaseException as fault:
        await send({"type": "lifespan.startup.failed", "message": str(fault)})
        raise
    with meanwhile or nullcontext():
        await send({"type": "lifespan.startup.complete"})
        await receive()
    # In a thread of its own: writing wakes requests on this loop.
    await asyncio.to_thread(services.stop)
    await send({"type": "lifespan.shutdown.complete"})
