"""The decisions of the engine: each is an event, folded at once and handed over with the others of its turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pilotage.book.codec import Checked
from pilotage.engine.state.clock import EngineClock
from pilotage.engine.state.jobs import JobState
from pilotage.model.events.events import Event, SubjectKind
from pilotage.model.events.payloads import Payload
from pilotage.model.exchange.operations import Effect

ENGINE_STREAM = "engine"
"""The stream of the decisions. There is one engine; the journal admits one writer."""

Fold = Callable[..., Any]
"""Applies an event to the state; called with the state, the event's subject, the event and its payload."""

_encode = msgspec.json.Encoder().encode


class Folds(msgspec.Struct, frozen=True):
    """Maps each payload type to its fold. `after` checks a watched job; it gets the package of the event, if any."""

    package: Mapping[type[Payload], Fold]
    job: Mapping[type[Payload], Fold]
    other: Mapping[type[Payload], Fold]
    after: Callable[[Any, JobState, int | None], None]


class DecisionLog:
    """Numbers, encodes and folds decisions. The folds are injected, so a decision can be written without importing them."""

    __slots__ = (
        "_clock",
        "_folds",
        "_last_payload",
        "_last_text",
        "_package_folds",
        "_state",
        "book_position",
        "effects",
        "next_number",
        "start_position",
        "unsent",
    )

    def __init__(self, state: object, clock: EngineClock, folds: Folds) -> None:
        """Start with no decision; `state` is the state that the folds change."""
        self._state = state
        self._clock = clock
        self._folds = folds
        self._package_folds = folds.package
        self.next_number = 1  # of the next decision
        self.book_position = 0  # the last position seen
        self.start_position = 0
        self.unsent: list[Checked] = []  # decisions not handed over yet
        self.effects: list[Effect] = []  # actions not handed over yet
        # Many payloads without content of their own follow one another: each is encoded once.
        self._last_payload: Payload | None = None
        self._last_text = msgspec.Raw()

    def fold(self, event: Event, data: Payload, job: JobState | None, number: int | None) -> None:
        """Apply an event to the state."""
        if number is not None:
            if (fold := self._package_folds.get(type(data))) is not None:
                fold(self._state, job, number, event, data)
                if job is not None and job.watched:
                    self._folds.after(self._state, job, number)
        elif event.job is not None:
            if (fold := self._folds.job.get(type(data))) is not None:
                fold(self._state, job, event, data)
                if job is not None and job.watched:
                    self._folds.after(self._state, job, None)
        elif (fold := self._folds.other.get(type(data))) is not None:
            fold(self._state, event, data)

    def write(
        self,
        data: Payload,
        *,
        job: JobState | None = None,
        number: int | None = None,
        attempt: int | None = None,
        epoch: int = 1,
        pilot: str | None = None,
        site: str | None = None,
        name: str = "",
    ) -> None:
        """Make the event, fold it, and keep it for the next hand-over. `name` is the id of a new job."""
        if number is not None:
            assert job is not None
            self.write_of(data, job, number, attempt, epoch)
            return
        if data is not self._last_payload:
            self._last_payload, self._last_text = data, msgspec.Raw(_encode(data))
        event = Event(
            source="service",
            stream=ENGINE_STREAM,
            n=self.next_number,
            type=type(data).__name__,
            time=self._clock.wall_time,
            job=job.id if job is not None else name or None,
            pilot=pilot,
            site=site,
            epoch=epoch,
            seen=self.book_position,
            data=self._last_text,
        )
        self.next_number += 1
        kind: SubjectKind = "pilot" if pilot is not None else "job" if site is None else "site"
        self.unsent.append(Checked(0, event, kind, None, data))
        self.fold(event, data, job, None)

    def write_of(
        self,
        data: Payload,
        job: JobState,
        number: int,
        attempt: int | None,
        epoch: int,
        text: msgspec.Raw | None = None,
    ) -> None:
        """As `write`, for a package or an attempt, the usual case. `text` is the encoded payload, if known."""
        if text is None:
            if data is not self._last_payload:
                self._last_payload, self._last_text = data, msgspec.Raw(_encode(data))
            text = self._last_text
        dotted, place = job.named(number)
        kind, n = type(data), self.next_number
        event = Event(
            "service", ENGINE_STREAM, n, kind.__name__, self._clock.wall_time, job.id, dotted, attempt, None, None,
            epoch, self.book_position, 1, text,
        )  # fmt: skip
        self.next_number = n + 1
        self.unsent.append(Checked(0, event, "package" if attempt is None else "attempt", place, data))
        if (fold := self._package_folds.get(kind)) is not None:
            fold(self._state, job, number, event, data)
            if job.watched:
                self._folds.after(self._state, job, number)
