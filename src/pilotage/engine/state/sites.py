"""Sites and the pilots there, as the engine sees them: what they have, what they were given, what is reserved."""

from __future__ import annotations

import math

import msgspec

from pilotage.book.rows.streams import ReceivedNumbers
from pilotage.engine.selection.candidates import SelectionSnapshot
from pilotage.engine.selection.scores import Operation
from pilotage.engine.selection.site_profile import SiteProfile
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import AttemptCreated
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.reports import Noticed, SiteNoticed
from pilotage.model.resources import Capacity, Demand, Free, count_running, count_waiting, slots_for
from pilotage.model.site import Site
from pilotage.model.texts import changes_often, clipped

_encode = msgspec.json.Encoder().encode


@changes_often
class AttemptState(msgspec.Struct, eq=False):
    """One attempt that is not over as far as anybody knows."""

    ref: AttemptRef
    number: int  # of its package
    place: tuple[int, int, int]  # likewise
    epoch: int
    site: SiteState
    demand: Demand
    shape: int
    created_at: float
    began_at: float  # when it got its lease
    activity: str = ""  # only told where the choice of sites asks
    pilot: str = ""  # the name of the agent that holds its lease, and of the stream that may speak for it
    key: str = ""  # in bound mode, under which it was submitted
    leased: bool = False
    drop_revision: int = 0
    remaining_seconds: float | None = None  # of its pilot's wall time when it was created
    counted: bool = False  # it takes room at its site, and a slot of its pilot
    queued: bool = False  # in bound mode, the batch system has it
    suspect: bool = False
    told: bool = False  # its agent said how it ended
    lost: bool = False
    lost_reason: str = ""
    submitting: bool = False  # it is counted as a submission under way
    choice: SelectionSnapshot | None = None  # how the sites stood when it was given to its own
    operation: Operation | None = None  # a long phase of it is counted as this
    operations_scored: int = 0  # of its long phases, by now

    @property
    def trusted(self) -> bool:
        """Whether it is believed to get somewhere."""
        return not self.suspect and not self.lost


class PilotRequest:
    """A pilot that was asked for, until its batch system is done with it."""

    __slots__ = ("key", "native_id", "requested_at", "site", "spoke", "submitting")

    def __init__(self, key: str, site: SiteState) -> None:
        """Asked for under a key."""
        self.key = key
        self.site = site
        self.native_id = ""
        self.spoke = False
        self.submitting = False  # it is counted as a submission under way
        self.requested_at = 0.0


class PilotState:
    """An agent at a site, as long as it may speak."""

    __slots__ = (
        "_created",
        "_created_text",
        "alike",
        "assigned",
        "backlog",
        "barred",
        "blamed_at",
        "capacity",
        "draining",
        "ends_at",
        "free",
        "gone",
        "heard",
        "heard_at",
        "leaving",
        "name",
        "node",
        "owed",
        "request",
        "sequence",
        "site",
        "suspect",
        "taken_over",
        "waiting",
    )

    def __init__(self, name: str, site: SiteState, *, request: str, heard_at: float) -> None:
        """A pilot that spoke."""
        self.name = name
        self.site = site
        self.request = request
        self.heard_at = heard_at
        self.heard: ReceivedNumbers | None = None  # which of its events, once whoever listens has noted it here
        self.capacity = Capacity(cores_hundredths=0)
        self.free = Free(self.capacity)  # beside what it was given: below nothing where a backlog waits
        self.backlog = 0
        self.alike: int | None = None  # the shape of all that it was given, where it was given nothing else meanwhile
        self.ends_at: float | None = None
        self.leaving = ""
        self.draining = ""  # why it is given nothing more, and is to leave when it holds nothing
        self.node = ""
        self.barred: frozenset[int] = frozenset()  # shapes that may run on some nodes only, and not on its own
        self.sequence = 0
        self.suspect = False
        self.taken_over = False  # from an engine that is gone, and not heard since
        self.blamed_at: float | None = None  # when it was last heard before a silence that its site was blamed for
        self.gone = ""  # why its batch system does not know it any more, which a lease overrules
        self.waiting = False  # its exchange is open and it could take more
        self.assigned: dict[AttemptRef, AttemptState] = {}
        # What it was given, has no more, and has not told the end of → epoch; 0: not known.
        self.owed: dict[AttemptRef, int] = {}
        self._created: AttemptCreated | None = None
        self._created_text = msgspec.Raw()

    def created(self, lease_seconds: float, drop_revision: int) -> tuple[AttemptCreated, msgspec.Raw]:
        """What is written of an attempt that it is given and that nothing is special about, and its text: mostly as before."""
        said = self._created
        if said is None or said.drop_revision != drop_revision or said.lease_seconds != lease_seconds:
            said = self._created = AttemptCreated(
                site=self.site.name, pilot=self.name, lease_seconds=lease_seconds, drop_revision=drop_revision
            )
            self._created_text = msgspec.Raw(_encode(said))
        return said, self._created_text

    def holds(self, event: Event) -> AttemptState | None:
        """The attempt that an event is about, if it was given it and did not lose it: what it says of that is its own."""
        assigned = self.assigned
        held: AttemptState | None
        if len(assigned) == 1:
            (held,) = assigned.values()
            ref = held.ref
            if ref.package != event.package or ref.attempt != event.attempt or ref.job != event.job:
                return None
        elif event.package is None:
            return None
        else:
            held = assigned.get(AttemptRef(event.job or "", event.package, event.attempt or 0))
        return held if held is not None and held.epoch == event.epoch else None

    def take(self, attempt: AttemptState) -> None:
        """Give it an attempt."""
        ref, assigned = attempt.ref, self.assigned
        if not assigned:
            self.alike = attempt.shape
        elif attempt.shape != self.alike:
            self.alike = None
        assigned[ref] = attempt
        if self.owed:
            self.owed.pop(ref, None)
        self.free.take(attempt.demand)

    def give_back(self, ref: AttemptRef) -> AttemptState | None:
        """Take an attempt off it, of which it may still tell the end."""
        attempt = self.assigned.pop(ref, None)
        if attempt is not None:
            self.free.give_back(attempt.demand)
            if not attempt.told:
                self.owed[ref] = attempt.epoch
        return attempt

    def offers(self, capacity: Capacity) -> None:
        """Note what it has; what is left follows from what it was given."""
        self.capacity = capacity
        self.free = Free(capacity)
        for attempt in self.assigned.values():
            self.free.take(attempt.demand)

    def in_backlog(self) -> int:
        """How many of the attempts it was given cannot run beside those before them."""
        if self.alike is not None and self.assigned:
            demand = next(iter(self.assigned.values())).demand
            return max(0, len(self.assigned) - slots_for(demand, self.capacity))
        return count_waiting((attempt.demand for attempt in self.assigned.values()), self.capacity)

    def count_running(self) -> int:
        """How many of the attempts it was given it runs: the first ones, as far as they fit side by side."""
        return count_running((attempt.demand for attempt in self.assigned.values()), self.capacity)


