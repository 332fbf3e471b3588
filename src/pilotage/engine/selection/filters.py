"""Filters: which sites fit the requirements of a class; one function for each condition, with a reason if it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from pilotage.model.jobs.plan import Template
from pilotage.model.resources import Demand, lacking, shortage
from pilotage.model.site import Site, Start, can_mean, fitting_start, start_text

_NAMES_MAX = 3


class SiteDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A site with its further properties for the selection; field names as in `sites.yaml`."""

    site: Site
    platform: str = ""  # empty: unknown, and not held against it; likewise scratch, stores and software
    job_types: tuple[str, ...] = ()  # besides `normal`, which every site runs
    node_names: tuple[str, ...] = ()  # names or patterns; empty: its nodes cannot be named
    scratch_bytes: int | None = None  # for the files of one attempt
    data_handling: tuple[str, ...] = ()  # the data-handling services there
    stores: tuple[str, ...] = ()  # that it reaches, by URL prefix
    software: tuple[str, ...] = ()  # installed there: `ID` or `ID/VERSION`
    users: tuple[str, ...] = ()  # whose packages it runs; empty: everyone's
    initial_score: float | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return self.site.name


def described(site: Site) -> SiteDescription:
    """The description of a site for the selection."""
    return SiteDescription(
        site=site,
        platform=site.platform,
        # This computer runs every type, unless its entry lists some.
        job_types=site.job_types or (("*",) if site.kind == "local" else ()),
        node_names=site.node_names,
        scratch_bytes=site.scratch_bytes,
        data_handling=site.data_handling,
        stores=site.stores,
        software=site.software,
        users=site.users,
        initial_score=site.initial_score,
    )


