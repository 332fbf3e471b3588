"""Which events of a batch are new, and the row of each: repeats are told from conflicts, what nobody can place is parked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from operator import attrgetter
from typing import Any

import msgspec

from pilotage.book.codec import Checked, Codec, Refusal, RefusalCode
from pilotage.book.ledger import Ledger, PackageKey, PlainEvents, Sought
from pilotage.book.parked import parked_text, read_parked
from pilotage.book.rows import EventRow, JobRow, ParkedRow, StreamRow
from pilotage.book.streams import NO_RANGES, UNPACKED, Heard
from pilotage.model import payloads
from pilotage.model.events import Event

Name = tuple[str, str]
"""The source and the stream of an event."""
_encode = msgspec.json.Encoder().encode
_event_of: Callable[[Checked], Event] = attrgetter("event")
_name_of: Callable[[Event], Name] = attrgetter("source", "stream")
_job_of: Callable[[Event], str | None] = attrgetter("job")
_type_of: Callable[[Event], str] = attrgetter("type")


class JobsSealed(Exception):
    """Events came for jobs that have left the live book: bring them back and try again."""

    def __init__(self, jobs: Sequence[str]) -> None:
        """Name the jobs."""
        super().__init__(", ".join(jobs))
        self.jobs = tuple(jobs)


class Intake:
    """One batch, sorted: what is fresh, parked, repeated and refused, and the jobs it is about."""

    def __init__(
        self,
        ledger: Ledger,
        checked: Sequence[Checked],
        *,
        received: float,
        codec: Codec,
        skew_seconds: float,
        skewed: Collection[tuple[str, str]] = (),
    ) -> None:
        """Sort a batch; nothing is written. `skewed` are the (source, stream) whose senders have wrong clocks."""
        self._ledger = ledger
        self._received = received
        self._skew_seconds = skew_seconds
        self._skewed = skewed
        self.first = ledger.position() + 1
        self.fresh: list[Checked] = []  # at the positions from `first` on: not heard before, or waited for their job
        self.rows: list[tuple[Any, ...]] = []  # of fresh events, in the order of the columns of EventRow,
        self._plain_streams: list[int] = []  # and, of those that have the usual values, the id of their stream; else 0
        self.refused: list[Refusal] = []
        self.parked: list[ParkedRow] = []
        self.unparked: list[str] = []
        self.repeated = 0
        self.touched: dict[PackageKey, list[int]] = {}  # which of the fresh events are about each package,
        self.apart: list[int] = []  # and which are about none
        self.jobs: dict[str, JobRow] = {}
        self._streams: list[tuple[StreamRow, int]] = []  # with how far each was heard before
        self._heard: dict[int, Heard] = {}  # by stream_id: of those of which something came out of turn
        self._load(checked)
        self._sort(checked)
        self.parked_now = len(self.parked)
        self._unpark(codec)

    @property
    def position(self) -> int:
        """The position of the last event."""
        return self.first + len(self.fresh) - 1

    @property
    def plain(self) -> PlainEvents:
        """The fresh events that have the usual values."""
        job_ids = {row.job: row.job_id for row in self.jobs.values()}
        return PlainEvents(self.fresh, first=self.first, stream_ids=self._plain_streams, job_ids=job_ids)

    @property
    def others(self) -> list[Checked]:
        """Fresh events that are about no package, or tell of a computer too."""
        found = [self.fresh[at] for at in self.apart]
        if self._describes:
            found += [self.fresh[at] for told in self.touched.values() for at in told if _describes(self.fresh[at])]
        return found

    @property
    def streams(self) -> list[StreamRow]:
        """The streams that were heard further."""
        packed = {heard.packed().stream_id: heard.changed for heard in self._heard.values()}
        return [row for row, before in self._streams if row.watermark != before or packed.get(row.stream_id)]

    @property
    def forgotten(self) -> int:
        """How many numbers count as heard of which nothing is kept."""
        return sum(heard.forgotten for heard in self._heard.values())

    def _load(self, checked: Sequence[Checked]) -> None:
        events = list(map(_event_of, checked))
        self._names = list(map(_name_of, events))
        jobs = {job for job in set(map(_job_of, events)) if job is not None}
        self.jobs = {row.job: row for row in self._ledger.jobs(jobs)} if jobs else {}
        sealed = [row.job for row in self.jobs.values() if row.place == "sealed"]
        if sealed:
            raise JobsSealed(sealed)
        kinds = set(map(_type_of, events))
        self._registers, self._describes = "JobRegistered" in kinds, "NodeDescribed" in kinds
        names = set(self._names)
        streams = {(row.source, row.stream): row for row in self._ledger.streams(names)}
        for source, stream in sorted(names - streams.keys()):
            row = StreamRow(stream_id=self._ledger.next_stream_id(), source=source, stream=stream)
            streams[source, stream] = row
        self._streams = [(row, row.watermark) for row in streams.values()]
        self._skewed_ids = {streams[name].stream_id for name in self._skewed if name in streams}
        self._stream_of: dict[Name, StreamRow] = streams

    def _sort(self, checked: Sequence[Checked]) -> None:
        """Every event, once. This runs for each event there is, so it is written flat."""
        said: Iterable[tuple[Checked, Name]] = zip(checked, self._names, strict=True)
        if self._registers:
            # Registrations first: an event of a job that is registered beside it need not be parked.
            said = sorted(said, key=lambda one: one[0].event.type != "JobRegistered")
        repeats: list[tuple[Checked, int]] = []
        streams, jobs, received = self._stream_of, self.jobs, self._received
        fresh, touched, store = self.fresh, self.touched, self._plain_streams.append
        skewed = self._skewed_ids
        latest = received + self._skew_seconds if not skewed else -inf  # then each is looked at by itself
        purged = {row.job for row in jobs.values() if row.place == "purged"}
        for one, sender in said:
            event = one.event
            n, name, stream = event.n, event.job, streams[sender]
            job = jobs.get(name) if name is not None else None
            if purged and name in purged:
                self._heard_of(stream).forget(n)
                self._refuse(one, "purged", f"job {event.job} was purged: nothing more is kept of it")
                continue
            if n == stream.watermark + 1 and stream.ahead == NO_RANGES:  # what `Heard` does, for one that counts on
                stream.watermark = n
            elif not self._heard_of(stream).add(n):
                repeats.append((one, stream.stream_id))
                continue
            if job is not None and (place := one.place) is not None:
                at, (stage, line, number) = len(fresh), place
                told = touched.get(key := (job.job_id, stage, line, number))
                if told is None:
                    touched[key] = [at]
                else:
                    told.append(at)
                fresh.append(one)
                if event.epoch == 1 == event.version and event.time <= latest:
                    store(stream.stream_id)
                else:
                    store(0)
                    self._store(one, stream.stream_id, received, key, skewed=stream.stream_id in skewed)
            elif job is not None or name is None or isinstance(one.data, payloads.JobRegistered):
                if job is None and name is not None:
                    self._register(name)
                self._take(one, stream.stream_id, received, skewed=stream.stream_id in skewed)
            else:
                wrong = stream.stream_id in skewed or event.time > received + self._skew_seconds
                text = parked_text(event, skewed=wrong)
                row = ParkedRow(job=name, stream_id=stream.stream_id, n=n, received=received, event=text)
                self.parked.append(row)
        if repeats:
            self._compare(repeats)

    def _register(self, name: str) -> None:
        """A job comes into being: whatever speaks of it knows it from now on."""
        self.jobs[name] = JobRow(job_id=self._ledger.next_job_id(), job=name)
        self.unparked.append(name)

    def _take(self, one: Checked, stream_id: int, received: float, *, skewed: bool) -> None:
        """A fresh event of any kind."""
        key = self._key(one)
        told = self.touched.setdefault(key, []) if key is not None else self.apart
        told.append(len(self.fresh))
        self.fresh.append(one)
        self._plain_streams.append(0)
        self._store(one, stream_id, received, key, skewed=skewed)

    def _store(self, one: Checked, stream_id: int, received: float, key: PackageKey | None, *, skewed: bool) -> None:
        """Make the row of the last of the fresh events, whatever its values are; `skewed`: its sender's clock is wrong."""
        event = one.event
        job = self.jobs[event.job] if event.job is not None else None
        stage, line, number = key[1:] if key is not None else (0, 0, 0)
        self.rows.append((
            # in the order of the columns of EventRow
            self.position, stream_id, event.n, event.type, event.version, event.time, received,
            int(skewed or event.time > received + self._skew_seconds), event.epoch, event.seen,
            job.job_id if job is not None else None, stage, line, number, event.attempt or 0, event.pilot, event.site,
            _encode(event.data).decode(),
        ))  # fmt: skip

    def _heard_of(self, stream: StreamRow) -> Heard:
        """What was heard of a stream of which something may come out of turn; its row is packed again at the end."""
        heard = self._heard.get(stream.stream_id)
        if heard is None:
            heard = self._heard[stream.stream_id] = Heard(stream)
            stream.ahead = UNPACKED
        return heard

    def _compare(self, repeats: list[tuple[Checked, int]]) -> None:
        """A repeat with the same content is acknowledged; one with other content is refused."""
        first = {(stream_id, n): self.fresh[at - self.first].event for at, stream_id, n, *_ in self.rows}
        plain = zip(self.fresh, self._plain_streams, strict=True)
        first |= {(stream_id, one.event.n): one.event for one, stream_id in plain if stream_id}
        first |= {(row.stream_id, row.n): read_parked(row.event) for row in self.parked}
        wanted = [
            Sought(stream_id, one.event.n, self._key(one))
            for one, stream_id in repeats
            if (stream_id, one.event.n) not in first
        ]
        stored: dict[tuple[int, int], EventRow | ParkedRow] = {
            (row.stream_id, row.n): row for row in (self._ledger.stored(wanted) if wanted else ())
        }
        for one, stream_id in repeats:
            identity = (stream_id, one.event.n)
            row = stored.get(identity)
            if identity in first:
                same = _same(one.event, first[identity])
            elif isinstance(row, ParkedRow):
                same = _same(one.event, read_parked(row.event))
            else:
                # An event that is not where its subject has its events was about something else.
                same = row is not None and _same_row(one, row, self.jobs)
            if same:
                self.repeated += 1
            else:
                source, stream = one.event.source, one.event.stream
                self._refuse(
                    one,
                    "conflict",
                    f"{source} {stream} {one.event.n} is known with other content, or was heard and is no longer kept",
                )

    def _key(self, one: Checked) -> PackageKey | None:
        job = self.jobs.get(one.event.job) if one.event.job is not None else None
        place = one.place
        return (job.job_id, *place) if job is not None and place is not None else None

    def _unpark(self, codec: Codec) -> None:
        rows = [row for job in self.unparked for row in self._ledger.parked(job)]
        if not rows:
            return
        reader = codec.without_limits()  # these were acknowledged
        for row in rows:
            parked = read_parked(row.event)
            found = reader.check(parked)
            if isinstance(found, Checked):
                self._describes = self._describes or _describes(found)
                self._take(found, row.stream_id, row.received, skewed=parked.skewed)
            else:
                self.parked.append(row)  # written by a newer version: it waits for one

    def _refuse(self, one: Checked, code: RefusalCode, message: str) -> None:
        self.refused.append(Refusal(index=one.index, code=code, message=message))


def _describes(one: Checked) -> bool:
    return isinstance(one.data, payloads.NodeDescribed)


def _same(one: Event, other: Event) -> bool:
    return _comparable(one) == _comparable(other)


def _comparable(event: Event) -> tuple[object, ...]:
    return (
        event.type, event.version, event.time, event.epoch, event.seen, event.job, event.package, event.attempt,
        event.pilot, event.site, msgspec.json.decode(event.data),
    )  # fmt: skip


def _same_row(one: Checked, row: EventRow, jobs: dict[str, JobRow]) -> bool:
    event = one.event
    job = jobs.get(event.job) if event.job is not None else None
    return (
        event.type == row.type
        and event.version == row.version
        and event.time == row.time
        and (event.epoch, event.seen) == (row.epoch, row.seen)
        and (job.job_id if job is not None else None) == row.job_id
        and (one.place or (0, 0, 0)) == (row.stage, row.line, row.number)
        and (event.attempt or 0) == row.attempt
        and (event.pilot, event.site) == (row.pilot, row.site)
        and msgspec.json.decode(event.data) == msgspec.json.decode(row.data)
    )
