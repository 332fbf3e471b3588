"""The payloads of events about healing: incidents that the engine finds, and what it does about them.

An incident has a degree from 0 (nothing is wrong) to 1. Each treatment is an event of its own besides, which names the decision
that it follows from: the number of its `HealingDecided` in the stream of the engine.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from pilotage.model.events.payloads import Amount, Count, Name, Part, Payload, Position, SiteName, Text

Share = Annotated[float, Meta(ge=0, le=1)]
ActivityName = Annotated[str, Meta(max_length=256)]
IncidentKind = Literal[
    "blocked-activity",
    "low-efficiency",
    "failing-activity",
    "input-unavailable",
    "output-unavailable",
    "bad-site",
    "unfair-sharing",
    "too-fine",
    "too-coarse",
]
"""What can be wrong (vip-execution-service, section 3; the grain is that of a group of packages in one batch job)."""

Treatment = Literal["replicate", "abort-replica", "reschedule", "copy-file", "stop-activity", "ungroup"]
"""What can be done about an incident."""


class Incident(Part, frozen=True, kw_only=True):
    """Something is wrong with an activity, a file, a store, a site or a job: how much, and its level; 1 needs no treatment."""

    kind: IncidentKind
    subject: Annotated[str, Meta(max_length=8192)] = ""  # the activity, the locator, the site
    degree: Share
    level: Annotated[int, Meta(ge=1, le=5)]

    @property
    def needs_treatment(self) -> bool:
        """Whether its level is above the lowest one."""
        return self.level > 1


class Treated(Part, frozen=True, kw_only=True):
    """One thing that was done, and to what."""

    treatment: Treatment
    package: Name | None = None
    attempt: Position | None = None
    site: SiteName | None = None
    message: Text = ""


class HealingDecided(Payload, frozen=True, kw_only=True):
    """The incidents of the job that need a treatment, the one that was drawn, and what was done.

    If an association rule says that another incident is its cause, that one was treated `instead`. Both are places among
    the incidents, from 1; 0: none.
    """

    incidents: Annotated[tuple[Incident, ...], Meta(max_length=64)]
    drawn: Count
    instead: Count = 0
    confidence: Share = 0.0  # of the rule
    treated: Annotated[tuple[Treated, ...], Meta(max_length=1000)] = ()
    more: Count = 0  # treatments beyond those listed
    message: Text = ""  # why nothing was done, or not more


class PhaseMedian(Part, frozen=True, kw_only=True):
    """The median time of one phase of the finished packages of an activity."""

    phase: Annotated[str, Meta(max_length=16)]
    seconds: Amount


class ActivityPhases(Part, frozen=True, kw_only=True):
    """The medians of the phases of one activity, over so many finished packages."""

    activity: ActivityName
    count: Count
    medians: Annotated[tuple[PhaseMedian, ...], Meta(max_length=5)] = ()


class HealingLearned(Payload, frozen=True, kw_only=True):
    """What healing knows of the job, recorded from time to time: a new engine continues from it."""

    activities: Annotated[tuple[ActivityPhases, ...], Meta(max_length=64)] = ()
    slot_seconds: Amount = 0.0  # of all attempts that ended
    healing_seconds: Amount = 0.0  # of these, of attempts without a grant since healing gave them a rival


class IncidentsLearned(Payload, frozen=True, kw_only=True):
    """The history of incidents of all jobs, recorded from time to time: a new engine continues from it."""

    learned: Annotated[str, Meta(max_length=1_000_000)]


class ActivityStopped(Payload, frozen=True, kw_only=True):
    """An activity of the job cannot succeed: its unfinished packages are aborted, and the job goes on without them."""

    activity: ActivityName
    operation: Count  # assigned on acceptance: the latest of these and of reopenings holds
    failed_packages: Count = 0
    decision: Count = 0  # of healing, if it follows from one
    failed_attempts: Count = 0  # in the same way, since it was opened
    message: Text = ""


class ActivityReopened(Payload, frozen=True, kw_only=True):
    """A stopped activity may run again."""

    activity: ActivityName
    operation: Count
    message: Text = ""


class ActivityGrouped(Payload, frozen=True, kw_only=True):
    """So many packages of the activity share a batch job from now on; 1: each has its own."""

    activity: ActivityName
    operation: Count
    packages: Annotated[int, Meta(ge=1, le=100_000)]
    message: Text = ""
