"""Candidate sets: which sites fit the requirements of a class, their status, and their weights.

There is one set for each distinct requirement. Changes of sites go into one list; a set reads on in that list when it is used,
so a change costs nothing for sets that are not used.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import Literal

from pilotage.engine.selection.filters import Requirements, SiteDescription, allows
from pilotage.engine.selection.sampling import Weights
from pilotage.engine.selection.site_profile import SiteProfile
from pilotage.engine.selection.status import wakes_at

REFUSED, CANDIDATE, HIBERNATED, OVERLOADED = range(4)
NAMES = ("", "candidate", "hibernated", "overloaded")

How = Literal["chosen", "filled", "idle"]
"""By a choice among sites; by filling all sites, as more was ready than they had room for; by an idle pilot that fetched it."""


class ChangeLog:
    """The sites that changed, by index, in order."""

    __slots__ = ("_indices", "_kept_max", "_read", "end", "start")

    def __init__(self) -> None:
        """Start with an empty list."""
        self._indices: list[int] = []
        self._kept_max = 1024
        self.start = 0  # position of the first entry kept
        self.end = 0  # position after the last entry
        self._read = 0  # furthest position read by any set

    def allow_for(self, sites: int) -> None:
        """Limit the list to twice the number of sites: a set that is further behind checks all sites instead."""
        self._kept_max = max(1024, 2 * sites)

    def note(self, profile: SiteProfile) -> None:
        """A site changed; noted once until it is read."""
        if profile.logged >= self._read:
            return
        if len(self._indices) > self._kept_max:
            self.start = self._read = self.end  # a set that is behind checks every site, which is no more to read
            self._indices.clear()
        profile.logged = self.end
        self.end += 1
        self._indices.append(profile.index)

    def since(self, position: int) -> Collection[int] | None:
        """The sites changed since a position, each once; None if that is too long ago."""
        self._read = self.end
        if position < self.start:
            return None
        return self._indices[-1:] if position == self.end - 1 else set(self._indices[position - self.start :])


class CandidateSet:
    """The sites for one requirement."""

    __slots__ = (
        "_able",
        "_allowed",
        "_awake",
        "_descriptions",
        "_late",
        "_weights",
        "asleep",
        "awake",
        "counts",
        "position",
        "requirements",
        "shape",
        "status",
        "users",
    )

    def __init__(self, requirements: Requirements, shape: int) -> None:
        """Start empty; `refresh` fills it."""
        self.requirements = requirements
        self.shape = shape
        self.users = 0  # number of classes that use it; an unused set may be forgotten
        self._weights = Weights()
        self._late: dict[int, int] = {}  # weights that changed since they were last used
        self.status = bytearray()  # by index
        self.counts = [0, 0, 0, 0]  # by status
        self.awake = 0  # sites that fit, answer, and are not hibernated
        self.asleep = (0.0, 0.0)  # from when until when none of them is woken, as of now
        self._descriptions: list[SiteDescription | None] = []
        self._allowed = bytearray()
        self._able: list[int] | None = None  # cached indices, until something changes
        self._awake = bytearray()
        self.position = -1  # in the list of changes

    def refresh(self, profiles: list[SiteProfile | None], changes: ChangeLog) -> None:
        """Apply the changes since the last call."""
        if self.position == changes.end:
            return
        if len(profiles) != len(self._descriptions):
            self._widen(len(profiles) - len(self._descriptions))
        changed = changes.since(self.position)
        shape, statuses, counts, weights = self.shape, self.status, self.counts, self.weights
        for index in range(len(profiles)) if changed is None else changed:
            profile = profiles[index]
            if (
                profile is None
                or profile.sleep is not None
                or not profile.answers
                or not self._awake[index]
                or self._descriptions[index] is not profile.description
            ):
                self._update(profile, index)
                continue
            # The usual case: only its room or its weight can have changed.
            if profile.has_room(shape):
                status, weight = CANDIDATE, profile.weight
            else:
                status, weight = OVERLOADED, 0
            if (before := statuses[index]) != status:
                statuses[index] = status
                counts[before] -= 1
                counts[status] += 1
            weights[index] = weight
        self.position = changes.end

    @property
    def weights(self) -> Weights:
        """The weights of the candidates."""
        if self._late:
            late, self._late = self._late, {}
            for index, weight in late.items():
                self._weights[index] = weight
        return self._weights

    def candidates(self) -> list[int]:
        """The candidates by index; fast if they are few."""
        found: list[int] = []
        at = self.status.find(CANDIDATE)
        while at >= 0:
            found.append(at)
            at = self.status.find(CANDIDATE, at + 1)
        return found

    def fill(self, index: int) -> None:
        """A candidate has no more room; nothing else has changed there."""
        if self.status[index] == CANDIDATE:
            self.status[index] = OVERLOADED
            self.counts[CANDIDATE] -= 1
            self.counts[OVERLOADED] += 1
            self._late[index] = 0

    def open(self, index: int, weight: int) -> None:
        """An overloaded site has room again; nothing else has changed there."""
        if self.status[index] == OVERLOADED:
            self.status[index] = CANDIDATE
            self.counts[OVERLOADED] -= 1
            self.counts[CANDIDATE] += 1
            self._late[index] = weight

    def weigh(self, index: int, weight: int) -> None:
        """A site has another weight, if it is a candidate; nothing else has changed there."""
        if self.status[index] == CANDIDATE:
            self._late[index] = weight

    def _widen(self, more: int) -> None:
        self._descriptions += [None] * more
        for flags in (self.status, self._allowed, self._awake):
            flags.extend(bytes(more))
        self.counts[REFUSED] += more

    def allowed(self, index: int) -> bool:
        """Whether a site fits the requirements."""
        return bool(self._allowed[index])

    def able(self) -> list[int]:
        """The sites that fit the requirements, by index."""
        if self._able is None:
            self._able = [index for index, allowed in enumerate(self._allowed) if allowed]
        return self._able

    def is_awake(self, index: int) -> bool:
        """Whether a site fits, answers, and is not hibernated."""
        return bool(self._awake[index])

    def _update(self, profile: SiteProfile | None, index: int) -> None:
        description = None if profile is None else profile.description
        if self._descriptions[index] is not description:
            self._descriptions[index] = description
            self._allowed[index] = description is not None and allows(description, self.requirements)
            self._able = None
        status, awake, weight = REFUSED, False, 0
        if profile is not None and self._allowed[index]:
            awake = profile.sleep is None and profile.answers
            if profile.sleep is not None:
                status = HIBERNATED
            elif profile.has_room(self.shape):
                status, weight = CANDIDATE, profile.weight
            else:
                status = OVERLOADED
        if awake != self._awake[index]:
            self.asleep = (0.0, 0.0)
        self.awake += awake - self._awake[index]
        if profile is not None and profile.sleep is not None and status == HIBERNATED:
            due = wakes_at(profile.sleep, profile.times, profile.settings, alone=not self.awake)
            self.asleep = (self.asleep[0], min(self.asleep[1], due))
        self._awake[index] = awake
        self.counts[self.status[index]] -= 1
        self.counts[status] += 1
        self.status[index] = status
        self.weights[index] = weight


class SelectionSnapshot:
    """The state of the sites for the requirements of a class, by index."""

    __slots__ = ("at", "how", "requirements", "scores", "status", "until", "weights")

    def __init__(
        self,
        pool: CandidateSet,
        profiles: Sequence[SiteProfile | None],
        *,
        requirements: Requirements,
        at: float,
        until: float,
        how: How,
    ) -> None:
        """Record the current state, and how a site is chosen; `until` says how long the snapshot may be shared."""
        self.at = at
        self.until = until
        self.how = how
        self.requirements = requirements
        self.status = bytes(pool.status)
        self.scores, self.weights = array("f", [0.0]) * len(self.status), array("Q", [0]) * len(self.status)
        for index in pool.candidates():
            if (profile := profiles[index]) is not None:
                self.scores[index], self.weights[index] = profile.score.value, profile.weight

    def share(self, index: int) -> float:
        """The share of one candidate in the weight of all."""
        total = sum(self.weights)
        return self.weights[index] / total if total else 0.0
