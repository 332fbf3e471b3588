"""One run of a real job at real sites that behave as a world describes: the production engine, without checkers.

The core, the batch systems and the agents are those of the other simulations. The journal stores nothing and the network
carries values instead of text, so that a run of a thousand packages takes a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from pilotage.book.codec import Checked
from pilotage.book.fold.finals import FinalPackage
from pilotage.book.rows.rows import JobRow
from pilotage.engine.engine import Engine
from pilotage.engine.forecasts import NoForecasts
from pilotage.engine.healing.replication import ReplicationPolicy
from pilotage.engine.state.job_queries import is_over
from pilotage.engine.state.jobs import PackageStatus
from pilotage.model.errors import PilotageError
from pilotage.model.events.payloads import JobRegistered
from pilotage.model.exchange.exchange import ExchangeReply
from pilotage.model.exchange.operations import Effect, Refused, Release
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.model.sites.entry import SiteEntry, site_of
from pilotage.model.sites.world import SiteWorld, StoreWorld, WorldFile
from pilotage.service.core import Core
from pilotage.service.messages import Answer, OperationRequest, Outbox, Submit
from pilotage.simulator.agents.agent import Fleet
from pilotage.simulator.runs.behaviour import DriftingQueue, JobBehaviour, SiteBehaviour, typical_seconds
from pilotage.simulator.runs.figures import RunFigures, RunRecorder
from pilotage.simulator.world.agent_context import AgentSettings
from pilotage.simulator.world.assembly import START, SimulatedWorld, SiteSetup
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.jobs import Definitions
from pilotage.simulator.world.randomness import Dice, Fixed, distribution_of
from pilotage.simulator.world.service_process import Timing
from pilotage.simulator.world.stores import StoreSketch
from pilotage.simulator.world.transfers import FilesSetup

JOB = "J1"
INTERVAL_SECONDS = 30.0
"""Time between exchanges of an idle agent: no message is lost here, so fewer of them suffice."""
CALM_INTERVAL_SECONDS = 300.0
"""The same if no pilot dies silently, and none has to be missed."""
_COLLECT_SECONDS = (0.01, 1.0)
_COLLECT_SHARE = 1 / 500  # of the run time of a package: messages within it are one step, and none waits much longer
_LATENCY_SECONDS = 0.01
_SUBMISSION = 1  # the token of the one request whose answer matters
_FOREVER_SECONDS = 1e9


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated: a job, its sites, and their behaviour."""

    plan: JobPlan
    registered: JobRegistered
    sites: tuple[SiteEntry, ...]
    world: WorldFile
    horizon_seconds: float = 30 * 86400.0


def usual_settings(world: WorldFile, settings: EngineSettings | None = None) -> EngineSettings:
    """The settings of an engine, with fewer exchanges; if pilots die, leases are as long as in a service."""
    usual = settings or EngineSettings()
    deadly = any(each.node_failures_per_hour or each.outages or each.outage_every is not None for each in world.sites)
    interval_seconds = INTERVAL_SECONDS if deadly else CALM_INTERVAL_SECONDS
    intervals = max(2, round(usual.lease_seconds / interval_seconds))
    return msgspec.structs.replace(usual, interval_seconds=interval_seconds, lease_intervals=intervals)


class _EmptyJournal:
    """A journal that stores nothing: nothing crashes here, so it is never read."""

    full = False

    def __init__(self) -> None:
        self._count = 0

    def append(self, events: Sequence[Checked], now: float, *, skewed: Sequence[tuple[str, str]] = ()) -> None:
        self._count += len(events)

    def sync(self) -> int:
        return self._count

    def crash(self, *, torn: bool) -> int:
        raise AssertionError("the service crashed in a world without faults")

    def events(self) -> Sequence[Checked]:
        return ()

    def job(self, job: str) -> JobRow | None:
        return None

    def finals(self, job: JobRow) -> Iterator[FinalPackage]:
        return iter(())


