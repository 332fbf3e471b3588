"""A small service to try the engine with: agents that do as they are told, a core that is watched.

After every step the whole state is checked. At the end nothing may be left over: an effect, an answer or a reply that
nobody looked at fails the test, and so does a history that does not fold to the same state again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from random import Random
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from pilotage.book.codec import Checked, Refusal
from pilotage.engine.decision_log import ENGINE_STREAM
from pilotage.engine.engine import Engine
from pilotage.engine.explain import explain
from pilotage.engine.restore import JobSnapshot, Snapshot, holds_in
from pilotage.engine.state.jobs import STATUS_NAMES, JobState, QueueClass
from pilotage.model.answers import Explanation
from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import Payload
from pilotage.model.exchange.exchange import Assignment, AttemptRef, Exchange, ExchangeReply
from pilotage.model.exchange.operations import (
    Accepted,
    AnyOperation,
    CancelSubmitted,
    Effect,
    ExpandStage,
    FetchFile,
    Refused,
    Release,
    RemoveFile,
    StoreOutputs,
    SubmitAttempt,
    SubmitPilot,
)
from pilotage.model.exchange.reports import Gone, SiteSeen
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.model.states import ExitCodeGasw, Phase
from pilotage.service.core import Core, start_core
from pilotage.service.messages import Answer, ExpandedPlan, Input, OperationRequest, Outbox, Submit
from pilotage.simulator.world.journal import SimulatedJournal
from tests.kit.decided import check_decisions
from tests.kit.small_plans import IN_ORDER, grown, number_of, registered_of, shape_of

JOB = "j"
START = 1_000.0

AnyEffect = TypeVar(
    "AnyEffect", SubmitPilot, SubmitAttempt, CancelSubmitted, ExpandStage, FetchFile, RemoveFile, StoreOutputs
)

_encode = msgspec.json.Encoder().encode


# --- agents ---------------------------------------------------------------------------------------------------------


class Agent:
    """An agent that does nothing by itself. What it was given and was not told to give back is in `held`."""

    def __init__(self, small: Small, name: str, *, site: str, request: str, **more: Any) -> None:
        self.small = small
        self.name = name
        self.site = site
        self.request = request
        self.about = more  # further fields of its exchanges
        self.seen = 0  # of the book
        self.sequence = 0
        self.n = 0
        self.held: dict[AttemptRef, Assignment] = {}
        self.unacknowledged: list[Event] = []
        self.unread: list[ExchangeReply] = []
        self.left = False  # it was told to leave, and has

    @property
    def packages(self) -> list[str]:
        """The places of the packages it holds, in the order in which it got them."""
        return [ref.package for ref in self.held]

    def ref(self, package: str) -> AttemptRef:
        """The attempt it holds of a package."""
        return next(ref for ref in self.held if ref.package == package)

    def say(self, data: Payload, ref: AttemptRef | None = None, *, epoch: int | None = None, **more: Any) -> Event:
        """Spool an event: about an attempt, or about itself."""
        self.n += 1
        held = self.held.get(ref) if ref is not None else None
        about: dict[str, Any] = {"pilot": self.name}
        if ref is not None:
            about = {"job": ref.job, "package": ref.package, "attempt": ref.attempt}
        event = Event(
            source="agent",
            stream=self.name,
            n=self.n,
            type=type(data).__name__,
            time=self.small.now,
            epoch=epoch or (held.epoch if held is not None else 1),
            seen=self.small.core.engine.state.log.book_position,
            data=msgspec.Raw(_encode(data)),
            **(about | more),
        )
        self.unacknowledged.append(event)
        return event

    def end(
        self,
        ref: AttemptRef,
        *,
        reason: str | None = None,
        message: str = "",
        status: int | None = None,
        epoch: int | None = None,
        phases: Sequence[Phase] = (),
    ) -> None:
        """Spool that an attempt is over: with success, or for a reason; each of its phases took a second."""
        code = ExitCodeGasw.SUCCESS if reason is None else ExitCodeGasw.EXECUTION_FAILED
        manifest = () if reason is None else None
        data = payloads.AttemptFinished(
            exit_code=code,
            reason=reason,
            exit_message=message,
            exit_status=status,
            manifest=manifest,
            phases=tuple(payloads.PhaseTimes(phase=each, started_at=0.0, seconds=1.0) for each in phases),
        )
        self.say(data, ref, epoch=epoch)
        self.held.pop(ref, None)

    def message(self, **more: Any) -> Exchange:
        """The next exchange, with everything that was not acknowledged yet."""
        self.sequence += 1
        said: dict[str, Any] = {
            "pilot": self.name,
            "site": self.site,
            "sequence": self.sequence,
            "seen": self.seen,
            "held": tuple(self.held),
            "events": tuple(self.unacknowledged),
        }
        return Exchange(**(said | self.about | more))

    def exchange(self, *, after: float = 0.0, **more: Any) -> ExchangeReply | None:
        """Say what there is to say; the reply, unless the service has nothing to say yet."""
        self.small.step(self.message(**more), after=after)
        return self.heard()

    def heard(self) -> ExchangeReply | None:
        """The reply that came, if any; it counts as looked at from now on."""
        return self.unread.pop(0) if self.unread else None

    def succeed(self, *packages: str, after: float = 0.0) -> ExchangeReply | None:
        """Tell that these packages succeeded, at once."""
        self.small.now += after
        for package in packages:
            self.end(self.ref(package))
        return self.exchange()

    def fail(self, package: str, reason: str, *, message: str = "", after: float = 0.0) -> ExchangeReply | None:
        """Tell that a package failed, at once."""
        self.small.now += after
        self.end(self.ref(package), reason=reason, message=message)
        return self.exchange()

    def receive(self, reply: ExchangeReply) -> None:
        """Take a reply in as an agent does: one to an exchange that is not the open one is ignored."""
        self.unread.append(reply)
        self.left |= bool(reply.leave)
        if reply.sequence != self.sequence:
            return
        self.seen = max(self.seen, reply.position)
        self.unacknowledged = [event for event in self.unacknowledged if event.n > reply.acknowledged]
        self.held |= {each.ref: each for each in reply.assignments}
        for ref in reply.cancelled:
            self.held.pop(ref, None)


def says_something(reply: ExchangeReply) -> bool:
    """Whether a reply is more than a sign of having heard."""
    return bool(reply.assignments or reply.cancelled or reply.leave)


# --- the service ----------------------------------------------------------------------------------------------------


class Small:
    """A core with a journal in memory. Use it as a context: leaving it checks that nothing was overlooked."""

    def __init__(self, *sites: Site, **settings: Any) -> None:
        self.sites = sites
        self.settings = EngineSettings(**({"selection": IN_ORDER} | settings))
        self.watched = True  # whether every step is checked and written; a large job has no time for it
        self.now = START
        self.core = Core(Engine(sites=sites, settings=self.settings, now=START))
        self.journal = SimulatedJournal(Random(0))
        self.plans: dict[str, list[JobPlan]] = {}
        self.agents: dict[str, Agent] = {}
        self.asked: dict[tuple[str, int], int] = {}  # job and late stage → the revision that was asked for last
        self.book: list[Checked] = []
        self.effects: list[Effect] = []
        self.answers: list[Answer] = []
        self.refused: list[Refusal] = []
        self.wake_at: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    @property
    def engine(self) -> Engine:
        """The engine inside."""
        return self.core.engine

    def close(self) -> None:
        """Everything was looked at, nothing was decided twice, and the history folds to the same state."""
        left = [reply for agent in self.agents.values() for reply in agent.unread if says_something(reply)]
        overlooked = (self.effects, self.answers, self.refused, left)
        assert overlooked == ([], [], [], []), overlooked
        check_decisions(self.book)
        difference = differences(self.replayed().durable_state(), self.engine.durable_state())
        assert not difference, difference

    # --- time and messages ---

    def step(self, *inbox: Input, after: float = 0.0) -> Outbox:
        """One step of the core, whose events are durable before anything of it is released."""
        self.now += after
        outbox = self.core.step(inbox, self.now)
        if self.watched:
            self.engine.sanity_check()
        self.book += outbox.events
        taken = {(one.event.job, type(one.data)) for one in outbox.events}
        for item in inbox:
            if isinstance(item, Submit | ExpandedPlan):
                data = payloads.JobRegistered if isinstance(item, Submit) else payloads.StageExpanded
                if (item.job, data) in taken:
                    self.plans.setdefault(item.job, []).append(item.plan)
        if outbox.events and self.watched:
            self.journal.append(outbox.events, self.now)
            self.core.written(self.journal.sync())
        self.effects += outbox.effects
        for effect in outbox.effects:
            if isinstance(effect, ExpandStage):
                self.asked[effect.job, effect.stage] = effect.revision
        self.answers += outbox.answers
        self.refused += outbox.refused
        for reply in outbox.replies:
            self.agents[reply.pilot].receive(reply)
        self.wake_at = outbox.wake_at
        return outbox

    def wait(self, seconds: float, *alive: Agent) -> None:
        """Let time pass, waking the core when it asks for it; agents that are alive exchange once an interval."""
        until = self.now + seconds
        speak_at = self.now + self.settings.interval_seconds if alive else until
        while True:
            self.now = max(self.now, min(until, speak_at, self.wake_at if self.wake_at is not None else until))
            speaking = alive if alive and self.now >= speak_at else ()
            if speaking:
                speak_at += self.settings.interval_seconds
            self.step(*(agent.message() for agent in speaking))
            if self.now >= until and (self.wake_at is None or self.wake_at > self.now):
                return

    def take(self, kind: type[AnyEffect]) -> list[AnyEffect]:
        """The effects of a kind; they count as carried out from now on."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def submit(self, made: JobPlan, *, job: str = JOB, owner: str = "ada") -> Accepted | Refused:
        """Submit a job; the answer."""
        self.step(Submit(token=7, job=job, registered=registered_of(made, owner=owner), plan=made))
        return self.answers.pop().outcome

    def ask(self, operation: AnyOperation) -> Accepted | Refused:
        """Ask for an operation; the answer."""
        self.step(OperationRequest(token=8, operation=operation))
        return self.answers.pop().outcome

    def grow(self, made: JobPlan, *, late: int, job: str = JOB, revision: int | None = None) -> None:
        """Bring a plan in which a late stage is laid out, as it was last asked for unless a revision is named."""
        asked = self.asked.get((job, late), 0) if revision is None else revision
        expanded = payloads.StageExpanded(stage=late, shape=shape_of(made, late))
        self.step(ExpandedPlan(job=job, stage=late, revision=asked, plan=made, expanded=expanded))

    # --- agents ---

    def agent(self, name: str, *, site: str, request: str = "", **more: Any) -> Agent:
        """An agent that has not said anything yet but that it has started."""
        made = self.agents[name] = Agent(self, name, site=site, request=request, **more)
        made.say(payloads.PilotStarted(site=site, node=more.get("node"), request=request or None))
        return made

    def pilot(self, name: str = "a", *, instance: int = 1, **more: Any) -> Agent:
        """Start the pilot that was asked for at a site, and let it exchange for the first time; it has a whole node."""
        wanted = next(each for each in self.effects if isinstance(each, SubmitPilot) and each.site == name)
        self.effects.remove(wanted)
        capacity = self.engine.state.sites.by_name[name].site.capacity
        made = self.agent(f"{wanted.key}.{instance}", site=name, request=wanted.key, **({"capacity": capacity} | more))
        made.exchange()
        return made

    def bound(self, effect: SubmitAttempt, *, instance: int = 1) -> Agent:
        """Start the agent of a bound attempt, and let it ask for it."""
        name = f"{effect.key}.{instance}"
        made = self.agent(name, site=effect.site, request=effect.key, serves=effect.ref)
        made.exchange()
        return made

    # --- looking ---

    def told(self, kind: type[Payload], package: str | None = None, *, job: str = JOB) -> list[Event]:
        """The events of a kind about a package; where none is named, about the job, or what else it is about."""
        return [
            one.event
            for one in self.book
            if isinstance(one.data, kind)
            and one.event.package == package
            and (one.event.job == job or one.event.job is None)
        ]

    def reserved(self, site: str) -> dict[QueueClass, deque[int]]:
        """The packages that are reserved for a site."""
        state = self.engine.state
        return state.queues.at[state.sites.by_name[site]].reserved

    def created(self, job: str = JOB) -> list[tuple[str, int, str]]:
        """The attempts that were created: package, number, site."""
        return [
            (one.event.package or "", one.event.attempt or 0, one.data.site)
            for one in self.book
            if isinstance(one.data, payloads.AttemptCreated) and one.event.job == job
        ]

    def status(self, package: str, *, job: str = JOB) -> str:
        """Where a package stands."""
        state = self.engine.state.jobs.by_id[job]
        return STATUS_NAMES[state.status[number_of(state.plan.layouts, package)]]

    def standings(self, *, job: str = JOB) -> dict[str, list[str]]:
        """The packages by where they stand."""
        state = self.engine.state.jobs.by_id[job]
        found: dict[str, list[str]] = {}
        for number in range(state.count):
            found.setdefault(STATUS_NAMES[state.status[number]], []).append(state.dotted(number))
        return found

    def explain(self, package: str, *, job: str = JOB) -> Explanation:
        """Why a package is where it is, as the engine alone can tell."""
        state = self.engine.state.jobs.by_id[job]
        return explain(self.engine.state, state, number_of(state.plan.layouts, package))

    # --- starting again ---

    def replayed(self) -> Engine:
        """A new engine that hears of all events."""
        engine = Engine(sites=self.sites, settings=self.settings, now=START)
        plans = {job: list(made) for job, made in self.plans.items()}
        for one in self.book:
            if isinstance(one.data, payloads.JobRegistered | payloads.StageExpanded) and one.event.job is not None:
                engine.bring_plan(one.event.job, plans[one.event.job].pop(0))
            engine.apply(one)
        return engine

    def restarted(self) -> Core:
        """A new core that starts from what the journal holds."""
        streams = {row.stream: row for row in self.journal.streams("service")}
        snapshot = Snapshot(
            jobs=[
                JobSnapshot(
                    row=row,
                    plan=self.plans[row.job][-1],
                    finals=self.journal.finals(row),
                    unfinished=self.journal.unfinished(row),
                    holds=holds_in(row, self.journal.own_events),
                )
                for row in self.journal.live_jobs()
            ],
            pilots=self.journal.pilots(after="", limit=1_000_000),
            sites=self.journal.sites(),
            cached_files=[
                row
                for site in self.journal.sites()
                for row in self.journal.cached_files(site.site, after="", limit=1_000_000)
            ],
            next_n=streams[ENGINE_STREAM].watermark + 1 if ENGINE_STREAM in streams else 1,
            position=self.journal.position(),
        )
        return start_core(
            snapshot,
            sites=self.sites,
            settings=self.settings,
            now=self.now,
            streams=list(self.journal.streams("agent")),
        )

    def finish(self, *, gone: Collection[str] = (), turns: int = 200) -> None:
        """From now on all goes well: nothing is held, every agent comes, everything succeeds; so everything must end.

        Agents that are `gone` are never heard of again. A late stage turns out to have one package.
        """
        self.step(*(SiteSeen(site=each.name, answers=True) for each in self.sites))
        for turn in range(turns):
            self._release_all()
            if not any(_goes_on(job) for job in self.engine.state.jobs.by_id.values()):
                return
            self._end_cancelled()
            for wanted in self.take(SubmitPilot):
                capacity = self.engine.state.sites.by_name[wanted.site].site.capacity
                name = f"{wanted.key}.t{turn}"
                self.agent(name, site=wanted.site, request=wanted.key, capacity=capacity).exchange()
            self.take(SubmitAttempt)
            queued = [
                each for job in self.engine.state.jobs.by_id.values() for _, each in job.attempts() if not each.leased
            ]
            for each in queued:
                self.agent(f"{each.key}.t{turn}", site=each.site.name, request=each.key, serves=each.ref).exchange()
            for late in {(each.job, each.stage): each for each in self.take(ExpandStage)}.values():
                self.grow(grown(self.plans[late.job][-1], late=late.stage), late=late.stage, job=late.job)
            here = [agent for name, agent in self.agents.items() if name not in gone]
            for agent in (each for each in here if each.left and each.held):
                for ref in list(agent.held):  # who leaves has stopped everything, and says so
                    agent.end(ref, reason="platform-failure")
                self.step(agent.message())
            alive = [agent for agent in here if not agent.left]
            for agent in alive:
                agent.about.pop("remaining_seconds", None)
                for ref in list(agent.held):
                    agent.end(ref)
            self.wait(self.settings.interval_seconds + 1.0, *alive)
            for agent in alive:
                agent.unread.clear()
        raise AssertionError({job.id: self.standings(job=job.id) for job in self.engine.state.jobs.by_id.values()})

    def _end_cancelled(self) -> None:
        """The batch system kills what was cancelled, and says so."""
        for cancelled in self.take(CancelSubmitted):
            for agent in (each for each in self.agents.values() if each.request == cancelled.key):
                agent.left = True
                agent.held.clear()
            self.step(Gone(site=cancelled.site, key=cancelled.key, reason="killed"))

    def _release_all(self) -> None:
        for job in self.engine.state.jobs.by_id.values():
            if job.held and _goes_on(job):
                self.ask(Release(job=job.id))
            for number, work in list(job.work.items()):
                if work.held and not job.is_final(number):
                    self.ask(Release(job=job.id, package=job.dotted(number)))

    def restart(self) -> None:
        """The process is gone, with every exchange that was open, and another one takes over."""
        self.core = self.restarted()
        self.step()


def differences(one: Any, other: Any, *, where: str = "") -> list[str]:
    """Where two plain values are not the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [*one, *(key for key in other if key not in one)]
        found = [differences(one.get(key), other.get(key), where=f"{where}/{key}") for key in keys]
        return [each for part in found for each in part]
    return [] if one == other else [f"{where}: {one} != {other}"]


def _goes_on(job: JobState) -> bool:
    return not (job.cancelled or job.aborted) and bool(job.unfinished or job.late)
