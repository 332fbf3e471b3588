"""What the handlers work with, put together once and given to every request."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pilotage.book.codec import Codec, Limits
from pilotage.model.configuration import Settings
from pilotage.ports import Clock, Journal
from pilotage.service.access import Access
from pilotage.service.disk import no_room
from pilotage.service.housekeeping import Housekeeping
from pilotage.service.http.errors import BookOnly
from pilotage.service.http.following import Bell
from pilotage.service.http.pace import Pace
from pilotage.service.http.running import Running
from pilotage.service.keeper import Afterwards, Keeper
from pilotage.service.notifications import Notifications, bell_name
from pilotage.service.reading import Reading
from pilotage.service.retention import Action
from pilotage.service.targets import Targets
from pilotage.service.unusual import Marks, Unusual
from pilotage.service.wording import Wording
from pilotage.service.writer import Writer

if TYPE_CHECKING:
    from pilotage.language import Expansion

READERS = 4
"""Threads that ask the journal: each holds a connection, and two cores are kept busy by few."""

Answer = TypeVar("Answer")


class MakeRunning(Protocol):
    """Makes what runs jobs, over the journal and the one writer of it."""

    def __call__(self, journal: Journal, *, writer: Writer, codec: Codec, clock: Clock) -> Running:
        """Put it together; nothing runs yet."""
        ...


class Services:
    """A journal with its writer and readers, who may use them, and the settings."""

    def __init__(
        self,
        journal: Journal,
        *,
        access: Access,
        settings: Settings,
        clock: Clock,
        within: Sequence[Afterwards] = (),
        notifications: Notifications | None = None,
        make_running: MakeRunning | None = None,
        state_folder: Path | None = None,
    ) -> None:
        """Put the parts together; nothing runs before `start`.

        Without notifications nobody can subscribe, and without `make_running` nothing is run: it is a book alone. The
        disk of the state folder must have room.
        """
        limits = Limits(event_bytes_max=settings.service.event_bytes_max, tag_bytes_max=settings.service.tag_bytes_max)
        self.journal = journal
        self.access = access
        self.settings = settings
        self.clock = clock
        self.pace = Pace()
        self.codec = Codec(limits=limits)
        self.bell = Bell()
        self.unusual = Unusual()
        self.notifications = notifications
        within = (self.unusual.note, *within)
        if notifications is not None:
            within = (*within, *notifications.within)
            notifications.subscriptions.on_news(lambda name: self.bell.ring([bell_name(name)]))
            notifications.settle_by(self._wait_settled)
        keeper = Keeper(journal, clock=clock, codec=self.codec, within=within, skew_seconds=settings.book.skew_seconds)
        self.writer = Writer(keeper, committed=self._committed)
        self.housekeeping = Housekeeping(
            journal,
            settings=settings.retention,
            writer=self.writer,
            codec=self.codec,
            clock=clock,
            stream=f"housekeeping-{secrets.token_hex(6)}",
            done=self._seen_to,
        )
        self.wording = Wording(journal, self._laid_out)
        self.targets = Targets(journal, self.wording)
        self.reading = Reading(journal, clock=clock, settings=settings.query, find=self.wording.find)
        self.running: Running | None = None
        if make_running is not None:
            self.running = make_running(journal, writer=self.writer, codec=self.codec, clock=clock)
        self._state_folder = state_folder
        self._readers = ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="reader")

    def is_full(self) -> bool:
        """Whether the disk of the state folder is full."""
        return self._state_folder is not None and bool(no_room(self._state_folder))

    def trouble(self, *folders: str) -> str:
        """What keeps anything from being written, the book or into folders; empty where nothing does."""
        places = [*([str(self._state_folder)] if self._state_folder is not None else []), *folders]
        full = next((told for each in places if each and (told := no_room(each))), "")
        return full or self.journal.trouble or self.writer.trouble

    def _laid_out(self, job: str) -> Expansion | None:
        """The layout of a job that is being run here."""
        return self.running.jobs.laid_out(job) if self.running is not None else None

    def _committed(self, jobs: Iterable[str]) -> None:
        """Something new of these jobs is durable; first what is unusual, since who hears the bell may count."""
        self.unusual.committed()
        self.bell.ring(jobs)

    def marks(self, job: str) -> Marks | None:
        """By what to know whether a count of what is unusual in a job holds; None where only a look at the job tells."""
        return self.unusual.marks(job) if self.writer.alive else None

    def _seen_to(self, action: Action) -> None:
        """A finished job was cleared, sealed or purged: whoever runs jobs may let go of it."""
        if self.running is not None:
            self.running.jobs.seen_to(action)

    async def ask(self, question: Callable[..., Answer], *arguments: Any) -> Answer:
        """Have a question about the book answered; what is told has happened: what was granted has its names."""
        answer = await self.do(question, *arguments)
        await self.settled()
        return answer

    async def do(self, deed: Callable[..., Answer], *arguments: Any) -> Answer:
        """Have a reader thread do something that may wait for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, deed, *arguments)

    async def settled(self) -> None:
        """Wait until what the book says by now was let out; to be asked when it was read, and before it is told."""
        if self.running is not None and (leaving := self.running.jobs.leaving) is not None:
            await asyncio.wrap_future(leaving)

    def _wait_settled(self) -> None:
        """The same in a thread."""
        if self.running is not None and (leaving := self.running.jobs.leaving) is not None:
            leaving.result()

    def start(self) -> None:
        """Begin to write."""
        self.writer.start()
        self.housekeeping.start()
        if self.notifications is not None:
            self.notifications.start()
        if self.running is not None:
            self.running.start()

    def stop(self) -> None:
        """Let followers go, write what is queued, and end the threads; the journal stays open."""
        self.bell.stop()
        if self.running is not None:
            self.running.stop()  # while what it decided can still be written
        self.housekeeping.stop()
        self.writer.stop()
        if self.notifications is not None:
            self.notifications.stop()
        self._readers.shutdown(wait=True)


def running_of(services: Services) -> Running:
    """What runs jobs here; raises `BookOnly` where nothing does."""
    if services.running is None:
        raise BookOnly(
            "this service keeps the book, and runs nothing", next_step="start it without --book-only: pilotage serve"
        )
    return services.running
