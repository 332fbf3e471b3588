"""The figures of one simulated run: duration, time by phase, wasted time, failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from pilotage.book.codec import Checked
from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.exchange.exchange import Assignment, AttemptRef
from pilotage.model.resources import Capacity
from pilotage.model.states import ExitCodeGasw

PHASES = ("queue", "setup", "inputs", "application", "outputs", "idle")
"""Where the time at a site goes: its queue, the phases of an attempt, and idle pilots."""


class SiteFigures(msgspec.Struct, kw_only=True):
    """The figures of one site. Times of phases are sums over batch jobs and attempts."""

    attempts: int = 0
    granted: int = 0
    failed: int = 0
    batch_jobs: int = 0  # that left the queue
    queue_seconds: float = 0.0
    setup_seconds: float = 0.0
    inputs_seconds: float = 0.0
    application_seconds: float = 0.0
    outputs_seconds: float = 0.0
    idle_seconds: float = 0.0  # of cores that pilots held idle
    core_seconds: float = 0.0  # used by attempts
    wasted_core_seconds: float = 0.0  # of these, by attempts whose result was not used
    healing_core_seconds: float = 0.0  # of core time, by such attempts since healing gave them a rival, or gave them up


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run."""

    seed: int
    outcome: str  # finished, or unfinished: not over within the horizon
    holds: int  # how often failures held the job, or a package of it, until a person acts
    makespan_seconds: float | None  # from the submission to the end of the last package; None unless it finished
    done: int
    failed: int  # packages that were given up
    attempts: int
    failures: dict[str, int]  # of attempts, by reason
    sites: dict[str, SiteFigures]

    @property
    def core_seconds(self) -> float:
        """The core time of all attempts."""
        return sum(each.core_seconds for each in self.sites.values())

    @property
    def healing_share(self) -> float:
        """The share of core time that healing cost: of attempts without a grant, since they had a rival or if it gave them up."""
        took = self.core_seconds
        return sum(each.healing_core_seconds for each in self.sites.values()) / took if took else 0.0

    @property
    def wasted_share(self) -> float:
        """The share of core time spent in attempts whose result was not used."""
        took = self.core_seconds
        return sum(each.wasted_core_seconds for each in self.sites.values()) / took if took else 0.0


class _Pilot:
    __slots__ = ("begun_at", "busy_core_seconds", "cores", "site")

    def __init__(self, site: str, cores: float, begun_at: float) -> None:
        self.site = site
        self.cores = cores
        self.begun_at = begun_at
        self.busy_core_seconds = 0.0


