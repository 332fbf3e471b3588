"""The event, its identity and clock, and the table of event types.

An event is identified by `(source, stream, n)`. Its clock is (epoch, service position last seen, own counter), and its total
key that clock with the source in between: a register keeps the value with the greatest key, in any order of arrival.
The payloads are in `pilotage.model.events.payloads`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pilotage.model.events import file_payloads, healing_payloads, payloads
from pilotage.model.events.payloads import Payload
from pilotage.model.jobs.layout import PackageId

Source = Literal["client", "service", "site", "agent", "application"]
SubjectKind = Literal["job", "package", "attempt", "pilot", "site", "service"]

# If two sources saw the same position, the one that decides outranks those that report.
SOURCE_RANKS: dict[str, int] = {"application": 0, "client": 1, "site": 2, "agent": 3, "service": 4}

COUNTER_MAX = 2**53 - 1
JUMP_MAX = 2**32
"""How far the number of an event may be beyond the last one of its stream; a larger one was miscounted, or forged to exhaust
the counter.
"""
ATTEMPT_MAX = 999_999_999
PLACE_MAX = 999_999_999  # of a stage, a line or a number: nine digits
TIME_MAX = 253_402_300_800.0  # the year 10000
JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_.-]+")
STREAM = re.compile(r"[A-Za-z0-9_.:@-]{1,128}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,127}")  # of a site or a pilot
TAG_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
DOTTED = re.compile(r"([1-9][0-9]{0,8})\.([1-9][0-9]{0,8})\.([1-9][0-9]{0,8})")


class Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """One event as it travels: flat, with its payload still as JSON text.

    Fields are given by name, except where most events are made: positional arguments take two thirds of the time.
    """

    source: Source
    stream: str
    n: Annotated[int, Meta(ge=1, le=COUNTER_MAX)]
    type: str
    time: Annotated[float, Meta(ge=0, lt=TIME_MAX)]
    job: str | None = None
    package: str | None = None  # stage.line.n
    attempt: Annotated[int, Meta(ge=1, le=ATTEMPT_MAX)] | None = None
    pilot: str | None = None
    site: str | None = None
    epoch: Annotated[int, Meta(ge=1, le=COUNTER_MAX)] = 1
    seen: Annotated[int, Meta(ge=0, le=COUNTER_MAX)] = 0
    version: int = 1
    data: msgspec.Raw = msgspec.Raw(b"{}")


def subject_kind(event: Event) -> SubjectKind | None:
    """What an event is about, or None if the parts of its subject do not fit together."""
    if event.pilot is not None or event.site is not None:
        if event.job is not None or event.package is not None or event.attempt is not None:
            return None
        if event.pilot is not None and event.site is not None:
            return None
        return "pilot" if event.pilot is not None else "site"
    if event.package is not None:
        if event.job is None:
            return None
        return "package" if event.attempt is None else "attempt"
    if event.attempt is not None:
        return None
    return "service" if event.job is None else "job"


def id_beginning(name: str) -> str:
    """How the ids of jobs of a name begin, unless ids were given; six letters or digits follow."""
    return (_NOT_IN_ID.sub("-", name).lstrip("_.-")[:57] or "job") + "-"


@lru_cache(maxsize=8192)  # the few active packages are parsed again and again
def parse_dotted(text: str) -> PackageId | None:
    """The package named by `stage.line.n`, or None."""
    found = DOTTED.fullmatch(text)
    return PackageId(int(found[1]), int(found[2]), int(found[3])) if found else None


ANYONE: frozenset[str] = frozenset(SOURCE_RANKS)
ENGINE: frozenset[str] = frozenset({"service"})  # epochs, attempt numbers and commits have one writer


class EventType(msgspec.Struct, frozen=True, kw_only=True):
    """One type of event: its payload and version, its possible subjects, and its possible sources."""

    payload: type[Payload]
    subjects: frozenset[SubjectKind]
    sources: frozenset[str] = ANYONE
    version: int = 1

    @property
    def name(self) -> str:
        """The name on the wire, which is the payload's."""
        return self.payload.__name__


def _type(payload: type[Payload], *subjects: SubjectKind, sources: frozenset[str] = ANYONE) -> EventType:
    return EventType(payload=payload, subjects=frozenset(subjects), sources=sources)


