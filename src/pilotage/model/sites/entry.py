"""One entry of `sites.yaml`: what a person configures for a site.

These classes are the table of that file: its reader, its JSON Schema and its reference page are derived from their fields,
types and descriptions, as for a job. The engine uses an entry as `pilotage.model.site.Site`.
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
    """The position of a site on the map."""

    latitude: Annotated[Latitude, _doc("Degrees north.")]
    longitude: Annotated[Longitude, _doc("Degrees east.")]
    place: Annotated[str, _doc("The name of the place.")] = ""


class SiteEntry(Value, frozen=True, kw_only=True):
    """A site: how it is reached, its limits, and what it offers."""

    name: Annotated[str, _doc("Its name in all commands and in the book.")]
    kind: Annotated[str, _doc("Its batch system: `local`, `slurm`, `gridengine`, or another dialect.")]
    address: Annotated[str, _doc("`ssh://USER@HOST:PORT` of its login node; none: commands run on this computer.")] = ""
    started_by: Annotated[
        StartedBy, _doc("What submits there: the `service` itself, or `agent`, the site agent in your account.")
    ] = "service"
    mode: Annotated[SiteMode, _doc("`pilots` pull their work; `bound`: one batch job for each package.")] = "pilots"
    queue: Annotated[str, _doc("The queue or partition; none: the default one.")] = ""
    account: Annotated[str, _doc("The account or project that is charged.")] = ""
    parallel_environment: Annotated[
        str, _doc("The parallel environment of Grid Engine; none: `smp`, or `mpi` for several nodes.")
    ] = ""
    directives: Annotated[tuple[str, ...], _doc("Further options of its batch system, word by word.")] = ()
    folder: Annotated[
        str, _doc("The folder for the files of agents there; none: `.pilotage-site` in the home folder.")
    ] = ""
    python: Annotated[str, _doc("The Python 3.8 or later that starts the agent there.")] = "python3"
    setup: Annotated[
        tuple[str, ...],
        _doc(
            "Shell lines to run before the commands of its batch system and before the agent, such as `module load …`."
        ),
    ] = ()
    slots: Annotated[
        Positive, _doc("Cores of a pilot, and so the number of one-core packages that it runs at once.")
    ] = 1
    memory_bytes: Annotated[Count | None, _doc("Memory of a pilot; none: not requested, and unknown.")] = None
    gpus: Annotated[Count, _doc("Graphics processors of a pilot.")] = 0
    scratch_bytes: Annotated[Count | None, _doc("Scratch space on a node.")] = None
    wall_time_seconds: Annotated[Seconds | None, _doc("The longest time of a batch job; none: no limit.")] = None
    nodes_max: Annotated[Positive, _doc("The most nodes that one package may use.")] = 1
    pilots_max: Annotated[
        Positive | None, _doc("Queued and running pilots at once; none: 10, or 1 for the kind `local`.")
    ] = None
    job_throttle: Annotated[
        Annotated[float, Meta(ge=0)], _doc("How many packages are tried while it is unknown: see site selection.")
    ] = 2.0
    platform: Annotated[str, _doc("Its platform for packages that ask for one, such as `x86_64-linux`.")] = ""
    speed: Annotated[
        Annotated[float, Meta(gt=0)], _doc("Speed of a core relative to the standard platform; scales estimates.")
    ] = 1.0
    job_types: Annotated[tuple[str, ...], _doc("Types of jobs it runs, such as `mpi`; every site runs `normal`.")] = ()
    node_names: Annotated[tuple[str, ...], _doc("Its nodes, by name or pattern, for packages that name theirs.")] = ()
    data_handling: Annotated[tuple[str, ...], _doc("Data-handling services there.")] = ()
    stores: Annotated[
        tuple[str, ...],
        _doc(
            "Stores that its nodes reach, by URL prefix; none: unknown. A package that fetches an input"
            " itself (`acquisition: self`) from a `locator` elsewhere does not run there;"
            " files that are brought to the site or stored do not depend on it."
        ),
    ] = ()
    software: Annotated[tuple[str, ...], _doc("Installed software: `ID` or `ID/VERSION`; none: unknown.")] = ()
    users: Annotated[tuple[str, ...], _doc("The users whose packages it runs; none: all.")] = ()
    location: Annotated[Location | None, _doc("For the map.")] = None
    initial_score: Annotated[float | None, _doc("Its score before anything is known of it.")] = None
    idle_seconds: Annotated[Seconds, _doc("Time without work after which a pilot ends.")] = 300.0
    cache: Annotated[
        str,
        _doc(
            "The folder for files that are brought there, on a disk that all nodes see; none: `cache` in its own folder."
        ),
    ] = ""
    cache_bytes: Annotated[Count | None, _doc("Space for those files; none: no limit.")] = None
    transfers_max: Annotated[Positive, _doc("Files that are brought there at once.")] = 8
    transfer_bytes_per_second: Annotated[Count, _doc("All files that are brought there together; 0: no limit.")] = 0


SITES_MAX = 1000
"""The most sites that a service manages: each is polled all the time."""


class SitesFile(Value, frozen=True, kw_only=True):
    """All sites of a service besides the computer that it runs on."""

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
    """Whether a changed entry starts different pilots than before."""
    return any(getattr(before, field) != getattr(after, field) for field in _OF_A_PILOT)


def is_elsewhere(before: SiteEntry, after: SiteEntry) -> bool:
    """Whether a changed entry names another batch system, which does not list earlier submissions."""
    return any(getattr(before, field) != getattr(after, field) for field in _OF_THE_SYSTEM)


def pilots_max_of(entry: SiteEntry) -> int:
    """How many pilots a site may have at once: on this computer, one has all slots."""
    return entry.pilots_max or (1 if entry.kind == "local" else PILOTS_MAX)


def site_of(entry: SiteEntry) -> Site:
    """The site as the engine knows it."""
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
        cache_bytes=entry.cache_bytes,
    )
