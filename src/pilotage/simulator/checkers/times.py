"""Checks times: pilots given up too early, attempts without enough time, reservations without a pilot.

What is known of a pilot is what its exchanges stated when they reached the service. If the service may know more, or
learn it later, it is believed.
"""

from __future__ import annotations

import math
from collections import deque

from pilotage.model.exchange.exchange import Exchange
from pilotage.model.resources import Capacity, Demand, lacking
from pilotage.simulator.checkers.attempts import LEASES, ROOMS, demand_of
from pilotage.simulator.checkers.records import AttemptTrace, PackageTrace, Record, Rules, Violation

WAITING = "waiting"
_REMEMBERED = 200  # exchanges of a pilot: more than can arrive while a decision waits to be written
_ROUNDING_SECONDS = 0.01
_KNOWN_BY_THEMSELVES = ("rescheduled", "dropped", "outrun", "healed", "regrouped")  # losses without a part of the pilot


class _PilotHistory:
    """What one pilot stated."""

    __slots__ = ("began_at", "capacity", "ended_at", "ends_at", "exchanges", "sequence", "site")

    def __init__(self, exchange: Exchange, now: float) -> None:
        self.site = exchange.site
        self.began_at = now
        self.ended_at = math.inf  # by the book
        self.capacity = Capacity()
        self.ends_at = -math.inf  # the latest time that any of its exchanges allows
        self.sequence = 0
        self.exchanges: deque[float] = deque(maxlen=_REMEMBERED)

    def last_exchange_before(self, time: float) -> float:
        """The last exchange before a time; minus infinity if unknown."""
        return next((each for each in reversed(self.exchanges) if each < time), -math.inf)


