"""The history of a site from the book: what was recorded of it, and the pilots that came after the record."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Protocol

from pilotage.forecast.history import LatencyHistory, Submitter
from pilotage.model.resources import AMOUNT_UNKNOWN, KINDS, Amounts, Demand
from pilotage.model.site import Site

WITHDRAWN_REASONS = frozenset({"withdrawn", "cancelled", "probe-timeout", "site-removed"})
"""Why a pilot ends that we or a person no longer wanted: how long it would have waited is not known."""

_LATENCY_SECONDS_MAX = 30 * 86_400.0  # of a pilot whose clock is right
_CLOCK_SECONDS = 60.0  # by which the clock of a pilot may be behind


class PilotRecord(Protocol):
    """A request of a pilot, or a pilot that names its request, as in the rows of the book."""

    @property
    def pilot(self) -> str:
        """Its name; of a request, its key."""

    @property
    def site(self) -> str | None:
        """Where."""

    @property
    def request(self) -> str | None:
        """The request that it answers."""

    @property
    def requested_at(self) -> float | None:
        """When it was requested; None for a pilot."""

    @property
    def submitted_at(self) -> float | None:
        """When its native id was known."""

    @property
    def started_at(self) -> float | None:
        """When it made contact, by its own clock; None for a request."""

    @property
    def ended_at(self) -> float | None:
        """When it ended."""

    @property
    def reason(self) -> str | None:
        """Why it ended."""


def shape_of(demand: Demand) -> str:
    """What the batch job of one attempt asks for, as text."""
    return _shape(demand, nodes=demand.nodes, wall_seconds=demand.wall_seconds)


def shape_of_pilots(site: Site) -> str:
    """What each pilot of a site asks its batch system for, as text."""
    return _shape(site.capacity, nodes=1, wall_seconds=site.wall_seconds)


@lru_cache(maxsize=1024)
def _shape(asked: Amounts, *, nodes: int, wall_seconds: float) -> str:
    known = [(kind.name, getattr(asked, kind.name)) for kind in KINDS]
    parts = [f"{name}={amount}" for name, amount in known if amount and amount != AMOUNT_UNKNOWN]
    if wall_seconds:
        parts.append(f"wall_seconds={wall_seconds:g}")
    return " ".join([f"nodes={nodes}", *parts])


def request_number(key: str, *, site: str) -> int | None:
    """The number in the key of a request, which rises with every request; None where the key is of another form."""
    left = key.removeprefix(f"{site}-")
    number = left.removeprefix("probe-").removeprefix("trial-")
    return int(number) if left != key and number.isascii() and number.isdigit() and len(number) < 17 else None


def is_test(key: str, *, site: str) -> bool:
    """Whether a request is for a test of its site, which gets no work."""
    return key.startswith((f"{site}-probe-", f"{site}-trial-"))


def is_counted(key: str, *, site: str, through: int, unanswered: Collection[int]) -> bool:
    """Whether the outcome of a request is part of a record: all below a number are, but those that were unanswered."""
    number = request_number(key, site=site)
    return number is not None and number < through and number not in unanswered


def learn_from(
    history: LatencyHistory,
    rows: Iterable[PilotRecord],
    *,
    site: str,
    shape: str,
    through: int = 0,
    unanswered: Collection[int] = (),
) -> int:
    """Add what pilots in the book teach that is not part of the record yet; returns how many outcomes were new.

    All pilots of a site have one user, the one that submits there, and the shape of its entry today.
    """
    known = [row for row in rows if row.site == site]
    started: dict[str, list[float]] = {}
    for row in known:
        if row.started_at is not None and row.request:
            started.setdefault(row.request, []).append(row.started_at)
    outcomes = [
        (found, row)
        for row in known
        if row.requested_at is not None
        and request_number(row.pilot, site=site) is not None
        and not is_counted(row.pilot, site=site, through=through, unanswered=unanswered)
        and (found := _known_at(row, started.get(row.pilot, ()))) is not None
    ]
    for at, row in sorted(outcomes, key=lambda each: (each[0], each[1].pilot)):
        assert row.requested_at is not None
        submitter = Submitter("", shape, is_test(row.pilot, site=site))
        waited = at - row.requested_at
        if row.pilot in started:
            took = row.submitted_at - row.requested_at if row.submitted_at is not None else None
            if -_CLOCK_SECONDS <= waited <= _LATENCY_SECONDS_MAX:  # else the clock of the pilot is wrong
                history.started(submitter, at=at, latency_seconds=waited, submission_seconds=took)
        elif row.reason in WITHDRAWN_REASONS:
            history.withdrawn(submitter, at=at, waited_seconds=waited)
        else:
            history.fault(submitter, at=at, waited_seconds=waited)
    return len(outcomes)


def _known_at(row: PilotRecord, started_at: Collection[float]) -> float | None:
    """When the outcome of a request was known; None while it is queued.

    A request may have been started more than once: the first start counts, by a clock that is right if there is one.
    """
    requested_at = row.requested_at or 0.0
    right = [at for at in started_at if -_CLOCK_SECONDS <= at - requested_at <= _LATENCY_SECONDS_MAX]
    return min(right or started_at, default=row.ended_at)
