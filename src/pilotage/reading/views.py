"""The answers of the API as frozen values; these classes are the response schemas of the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pilotage.book.statistics.statistics import Flow
from pilotage.model.answers import EndForecast, HealedStep, PackageWords, StoppedActivity
from pilotage.model.exchange.reports import Noticed
from pilotage.model.sites.entry import SiteEntry


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all answers."""


class PositionView(View, frozen=True, kw_only=True):
    """The position of the book's last event."""

    position: int


class HealthView(View, frozen=True, kw_only=True):
    """The service stores events and answers queries."""

    status: str
    version: str


class CountView(View, frozen=True, kw_only=True):
    """A count."""

    count: int


class PackageCount(View, frozen=True, kw_only=True):
    """Count of packages; those of `sealed_jobs` sealed jobs were not searched."""

    count: int
    sealed_jobs: int


class CountsView(View, frozen=True, kw_only=True):
    """Number of packages in each state, including those without events; dropped ones count only under `dropped`."""

    submitted: int
    waiting: int
    ready: int
    scheduled: int
    running: int
    done: int
    aborted: int
    cancelled: int
    cleared: int
    dropped: int


class AccessView(View, frozen=True, kw_only=True):
    """The rights of one principal on a job, besides its owner."""

    principal: str
    rights: list[str]


class JobView(View, frozen=True, kw_only=True):
    """A job as it is now; times are seconds since 1970, UTC, and `url` is the address of the job.

    `targets` are the files, or patterns of files, to make; none: all outputs. `forecast` is the last one of an unfinished job.
    `stopped` are the activities that were stopped since they cannot succeed.
    """

    id: str
    name: str
    owner: str
    state: str
    held: bool
    failed: int
    packages: int
    counts: CountsView
    epoch: int
    place: str
    stages: int
    late_stages: int
    parent: str | None
    cause: str | None
    cleared_by: str | None
    submitted_at: float | None
    accepted_at: float | None
    started_at: float | None
    finished_at: float | None
    cancelled_at: float | None
    aborted_at: float | None
    cleared_at: float | None
    purged_at: float | None
    entered_at: float | None
    updated_at: float
    tags: dict[str, str]
    access: list[AccessView]
    definition: str | None
    targets: list[str]
    url: str
    forecast: EndForecast | None
    stopped: list[StoppedActivity]


class StageView(View, frozen=True, kw_only=True):
    """A stage of a job; the packages of a late one are not known yet, and no target needs one that is left out."""

    job: str
    stage: int
    state: str
    late: bool
    left_out: bool
    packages: int
    counts: CountsView


class LineView(View, frozen=True, kw_only=True):
    """A line of a stage: packages that run one after another."""

    job: str
    stage: int
    line: int
    state: str
    packages: int
    counts: CountsView


class PhaseView(View, frozen=True, kw_only=True):
    """When a phase of an attempt began, and how long it took."""

    phase: str
    started_at: float
    seconds: float


class BinaryView(View, frozen=True, kw_only=True):
    """When a binary of an attempt began, how long it ran, and how it ended; without a reason it succeeded."""

    number: int
    name: str | None = None
    started_at: float
    seconds: float
    exit_status: int | None = None
    signal: int | None = None
    reason: str | None = None


InputSource = Literal["", "package", "captured", "folder", "job", "locator"]
"""Where an input came from: made by a package of the job or by another job, sent with the job, a file, or fetched."""


class FileView(View, frozen=True, kw_only=True):
    """A file that an attempt made, or that a package reads; size and checksum of an input may be unknown."""

    name: str
    size_bytes: int | None
    sha256: str | None
    direction: Literal["in", "out"] = "out"
    origin: InputSource = ""  # of an input
    source: str = ""  # the package or the job that made it, or its locator


class AttemptView(View, frozen=True, kw_only=True):
    """One attempt: where and when it ran, how it ended, and its outputs."""

    attempt: int
    epoch: int
    granted: bool
    site: str | None
    pilot: str | None
    node: str | None
    native_id: str | None
    replaces: int | None
    memory_bytes: int | None
    wall_seconds: float | None
    drop_revision: int
    exit_code: str | None
    exit_message: str | None
    reason: str | None
    exit_status: int | None
    signal: int | None
    peak_memory_bytes: int | None
    peak_memory_below_bytes: int | None
    cpu_seconds: float | None
    cpu_user_seconds: float | None
    cpu_system_seconds: float | None
    read_bytes: int | None
    written_bytes: int | None
    phase: str | None
    created_at: float | None
    queued_at: float | None
    started_at: float | None
    suspected_at: float | None
    recovered_at: float | None
    lost_at: float | None
    lost_reason: str | None
    phase_at: float | None
    staged_at: float | None
    finished_at: float | None
    granted_at: float | None
    phases: list[PhaseView]
    binaries: list[BinaryView]
    manifest: list[FileView]
    container_digest: str | None  # of the image that it ran in
    custom: dict[str, Any] | None  # what the provenance script of the document printed
    custom_fault: str  # why there is none
    cores: list[FileView]  # core files of crashed programs, kept for the record of the job


