"""Seals, clears and purges finished jobs regularly, as the settings say, and removes the rows of pilots that served them.

No job is purged before its record is made, where records are kept.

When the process has grown meanwhile, it also requests huge pages.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Literal, Protocol

import msgspec

from pilotage.book.codec import Checked, Codec
from pilotage.book.fold.join import Receipt
from pilotage.book.query import EVERYTHING
from pilotage.book.rows.rows import JobRow, PilotRow
from pilotage.model.errors import PilotageError
from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import Cleared
from pilotage.model.exchange.operations import Accepted, Refused, RefusedCode
from pilotage.model.settings.settings import RetentionSettings
from pilotage.model.states import FINAL_NAMES, ClearedBy, State
from pilotage.ports import Clock, Journal, JournalError
from pilotage.service.errors import OperationRefused
from pilotage.service.journal.pilot_rows import removable_pilots
from pilotage.service.journal.record_expiry import ExpiredRecords
from pilotage.service.journal.writer import Batch, Writer
from pilotage.service.process import PROCESS

# How long a finished job is kept: sealed some time after its end, CLEARED when its retention ends, and purged some days
# later.
#
# `plan` says what would be done, `apply` does it. Both read every row of a job or a pilot once, and no packages.

log = logging.getLogger(__name__)

DAY_SECONDS = 86_400.0
PARKED_DAYS_MIN = 1.0
"""Parked events were acknowledged: however short the setting, their job has a day to be registered."""
RECORDED_AFTER_SECONDS = 300.0
"""Records are made soon after the end of a job; one that was not is made here."""
_ROWS_AT_ONCE = 1000

Deed = Literal["clear", "seal", "purge", "record"]
Keep = Callable[[Sequence[Event]], Receipt]
"""Stores events in the book."""

Identity = Callable[[], tuple[str, int]]
"""The service's own stream, and its next number."""


class Records(Protocol):
    """Makes the records of jobs, without which none is purged."""

    def is_recorded(self, row: JobRow) -> bool:
        """Whether the record of a job has all that was heard of it."""
        ...

    def record(self, job: str) -> object:
        """Make the record of a job that is over."""
        ...

    def expired(self) -> ExpiredRecords:
        """The records whose time is over."""
        ...

    def delete_expired(self) -> int:
        """Delete the records whose time is over; return how many."""
        ...


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One action that is due for a job, since when, and why."""

    deed: Deed
    job: str
    since: float
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The actions due for jobs, how many parked events have expired, the rows of ended pilots that leave, and records that expire."""

    actions: list[Action]
    parked: int
    pilots: tuple[str, ...] = ()
    records: ExpiredRecords = ExpiredRecords()


