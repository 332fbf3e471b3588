"""What tests of notifications share: a book whose clock stands, a notifier that does as it is told, and who may ask."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import msgspec

from pilotage.adapters.journals.sqlite.journal import SqliteJournal
from pilotage.book.notices.notices import Notice
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import AttemptCreated, AttemptFinished, CommitGranted, JobAccepted, Payload
from pilotage.model.settings.settings import NotificationSettings
from pilotage.model.states import ExitCodeGasw
from pilotage.ports import BadAddress, Journal, Letter, NotDelivered, Notifier
from pilotage.reading.access import READ, Principal, local_principal
from pilotage.service.journal.writer import BatchCommitter
from pilotage.service.notifications.deliveries import Deliveries, SubscriptionDeliveries
from pilotage.service.notifications.notifications import Digests
from pilotage.service.notifications.subscriptions import Subscriptions
from tests.kit.events import START, StandingClock, Stream, registered, shape

ADA = Principal(user="ada", scopes=frozenset({READ}))
BOB = Principal(user="bob", scopes=frozenset({READ}))
OPERATOR = local_principal("root")
BASE_URL = "https://book.example:8642"
ADDRESS = "fake:somewhere"


class FakeNotifier:
    """Keeps what it is told; fails the next times as planned, where None stands for a time that goes well."""

    notices_max = 3

    def __init__(self) -> None:
        self.pause_seconds = 0.0
        self.told: list[tuple[str, Notice]] = []
        self.tries = 0
        self.faults: deque[NotDelivered | None] = deque()

    def check_address(self, address: str) -> None:
        """Only addresses that begin with `fake:`."""
        if not address.startswith("fake:") or not address.isprintable():
            raise BadAddress("this is not a fake address", expected="fake:NAME")

    def tell(self, address: str, notices: Sequence[Notice], *, secret: str) -> None:
        """Keep the notices, or fail."""
        self.check_address(address)
        self.tries += 1
        fault = self.faults.popleft() if self.faults else None
        if fault is not None:
            raise fault
        self.told += [(address, notice) for notice in notices]

    @property
    def ids(self) -> list[str]:
        """The ids of what was told, in order."""
        return [notice.id for _, notice in self.told]


class FakeMailer:
    """Keeps letters; fails the next times as planned."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.tried: list[Letter] = []
        self.faults: deque[NotDelivered] = deque()

    def send(self, letter: Letter) -> None:
        """Keep the letter, or fail."""
        self.tried.append(letter)
        if self.faults:
            raise self.faults.popleft()
        self.letters.append(letter)


def run_due(deliveries: Deliveries) -> int:
    """Do everything that is due now, once, here; how many deliveries that were."""
    due, _ = deliveries._due()
    for delivery in due:
        deliveries._do(delivery)
    return len(due)


class Notified:
    """A book with notifications, on a clock that stands. `restart` closes everything and opens it again."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: NotificationSettings | None = None,
        notifiers: dict[str, Notifier] | None = None,
        mailer: FakeMailer | None = None,
        open_journal: Callable[[], Journal] | None = None,
    ) -> None:
        self._open_journal = open_journal or (lambda: SqliteJournal(folder, durable=False))
        self.clock = StandingClock()
        self.settings = settings if settings is not None else NotificationSettings()
        self.notifier = FakeNotifier()
        self.notifiers: dict[str, Notifier] = notifiers if notifiers is not None else {"webhook": self.notifier}
        self.mailer = mailer
        self.stream = Stream(stream="core")
        self._stack = ExitStack()
        self._open()

    def _open(self) -> None:
        self.journal = self._open_journal()
        self._stack.callback(self.journal.close)
        self.subscriptions = Subscriptions(
            self.journal, clock=self.clock, settings=self.settings, notifiers=self.notifiers
        )
        self.digests = Digests(
            self.journal,
            clock=self.clock,
            settings=self.settings,
            mailer=self.mailer,
            base_url=BASE_URL,
            address_of=lambda owner: f"{owner}@example.org" if owner != "nobody" else None,
            chance=lambda: 1.0,
        )
        due_deliveries = SubscriptionDeliveries(
            self.subscriptions, clock=self.clock, base_url=BASE_URL, chance=lambda: 1.0
        )
        self.deliveries = Deliveries([due_deliveries, self.digests], clock=self.clock)
        self.keeper = BatchCommitter(
            self.journal, clock=self.clock, within=[self.subscriptions.note, self.digests.note]
        )

    def restart(self) -> None:
        """The service stops, and another one starts."""
        self._stack.close()
        self._open()

    def __enter__(self) -> Notified:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def take(self, *events: Event) -> None:
        """One batch."""
        receipt = self.keeper.take(events)
        assert receipt.refused == []

    def say(
        self, data: Payload, *, job: str = "j1", package: str | None = None, attempt: int | None = None, epoch: int = 1
    ) -> None:
        """One event, as a batch of its own, now."""
        self.take(
            self.stream.event(data, job=job, package=package, attempt=attempt, epoch=epoch, time=self.clock.now())
        )

    def register(self, job: str = "j1", *, owner: str = "ada", lines: int = 3) -> None:
        """A job that was accepted."""
        self.say(registered(shape("simulate", lines=lines), owner=owner, name=f"name-{job}"), job=job)
        self.say(JobAccepted(), job=job)

    def run(self, package: str, *, job: str = "j1", attempt: int = 1, site: str = "lyon") -> None:
        """An attempt that holds a lease."""
        self.say(AttemptCreated(site=site, lease_seconds=60.0), job=job, package=package, attempt=attempt)

    def grant(self, package: str, *, job: str = "j1", attempt: int = 1) -> None:
        """The attempt succeeded and was granted, in one batch."""
        success = AttemptFinished(exit_code=ExitCodeGasw.SUCCESS)
        now = self.clock.now()
        self.take(
            self.stream.event(success, job=job, package=package, attempt=attempt, time=now),
            self.stream.event(CommitGranted(), job=job, package=package, attempt=attempt, time=now),
        )

    def fail(
        self,
        package: str,
        *,
        job: str = "j1",
        attempt: int = 1,
        reason: str | None = "application-error",
        **more: object,
    ) -> None:
        """The attempt failed."""
        said = {"exit_code": "EXECUTION_FAILED", "reason": reason, "exit_message": "it broke", **more}
        self.say(msgspec.convert(said, AttemptFinished), job=job, package=package, attempt=attempt)

    def deliver(self) -> None:
        """Everything that is due, until nothing more is."""
        for _ in range(100):
            if not run_due(self.deliveries):
                return
        raise AssertionError("there is always something to do")

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.at += seconds


def main(folder: Path, first: int) -> None:
    """Run one package after the other in a durable book, and say which are acknowledged, until somebody kills this."""
    with Notified(folder, open_journal=lambda: SqliteJournal(folder)) as book:
        book.stream = Stream(stream=f"from-{first}")
        if first == 1:
            book.register(lines=1_000_000)
        for line in range(first, 1_000_000):
            book.run(f"1.{line}.1")
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


__all__ = ["ADA", "ADDRESS", "BASE_URL", "BOB", "OPERATOR", "START", "FakeMailer", "FakeNotifier", "Notified"]

if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
