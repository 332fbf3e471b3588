"""Work that folding an event leaves behind for the next decision."""

from __future__ import annotations

from collections import deque

from pilotage.engine.selection import Change
from pilotage.engine.state.jobs import JobState
from pilotage.engine.state.sites import AttemptState, SiteState


class Pending:
    """One container for each kind of decision; packages are given as job and number."""

    __slots__ = (
        "arrived_probes",
        "ending_jobs",
        "failing_activities",
        "failing_jobs",
        "left_groups",
        "lost_pilots",
        "reported_ends",
        "site_changes",
        "to_abort_consumers",
        "to_commit",
        "to_expand",
        "to_forecast",
        "to_heal",
        "to_judge",
        "to_revive",
        "to_score",
        "to_stop",
        "to_untie",
    )

    def __init__(self) -> None:
        """Start empty."""
        self.to_commit: deque[tuple[JobState, int]] = deque()
        self.to_untie: dict[tuple[JobState, int], None] = {}  # packages that started early beside one that has changed
        self.to_judge: dict[tuple[JobState, int], None] = {}  # failures to judge
        self.to_abort_consumers: deque[tuple[JobState, int]] = deque()
        self.to_revive: dict[tuple[JobState, int], None] = {}  # consumers that may run after all
        self.to_expand: dict[JobState, None] = {}  # jobs whose late stages may be ready
        self.ending_jobs: dict[JobState, None] = {}
        self.failing_jobs: dict[JobState, None] = {}  # jobs with a failure limit that have a new failure
        self.failing_activities: dict[tuple[JobState, str], None] = {}  # with many equal failures and no success
        self.to_stop: dict[JobState, None] = {}  # jobs with packages of stopped activities that are not over
        # Lost pilots: the reason, their attempts, and how many of those (the first ones) were running.
        self.lost_pilots: dict[str, tuple[str, list[AttemptState], int]] = {}
        # Batch jobs of several attempts whose agent is gone or silent → their site.
        self.left_groups: dict[str, SiteState] = {}
        self.reported_ends: dict[str, str] = {}  # pilots that reported their own end → the reason
        self.site_changes: list[Change] = []
        self.to_forecast: dict[JobState, None] = {}  # jobs whose forecast is due
        self.to_heal: dict[JobState, None] = {}  # jobs whose incidents are to be looked for
        self.to_score: dict[JobState, None] = {}  # jobs with a forecast, or that were healed, that may be over
        self.arrived_probes: dict[str, float] = {}  # probe pilots that started → seconds they queued

    def __bool__(self) -> bool:
        """Whether another round of decisions is needed."""
        return bool(
            self.to_commit
            or self.to_untie
            or self.to_judge
            or self.to_abort_consumers
            or self.to_revive
            or self.to_expand
            or self.ending_jobs
            or self.failing_jobs
            or self.failing_activities
            or self.to_stop
            or self.lost_pilots
            or self.left_groups
            or self.reported_ends
            or self.site_changes
            or self.arrived_probes
        )
