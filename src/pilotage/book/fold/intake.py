"""Sorts a batch: new events with their rows, duplicates, conflicts, and events to park."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import Any

import msgspec
from msgspec.structs import replace

from pilotage.book.codec import Checked, Codec, Refusal, RefusalCode
from pilotage.book.rows.ledger import EventLookup, Ledger, OfStreams, PackageKey, PlainEvents, cached_streams
from pilotage.book.rows.rows import EventRow, JobRow, ParkedRow, StreamRow
from pilotage.book.rows.streams import NO_RANGES, ReceivedNumbers
from pilotage.model.events import payloads
from pilotage.model.events.events import JUMP_MAX, SOURCE_RANKS, Event

# The received numbers of each stream of a batch: most streams continue without a gap, and need only a number.

Name = tuple[str, str]
"""The source and the stream of an event."""
OUT_OF_TURN = -1
"""In place of a stream's last number: it has gaps, or is unknown."""


class BatchStreams:
    """The streams of one batch. Hot loops may read `last_numbers` and write `counted` directly."""

    __slots__ = ("_checked", "_ledger", "_out_of_turn", "_rows", "counted", "ids", "last_numbers")

    def __init__(self, ledger: Ledger, checked: Sequence[Checked]) -> None:
        """Use the ledger's streams in memory; without these, load those of the batch."""
        self._ledger = ledger
        self._checked = checked
        self._rows: dict[Name, StreamRow] = {}  # of the whole batch, or empty
        self._out_of_turn: dict[Name, ReceivedNumbers] = {}
        self.ids: OfStreams = {}
        self.last_numbers: OfStreams = {}  # last numbers before this batch, of streams without gaps,
        self.counted: dict[str, dict[str, int]] = {source: {} for source in SOURCE_RANKS}  # and with it
        cached = cached_streams(ledger)
        if cached is None:
            self._load()
        else:
            self.ids, self.last_numbers = cached

    def _load(self) -> None:
        """Load the streams of the whole batch; makes new ones."""
        names: set[Name] = {(event.source, event.stream) for event in [one.event for one in self._checked]}
        self._rows = rows = {(row.source, row.stream): row for row in self._ledger.streams(names)}
        for source, stream in sorted(names - rows.keys()):
            row = StreamRow(stream_id=self._ledger.next_stream_id(), source=source, stream=stream)
            rows[source, stream] = row
        ids: dict[str, dict[str, int]] = {source: {} for source in SOURCE_RANKS}
        last_numbers: dict[str, dict[str, int]] = {source: {} for source in SOURCE_RANKS}
        for (source, stream), row in rows.items():
            ids[source][stream] = row.stream_id
            if row.ahead == NO_RANGES:
                last_numbers[source][stream] = row.watermark
        self.ids, self.last_numbers = ids, last_numbers

    def id_of(self, event: Event) -> int:
        """The stream id of an event."""
        if event.stream not in self.ids[event.source]:
            self._load()
        return self.ids[event.source][event.stream]

    def hear(self, event: Event) -> bool:
        """Note an event; returns whether it is new."""
        self.id_of(event)
        mine, stream = self.counted[event.source], event.stream
        before = mine.get(stream)
        if before is None:
            before = self.last_numbers[event.source].get(stream, OUT_OF_TURN)
        if event.n == before + 1:
            mine[stream] = event.n
            return True
        return self._heard_of(event).add(event.n)

    def jumps(self, event: Event) -> bool:
        """Tell whether an event's number is so far beyond its stream that it cannot belong to it."""
        return event.n > JUMP_MAX and event.n > self._heard_of(event).reach

    def forget(self, event: Event) -> None:
        """Count an event as received without storing it."""
        self._heard_of(event).forget(event.n)

    def _heard_of(self, event: Event) -> ReceivedNumbers:
        """The received numbers of a stream that may have gaps."""
        name = event.source, event.stream
        heard = self._out_of_turn.get(name)
        if heard is None:
            if name not in self._rows:
                self._load()
            row, mine = self._rows[name], self.counted[event.source]
            heard = ReceivedNumbers(replace(row, watermark=mine.get(event.stream, row.watermark)))
            self._out_of_turn[name] = heard
            mine[event.stream] = OUT_OF_TURN
        return heard

    @property
    def forgotten(self) -> int:
        """How many numbers count as received without a stored event."""
        return sum(heard.forgotten for heard in self._out_of_turn.values())

    def result(self) -> tuple[list[StreamRow], OfStreams]:
        """The changed rows of streams, and the new last numbers of those without gaps."""
        changed: list[StreamRow] = []
        for (source, stream), heard in self._out_of_turn.items():
            before, row = self._rows[source, stream], heard.packed()
            if (before.watermark, before.ahead) != (row.watermark, row.ahead):
                changed.append(row)
            del self.counted[source][stream]
        if not self._rows:
            return changed, self.counted
        for source, counted in self.counted.items():
            for stream, n in counted.items():
                changed.append(row := self._rows[source, stream])
                row.watermark = n
        return changed, {}


