"""The latencies of the pilots of a site, counted so that they take little room, can be added and never have to be kept.

numpy is imported only where a distribution is computed: whoever holds a history from its start does not pay for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

if TYPE_CHECKING:
    from pilotage.forecast.latency import LatencyDistribution
    from pilotage.forecast.sequential import SequentialSubmission

Basis = Literal["user and shape", "site", "probes"]

STARTS_MIN = 30
"""So many starts make a distribution."""
HOUR_STARTS_MIN = 200
"""So many starts in one hour of the week make a distribution of that hour."""
WINDOW_SECONDS = 3600.0
"""How far back the current fault ratio looks."""
HOURS = 168
"""The hours of a week, in UTC."""
RELATIVE_ERROR = 0.02
"""How far a counted time may be from the measured one."""

_GROWTH = (1.0 + RELATIVE_ERROR) / (1.0 - RELATIVE_ERROR)  # of a bin over the one before it
_SMALLEST_SECONDS, _LARGEST_SECONDS = 0.01, 1e7  # anything below counts as 0, anything above as so much
_PER_LOG = 1.0 / math.log(_GROWTH)
_LAST_BIN = math.ceil(math.log(_LARGEST_SECONDS / _SMALLEST_SECONDS) * _PER_LOG)
_RECENT_MAX = 1000  # starts and faults of which the times are kept
_GROUPS_MAX = 8  # pairs of user and shape that are kept apart at a site, probes not counted
_HOUR_ENTRIES_MAX = 8192  # bins in all cells of all hours; the emptiest cells are given up first
_TRIM_EVERY = 1024  # observations
_LASTING_WEIGHT = 4.0  # pilots that the lasting fault ratio counts as, beside those of the last hour
_REFRESH_SECONDS = 60.0  # how long a distribution stays the same where nothing new is known but the time
_SUBMISSIONS_MAX = 1000  # values by which a distribution of submission times is represented


def bin_of(seconds: float) -> int:
    """The bin of a time."""
    if seconds < _SMALLEST_SECONDS:
        return 0
    return min(_LAST_BIN, max(1, math.ceil(math.log(seconds / _SMALLEST_SECONDS) * _PER_LOG)))


def seconds_of(number: int) -> float:
    """The time that a bin stands for: within the relative error of every time in it."""
    return 0.0 if number == 0 else _SMALLEST_SECONDS * _GROWTH**number * 2.0 / (1.0 + _GROWTH)


def hour_of_week(at: float) -> int:
    """The hour of the week of a time since 1970, in UTC; 0 is the first of a Thursday."""
    return int(at // 3600.0) % HOURS


Bins = dict[int, int]
"""How many times fell into each bin."""


class _Counts:
    """Counted outcomes: latencies of started pilots, their two parts, waits without an end, faults."""

    __slots__ = ("censored", "faults", "latencies", "rests", "starts", "submissions")

    def __init__(self) -> None:
        self.latencies: Bins = {}
        self.submissions: Bins = {}  # S of the paper: request to native id
        self.rests: Bins = {}  # G of the paper: the rest of a latency
        self.censored: Bins = {}
        self.starts = 0
        self.faults = 0

    def add(self, other: _Counts) -> None:
        """Add what another has counted."""
        for mine, theirs in zip(self._bins(), other._bins(), strict=True):
            for number, count in theirs.items():
                mine[number] = mine.get(number, 0) + count
        self.starts += other.starts
        self.faults += other.faults

    def entries(self) -> int:
        """How many bins are used."""
        return sum(map(len, self._bins()))

    def packed(self) -> list[object]:
        """As plain values: the faults, then the bins of each kind, each as its distance from the one before, and its count."""
        return [self.faults, *(_packed(bins) for bins in self._bins())]

    def _bins(self) -> tuple[Bins, Bins, Bins, Bins]:
        return self.latencies, self.submissions, self.rests, self.censored


def _packed(bins: Bins) -> list[int]:
    found: list[int] = []
    last = 0
    for number in sorted(bins):
        found += [number - last, bins[number]]
        last = number
    return found


def _unpacked(values: Sequence[int]) -> Bins:
    found: Bins = {}
    number = 0
    for place in range(0, len(values) - 1, 2):
        number += values[place]
        if values[place] < 0 or values[place + 1] < 0 or number > _LAST_BIN:
            raise ValueError("no such bin")
        found[number] = values[place + 1]
    return found


class _PackedCounts(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    faults: int
    latencies: list[int]
    submissions: list[int]
    rests: list[int]
    censored: list[int]

    def counts(self) -> _Counts:
        found = _Counts()
        found.faults = self.faults
        found.latencies, found.submissions = _unpacked(self.latencies), _unpacked(self.submissions)
        found.rests, found.censored = _unpacked(self.rests), _unpacked(self.censored)
        found.starts = sum(found.latencies.values())
        return found


class Submitter(NamedTuple):
    """Whose pilots are alike: who submits them, and what each asks its batch system for. Probes stand for themselves."""

    user: str
    shape: str
    probe: bool = False


class _Group:
    """Everything counted of one submitter, in all and by hour of the week; a cell may have been given up."""

    __slots__ = ("hours", "last_at", "total")

    def __init__(self) -> None:
        self.total = _Counts()
        self.hours: dict[int, _Counts] = {}
        self.last_at = 0.0

    def add(self, other: _Group) -> None:
        self.total.add(other.total)
        for hour, counts in other.hours.items():
            self.hours.setdefault(hour, _Counts()).add(counts)
        self.last_at = max(self.last_at, other.last_at)


class _PackedGroup(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    user: str
    shape: str
    probe: bool
    last_at: float
    total: _PackedCounts
    hours: dict[int, _PackedCounts]


class _PackedHistory(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    groups: list[_PackedGroup]
    recent: list[tuple[float, bool]]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_PackedHistory).decode


@dataclass(frozen=True, eq=False)
class KnownLatency:
    """What is known of the latency of the next pilots, and from what."""

    latency: LatencyDistribution
    basis: Basis
    starts: int  # that it is made of
    hour: int | None  # of the week, where only starts of this hour count
    submission: SequentialSubmission | None  # S and G apart, where submissions were measured


class LatencyHistory:
    """The latencies of the pilots of one site so far."""

    __slots__ = ("_groups", "_known", "_latest_at", "_recent", "_revision", "_untrimmed")

    def __init__(self) -> None:
        """Start with none."""
        self._groups: dict[Submitter, _Group] = {}
        self._recent: deque[tuple[float, bool]] = deque()  # when a pilot was known to have started, or to be a fault
        self._latest_at = -math.inf
        self._revision = 0
        self._untrimmed = 0
        self._known: dict[Submitter, tuple[tuple[object, ...], KnownLatency | None]] = {}

    @property
    def revision(self) -> int:
        """Changes with every observation."""
        return self._revision

    # --- observations ---

    def started(
        self, submitter: Submitter, *, at: float, latency_seconds: float, submission_seconds: float | None = None
    ) -> None:
        """A pilot started so long after its request; its submission, up to the native id, took a part of that."""
        latency = max(0.0, latency_seconds)
        parts = None
        if submission_seconds is not None:
            submission = min(max(0.0, submission_seconds), latency)
            parts = bin_of(submission), bin_of(latency - submission)
        number = bin_of(latency)
        for counts in self._counted(submitter, at, at - latency):
            counts.starts += 1
            counts.latencies[number] = counts.latencies.get(number, 0) + 1
            if parts is not None:
                counts.submissions[parts[0]] = counts.submissions.get(parts[0], 0) + 1
                counts.rests[parts[1]] = counts.rests.get(parts[1], 0) + 1
        self._remember(at, is_fault=False)

    def fault(self, submitter: Submitter, *, at: float, waited_seconds: float = 0.0) -> None:
        """A pilot ended before it had started."""
        for counts in self._counted(submitter, at, at - max(0.0, waited_seconds)):
            counts.faults += 1
        self._remember(at, is_fault=True)

    def withdrawn(self, submitter: Submitter, *, at: float, waited_seconds: float) -> None:
        """A pilot was withdrawn that was still queued after so long: it would have started later, or never."""
        waited = max(0.0, waited_seconds)
        for counts in self._counted(submitter, at, at - waited):
            _count(counts.censored, waited)

    def _counted(self, submitter: Submitter, at: float, requested_at: float) -> tuple[_Counts, _Counts]:
        """Where an outcome counts: in all, and in the hour of its request."""
        group = self._groups.get(submitter)
        if group is None:
            self._groups[submitter] = _Group()
            self._groups[submitter].last_at = at
            self._merge_unused()
            group = self._groups.get(submitter) or self._groups[OTHERS]
        group.last_at = max(group.last_at, at)
        self._revision += 1
        self._untrimmed += 1
        if self._untrimmed >= _TRIM_EVERY:
            self._trim_hours()
        hour = hour_of_week(requested_at)
        cell = group.hours.get(hour)
        if cell is None:
            cell = group.hours[hour] = _Counts()
        return group.total, cell

    def _remember(self, at: float, *, is_fault: bool) -> None:
        self._latest_at = max(self._latest_at, at)
        self._recent.append((at, is_fault))
        while self._recent and self._recent[0][0] <= self._latest_at - WINDOW_SECONDS:
            self._recent.popleft()
        if len(self._recent) > _RECENT_MAX:
            self._recent.popleft()

    def _merge_unused(self) -> None:
        """Count the submitters unused for longest as one, where there are too many to keep them apart."""
        apart = sorted(
            (name for name in self._groups if not name.probe and name != OTHERS),
            key=lambda name: (self._groups[name].last_at, name),
        )
        for name in apart[: max(0, len(apart) - _GROUPS_MAX)]:
            self._groups.setdefault(OTHERS, _Group()).add(self._groups.pop(name))

    def _trim_hours(self) -> None:
        """Give up the emptiest cells of hours, where there are too many."""
        self._untrimmed = 0
        cells = [
            (counts.starts, name, hour, counts.entries())
            for name, group in self._groups.items()
            for hour, counts in group.hours.items()
        ]
        left = sum(cell[-1] for cell in cells)
        for _, name, hour, entries in sorted(cells):
            if left <= _HOUR_ENTRIES_MAX:
                break
            del self._groups[name].hours[hour]
            left -= entries

    def add(self, other: LatencyHistory) -> None:
        """Add another history of the same site: the two together are as if one had seen everything."""
        for name, group in other._groups.items():
            self._groups.setdefault(name, _Group()).add(group)
        self._revision += 1 + other._revision
        self._latest_at = max(self._latest_at, other._latest_at)
        self._recent.extend(other._recent)
        self._recent = deque(self._last_hour())
        self._merge_unused()
        self._trim_hours()

    def _last_hour(self) -> list[tuple[float, bool]]:
        """The latest starts and faults, in order; outcomes may have become known in another."""
        return sorted(each for each in self._recent if each[0] > self._latest_at - WINDOW_SECONDS)[-_RECENT_MAX:]

    # --- as text ---

    def encoded(self) -> str:
        """As text, equal for equal histories; its size is bounded."""
        self._trim_hours()
        groups = [
            (
                *name,
                group.last_at,
                group.total.packed(),
                {hour: counts.packed() for hour, counts in sorted(group.hours.items())},
            )
            for name, group in sorted(self._groups.items())
        ]
        return _encode((groups, self._last_hour())).decode()

    @classmethod
    def decoded(cls, text: str) -> LatencyHistory | None:
        """Decode a history; None where the text is none."""
        made = cls()
        try:
            packed = _decode(text)
            for each in packed.groups:
                group = made._groups[Submitter(each.user, each.shape, each.probe)] = _Group()
                group.total, group.last_at = each.total.counts(), each.last_at
                group.hours = {hour: counts.counts() for hour, counts in each.hours.items()}
        except (msgspec.DecodeError, ValueError):
            return None
        made._recent = deque(packed.recent)
        made._latest_at = max((at for at, _ in made._recent), default=-math.inf)
        return made

    # --- answers ---

    def starts(self, user: str | None = None, shape: str | None = None) -> int:
        """How many starts are known, of all pilots or of those of a user and a shape; probes count only among all."""
        if user is None and shape is None:
            return sum(group.total.starts for group in self._groups.values())
        return sum(
            group.total.starts
            for name, group in self._groups.items()
            if not name.probe and user in (None, name.user) and shape in (None, name.shape)
        )

    def latest_submitter(self, user: str) -> Submitter:
        """Whose pilots were the latest, of the service itself (no user) or of a user; probes do not count."""
        known = [name for name in self._groups if not name.probe and name != OTHERS and name.user in ("", user)]
        return max(known, key=lambda name: (self._groups[name].last_at, name), default=OTHERS)

    def distribution(
        self, *, now: float, user: str, shape: str, queued_since: Iterable[float] = ()
    ) -> KnownLatency | None:
        """The latency of pilots that a user requests now; None where fewer than 30 starts are known.

        From starts of this user and shape where there are enough, else from all of the site, else with its probes; from those of
        this hour of the week where there are enough. Pilots queued since some times are evidence, too. The result is the same
        until something new is known, for up to a minute.
        """
        name, queued = Submitter(user, shape), tuple(queued_since)
        minute = math.floor(now / _REFRESH_SECONDS)
        asked = (self._revision, minute, queued)
        known = self._known.get(name)
        if known is None or known[0] != asked:
            if len(self._known) >= _GROUPS_MAX:
                self._known.clear()
            known = self._known[name] = (asked, self._distribution(name, minute * _REFRESH_SECONDS, queued))
        return known[1]

    def _distribution(self, name: Submitter, now: float, queued: Sequence[float]) -> KnownLatency | None:
        found = self._basis(name)
        if found is None:
            return None
        basis, groups = found
        hour = hour_of_week(now)
        counts = _sum(cell for group in groups if (cell := group.hours.get(hour)) is not None)
        conditioned = counts.starts >= HOUR_STARTS_MIN
        if not conditioned:
            counts = _sum(group.total for group in groups)
        waits = [max(0.0, now - since) for since in queued]
        ratio = self._fault_ratio(counts, now)
        return KnownLatency(
            latency=_estimated(counts, counts.latencies, waits, ratio),
            basis=basis,
            starts=counts.starts,
            hour=hour if conditioned else None,
            submission=_submission(counts, waits, ratio),
        )

    def _basis(self, name: Submitter) -> tuple[Basis, list[_Group]] | None:
        """The groups that a distribution is made of."""
        alike = self._groups.get(name)
        if alike is not None and alike.total.starts >= STARTS_MIN:
            return "user and shape", [alike]
        serving = [group for each, group in self._groups.items() if not each.probe]
        if sum(group.total.starts for group in serving) >= STARTS_MIN:
            return "site", serving
        everything = list(self._groups.values())
        if sum(group.total.starts for group in everything) >= STARTS_MIN:
            return "probes", everything
        return None

    def _fault_ratio(self, counts: _Counts, now: float) -> float:
        """The fault ratio as of now: from the last hour, and where little happened in it, from before."""
        from pilotage.forecast.fault_ratio import USUAL_HISTORY, current_fault_ratio

        lasting = counts.faults / (counts.faults + counts.starts)
        # What is known in the minute that began at `now` counts, too.
        until = now + _REFRESH_SECONDS
        recent = [each for each in self._recent if until - WINDOW_SECONDS < each[0] <= until]
        if not recent:
            return lasting
        current = current_fault_ratio(
            known_at_seconds=[at for at, _ in recent],
            faults=[is_fault for _, is_fault in recent],
            now_seconds=until,
            history=USUAL_HISTORY,
        )
        return (len(recent) * current + _LASTING_WEIGHT * lasting) / (len(recent) + _LASTING_WEIGHT)


OTHERS = Submitter("", "")
"""Submitters that were unused for long are counted as one."""


def _count(bins: Bins, seconds: float) -> None:
    number = bin_of(seconds)
    bins[number] = bins.get(number, 0) + 1


def _sum(parts: Iterator[_Counts]) -> _Counts:
    found = _Counts()
    for part in parts:
        found.add(part)
    return found


def _estimated(counts: _Counts, started: Bins, waits: Sequence[float], fault_ratio: float) -> LatencyDistribution:
    """The Kaplan-Meier estimate of counted times, which ends at the current fault ratio in place of the lasting one."""
    from pilotage.forecast.censoring import kaplan_meier_of_counts
    from pilotage.forecast.latency import LatencyDistribution

    numbers, censored = sorted(started), sorted(counts.censored)
    found = kaplan_meier_of_counts(
        times_seconds=[seconds_of(number) for number in numbers],
        starts=[started[number] for number in numbers],
        censored_at_seconds=[*map(seconds_of, censored), *waits],
        censored=[*(counts.censored[number] for number in censored), *(1 for _ in waits)],
        faults=counts.faults,
    ).latency
    factor = (1.0 - fault_ratio) / found.started.last_value
    return LatencyDistribution(found.started.scaled(factor), found.observations)


def _submission(counts: _Counts, waits: Sequence[float], fault_ratio: float) -> SequentialSubmission | None:
    """S and G apart; None where too few submissions were measured."""
    if sum(counts.submissions.values()) < STARTS_MIN:
        return None
    import numpy as np

    from pilotage.forecast.sequential import SequentialSubmission

    numbers = sorted(counts.submissions)
    ends = np.cumsum([counts.submissions[number] for number in numbers])
    size = min(int(ends[-1]), _SUBMISSIONS_MAX)
    places = np.searchsorted(ends, (np.arange(size) + 0.5) / size * ends[-1])
    submissions = np.array([seconds_of(number) for number in numbers])[places]
    # A queued pilot has its submission behind it, which is short beside the wait.
    return SequentialSubmission(submissions, _estimated(counts, counts.rests, waits, fault_ratio))
