"""Everything the engine knows: tables of plain data, and the parts with a life of their own (selection, placement, fairness).

Events determine the whole state, except reservations, timers and queues.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from pilotage.engine.decision_log import DecisionLog, Folds
from pilotage.engine.fairness import Fairness
from pilotage.engine.placement import Placement
from pilotage.engine.selection import Selection
from pilotage.engine.selection.filters import described
from pilotage.engine.state.clock import EngineClock
from pilotage.engine.state.pending import Pending
from pilotage.engine.state.queues import ReadyQueues, ShapeTable, SiteQueues
from pilotage.engine.state.sites import SiteState
from pilotage.engine.state.tables import AbandonedAttempts, JobTable, PilotTable, ProvisioningState, SiteTable
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site

# Who is asked before what an attempt made is granted, where jobs that are worked on at once may make the same
# files.


class Guard(Protocol):
    """Knows which files jobs may not have. What it says of an attempt is written down, as a grant or a hold."""

    @property
    def contested(self) -> Collection[str]:
        """The jobs whose grants it is asked about; for all others nothing is asked, and nothing told."""
        ...

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        """An attempt of a contested job has staged these files."""
        ...

    def refusal(self, ref: AttemptRef) -> str:
        """Why the files of an attempt cannot get their names now; empty where they can, and then they are its own."""
        ...


class NoGuard:
    """Nothing is contested."""

    contested: Collection[str] = ()

    def made(self, ref: AttemptRef, manifest: Sequence[OutputFile]) -> None:
        """Nobody says this."""

    def refusal(self, ref: AttemptRef) -> str:
        """Nobody asks."""
        return ""


class EngineState:
    """What folds change and decisions read."""

    __slots__ = (
        "abandoned",
        "clock",
        "fairness",
        "jobs",
        "lease_seconds",
        "log",
        "output_guard",
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
        """Begin without a job or a site; queue times of earlier runs say what is too long before there are own ones."""
        self.settings = settings
        self.lease_seconds = settings.lease_seconds
        self.output_guard: Guard = NoGuard()
        self.clock = EngineClock(now)
        self.log = DecisionLog(self, self.clock, folds)
        self.jobs = JobTable()
        self.pilots = PilotTable()
        self.abandoned = AbandonedAttempts()
        self.sites = SiteTable()
        self.queues = ReadyQueues()
        self.shapes = ShapeTable(jobs=self.jobs, sites=self.sites, pilots=self.pilots, queues=self.queues)
        self.pending = Pending()
        self.provisioning = ProvisioningState()
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

    def add_site(self, site: Site) -> SiteState:
        """Know a site from now on; sites are tried in the order in which they came."""
        self.selection.add(described(site))
        state = self.sites.by_name[site.name] = SiteState(site, self.selection.place(site.name))
        state.recorded_at = self.clock.now
        self.queues.at[state] = SiteQueues()
        self.placement.add_site(state)
        return state
