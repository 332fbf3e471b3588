"""Several jobs of several users on shared sites in virtual time: when each was over, under a way to set the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bench.yard import Log, quiet_world
from pilotage.book.codec import Checked
from pilotage.engine.engine import Engine
from pilotage.engine.state.job_queries import is_over
from pilotage.model.exchange.exchange import AttemptRef, ExchangeReply
from pilotage.model.exchange.operations import Effect
from pilotage.model.jobs.plan import Template
from pilotage.model.resources import Capacity
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.service.core import Core
from pilotage.service.messages import Answer, Outbox, Submit
from pilotage.simulator.world.assembly import START
from pilotage.simulator.world.behaviour import AttemptOutcome
from pilotage.simulator.world.jobs import Definitions, JobSketch, Join, LineSketch, StageSketch, plan_of, registration
from pilotage.simulator.world.randomness import AnyDistribution, Fixed, Keyed
from pilotage.simulator.world.service_process import Timing


class MarketJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that somebody submits: stages of packages, each merged into the next, all of one sort."""

    job: str
    owner: str
    at_seconds: float
    stages: tuple[int, ...]  # how many packages each has
    run_time: AnyDistribution
    run_times: tuple[float, ...] = ()  # of each package of a single stage, where they are known
    estimate_seconds: float = 0.0  # what its document says; 0: nothing


def sketch_of(wanted: MarketJob) -> JobSketch:
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


class _Behaviour:
    """How long each package runs follows from the seed and its name: the same beside whatever else."""

    def __init__(self, seed: int, jobs: Mapping[str, MarketJob]) -> None:
        self._seed = seed
        self._jobs = jobs

    def outcome(self, ref: AttemptRef, site: str) -> AttemptOutcome:
        wanted = self._jobs[ref.job]
        if wanted.run_times:
            return AttemptOutcome(0.0, wanted.run_times[int(ref.package.split(".")[1]) - 1], 0.0, 0)
        return AttemptOutcome(0.0, wanted.run_time.draw(Keyed(f"{self._seed}/{ref.job}/{ref.package}")), 0.0, 0)

    def speed(self, node: str, site: str) -> float:
        return 1.0


class Market:
    """Users, sites and a service. Sites are shared by all; each has pilots with some slots, which queue for a while."""

    def __init__(
        self,
        jobs: Sequence[MarketJob],
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
        sketches = [sketch_of(each) for each in jobs]
        capacity = Capacity(cores_hundredths=100 * slots)
        self._sites = [Site(name=f"site{n}", capacity=capacity, pilots_max=pilots) for n in range(sites)]
        self._world = quiet_world(
            self._sites,
            queue=Fixed(30.0),
            seed=seed,
            service=self,
            journal=Log(),
            definitions=Definitions(sketches, seed=seed),
            timing=Timing(collect_seconds=0.05, commit_seconds=0.05),
            behaviour=_Behaviour(seed, self._jobs),
            idle_seconds=300.0,
        )
        self.schedule, self.driver = self._world.schedule, self._world.driver
        self._sketches = {each.job: (each, plan_of(each, seed=seed)) for each in sketches}

    def run(self) -> dict[str, float]:
        """From the first submission to the end of the last job: how long each took, in seconds."""
        self._world.begin()
        for name, wanted in self._jobs.items():
            self.schedule.after(wanted.at_seconds, self._submit, name)
        waiting, took = dict(self._jobs), dict[str, float]()
        while waiting:
            steps = self.driver.steps
            self.schedule.advance()
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
        self._world.carry_out(effect)

    def deliver(self, replies: Sequence[ExchangeReply]) -> None:
        """Answer agents."""
        self._world.deliver(replies)

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
