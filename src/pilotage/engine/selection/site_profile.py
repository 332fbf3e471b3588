"""One site as the selection sees it: its description, its active attempts, and what was learned."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from pilotage.engine.selection.black_holes import AllSites, FailureStreaks, RecentEnds
from pilotage.engine.selection.filters import SiteDescription
from pilotage.engine.selection.rolling import Window, median_seconds
from pilotage.engine.selection.scores import Score, graded
from pilotage.engine.selection.status import Sleep, Status
from pilotage.engine.selection.thompson import Arms, Evidence
from pilotage.model.settings.engine import SelectionSettings

# How many packages may be reserved or active at a site: the smallest of the limits that apply.
#
# Bound mode: 1 + jobThrottle · TScore (swift-site-selection, max_jobs_per_site). Pilot mode: 1 + ⌈min(1, TScore) ·
# slots factor · live slots⌉ for each shape, plus the backlog of its pilots; 1 + jobThrottle · min(1, TScore) without a
# live slot. A new site beside others: a few, until one has succeeded or run for a while. A woken site: one canary,
# beyond what was there, until an attempt ends.

RoomRule = Literal["bound", "pilots", "no-slots", "trial", "canary", "away"]

_FORMULAS: dict[str, str] = {
    "bound": "1 + job throttle · TScore",
    "pilots": "1 + min(1, TScore) · slots factor · live slots",
    "no-slots": "1 + job throttle · min(1, TScore), while no slot is live",
}


class Room(msgspec.Struct, frozen=True):
    """The limit, and the rule behind it."""

    limit: int
    rule: RoomRule

    def describe(self, used: int) -> str:
        """The limit in words."""
        if self.rule == "away":
            return "it does not answer"
        if self.rule == "canary":
            return "it was woken, and one canary is out until an attempt ends"
        if self.rule == "trial":
            return (
                f"{used} are reserved or running; the limit is {self.limit} until one has succeeded or run for a while"
            )
        return f"{used} are reserved or running; the limit is {self.limit} ({_FORMULAS[self.rule]})"


def room_of(
    tscore: float, *, pilots: bool, job_throttle: float, slots_factor: float, live_slots: int, backlog: int
) -> Room:
    """The room for one shape at a TScore."""
    if pilots and live_slots > 0:
        return Room(1 + math.ceil(min(1.0, tscore) * slots_factor * live_slots) + backlog, "pilots")
    if pilots:  # a good score makes no slots, and reservations beyond them wait in the wrong place
        return Room(1 + math.floor(job_throttle * min(1.0, tscore)), "no-slots")
    return Room(1 + math.floor(job_throttle * tscore), "bound")


class Underway(msgspec.Struct, frozen=True, kw_only=True):
    """An active attempt."""

    activity: str = ""
    created_at: float
    began_at: float | None = None  # None: it is queued


class LearnedState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was learned of a site: all that a restart needs, without active attempts, which are counted again."""

    site: str
    earned: float  # the score without load
    sleep: Sleep | None = None
    times: int = 0  # hibernations since its last success
    canary: bool = False
    placed: int = 0  # active canaries
    waits: tuple[int, ...] = ()  # the latest queue times, in microseconds
    ends: tuple[int, ...] = ()  # slot time of the latest ends in microseconds plus 1, negative for a failure
    failed: tuple[str, ...] = ()  # activities of these failures, in order
    arms: tuple[Evidence, ...] = ()
    pilots: dict[str, int] = {}  # consecutive platform failures
    nodes: dict[str, int] = {}
    proved: bool = False  # an attempt succeeded there, or ran for a while without a failure
    trial_until: float | None = None  # end of the trial of a started site: it is proved if nothing fails before

    @property
    def status(self) -> Status:
        """Whether it is hibernated; whether a site is overloaded is only known at the moment."""
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
        """A site without any history."""
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
        self.live = 0  # active attempts
        self.backlog = 0
        self.used: dict[int, int] = {}  # shape → reservations and attempts under way
        self.slots: dict[int, int] = {}  # shape → how many of it the live pilots hold at once
        self.rooms: dict[int, int] = {}  # shape → limit, cached since the last change
        self.grade = self.score.grade  # as candidate sets have it
        self.weight = 1  # likewise
        self.well = False  # one more success changes only its score and its ends
        self.waits = Window()
        self.ends = RecentEnds(everyone)
        self.arms = Arms(settings)
        self.pilots = FailureStreaks(settings)
        self.nodes = FailureStreaks(settings)
        self.logged = -1  # its position in the list of changes

    def describe(self, description: SiteDescription) -> None:
        """Set the description."""
        self.description = description
        self.piloted = description.site.mode == "pilots"

    def room(self, shape: int, *, score: float | None = None) -> Room:
        """The room for a shape; with `score`, as it would be when woken with that score."""
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

    def room_after(self, shape: int, *, successes: int) -> Room:
        """The room for a shape after so many more successes, each of a submission and an attempt."""
        return self.room(
            shape, score=self.score.earned + 2.0 * successes * self.settings.success if successes else None
        )

    def has_room(self, shape: int, *, score: float | None = None) -> bool:
        """Whether one more of a shape may be reserved."""
        used = self.used.get(shape, 0)
        if self.canary or score is not None:
            return used < self.room(shape, score=score).limit
        if not used:
            return self.answers  # an empty site always has room for one
        room = self.rooms.get(shape)
        if room is None:
            room = self.rooms[shape] = self.room(shape).limit
        return used < room

    def left(self, shape: int) -> int:
        """How many more of a shape may be reserved at a site with room, if no reservation changes the limit."""
        used = self.used.get(shape, 0)
        if self.canary:
            return 1
        room = self.rooms.get(shape)
        if room is None:
            room = self.rooms[shape] = self.room(shape).limit
        return max(1, room - used)

    @property
    def is_well(self) -> bool:
        """Whether it is neither hibernated nor on trial, and nothing counts against it."""
        return self.sleep is None and self.proved and not (self.canary or self.times or self.failing)

    @property
    def failing(self) -> bool:
        """Whether platform failures count against a pilot or a node there."""
        return bool(self.pilots.counted or self.nodes.counted)

    @property
    def median_wait_seconds(self) -> float | None:
        """Median queue time; None without any."""
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
        """Restore what was learned; the caller updates sums over all sites."""
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
        """Set the active attempts; `samples` if evidence by activity is kept."""
        found = list(attempts)
        self.live = len(found)
        self.ends.recount(each.began_at for each in found if each.began_at is not None)
        if samples:
            self.arms.recount((each.activity, each.created_at) for each in found)
        self.placed = min(self.placed, self.live)  # a canary that was only reserved no longer is
