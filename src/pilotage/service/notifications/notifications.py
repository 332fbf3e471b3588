"""Notifications as one part: subscriptions, digests and their deliveries over one journal."""

from __future__ import annotations

import hashlib
import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import msgspec

from pilotage.book.fold.join import Joined
from pilotage.book.notices import digests
from pilotage.book.notices.digests import OPERATORS, Audience, Failure, Group
from pilotage.book.notices.notices import plain, retry_seconds
from pilotage.book.rows.ledger import Ledger
from pilotage.book.rows.rows import JobRow
from pilotage.book.rows.tables import TABLE_BY_ROW, FailureRow, MailRow
from pilotage.model.settings.settings import NotificationSettings
from pilotage.ports import Clock, DeliveryRefused, Journal, Letter, Mailer, NotDelivered, Notifier
from pilotage.service.journal.writer import Afterwards
from pilotage.service.notifications.deliveries import Deliveries, DueDelivery, SubscriptionDeliveries
from pilotage.service.notifications.subscriptions import Subscriptions

# Digests: mails about failures to owners and operators, without a subscription, limited in frequency for each
# recipient.
#
# Failures are counted in the transaction of their events. A mail is composed in a transaction, too, and stays as it is
# until the mail server takes it: after a restart the same mail, with the same id, is sent again.

log = logging.getLogger(__name__)

Recipient = tuple[str, str]
"""An audience, and the owner if that is the researcher."""

_KEY = TABLE_BY_ROW[FailureRow].key


class Digests:
    """Counts failures in the transactions of batches, and mails new ones. Any thread may use it."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Clock,
        settings: NotificationSettings,
        mailer: Mailer | None,
        base_url: str,
        address_of: Callable[[str], str | None],
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Send through a mailer; without one nothing is counted. `address_of` returns the mail address of an owner."""
        self._journal = journal
        self._clock = clock
        self._settings = settings
        self._mailer = mailer
        self._base_url = base_url
        self._address_of = address_of
        self._chance = chance
        self._guard = threading.Lock()
        self._due: dict[Recipient, float] = {}
        self._woken: list[Callable[[], None]] = []
        self._unreachable: set[str] = set()
        self._operators = {
            Audience.CLUSTER_MANAGEMENT: settings.cluster_management,
            Audience.GRID_CONTROL: settings.grid_control,
        }
        if mailer is not None:
            with journal.transaction() as ledger:
                self._take_up(ledger)

    def addresses(self, recipient: Recipient) -> tuple[str, ...]:
        """The mail addresses of a recipient; may be empty."""
        audience, owner = recipient
        if audience == Audience.RESEARCHER.value:
            address = self._address_of(owner)
            return (address,) if address else ()
        return tuple(self._operators[Audience(audience)])

    # --- for the writer ---

    def note(self, joined: Joined, ledger: Ledger) -> None:
        """Count the failures of a batch, and note ended jobs, in its transaction."""
        if self._mailer is None:
            return
        changes = joined.changes
        recipients: set[Recipient] = set()
        found = digests.failures(changes)
        if found:
            recipients |= self._count(found, ledger)
        for job in changes.jobs:
            if digests.ended(job):
                recipients |= self._end(job, ledger)
        if recipients:
            self._wake(recipients)

    def _count(self, found: Iterable[Failure], ledger: Ledger) -> set[Recipient]:
        owners: dict[int, Mapping[Audience, str | None]] = {}
        wanted: list[tuple[Group, Failure]] = []
        for failure in found:
            if failure.job.job_id not in owners:
                owners[failure.job.job_id] = self._reached(failure.job)
            wanted += [(group, failure) for group in digests.groups_of(failure, owners=owners[failure.job.job_id])]
        groups = {group for group, _ in wanted}
        rows: dict[Group, FailureRow] = {}
        for row in ledger.rows_by_keys(FailureRow, by=_KEY, keys=groups) if groups else ():
            rows[row.job, row.audience, row.owner, row.kind, row.reason] = row
        for group, failure in wanted:
            rows[group] = digests.counted(rows.get(group), group, failure)
        if rows:
            ledger.put_rows(list(rows.values()))
        return {(row.audience, row.owner) for row in rows.values()}

    def _reached(self, job: JobRow) -> dict[Audience, str | None]:
        reached: dict[Audience, str | None] = {each: "" for each in OPERATORS if self._operators[each]}
        if self._address_of(job.owner):
            reached[Audience.RESEARCHER] = job.owner
        elif job.owner not in self._unreachable:
            self._unreachable.add(job.owner)
            log.warning("no mail address is known for %s: failures are not mailed", plain(job.owner))
        return reached

    def _end(self, job: JobRow, ledger: Ledger) -> set[Recipient]:
        """Note the end of a job that had failures; others need no mail."""
        found = ledger.find_rows(FailureRow, having={"job": job.job, "audience": Audience.RESEARCHER.value})
        owners = {row.owner for row in found if row.kind != digests.END}
        if owners:
            ledger.put_rows([digests.end_row(job, owner=owner) for owner in sorted(owners)])
        return {(Audience.RESEARCHER.value, owner) for owner in owners}

    # --- for the deliveries ---

    def on_news(self, woken: Callable[[], None]) -> None:
        """Call `woken` when there may be something to mail."""
        self._woken.append(woken)

    def due_deliveries(self) -> Iterable[DueDelivery]:
        """A mail for each recipient with news."""
        with self._guard:
            due = list(self._due.items())
        return [DueDelivery("/".join(recipient), at, partial(self._mail, recipient)) for recipient, at in due]

    def _mail(self, recipient: Recipient) -> None:
        mail = self._next_mail(recipient)
        if mail is None or self._mailer is None:
            return
        letter = Letter(id=_letter_id(mail), recipients=self.addresses(recipient), subject=mail.subject, body=mail.body)
        now = self._clock.now()
        try:
            if not letter.recipients:
                raise DeliveryRefused("no mail address is known any more")
            self._mailer.send(letter)
        except DeliveryRefused as fault:
            # It would be refused again and again, and delay later mails.
            log.error("a digest to %s was given up: %s", mail.recipient, fault)
            mail = msgspec.structs.replace(mail, sent_at=now, fault=plain(str(fault)))
        except NotDelivered as fault:
            attempts = mail.attempts + 1
            wait = retry_seconds(attempts, chance=self._chance())
            log.warning("a digest to %s: %s; try %d, again in %.0f s", mail.recipient, fault, attempts, wait)
            mail = msgspec.structs.replace(mail, attempts=attempts, next_at=now + wait, fault=plain(str(fault)))
        else:
            mail = msgspec.structs.replace(mail, sent_at=now, fault="")
        with self._journal.transaction() as ledger:
            ledger.put_rows([mail])
        self._set_due(recipient, mail.next_at if mail.sent_at is None else now + self._settings.digest_seconds)

    def _next_mail(self, recipient: Recipient) -> MailRow | None:
        """The mail in progress, or a new one if there is news and the last one was long enough ago."""
        audience, owner = recipient
        name, now = "/".join(recipient), self._clock.now()
        with self._journal.transaction() as ledger:
            last = next(iter(ledger.find_rows(MailRow, having={"recipient": name})), None)
            if last is not None and last.sent_at is None:
                if last.next_at <= now:
                    return last
                self._set_due(recipient, last.next_at)
                return None
            rows = ledger.find_rows(FailureRow, having={"audience": audience, "owner": owner})
            if not digests.is_new(rows):
                # Still within the transaction: batches add theirs after it.
                with self._guard:
                    self._due.pop(recipient, None)
                return None
            free_at = (last.sent_at or 0.0) + self._settings.digest_seconds if last is not None else now
            if free_at > now:
                self._set_due(recipient, free_at)
                return None
            return self._compose(ledger, name, rows, number=last.number + 1 if last is not None else 1)

    def _compose(self, ledger: Ledger, name: str, rows: list[FailureRow], *, number: int) -> MailRow:
        text = digests.digest(rows, base_url=self._base_url)
        mail = MailRow(
            recipient=name, number=number, subject=text.subject, body=text.body, composed_at=self._clock.now()
        )
        stay, gone = digests.after_sending(rows)
        ledger.put_rows([mail])
        if stay:
            ledger.put_rows(stay)
        for row in gone:
            ledger.remove_rows(FailureRow, having={column: getattr(row, column) for column in _KEY})
        return mail

    # --- private ---

    def _take_up(self, ledger: Ledger) -> None:
        """Load what waited when the service stopped."""
        for row in ledger.find_rows(FailureRow, having={}):
            if row.count > row.told:
                self._due[row.audience, row.owner] = 0.0
        for mail in ledger.find_rows(MailRow, having={}):
            if mail.sent_at is None:
                audience, _, owner = mail.recipient.partition("/")
                self._due[audience, owner] = mail.next_at

    def _wake(self, recipients: set[Recipient]) -> None:
        with self._guard:
            for recipient in recipients:
                self._due.setdefault(recipient, 0.0)
        for woken in self._woken:
            woken()

    def _set_due(self, recipient: Recipient, at: float) -> None:
        with self._guard:
            self._due[recipient] = at


