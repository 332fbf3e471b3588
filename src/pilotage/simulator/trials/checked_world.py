"""A complete world: sites and agents, the service, a user, and the checkers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from pilotage.book.codec import Checked, Codec
from pilotage.book.rows.rows import INCIDENTS, JobRow
from pilotage.engine.consistency import abandoned_attempts
from pilotage.engine.decision_log import ENGINE_STREAM
from pilotage.engine.engine import Engine
from pilotage.engine.past_pilots import ended_pilots
from pilotage.engine.restore import JobSnapshot, Snapshot, holds_in, next_number
from pilotage.engine.state.job_queries import find_attempt
from pilotage.engine.state.sites import PilotRequest
from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.events.file_payloads import OutputsDisposed
from pilotage.model.exchange.exchange import AttemptRef, Exchange, ExchangeReply
from pilotage.model.exchange.operations import (
    Clear,
    Drop,
    Effect,
    Hold,
    Kill,
    PurgeFiles,
    Release,
    Restart,
    Restore,
)
from pilotage.model.exchange.reports import AnyReport, OutputsCopied
from pilotage.service.core import LATE_INTERVALS, Core, start_core
from pilotage.service.messages import Answer, OperationRequest, Outbox, Reload, SiteOperationRequest, Submit
from pilotage.simulator.agents.agent import Fleet
from pilotage.simulator.agents.attempt import manifest_of
from pilotage.simulator.checkers.observer import Explain, Observer, Rules, States, Violation
from pilotage.simulator.checkers.provisioning import Planned
from pilotage.simulator.trials.definition import SiteSketch, World
from pilotage.simulator.world.assembly import START, SimulatedWorld, SiteSetup
from pilotage.simulator.world.behaviour import RandomBehaviour
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.jobs import Definitions, Growth
from pilotage.simulator.world.journal import Fenced, SimulatedJournal
from pilotage.simulator.world.network import Network
from pilotage.simulator.world.randomness import Dice
from pilotage.simulator.world.service_process import durable_growth
from pilotage.simulator.world.transfers import FilesSetup
from pilotage.simulator.world.users import User

_FILES_MAX = 1_000_000
_PILOTS_MAX = 1_000_000
_REPEATABLE = Kill | Hold | Release | Drop | Restore | Clear
"""Operations that may be requested twice: the second one is refused, or changes nothing; a second replica would be one more."""

OnDurable = Callable[[Checked, float], None]


_EARLIER_SECONDS = 86400.0  # how long ago an earlier service ended
_LOADED_EVERY = 8
_IDLE_STEPS_MAX = 10  # of which nothing came, between two checks of the whole state
_LOADED = Event(
    source="service",
    stream=ENGINE_STREAM,
    n=3,
    type="Noted",
    time=START,
    data=msgspec.Raw(msgspec.json.encode(payloads.Noted(text="loaded from the book of another service"))),
)
"""The event that an imported job leaves in the stream of decisions, in the book of some of the worlds."""


class CheckedWorld:
    """A running world, with everything around the service and the agents."""

    def __init__(self, world: World, *, on_durable: OnDurable) -> None:
        """Assemble everything; nothing happens before `begin`."""
        self.world = world
        self.schedule = schedule = Schedule(START)
        self.dice = dice = Dice(world.seed)
        self.calm = False
        self._stopped_at = START
        self._on_durable = on_durable
        self._sites = tuple(sketch.site for sketch in world.sites)
        self.observer = Observer(_rules(world))
        self.journal = SimulatedJournal(dice.stream("journal"))
        self.definitions = Definitions(world.jobs, seed=world.seed)
        self._simulated = simulated = SimulatedWorld(
            [_setup(sketch) for sketch in world.sites],
            schedule=schedule,
            dice=dice,
            faults=world.faults,
            service=self,
            journal=self.journal,
            definitions=self.definitions,
            timing=world.timing,
            latency=world.latency,
            as_json=True,
            behaviour=RandomBehaviour(
                world.seed,
                world.packages,
                {each.site.name: each.habits for each in world.sites},
                loops=world.faults.package_loops,
                kills=world.faults.package_kills,
            ),
            fleet=Fleet,
            agents=world.agents,
            witness=self.observer,
            on_read=self.observer.on_read,
            uplink=self._uplink,
            report=self._report,
            files=_files_setup(world),
            manifest=manifest_of,
            file_witness=self.observer.files,
            file_report=self._report,
        )
        self.injector, self.driver = simulated.injector, simulated.driver
        self.user = User(
            schedule=schedule,
            injector=self.injector,
            dice=dice,
            habits=world.user,
            definitions=self.definitions,
            ask=self._ask,
            answered=self.observer,
        )
        # Answers and submissions are not encoded as JSON here.
        self._user_network = Network(schedule, self.injector, dice, world.latency, plain=True)
        self._growth: dict[str, Growth] = {}  # by the durable events
        self._reserved: dict[tuple[str, str], str] = {}  # by job and address: the site
        self._planned: dict[str, float] = {}  # by site: when its last plan was made
        self._idle_steps = 0  # since the state of the engine was checked
        self._acting: dict[AttemptRef, str] = {}  # by the engine of the last step

    # --- the run -----------------------------------------------------------------------------------------------------

    @property
    def elapsed_seconds(self) -> float:
        """Virtual time since the start."""
        return self.schedule.now - START

    @property
    def packages(self) -> int:
        """How many packages all jobs in the book have by now."""
        return sum(self.definitions.plan(job, growth).count for job, growth in self._growth.items())

    def begin(self) -> None:
        """Start the service, poll the sites, and let the user submit."""
        if self.world.seed % _LOADED_EVERY == 0:
            self._append(_LOADED)
        self._load_latencies()
        self._simulated.begin()
        self.user.submit_all(self.world.jobs)

    def _append(self, event: Event) -> None:
        """Write an event of an earlier service into the book: its stream has numbers of its own and none before it."""
        checked = Codec().check(event)
        if not isinstance(checked, Checked):
            raise TypeError(checked.message)
        self.journal.append([checked], self.schedule.now)
        self.journal.sync()

    def _load_latencies(self) -> None:
        """Let an earlier service have recorded the latencies of pilots at some sites."""
        earlier = Engine(sites=self._sites, settings=self.world.settings, now=START).state
        for number, sketch in enumerate(self.world.sites):
            if not sketch.known_latencies:
                continue
            site = earlier.sites.by_name[sketch.site.name]
            for seconds in sketch.known_latencies:
                request = PilotRequest("", site)
                request.requested_at = START - _EARLIER_SECONDS - seconds
                earlier.latencies.pilot_started(site, request, at=START - _EARLIER_SECONDS)
            learned = earlier.latencies.record_of(site.name, site, through=0)
            data = msgspec.Raw(msgspec.json.encode(learned))
            self._append(
                Event(
                    source="service",
                    stream=ENGINE_STREAM,
                    n=_LOADED.n + 1 + number,
                    type=type(learned).__name__,
                    time=START,
                    site=site.name,
                    data=data,
                )
            )

    def stop_faults(self) -> None:
        """Stop all faults."""
        self.calm = True
        self._stopped_at = self.schedule.now
        self.injector.stop()

    def check(self) -> None:
        """Check the live state."""
        self.observer.check(self.schedule.now)
        if self.driver.core is not None:
            self._check_explanations(self.driver.core)

    def is_over(self) -> bool:
        """Whether everything has ended; raises if it should have and has not."""
        horizon = self.world.horizon_seconds
        states = self.journal.states().packages
        over = self.observer.check_finished(
            states, stopped_at=self._stopped_at, horizon_seconds=horizon, now=self.schedule.now
        )
        if self.user.settled and self.driver.core is not None:
            return over
        if self.schedule.now > self._stopped_at + horizon:
            raise Violation("finishing", "something is still held, or a job was never accepted", subject="user")
        return False

    def finish(self) -> None:
        """Check everything once more after the end."""
        core = self.driver.core
        if core is None:
            raise Violation("finishing", "the service is down, though all faults have stopped", subject="service")
        for job, refused in self.user.refused.items():
            raise Violation("admission", f"was refused: {refused.message}", subject=job)
        self.observer.finished(self.journal.states().packages, self._explainer(core), self._refold)
        self.observer.files.check_left_over(self._simulated.transfers.drafts)
        self._compare(self._restored(self.driver.clock).engine, "at the end")
        core.engine.sanity_check()

    # --- the environment of the service --------------------------------------------------------------------------------

    def carry_out(self, effect: Effect) -> None:
        """Carry out an effect of the service at a site."""
        self._simulated.carry_out(effect)

    def deliver(self, replies: Sequence[ExchangeReply]) -> None:
        """Send replies to the live agents."""
        self._simulated.deliver(replies)

    def tell(self, answer: Answer) -> None:
        """Send the user an answer, which may get lost."""
        self._user_network.send(answer, self.user.receive_answer)

    def written(self, events: Sequence[Checked]) -> None:
        """Show the durable events to all observers."""
        now = self.schedule.now
        for checked in events:
            job = checked.event.job or ""
            if isinstance(checked.data, payloads.JobRegistered):
                self._growth[job] = ()
                self.observer.on_plan(job, self.definitions.plan(job, ()))
            elif isinstance(checked.data, payloads.StageExpanded):
                self._growth[job] = (*self._growth[job], *durable_growth([checked])[job])
                self.observer.on_plan(job, self.definitions.plan(job, self._growth[job]))
            self._on_durable(checked, now)
            self.observer.on_written((checked,), now)
            if isinstance(checked.data, OutputsDisposed):
                event = checked.event
                self._simulated.outputs.dispose(AttemptRef(job, event.package or "", event.attempt or 0))
        self.user.on_written(events)

    def crashed(self) -> None:
        """The service died; or it only lost its lock, lives on, and writes its last decisions after another one has started."""
        self.observer.on_crash(self.schedule.now)
        self._simulated.transfers.service_crashed()
        if late := self.driver.unwritten:
            after = 2 * self.world.timing.restart_seconds
            self.schedule.after(after, self._write_late, late, self.journal.generation)

    def _write_late(self, events: Sequence[Checked], generation: int) -> None:
        with suppress(Fenced):  # it is refused, and ends
            self.journal.append_late(events, self.schedule.now, generation=generation)

    def stepped(self, core: Core, outbox: Outbox) -> None:
        """Check the whole state of the engine after each step of which something came, and sometimes after another one."""
        plans = [each for each in _plans(core.engine) if self._planned.get(each.site) != each.made_at]
        self._planned |= {each.site: each.made_at for each in plans}
        self.observer.on_decided(outbox.events, self.schedule.now, reserved=self._reserved, plans=plans)
        self._idle_steps += 1
        if self._idle_steps >= _IDLE_STEPS_MAX or outbox.events or outbox.effects or outbox.answers or outbox.replies:
            self._idle_steps = 0
            core.engine.sanity_check()
        self._reserved = _reserved(core.engine)
        self.observer.files.on_decided(outbox.events, self._reserved)
        self._acting = abandoned_attempts(core.engine.state)

    def clock_set(self, *, since: float, due: float) -> None:
        """Inform the observers of times."""
        self.observer.on_clock_set(since=since, due=due, now=self.schedule.now)

    def start(self, now: float) -> Core:
        """A core from the rows of the book, which must equal one from all events."""
        self.journal.take_over()
        core = self._restored(self.driver.clock)
        self.observer.on_began(now)
        self._compare(core.engine, "after a restart")
        for batch in self._simulated.batch_systems.values():
            batch.relist()
        return core

    # --- inside ------------------------------------------------------------------------------------------------------

    def _uplink(self, exchange: Exchange) -> None:
        self.user.before_exchange(exchange)
        if self.driver.core is not None:
            self.observer.on_exchange(exchange, self.schedule.now)
        core = self.driver.core
        if core is not None and not core.knows(exchange.pilot):
            row = self.journal.stream("agent", exchange.pilot)
            if row is not None:
                core.recall(row)
        self.driver.receive(exchange)

    def _ask(self, message: OperationRequest | SiteOperationRequest | Submit, *, at_once: bool) -> None:
        if isinstance(message, Submit):
            self._user_network.send(message, self._take_job)
            return
        if isinstance(message, SiteOperationRequest):
            if isinstance(message.operation, PurgeFiles):
                self.observer.files.on_purge(message.operation.site, message.operation.locators)
            self._simulated.network.send(message, self.driver.receive)
            return
        self.observer.on_asked(message.operation, self.schedule.now)
        if at_once:
            self._take_in(message)
        else:
            self._simulated.network.send(message, self._take_in, doubles=isinstance(message.operation, _REPEATABLE))

    def _take_job(self, message: Submit) -> None:
        taken = self.journal.job(message.job) is not None
        self.driver.receive(msgspec.structs.replace(message, taken=taken))

    def _take_in(self, message: OperationRequest) -> None:
        """Forward an operation to the service, together with its job from the book if that was cleared and is needed again."""
        core, operation = self.driver.core, message.operation
        if core is not None and isinstance(operation, Restart) and operation.job not in core.engine.state.jobs.by_id:
            row = self.journal.job(operation.job)
            if row is not None and row.state == "CLEARED":  # else the clearing is not durable yet
                gone = ended_pilots(self.journal.pilots(after="", limit=_PILOTS_MAX))
                self.driver.receive(Reload(job=self._snapshot_of(row), gone=gone))
        self.driver.receive(message)

    def _report(self, report: AnyReport | OutputsCopied) -> None:
        # A lost listing is repeated: a report may come late, twice or after the next, but it comes.
        self._simulated.network.send(report, self.driver.receive, loses=False)

    def _restored(self, now: float) -> Core:
        journal = self.journal
        jobs = [self._snapshot_of(row) for row in journal.live_jobs()]
        pilots = journal.pilots(after="", limit=_PILOTS_MAX)
        known = journal.knowledge(INCIDENTS)
        snapshot = Snapshot(
            jobs=jobs,
            pilots=pilots,
            sites=journal.sites(),
            cached_files=[
                row for site in journal.sites() for row in journal.cached_files(site.site, after="", limit=_FILES_MAX)
            ],
            incidents=known.learned if known is not None else "",
            next_n=next_number(journal.streams("service")),
            position=journal.position(),
        )
        live = {row.pilot for row in pilots if row.ended_at is None}  # the others are recalled when they make contact
        streams = [row for row in journal.streams("agent") if row.stream in live]
        return start_core(snapshot, sites=self._sites, settings=self.world.settings, now=now, streams=streams)

    def _snapshot_of(self, row: JobRow) -> JobSnapshot:
        """A job as the book has it."""
        return JobSnapshot(
            row=row,
            plan=self.definitions.plan(row.job, self._growth.get(row.job, ())),
            finals=self.journal.finals(row),
            unfinished=self.journal.unfinished(row),
            holds=holds_in(row, self.journal.own_events),
        )

    def _folded(self, now: float) -> Engine:
        """An engine that has applied every durable event."""
        engine = Engine(sites=self._sites, settings=self.world.settings, now=now)
        events = self.journal.events()
        growth = durable_growth(events)
        for checked in events:
            job = checked.event.job or ""
            if isinstance(checked.data, payloads.JobRegistered):
                stages = growth.get(job, ())
                for count in range(len(stages) + 1):
                    engine.bring_plan(job, self.definitions.plan(job, stages[:count]))
            engine.apply(checked)
        return engine

    def _compare(self, restored: Engine, when: str) -> None:
        """An engine restored from the rows of the book must equal one that applied every event."""
        folded = self._folded(restored.state.clock.now)
        mine, theirs = restored.durable_state(), folded.durable_state()
        if mine != theirs:
            raise Violation("restoring", f"{when}, {_difference(mine, theirs)}", subject="engine")
        self._compare_acting(restored, folded, when)

    def _compare_acting(self, restored: Engine, folded: Engine, when: str) -> None:
        """Abandoned attempts of the previous engine stay abandoned in the restored one, which has none without an event."""
        acting, folded_acting = abandoned_attempts(restored.state), abandoned_attempts(folded.state)
        for ref, pilot in acting.items():
            if folded_acting.get(ref) != pilot:
                raise Violation(
                    "restoring", f"{when}, {ref} may act with {pilot}, and no event shows it", subject="engine"
                )
        for ref, pilot in self._acting.items():
            known = find_attempt(restored.state.jobs, ref)  # that it was given up may have been lost in the crash
            if ref.job in restored.state.jobs.by_id and acting.get(ref) != pilot and (known is None or known.lost):
                raise Violation("restoring", f"{when}, {ref} may act with {pilot}, and is missing", subject="engine")

    def _refold(self) -> States:
        order = list(range(len(self.journal.events())))
        self.dice.stream("refold").shuffle(order)
        return self.journal.refold(order).packages

    def _explainer(self, core: Core) -> Explain:
        def explain(job: str, package: str) -> list[str]:
            explanation = core.engine.explain(job, package)
            return [why.code for why in explanation.reasons] if explanation is not None else []

        return explain

    def _check_explanations(self, core: Core) -> None:
        """Every package has an explanation at any time."""
        chance, now = self.dice.stream("questions"), self.schedule.now
        for job in core.engine.state.jobs.by_id.values():
            if not job.count:
                continue
            package = job.dotted(chance.randrange(job.count))
            explanation = core.engine.explain(job.id, package)
            if explanation is None or not explanation.reasons:
                raise Violation("explaining", "it has no explanation", subject=f"{job.id}/{package}")
            for why in explanation.reasons:
                if why.code == "reserved" and why.since is not None:
                    since = now - (core.engine.state.clock.wall_time - why.since)  # by the clock, which may be wrong
                    self.observer.on_reserved(job.id, package, site=why.subject, since=since, now=now)


def _reserved(engine: Engine) -> dict[tuple[str, str], str]:
    """The reserved packages and their sites."""
    return {
        (queue.job.id, queue.job.dotted(number)): site.name
        for site, queues in engine.state.queues.at.items()
        for queue, numbers in queues.reserved.items()
        for number in numbers
    }


def _plans(engine: Engine) -> list[Planned]:
    """The plans for pilots by forecast of the last step."""
    state = engine.state
    found = []
    for site, plan in state.provisioning.plans.items():
        if plan.at == state.clock.now and plan.need is not None and plan.known is not None:
            need, started = plan.need, plan.known.latency.started
            found.append(
                Planned(
                    site=site.name,
                    wall_time=state.clock.wall_time,
                    starts=plan.known.starts,
                    latencies=tuple(zip(started.times_seconds.tolist(), started.values.tolist(), strict=True)),
                    work_seconds=need.work_seconds,
                    package_seconds=need.package_seconds,
                    running=need.running,
                    queued_seconds=need.queued_seconds,
                    lifetime_seconds=need.lifetime_seconds,
                    start_cost_seconds=need.start_cost_seconds,
                    made_at=plan.at,
                    begun_at=plan.at - need.since_seconds,
                    since_seconds=need.since_seconds,
                    more=plan.most,
                    within=state.settings.provisioning_within,
                    wanted=plan.wanted,
                    kept=plan.kept,
                    best_queued=plan.best_queued,
                )
            )
    return found


def _setup(sketch: SiteSketch) -> SiteSetup:
    return SiteSetup(
        site=sketch.site,
        queue=sketch.queue,
        submission=sketch.submission,
        fault_bursts=sketch.fault_bursts,
        running_max=sketch.running_max,
        nodes=sketch.nodes,
        outages=sketch.outages,
        bytes_per_second=sketch.bytes_per_second,
    )


def _files_setup(world: World) -> FilesSetup:
    files = [file for job in world.jobs for file in job.files]
    return FilesSetup(
        stores=world.stores,
        sizes_bytes={file.name(variant): file.size_bytes for file in files for variant in range(file.variants)},
        copies={job.job: job.copies for job in world.jobs},
        seed=world.seed,
    )


def _rules(world: World) -> Rules:
    """The rules of a world for the checkers."""
    settings = world.settings
    return Rules(
        attempts_max=settings.restart.attempts_max,
        is_healing_off=settings.healing == "off",
        healed_after=settings.incidents.finished_min,
        waste_max=settings.incidents.waste_max,
        sites=tuple(sketch.site for sketch in world.sites),
        pilot_kills_max=settings.restart.pilot_kills_max,
        failing_attempts_max=settings.incidents.failing_attempts_max,
        lease_seconds=settings.lease_seconds,
        lost_after_leases=settings.lost_after_leases,
        late_seconds=LATE_INTERVALS * settings.interval_seconds,
        replicas_max=settings.selection.max_replicas,
        queue_replicas_max=settings.selection.replication_limit,
        owner_running_max=settings.owner_running_max,
        unfit_seconds=settings.unfit_seconds,
        collect_seconds=world.timing.collect_seconds,
        known_starts={each.site.name: len(each.known_latencies) for each in world.sites},
        copies={each.job: each.copies for each in world.jobs},
        group_packages_max=settings.group_packages_max,
    )


def _difference(one: object, other: object, at: str = "") -> str:
    """The first difference of two plain values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}, key=str):
            if one.get(key) != other.get(key):
                return _difference(one.get(key), other.get(key), f"{at}/{key}")
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for position, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            if mine != theirs:
                return _difference(mine, theirs, f"{at}/{position}")
    return f"{at} is {one!r} from the rows, and {other!r} from the events"