class RunRecorder:
    """Records what really happens in a run, and the events of the service."""

    def __init__(self, sites: Sequence[str], now: float) -> None:
        """Start with nothing recorded."""
        self._sites = {site: SiteFigures() for site in sites}
        self._now = now
        self._pilots: dict[str, _Pilot] = {}
        self._cores: dict[AttemptRef, float] = {}
        self._running: dict[tuple[str, AttemptRef], float] = {}
        self._took: dict[AttemptRef, tuple[str, float]] = {}  # site and core-seconds
        self._granted: set[AttemptRef] = set()
        self._failures: dict[AttemptRef, str] = {}
        self._attempts: dict[AttemptRef, str] = {}  # → site
        self._rivals_since: dict[str, float] = {}  # packages of which healing wanted a copy
        self._given_up: set[AttemptRef] = set()  # by healing
        self._spans: dict[
            AttemptRef, tuple[float, float, float]
        ] = {}  # begin, end and cores of attempts beside a rival
        self.copies = 0  # that healing wanted
        self.launches: list[float] = []  # when batch jobs left their queues
        self.held: list[str] = []  # packages that a person would have to check, or "" for the whole job

    # --- the physical world -----------------------------------------------------------------------------------------

    def on_launched(self, site: str, *, queued_seconds: float, now: float) -> None:
        """A batch job left the queue."""
        self._now = now
        figures = self._sites[site]
        figures.batch_jobs += 1
        self.launches.append(now)
        figures.queue_seconds += queued_seconds

    def on_pilot(self, pilot: str, site: str, capacity: Capacity, backlog: int, *, node: str) -> None:
        """An agent has started."""
        self._pilots[pilot] = _Pilot(site, capacity.cores_hundredths / 100, self._now)

    def on_gone(self, pilot: str, now: float) -> None:
        """An agent ended."""
        gone = self._pilots.pop(pilot, None)
        if gone is not None:
            held_seconds = gone.cores * (now - gone.begun_at)
            self._sites[gone.site].idle_seconds += max(0.0, held_seconds - gone.busy_core_seconds)

    def on_assigned(self, pilot: str, assignment: Assignment, now: float) -> None:
        """An assignment reached an agent."""
        self._cores[assignment.ref] = assignment.demand.cores_hundredths / 100

    def on_started(self, pilot: str, ref: AttemptRef, now: float) -> None:
        """An attempt occupies its share of a node."""
        self._running[pilot, ref] = now

    def on_ended(self, pilot: str, ref: AttemptRef, now: float) -> None:
        """An attempt frees its share."""
        began_at = self._running.pop((pilot, ref), None)
        if began_at is None:
            return
        cores = self._cores.pop(ref, 1.0)
        took = cores * (now - began_at)
        self._spans[ref] = (began_at, now, cores)
        agent = self._pilots[pilot]
        agent.busy_core_seconds += took
        site, before = self._took.get(ref, (agent.site, 0.0))
        self._took[ref] = (site, before + took)

    def on_spooled(self, event: Event) -> None:
        """Told later."""

    def on_forged(self, event: Event) -> None:
        """Never here."""

    def on_acknowledged(self, pilot: str, n: int, now: float) -> None:
        """Ignored."""

    # --- events -------------------------------------------------------------------------------------------------------

    def on_events(self, events: Sequence[Checked]) -> None:
        """The service wrote events."""
        for checked in events:
            data, event = checked.data, checked.event
            if event.job is None:
                continue
            if event.package is None or event.attempt is None:
                if isinstance(data, payloads.Held):
                    self.held.append(event.package or "")
                elif isinstance(data, payloads.ReplicaWanted) and data.cause == "healing" and event.package:
                    self._rivals_since.setdefault(event.package, event.time)
                    self.copies += 1
                continue
            ref = AttemptRef(event.job, event.package, event.attempt)
            if isinstance(data, payloads.AttemptCreated):
                self._attempts[ref] = data.site
            elif isinstance(data, payloads.CommitGranted):
                self._granted.add(ref)
            elif isinstance(data, payloads.AttemptLost):
                self._failures.setdefault(ref, data.reason)
                if data.decision:
                    self._given_up.add(ref)
            elif isinstance(data, payloads.AttemptFinished):
                self._on_finished(ref, data)

    def _on_finished(self, ref: AttemptRef, data: payloads.AttemptFinished) -> None:
        if data.exit_code != ExitCodeGasw.SUCCESS and data.reason is not None:
            self._failures[ref] = data.reason
        site = self._attempts.get(ref)
        if site is None:
            return
        figures = self._sites[site]
        for phase in data.phases:
            match phase.phase:
                case "setup":
                    figures.setup_seconds += phase.seconds
                case "inputs":
                    figures.inputs_seconds += phase.seconds
                case "application":
                    figures.application_seconds += phase.seconds
                case "outputs":
                    figures.outputs_seconds += phase.seconds

    # --- result -------------------------------------------------------------------------------------------------------

    def figures(
        self, *, seed: int, outcome: str, makespan_seconds: float | None, done: int, failed: int, now: float
    ) -> RunFigures:
        """The figures at the end of the run; running attempts end with it."""
        unsettled = {ref for _, ref in self._running}  # their result is unknown
        for pilot, ref in list(self._running):
            self.on_ended(pilot, ref, now)
        for pilot in list(self._pilots):
            self.on_gone(pilot, now)
        for ref, site in self._attempts.items():
            figures = self._sites[site]
            figures.attempts += 1
            figures.granted += ref in self._granted
            figures.failed += ref in self._failures and ref not in self._granted
        for ref, (site, took) in self._took.items():
            self._sites[site].core_seconds += took
            if ref not in self._granted and ref not in unsettled:
                self._sites[site].wasted_core_seconds += took
        for ref, (began_at, ended_at, cores) in self._spans.items():
            since = began_at if ref in self._given_up else self._rivals_since.get(ref.package, ended_at)
            if ref not in self._granted and ref in self._attempts:
                wasted = cores * max(0.0, ended_at - max(began_at, since))
                self._sites[self._attempts[ref]].healing_core_seconds += wasted
        failures = Counter(reason for ref, reason in self._failures.items() if ref not in self._granted)
        return RunFigures(
            seed=seed,
            outcome=outcome,
            holds=len(self.held),
            makespan_seconds=makespan_seconds,
            done=done,
            failed=failed,
            attempts=len(self._attempts),
            failures=dict(sorted(failures.items())),
            sites=self._sites,
        )