class Times:
    """Every pilot that made contact, and when."""

    def __init__(self, record: Record, rules: Rules) -> None:
        """Share the record of the other checkers."""
        self._record = record
        self._rules = rules
        self._histories: dict[str, _PilotHistory] = {}
        self._at_site: dict[str, list[_PilotHistory]] = {}
        self._began_at = -math.inf
        # The step after a change of the clock, the largest leap of the engine's time, and how long it stood still.
        self._clock_set: list[tuple[float, float, float]] = []

    def on_clock_set(self, *, since: float, due: float, now: float) -> None:
        """The clock was set between two steps: the engine's time leaps beyond its wake-up time, or stands still."""
        leapt = max(due, since) + self._rules.late_seconds - now
        self._clock_set.append((now, max(0.0, leapt), now - since))

    def was_set(self, since: float, until: float) -> bool:
        """Whether the clock was set between two times."""
        return any(since <= time <= until for time, _, _ in self._clock_set)

    def _leapt(self, since: float, until: float) -> float:
        """How much more time the engine may believe to have passed."""
        return sum(leapt for time, leapt, _ in self._clock_set if since <= time <= until)

    def _stood_still(self, since: float, until: float) -> float:
        """How much less time the engine may believe to have passed."""
        return sum(still for time, _, still in self._clock_set if since <= time <= until)

    def on_service_began(self, now: float) -> None:
        """The service started: messages to the previous one may have been lost."""
        self._began_at = now
        for history in self._histories.values():
            history.sequence = 0
            history.exchanges.clear()

    def on_exchange(self, exchange: Exchange, now: float) -> None:
        """An exchange reached the service. Of an outdated one only the events count."""
        history = self._histories.get(exchange.pilot)
        if history is None:
            history = self._histories[exchange.pilot] = _PilotHistory(exchange, now)
            self._at_site.setdefault(exchange.site, []).append(history)
        if exchange.sequence <= history.sequence:
            return
        history.sequence = exchange.sequence
        history.capacity = exchange.capacity
        history.exchanges.append(now)
        left = exchange.remaining_seconds
        history.ends_at = max(history.ends_at, math.inf if left is None else now + self._rules.collect_seconds + left)

    def on_created(
        self, package: PackageTrace, attempt: AttemptTrace, *, remaining_seconds: float | None, at: float
    ) -> None:
        """An attempt was assigned: its pilot must have enough time, by its own statement."""
        history = self._histories.get(attempt.pilot or "")
        if history is None or package.template is None:
            return
        left = history.ends_at - at + self._stood_still(history.began_at, at)
        asked = demand_of(package.template, attempt).wall_seconds
        if left + _ROUNDING_SECONDS < asked:
            message = f"attempt {attempt.number} asks for {asked:.0f} s, and {attempt.pilot} has {left:.0f} s left"
            raise self._record.broken(ROOMS, message, package)
        if left + _ROUNDING_SECONDS < (math.inf if remaining_seconds is None else remaining_seconds):
            message = f"attempt {attempt.number} is said to have {remaining_seconds} s, and its pilot has {left:.0f} s"
            raise self._record.broken(ROOMS, message, package)

    def on_suspected(self, package: PackageTrace, attempt: AttemptTrace, at: float) -> None:
        """An attempt became suspect: the lease of its pilot must have expired."""
        history = self._histories.get(attempt.pilot or "")
        if history is None:
            return
        silent = at - (since := max(history.last_exchange_before(at), self._began_at))
        if silent + self._leapt(since, at) + _ROUNDING_SECONDS < self._rules.lease_seconds:
            lease = self._rules.lease_seconds
            message = f"attempt {attempt.number} was suspected after {silent:.0f} s of a lease of {lease:.0f} s"
            raise self._record.broken(LEASES, message, package)

    def on_lost(self, package: PackageTrace, attempt: AttemptTrace, *, reason: str) -> None:
        """An attempt was lost: its pilot must have ended, unless a user asked for it."""
        pilot = attempt.pilot or ""
        if not attempt.leased or pilot not in self._histories or pilot in self._record.ended_pilots:
            return
        if reason in _KNOWN_BY_THEMSELVES:
            return
        message = f"attempt {attempt.number} was lost ({reason}), and its pilot {pilot} has not ended"
        raise self._record.broken(LEASES, message, package)

    def on_pilot_ended(self, pilot: str, *, by_itself: bool, unheard: bool, at: float) -> None:
        """A pilot ended by the book: it reported so, or was silent for a lease, whatever its batch system reports.

        If only its silence is known, that must have lasted for its whole term, and no longer.
        """
        history = self._histories.get(pilot)
        if history is None:
            return
        if not by_itself and history.ended_at == math.inf:
            silent = at - (since := history.last_exchange_before(at))
            if silent + self._leapt(since, at) + _ROUNDING_SECONDS < self._rules.lease_seconds:
                message = f"it was given up, and was heard {silent:.0f} s before"
                raise self._record.broken_stream(LEASES, message, pilot)
            if unheard:
                self._check_term(pilot, since=max(since, self._began_at), at=at)
        history.ended_at = min(history.ended_at, at)

    def _check_term(self, pilot: str, *, since: float, at: float) -> None:
        """A pilot is lost after its term, counted from its last contact, or from the start of the service."""
        term = self._rules.lease_seconds * self._rules.lost_after_leases
        if not term or since == -math.inf:
            return
        silent = at - since
        # A message is handled a moment after its arrival, and the step that gives it up may have waited for others.
        late = _ROUNDING_SECONDS + 2 * self._rules.collect_seconds + self._stood_still(since, at)
        if silent + self._leapt(since, at) + _ROUNDING_SECONDS < term or silent > term + late:
            message = f"it was given up as lost after {silent:.2f} s of silence, and is to be after {term:.2f} s"
            raise self._record.broken_stream(LEASES, message, pilot)

    def check_reserved(self, package: PackageTrace, *, site: str, since: float, now: float) -> Violation | None:
        """What is wrong with a standing reservation: it must be released if no pilot could run it for a while."""
        patience = 2.0 * self._rules.unfit_seconds
        if not patience or package.template is None or now - since <= patience:
            return None
        if any(self._could_run(each, package.template.demand, now - patience) for each in self._at_site.get(site, ())):
            return None
        message = f"is reserved for {site} since {now - since:.0f} s, where no pilot could run it for {patience:.0f} s"
        return self._record.broken(WAITING, message, package)

    def _could_run(self, history: _PilotHistory, demand: Demand, since: float) -> bool:
        return history.ended_at >= since and not lacking(demand, history.capacity)