def _letter_id(mail: MailRow) -> str:
    name = hashlib.sha256(mail.recipient.encode()).hexdigest()[:12]
    return f"digest-{name}-{int(mail.composed_at * 1000)}-{mail.number}"


THREADS = 2
"""Threads for requests about subscriptions: they wait for the single writer, and must not block readers."""


class MakeNotifications(Protocol):
    """Makes the notifications of a service, once its journal is open and its address is known."""

    def __call__(self, journal: Journal, *, base_url: str) -> Notifications:
        """Load the state from the journal."""
        ...


class Notifications:
    """Queues notices in the transactions of batches, and delivers them."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Clock,
        settings: NotificationSettings,
        base_url: str,
        notifiers: Mapping[str, Notifier],
        mailer: Mailer | None,
        address_of: Callable[[str], str | None],
    ) -> None:
        """Load the state from the journal; nothing is sent before `start`.

        `notifiers` are the transports besides `poll`; `mailer` sends digests, and without one there are none;
        `address_of` returns the mail address of an owner.
        """
        self.base_url = base_url
        self.subscriptions = Subscriptions(journal, clock=clock, settings=settings, notifiers=notifiers)
        self.digests = Digests(
            journal, clock=clock, settings=settings, mailer=mailer, base_url=base_url, address_of=address_of
        )
        self._agenda = SubscriptionDeliveries(self.subscriptions, clock=clock, base_url=base_url)
        self.deliveries = Deliveries([self._agenda, self.digests], clock=clock)
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="subscriptions")

    @property
    def within(self) -> tuple[Afterwards, ...]:
        """Actions for the transaction of each batch."""
        return self.subscriptions.note, self.digests.note

    def settle_by(self, settle: Callable[[], None]) -> None:
        """Set the function that waits until the book's changes have taken effect; called before anything is sent."""
        self._agenda.settle = settle

    def start(self) -> None:
        """Start delivering."""
        self.deliveries.start()

    def stop(self) -> None:
        """Start nothing more, and wait for deliveries in progress."""
        self.deliveries.stop()
        self.threads.shutdown(wait=True)


def signal_name(subscription: str) -> str:
    """The name under which a subscription's waiting requests are woken; no job has such a name."""
    return f"/subscriptions/{subscription}"
