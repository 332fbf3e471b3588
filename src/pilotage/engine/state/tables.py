"""The tables of the engine: jobs, pilots, sites, and abandoned attempts."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from pilotage.engine.state.jobs import JobState
from pilotage.engine.state.sites import PilotRequest, PilotState, SiteState
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.plan import JobPlan

if TYPE_CHECKING:
    from pilotage.forecast.history import KnownLatency
    from pilotage.forecast.makespan import Need, Provision


class JobTable:
    """The active jobs, and plans of jobs that are about to be registered."""

    __slots__ = ("_last_order", "busy_by_owner", "by_id", "plans", "retirable", "retired")

    def __init__(self) -> None:
        """Start empty."""
        self.by_id: dict[str, JobState] = {}
        self.plans: dict[str, deque[JobPlan]] = {}  # stored before the event that uses them
        self.busy_by_owner: dict[str, int] = {}  # packages that are reserved or running
        self.retirable: dict[JobState, None] = {}  # something was cleared: check whether the job can be retired
        self.retired: dict[str, None] = {}  # ids of retired jobs
        self._last_order = 0

    def next_order(self) -> int:
        """The arrival number of one more job."""
        self._last_order += 1
        return self._last_order


class PilotTable:
    """The pilots that may make contact, their requests, and pending replies."""

    __slots__ = ("by_name", "ended", "loss_excused", "requests", "to_notify", "unreported", "with_free_slots")

    def __init__(self) -> None:
        """Start empty."""
        self.by_name: dict[str, PilotState] = {}
        self.requests: dict[str, PilotRequest] = {}  # submitted batch jobs
        self.unreported: dict[str, dict[AttemptRef, int]] = {}  # attempts whose end a lost pilot has not reported
        self.to_notify: dict[str, None] = {}  # pilots that must get a reply
        self.with_free_slots: dict[PilotState, None] = {}  # pilots that wait for work
        self.ended: list[str] = []  # names since the last query
        self.loss_excused = False  # attempts lost now do not count against their site


class AbandonedAttempts:
    """Attempts that were given up and may still run: no attempt with side effects starts beside one."""

    __slots__ = ("by_pilot", "pilots_by_request", "to_cancel")

    def __init__(self) -> None:
        """Start empty."""
        self.by_pilot: dict[str, dict[AttemptRef, int]] = {}  # → the number of the package
        self.pilots_by_request: dict[str, dict[str, str]] = {}  # → pilot → site
        self.to_cancel: dict[str, None] = {}  # pilots whose batch job is cancelled until it is gone


class SiteTable:
    """The sites by name, in order of arrival."""

    __slots__ = ("by_name", "unmanaged")

    def __init__(self) -> None:
        """Start empty."""
        self.by_name: dict[str, SiteState] = {}
        self.unmanaged: dict[SiteState, None] = {}  # in the book, but not in the configuration


_GROWTH = 1.05  # of work that is more than what was there before, and not an estimate that has changed


class WorkPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a site does the same work: none comes that is much more than what was left."""

    begun_at: float
    work_seconds: float  # the least so far
    promised_at: float = math.inf  # by when it is to be done, according to its first plan
    spent_seconds: float = 0.0  # by which cancelled pilots have made it longer

    def goes_on(self, work_seconds: float) -> bool:
        """Whether the work that is left is a part of it."""
        return work_seconds <= _GROWTH * self.work_seconds


class PilotPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How many pilots a site should have in its queue, from the time `at` on.

    `wanted` are requested, of which `kept` are not cancelled once they are queued. Without a forecast these are as many as the
    work could use, and all that are queued; `message` says why.
    """

    at: float
    expected: int  # requested pilots without contact, probes included
    live: int
    most: int  # further pilots that the work could use
    queued: int  # as `expected`, without probes
    wanted: int
    kept: int
    pause_seconds: float  # until the next plan, if nothing changes
    best_queued: int = 0  # the most that are of use
    best_seconds: float = math.inf  # with these
    message: str = ""
    need: Need | None = None
    known: KnownLatency | None = None
    period: WorkPeriod | None = None

    def because(self, message: str) -> PilotPlan:
        """The same, with the reason why there is no forecast."""
        return msgspec.structs.replace(self, message=message)

    def lowered(self, found: Provision, *, need: Need, known: KnownLatency, period: WorkPeriod) -> PilotPlan:
        """The plan by a forecast."""
        return msgspec.structs.replace(
            self,
            wanted=min(self.wanted, found.queued),
            kept=min(self.queued, found.kept),
            best_queued=found.best_queued,
            best_seconds=found.best_seconds,
            need=need,
            known=known,
            period=period,
        )

    def spending(self, seconds: float) -> PilotPlan:
        """The plan after pilots were cancelled, which makes the work longer by so much."""
        assert self.period is not None
        spent_seconds = self.period.spent_seconds + max(0.0, seconds)
        return msgspec.structs.replace(self, period=msgspec.structs.replace(self.period, spent_seconds=spent_seconds))

    def missing(self, site: SiteState) -> int:
        """How many of the wanted pilots are neither queued by now nor have started since."""
        queued, started = self.queued + site.expected - self.expected, len(site.pilots) - self.live
        return self.wanted - queued - max(0, started)


class ProvisioningState:
    """When pilots were last requested, whether they still are, and how many each site should have."""

    __slots__ = ("idle_since", "last_run", "plans", "replan_at", "stopping", "surplus_since", "timer_set")

    def __init__(self) -> None:
        """Start without a request."""
        self.last_run = -math.inf
        self.timer_set = False
        self.idle_since = math.inf  # since when the requested pilots have no work
        self.stopping = False  # nothing more is requested
        self.plans: dict[SiteState, PilotPlan] = {}  # where the forecast decides
        self.replan_at = -math.inf  # when the next timer for a plan is due
        self.surplus_since: dict[SiteState, float] = {}  # since when more pilots are queued than are kept

    def forget(self, site: SiteState) -> None:
        """Drop the plan of a site that is gone."""
        self.plans.pop(site, None)
        self.surplus_since.pop(site, None)
