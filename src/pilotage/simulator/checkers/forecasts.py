"""Checks forecasts, and the latencies that they are made from.

At most one forecast a minute, in order, within its bounds, of an open job, and one outcome when the job ends. Every start of a
pilot counts once as a latency, also after restarts, and pilots without an answer are named.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.book.codec import Checked
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import (
    AttemptStarted,
    ForecastMade,
    ForecastScored,
    PilotEnded,
    PilotRequested,
    PilotStarted,
    SiteLatencies,
)
from pilotage.model.states import FINAL_NAMES
from pilotage.simulator.checkers.records import JobTrace, Record, Rules, Violation
from pilotage.simulator.checkers.times import Times

FORECASTS = "forecasts"
EVERY_SECONDS = 60.0
_ROUNDING_SECONDS = 0.01
_PARTLY = ("done", "failed")  # outcomes of a job whose packages are all over


class _Open:
    """The forecasts of a job since it was last over."""

    __slots__ = ("at", "number")

    def __init__(self) -> None:
        self.number = 0
        self.at = 0.0  # of the last, in true time


class Forecasts:
    """The forecasts of every job."""

    def __init__(self, record: Record, times: Times) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._times = times
        self._open: dict[str, _Open] = {}

    def on_written(self, checked: Checked) -> None:
        """An event is durable, and recorded."""
        data, event = checked.data, checked.event
        if isinstance(data, ForecastMade):
            self._on_made(self._record.job(event.job or ""), data, event.time, self._record.time_of(event))
        elif isinstance(data, ForecastScored):
            self._on_scored(self._record.job(event.job or ""), data)

    def _on_made(self, job: JobTrace, data: ForecastMade, stated: float, at: float) -> None:
        if not stated - _ROUNDING_SECONDS <= data.low_at <= data.median_at <= data.high_at:
            raise self._broken(f"{data.low_at:.1f}, {data.median_at:.1f}, {data.high_at:.1f} is no interval", job)
        if job.cancelled or job.aborted or not job.accepted:
            raise self._broken("the end of a job is forecast that is over, or was not accepted", job)
        if not data.packages or (job.plan is not None and data.packages > job.plan.count):
            raise self._broken(f"{data.packages} packages are said to be left", job)
        known = self._open.setdefault(job.name, _Open())
        if data.number != known.number + 1:
            raise self._broken(f"forecast {data.number} follows forecast {known.number}", job)
        since = at - known.at
        if known.number and since + _ROUNDING_SECONDS < EVERY_SECONDS and not self._times.was_set(known.at, at):
            raise self._broken(f"two forecasts within {since:.1f} s", job)
        known.number, known.at = data.number, at

    def _on_scored(self, job: JobTrace, data: ForecastScored) -> None:
        known = self._open.pop(job.name, None)
        if known is None or data.forecasts != known.number:
            count = known.number if known is not None else 0
            raise self._broken(f"the outcome of {data.forecasts} forecasts, and {count} were made", job)
        if (data.outcome == "cancelled") != job.cancelled or (data.outcome == "aborted") != (
            job.aborted and not job.cancelled
        ):
            raise self._broken(f"a job that is not {data.outcome} is said to be", job)
        if data.outcome in _PARTLY and (left := self._left(job)):
            raise self._broken(f"the outcome is written, and {left} is not over", job)

    def check_finished(self, states: Mapping[tuple[str, str], str]) -> None:
        """The run is over: a job that had a forecast and is over has an outcome."""
        over: dict[str, bool] = {}
        for (name, place), state in states.items():
            package = self._record.job(name).packages.get(place)
            final = state in FINAL_NAMES or (package is not None and package.dropped)
            over[name] = over.get(name, True) and final
        for name in self._open:
            job = self._record.job(name)
            late = any(stage not in job.expanded for stage in job.late)
            if (over.get(name, False) and not late) or job.cancelled or job.aborted:
                raise self._broken("the job is over, and its forecasts have no outcome", job)

    def _left(self, job: JobTrace) -> str:
        """A package of a job that is not over, by its events; a package without events is not."""
        for number in range(job.plan.count) if job.plan is not None else ():
            package = job.by_number.get(number)
            if package is None or not (package.ended or package.dropped):
                return job.name_of(number)
        return ""

    def _broken(self, message: str, job: JobTrace) -> Violation:
        return self._record.broken_job(FORECASTS, message, job)


LATENCIES = "latencies"
_CLOCK_SECONDS = 60.0  # by which the clock of a pilot may be off, and its start counts after a restart
_LONGEST_SECONDS = 30 * 86_400.0


class _SiteTrace:
    """The requests of a site, and what came of them."""

    __slots__ = ("started", "surely_started", "unanswered")

    def __init__(self) -> None:
        self.unanswered: dict[str, float] = {}  # by key: when it was requested
        self.started: set[str] = set()
        self.surely_started: set[str] = set()  # before the end of the request, with a clock that is right


class Latencies:
    """The pilots of every site, as the book tells of them."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share the record of the other checkers; an earlier service may have recorded starts."""
        self._record = record
        self._known_starts = rules.known_starts
        self._sites: dict[str, _SiteTrace] = {}
        self._requested: dict[str, tuple[str, float]] = {}  # by key: its site, and when
        self._bound_starts = 0

    def on_written(self, checked: Checked) -> None:
        """An event is durable, and recorded."""
        event, data = checked.event, checked.data
        if isinstance(data, PilotRequested) and event.pilot is not None:
            if event.pilot not in self._requested:
                self._requested[event.pilot] = (data.site, event.time)
                self._site(data.site).unanswered[event.pilot] = event.time
        elif isinstance(data, PilotStarted):
            self._on_started(event, data)
        elif isinstance(data, PilotEnded) and event.pilot in self._requested:
            self._site(self._requested[event.pilot][0]).unanswered.pop(event.pilot, None)
        elif isinstance(data, AttemptStarted) and event.source == "service":
            self._bound_starts += 1
        elif isinstance(data, SiteLatencies) and event.site is not None:
            self._on_recorded(event.site, data)

    def _site(self, name: str) -> _SiteTrace:
        return self._sites.setdefault(name, _SiteTrace())

    def _on_started(self, event: Event, data: PilotStarted) -> None:
        site, requested_at = self._requested.get(data.request or "", ("", 0.0))
        if site != data.site or data.request is None or event.stream != event.pilot:
            return
        trace = self._site(site)
        was_queued = trace.unanswered.pop(data.request, None) is not None
        trace.started.add(data.request)
        if was_queued and -_CLOCK_SECONDS <= event.time - requested_at <= _LONGEST_SECONDS:
            trace.surely_started.add(data.request)

    def _on_recorded(self, name: str, data: SiteLatencies) -> None:
        trace = self._site(name)
        before = self._known_starts.get(name, 0)
        least, most = before + len(trace.surely_started), before + len(trace.started) + self._bound_starts
        if not least <= data.starts <= most:
            message = f"{data.starts} starts were recorded, and there were {least} to {most}"
            raise self._record.broken_stream(LATENCIES, message, name)
        numbers = sorted(int(key.rpartition("-")[2]) for key in trace.unanswered)
        if list(data.unanswered) != numbers:
            message = f"{list(data.unanswered)} were recorded as unanswered, and {numbers} are"
            raise self._record.broken_stream(LATENCIES, message, name)
