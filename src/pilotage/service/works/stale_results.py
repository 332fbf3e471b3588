"""Marks results as stale: a package was granted again with other contents, and a finished package read the earlier ones.

Nothing is run again for that: who wants it restarts the package, or runs the document again.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence

import msgspec

from pilotage.book.codec import Codec
from pilotage.book.query import Query, parse
from pilotage.book.rows.rows import EventRow, JobRow
from pilotage.engine.engine import Engine
from pilotage.engine.state.jobs import JobState, PackageStatus
from pilotage.language import Expansion
from pilotage.language.named_files import consumed_by
from pilotage.model.events.events import Event, parse_dotted
from pilotage.model.events.file_payloads import InputsRemade, RemadeInput
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports import Clock, Journal
from pilotage.reading.stale_results import remade_inputs
from pilotage.service.journal.writer import Batch
from pilotage.service.works.manifests import Manifests

log = logging.getLogger(__name__)

_EVENTS_AT_ONCE = 1000
_GRANTED = parse("type = CommitGranted")
_CREATED = parse("type = AttemptCreated")


class StaleResults:
    """Compares what a package is granted again with what its finished consumers read; for one thread."""

    def __init__(
        self,
        expansion_of: Callable[[str], Expansion | None],
        manifests: Manifests,
        *,
        journal: Journal,
        write: Callable[[Batch], object],
        codec: Codec,
        clock: Clock,
    ) -> None:
        """Take the expansions of jobs, what their attempts made, and the book; `write` puts events into it and does not wait."""
        self._expansion_of = expansion_of
        self._manifests = manifests
        self._journal = journal
        self._write = write
        self._codec = codec
        self._clock = clock

    def note(self, engine: Engine, ref: AttemptRef) -> None:
        """An attempt was granted: record whose results it makes stale, or no longer stale."""
        state, place = engine.state.jobs.by_id.get(ref.job), parse_dotted(ref.package)
        number = (
            state.number((place.stage, place.line, place.number)) if state is not None and place is not None else None
        )
        if state is None or number is None or state.epoch_of(number) == 1:
            return
        row, expansion = self._journal.job(ref.job), self._expansion_of(ref.job)
        if row is None or expansion is None:
            return
        # By attempt, in the order of the book; the last one is this one, unless a later one was granted meanwhile.
        grants = [event for event in self._events(row, ref.package, _GRANTED) if event.attempt <= ref.attempt]
        now = {file.name: file.sha256 for file in self._manifests.of(ref) or ()}
        events = [
            self._event(row, state.dotted(consumer), data, epoch=state.epoch_of(consumer))
            for consumer in state.consumers(number)
            if state.status[consumer] == PackageStatus.DONE
            and (data := self._compared(row, state, expansion, (number, consumer), grants, now)) is not None
        ]
        for start in range(0, len(events), _EVENTS_AT_ONCE):
            part = events[start : start + _EVENTS_AT_ONCE]
            self._write(Batch(*self._codec.check_all(part), own=True))

    def _compared(
        self,
        row: JobRow,
        state: JobState,
        expansion: Expansion,
        packages: tuple[int, int],
        grants: Sequence[EventRow],
        now: dict[str, str],
    ) -> InputsRemade | None:
        """What the book should say of a consumer; None if it says so already."""
        maker, consumer = packages
        place, granted = state.dotted(consumer), state.granted[consumer]
        begun = [each.position for each in self._events(row, place, _CREATED) if each.attempt == granted]
        read_from = [each for each in grants if begun and each.position < begun[0]]
        if not read_from or read_from[-1] is grants[-1]:
            return None  # it has read the present ones
        earlier = AttemptRef(row.job, state.dotted(maker), read_from[-1].attempt)
        read = consumed_by(
            expansion, consumer, captured=(), granted={maker}, manifest_of=lambda _: self._manifests.of(earlier)
        )
        files = tuple(
            RemadeInput(name=each.name, read_sha256=each.made.sha256, sha256=now[each.name])
            for each in read
            if each.made is not None and now.get(each.name, each.made.sha256) != each.made.sha256
        )
        names = {each.name for each in read if each.made is not None}
        known = remade_inputs(self._journal, row, parse_dotted(place), granted=granted)
        found = (*(each for each in known if each.name not in names), *files)
        return InputsRemade(granted=granted, files=found) if found != known else None

    def _events(self, row: JobRow, package: str, query: Query) -> Iterator[EventRow]:
        place, after, more = parse_dotted(package), 0, True
        while more:
            page = self._journal.find_events(query, after=after, limit=_EVENTS_AT_ONCE, job=row, place=place)
            for event in (each.row for each in page.items):
                after = event.position
                yield event
            more = page.more
            after = page.scanned_to if page.scanned_to is not None else after

    def _event(self, row: JobRow, package: str, data: InputsRemade, *, epoch: int) -> Event:
        names = ", ".join(each.name for each in data.files)
        log.warning(
            "%s/%s is %s", row.job, package, f"stale: {names} was made again" if names else "not stale any more"
        )
        return Event(
            source="service",
            stream=f"stale-{secrets.token_hex(6)}",  # a stream of its own
            n=1,
            type=InputsRemade.__name__,
            time=self._clock.now(),
            epoch=epoch,
            seen=self._journal.position(),
            job=row.job,
            package=package,
            data=msgspec.Raw(msgspec.json.encode(data)),
        )