class Requirements(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a class of packages requires of a site. An empty text or a 0: no requirement."""

    demand: Demand = Demand()
    executor: str = ""  # the name or the kind of a site
    beside: str = ""  # the name of the site where the packages run whose outputs it reads while they grow
    platform: str = ""
    job_type: str = "normal"
    more_wall_than: float = 0.0  # seconds; it was cut off after this time
    run_seconds: float = 0.0  # estimated, on the standard platform
    work_bytes: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    data_handling: bool = False
    locators: tuple[str, ...] = ()  # of its inputs and outputs; `…*`: only the prefix is known
    software: tuple[str, ...] = ()  # that must be installed: `ID` or `ID/VERSION`
    starts: tuple[tuple[Start, ...], ...] = ()  # for each of them, one of these ways to start it must fit
    owner: str = ""


def executor(site: SiteDescription, requirements: Requirements) -> str:
    """The package names a site or a kind of site."""
    if requirements.executor in ("", site.site.name, site.site.kind):
        return ""
    return f"it may run at {requirements.executor} only"


def beside(site: SiteDescription, requirements: Requirements) -> str:
    """The package starts early, where those run that make its inputs."""
    if requirements.beside in ("", site.site.name):
        return ""
    return f"it starts early, and the packages that make its inputs run at {requirements.beside}"


def node_restriction(site: SiteDescription, requirements: Requirements) -> str:
    """The package may run on some nodes only; a site that does not name its nodes may have none of them.

    A pilot reports its node. For a bound batch job, the batch system must support a choice of nodes.
    """
    wanted, about = requirements.demand.node_restriction, site.site
    if not wanted:
        return ""
    names = f"it may run on {names_text(wanted)} only, and {site.name}"
    if not site.node_names:
        return f"{names} does not name its nodes"
    if not any(can_mean(name, other) for name in wanted for other in site.node_names):
        return f"{names} has no such node"
    if not about.places_nodes and (about.mode == "bound" or requirements.demand.nodes > 1):
        return f"{names} cannot choose the nodes of a batch job: {about.kind} does not support it"
    return ""


def names_text(names: tuple[str, ...]) -> str:
    """Names of nodes for people, shortened if many."""
    more = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def platform(site: SiteDescription, requirements: Requirements) -> str:
    """The package needs one platform."""
    if not requirements.platform or not site.platform or requirements.platform == site.platform:
        return ""
    return f"it runs on {requirements.platform}, and {site.name} is {site.platform}"


def job_type(site: SiteDescription, requirements: Requirements) -> str:
    """The package has a type, such as mpi, that not every site runs."""
    if requirements.job_type in ("normal", *site.job_types) or "*" in site.job_types:
        return ""
    return f"it is of type {requirements.job_type}, and {site.name} runs {', '.join(dict.fromkeys(('normal', *site.job_types)))}"


def capacity(site: SiteDescription, requirements: Requirements) -> str:
    """The resources of a node, and the number of nodes."""
    demand, about = requirements.demand, site.site
    for name, wants, has in lacking(demand, about.capacity):
        return shortage(name, site.name, wants, has)
    if demand.nodes > about.nodes:
        return f"it asks for {demand.nodes} nodes and {site.name} has {about.nodes}"
    return ""


def estimated_seconds(site: Site, *, run_seconds: float, wall_seconds: float) -> float:
    """Expected run time of a package at a site, at most its wall time; 0 if unknown."""
    seconds = run_seconds / site.speed
    return min(seconds, wall_seconds) if wall_seconds else seconds


def wall_time(site: SiteDescription, requirements: Requirements) -> str:
    """The declared time, the estimate, or more than the package had when it was cut off."""
    if not site.site.wall_seconds:
        return ""
    longest = site.site.package_seconds_max
    if requirements.demand.wall_seconds > longest:
        return f"it asks for {requirements.demand.wall_seconds:.0f} s and {site.name} allows {longest:.0f} s"
    if requirements.more_wall_than and longest <= requirements.more_wall_than:
        return f"it was cut off after {requirements.more_wall_than:.0f} s, and {site.name} allows no more"
    wall_seconds, speed = requirements.demand.wall_seconds, site.site.speed
    expected = estimated_seconds(site.site, run_seconds=requirements.run_seconds, wall_seconds=wall_seconds)
    if expected > longest:
        there = f"{expected:.0f} s at {site.name}, of speed {speed:g}" if speed != 1.0 else f"{expected:.0f} s"
        return f"it is expected to take {there}, and {site.name} allows {longest:.0f} s"
    return ""


def scratch(site: SiteDescription, requirements: Requirements) -> str:
    """Work files, inputs and outputs must fit together."""
    needed = requirements.work_bytes + requirements.input_bytes + requirements.output_bytes
    if site.scratch_bytes is None or needed <= site.scratch_bytes:
        return ""
    parts = f"{requirements.work_bytes:,} of work, {requirements.input_bytes:,} of inputs, {requirements.output_bytes:,} of outputs"
    return f"it needs {needed:,} bytes of scratch ({parts}) and {site.name} has {site.scratch_bytes:,}"


def data_handling(site: SiteDescription, requirements: Requirements) -> str:
    """The package needs a data-handling service."""
    return (
        f"it needs a data-handling service, and {site.name} has none"
        if requirements.data_handling and not site.data_handling
        else ""
    )


def reachable_data(site: SiteDescription, requirements: Requirements) -> str:
    """The site must reach the stores of the package's inputs and outputs."""
    if not site.stores:
        return ""
    for locator in requirements.locators:
        if not any(_reaches(store.rstrip("/") + "/", locator) for store in site.stores):
            return f"{site.name} does not reach {locator}"
    return ""


def _reaches(store: str, locator: str) -> bool:
    if not locator.endswith("*"):
        return f"{locator}/".startswith(store)
    known = locator[:-1]  # the rest differs for each package
    return known.startswith(store) or store.startswith(known)


def software(site: SiteDescription, requirements: Requirements) -> str:
    """The package needs installed software, in a version if one is given."""
    if not site.software:
        return ""
    there = {*site.software, *(each.partition("/")[0] for each in site.software)}
    missing = [each for each in requirements.software if each not in there]
    return f"{site.name} does not have {', '.join(missing)}" if missing else ""


def execution(site: SiteDescription, requirements: Requirements) -> str:
    """The package needs software with a way to start it at this site: by name, kind or platform of the site."""
    for starts in requirements.starts:
        if fitting_start(starts, site.site, platform=requirements.platform) is None:
            where = ", ".join(dict.fromkeys(map(start_text, starts)))
            name = starts[0].software.partition("/")[0]
            here = f"{site.site.kind} on {site.platform}" if site.platform else site.site.kind
            return f"{name} is described for {where}, and {site.name} is of the kind {here}"
    return ""


def own_sites(site: SiteDescription, requirements: Requirements) -> str:
    """A site may be restricted to some users."""
    if site.users and requirements.owner not in site.users:
        return f"{site.name} is not a site of {requirements.owner or 'everybody'}"
    return ""


Filter = Callable[[SiteDescription, Requirements], str]

FILTERS: dict[str, Filter] = {
    "executor": executor,
    "beside": beside,
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
"""Every filter by its name, in the order of evaluation."""


class Refusal(msgspec.Struct, frozen=True):
    """A filter that refused, and why."""

    filter: str
    message: str


def refusals(site: SiteDescription, requirements: Requirements) -> Iterator[Refusal]:
    """Every reason why a site does not fit."""
    for name, refuses in FILTERS.items():
        if message := refuses(site, requirements):
            yield Refusal(name, message)


def allows(site: SiteDescription, requirements: Requirements) -> bool:
    """Whether a site fits."""
    return next(refusals(site, requirements), None) is None


def requirements_of(
    owner: str,
    about: Template,
    *,
    demand: Demand,
    more_wall_than: float = 0.0,
    run_seconds: float = 0.0,
    beside: str = "",
) -> Requirements:
    """The requirements of packages of a template; with their estimate only if it is given."""
    return Requirements(
        demand=demand,
        executor=about.executor,
        beside=beside,
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
