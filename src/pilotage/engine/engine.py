"""The engine: events are applied, decisions are made; every decision is itself an event and has been applied when it is told.

`apply` folds an event. `decide` looks at what the events left to be decided and returns the decision events. The parts
that know how are functions in modules of their own, each over the engine: `on_jobs`, `on_attempts` and `on_pilots` fold,
`exchanges`, `leases` and `reports` hear,
`readiness`, `settling`, `dispatch` and `provisioning` decide, `operations` answers people.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from pilotage.book.codec import Checked
from pilotage.book.rows import PackageFacts
from pilotage.engine.ending import look_at_end
from pilotage.engine.explain import explain
from pilotage.engine.fairness import Fairness
from pilotage.engine.guarding import Guard, NoGuard
from pilotage.engine.handlers import DECISIONS, JOB_FOLDS, OTHER_FOLDS, PACKAGE_FOLDS
from pilotage.engine.jobs import JobState
from pilotage.engine.leaving import let_go_of_cleared
from pilotage.engine.openings import Openings
from pilotage.engine.parts import AttemptState, QueueClass, Reservations
from pilotage.engine.places import PilotRequest, PilotState, SiteState
from pilotage.engine.sanity import durable_state, sanity_check
from pilotage.engine.selection import Change, Selection
from pilotage.engine.selection.filters import described
from pilotage.engine.settings import EngineSettings
from pilotage.engine.shapes import SHAPES_MIN, forget_unused_shapes
from pilotage.engine.timers import Timers
from pilotage.model.demand import Demand
from pilotage.model.effects import Effect
from pilotage.model.events import Event, SubjectKind, parse_dotted
from pilotage.model.exchange import AttemptRef
from pilotage.model.explanations import Explanation
from pilotage.model.payloads import Payload
from pilotage.model.plan import JobPlan
from pilotage.model.site import Site

ENGINE_STREAM = "engine"
"""The stream of the decisions: there is one engine, and the journal lets one writer in."""

_encode = msgspec.json.Encoder().encode


class Engine:
    """The state, and the two doors. Everything in it follows from the events but reservations, timers and queues."""

    def __init__(
        self,
        *,
        sites: Sequence[Site],
        settings: EngineSettings,
        now: float = 0.0,
        observed_queue_seconds: Sequence[float] = (),
    ) -> None:
        """Begin with sites and no job; queue times of earlier runs say what is too long before there are own ones."""
        self.settings = settings
        self.guard: Guard = NoGuard()
        self.lease_seconds = settings.lease_seconds
        self.now = now  # the time that leases and pauses are measured in
        self.stamp = now  # what the clock says, for events
        self.position = 0  # of the book, as last told
        self.began_at_position = 0  # what it was then
        self.next_n = 1  # of the stream of decisions
        self.jobs: dict[str, JobState] = {}
        self.pilots: dict[str, PilotState] = {}
        self.requests: dict[str, PilotRequest] = {}
        self.confirmed: dict[str, str] = {}  # pilots that said themselves that they ended, and why
        # By pilot that is gone: why, what it held, and how many of that, the first ones, it was running.
        self.bereft: dict[str, tuple[str, list[AttemptState], int]] = {}
        self.acting: dict[str, dict[AttemptRef, int]] = {}  # by pilot: what may still act, though nobody waits for it
        self.acting_under: dict[str, dict[str, str]] = {}  # by request: the pilots of these, and where they are
        self.haunted: dict[str, None] = {}  # those of them that were given up: a timer has them asked to end
        self.owed: dict[str, dict[AttemptRef, int]] = {}  # the ends that pilots owe which were given up
        self.owners: dict[str, int] = {}  # packages that are reserved or live, by owner
        self.timers = Timers()
        self.provisioned_at = -math.inf
        self.provision_again = False  # a timer will look again
        self.unused_since = math.inf  # since when nothing could use the pilots that were asked for
        self.stopping = False  # nothing more is asked for
        self.shapes: dict[Demand, int] = {}
        self.demands: dict[int, Demand] = {}
        self._shapes_made, self._shapes_max = 0, SHAPES_MIN
        # As it was last asked for: mostly it is asked for again, and to look it up takes all parts of a demand.
        self.latest_shape: tuple[Demand | None, int] = (None, 0)
        self.sites: dict[str, SiteState] = {}
        self.forsaken: dict[SiteState, None] = {}  # those that nobody acts at: they were missing when the engine began
        self.selection = Selection(settings.selection, observed_queue_seconds=observed_queue_seconds)
        self.changes: list[Change] = []  # of how sites stand, which are to be written down
        self.arrived: dict[str, float] = {}  # pilots that were only to show that they come, and how long they queued
        self.queued: list[AttemptState] = []  # bound attempts that were just submitted
        self.ask_again_at = math.inf  # when a timer has what found no site looked at again
        self.openings = Openings(self)
        self.fairness = Fairness(self)
        self.effects: list[Effect] = []
        self.reservations: dict[tuple[int, int], Reservations] = {}  # by shape and priority of the job
        self.active: dict[QueueClass, None] = {}  # classes with ready packages
        self.stuck: dict[QueueClass, None] = {}  # those that no site has room for, and that wait for one to say so
        self.grants: deque[tuple[JobState, int]] = deque()
        self.failed: dict[tuple[JobState, int], None] = {}
        self.dead: deque[tuple[JobState, int]] = deque()  # whose consumers must be given up
        self.revived: dict[tuple[JobState, int], None] = {}  # consumers that may have a future again
        self.ended: dict[JobState, None] = {}  # jobs at whose end something is to be decided
        self.excused = False  # what is lost now is not the fault of its site
        self.failing: dict[JobState, None] = {}  # jobs with a limit of failures, of which one more package has failed
        self.grown: dict[JobState, None] = {}  # jobs whose late stages want a look
        self.stirred = False  # since packages were last bound, something happened that may let one more be bound
        self.pulled: dict[SiteState, None] = {}  # sites where a new reservation may meet a slot
        self.asking: dict[PilotState, None] = {}  # pilots with something newly free
        self.told: dict[str, None] = {}  # pilots there is something new to say to
        self.plans: dict[str, deque[JobPlan]] = {}
        self.closing: dict[JobState, None] = {}  # jobs of which something was cleared
        self.left: dict[str, None] = {}  # ids of jobs that were let go of
        self.departed: list[str] = []  # pilots that ended since somebody looked
        self._orders = 0
        self.decided: list[Checked] = []  # what was not told yet
        # What was said last, and its text: a decision that says nothing of its own is often followed by another one.
        self._said: Payload | None = None
        self._said_text = msgspec.Raw()
        for site in sites:
            self.add_site(site)

    def add_site(self, site: Site) -> SiteState:
        """Know a site from now on; sites are tried in the order in which they came."""
        self.selection.add(described(site))
        state = self.sites[site.name] = SiteState(site, self.selection.place(site.name))
        state.standing_at = self.now
        self.openings.add_site(state)
        return state

    def bring_plan(self, job: str, plan: JobPlan) -> None:
        """Lay a plan ready for the `JobRegistered` or `StageExpanded` that will be applied."""
        self.plans.setdefault(job, deque()).append(plan)

    def next_order(self) -> int:
        """The place of one more job among all there ever were."""
        self._orders += 1
        return self._orders

    def shape_of(self, demand: Demand) -> int:
        """The number of a demand; what takes the same is one shape."""
        latest, shape = self.latest_shape
        if demand is latest:
            return shape
        found = self.shapes.get(demand)
        if found is None:
            found = self._add_shape(demand)
        self.latest_shape = demand, found
        return found

    def _add_shape(self, demand: Demand) -> int:
        if len(self.demands) >= self._shapes_max:
            forget_unused_shapes(self)
            self._shapes_max = max(SHAPES_MIN, 2 * len(self.demands))
        shape = self.shapes[demand] = self._shapes_made
        self._shapes_made += 1
        self.demands[shape] = demand
        self.openings.add_shape(shape, demand)
        return shape

    def apply(self, one: Checked) -> None:
        """Fold an event. What it is about must be known, or it is ignored: the book keeps it all the same."""
        event = one.event
        if event.source == "service" and event.stream == ENGINE_STREAM and event.n >= self.next_n:
            self.next_n = event.n + 1
        job = self.jobs.get(event.job) if event.job is not None else None
        number = None
        if one.place is not None:
            number = job.number(one.place) if job is not None else None
            if number is None:
                return
        self._fold(event, one.data, job, number)

    def apply_to(self, number: int, one: Checked) -> None:
        """As `apply`, for an event that an agent says of a package of which the number was found."""
        event, data = one.event, one.data
        job = self.jobs[event.job or ""]
        if (fold := PACKAGE_FOLDS.get(type(data))) is not None:
            fold(self, job, number, event, data)
            if job.special:
                look_at_end(self, job)

    def _fold(self, event: Event, data: Payload, job: JobState | None, number: int | None) -> None:
        if number is not None:
            if (fold := PACKAGE_FOLDS.get(type(data))) is not None:
                fold(self, job, number, event, data)
                if job is not None and job.special:
                    look_at_end(self, job)
        elif event.job is not None:
            if (fold := JOB_FOLDS.get(type(data))) is not None:
                fold(self, job, event, data)
                if job is not None and job.special:
                    look_at_end(self, job)
        elif (fold := OTHER_FOLDS.get(type(data))) is not None:
            fold(self, event, data)

    def write(
        self,
        data: Payload,
        *,
        job: JobState | None = None,
        number: int | None = None,
        attempt: int | None = None,
        epoch: int = 1,
        pilot: str | None = None,
        site: str | None = None,
        name: str = "",
    ) -> None:
        """Decide: the event is applied at once, and told with the others of its turn. `name` is of a job that begins."""
        if number is not None:
            assert job is not None
            self.write_of(data, job, number, attempt, epoch)
            return
        if data is not self._said:
            self._said, self._said_text = data, msgspec.Raw(_encode(data))
        event = Event(
            source="service",
            stream=ENGINE_STREAM,
            n=self.next_n,
            type=type(data).__name__,
            time=self.stamp,
            job=job.id if job is not None else name or None,
            pilot=pilot,
            site=site,
            epoch=epoch,
            seen=self.position,
            data=self._said_text,
        )
        self.next_n += 1
        kind: SubjectKind = "pilot" if pilot is not None else "job" if site is None else "site"
        self.decided.append(Checked(0, event, kind, None, data))
        self._fold(event, data, job, None)

    def write_of(
        self,
        data: Payload,
        job: JobState,
        number: int,
        attempt: int | None,
        epoch: int,
        text: msgspec.Raw | None = None,
    ) -> None:
        """As `write`, of a package or an attempt of it: most of all that is decided. `text` is that of the data, if known."""
        if text is None:
            if data is not self._said:
                self._said, self._said_text = data, msgspec.Raw(_encode(data))
            text = self._said_text
        dotted, place = job.named(number)
        kind, n = type(data), self.next_n
        event = Event(
            "service", ENGINE_STREAM, n, kind.__name__, self.stamp, job.id, dotted, attempt, None, None,
            epoch, self.position, 1, text,
        )  # fmt: skip
        self.next_n = n + 1
        self.decided.append(Checked(0, event, "package" if attempt is None else "attempt", place, data))
        if (fold := PACKAGE_FOLDS.get(kind)) is not None:
            fold(self, job, number, event, data)
            if job.special:
                look_at_end(self, job)

    def decide(self, now: float) -> list[Checked]:
        """Everything that can be decided now, as events that have been applied; their effects wait in `effects`."""
        self.now = now
        going = True
        while going:
            for decision in DECISIONS:
                decision(self)
            going = bool(
                self.grants
                or self.failed
                or self.dead
                or self.revived
                or self.grown
                or self.ended
                or self.failing
                or self.bereft
                or self.confirmed
                or self.changes
                or self.arrived
            )
        if self.closing:
            let_go_of_cleared(self)
        return self.take_decided()

    def take_decided(self) -> list[Checked]:
        """The decisions that were not told yet."""
        decided, self.decided = self.decided, []
        return decided

    def take_effects(self) -> list[Effect]:
        """The effects that were not told yet."""
        effects, self.effects = self.effects, []
        return effects

    def explain(self, job: str, package: str, facts: PackageFacts | None = None) -> Explanation | None:
        """Why a package, named by its dotted place, is where it is; None where this engine has no such package."""
        known, place = self.jobs.get(job), parse_dotted(package)
        number = (
            known.number((place.stage, place.line, place.number)) if known is not None and place is not None else None
        )
        return explain(self, known, number, facts) if known is not None and number is not None else None

    def sanity_check(self) -> None:
        """Look at the whole state, slowly; raises `Insane` where it contradicts itself."""
        sanity_check(self)

    def durable_state(self) -> dict[str, Any]:
        """Everything in it that follows from events alone, as plain values."""
        return durable_state(self)