class Retention:
    """Applies the retention settings to finished jobs."""

    def __init__(
        self,
        journal: Journal,
        *,
        settings: RetentionSettings,
        keep: Keep,
        identity: Identity,
        records: Records | None = None,
    ) -> None:
        """Take the journal, and how the service logs its own events; with `records`, no job is purged without one."""
        self._journal = journal
        self._records = records
        self._keep = keep
        self._identity = identity
        self._cleared_after_seconds = settings.cleared_after_days * DAY_SECONDS
        self._parked_seconds = max(settings.parked_days, PARKED_DAYS_MIN) * DAY_SECONDS
        self._purged_after_seconds = settings.purged_after_days * DAY_SECONDS
        # A job is left alone for a while after its last event: a late one would unseal it at once.
        self._sealed_after_seconds = settings.sealed_after_seconds

    def plan(self, now: float) -> Plan:
        """The actions due at a time."""
        actions: list[Action] = []
        live_jobs: dict[str, float] = {}  # when each job in the live book came
        after: str | None = None
        more = True
        while more:
            page = self._journal.find_jobs(EVERYTHING, after=after, limit=_ROWS_AT_ONCE)
            actions += [action for row in page.items if (action := self._due(row, now)) is not None]
            live_jobs |= {row.job: row.submitted_at or 0.0 for row in page.items if row.place == "live"}
            more = page.more
            if more:
                after = page.scanned_to if page.scanned_to is not None else page.items[-1].job
        parked = self._journal.count_parked(before=now - self._parked_seconds)
        ended_before = now - self._sealed_after_seconds
        pilots = removable_pilots(self._pilots(), self._journal.sites(), live_jobs=live_jobs, before=ended_before)
        return Plan(actions=actions, parked=parked, pilots=tuple(pilots), records=self._expired())

    def _expired(self) -> ExpiredRecords:
        try:
            return self._records.expired() if self._records is not None else ExpiredRecords()
        except PilotageError as fault:
            log.warning("it cannot be seen which records have expired: %s", fault)
            return ExpiredRecords()

    def _pilots(self) -> Iterator[PilotRow]:
        after = ""
        while page := self._journal.pilots(after=after, limit=_ROWS_AT_ONCE):
            yield from page
            after = page[-1].pilot

    def _due(self, row: JobRow, now: float) -> Action | None:
        if row.place == "purged" or row.state not in FINAL_NAMES:
            return None
        since = row.entered_at if row.entered_at is not None else row.updated_at
        # A cancelled job stays CANCELLED when it is cleared.
        since = row.cleared_at if row.cleared_at is not None else since
        # Clocks of events may be wrong by years: nothing is due before the time has passed on the service's clock.
        since = max(min(since, now), row.heard_at)
        if row.state == State.CLEARED.value or row.cleared_at is not None:
            if now - since >= self._purged_after_seconds:
                if not self._is_recorded(row):
                    return Action(deed="record", job=row.job, since=since, why="it is to be purged")
                return _action("purge", row, since, self._purged_after_seconds, "cleared")
        elif now - since >= self._cleared_after_seconds:
            return _action("clear", row, since, self._cleared_after_seconds, "over")
        if row.place == "live" and now - since >= self._sealed_after_seconds:
            return _action("seal", row, since, self._sealed_after_seconds, "over and quiet")
        if row.place == "live" and now - since >= RECORDED_AFTER_SECONDS and not self._is_recorded(row):
            return Action(deed="record", job=row.job, since=since, why="over and quiet")
        return None

    def _is_recorded(self, row: JobRow) -> bool:
        """Whether nothing of a job is lost when it is purged."""
        if self._records is None:
            return True
        try:
            return self._records.is_recorded(row)
        except PilotageError as fault:
            log.warning("it cannot be seen whether job %s has its record: %s", row.job, fault)
            return False

    def apply(self, now: float, *, enough: Callable[[], bool] = lambda: False) -> Plan:
        """Carry out due actions until `enough`, and return those done; failed ones are left for the next time."""
        plan = self.plan(now)
        done = [action for action in plan.actions if not enough() and self._do(action, now)]
        dropped = self._journal.drop_parked(before=now - self._parked_seconds) if plan.parked else 0
        if dropped:
            log.warning("%d events were dropped: their jobs were never registered", dropped)
        removed = self._remove(plan.pilots) if plan.pilots and not enough() else ()
        expired = plan.records
        if self._records is not None and not enough():
            self._records.delete_expired()
        else:
            expired = ExpiredRecords()
        return Plan(actions=done, parked=dropped, pilots=removed, records=expired)

    def _remove(self, pilots: tuple[str, ...]) -> tuple[str, ...]:
        """Remove rows of pilots, in slices, so that no writer waits for long."""
        for first in range(0, len(pilots), _ROWS_AT_ONCE):
            with self._journal.transaction() as ledger:
                for name in pilots[first : first + _ROWS_AT_ONCE]:
                    ledger.remove_rows(PilotRow, having={"pilot": name})
        log.info("the rows of %d ended pilots have left the book", len(pilots))
        return pilots

    def _do(self, action: Action, now: float) -> bool:
        try:
            match action.deed:
                case "clear":
                    self._clear(action.job, now)
                case "seal":
                    self._journal.seal(action.job)
                case "purge":
                    self._journal.purge(action.job, at=now)
                case "record" if self._records is not None:
                    self._records.record(action.job)
        except PilotageError as fault:
            log.warning("job %s was not %s: %s", action.job, _DONE[action.deed], fault)
            return False
        except Exception:
            # Whatever is wrong with one job, the others are processed.
            log.exception("job %s was not %s", action.job, _DONE[action.deed])
            return False
        log.info("job %s was %s: %s", action.job, _DONE[action.deed], action.why)
        return True

    def _clear(self, job: str, now: float) -> None:
        row = self._journal.job(job)
        if row is None:
            return
        stream, n = self._identity()
        event = Event(
            source="service",
            stream=stream,
            n=n,
            type="Cleared",
            time=now,
            job=job,
            epoch=row.epoch,
            seen=self._journal.position(),
            data=msgspec.Raw(msgspec.json.encode(Cleared(by="timeout"))),
        )
        receipt = self._keep([event])
        if receipt.refused:
            raise JournalError(f"it could not be cleared: {receipt.refused[0].message}", subject=f"job {job}")
        if row.place == "sealed":
            self._journal.seal(job)  # the event unsealed it


