"""Sites and their pilots as the engine sees them: capacity, attempts, reservations."""

from __future__ import annotations

import math

import msgspec

from pilotage.book.rows.streams import ReceivedNumbers
from pilotage.engine.selection.candidates import SelectionSnapshot
from pilotage.engine.selection.scores import Operation
from pilotage.engine.selection.site_profile import SiteProfile
from pilotage.engine.state.run_times import StartCosts
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import AttemptCreated, PhaseTimes
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.reports import Noticed, SiteNoticed
from pilotage.model.resources import Capacity, Demand, Free, count_running, count_waiting, slots_for
from pilotage.model.site import Site
from pilotage.model.texts import changes_often, clipped

_encode = msgspec.json.Encoder().encode


@changes_often
class AttemptState(msgspec.Struct, eq=False):
    """An attempt that is not known to be over."""

    ref: AttemptRef
    number: int  # of its package
    address: tuple[int, int, int]  # of its package
    epoch: int
    site: SiteState
    demand: Demand
    shape: int
    created_at: float
    began_at: float  # when it got its lease
    activity: str = ""  # only set if the selection uses it
    pilot: str = ""  # the agent that holds its lease, and the stream that may report on it
    key: str = ""  # in bound mode, the key of its submission
    leased: bool = False
    drop_revision: int = 0
    remaining_seconds: float | None = None  # of its pilot's wall time, at creation
    applying: bool = False  # its application is known to run, and its scratch folder to be there
    counted: bool = False  # it occupies room at its site, and a slot of its pilot
    queued: bool = False  # in bound mode, the batch system has accepted it
    suspect: bool = False
    end_reported: bool = False  # its agent reported its end
    lost: bool = False
    lost_reason: str = ""
    submitting: bool = False  # it counts as an active submission
    choice: SelectionSnapshot | None = None  # the state of the sites when it was bound
    operation: Operation | None = None  # the scored operation of its current long phase
    operations_scored: int = 0  # of its long phases, so far
    queued_at: float = 0.0  # in bound mode, when the batch system had accepted it
    phase: int = -1  # the number of the latest long phase that it told of; -1: none yet
    phase_at: float = 0.0  # when that began
    phases: tuple[PhaseTimes, ...] = ()  # once it has succeeded as usual
    raced_at: float = math.inf  # since when healing has it race another attempt of its package; infinite: it does not
    group: str = ""  # the key of the batch job that it shares with other attempts
    follows: bool = False  # it began after another one in that batch job: it waited for its turn, too

    @property
    def batch_key(self) -> str:
        """In bound mode, the key of its batch job."""
        return self.group or self.key

    @property
    def trusted(self) -> bool:
        """Whether it is believed to make progress."""
        return not self.suspect and not self.lost


class BatchGroup:
    """Attempts that share one batch job, which runs them one after another: those that are not over."""

    __slots__ = ("began_at", "key", "members")

    def __init__(self, key: str) -> None:
        """Without a member."""
        self.key = key
        self.members: dict[AttemptState, None] = {}  # in their order
        self.began_at = math.inf  # when its first attempt began

    @property
    def waiting(self) -> list[AttemptState]:
        """Those that have not begun."""
        return [each for each in self.members if not each.leased]


class PilotRequest:
    """A requested pilot, until its batch system has finished it."""

    __slots__ = ("contacted", "key", "native_id", "requested_at", "site", "submitted_at", "submitting")

    def __init__(self, key: str, site: SiteState) -> None:
        """Requested with this key."""
        self.key = key
        self.site = site
        self.native_id = ""
        self.contacted = False
        self.submitting = False  # it counts as an active submission
        self.requested_at = 0.0
        self.submitted_at: float | None = None  # when its native id was known