# The text of a parked event: the event as received, and whether its sender's clock was wrong.


class ParkedEvent(Event, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A parked event."""

    skewed: bool = False


_decoder = msgspec.json.Decoder(ParkedEvent)
_encode = msgspec.json.Encoder().encode


def parked_text(event: Event, *, skewed: bool) -> str:
    """Encode a parked event; if not skewed, exactly as on the wire."""
    text = _encode(event).decode()
    return f'{{"skewed":true,{text[1:]}' if skewed else text


def read_parked(text: str) -> ParkedEvent:
    """Decode a parked event."""
    return _decoder.decode(text)


EventsByPackage = dict[PackageKey, int | list[int]]
"""For each package, the number of its fresh event, or their numbers; most have one."""


class JobsSealed(Exception):
    """Events arrived for sealed jobs: unseal them and try again."""

    def __init__(self, jobs: Sequence[str]) -> None:
        super().__init__(", ".join(jobs))
        self.jobs = tuple(jobs)


class Intake:
    """One batch, sorted into fresh, parked, repeated and refused events, with its jobs."""

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
        """Sort a batch; writes nothing. `skewed` are the (source, stream) of senders with a wrong clock."""
        self._ledger = ledger
        self._received = received
        self._skew_seconds = skew_seconds
        self._skewed = frozenset(skewed)
        self.first = ledger.position() + 1
        self.fresh: list[Checked] = []  # at the positions from `first` on: new, or unparked
        self.rows: list[tuple[Any, ...]] = []  # fresh events with unusual values, as EventRow
        self.refused: list[Refusal] = []
        self.parked: list[ParkedRow] = []
        self.unparked: list[str] = []
        self.repeated = 0
        self.touched: EventsByPackage = {}
        self.apart: list[int] = []  # numbers of fresh events without a package
        self.jobs: dict[str, JobRow] = {}
        self._job_ids: dict[str | None, int] = {}  # of jobs whose events are stored
        self._repeats: list[Checked] = []
        self._load_jobs(checked)
        self.hearing = BatchStreams(ledger, checked)
        self._sort(checked)
        self.parked_now = len(self.parked)
        self._unpark(codec)

    @property
    def position(self) -> int:
        """The position of the last event."""
        return self.first + len(self.fresh) - 1

    @property
    def plain(self) -> PlainEvents:
        """The fresh events with default values."""
        others = {row[0] for row in self.rows}
        return PlainEvents(self.fresh, first=self.first, but=others, stream_ids=self.hearing.ids, job_ids=self._job_ids)

    def events_of(self, package: PackageKey) -> Sequence[int]:
        """The numbers of a package's fresh events."""
        found = self.touched[package]
        return (found,) if isinstance(found, int) else found

    def _load_jobs(self, checked: Sequence[Checked]) -> None:
        jobs = {job for job in {one.event.job for one in checked} if job is not None}
        self.jobs = {row.job: row for row in self._ledger.jobs(jobs)} if jobs else {}
        sealed = [row.job for row in self.jobs.values() if row.place == "sealed"]
        if sealed:
            raise JobsSealed(sealed)
        self._job_ids = {row.job: row.job_id for row in self.jobs.values() if row.place != "purged"}
        self._is_known = len(self.jobs) == len(jobs)

    def _sort(self, checked: Sequence[Checked]) -> None:
        """Sort each event. This runs for every event, so it is written as one flat loop."""
        ordered = checked
        if not self._is_known:
            # Registrations first: an event of a job in the same batch need not be parked.
            ordered = sorted(checked, key=lambda one: one.event.type != "JobRegistered")
        job_ids, fresh, touched, hearing = self._job_ids, self.fresh, self.touched, self.hearing
        last_numbers, counted = hearing.last_numbers, hearing.counted
        # If any sender's clock is wrong, each event is checked on its own.
        latest = self._received + self._skew_seconds if not self._skewed else -inf
        at = len(fresh)
        source, stream, n, mine = "", "", OUT_OF_TURN, counted["service"]
        for one in ordered:
            event, place = one.event, one.place
            job_id = job_ids.get(event.job)
            if job_id is None or place is None:
                self._sort_other(one)
                at, stream = len(fresh), ""
                continue
            if event.stream is stream and event.source is source and event.n == n + 1:  # mostly runs of one stream
                mine[stream] = n = event.n
            else:
                n, source, stream = event.n, event.source, event.stream
                mine = counted[source]
                before = mine.get(stream)
                if before is None:
                    before = last_numbers[source].get(stream, OUT_OF_TURN)
                if n == before + 1:  # `BatchStreams.hear`, inlined for a stream without a gap
                    mine[stream] = n
                else:
                    stream = ""  # look the next stream up again
                    if not self._is_new(one):
                        continue
            stage, line, number = place
            earlier = touched.setdefault(key := (job_id, stage, line, number), at)
            if earlier is at:
                pass  # the usual case: the first event of its package
            elif isinstance(earlier, int):
                touched[key] = [earlier, at]
            else:
                earlier.append(at)
            fresh.append(one)
            at += 1
            if event.epoch != 1 or event.version != 1 or event.time > latest:
                self._store(one, hearing.id_of(event), self._received, key, skewed=self._is_skewed(event))
        if self._repeats:
            self._compare(self._repeats)

    def _sort_other(self, one: Checked) -> None:
        """An event without a package, or of a job whose events are not simply stored."""
        event, received = one.event, self._received
        name = event.job
        if name is not None and name in self.jobs and name not in self._job_ids:
            self.hearing.forget(event)
            self._refuse(one, "purged", f"job {name} was purged: its events are no longer stored")
            return
        if not self._is_new(one):
            return
        stream_id = self.hearing.id_of(event)
        if name is None or name in self.jobs or isinstance(one.data, payloads.JobRegistered):
            if name is not None and name not in self.jobs:
                self._register(name)
            self._take(one, stream_id, received, skewed=self._is_skewed(event))
            return
        text = parked_text(event, skewed=self._is_skewed(event))
        self.parked.append(ParkedRow(job=name, stream_id=stream_id, n=event.n, received=received, event=text))

    def _is_new(self, one: Checked) -> bool:
        """Tell whether an event is new; refuses a number far out of range."""
        event = one.event
        if event.n > JUMP_MAX and self.hearing.jumps(event):
            source, stream = event.source, event.stream
            self._refuse(
                one,
                "jumped",
                f"{event.n} is far beyond the last number of {source} {stream}: numbers must be consecutive",
            )
            return False
        if not self.hearing.hear(event):
            self._repeats.append(one)
            return False
        return True

    def _is_skewed(self, event: Event) -> bool:
        """Tell whether the sender of an event has a wrong clock."""
        return event.time > self._received + self._skew_seconds or (event.source, event.stream) in self._skewed

    def _register(self, name: str) -> None:
        """Register a job: its other events can be stored from now on."""
        self.jobs[name] = row = JobRow(job_id=self._ledger.next_job_id(), job=name)
        self._job_ids[name] = row.job_id
        self.unparked.append(name)

    def _take(self, one: Checked, stream_id: int, received: float, *, skewed: bool) -> None:
        """Take a fresh event of any kind."""
        key = self._key(one)
        if key is None:
            self.apart.append(len(self.fresh))
        elif key in self.touched:
            self.touched[key] = [*self.events_of(key), len(self.fresh)]
        else:
            self.touched[key] = len(self.fresh)
        self.fresh.append(one)
        self._store(one, stream_id, received, key, skewed=skewed)

    def _store(self, one: Checked, stream_id: int, received: float, key: PackageKey | None, *, skewed: bool) -> None:
        """Make the row of the last fresh event, with any values; `skewed`: its sender's clock is wrong."""
        event = one.event
        job = self.jobs[event.job] if event.job is not None else None
        stage, line, number = key[1:] if key is not None else (0, 0, 0)
        self.rows.append((
            # as the columns of EventRow
            self.position, stream_id, event.n, event.type, event.version, event.time, received,
            int(skewed or event.time > received + self._skew_seconds), event.epoch, event.seen,
            job.job_id if job is not None else None, stage, line, number, event.attempt or 0, event.pilot, event.site,
            _encode(event.data).decode(),
        ))  # fmt: skip

    def _compare(self, repeats: Sequence[Checked]) -> None:
        """Acknowledge a duplicate with the same content; refuse one with other content."""
        parked = (read_parked(row.event) for row in self.parked)
        first = {_identity(event): event for event in (*(one.event for one in self.fresh), *parked)}
        ids = [self.hearing.id_of(one.event) for one in repeats]
        wanted = [
            EventLookup(stream_id, one.event.n, self._key(one))
            for one, stream_id in zip(repeats, ids, strict=True)
            if _identity(one.event) not in first
        ]
        stored: dict[tuple[int, int], EventRow | ParkedRow] = {
            (row.stream_id, row.n): row for row in (self._ledger.stored(wanted) if wanted else ())
        }
        for one, stream_id in zip(repeats, ids, strict=True):
            known, row = first.get(_identity(one.event)), stored.get((stream_id, one.event.n))
            if known is not None:
                same = _same(one.event, known)
            elif isinstance(row, ParkedRow):
                same = _same(one.event, read_parked(row.event))
            else:
                # An event that is not among those of its subject was about something else.
                same = row is not None and _same_row(one, row, self.jobs)
            if same:
                self.repeated += 1
            else:
                source, stream = one.event.source, one.event.stream
                self._refuse(
                    one,
                    "conflict",
                    f"{source} {stream} {one.event.n} is known with other content, or was received and is no longer stored",
                )

    def _key(self, one: Checked) -> PackageKey | None:
        job = self.jobs.get(one.event.job) if one.event.job is not None else None
        place = one.place
        return (job.job_id, *place) if job is not None and place is not None else None

    def _unpark(self, codec: Codec) -> None:
        rows = [row for job in self.unparked for row in self._ledger.parked(job)]
        if not rows:
            return
        reader = codec.without_limits()  # these were acknowledged before
        for row in rows:
            parked = read_parked(row.event)
            found = reader.check(parked)
            if isinstance(found, Checked):
                self._take(found, row.stream_id, row.received, skewed=parked.skewed)
            else:
                self.parked.append(row)  # from a newer version: it stays parked

    def _refuse(self, one: Checked, code: RefusalCode, message: str) -> None:
        self.refused.append(Refusal(index=one.index, code=code, message=message))


def _identity(event: Event) -> tuple[str, str, int]:
    return event.source, event.stream, event.n


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
