"""The tables of the engine: jobs, pilots, sites, and abandoned attempts."""

from __future__ import annotations

import math
from collections import deque

from pilotage.engine.state.jobs import JobState
from pilotage.engine.state.sites import PilotRequest, PilotState, SiteState
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.plan import JobPlan


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


class ProvisioningState:
    """When pilots were last requested, and whether they still are."""

    __slots__ = ("idle_since", "last_run", "stopping", "timer_set")

    def __init__(self) -> None:
        """Start without a request."""
        self.last_run = -math.inf
        self.timer_set = False
        self.idle_since = math.inf  # since when the requested pilots have no work
        self.stopping = False  # nothing more is requested