class JobSimulation:
    """One run, with everything around the service and the agents."""

    def __init__(
        self, subject: Subject, *, seed: int, settings: EngineSettings, replication: ReplicationPolicy | None = None
    ) -> None:
        """Assemble everything; nothing happens before `run`. `replication` takes the place of the policy of the settings."""
        self._subject = subject
        self._seed = seed
        self._settings = settings
        self._replication = replication
        self.schedule = schedule = Schedule(START)
        self._sites = [site_of(entry) for entry in subject.sites]
        known = {each.name: each for each in subject.world.sites}
        behaviours = {
            entry.name: SiteBehaviour(known.get(entry.name) or SiteWorld(name=entry.name), speed=entry.speed)
            for entry in subject.sites
        }
        self._watch = RunRecorder([entry.name for entry in subject.sites], START)
        self._simulated = SimulatedWorld(
            [_setup(site, behaviours[site.name], self._elapsed_seconds) for site in self._sites],
            schedule=schedule,
            dice=Dice(seed),
            faults=None,
            service=self,
            journal=_EmptyJournal(),
            definitions=Definitions([], seed=seed),
            timing=Timing(collect_seconds=_collect_seconds(subject), commit_seconds=0.01),
            latency=Fixed(_LATENCY_SECONDS),
            as_json=False,
            behaviour=JobBehaviour(
                seed,
                subject.plan,
                packages=subject.world.packages,
                sites=behaviours,
                elapsed_seconds=self._elapsed_seconds,
            ),
            fleet=Fleet,
            agents=AgentSettings(
                interval_seconds=settings.interval_seconds,
                idle_seconds=max(entry.idle_seconds for entry in subject.sites),
                hold_seconds=0.0,
            ),
            witness=self._watch,
            on_launched=self._watch.on_launched,
            files=FilesSetup(stores=tuple(map(_store, subject.world.stores)), seed=seed),
        )
        self.driver = self._simulated.driver
        self._released = 0

    def run(self) -> RunFigures:
        """Run from the submission to the end of the last package; raises `PilotageError` if the job is refused."""
        subject, watch = self._subject, self._watch
        self._simulated.begin()
        submit = Submit(token=_SUBMISSION, job=JOB, registered=subject.registered, plan=subject.plan)
        self.driver.receive(submit)
        outcome = self._follow()
        job = self._engine.state.jobs.by_id[JOB]
        elapsed_seconds = self._elapsed_seconds()
        done = job.counts[PackageStatus.DONE]
        return watch.figures(
            seed=self._seed,
            outcome=outcome,
            makespan_seconds=elapsed_seconds if outcome == "finished" else None,
            done=done,
            failed=sum(
                job.counts[each] for each in (PackageStatus.ABORTED, PackageStatus.CANCELLED, PackageStatus.UPSTREAM)
            ),
            now=self.schedule.now,
        )

    @property
    def copies(self) -> int:
        """How many copies of packages healing has wanted so far."""
        return self._watch.copies

    @property
    def starts_seconds(self) -> list[float]:
        """When batch jobs left their queues so far, from the submission on."""
        return [at - START for at in self._watch.launches]

    def _follow(self) -> str:
        """Run until the job is over, or beyond its time; a held job or package is released at once."""
        driver, jobs = self.driver, self._engine.state.jobs.by_id
        ends_at = START + self._subject.horizon_seconds
        while True:
            steps = driver.steps
            self.schedule.advance()  # until the next step of the core: before that, nothing of the job has changed
            if steps == driver.steps:
                return "unfinished"
            job = jobs.get(JOB)
            if job is not None and is_over(job):
                return "finished"
            for package in self._watch.held[self._released :]:
                self._released += 1
                asked = Release(job=JOB, package=package)
                self.driver.receive(OperationRequest(token=_SUBMISSION + self._released, operation=asked))
            if self.schedule.now > ends_at:
                return "unfinished"

    @property
    def _engine(self) -> Engine:
        core = self.driver.core
        assert core is not None
        return core.engine

    def _elapsed_seconds(self) -> float:
        return self.schedule.now - START

    # --- around the service -----------------------------------------------------------------------------------------

    def carry_out(self, effect: Effect) -> None:
        """Carry out an effect of the service at a site."""
        self._simulated.carry_out(effect)

    def deliver(self, replies: Sequence[ExchangeReply]) -> None:
        """Answer agents."""
        self._simulated.deliver(replies)

    def tell(self, answer: Answer) -> None:
        """Check whether the submitted job was accepted."""
        if answer.token == _SUBMISSION and isinstance(answer.outcome, Refused):
            raise PilotageError(
                f"the job cannot be run: {answer.outcome.message}", subject=self._subject.registered.name
            )

    def written(self, events: Sequence[Checked]) -> None:
        """Ignored: the journal stores nothing."""

    def crashed(self) -> None:
        """Never."""

    def clock_set(self, *, since: float, due: float) -> None:
        """Never called: the clock of a forecast is not set."""

    def stepped(self, core: Core, outbox: Outbox) -> None:
        """Record decisions and messages, and check the job."""
        if outbox.events:
            self._watch.on_events(outbox.events)
        self.schedule.halt()

    def start(self, now: float) -> Core:
        """A core that knows only the sites, and forecasts nothing: nobody reads it, and it would take half of the time."""
        engine = self.new_engine(now)
        engine.state.forecasts = NoForecasts()
        return Core(engine)

    def new_engine(self, now: float) -> Engine:
        """An engine that knows only the sites; each run has its own seed for site selection, too."""
        settings = msgspec.structs.replace(self._settings, seed=self._seed)
        engine = Engine(sites=self._sites, settings=settings, now=now)
        if self._replication is not None:
            engine.state.healing.policy = self._replication
        return engine


