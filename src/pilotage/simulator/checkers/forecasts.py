"""Checks forecasts: at most one a minute, in order, within their bounds, of open jobs; and one outcome when the job ends."""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.book.codec import Checked
from pilotage.model.events.payloads import ForecastMade, ForecastScored
from pilotage.model.states import FINAL_NAMES
from pilotage.simulator.checkers.records import JobTrace, Record, Violation
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
