"""A world: everything that a simulation depends on, as one value that can be stored, changed and run again.

`make_world` draws one from a seed: sites, jobs, the probability of each fault and the duration of faults. Some worlds are
calm, some are hell, most are bad in one way and good in others.
"""

from __future__ import annotations

import random

from msgspec.structs import replace

from pilotage.model.jobs.definition import AbortOn, Retry, RetryRule
from pilotage.model.jobs.file_plan import Wish
from pilotage.model.jobs.plan import Template
from pilotage.model.resources import Capacity, Demand, lacking
from pilotage.model.settings.engine import (
    EngineSettings,
    Healing,
    HealingSettings,
    RestartSettings,
    SelectionSettings,
)
from pilotage.model.site import Site
from pilotage.simulator.trials.heat import HEAT, LATER_HEAT, drawn_faults
from pilotage.simulator.world.agent_context import AgentSettings
from pilotage.simulator.world.behaviour import Habits, SiteHabits
from pilotage.simulator.world.faults import Faults
from pilotage.simulator.world.jobs import (
    FileSketch,
    JobSketch,
    Join,
    JoinKind,
    LineSketch,
    Sketch,
    StageSketch,
    packages_of,
)
from pilotage.simulator.world.randomness import AnyDistribution, Exponential, Fixed, LogNormal, Mixture, Uniform
from pilotage.simulator.world.service_process import Timing
from pilotage.simulator.world.stores import StoreSketch
from pilotage.simulator.world.users import UserHabits

_GIB = 2**30
_END_PROBABILITY = 0.08  # of a job with final packages, and of one with `abort_on`
_HEALING: tuple[Healing, ...] = ("predictive", "predictive", "paper", "off")
_ALIKE_PROBABILITY = 0.15  # of a world with many equal packages that differ only in priority
_TROUBLES = ("platform-failure", "application-error", "preempted", "signal", "segmentation-fault", "command-not-found")


class SiteSketch(Sketch, frozen=True, kw_only=True):
    """A site with its real behaviour: the site as the engine knows it, its queue and its hosts."""

    site: Site
    queue: AnyDistribution = Fixed(10.0)
    submission: AnyDistribution = Fixed(0.0)  # of one batch job after the other
    fault_bursts: tuple[tuple[float, float, float], ...] = ()  # begin, length, probability that a pilot ends at once
    running_max: int = 10  # batch jobs that run at once
    habits: SiteHabits = SiteHabits()
    outages: tuple[tuple[float, float], ...] = ()  # start and duration
    nodes: tuple[str, ...] = ()  # nodes of its batch system; empty: each batch job has its own
    known_latencies: tuple[float, ...] = ()  # seconds after which pilots of an earlier service started
    bytes_per_second: float = 0.0  # of one file that is brought there; 0: no limit


class World(Sketch, frozen=True, kw_only=True):
    """Everything that one run depends on."""

    seed: int
    sites: tuple[SiteSketch, ...]
    jobs: tuple[JobSketch, ...]
    packages: Habits = Habits()
    faults: Faults = Faults()
    user: UserHabits = UserHabits()
    agents: AgentSettings = AgentSettings()
    timing: Timing = Timing()
    settings: EngineSettings = EngineSettings()
    latency: AnyDistribution = Fixed(0.05)
    faults_seconds: float = 3600.0  # then all faults stop
    horizon_seconds: float = 2 * 86400.0  # everything must be over within this time after that
    stores: tuple[StoreSketch, ...] = ()


def packages_of_world(world: World) -> int:
    """How many packages there are before late stages are expanded."""
    return sum(packages_of(job) for job in world.jobs)


