"""A service, sites and pilots in virtual time with nobody watching: what the engine costs when everything goes well."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import msgspec

from pilotage.book.codec import Checked, Codec
from pilotage.book.fold.finals import FinalPackage
from pilotage.book.fold.join import join
from pilotage.book.rows.ledger import Changes
from pilotage.book.rows.rows import JobRow
from pilotage.engine.engine import Engine
from pilotage.engine.state.jobs import PackageStatus
from pilotage.model.exchange.exchange import ExchangeReply
from pilotage.model.exchange.operations import Effect, SubmitPilot
from pilotage.model.jobs.plan import Template
from pilotage.model.resources import Capacity
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site
from pilotage.service.core import Core
from pilotage.service.messages import Answer, Outbox, Submit
from pilotage.simulator.agents.agent import Fleet
from pilotage.simulator.world.agent_context import AgentSettings
from pilotage.simulator.world.assembly import START, SimulatedWorld, SiteSetup
from pilotage.simulator.world.behaviour import Behaviour, Habits, RandomBehaviour
from pilotage.simulator.world.clock import Schedule
from pilotage.simulator.world.jobs import Definitions, big_job, registration
from pilotage.simulator.world.ledger import MemoryLedger
from pilotage.simulator.world.randomness import Dice, Distribution, Fixed, Uniform
from pilotage.simulator.world.service_process import ServiceEnvironment, Timing

JOB = "J1"
GATHERED_MAX = 2_500
"""So many events at a time are joined with the book."""


class Log:
    """A journal that writes every event down and folds none: what is left is the engine, the core and the simulator."""

    full = False

    def __init__(self) -> None:
        """Begin empty."""
        self.count = 0
        self._batches: list[tuple[Sequence[Checked], float]] = []
        self._encode = msgspec.json.Encoder().encode_lines
        self._file = io.BytesIO()

    def append(self, events: Sequence[Checked], now: float, *, skewed: Sequence[tuple[str, str]] = ()) -> None:
        """Take a batch."""
        self._batches.append((events, now))

    def sync(self) -> int:
        """Write every batch that was taken."""
        for events, now in self._batches:
            self.keep(events, now)
            self.count += len(events)
        self._batches.clear()
        return self.count

    def keep(self, events: Sequence[Checked], now: float) -> None:
        """Write a batch; the text is let go of, as a file would take it."""
        self._file.seek(0)
        self._file.write(self._encode([one.event for one in events]))

    def close(self, now: float) -> None:
        """Write what is left."""
        self.sync()

    def crash(self, *, torn: bool) -> int:
        """Never."""
        raise SystemExit("nothing strikes here, and the service crashed")

    def events(self) -> Sequence[Checked]:
        """Nothing is kept."""
        return ()

    def job(self, job: str) -> JobRow | None:
        """Nothing is kept."""
        return None

    def finals(self, job: JobRow) -> Iterator[FinalPackage]:
        """Nothing is kept."""
        return iter(())


class _Shelf(MemoryLedger):
    """A ledger that keeps every row the folds work on, and of the events only how many there were: their text is written."""

    def _write_events(self, changes: Changes) -> None:
        self.advance(changes.last_position)


class Folded(Log):
    """The same with the folds of the book, in memory: facts, states, histograms, statistics.

    Every batch is written at once; what is written is joined with the book some thousand events at a time, since each
    join touches every slice of the statistics that its events fall into.
    """

    def __init__(self) -> None:
        """Begin with an empty book."""
        super().__init__()
        self.ledger = _Shelf()
        self._codec = Codec()
        self._gathered: list[Checked] = []

    def keep(self, events: Sequence[Checked], now: float) -> None:
        """Write a batch, and join what was gathered with the book once that is enough."""
        super().keep(events, now)
        self._gathered += events
        if len(self._gathered) >= GATHERED_MAX:
            self._join(now)

    def close(self, now: float) -> None:
        """Join the rest."""
        super().close(now)
        self._join(now)

    def _join(self, now: float) -> None:
        events, self._gathered = self._gathered, []
        joined = join(self.ledger, events, received=now, codec=self._codec)
        if joined.receipt.kept != len(events):
            raise SystemExit(f"the book did not keep everything: {joined.receipt}")
        self.ledger.write(joined.changes)


def quiet_world(
    sites: Sequence[Site],
    *,
    queue: Distribution,
    seed: int,
    service: ServiceEnvironment,
    journal: Log,
    definitions: Definitions,
    timing: Timing,
    behaviour: Behaviour,
    idle_seconds: float,
) -> SimulatedWorld:
    """Sites among which nothing fails, with agents that nobody watches; batch systems are listed every ten minutes."""
    return SimulatedWorld(
        [SiteSetup(site=site, queue=queue, poll_seconds=600.0) for site in sites],
        schedule=Schedule(START),
        dice=Dice(seed),
        faults=None,
        service=service,
        journal=journal,
        definitions=definitions,
        timing=timing,
        latency=Fixed(0.01),
        as_json=False,
        behaviour=behaviour,
        fleet=Fleet,
        agents=AgentSettings(interval_seconds=300.0, idle_seconds=idle_seconds, hold_seconds=0.0),
        witness=None,
    )


class Yard:
    """One big job on many pilots at many sites."""

    def __init__(
        self, *, packages: int, pilots: int, sites: int, journal: Log, slots: int = 1, stages: int = 4
    ) -> None:
        """Put everything together; nothing happens before `run`."""
        self.packages = packages
        self.journal = journal
        self.sketch = big_job(JOB, packages=packages, stages=stages, template=Template(activity="work"))
        self.definitions = Definitions([self.sketch], seed=1)
        capacity = Capacity(cores_hundredths=100 * slots)
        self.sites = [Site(name=f"site{n}", capacity=capacity, pilots_max=pilots // sites) for n in range(sites)]
        self.settings = EngineSettings(interval_seconds=300.0)
        self._world = quiet_world(
            self.sites,
            queue=Uniform(low=1.0, high=60.0),
            seed=1,
            service=self,
            journal=journal,
            definitions=self.definitions,
            timing=Timing(collect_seconds=0.2, commit_seconds=0.1),
            behaviour=RandomBehaviour(1, Habits(application_seconds=Uniform(low=30.0, high=90.0)), {}),
            idle_seconds=1e9,
        )
        self.schedule, self.driver = self._world.schedule, self._world.driver

    def run(self, *, done: int | None = None) -> int:
        """From the submission to the last grant, or until so many packages are done; how many things happened by the schedule."""
        wanted = self.packages if done is None else done
        self.driver.start()  # and nothing else: no batch system is listed meanwhile
        plan = self.definitions.plan(JOB, ())
        self.driver.receive(Submit(token=1, job=JOB, registered=registration(self.sketch), plan=plan))
        moments = 0
        jobs, driver = self.engine.state.jobs.by_id, self.driver
        while JOB not in jobs or jobs[JOB].counts[PackageStatus.DONE] < wanted:
            steps = driver.steps
            moments += self.schedule.advance()
            if steps == driver.steps:
                raise SystemExit("nothing more will happen, and the job is not done")
        self.journal.close(self.schedule.now)
        return moments

    @property
    def engine(self) -> Engine:
        """The engine that decides."""
        core = self.driver.core
        assert core is not None
        return core.engine

    # --- around the service ---

    def carry_out(self, effect: Effect) -> None:
        """Submit what is to be submitted."""
        if isinstance(effect, SubmitPilot):
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
        """Nobody doubts; it is looked whether the job is done."""
        self.schedule.halt()

    def start(self, now: float) -> Core:
        """A core that knows the sites and nothing else."""
        return Core(Engine(sites=self.sites, settings=self.settings, now=now))