class PilotState:
    """An agent at a site, as long as it may make contact."""

    __slots__ = (
        "_created",
        "_created_text",
        "assigned",
        "backlog",
        "barred",
        "blamed_at",
        "capacity",
        "common_shape",
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
        "served",
        "site",
        "suspect",
        "taken_over",
        "waiting",
    )

    def __init__(self, name: str, site: SiteState, *, request: str, heard_at: float) -> None:
        """A pilot that made contact."""
        self.name = name
        self.site = site
        self.request = request
        self.heard_at = heard_at
        self.heard: ReceivedNumbers | None = None  # its received events, once recorded here
        self.capacity = Capacity(cores_hundredths=0)
        self.free = Free(self.capacity)  # beside its attempts: negative with a backlog
        self.backlog = 0
        self.common_shape: int | None = None  # the common shape of its attempts, if all have the same
        self.ends_at: float | None = None
        self.leaving = ""
        self.draining = ""  # why it gets no more work and leaves when idle
        self.node = ""
        self.served = 0  # attempts of it that the start costs of its site follow from
        self.barred: frozenset[int] = frozenset()  # shapes restricted to other nodes than its own
        self.sequence = 0
        self.suspect = False
        self.taken_over = False  # inherited from an earlier engine, and silent since
        self.blamed_at: float | None = None  # last contact before a silence that was blamed on its site
        self.gone = ""  # why its batch system no longer lists it; a valid lease takes precedence
        self.waiting = False  # its exchange is open and it has room
        self.assigned: dict[AttemptRef, AttemptState] = {}
        # Attempts it lost or gave back without reporting their end → epoch; 0: unknown.
        self.owed: dict[AttemptRef, int] = {}
        self._created: AttemptCreated | None = None
        self._created_text = msgspec.Raw()

    def created(self, lease_seconds: float, drop_revision: int) -> tuple[AttemptCreated, msgspec.Raw]:
        """The payload of a usual new attempt for this pilot, and its encoded text: mostly the same as before."""
        payload = self._created
        if payload is None or payload.drop_revision != drop_revision or payload.lease_seconds != lease_seconds:
            payload = self._created = AttemptCreated(
                site=self.site.name, pilot=self.name, lease_seconds=lease_seconds, drop_revision=drop_revision
            )
            self._created_text = msgspec.Raw(_encode(payload))
        return payload, self._created_text

    def holds(self, event: Event) -> AttemptState | None:
        """The attempt of an event, if this pilot holds it: then its report counts."""
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
        """Assign an attempt."""
        ref, assigned = attempt.ref, self.assigned
        if not assigned:
            self.common_shape = attempt.shape
        elif attempt.shape != self.common_shape:
            self.common_shape = None
        assigned[ref] = attempt
        if self.owed:
            self.owed.pop(ref, None)
        self.free.take(attempt.demand)

    def give_back(self, ref: AttemptRef) -> AttemptState | None:
        """Remove an attempt, whose end it may still report."""
        attempt = self.assigned.pop(ref, None)
        if attempt is not None:
            self.free.give_back(attempt.demand)
            if not attempt.end_reported:
                self.owed[ref] = attempt.epoch
        return attempt

    def offers(self, capacity: Capacity) -> None:
        """Set its capacity; the free part follows from its attempts."""
        self.capacity = capacity
        self.free = Free(capacity)
        for attempt in self.assigned.values():
            self.free.take(attempt.demand)

    def in_backlog(self) -> int:
        """How many of its attempts do not fit beside those before them."""
        if self.common_shape is not None and self.assigned:
            demand = next(iter(self.assigned.values())).demand
            return max(0, len(self.assigned) - slots_for(demand, self.capacity))
        return count_waiting((attempt.demand for attempt in self.assigned.values()), self.capacity)

    def count_running(self) -> int:
        """How many of its attempts are running: the first ones, as far as they fit side by side."""
        return count_running((attempt.demand for attempt in self.assigned.values()), self.capacity)


