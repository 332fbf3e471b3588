"""Everything the engine knows: tables of plain data, and the parts with a life of their own (selection, placement, fairness, forecasts).

Events determine the whole state, except reservations, timers and queues.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from pilotage.engine.decision_log import DecisionLog, Folds
from pilotage.engine.fairness import Fairness
from pilotage.engine.forecasts import Forecasts
from pilotage.engine.healing.healing import Healing
from pilotage.engine.placement import Placement
from pilotage.engine.selection import Selection
from pilotage.engine.selection.filters import described
from pilotage.engine.state.caches import FileTable
from pilotage.engine.state.clock import EngineClock
from pilotage.engine.state.latencies import PilotLatencies
from pilotage.engine.state.pending import Pending
from pilotage.engine.state.queues import ReadyQueues, ShapeTable, SiteQueues
from pilotage.engine.state.sites import SiteState
from pilotage.engine.state.tables import AbandonedAttempts, JobTable, PilotTable, ProvisioningState, SiteTable
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.file_plan import RetainedOutput
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site

# Asked before a result is granted, if several active jobs may write the same files.


class Guard(Protocol):
    """Knows which jobs compete for output files. Its answers about attempts are recorded, as grants or holds."""

    @property
    def contested(self) -> Collection[str]:
        """The jobs whose grants need its consent; it is not asked about any other."""
        ...

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        """Record the files that an attempt of a contested job has staged."""
        ...

    def refusal(self, ref: AttemptRef) -> str:
        """Why the files of an attempt cannot be published now; if empty, they can, and are reserved for it."""
        ...


class NoGuard:
    """Never refuses anything."""

    contested: Collection[str] = ()

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        """Do nothing: no job is contested."""

    def refusal(self, ref: AttemptRef) -> str:
        """Nobody asks."""
        return ""


# Asked when a result is granted, if some of its outputs may have to stay at the site where they were made.


class Keeper(Protocol):
    """Knows which outputs are kept in the caches of sites. Its answers are recorded, as wishes."""

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        """Record the files that an attempt has staged, of a package that may have such outputs."""
        ...

    def retained(self, ref: AttemptRef) -> Sequence[RetainedOutput]:
        """The outputs of an attempt that are kept, and how long."""
        ...


class NoKeeper:
    """Keeps nothing."""

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        """Do nothing."""

    def retained(self, ref: AttemptRef) -> Sequence[RetainedOutput]:
        """Nothing."""
        return ()


class EngineState:
    """The state that folds change and decisions read."""

    __slots__ = (
        "abandoned",
        "clock",
        "fairness",
        "files",
        "forecasts",
        "healing",
        "jobs",
        "latencies",
        "lease_seconds",
        "log",
        "output_guard",
        "output_keeper",
        "pending",
        "pilots",
        "placement",
        "provisioning",
        "queues",
        "selection",
        "settings",
        "shapes",
        "sites",
    )

    def __init__(
        self, *, folds: Folds, settings: EngineSettings, now: float, observed_queue_seconds: Sequence[float]
    ) -> None:
        """Start without a job or a site. Queue times of earlier runs set the limit on queueing until there are newer ones."""
        self.settings = settings
        self.lease_seconds = settings.lease_seconds
        self.output_guard: Guard = NoGuard()
        self.output_keeper: Keeper = NoKeeper()
        self.clock = EngineClock(now)
        self.log = DecisionLog(self, self.clock, folds)
        self.jobs = JobTable()
        self.pilots = PilotTable()
        self.abandoned = AbandonedAttempts()
        self.files = FileTable()
        self.sites = SiteTable()
        self.queues = ReadyQueues()
        self.shapes = ShapeTable(jobs=self.jobs, sites=self.sites, pilots=self.pilots, queues=self.queues)
        self.pending = Pending()
        self.provisioning = ProvisioningState()
        self.latencies = PilotLatencies()
        self.selection = Selection(settings.selection, observed_queue_seconds=observed_queue_seconds)
        self.placement = Placement(
            self.selection,
            sites=self.sites,
            queues=self.queues,
            shapes=self.shapes,
            clock=self.clock,
            log=self.log,
            seed=settings.seed,
        )
        self.fairness = Fairness(
            settings, clock=self.clock, jobs=self.jobs, queues=self.queues, placement=self.placement
        )
        self.forecasts = Forecasts(
            clock=self.clock,
            jobs=self.jobs,
            pilots=self.pilots,
            placement=self.placement,
            latencies=self.latencies,
        )
        self.healing = Healing(settings, clock=self.clock, jobs=self.jobs)

    def add_site(self, site: Site) -> SiteState:
        """Add a site; sites are tried in the order in which they were added."""
        self.selection.add(described(site))
        state = self.sites.by_name[site.name] = SiteState(site, self.selection.profile(site.name))
        state.recorded_at = self.clock.now
        self.queues.at[state] = SiteQueues()
        self.placement.add_site(state)
        return state