def make_world(seed: int, *, packages_min: int = 50, sites_min: int = 3) -> World:
    """The world of a seed."""
    dice = random.Random(f"world/{seed}")
    sites = tuple(_site(dice, number) for number in range(1, sites_min + dice.randint(0, 3) + 1))
    if all(each.site.mode == "bound" for each in sites):
        sites = (_as_pilots(sites[0]), *sites[1:])
    jobs: list[JobSketch] = []
    wanted = packages_min + dice.randint(0, packages_min)
    while (left := wanted - sum(map(packages_of, jobs))) > 0:
        jobs.append(_job(dice, len(jobs) + 1, sites=sites, packages=left))
    if (urgent := random.Random(f"urgent/{seed}")).random() < _ALIKE_PROBABILITY:
        jobs = _alike(urgent, jobs)
    ruled = (_with_rules(random.Random(f"rules/{seed}/{job.job}"), job) for job in jobs)
    ending = tuple(_with_end(random.Random(f"end/{seed}/{job.job}"), job) for job in ruled)
    sites, named = with_nodes(random.Random(f"where/{seed}"), sites, ending)
    made = _with_forecasts(
        random.Random(f"forecast/{seed}"),
        World(
            seed=seed,
            sites=sites,
            jobs=named,
            packages=_packages(dice),
            faults=Faults(**drawn_faults(dice, HEAT), **drawn_faults(random.Random(f"faults/{seed}"), LATER_HEAT)),
            user=UserHabits(
                think_seconds=dice.choice([0.5, 5.0, 60.0]),
                held_seconds=dice.choice([30.0, 300.0, 1800.0]),
                whole_job=dice.choice([0.0, 0.1, 0.3]),
            ),
            timing=Timing(
                collect_seconds=dice.choice([0.001, 0.01, 0.2]),
                commit_seconds=dice.choice([0.005, 0.05, 0.5]),
                restart_seconds=dice.choice([1.0, 10.0, 120.0]),
                expand_seconds=dice.choice([0.1, 5.0, 60.0]),
                full_seconds=dice.choice([1.0, 60.0]),
            ),
            settings=_settings(dice, healing=random.Random(f"healing/{seed}").choice(_HEALING)),
            agents=AgentSettings(
                idle_seconds=dice.choice([30.0, 300.0]),
                outlive_seconds=dice.choice([900.0, 21600.0]),
                backlog=dice.choice([0, 0, 2, 8]),
            ),
            latency=_one_of(dice, Fixed(0.01), Uniform(low=0.001, high=0.2), LogNormal(median=0.05, sigma=1.0)),
            faults_seconds=dice.choice([900.0, 3600.0, 7200.0]),
        ),
    )
    if seed > STALLS_AFTER:
        return with_stalls(made)
    if seed > BROKEN_AFTER:
        return with_broken_activity(made)
    if seed > GROUPS_AFTER:
        return with_groups(made)
    if seed > EARLY_AFTER and not seed % 2:
        return with_early_starts(made)
    return with_files(made) if seed > FILES_AFTER and seed % 2 else made


def _one_of(dice: random.Random, *choices: AnyDistribution) -> AnyDistribution:
    return dice.choice(choices)


def _packages(dice: random.Random) -> Habits:
    return Habits(
        application_seconds=LogNormal(median=dice.choice([5.0, 30.0, 120.0]), sigma=dice.choice([0.2, 0.7])),
        memory_bytes=_one_of(dice, Fixed(0.0), LogNormal(median=0.2 * _GIB, sigma=1.0)),
        inputs_seconds=_one_of(dice, Fixed(0.0), Exponential(2.0)),
        outputs_seconds=_one_of(dice, Fixed(0.0), Exponential(2.0)),
        doomed=dice.choice([0.0, 0.0, 0.03, 0.1]),
    )


def _site_habits(dice: random.Random) -> SiteHabits:
    bad = dice.choice([0.0, 0.0, 0.1, 0.3])
    reasons = dice.sample(_TROUBLES, 3) if bad else []
    return SiteHabits(
        speed=_one_of(dice, Fixed(1.0), Fixed(0.5), Uniform(low=0.5, high=3.0)),
        failures={reason: round(bad * dice.random(), 4) for reason in reasons},
        straggler=dice.choice([0.0, 0.05]),
    )


def _settings(dice: random.Random, *, healing: Healing) -> EngineSettings:
    return EngineSettings(
        healing=healing,
        interval_seconds=dice.choice([5.0, 10.0, 30.0]),
        waiting_seconds_max=dice.choice([0.0, 0.0, 0.0, 7200.0]),
        owner_running_max=dice.choice([0, 0, 0, 5]),
        provisioning="all",
        group_packages_max=1,
        flood_packages=dice.choice([3, 10]),
        restart=RestartSettings(
            platform_failures_max=dice.choice([5, 20]),
            delay_seconds=dice.choice([1.0, 10.0]),
            delay_seconds_max=dice.choice([60.0, 600.0]),
        ),
        # Fixed, whatever the default is: a seed must always show the same.
        selection=SelectionSettings(policy="weighted-random"),
    )


