"""Several jobs of several users on shared sites in virtual time: when each was over, under a way to set the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bench.yard import START, Log
from pilotage.book.codec import Checked
from pilotage.engine.engine import Engine
from pilotage.engine.state.job_queries import is_over
from pilotage.model.exchange.exchange import AttemptRef, ExchangeReply
from pilotage.model.exchange.operations import CancelSubmitted, Effect, SubmitPilot
from pilotage.model.jobs.plan import Template
from pilotage.model.resources import Capacity
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.service.core import Core
from pilotage.service.messages import Answer, Outbox, Submit
from pilotage.simulator.agents.agent import Fleet
from pilotage.simulator.world.batch_system import BatchSystem
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.faults import FaultBox, Faults
from pilotage.simulator.world.jobs import Definitions, JobSketch, Join, LineSketch, StageSketch, plan_of, registration
from pilotage.simulator.world.nature import Fate
from pilotage.simulator.world.network import Network
from pilotage.simulator.world.randomness import AnyDistribution, Dice, Fixed, Keyed
from pilotage.simulator.world.service_process import Driver, Timing
from pilotage.simulator.world.surroundings import AgentContext, AgentSettings, Store


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A job that somebody submits: stages of packages, each merged into the next, all of one sort."""

    job: str
    owner: str
    at_seconds: float
    stages: tuple[int, ...]  # how many packages each has
    run_time: AnyDistribution
    run_times: tuple[float, ...] = ()  # of each package of a single stage, where they are known
    estimate_seconds: float = 0.0  # what its document says; 0: nothing


def sketch_of(wanted: Wanted) -> JobSketch:
    """The job as the simulator knows it."""
    return JobSketch(
        job=wanted.job,
        owner=wanted.owner,
        templates=(Template(activity=wanted.job, run_seconds=wanted.estimate_seconds),),
        stages=tuple(
            StageSketch(
                lines=(LineSketch(count=count, templates=(0,)),),
                joins=(Join(stage=number, kind="merge"),) if number else (),
            )
            for number, count in enumerate(wanted.stages)
        ),
        submit_seconds=wanted.at_seconds,
    )


class _Nature:
    """How long each package runs follows from the seed and its name: the same beside whatever else."""

    def __init__(self, seed: int, jobs: Mapping[str, Wanted]) -> None:
        self._seed = seed
        self._jobs = jobs

    def fate(self, ref: AttemptRef, site: str) -> Fate:
        wanted = self._jobs[ref.job]
        if wanted.run_times:
            return Fate(0.0, wanted.run_times[int(ref.package.split(".")[1]) - 1], 0.0, 0)
        return Fate(0.0, wanted.run_time.draw(Keyed(f"{self._seed}/{ref.job}/{ref.package}")), 0.0, 0)

    def speed(self, node: str, site: str) -> float:
        return 1.0


class _Host:
    def __init__(self, batch: BatchSystem) -> None:
        self._batch = batch

    def black_hole(self) -> str:
        return ""

    def ended(self, instance: str, reason: str = "ended") -> None:
        self._batch.ended(instance, reason)


class Market:
    """Users, sites and a service. Sites are shared by all; each has pilots with some slots, which queue for a while."""

    def __init__(
        self,
        jobs: Sequence[Wanted],
        *,
        seed: int,
        settings: EngineSettings,
        sites: int = 2,
        pilots: int = 5,
        slots: int = 4,
    ) -> None:
        """Put everything together; nothing happens before `run`."""
        self._jobs = {each.job: each for each in jobs}
        self._settings = settings
        self.schedule = schedule = Schedule(START)
        dice = Dice(seed)
        box = FaultBox(Faults(), dice)
        box.stop()
        sketches = [sketch_of(each) for each in jobs]
        capacity = Capacity(cores_hundredths=100 * slots)
        self._sites = [Site(name=f"site{n}", capacity=capacity, pilots_max=pilots) for n in range(sites)]
        self.driver = Driver(
            schedule=schedule,
            box=box,
            journal=Log(),
            definitions=Definitions(sketches, seed=seed),
            timing=Timing(collect_seconds=0.05, commit_seconds=0.05),
            around=self,
        )
        self._batches = {
            site.name: BatchSystem(
                site,
                schedule=schedule,
                box=box,
                dice=dice,
                queue=Fixed(30.0),
                report=self.driver.receive,
                poll_seconds=600.0,
            )
            for site in self._sites
        }
        self._fleet = Fleet(
            AgentContext(
                schedule=schedule,
                network=Network(schedule, box, dice, Fixed(0.01), plain=True),
                store=Store(schedule, remembers=False),
                box=box,
                nature=_Nature(seed, self._jobs),
                uplink=self.driver.receive,
                settings=AgentSettings(interval_seconds=300.0, idle_seconds=300.0, hold_seconds=0.0),
            )
        )
        self._sketches = {each.job: (each, plan_of(each, seed=seed)) for each in sketches}

    def run(self) -> dict[str, float]:
        """From the first submission to the end of the last job: how long each took, in seconds."""
        self.driver.start()
        for batch in self._batches.values():
            batch.begin()
        for name, wanted in self._jobs.items():
            self.schedule.after(wanted.at_seconds, self._submit, name)
        waiting, took = dict(self._jobs), dict[str, float]()
        while waiting:
            steps = self.driver.steps
            self.schedule.go_on()
            if steps == self.driver.steps:
                raise SystemExit("nothing more will happen, and not every job is over")
            for name in [
                name for name in waiting if (job := self.engine.state.jobs.by_id.get(name)) is not None and is_over(job)
            ]:
                took[name] = self.schedule.now - START - waiting.pop(name).at_seconds
        return took

    def _submit(self, name: str) -> None:
        sketch, plan = self._sketches[name]
        self.driver.receive(Submit(token=1, job=name, registered=registration(sketch), plan=plan))

    @property
    def engine(self) -> Engine:
        """The engine that decides."""
        core = self.driver.core
        assert core is not None
        return core.engine

    # --- around the service ---

    def carry_out(self, effect: Effect) -> None:
        """Do what is to be done at a site."""
        if isinstance(effect, SubmitPilot):
            batch, key = self._batches[effect.site], effect.key
            batch.submit(key, lambda name: self._fleet.start(name, _Host(batch), request=key, site=batch.site))
        elif isinstance(effect, CancelSubmitted):
            self._batches[effect.site].cancel(effect.key)

    def deliver(self, replies: Sequence[ExchangeReply]) -> None:
        """Answer agents."""
        self._fleet.deliver(replies)

    def tell(self, answer: Answer) -> None:
        """Nobody asks."""

    def written(self, events: Sequence[Checked]) -> None:
        """Nobody watches."""

    def crashed(self) -> None:
        """Never."""

    def clock_set(self, *, since: float, due: float) -> None:
        """Nobody sets the clock."""

    def stepped(self, core: Core, outbox: Outbox) -> None:
        """Nobody doubts; it is looked which jobs are over."""
        self.schedule.halt()

    def start(self, now: float) -> Core:
        """A core that knows the sites and nothing else."""
        return Core(Engine(sites=self._sites, settings=self._settings, now=now))
