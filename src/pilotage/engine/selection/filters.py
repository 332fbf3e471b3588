"""Which sites could do what is asked at all: one small function for each condition, each with a reason where it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from pilotage.model.jobs.plan import Template
from pilotage.model.resources import Demand, lacking, shortage
from pilotage.model.site import Site, Start, can_mean, fitting_start, told_start

_NAMES_MAX = 3


class SiteDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A site, and what the choice asks about it besides; the fields are called as in `sites.yaml`."""

    site: Site
    platform: str = ""  # none: not said, and not held against it; so for scratch, stores and software
    job_types: tuple[str, ...] = ()  # besides `normal`, which it always runs
    node_names: tuple[str, ...] = ()  # by name or pattern; none: it has no node that anybody can name
    scratch_bytes: int | None = None  # for the files of one attempt
    data_handling: tuple[str, ...] = ()  # the data-handling services there
    stores: tuple[str, ...] = ()  # that it reaches, by the beginning of their URLs
    software: tuple[str, ...] = ()  # installed there: `ID` or `ID/VERSION`
    users: tuple[str, ...] = ()  # whose packages it runs; none: everybody's
    initial_score: float | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.site.name


def described(site: Site) -> SiteDescription:
    """What the choice asks about a site."""
    return SiteDescription(
        site=site,
        platform=site.platform,
        # The computer itself runs whatever it is asked to, unless it says what.
        job_types=site.job_types or (("*",) if site.kind == "local" else ()),
        node_names=site.node_names,
        scratch_bytes=site.scratch_bytes,
        data_handling=site.data_handling,
        stores=site.stores,
        software=site.software,
        users=site.users,
        initial_score=site.initial_score,
    )