def _site(dice: random.Random, number: int) -> SiteSketch:
    cores = dice.choice([100, 200, 400, 800])
    nodes = dice.choice([1, 1, 2])
    queue = _one_of(
        dice,
        Fixed(1.0),
        Exponential(30.0),
        LogNormal(median=60.0, sigma=1.0),
        Mixture(weights=(0.8, 0.2), parts=(Exponential(10.0), Uniform(low=300.0, high=1200.0))),
    )
    site = Site(
        name=f"site-{number}",
        kind=dice.choice(["slurm", "gridengine"]),
        mode=dice.choice(["pilots", "pilots", "bound"]),
        capacity=Capacity(
            cores_hundredths=cores,
            memory_bytes=dice.choice([2, 4, 8]) * cores // 100 * _GIB,
            gpus=dice.choice([0, 0, 1]),
            scratch_bytes=dice.choice([10, 100]) * _GIB,
        ),
        nodes=nodes,
        wall_seconds=dice.choice([0.0, 3600.0, 14400.0]),
        pilots_max=dice.choice([1, 2, 4]),
        job_throttle=dice.choice([0.5, 2.0, 10.0]),
    )
    outages = tuple((dice.uniform(0.0, 3600.0), dice.uniform(30.0, 1200.0)) for _ in range(dice.choice([0, 0, 1, 2])))
    return SiteSketch(
        site=site,
        queue=queue,
        running_max=dice.choice([2, 5, 20]),
        habits=_site_habits(dice),
        outages=outages,
    )


def _as_pilots(sketch: SiteSketch) -> SiteSketch:
    return replace(sketch, site=replace(sketch.site, mode="pilots"))


def _job(dice: random.Random, number: int, *, sites: tuple[SiteSketch, ...], packages: int) -> JobSketch:
    templates = tuple(_template(dice, number, kind, sites) for kind in range(dice.randint(1, 4)))
    stages: list[StageSketch] = []
    wanted = min(packages, dice.randint(10, 80))
    while wanted > 0:
        stage = _stage(dice, len(stages), templates=len(templates), packages=wanted)
        wanted -= 0 if stage.late else stage.items * sum(line.count * len(line.templates) for line in stage.lines)
        stages.append(stage)
    if dice.random() < 0.6:
        merge = Join(stage=len(stages), kind="merge", early=False)
        stages.append(StageSketch(lines=(LineSketch(templates=(0,)),), joins=(merge,)))
    return JobSketch(
        job=f"job-{number}",
        owner=dice.choice(["ada", "ada", "emmy"]),
        templates=templates,
        stages=tuple(stages),
        limits={"licence": dice.randint(1, 3)} if dice.random() < 0.5 else {},
        priority=dice.choice([0, 0, 5]),
        hold=dice.random() < 0.1,
        submit_seconds=round(dice.uniform(0.0, 600.0), 3) if number > 1 else 0.0,
    )


def _with_end(dice: random.Random, job: JobSketch) -> JobSketch:
    """Give some jobs a final package, and some an `abort_on`, by a random stream of their own."""
    if dice.random() < _END_PROBABILITY:
        last = Template(activity=f"last-{job.job}", final=True, retry=Retry(attempts_max=dice.choice([None, 2])))
        lines = (LineSketch(count=dice.choice([1, 1, 2]), templates=(len(job.templates),)),)
        job = replace(job, templates=(*job.templates, last), stages=(*job.stages, StageSketch(lines=lines)))
    if dice.random() < _END_PROBABILITY:
        # A success ends only what is known: such a job with a late stage is refused.
        statuses = [1, 2, 3] if any(each.late for each in job.stages) else [0, 1, 2, 3]
        ending = replace(job.templates[0], abort_on=AbortOn(exit_code=dice.choice(statuses)))
        job = replace(job, templates=(ending, *job.templates[1:]))
    return job


