"""Sites for what is asked: which of the three sets each is in, and the weights of those that can be picked.

There is a pool for each different thing that is asked. What happens at a site goes into one list; a pool reads on in that list when it is
asked, so what happens costs nothing for pools that nobody asks.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import Literal

from pilotage.engine.selection.filters import Asked, SiteDescription, allows
from pilotage.engine.selection.sampling import Weights
from pilotage.engine.selection.site_profile import SiteProfile
from pilotage.engine.selection.status import wakes_at

REFUSED, CANDIDATE, HIBERNATED, OVERLOADED = range(4)
NAMES = ("", "candidate", "hibernated", "overloaded")

How = Literal["chosen", "filled", "idle"]
"""By a choice among sites; where more was ready than all had room for; by a pilot that had nothing to do."""


class Changes:
    """The sites at which something happened, by index, in order."""

    __slots__ = ("_indices", "_kept_max", "_read", "end", "start")

    def __init__(self) -> None:
        """Begin with none."""
        self._indices: list[int] = []
        self._kept_max = 1024
        self.start = 0  # the position of the first that is kept
        self.end = 0  # the position after the last
        self._read = 0  # no pool has read further

    def allow_for(self, sites: int) -> None:
        """There are so many sites: whoever is behind by more than twice that had better look at all of them."""
        self._kept_max = max(1024, 2 * sites)

    def note(self, place: SiteProfile) -> None:
        """Something happened at a site; once is enough until somebody has read it."""
        if place.logged >= self._read:
            return
        if len(self._indices) > self._kept_max:
            self.start = self._read = self.end  # whoever is behind looks at every site, which is no more to read
            self._indices.clear()
        place.logged = self.end
        self.end += 1
        self._indices.append(place.index)

    def since(self, position: int) -> Collection[int] | None:
        """The sites from a position on, each once; None where that is too long ago."""
        self._read = self.end
        if position < self.start:
            return None
        return self._indices[-1:] if position == self.end - 1 else set(self._indices[position - self.start :])


class CandidateSet:
    """The sites for one thing that is asked."""

    __slots__ = (
        "_able",
        "_allowed",
        "_awake",
        "_late",
        "_seen",
        "_weights",
        "asked",
        "asleep",
        "awake",
        "counts",
        "position",
        "shape",
        "status",
        "users",
    )

    def __init__(self, asked: Asked, shape: int) -> None:
        """Nothing is known before `refresh`."""
        self.asked = asked
        self.shape = shape
        self.users = 0  # how many keep it at hand; without any it may be forgotten
        self._weights = Weights()
        self._late: dict[int, int] = {}  # weights that changed and that nobody has asked for since
        self.status = bytearray()  # by index
        self.counts = [0, 0, 0, 0]  # by status
        self.awake = 0  # sites that could do it, answer, and do not sleep
        self.asleep = (0.0, 0.0)  # from when until when none of them is woken, as things stand
        self._seen: list[SiteDescription | None] = []
        self._allowed = bytearray()
        self._able: list[int] | None = None  # those that are, where somebody asked since it changed
        self._awake = bytearray()
        self.position = -1  # in the list of changes

    def refresh(self, places: list[SiteProfile | None], changes: Changes) -> None:
        """Take notice of what happened since it was last asked."""
        if self.position == changes.end:
            return
        if len(places) != len(self._seen):
            self._widen(len(places) - len(self._seen))
        changed = changes.since(self.position)
        shape, statuses, counts, weights = self.shape, self.status, self.counts, self.weights
        for index in range(len(places)) if changed is None else changed:
            place = places[index]
            if (
                place is None
                or place.sleep is not None
                or not place.answers
                or not self._awake[index]
                or self._seen[index] is not place.description
            ):
                self._look(place, index)
                continue
            # As it mostly is: all that can have changed is whether it has room, and its weight.
            if place.has_room(shape):
                status, weight = CANDIDATE, place.weight
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
        """What each that can be picked weighs."""
        if self._late:
            late, self._late = self._late, {}
            for index, weight in late.items():
                self._weights[index] = weight
        return self._weights

    def candidates(self) -> list[int]:
        """Those that can be picked, by index; quick where they are few."""
        found: list[int] = []
        at = self.status.find(CANDIDATE)
        while at >= 0:
            found.append(at)
            at = self.status.find(CANDIDATE, at + 1)
        return found

    def fill(self, index: int) -> None:
        """A site that was a candidate has no more room, and nothing else has changed there."""
        if self.status[index] == CANDIDATE:
            self.status[index] = OVERLOADED
            self.counts[CANDIDATE] -= 1
            self.counts[OVERLOADED] += 1
            self._late[index] = 0

    def open(self, index: int, weight: int) -> None:
        """A site that was overloaded has room, and nothing else has changed there."""
        if self.status[index] == OVERLOADED:
            self.status[index] = CANDIDATE
            self.counts[OVERLOADED] -= 1
            self.counts[CANDIDATE] += 1
            self._late[index] = weight

    def weigh(self, index: int, weight: int) -> None:
        """A site weighs something else where it is a candidate, and nothing else has changed there."""
        if self.status[index] == CANDIDATE:
            self._late[index] = weight

    def _widen(self, more: int) -> None:
        self._seen += [None] * more
        for flags in (self.status, self._allowed, self._awake):
            flags.extend(bytes(more))
        self.counts[REFUSED] += more

    def allowed(self, index: int) -> bool:
        """Whether a site could do what is asked."""
        return bool(self._allowed[index])

    def able(self) -> list[int]:
        """The sites that could do what is asked, by index."""
        if self._able is None:
            self._able = [index for index, allowed in enumerate(self._allowed) if allowed]
        return self._able

    def is_awake(self, index: int) -> bool:
        """Whether there is hope in a site: it could do it, answers, and does not sleep."""
        return bool(self._awake[index])

    def _look(self, place: SiteProfile | None, index: int) -> None:
        description = None if place is None else place.description
        if self._seen[index] is not description:
            self._seen[index] = description
            self._allowed[index] = description is not None and allows(description, self.asked)
            self._able = None
        status, awake, weight = REFUSED, False, 0
        if place is not None and self._allowed[index]:
            awake = place.sleep is None and place.answers
            if place.sleep is not None:
                status = HIBERNATED
            elif place.has_room(self.shape):
                status, weight = CANDIDATE, place.weight
            else:
                status = OVERLOADED
        if awake != self._awake[index]:
            self.asleep = (0.0, 0.0)
        self.awake += awake - self._awake[index]
        if place is not None and place.sleep is not None and status == HIBERNATED:
            due = wakes_at(place.sleep, place.times, place.settings, alone=not self.awake)
            self.asleep = (self.asleep[0], min(self.asleep[1], due))
        self._awake[index] = awake
        self.counts[self.status[index]] -= 1
        self.counts[status] += 1
        self.status[index] = status
        self.weights[index] = weight


class SelectionSnapshot:
    """How the sites stood for what a class asked, by their indices."""

    __slots__ = ("asked", "at", "how", "scores", "status", "until", "weights")

    def __init__(
        self,
        pool: CandidateSet,
        places: Sequence[SiteProfile | None],
        *,
        asked: Asked,
        at: float,
        until: float,
        how: How,
    ) -> None:
        """Note how they stand now, and how a site is come by; `until` says how long the snapshot may be shared."""
        self.at = at
        self.until = until
        self.how = how
        self.asked = asked
        self.status = bytes(pool.status)
        self.scores, self.weights = array("f", [0.0]) * len(self.status), array("Q", [0]) * len(self.status)
        for index in pool.candidates():
            if (place := places[index]) is not None:
                self.scores[index], self.weights[index] = place.score.value, place.weight

    def share(self, index: int) -> float:
        """How much of the weight of all candidates one had."""
        total = sum(self.weights)
        return self.weights[index] / total if total else 0.0