class SiteState:
    """A site: its pilots, reservations, and used room by shape."""

    __slots__ = (
        "answers",
        "bound",
        "by_request",
        "dead_starts",
        "described",
        "expected",
        "fetched_at",
        "full",
        "groups",
        "index",
        "name",
        "noticed",
        "pilots",
        "profile",
        "quiet_until",
        "record_scheduled",
        "recorded_at",
        "removal_at",
        "removed",
        "requests",
        "site",
        "slots",
        "start_costs",
        "status",
        "unchanged_records",
        "used",
        "waiting",
    )

    def __init__(self, site: Site, profile: SiteProfile) -> None:
        """A site, assumed reachable; `profile` is its profile in the selection."""
        self.site = site
        self.name = site.name
        self.profile = profile
        self.index = profile.index
        self.answers = True
        self.noticed: dict[str, Noticed] = {}  # batch jobs that do not start, or run silently, by key
        self.pilots: dict[str, PilotState] = {}
        self.by_request: dict[str, dict[str, PilotState]] = {}  # pilots by request
        self.requests: dict[str, PilotRequest] = {}
        self.bound: dict[str, AttemptState] = {}  # attempts with a batch job of their own, by key, until they are over
        self.groups: dict[str, BatchGroup] = {}  # batch jobs with several attempts, by key, until these are over
        self.waiting: dict[str, PilotState] = {}
        self.slots = profile.slots  # shape → how many of it the live pilots hold at once
        self.used = profile.used  # shape → reservations and attempts under way
        self.expected = 0  # requested pilots without contact
        self.fetched_at = 0.0  # when its pilots last looked for reservations of other sites
        self.full = False  # no more pilots are allowed, until one ends or the site changes
        self.start_costs = StartCosts()
        self.dead_starts = 0
        self.removal_at = -math.inf  # when a batch job of ours was last removed or killed there
        self.quiet_until = 0.0
        self.status = "candidate"  # as last recorded
        self.record_scheduled = False  # something new is not recorded yet, and a timer is set
        self.recorded_at = 0.0  # when it was last written down
        self.unchanged_records = 0  # records since the last change
        self.removed = False  # it gets no more work
        self.described = False  # the book has its description

    def add_pilot(self, pilot: PilotState) -> None:
        """Add a pilot that made contact."""
        self.pilots[pilot.name] = pilot
        self.by_request.setdefault(pilot.request, {})[pilot.name] = pilot

    def remove_pilot(self, pilot: PilotState) -> None:
        """Remove a pilot that is gone."""
        self.full = False
        self.waiting.pop(pilot.name, None)
        if self.pilots.pop(pilot.name, None) is not None:
            alike = self.by_request[pilot.request]
            del alike[pilot.name]
            if not alike:
                del self.by_request[pilot.request]

    def move_to(self, profile: SiteProfile) -> None:
        """Switch to a new profile of the selection, with the used room and live slots of the old one."""
        profile.slots, profile.used, profile.backlog = self.slots, self.used, self.profile.backlog
        self.profile, self.index = profile, profile.index

    @property
    def asleep(self) -> bool:
        """Whether it gets no work until it is woken."""
        return self.profile.sleep is not None

    @property
    def known(self) -> bool:
        """Whether it can be reached."""
        return self.answers or bool(self.pilots)


THINGS_MAX = 200


def notice(site: SiteState, report: SiteNoticed) -> None:
    """Replace the known silent batch jobs by those of a report."""
    site.noticed = {
        each.key: Noticed(key=each.key, state=each.state, words=clipped(each.words))
        for each in report.things[:THINGS_MAX]
    }


def made_contact(site: SiteState, key: str) -> bool:
    """Whether a batch job is known to have made contact, or is not expected to."""
    if (request := site.requests.get(key)) is not None:
        return request.contacted
    if (group := site.groups.get(key)) is not None:
        return group.began_at < math.inf
    attempt = site.bound.get(key)
    return attempt is None or attempt.leased


def silent_batch_jobs(site: SiteState) -> list[Noticed]:
    """The silent batch jobs that still are; held ones first."""
    found = [each for each in site.noticed.values() if not made_contact(site, each.key)]
    return sorted(found, key=lambda each: each.state != "held")