def _setup(site: Site, behaviour: SiteBehaviour, elapsed_seconds: Callable[[], float]) -> SiteSetup:
    world = behaviour.world
    return SiteSetup(
        site=site,
        queue=DriftingQueue(behaviour, elapsed_seconds),
        submission=distribution_of(world.submission),
        stuck_probability=world.stuck_probability,
        running_max=world.running_max or 1_000_000,
        outages=tuple((spell.begins_seconds, _lasting(spell.lasts_seconds)) for spell in world.outages),
        outage_every=None if world.outage_every is None else distribution_of(world.outage_every),
        outage_lasts=distribution_of(world.outage_lasts),
        black_holes=tuple((spell.begins_seconds, _lasting(spell.lasts_seconds)) for spell in world.black_holes),
        black_hole_reason=world.failure_reason,
        pilot_failure_probability=world.pilot_failure_probability,
        fault_bursts=tuple(
            (burst.begins_seconds, _lasting(burst.lasts_seconds), burst.probability) for burst in world.fault_bursts
        ),
        node_failures_per_hour=world.node_failures_per_hour,
        bytes_per_second=world.bytes_per_second,
    )


def _store(world: StoreWorld) -> StoreSketch:
    return StoreSketch(
        url=world.url,
        latency_seconds=world.latency_seconds,
        bytes_per_second=world.bytes_per_second,
        failure_probability=world.failure_probability,
        outages=tuple((spell.begins_seconds, _lasting(spell.lasts_seconds)) for spell in world.outages),
    )


def _lasting(seconds: float | None) -> float:
    return _FOREVER_SECONDS if seconds is None else seconds


def _collect_seconds(subject: Subject) -> float:
    """How long the service collects messages, by the run time of the shortest kind of package."""
    least, most = _COLLECT_SECONDS
    typical = typical_seconds(subject.plan, subject.world.packages)
    return min(most, max(least, _COLLECT_SHARE * min(typical, default=0.0)))