_DONE: dict[Deed, str] = {"clear": "cleared", "seal": "sealed", "purge": "purged", "record": "recorded"}


def _action(deed: Deed, row: JobRow, since: float, seconds: float, what: str) -> Action:
    days = seconds / DAY_SECONDS
    return Action(deed=deed, job=row.job, since=since, why=f"{what} for {days:g} days or more" if days >= 1 else what)


class Housekeeping:
    """A thread that applies retention, through the single writer."""

    def __init__(
        self,
        journal: Journal,
        *,
        settings: RetentionSettings,
        writer: Writer,
        codec: Codec,
        clock: Clock,
        stream: str,
        done: Callable[[Action], None] | None = None,
        records: Records | None = None,
        besides: Callable[[], object] | None = None,
    ) -> None:
        """Nothing runs before `start`. `stream` must be new: events are numbered from one.

        `done` is called per action, and `besides` after each round.
        """
        self._done = done
        self._besides = besides
        self._every_seconds = settings.every_seconds
        self._writer = writer
        self._codec = codec
        self._clock = clock
        numbers = count(1)
        self._retention = Retention(
            journal, settings=settings, keep=self._keep, identity=lambda: (stream, next(numbers)), records=records
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def _keep(self, events: Sequence[Event]) -> Receipt:
        checked, refused = self._codec.check_all(events)
        return self._writer.submit(Batch(checked, refused, own=True)).result()

    def start(self) -> None:
        """Start, unless the settings say never."""
        if self._every_seconds > 0:
            self._thread.start()

    def stop(self) -> None:
        """End after the present job."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._every_seconds):
            PROCESS.ask()
            try:
                applied = self._retention.apply(self._clock.now(), enough=self._stop.is_set)
                if self._done is not None:
                    for action in applied.actions:
                        self._done(action)
                if self._besides is not None:
                    self._besides()
            except PilotageError as fault:
                log.warning("retention could not be applied, and is tried again next time: %s", fault)
            except Exception:
                log.exception("retention could not be applied, and is tried again next time")


# Clearing a finished job: its owner has the outputs, or their retention is over. The engine is not involved.


def clear_job(job: str, by: ClearedBy, *, journal: Journal, writer: Writer, codec: Codec, clock: Clock) -> Accepted:
    """Record durably that a job is cleared. Doing it again changes nothing. Raises `OperationRefused`."""
    row = journal.job(job)
    if row is None or row.state not in FINAL_NAMES:
        message = "there is no such job" if row is None else f"the job {job} is not over: {row.state}"
        code: RefusedCode = "unknown-job" if row is None else "job-unfinished"
        raise OperationRefused(
            Refused(code=code, message=message, subject=job, next_step="wait for its end, or kill it")
        )
    if row.cleared_at is not None:
        return Accepted(operation=0, events=0)
    # a stream of its own
    event = Event(
        source="service",
        stream=f"clear-{secrets.token_hex(6)}",
        n=1,
        type="Cleared",
        time=clock.now(),
        epoch=row.epoch,
        seen=journal.position(),
        job=job,
        data=msgspec.Raw(msgspec.json.encode(payloads.Cleared(by=by))),
    )
    checked = codec.check(event)
    assert isinstance(checked, Checked)
    writer.submit(Batch([checked], own=True)).result()
    return Accepted(operation=0, events=1)
