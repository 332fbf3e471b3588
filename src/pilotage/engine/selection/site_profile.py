"""One site, as the choice sees it: what is known of it, what is under way there, and what was learned."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from pilotage.engine.selection.black_holes import AllSites, RecentEnds, Streaks
from pilotage.engine.selection.filters import SiteDescription
from pilotage.engine.selection.rolling import Window, median_seconds
from pilotage.engine.selection.scores import Score, graded
from pilotage.engine.selection.status import Sleep, Status
from pilotage.engine.selection.thompson import Arms, Evidence
from pilotage.model.settings.engine import SelectionSettings

# How much may be reserved or under way at a site at once: the smallest of what holds there.
#
# Bound mode: 1 + jobThrottle · TScore (swift-site-selection, max_jobs_per_site). Pilot mode: 1 + ⌈min(1, TScore) ·
# slots factor · live slots⌉ for each shape, and what its pilots let wait besides; 1 + jobThrottle · min(1, TScore)
# while no slot is live. A new site beside others: a few, until one has succeeded or run for a while. A site that
# was woken: one canary, beyond what was there, until an attempt ends.

RoomRule = Literal["bound", "pilots", "no-slots", "trial", "canary", "away"]

_FORMULAS: dict[str, str] = {
    "bound": "1 + job throttle · TScore",
    "pilots": "1 + min(1, TScore) · slots factor · live slots",
    "no-slots": "1 + job throttle · min(1, TScore), while no slot is live",
}


class Room(msgspec.Struct, frozen=True):
    """How much there may be, and what sets that limit."""

    limit: int
    rule: RoomRule

    def tell(self, used: int) -> str:
        """The same in words."""
        if self.rule == "away":
            return "it does not answer"
        if self.rule == "canary":
            return "it was woken, and one canary is out until an attempt ends"
        if self.rule == "trial":
            return f"{used} are reserved or run, and {self.limit} may until one has succeeded or run for a while"
        return f"{used} are reserved or run, and {self.limit} may ({_FORMULAS[self.rule]})"


def room_of(
    tscore: float, *, pilots: bool, job_throttle: float, slots_factor: float, live_slots: int, backlog: int
) -> Room:
    """The room that follows from a TScore for one shape."""
    if pilots and live_slots > 0:
        return Room(1 + math.ceil(min(1.0, tscore) * slots_factor * live_slots) + backlog, "pilots")
    if pilots:  # a good past makes no slots, and what is promised beyond them waits in the wrong place
        return Room(1 + math.floor(job_throttle * min(1.0, tscore)), "no-slots")
    return Room(1 + math.floor(job_throttle * tscore), "bound")


class Underway(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that is not over."""

    activity: str = ""
    created_at: float
    began_at: float | None = None  # None: it is queued