EVENT_TYPES: dict[str, EventType] = {
    each.name: each
    for each in (
        _type(payloads.JobRegistered, "job"),
        _type(payloads.JobAccepted, "job"),
        _type(payloads.StageExpanded, "job", sources=ENGINE),
        _type(payloads.InputsDescribed, "job", sources=ENGINE),
        _type(payloads.OwnerSet, "job"),
        _type(payloads.AccessSet, "job"),
        _type(payloads.Held, "job", "package", sources=ENGINE),
        _type(payloads.Released, "job", "package", sources=ENGINE),
        _type(payloads.CancelAccepted, "job", "package", sources=ENGINE),
        _type(payloads.Aborted, "job", "package", sources=ENGINE),
        _type(payloads.Cleared, "job", "package"),
        _type(payloads.Restarted, "job", "package", sources=ENGINE),
        _type(payloads.Tagged, "job", "package", "attempt"),
        _type(payloads.Noted, "job", "package", "attempt", "pilot", "site", "service"),
        _type(payloads.ForecastMade, "job", sources=ENGINE),
        _type(payloads.ForecastScored, "job", sources=ENGINE),
        _type(healing_payloads.HealingDecided, "job", sources=ENGINE),
        _type(healing_payloads.HealingLearned, "job", sources=ENGINE),
        _type(healing_payloads.IncidentsLearned, "service", sources=ENGINE),
        _type(healing_payloads.ActivityStopped, "job", sources=ENGINE),
        _type(healing_payloads.ActivityReopened, "job", sources=ENGINE),
        _type(healing_payloads.ActivityGrouped, "job", sources=ENGINE),
        _type(payloads.PackageRegistered, "package"),
        _type(file_payloads.InputsRemade, "package", sources=ENGINE),
        _type(payloads.Bound, "package", sources=ENGINE),
        _type(payloads.Unbound, "package", sources=ENGINE),
        _type(payloads.Dropped, "package", sources=ENGINE),
        _type(payloads.Restored, "package", sources=ENGINE),
        _type(payloads.RemovalOrdered, "attempt", sources=ENGINE),
        _type(payloads.FilesRemoved, "attempt", sources=ENGINE),
        _type(payloads.ReplicaWanted, "package", sources=ENGINE),
        _type(payloads.AttemptCreated, "attempt", sources=ENGINE),
        _type(payloads.AttemptQueued, "attempt"),
        _type(payloads.AttemptStarted, "attempt"),
        _type(payloads.AttemptSuspected, "attempt"),
        _type(payloads.AttemptRecovered, "attempt", sources=ENGINE),
        _type(payloads.AttemptLost, "attempt", sources=ENGINE),
        _type(payloads.PhaseEntered, "attempt"),
        _type(payloads.OutputsStaged, "attempt"),
        _type(payloads.AttemptFinished, "attempt"),
        _type(payloads.CommitGranted, "attempt", sources=ENGINE),
        _type(file_payloads.OutputsStored, "attempt", sources=ENGINE),
        _type(file_payloads.OutputsDisposed, "attempt", sources=ENGINE),
        _type(payloads.PilotRequested, "pilot"),
        _type(payloads.PilotStarted, "pilot"),
        _type(payloads.PilotEnded, "pilot"),
        _type(payloads.NodeDescribed, "pilot", "attempt", "site"),
        _type(payloads.SiteDescribed, "site"),
        _type(payloads.SiteHibernated, "site", sources=ENGINE),
        _type(payloads.SiteWoken, "site", sources=ENGINE),
        _type(payloads.SiteStanding, "site", sources=ENGINE),
        _type(payloads.SiteLatencies, "site", sources=ENGINE),
        _type(file_payloads.FetchesOrdered, "site", sources=ENGINE),
        _type(file_payloads.FilesFetched, "site", sources=ENGINE),
        _type(file_payloads.FetchesFailed, "site", sources=ENGINE),
        _type(file_payloads.RetentionSet, "site", sources=ENGINE),
        _type(file_payloads.RemovalsOrdered, "site", sources=ENGINE),
        _type(file_payloads.CachedFilesRemoved, "site", sources=ENGINE),
        _type(payloads.SiteDrained, "site", sources=ENGINE),
        _type(payloads.SiteProbed, "site", sources=ENGINE),
    )
}
"""Every type of event by its name on the wire."""


# Whether the clock of a sender is wrong, proven by the time it states beside its events, which may be of any age.
#
# A sender states its clock when it sends. It sends before we receive: a clock that shows more is ahead. And it sends after
# our last reply, which stated our clock: a clock that shows less is behind. How long the events waited or travelled does
# not matter.


def is_wrong(time: float, *, service_time: float, received: float, tolerance_seconds: float) -> bool:
    """Whether a clock that showed `time` at sending is wrong; ours showed at least `service_time` then (0: unknown)."""
    if time > received + tolerance_seconds:
        return True
    # Two clocks never run at quite the same rate, so over a long time a sender may count a little more than passed here. If it
    # is much more, our own clock was set back since, and nothing is proven.
    if not 0.0 < service_time <= received + tolerance_seconds:
        return False
    return time < min(service_time, received) - tolerance_seconds


def is_doubtful(time: float, *, service_time: float, received: float, tolerance_seconds: float) -> bool:
    """Whether such a clock is behind, or its message was long on the way: a sender that knows our clock can tell."""
    return not service_time and time < received - tolerance_seconds
