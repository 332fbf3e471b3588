"""Checks recorded latencies: every start of a pilot counts once, also after restarts, and pilots without an answer are named."""

from __future__ import annotations

from pilotage.book.codec import Checked
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import AttemptStarted, PilotEnded, PilotRequested, PilotStarted, SiteLatencies
from pilotage.simulator.checkers.records import Record, Rules

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