class PackageView(View, frozen=True, kw_only=True):
    """A package as it is now; exit code, message and reason are those of its granted or last attempt."""

    id: str
    path: str
    job: str
    state: str
    heard: bool
    epoch: int
    activity: str
    held: bool
    dropped: bool
    conflict: bool
    inferred: list[str]
    site: str | None
    node: str | None
    attempt: int | None
    attempts: int
    exit_code: str | None
    exit_message: str | None
    reason: str | None
    cause: str | None
    cleared_by: str | None
    ready_at: float | None
    scheduled_at: float | None
    running_at: float | None
    done_at: float | None
    aborted_at: float | None
    cancelled_at: float | None
    cleared_at: float | None
    entered_at: float | None
    updated_at: float | None
    tags: dict[str, str]
    words: PackageWords | None  # name, parameters and command; in lists only on request
    binaries: list[BinaryView] | None  # of its granted or last attempt, if it had several; in lists only on request
    url: str


class PackageDetail(View, frozen=True, kw_only=True):
    """A package with all its attempts."""

    package: PackageView
    attempts: list[AttemptView]
    inputs: list[FileView]  # by the results of its producers as they are now; empty if another scheduler runs its job
    utc_offset: str  # of the clocks of its node: `+02:00`; empty if unknown
    healed: list[HealedStep] = []  # the attempts that healing wanted beside others, or gave up
    stale: list[str] = []  # files that it read and that were made again since with other contents


class EventView(View, frozen=True, kw_only=True):
    """An event as it was sent, with its position, when it was received, and whether the sender's clock was wrong."""

    position: int
    received: float
    skewed: bool
    source: str
    stream: str
    n: int
    type: str
    version: int
    time: float
    epoch: int
    seen: int
    job: str | None
    package: str | None
    attempt: int | None
    pilot: str | None
    site: str | None
    data: dict[str, Any]


class PilotView(View, frozen=True, kw_only=True):
    """A pilot at a site, with the last lines it wrote."""

    pilot: str
    site: str | None
    node: str | None
    request: str | None
    native_id: str | None
    slots: int
    requested_at: float | None
    started_at: float | None
    ended_at: float | None
    reason: str | None
    stderr: str | None
    updated_at: float


class NodeView(View, frozen=True, kw_only=True):
    """A node, as it described itself."""

    node: str
    site: str | None
    cores: int
    memory_bytes: int
    system: str
    software: dict[str, str]
    environment: dict[str, str]
    updated_at: float
    os_release: str
    kernel: str
    cpu_model: str
    libc: str


class JobsPage(View, frozen=True, kw_only=True):
    """A page of jobs by id; `next` is the cursor of the next page, if there is one."""

    jobs: list[JobView]
    next: str | None


class StagesPage(View, frozen=True, kw_only=True):
    """A page of stages, in order; `more` says whether others follow."""

    stages: list[StageView]
    more: bool


class PackagesPage(View, frozen=True, kw_only=True):
    """A page of packages, by job and place; `next` is the cursor of the next page, if there is one.

    Packages of `sealed_jobs` sealed jobs were not searched: a query that names their job finds them.
    """

    packages: list[PackageView]
    next: str | None
    sealed_jobs: int = 0


class EventsPage(View, frozen=True, kw_only=True):
    """A page of events by position; `next` is the cursor of the next page, if there is one."""

    events: list[EventView]
    next: str | None


class EventsAfter(View, frozen=True, kw_only=True):
    """Events after a position; `after` is where to continue, `more` says whether others are there already."""

    events: list[EventView]
    after: int
    more: bool


class FlowsView(View, frozen=True, kw_only=True):
    """Flow of packages by site and activity, over a window that ends now."""

    window: str
    flows: list[Flow]


class PilotsPage(View, frozen=True, kw_only=True):
    """A page of pilots by name; `next` is the name to continue after, if more may follow."""

    pilots: list[PilotView]
    next: str | None


class NodesPage(View, frozen=True, kw_only=True):
    """A page of nodes by name; `next` is the name to continue after, if more may follow."""

    nodes: list[NodeView]
    next: str | None


# Sites as their file configures them, and their status; no engine is needed for it.


class SitesConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """The configured sites: their file, the entry of each, and the fault of the file."""

    file: str = ""
    entries: dict[str, SiteEntry | None] = {}
    fault: str = ""


class SiteReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one stage of the site selection says about a site; the first one not passed is why it is not chosen."""

    stage: str  # filter, status, score, room, pick; or pilots, for starting them
    code: str
    message: str
    passes: bool = True
    since: float | None = None
    until: float | None = None
    count: int | None = None  # of pilots that the site should have


class SiteStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a site in the engine."""

    status: str
    score: float | None = None  # None: nothing learned yet
    tscore: float | None = None
    queue_seconds: float | None = None  # median of the latest ones
    pilots_queued: int = 0
    pilots_live: int = 0
    slots: int = 0
    used: int = 0
    dead_starts: int = 0
    closed: str = ""  # why nothing is submitted there now
    next_try_at: float | None = None  # the earliest time of the next pilot; None: no time is set
    unheard: str = ""  # batch jobs that do not start, or run without contacting the service
    noticed: tuple[Noticed, ...] = ()  # the same, one by one
    reasons: tuple[SiteReason, ...] = ()
