"""The attributes of queries: one table with the kind, the targets and the indexes of each.

The order of the table is also the order of preference among indexes: the most selective attribute comes first.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import get_args

import msgspec

from pilotage.book.query.errors import QueryError, shown
from pilotage.model.errors import did_you_mean
from pilotage.model.events.events import Source
from pilotage.model.states import ExitCodeGasw, State


class Target(StrEnum):
    """What a query returns."""

    JOBS = "jobs"
    PACKAGES = "packages"
    EVENTS = "events"


class Kind(StrEnum):
    """The kind of an attribute's values, which determines its operators."""

    TEXT = "text"
    STATE = "state"
    EXIT_CODE = "exit code"
    SOURCE = "source"
    REASON = "reason"
    TIME = "time"
    COUNT = "count"
    FLAG = "yes or no"
    JOB = "job id"
    PACKAGE = "package id"

    @property
    def ordered(self) -> bool:
        """Tell whether `<`, `>` and `within` apply."""
        return self in (Kind.TIME, Kind.COUNT)


STATES = tuple(state.value for state in State)
EXIT_CODES = tuple(code.value for code in ExitCodeGasw)
SOURCES: tuple[str, ...] = get_args(Source)

TAG = "tag"
TAG_PREFIX = "tag."


class Attribute(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table; `indexed` are the targets with an index by default.

    A `through_job` attribute belongs to the job, and its packages have it from there.
    """

    name: str
    aliases: tuple[str, ...] = ()
    kind: Kind = Kind.TEXT
    targets: tuple[Target, ...]
    indexed: tuple[Target, ...] = ()
    through_job: bool = False
    description: str


_PACKAGES = (Target.PACKAGES,)
_EVENTS = (Target.EVENTS,)
_STATEFUL = (Target.JOBS, Target.PACKAGES)
_PLACED = (Target.PACKAGES, Target.EVENTS)
_EVERYTHING = (Target.JOBS, Target.PACKAGES, Target.EVENTS)

_TABLE = (
    Attribute(
        name="job",
        aliases=("jobid",),
        kind=Kind.JOB,
        targets=_EVERYTHING,
        indexed=_EVERYTHING,
        description="The id of the job.",
    ),
    Attribute(
        name="name",
        aliases=("job_name",),
        targets=_STATEFUL,
        indexed=_STATEFUL,
        through_job=True,
        description="The short name of the job.",
    ),
    Attribute(
        name="parent",
        aliases=("parent_job",),
        targets=_STATEFUL,
        indexed=_STATEFUL,
        through_job=True,
        description="The id of the job that the job is part of.",
    ),
    Attribute(
        name=TAG,
        targets=_STATEFUL,
        indexed=_STATEFUL,
        description="The value of a user tag, written `tag.NAME`; without such a tag the value is missing.",
    ),
    Attribute(
        name="position",
        kind=Kind.COUNT,
        targets=_EVENTS,
        indexed=_EVENTS,
        description="The place of the event in the book, which only ever grows.",
    ),
    Attribute(
        name="package",
        aliases=("package_id",),
        kind=Kind.PACKAGE,
        targets=_PLACED,
        description="The package within its job, as `1.2.1` or as a DØ path; with a clause `job=ID`, by its name too.",
    ),
    Attribute(
        name="node",
        aliases=("host",),
        targets=_PACKAGES,
        description="The node that the granted or last attempt ran on.",
    ),
    Attribute(name="pilot", targets=_PLACED, description="The pilot that the granted or last attempt ran in."),
    Attribute(
        name="owner",
        aliases=("user",),
        targets=_STATEFUL,
        indexed=_STATEFUL,
        through_job=True,
        description="The principal that the job belongs to.",
    ),
    Attribute(
        name="site",
        aliases=("destination",),
        targets=_PLACED,
        indexed=_PACKAGES,
        description="The site of the granted or last attempt; of an event, the site it is about.",
    ),
    Attribute(
        name="exit_code",
        aliases=("exit", "exitcode"),
        kind=Kind.EXIT_CODE,
        targets=_PACKAGES,
        description="How the granted or last attempt ended, in the words of GASW.",
    ),
    Attribute(
        name="reason",
        kind=Kind.REASON,
        targets=_PACKAGES,
        description="The finer reason of the exit code, such as `out-of-memory`.",
    ),
    Attribute(
        name="cause",
        kind=Kind.REASON,
        targets=_STATEFUL,
        description="Why it was given up, such as `retries-exhausted` or `upstream`.",
    ),
    Attribute(name="activity", targets=_PACKAGES, description="The software that the package runs."),
    Attribute(
        name="state",
        aliases=("status",),
        kind=Kind.STATE,
        targets=_STATEFUL,
        indexed=_STATEFUL,
        description="The state now.",
    ),
    Attribute(
        name="submitted",
        aliases=("submitted_at", "submit_time"),
        kind=Kind.TIME,
        targets=_STATEFUL,
        indexed=_STATEFUL,
        through_job=True,
        description="When the job was submitted.",
    ),
    Attribute(
        name="entered",
        aliases=("entered_at", "enter_time", "state_enter_time"),
        kind=Kind.TIME,
        targets=_STATEFUL,
        description="When it entered its present state.",
    ),
    Attribute(
        name="updated",
        aliases=("updated_at", "last_update", "last_update_time", "update_time"),
        kind=Kind.TIME,
        targets=_STATEFUL,
        description="When the last event that counts for it happened.",
    ),
    Attribute(
        name="attempts",
        aliases=("attempt_count",),
        kind=Kind.COUNT,
        targets=_PACKAGES,
        description="How many attempts there have been.",
    ),
    Attribute(name="held", kind=Kind.FLAG, targets=_STATEFUL, description="Whether it is held."),
    Attribute(name="dropped", kind=Kind.FLAG, targets=_PACKAGES, description="Whether it left the totals of its job."),
    Attribute(name="type", targets=_EVENTS, description="What happened, such as `AttemptFinished`."),
    Attribute(
        name="source",
        kind=Kind.SOURCE,
        targets=_EVENTS,
        description="Which kind of program reported it, such as `agent`.",
    ),
    Attribute(name="stream", targets=_EVENTS, description="Which process or spool of the source counted the event."),
    Attribute(name="attempt", kind=Kind.COUNT, targets=_EVENTS, description="The number of the attempt it is about."),
    Attribute(
        name="time", kind=Kind.TIME, targets=_EVENTS, description="When it happened, by the clock of its source."
    ),
)

ATTRIBUTES: dict[str, Attribute] = {attribute.name: attribute for attribute in _TABLE}
"""All attributes by name, in the order of preference."""

_NAMES: dict[str, Attribute] = {name: each for each in _TABLE for name in (each.name, *each.aliases)}


def find_attribute(name: str) -> Attribute | None:
    """Find an attribute by name or alias, in any case and with `-` for `_`; `tag` stands for all tags."""
    return _NAMES.get(name.lower().replace("-", "_"))


def attribute_names(target: Target | None = None) -> list[str]:
    """The names that a query may use for a target, tags as `tag.NAME`."""
    return [
        f"{TAG_PREFIX}NAME" if each.name == TAG else each.name
        for each in _TABLE
        if target is None or target in each.targets
    ]


def name_hint(name: str, target: Target | None = None) -> str:
    """A suggestion for an unknown name: the nearest one, or the list."""
    known = attribute_names(target)
    aliases = [alias for alias, each in _NAMES.items() if target is None or target in each.targets]
    # Compare only a prefix: the distance of a megabyte to `state` does not matter.
    hint = did_you_mean(name[:40].lower(), {*known, *aliases} - {TAG})
    return hint if hint.startswith("did") else f"attributes: {', '.join(known)}"


def default_indexed(target: Target) -> frozenset[str]:
    """The attributes that are indexed by default."""
    return frozenset(each.name for each in _TABLE if target in each.indexed)


def indexed_names(names: Iterable[str]) -> frozenset[str]:
    """Check the setting with the indexed attributes; `tag` means every tag, `tag.NAME` only that one."""
    found = set()
    for name in names:
        attribute = find_attribute(name)
        if attribute is not None:
            found.add(attribute.name)
        elif name.startswith(TAG_PREFIX) and len(name) > len(TAG_PREFIX):
            found.add(name)
        else:
            raise QueryError(f"{shown(name)} cannot be indexed: no such attribute", next_step=name_hint(name))
    return frozenset(found)