class LearnedState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was learned of a site: all that a restart needs. What is under way is not in it: that is told anew."""

    site: str
    earned: float  # the score without the load of what is under way
    sleep: Sleep | None = None
    times: int = 0  # put to sleep so often since it last did well
    canary: bool = False
    placed: int = 0  # canaries that are out
    waits: tuple[int, ...] = ()  # the latest queue times, in microseconds
    ends: tuple[int, ...] = ()  # the slot time of the latest ends in microseconds and 1 more, negative where one failed
    failed: tuple[str, ...] = ()  # the activities of those that failed, in their order
    arms: tuple[Evidence, ...] = ()
    pilots: dict[str, int] = {}  # platform failures in a row
    nodes: dict[str, int] = {}
    proved: bool = False  # an attempt succeeded there, or ran for a while without one failing
    trial_until: float | None = None  # where one began to run: it is proved when nothing fails before

    @property
    def status(self) -> Status:
        """Whether it sleeps; which of those that do not are overloaded is a matter of the moment."""
        return "candidate" if self.sleep is None else "hibernated"


class SiteProfile:
    """A site; mutable."""

    __slots__ = (
        "answers",
        "arms",
        "backlog",
        "canary",
        "description",
        "ends",
        "everyone",
        "grade",
        "index",
        "live",
        "logged",
        "name",
        "nodes",
        "piloted",
        "pilots",
        "placed",
        "proved",
        "rooms",
        "score",
        "settings",
        "sleep",
        "slots",
        "times",
        "trial_until",
        "used",
        "waits",
        "weight",
        "well",
    )

    def __init__(
        self, description: SiteDescription, *, index: int, settings: SelectionSettings, everyone: AllSites
    ) -> None:
        """A site that nothing has happened at."""
        self.name = description.name
        self.index = index
        self.settings = settings
        self.everyone = everyone
        self.describe(description)
        initial = description.initial_score
        self.score = Score(settings, settings.initial_score if initial is None else initial)
        self.sleep: Sleep | None = None
        self.times = 0
        self.canary = False
        self.placed = 0
        self.proved = False
        self.trial_until: float | None = None
        self.answers = True
        self.live = 0  # attempts
        self.backlog = 0
        self.used: dict[int, int] = {}  # shape → reservations and attempts under way
        self.slots: dict[int, int] = {}  # shape → how many of it the live pilots hold at once
        self.rooms: dict[int, int] = {}  # shape → how many there may be, where it was asked since something changed
        self.grade = self.score.grade  # as pools have it
        self.weight = 1  # likewise
        self.well = False  # one more success changes nothing but its score and its ends
        self.waits = Window()
        self.ends = RecentEnds(everyone)
        self.arms = Arms(settings)
        self.pilots = Streaks(settings)
        self.nodes = Streaks(settings)
        self.logged = -1  # where it stands in the list of changes

    def describe(self, description: SiteDescription) -> None:
        """Know what it is."""
        self.description = description
        self.piloted = description.site.mode == "pilots"

    def room(self, shape: int, *, score: float | None = None) -> Room:
        """How much of a shape may be reserved or under way; as it would be when woken with a score, where one is given."""
        if not self.answers:
            return Room(0, "away")
        used = self.used.get(shape, 0)
        if self.canary and self.placed and score is None:
            return Room(used, "canary")
        about, settings = self.description, self.settings
        room = room_of(
            graded(self.grade if score is None else self.score.grade_with(score)),
            pilots=self.piloted,
            job_throttle=about.site.job_throttle,
            slots_factor=settings.slots_factor,
            live_slots=self.slots.get(shape, 0),
            backlog=self.backlog,
        )
        if not self.proved and self.everyone.sites > 1 and 0 < settings.trial_room < room.limit:
            return Room(settings.trial_room, "trial")
        return room

    def has_room(self, shape: int, *, score: float | None = None) -> bool:
        """Whether one more of a shape may be reserved."""
        used = self.used.get(shape, 0)
        if self.canary or score is not None:
            return used < self.room(shape, score=score).limit
        if not used:
            return self.answers  # where nothing is, there is always room for one
        room = self.rooms.get(shape)
        if room is None:
            room = self.rooms[shape] = self.room(shape).limit
        return used < room

    def left(self, shape: int) -> int:
        """How many more of a shape may be reserved at a site that has room, if each leaves as much as it takes."""
        used = self.used.get(shape, 0)
        if self.canary:
            return 1
        room = self.rooms.get(shape)
        if room is None:
            room = self.rooms[shape] = self.room(shape).limit
        return max(1, room - used)

    @property
    def is_well(self) -> bool:
        """Whether it neither sleeps nor is on trial, and nothing is held against it."""
        return self.sleep is None and self.proved and not (self.canary or self.times or self.failing)

    @property
    def failing(self) -> bool:
        """Whether platform failures are counted against a pilot or a node there."""
        return bool(self.pilots.counted or self.nodes.counted)

    @property
    def median_wait_seconds(self) -> float | None:
        """Of its queue; None where nothing is known."""
        return median_seconds(self.waits)

    def learned_state(self) -> LearnedState:
        """What was learned."""
        return LearnedState(
            site=self.name,
            earned=self.score.earned,
            sleep=self.sleep,
            times=self.times,
            canary=self.canary,
            placed=self.placed,
            waits=self.waits.numbers(),
            ends=tuple(self.ends.latest),
            failed=self.ends.failed(),
            arms=self.arms.evidence(),
            pilots=self.pilots.counts(),
            nodes=self.nodes.counts(),
            proved=self.proved,
            trial_until=self.trial_until,
        )

    def restore(self, learned_state: LearnedState) -> None:
        """Know what was learned; who keeps sums over all sites brings them up to date."""
        self.score.reset(learned_state.earned)
        self.sleep = learned_state.sleep
        self.times = learned_state.times
        self.canary = learned_state.canary
        self.placed = learned_state.placed
        self.waits = Window(learned_state.waits)
        self.ends.restore(learned_state.ends, learned_state.failed)
        self.arms = Arms(self.settings, learned_state.arms)
        self.pilots.restore(learned_state.pilots)
        self.nodes.restore(learned_state.nodes)
        self.proved = learned_state.proved
        self.trial_until = learned_state.trial_until

    def recount(self, attempts: Iterable[Underway], *, samples: bool) -> None:
        """These attempts are under way, whatever was thought; `samples` where evidence by activity is kept."""
        found = list(attempts)
        self.live = len(found)
        self.ends.recount(each.began_at for each in found if each.began_at is not None)
        if samples:
            self.arms.recount((each.activity, each.created_at) for each in found)
        self.placed = min(self.placed, self.live)  # a canary that was only reserved is reserved no more