class SiteState:
    """A site: its pilots, what is reserved for it, and how much of it is used, by shape."""

    __slots__ = (
        "answers",
        "bound",
        "by_request",
        "dead_starts",
        "described",
        "expected",
        "fetched_at",
        "full",
        "index",
        "name",
        "noticed",
        "pilots",
        "place",
        "quiet_until",
        "record_scheduled",
        "recorded_at",
        "removal_at",
        "removed",
        "requests",
        "site",
        "slots",
        "status",
        "unchanged_records",
        "used",
        "waiting",
    )

    def __init__(self, site: Site, place: SiteProfile) -> None:
        """A site that answers, as far as anybody knows; `place` is what the choice of sites knows of it."""
        self.site = site
        self.name = site.name
        self.place = place
        self.index = place.index
        self.answers = True
        self.noticed: dict[str, Noticed] = {}  # what does not begin, or runs and does not speak, by key
        self.pilots: dict[str, PilotState] = {}
        self.by_request: dict[str, dict[str, PilotState]] = {}  # the same, by what they were asked for by
        self.requests: dict[str, PilotRequest] = {}
        self.bound: dict[
            str, AttemptState
        ] = {}  # attempts that have a batch job of their own, by key, until they are over
        self.waiting: dict[str, PilotState] = {}
        self.slots = place.slots  # shape → how many of it the live pilots hold at once
        self.used = place.used  # shape → reservations and attempts under way
        self.expected = 0  # pilots that were asked for and have not spoken
        self.fetched_at = 0.0  # when it was last looked whether its pilots could do what is reserved elsewhere
        self.full = False  # no more pilots may be there, until one is gone or the site is another
        self.dead_starts = 0
        self.removal_at = -math.inf  # when a batch job of ours was last removed there, or killed by whoever
        self.quiet_until = 0.0
        self.status = "candidate"  # as it was last written down
        self.record_scheduled = False  # something was learned that is not written down, and a timer looks at it
        self.recorded_at = 0.0  # when it was last written down
        self.unchanged_records = 0  # how often since it last changed
        self.removed = False  # nothing more goes there
        self.described = False  # the book has what it is

    def add_pilot(self, pilot: PilotState) -> None:
        """A pilot speaks here."""
        self.pilots[pilot.name] = pilot
        self.by_request.setdefault(pilot.request, {})[pilot.name] = pilot

    def remove_pilot(self, pilot: PilotState) -> None:
        """It is gone."""
        self.full = False
        self.waiting.pop(pilot.name, None)
        if self.pilots.pop(pilot.name, None) is not None:
            alike = self.by_request[pilot.request]
            del alike[pilot.name]
            if not alike:
                del self.by_request[pilot.request]

    def move_to(self, place: SiteProfile) -> None:
        """The choice of sites knows it anew: what is used and live there goes along."""
        place.slots, place.used, place.backlog = self.slots, self.used, self.place.backlog
        self.place, self.index = place, place.index

    @property
    def asleep(self) -> bool:
        """Whether nothing more goes there until it is woken."""
        return self.place.sleep is not None

    @property
    def known(self) -> bool:
        """Whether anything there can be reached."""
        return self.answers or bool(self.pilots)


THINGS_MAX = 200


def notice(site: SiteState, report: SiteNoticed) -> None:
    """Keep what was noticed, instead of what was before."""
    site.noticed = {
        each.key: Noticed(key=each.key, state=each.state, words=clipped(each.words))
        for each in report.things[:THINGS_MAX]
    }


def has_spoken(site: SiteState, key: str) -> bool:
    """Whether something at a site is known to have spoken, or is not waited for."""
    if (request := site.requests.get(key)) is not None:
        return request.spoke
    attempt = site.bound.get(key)
    return attempt is None or attempt.leased


def silent_batch_jobs(site: SiteState) -> list[Noticed]:
    """What was noticed and still holds; what will not begin by itself first."""
    found = [each for each in site.noticed.values() if not has_spoken(site, each.key)]
    return sorted(found, key=lambda each: each.state != "held")
