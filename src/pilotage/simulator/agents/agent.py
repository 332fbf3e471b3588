"""Simulated agents: they use the real exchange, and run attempts with simulated outcomes and faults.

An agent states everything it knows in each exchange, and accepts a reply only for the open one. A poll without events is
replaced when there are events; an exchange with events is answered at once, so the next one waits for its reply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pilotage.model.events.payloads import PhaseEntered, PilotEnded, PilotStarted
from pilotage.model.exchange.exchange import Assignment, AttemptRef, Exchange, ExchangeReply
from pilotage.model.resources import Capacity
from pilotage.model.site import Site
from pilotage.simulator.agents.attempt import CANCELLED, WITH_PILOT, Run
from pilotage.simulator.agents.misbehaviour import Rogue
from pilotage.simulator.agents.slots import SlotTable
from pilotage.simulator.agents.spool import Spool
from pilotage.simulator.world.agent_context import AgentContext, Host
from pilotage.simulator.world.behaviour import DEADLY

BY_NATURE = {
    "looping": "package_loops",
    DEADLY: "package_kills",
}  # behaviour of a package that counts as a kind of fault
SKEW_SECONDS = 3 * 3600.0  # largest error of a wrong clock
PAUSE_SECONDS = (1.0, 600.0)


class Agent:
    """One process at a site: a pilot, or the agent of a bound attempt, which it `serves`, with those that share its batch job."""

    __slots__ = (
        "_armed_at",
        "_asks",
        "_due_at",
        "_flushing",
        "_following",
        "_given",
        "_has_unsent",
        "_heard_at",
        "_host",
        "_idle_since",
        "_interval_seconds",
        "_limit_at",
        "_news",
        "_opened_at",
        "_patience_seconds",
        "_paused_until",
        "_sequence",
        "_service_time",
        "_site",
        "_spool",
        "_world",
        "alive",
        "backlog",
        "bench",
        "leaving",
        "name",
        "node",
        "request",
        "serves",
    )

    def __init__(
        self,
        world: AgentContext,
        host: Host,
        *,
        name: str,
        request: str,
        site: Site,
        serves: AttemptRef | None = None,
        capacity: Capacity | None = None,
        node: str = "",
    ) -> None:
        """Create an agent that has not started; it has a whole node of the site unless a capacity is given.

        Its node has its own name unless one is given.
        """
        settings, now = world.settings, world.schedule.now
        self._world = world
        self._host = host
        self._site = site.name
        self.name = name
        self.node = node or name
        self.request = request
        self.serves = serves
        self.backlog = 0 if serves is not None else settings.backlog
        room = capacity if capacity is not None else site.capacity
        self.bench = SlotTable(world, host, agent=name, site=site.name, capacity=room, on_time=self._on_time)
        self.alive = True
        self.leaving = ""
        margin_seconds = min(settings.wall_margin_seconds, 0.5 * site.wall_seconds)
        # The end of its wall time; once it is leaving, when it stops sending its last events.
        self._limit_at = now + site.wall_seconds - margin_seconds if site.wall_seconds else math.inf
        self._interval_seconds = settings.interval_seconds
        self._patience_seconds = settings.patience_intervals * settings.interval_seconds
        self._heard_at = self._idle_since = now
        self._sequence = 0
        self._service_time = 0.0  # the service's clock in the last reply
        self._opened_at = -1.0  # of the open exchange; negative: none is open
        self._news = False  # the open exchange has events, so it is answered at once
        self._has_unsent = False  # there are events beyond those of the open exchange
        self._flushing = False
        self._given = False  # it has had work
        self._following = 0  # attempts that its batch job runs after the latest one
        self._asks = False  # the open exchange was sent without an attempt
        self._due_at = self._armed_at = math.inf
        self._paused_until = -1.0
        self._spool = Spool(world, name, node=self.node)

    # --- the process -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Report its start, and ask for work."""
        world, capacity = self._world, self.bench.capacity
        world.agents[self.name] = self
        if world.injector.strikes("clock_skewed"):
            self._spool.skew_seconds = world.injector.between("clock_skewed", low=-SKEW_SECONDS, high=SKEW_SECONDS)
        if world.witness is not None:
            world.witness.on_pilot(self.name, self._site, capacity, self.backlog, node=self.node)
        slots = max(1, capacity.cores_hundredths // 100)
        self._spool.add_event(PilotStarted(site=self._site, node=self.node, slots=slots, request=self.request or None))
        self._exchange()

    def kill(self, reason: str = "ended") -> None:
        """End at once without a message; the batch system sees the reason."""
        if not self.alive:
            return
        self.alive = False
        self.bench.remove_all()
        self._spool = Spool(self._world, self.name, node=self.node)  # unsent events are lost
        self._world.agents.pop(self.name, None)
        self._host.ended(self.name, reason)

    def pause(self, seconds: float) -> None:
        """Stand still for a time, with all attempts here, and then go on as if no time had passed."""
        now = self._world.schedule.now
        if self.alive and now >= self._paused_until:
            self._paused_until = now + seconds
            self.bench.postpone(seconds)

    def _check(self) -> None:
        """Check what is due: a repetition, a heartbeat, the end of its wall time or of its patience."""
        schedule, settings = self._world.schedule, self._world.settings
        now = schedule.now
        if not self.alive:
            return
        if now < self._paused_until:
            schedule.post(self._paused_until, self._check)
            return
        if now >= self._armed_at:
            self._armed_at = math.inf
        if now < self._due_at:
            if self._due_at < self._armed_at:
                self._arm(self._due_at)
        elif (self.leaving and now >= self._limit_at) or now >= self._heard_at + settings.outlive_seconds:
            self.kill()
        elif now >= self._limit_at:
            self._depart("wall-time", stopping=WITH_PILOT)
        else:
            if 0.0 <= self._opened_at <= now - self._patience_seconds:
                longer_seconds = self._patience_seconds * settings.patience_growth
                self._patience_seconds = min(longer_seconds, settings.patience_seconds_max)
            self._exchange()

    def _wake_at(self, time: float) -> None:
        """Check again at a time, or at its end if that is earlier."""
        self._due_at = due_at = time if time < self._limit_at else self._limit_at  # noqa: FURB136 # a call costs more
        if due_at < self._armed_at:
            self._arm(due_at)

    def _arm(self, time: float) -> None:
        self._armed_at = time
        self._world.schedule.post(time, self._check)

    def _depart(self, reason: str, *, stopping: str) -> None:
        """Stop all attempts for a reason, and end as soon as the service knows."""
        now = self._world.schedule.now
        self.leaving = reason
        self._limit_at = now + self._world.settings.farewell_seconds
        for run in list(self.bench.held.values()):
            run.cut(stopping if run.running else "preempted", at=now)
            self.bench.remove(run)
            self._spool.add_end(run, now=now)
        self._spool.add_event(PilotEnded(reason=reason))
        self._exchange()

    # --- the exchange ------------------------------------------------------------------------------------------------

    def _exchange(self) -> None:
        world = self._world
        now = world.schedule.now
        bench, spool, limit_at = self.bench, self._spool, self._limit_at
        if bench.held:
            for run in bench.held.values():
                if now >= run.quiet_until:
                    self._tell_long_phase(run, now)
        self._sequence += 1
        self._opened_at = now
        self._asks = not bench.held
        self._news = bool(spool.events)
        self._has_unsent = False
        time = spool.local(now) if spool.skew_seconds else now
        remaining_seconds = None if limit_at == math.inf else max(0.0, limit_at - now)
        held = tuple(bench.held) if bench.held else ()
        events = spool.take_all() if spool.smuggled else tuple(spool.events)
        message = Exchange(
            self.name, self._site, self._sequence, spool.seen, time, self._service_time, self.serves, self.node,
            bench.capacity, self.backlog, remaining_seconds, self.leaving, held, events,
        )  # fmt: skip
        world.network.send(message, world.uplink)
        if self._armed_at > (beat_at := now + self._interval_seconds):
            # Most replies arrive, and then the next thing due is the heartbeat: one alarm serves both.
            self._arm(min(beat_at, limit_at))
        self._due_at = due_at = now + self._patience_seconds
        if due_at > limit_at or due_at < self._armed_at:
            self._wake_at(due_at)
        if not world.injector.quiet:
            self._draw_faults()

    def _draw_faults(self) -> None:
        injector, schedule = self._world.injector, self._world.schedule
        reach_seconds = 2.0 * self._interval_seconds
        if injector.strikes("agent_killed"):
            schedule.after(
                injector.between("agent_killed", low=0.0, high=reach_seconds), self._apply_fault, "agent_killed", 0.0
            )
        if injector.strikes("agent_paused"):
            seconds = injector.between("agent_paused", low=PAUSE_SECONDS[0], high=PAUSE_SECONDS[1])
            after_seconds = injector.between("agent_paused", low=0.0, high=reach_seconds)
            schedule.after(after_seconds, self._apply_fault, "agent_paused", seconds)
        if injector.strikes("agent_rogue"):
            injector.had_no_effect("agent_rogue")  # until its message arrives
            held = {name: each.bench.held for name, each in self._world.agents.items() if isinstance(each, Agent)}
            Rogue(self.name, self._spool, held, injector.dice.stream("rogues")).lie()

    def _apply_fault(self, kind: str, seconds: float) -> None:
        """Die or stand still as drawn, unless it is dead or stands still already."""
        if not self.alive or (kind == "agent_paused" and self._world.schedule.now < self._paused_until):
            self._world.injector.had_no_effect(kind)
        elif kind == "agent_killed":
            self.kill()
        else:
            self.pause(seconds)

    def _speak_soon(self) -> None:
        """There are events: send them together with those of the next moment."""
        self._has_unsent = True
        if not self._flushing:
            self._flushing = True
            settings, schedule = self._world.settings, self._world.schedule
            seconds = settings.linger_seconds if self.bench.waiting else settings.hold_seconds
            schedule.post(schedule.now + seconds, self._flush)

    def _flush(self) -> None:
        if not self.alive:
            return
        schedule = self._world.schedule
        if schedule.now < self._paused_until:
            schedule.post(self._paused_until, self._flush)
            return
        self._flushing = False
        if not self._has_unsent:
            return
        if self._opened_at >= 0.0 and self._news:
            rush_at = self._opened_at + self._world.settings.rush_seconds
            if schedule.now < rush_at:
                self._wake_at(rush_at)
                return
        self._exchange()

    def receive(self, reply: ExchangeReply) -> None:
        """Handle a reply if it answers the open exchange."""
        world, spool = self._world, self._spool
        now = world.schedule.now
        if not self.alive:
            return
        if now < self._paused_until:
            world.schedule.post(self._paused_until, self.receive, reply)
            return
        if self._opened_at < 0.0 or reply.sequence != self._sequence:
            return
        opened_at, self._opened_at = self._opened_at, -1.0
        self._heard_at = now
        self._service_time = reply.time
        self._interval_seconds = reply.interval_seconds
        self._patience_seconds = world.settings.patience_intervals * reply.interval_seconds
        if reply.position > spool.seen:
            spool.seen = reply.position
        spool.acknowledge(reply.acknowledged)
        if self.leaving:
            if spool.events:
                self._wake_at(now + world.settings.rush_seconds)
            else:
                self.kill()
            return
        for ref in reply.cancelled:
            self._cancel(ref)
        if reply.leave:
            self._depart(reply.leave[:64], stopping="preempted")
            return
        for assignment in reply.assignments:
            self._accept(assignment)
        bench = self.bench
        if bench.waiting:
            bench.start_waiting()
        if bench.held or not self._end_if_idle(now):
            self._listen(reply, opened_at)

    def _listen(self, reply: ExchangeReply, opened_at: float) -> None:
        """Open the next exchange: at once if there is something to send or to fetch, else as a heartbeat."""
        now, bench = self._heard_at, self.bench
        waiting = len(bench.waiting)
        if self._has_unsent:
            self._exchange()
        elif waiting >= self.backlog and (waiting or bench.free.cores_hundredths <= 0):
            due_at = opened_at + reply.interval_seconds
            self._wake_at(due_at if due_at > now else now)  # noqa: FURB136 # a call costs more
        elif self._news or reply.assignments or reply.cancelled or now >= opened_at + 0.5 * reply.interval_seconds:
            self._exchange()
        else:  # an early answer without content: the service does not keep polls open
            self._wake_at(opened_at + reply.interval_seconds)

    def _end_if_idle(self, now: float) -> bool:
        # Only while no exchange is open: then no assignment is on its way that the service would wait for.
        if self.serves is not None and self._given and (self._asks or not self._following):
            self._depart("finished", stopping=CANCELLED)
        elif now - self._idle_since >= self._world.settings.idle_seconds:
            self._depart("idle", stopping=CANCELLED)
        return bool(self.leaving)

    # --- the attempts ------------------------------------------------------------------------------------------------

    def _accept(self, assignment: Assignment) -> None:
        world, bench, ref = self._world, self.bench, assignment.ref
        if ref in bench.held:
            return
        if ref in self._spool.ends and self._spool.repeat_end(ref):
            self._speak_soon()
            return
        if world.witness is not None:
            world.witness.on_assigned(self.name, assignment, world.schedule.now)
        self._given = True
        self._following = assignment.following
        run = bench.held[ref] = Run(assignment)
        bench.waiting.append(run)
        if assignment.demand is not bench.fitting and bench.never_fits(assignment.demand):
            self._idle_since = now = world.schedule.now
            run.cut("platform-failure", at=now)
            bench.remove(run)
            self._spool.add_end(run, now=now)
            self._speak_soon()

    def _cancel(self, ref: AttemptRef) -> None:
        run = self.bench.held.get(ref)
        if run is None:
            return
        self.bench.remove(run)
        self._idle_since = now = self._world.schedule.now
        if run.running:
            run.cut(CANCELLED, at=now)
            self._spool.add_end(run, now=now)
            self._speak_soon()

    def _on_time(self, run: Run) -> None:
        """An attempt reaches its next time, unless it was stopped or postponed meanwhile."""
        if run.stopped:
            return
        world, bench = self._world, self.bench
        now, reason = world.schedule.now, run.reason
        if now < run.ends_at:
            world.schedule.post(run.ends_at, self._on_time, run)
            return
        if reason is None:
            world.store.stage(run.assignment.ref)
        elif reason in BY_NATURE:
            world.injector.count(BY_NATURE[reason])
        bench.remove(run)
        if reason == DEADLY:
            self.kill("killed")
            return
        self._idle_since = now
        self._spool.add_end(run, now=now)
        if bench.waiting:
            bench.start_waiting()
        if self.serves is not None and not bench.held and not self._following:
            self._depart("finished", stopping=CANCELLED)
        elif world.settings.hold_seconds > 0.0:
            self._speak_soon()
        elif self._opened_at < 0.0:
            self._flushing = False
            self._exchange()
        else:
            self._has_unsent = True
            self._flush()

    def _tell_long_phase(self, run: Run, now: float) -> None:
        found = run.long_phase(now=now, interval_seconds=self._interval_seconds)
        if found is not None:
            phase, begins_at = found
            self._spool.add_attempt_event(run.assignment, PhaseEntered(phase=phase), time=begins_at)


# All agents of a simulation: starts them and delivers replies.


class Fleet:
    """Starts agents and delivers replies to the live ones."""

    def __init__(self, world: AgentContext) -> None:
        """Take what the agents share."""
        self._world = world
        self._bring, self._bring_all = self._hand_over, self._hand_over_all  # one bound method for all replies

    @property
    def live(self) -> int:
        """How many agents are alive."""
        return len(self._world.agents)

    def start(
        self,
        name: str,
        host: Host,
        *,
        request: str,
        site: Site,
        serves: AttemptRef | None = None,
        capacity: Capacity | None = None,
        node: str = "",
    ) -> Agent:
        """Start an agent under a new name; it has a whole node unless a capacity is given."""
        agent = Agent(
            self._world, host, name=name, request=request, site=site, serves=serves, capacity=capacity, node=node
        )
        agent.start()
        return agent

    def deliver(self, replies: Sequence[ExchangeReply]) -> None:
        """Send replies; an agent that is gone when its reply arrives does not get it."""
        self._world.network.send_all(replies, self._bring, self._bring_all)

    def _hand_over(self, reply: ExchangeReply) -> None:
        agent = self._world.agents.get(reply.pilot)
        if agent is not None:
            agent.receive(reply)

    def _hand_over_all(self, replies: Sequence[ExchangeReply]) -> None:
        agents = self._world.agents
        for reply in replies:
            agent = agents.get(reply.pilot)
            if agent is not None:
                agent.receive(reply)
