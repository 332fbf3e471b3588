"""What a person writes down about a site: one entry of `sites.yaml`.

These classes are the table of that file: its reader, its JSON Schema and its reference page are derived from their fields,
types and descriptions, as for a job. What the engine makes of an entry is `pilotage.model.site.Site`.
"""

from typing import Annotated, Literal

from msgspec import Meta

from pilotage.model.jobs.definition import Count, Positive, Seconds, Value
from pilotage.model.resources import KINDS, Capacity
from pilotage.model.site import LOCAL_DATA_HANDLING, Site, SiteMode

SITES_VERSION = 1
PILOTS_MAX = 10
SITE_NAME_FORM = "letters, digits, '.', '_' and '-', starting with a letter, at most 60"

Latitude = Annotated[float, Meta(ge=-90, le=90)]
Longitude = Annotated[float, Meta(ge=-180, le=180)]
StartedBy = Literal["service", "agent"]


def _doc(text: str) -> Meta:
    return Meta(description=text)


class Location(Value, frozen=True, kw_only=True):
    """Where a site stands on the map."""

    latitude: Annotated[Latitude, _doc("Degrees north.")]
    longitude: Annotated[Longitude, _doc("Degrees east.")]
    place: Annotated[str, _doc("What the place is called.")] = ""


class SiteEntry(Value, frozen=True, kw_only=True):
    """A site: how it is reached, what may be asked of it, and what is there."""

    name: Annotated[str, _doc("What to call it, in every command and in the book.")]
    kind: Annotated[str, _doc("Its batch system: `local`, `slurm`, `gridengine`, or any other dialect there is.")]
    address: Annotated[str, _doc("`ssh://USER@HOST:PORT` of its login node; none: the commands are run here.")] = ""
    started_by: Annotated[
        StartedBy, _doc("Who submits there: `service` itself, or `agent`: the site agent that runs in your account.")
    ] = "service"
    mode: Annotated[SiteMode, _doc("`pilots` pull their work; `bound`: one batch job for each package.")] = "pilots"
    queue: Annotated[str, _doc("The queue or partition; none: the usual one there.")] = ""
    account: Annotated[str, _doc("The account or project that is charged.")] = ""
    parallel_environment: Annotated[
        str, _doc("The parallel environment that Grid Engine is asked for; none: `smp`, or `mpi` for several nodes.")
    ] = ""
    directives: Annotated[tuple[str, ...], _doc("Further options of its batch system, word by word.")] = ()
    folder: Annotated[str, _doc("Where agents keep their files there; none: `.pilotage-site` in the home folder.")] = ""
    python: Annotated[str, _doc("The Python 3.8 or later that starts the agent there.")] = "python3"
    setup: Annotated[
        tuple[str, ...],
        _doc(
            "Lines of shell before the commands of its batch system, and before the agent starts, such as `module load …`."
        ),
    ] = ()
    slots: Annotated[Positive, _doc("Cores that a pilot asks for, and packages of one core that it runs at once.")] = 1
    memory_bytes: Annotated[Count | None, _doc("Memory that a pilot asks for; none: not asked for, and not known.")] = (
        None
    )
    gpus: Annotated[Count, _doc("Graphics processors that a pilot asks for.")] = 0
    scratch_bytes: Annotated[Count | None, _doc("Scratch space on a node.")] = None
    wall_time_seconds: Annotated[Seconds | None, _doc("The longest that a batch job may last; none: no limit.")] = None
    nodes_max: Annotated[Positive, _doc("The most nodes that one package may span.")] = 1
    pilots_max: Annotated[
        Positive | None, _doc("Pilots that queue or run there at once; none: 10, and of the kind `local` one.")
    ] = None
    job_throttle: Annotated[
        Annotated[float, Meta(ge=0)], _doc("How many packages are tried there before it is known: see site selection.")
    ] = 2.0
    platform: Annotated[str, _doc("What packages may ask for by `platform`, such as `x86_64-linux`.")] = ""
    speed: Annotated[
        Annotated[float, Meta(gt=0)], _doc("How fast a core is beside the standard platform; scales estimates.")
    ] = 1.0
    job_types: Annotated[tuple[str, ...], _doc("Types of jobs it runs, such as `mpi`; `normal` always.")] = ()
    node_names: Annotated[tuple[str, ...], _doc("Its nodes, by name or pattern, for packages that name theirs.")] = ()
    data_handling: Annotated[tuple[str, ...], _doc("Data-handling services there.")] = ()
    stores: Annotated[
        tuple[str, ...],
        _doc(
            "Stores that its nodes reach, by the beginning of their URLs; none: not said. A package that fetches an input"
            " itself (`acquisition: self`) from a `locator` elsewhere is not given to it; pilotage moves nothing to or from"
            " stores, and other locators are refused so far."
        ),
    ] = ()
    software: Annotated[tuple[str, ...], _doc("What is installed: `ID` or `ID/VERSION`; none: not said.")] = ()
    users: Annotated[tuple[str, ...], _doc("Whose packages it runs; none: everybody's.")] = ()
    location: Annotated[Location | None, _doc("For the map.")] = None
    initial_score: Annotated[float | None, _doc("What it is believed to be worth before it is known.")] = None
    idle_seconds: Annotated[Seconds, _doc("A pilot without work for so long ends.")] = 300.0


SITES_MAX = 1000
"""So many sites a service has at most: somebody looks after each of them all the time."""


class SitesFile(Value, frozen=True, kw_only=True):
    """All sites that a service knows besides the computer that it runs on."""

    pilotage: Annotated[int, _doc("The version of this file's language.")] = SITES_VERSION
    sites: Annotated[tuple[SiteEntry, ...], _doc("The sites.")] = ()


_OF_THE_SYSTEM = ("kind", "address")
_OF_A_PILOT = (
    *_OF_THE_SYSTEM,
    "mode",
    "queue",
    "account",
    "parallel_environment",
    "directives",
    "folder",
    "python",
    "setup",
    *(kind.entry for kind in KINDS),
    "wall_time_seconds",
    "idle_seconds",
)


def starts_others(before: SiteEntry, after: SiteEntry) -> bool:
    """Whether what is started by a changed entry is other than what was started before."""
    return any(getattr(before, field) != getattr(after, field) for field in _OF_A_PILOT)


def is_elsewhere(before: SiteEntry, after: SiteEntry) -> bool:
    """Whether a changed entry names another batch system, at which nothing is seen of what was submitted before."""
    return any(getattr(before, field) != getattr(after, field) for field in _OF_THE_SYSTEM)


def pilots_max_of(entry: SiteEntry) -> int:
    """How many pilots may be at a site at once: of this computer one has all slots that were meant."""
    return entry.pilots_max or (1 if entry.kind == "local" else PILOTS_MAX)


def site_of(entry: SiteEntry) -> Site:
    """What the engine knows of a site."""
    return Site(
        name=entry.name,
        kind=entry.kind,
        mode=entry.mode,
        capacity=Capacity(**{kind.name: kind.amount(getattr(entry, kind.entry)) for kind in KINDS}),
        nodes=entry.nodes_max,
        wall_seconds=entry.wall_time_seconds or 0.0,
        pilots_max=pilots_max_of(entry),
        speed=entry.speed,
        job_throttle=entry.job_throttle,
        platform=entry.platform,
        job_types=entry.job_types,
        node_names=entry.node_names,
        scratch_bytes=entry.scratch_bytes,
        data_handling=entry.data_handling or (LOCAL_DATA_HANDLING if entry.kind == "local" else ()),
        stores=entry.stores,
        software=entry.software,
        users=entry.users,
        initial_score=entry.initial_score,
    )