class Asked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a class of packages asks of a site. An empty text or a 0: anything will do."""

    demand: Demand = Demand()
    executor: str = ""  # the name or the kind of a site
    platform: str = ""
    job_type: str = "normal"
    more_wall_than: float = 0.0  # seconds; it was cut off after so many
    run_seconds: float = 0.0  # estimated, on the standard platform
    work_bytes: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    data_handling: bool = False
    locators: tuple[str, ...] = ()  # where its inputs lie and its outputs go; `…*`: only the beginning is known
    software: tuple[str, ...] = ()  # that must be installed: `ID` or `ID/VERSION`
    starts: tuple[tuple[Start, ...], ...] = ()  # for each of them, one way to start it must fit
    owner: str = ""


def executor(site: SiteDescription, asked: Asked) -> str:
    """It asks for a site or a kind of site by name."""
    if asked.executor in ("", site.site.name, site.site.kind):
        return ""
    return f"it may run at {asked.executor} only"


def node_restriction(site: SiteDescription, asked: Asked) -> str:
    """It may run on some nodes only; a site that does not name its nodes may have none of them.

    A pilot tells where it is. For a batch job of its own the batch system must be told where it may go.
    """
    wanted, about = asked.demand.node_restriction, site.site
    if not wanted:
        return ""
    names = f"it may run on {told_names(wanted)} only, and {site.name}"
    if not site.node_names:
        return f"{names} does not name its nodes"
    if not any(can_mean(name, other) for name in wanted for other in site.node_names):
        return f"{names} has no such node"
    if not about.places_nodes and (about.mode == "bound" or asked.demand.nodes > 1):
        return f"{names} cannot be told on which nodes a batch job is to run: {about.kind} has no way for it"
    return ""


def told_names(names: tuple[str, ...]) -> str:
    """Nodes that are named, for people: not all of many."""
    more = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def platform(site: SiteDescription, asked: Asked) -> str:
    """It runs on one platform."""
    if not asked.platform or not site.platform or asked.platform == site.platform:
        return ""
    return f"it runs on {asked.platform}, and {site.name} is {site.platform}"


def job_type(site: SiteDescription, asked: Asked) -> str:
    """It is of a type, such as mpi, that not every site runs."""
    if asked.job_type in ("normal", *site.job_types) or "*" in site.job_types:
        return ""
    return (
        f"it is of type {asked.job_type}, and {site.name} runs {', '.join(dict.fromkeys(('normal', *site.job_types)))}"
    )


def capacity(site: SiteDescription, asked: Asked) -> str:
    """Every resource of a node, and the number of nodes."""
    demand, about = asked.demand, site.site
    for name, wants, has in lacking(demand, about.capacity):
        return shortage(name, site.name, wants, has)
    if demand.nodes > about.nodes:
        return f"it asks for {demand.nodes} nodes and {site.name} gives {about.nodes}"
    return ""


def estimated_seconds(site: Site, *, run_seconds: float, wall_seconds: float) -> float:
    """How long a package is expected to take at a site; 0: nobody knows. It is ended at its own wall time."""
    seconds = run_seconds / site.speed
    return min(seconds, wall_seconds) if wall_seconds else seconds


def wall_time(site: SiteDescription, asked: Asked) -> str:
    """It needs so much time, is expected to, or needs more than it had when it was cut off."""
    if not site.site.wall_seconds:
        return ""
    longest = site.site.package_seconds_max
    if asked.demand.wall_seconds > longest:
        return f"it asks for {asked.demand.wall_seconds:.0f} s and {site.name} gives {longest:.0f} s"
    if asked.more_wall_than and longest <= asked.more_wall_than:
        return f"it was cut off after {asked.more_wall_than:.0f} s, and {site.name} gives no more"
    wall_seconds, speed = asked.demand.wall_seconds, site.site.speed
    expected = estimated_seconds(site.site, run_seconds=asked.run_seconds, wall_seconds=wall_seconds)
    if expected > longest:
        there = f"{expected:.0f} s at {site.name}, of speed {speed:g}" if speed != 1.0 else f"{expected:.0f} s"
        return f"it is expected to take {there}, and {site.name} gives {longest:.0f} s"
    return ""


def scratch(site: SiteDescription, asked: Asked) -> str:
    """Its work files, inputs and outputs must fit together."""
    needed = asked.work_bytes + asked.input_bytes + asked.output_bytes
    if site.scratch_bytes is None or needed <= site.scratch_bytes:
        return ""
    parts = f"{asked.work_bytes:,} of work, {asked.input_bytes:,} of inputs, {asked.output_bytes:,} of outputs"
    return f"it needs {needed:,} bytes of scratch ({parts}) and {site.name} has {site.scratch_bytes:,}"


def data_handling(site: SiteDescription, asked: Asked) -> str:
    """It needs a data-handling service."""
    return (
        f"it needs a data-handling service, and {site.name} has none"
        if asked.data_handling and not site.data_handling
        else ""
    )


def reachable_data(site: SiteDescription, asked: Asked) -> str:
    """Its inputs and outputs lie in stores that the site must reach."""
    if not site.stores:
        return ""
    for locator in asked.locators:
        if not any(_reaches(store.rstrip("/") + "/", locator) for store in site.stores):
            return f"{site.name} does not reach {locator}"
    return ""


def _reaches(store: str, locator: str) -> bool:
    if not locator.endswith("*"):
        return f"{locator}/".startswith(store)
    known = locator[:-1]  # what follows is another for each package
    return known.startswith(store) or store.startswith(known)


def software(site: SiteDescription, asked: Asked) -> str:
    """It needs software that is installed there, in a version where one is given."""
    if not site.software:
        return ""
    there = {*site.software, *(each.partition("/")[0] for each in site.software)}
    missing = [each for each in asked.software if each not in there]
    return f"{site.name} does not have {', '.join(missing)}" if missing else ""


def execution(site: SiteDescription, asked: Asked) -> str:
    """It needs software that is described for the site: its name, its kind or any, and its platform."""
    for starts in asked.starts:
        if fitting_start(starts, site.site, platform=asked.platform) is None:
            where = ", ".join(dict.fromkeys(map(told_start, starts)))
            name = starts[0].software.partition("/")[0]
            here = f"{site.site.kind} on {site.platform}" if site.platform else site.site.kind
            return f"{name} is described for {where}, and {site.name} is of the kind {here}"
    return ""


def own_sites(site: SiteDescription, asked: Asked) -> str:
    """A site may be for some users alone."""
    if site.users and asked.owner not in site.users:
        return f"{site.name} is not a site of {asked.owner or 'everybody'}"
    return ""


Filter = Callable[[SiteDescription, Asked], str]

FILTERS: dict[str, Filter] = {
    "executor": executor,
    "node-restriction": node_restriction,
    "platform": platform,
    "job-type": job_type,
    "capacity": capacity,
    "wall-time": wall_time,
    "scratch": scratch,
    "data-handling": data_handling,
    "reachable-data": reachable_data,
    "software": software,
    "execution": execution,
    "own-sites": own_sites,
}
"""Every filter by its name, in the order in which they are asked."""


class Refusal(msgspec.Struct, frozen=True):
    """A filter that refused, and why."""

    filter: str
    message: str


def refusals(site: SiteDescription, asked: Asked) -> Iterator[Refusal]:
    """Every reason why a site cannot do what is asked."""
    for name, refuses in FILTERS.items():
        if message := refuses(site, asked):
            yield Refusal(name, message)


def allows(site: SiteDescription, asked: Asked) -> bool:
    """Whether it can."""
    return next(refusals(site, asked), None) is None


def asked_of(
    owner: str, about: Template, *, demand: Demand, more_wall_than: float = 0.0, run_seconds: float = 0.0
) -> Asked:
    """What packages of a template ask of a site; their estimate only where it is given, since it is no more than that."""
    return Asked(
        demand=demand,
        executor=about.executor,
        platform=about.platform,
        job_type=about.job_type,
        more_wall_than=more_wall_than,
        run_seconds=run_seconds,
        work_bytes=about.work_bytes,
        input_bytes=about.input_bytes,
        output_bytes=about.output_bytes,
        locators=about.locators,
        data_handling=about.data_handling,
        software=about.software,
        starts=about.starts,
        owner=owner,
    )