def _alike(dice: random.Random, jobs: list[JobSketch]) -> list[JobSketch]:
    """Give most templates the demand of the first one: only priorities decide their order."""
    plain = Demand(cores_hundredths=50)
    found = []
    for job in jobs:
        templates = [
            replace(each, demand=plain, run_seconds=0.0, executor="", category="", priority=dice.choice([0, 3, 7]))
            if dice.random() < 0.8
            else each
            for each in job.templates
        ]
        found.append(replace(job, templates=tuple(templates), priority=dice.choice([0, 5, 9]), submit_seconds=0.0))
    return found


def _with_rules(dice: random.Random, job: JobSketch) -> JobSketch:
    """Give some packages with a retry rule a second one for the same failure, which acts after the first."""
    last = RetryRule(reason="application-error", action="give-up")
    templates = [
        replace(each, retry=replace(each.retry, rules=(*each.retry.rules, last)))
        if each.retry.rules and dice.random() < 0.5
        else each
        for each in job.templates
    ]
    return replace(job, templates=tuple(templates))


def _stage(dice: random.Random, number: int, *, templates: int, packages: int) -> StageSketch:
    """One stage, with inputs from earlier ones; `number` stages come before it."""
    late = number > 0 and dice.random() < 0.2
    lines = []
    for _ in range(1 if late else dice.choice([1, 1, 2])):
        length = dice.choice([1, 1, 1, 2, 3])
        count = 1 if late else dice.randint(1, max(1, min(packages, 30) // length))
        lines.append(LineSketch(count=count, templates=tuple(dice.randrange(templates) for _ in range(length))))
    joins: list[Join] = []
    for source in dice.sample(range(1, number + 1), min(number, dice.choice([1, 1, 2]))):
        kinds: tuple[JoinKind, ...] = ("one-to-one", "merge", "random")
        joins.append(Join(stage=source, kind=dice.choice(kinds), fan=dice.randint(1, 4)))
    if joins and not late and dice.random() < 0.2:
        joins = []
    return StageSketch(
        items=1 if late else dice.choice([1, 1, 1, 2]),
        lines=tuple(lines),
        joins=tuple(joins),
        late=late,
        names_max=dice.randint(1, 3) if late else 0,
    )


def _template(dice: random.Random, job: int, kind: int, sites: tuple[SiteSketch, ...]) -> Template:
    """A kind of package that at least one of the sites can run."""
    home = dice.choice(sites).site
    capacity = home.capacity
    cores = [each for each in (50, 100, 200, 400) if each <= capacity.cores_hundredths]
    demand = Demand(
        cores_hundredths=dice.choice(cores),
        memory_bytes=dice.choice([0, capacity.memory_bytes // 8, capacity.memory_bytes // 4]),
        gpus=capacity.gpus if dice.random() < 0.2 else 0,
        scratch_bytes=dice.choice([0, _GIB]),
        wall_seconds=dice.choice([0.0, 0.0, 600.0, 1800.0]),
        nodes=2 if home.mode == "bound" and home.nodes > 1 and dice.random() < 0.3 else 1,
    )
    rules = (RetryRule(reason="application-error", action=dice.choice(["again", "elsewhere", "hold-job"]), times=1),)
    return Template(
        activity=f"activity-{job}-{kind}",
        demand=demand,
        priority=dice.choice([0, 0, 3]),
        run_seconds=dice.choice([0.0, 60.0]),
        executor=dice.choice([home.name, home.kind]) if dice.random() < 0.1 else "",
        category="licence" if dice.random() < 0.2 else "",
        side_effects=dice.random() < 0.15,
        retry=Retry(
            attempts_max=dice.choice([None, None, 2, 8]),
            rules=rules if dice.random() < 0.15 else (),
        ),
    )


# Worlds in which the number of pilots follows from a forecast: queues are slow, many pilots are allowed, and an earlier
# service has seen some start, mostly as they do now.

_FORECASTS = 0.2  # share of these worlds
_SLOW_QUEUES: tuple[AnyDistribution, ...] = (
    Fixed(300.0),
    Uniform(low=200.0, high=900.0),
    Exponential(400.0),
    LogNormal(median=400.0, sigma=0.7),
)


def _with_forecasts(dice: random.Random, world: World) -> World:
    """Let some worlds provision by forecast; a random stream of its own decides, so that other worlds stay the same."""
    if dice.random() >= _FORECASTS:
        return world
    settings = replace(world.settings, provisioning="forecast", provisioning_within=dice.choice([0.0, 0.1, 0.1, 0.5]))
    return replace(world, settings=settings, sites=tuple(_slow(dice, each) for each in world.sites))


def _slow(dice: random.Random, sketch: SiteSketch) -> SiteSketch:
    if sketch.site.mode != "pilots":
        return sketch
    queue, drift = dice.choice(_SLOW_QUEUES), dice.choice([0.3, 1.0, 1.0, 3.0])
    known = tuple(round(drift * queue.draw(dice), 3) for _ in range(dice.choice([20, 40, 100])))
    site = replace(sketch.site, pilots_max=dice.choice([8, 20, 40]))
    return replace(sketch, site=site, queue=queue, running_max=dice.choice([5, 40]), known_latencies=known)


# Worlds with named nodes: sites list the names of their nodes, and some packages are restricted to some of them.

Sites = tuple["SiteSketch", ...]
Jobs = tuple[JobSketch, ...]

_WORLDS = 0.2  # share of worlds whose sites name their nodes
_TEMPLATES = 0.3  # share of templates restricted to some nodes


def with_nodes(dice: random.Random, sites: Sites, jobs: Jobs) -> tuple[Sites, Jobs]:
    """Add names of nodes, or not; a random stream of its own decides, so that other worlds stay the same."""
    if dice.random() >= _WORLDS:
        return sites, jobs
    sites = tuple(_named(dice, each) for each in sites)
    return sites, tuple(
        replace(job, templates=tuple(_restricted(dice, each, sites) for each in job.templates)) for job in jobs
    )


def _named(dice: random.Random, sketch: SiteSketch) -> SiteSketch:
    name = sketch.site.name
    nodes = tuple(f"{name}-n{number}" for number in range(1, dice.randint(2, 4) + 1))
    patterns = dice.choice([nodes, (f"{name}-n*",)])
    # If the batch system cannot choose the node of a batch job, only a pilot that happens to start there can run the package.
    places = sketch.site.mode == "bound" or dice.random() < 0.7
    return replace(sketch, nodes=nodes, site=replace(sketch.site, node_names=patterns, places_nodes=places))


def _restricted(dice: random.Random, template: Template, sites: Sites) -> Template:
    homes = [each for each in sites if _could_run(each.site, template)]
    if not homes or template.demand.nodes > 1 or dice.random() >= _TEMPLATES:
        return template
    home = dice.choice(homes)
    named = tuple(dice.sample(home.nodes, dice.choice([1, 1, 2])))
    if dice.random() < 0.2:
        named = (f"{home.site.name}-n[12]",)
    return replace(template, demand=replace(template.demand, node_restriction=named))


def _could_run(site: Site, template: Template) -> bool:
    """Whether a site meets all requirements of a package but the names of its nodes."""
    demand, longest = template.demand, site.package_seconds_max
    if template.executor not in ("", site.name, site.kind) or lacking(demand, site.capacity):
        return False
    return not longest or max(demand.wall_seconds, template.run_seconds) <= longest


# Worlds with files: stores that fail, caches that are too small for everything, files that packages and jobs share with
# different wishes, outputs that are copied to stores, and outputs that are disposed of.

FILES_AFTER = 1000
"""Every other world after this seed has files; the earlier ones stay what they were."""
_FILE_HEAT: dict[str, float] = {
    "transfer_fails": 0.2,
    "transfer_hangs": 0.05,
    "transfer_late": 0.2,
    "transfer_repeated": 0.2,
    "cache_loses": 0.1,
    "store_changes": 0.05,
}
_LATER_FILE_HEAT = {"user_pins": 0.2, "user_purges": 0.2}
_MIB = 2**20


GROUPS_AFTER = 10_000
"""After this seed packages are short, queues are long, and several packages share a batch job."""


def with_groups(world: World) -> World:
    """Let short packages share batch jobs, by a random stream of its own."""
    dice, queue = random.Random(f"groups/{world.seed}"), Exponential(90.0)
    stage = StageSketch(lines=(LineSketch(count=dice.randint(40, 150), templates=(0,)),))
    bag = JobSketch(job="bag", owner="ada", templates=(Template(activity="short"),), stages=(stage,))
    sites = []
    for each in world.sites:
        mode = "bound" if not each.nodes and dice.random() < 0.7 else each.site.mode
        sites.append(replace(each, site=replace(each.site, mode=mode, job_throttle=0.5), queue=queue))
    seconds = LogNormal(median=dice.uniform(1.0, 20.0), sigma=0.5)
    packages = replace(world.packages, application_seconds=seconds)
    most = dice.choice([2, 5, 20])
    settings = replace(world.settings, group_packages_max=most, owner_running_max=0, healing="predictive")
    return replace(world, sites=tuple(sites), jobs=(*world.jobs, bag), packages=packages, settings=settings)


BROKEN_AFTER = 20_000
"""After this seed an activity cannot succeed, or only after some attempts of each of its packages."""
_BROKEN_JOB = "broken"


def with_broken_activity(world: World) -> World:
    """Add a job with such an activity, one that reads its outputs, and one that needs neither; by a random stream of its own."""
    dice = random.Random(f"broken/{world.seed}")
    stages = (
        StageSketch(lines=(LineSketch(count=dice.randint(20, 80), templates=(0,)),)),
        StageSketch(lines=(LineSketch(count=4, templates=(1,)),), joins=(Join(stage=1, kind="random", fan=2),)),
        StageSketch(lines=(LineSketch(count=6, templates=(2,)),)),
    )
    templates = tuple(Template(activity=name) for name in ("broken", "reader", "healthy"))
    job = JobSketch(job=_BROKEN_JOB, owner="ada", templates=templates, stages=stages)
    broken = {f"{_BROKEN_JOB}/1": dice.choice([1, 2, 10_000, 10_000])}
    bound = HealingSettings(failing_attempts_max=dice.choice([6, 10, 20]))
    settings = replace(world.settings, incidents=bound, healing=dice.choice(["predictive", "paper", "off"]))
    return replace(world, jobs=(*world.jobs, job), packages=replace(world.packages, broken=broken), settings=settings)


STALLS_AFTER = 30_000
"""After this seed the inputs of many attempts stall, so that healing has much to do."""
_STALLS = Mixture(weights=(0.85, 0.15), parts=(Exponential(2.0), Uniform(low=300.0, high=3000.0)))


def with_stalls(world: World) -> World:
    """Let attempts stall in their inputs, by a random stream of its own; some packages have side effects."""
    dice = random.Random(f"stalls/{world.seed}")
    lines = tuple(LineSketch(count=dice.randint(20, 60), templates=(kind,)) for kind in range(2))
    kinds = (Template(activity="usual"), Template(activity="acting", side_effects=dice.random() < 0.5))
    bag = JobSketch(job="bag", owner="ada", templates=kinds, stages=(StageSketch(lines=lines),))
    seconds = LogNormal(median=dice.uniform(40.0, 150.0), sigma=0.2)
    packages = replace(world.packages, application_seconds=seconds, inputs_seconds=_STALLS)
    settings = replace(world.settings, healing=dice.choice(("predictive", "paper")), owner_running_max=0)
    return replace(world, jobs=(*world.jobs, bag), packages=packages, settings=settings)


EARLY_AFTER = 2000
"""From here on, every second world has packages that may start before their inputs are complete."""
_EARLY_PROBABILITY = 0.7  # of each join
_EARLY_SECONDS = (60.0, 300.0)  # packages run so long that others can start beside them


def with_early_starts(world: World) -> World:
    """Let packages of a world start early, by a random stream of its own."""
    dice = random.Random(f"early/{world.seed}")
    jobs = []
    for job in world.jobs:
        stages = [
            replace(each, joins=tuple(replace(one, early=dice.random() < _EARLY_PROBABILITY) for one in each.joins))
            for each in job.stages
        ]
        jobs.append(replace(job, stages=tuple(stages)))
    seconds = LogNormal(median=dice.uniform(*_EARLY_SECONDS), sigma=0.7)
    return replace(world, jobs=tuple(jobs), packages=replace(world.packages, application_seconds=seconds))


def with_files(world: World) -> World:
    """Give a world stores, and files to its jobs, by a random stream of its own."""
    dice = random.Random(f"files/{world.seed}")
    stores = tuple(_store(dice, number) for number in range(1, dice.randint(2, 4) + 1))
    pool = [_file(dice, number, stores) for number in range(dice.randint(3, 8))]
    jobs = tuple(_with_own_files(dice, job, pool, copies_max=len(stores)) for job in world.jobs)
    sizes = {file.name(at): file.size_bytes for job in jobs for file in job.files for at in range(file.variants)}
    kept = {
        file.name(at): file.size_bytes
        for job in jobs
        for file in job.files
        for at in range(file.variants)
        if file.wish == Wish.RETAIN_INDEFINITELY
    }
    least = max((_most_bytes(job) for job in jobs), default=0) + sum(
        kept.values()
    )  # else somebody would have to release
    heat = dice.choice([0.0, 0.1, 0.3, 1.0])
    faults = {kind: round(most * heat * dice.uniform(0.1, 1.0), 5) for kind, most in _FILE_HEAT.items()}
    later = random.Random(f"pins/{world.seed}")
    faults |= {kind: round(most * heat * later.uniform(0.1, 1.0), 5) for kind, most in _LATER_FILE_HEAT.items()}
    return replace(
        world,
        stores=stores,
        jobs=jobs,
        sites=tuple(_with_cache(dice, each, least=least, most=sum(sizes.values())) for each in world.sites),
        faults=replace(world.faults, **{kind: often for kind, often in faults.items() if often}),
    )


def _store(dice: random.Random, number: int) -> StoreSketch:
    outages = tuple((dice.uniform(0.0, 3600.0), dice.uniform(60.0, 2400.0)) for _ in range(dice.choice([0, 0, 1, 2])))
    return StoreSketch(
        url=f"s3://store-{number}/",
        outages=outages,
        failure_probability=dice.choice([0.0, 0.0, 0.05, 0.3]),
        bytes_per_second=dice.choice([0.0, 1.0, 10.0]) * _MIB,
        latency_seconds=dice.choice([0.0, 0.1, 5.0]),
    )


def _file(dice: random.Random, number: int, stores: tuple[StoreSketch, ...]) -> FileSketch:
    return FileSketch(
        locator=f"{dice.choice(stores).url}data-{number}",
        template=0,
        variants=dice.choice([1, 1, 3, 10]),
        size_bytes=dice.choice([1, 10, 100]) * _MIB,
        size_known=dice.random() < 0.7,
    )


def _with_own_files(dice: random.Random, job: JobSketch, pool: list[FileSketch], *, copies_max: int) -> JobSketch:
    """The files of a job: some of the common ones, each with its own wish, and outputs to store and to dispose of."""
    wishes = (Wish.DELETABLE, Wish.RETAIN_TEMPORARILY, Wish.RETAIN_TEMPORARILY, Wish.RETAIN_INDEFINITELY)
    files = []
    for file in dice.sample(pool, dice.randint(0, min(4, len(pool)))):
        released = dice.random() < 0.2
        wish = Wish.DELETABLE if released else dice.choice(wishes)
        template = dice.randrange(len(job.templates))
        files.append(replace(file, template=template, wish=wish, released=released))
    copies = dice.choice([0, 1, 2, copies_max]) if dice.random() < 0.5 else 0
    templates = tuple(
        replace(
            each,
            stores_outputs=copies > 0 and dice.random() < 0.5,
            disposes_outputs=not each.final and dice.random() < 0.3,
        )
        for each in job.templates
    )
    return replace(job, files=tuple(files), templates=templates, copies=min(copies, copies_max))


def _most_bytes(job: JobSketch) -> int:
    """The most that the files of one package of a job take."""
    sizes = [0] * len(job.templates)
    for file in job.files:
        sizes[file.template] += file.size_bytes
    return max(sizes)


def _with_cache(dice: random.Random, sketch: SiteSketch, *, least: int, most: int) -> SiteSketch:
    """A site with a cache: without a limit, or large enough for each package, but rarely for all of them."""
    limit = dice.choice([None, None, least, least, (least + max(least, most)) // 2, most + least]) or None
    rate = dice.choice([0.0, 1.0, 5.0]) * _MIB
    return replace(sketch, bytes_per_second=rate, site=replace(sketch.site, cache_bytes=limit))
