"""What the API answers, as frozen values: these classes are the response schemas of the OpenAPI document."""

from __future__ import annotations

from typing import Any

import msgspec

from pilotage.book.statistics.statistics import Flow
from pilotage.model.answers import PackageWords
from pilotage.model.exchange.reports import Noticed
from pilotage.model.sites.entry import SiteEntry


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The base of everything that is answered."""


class PositionView(View, frozen=True, kw_only=True):
    """How far the book is: the position of its last event."""

    position: int


class HealthView(View, frozen=True, kw_only=True):
    """That the service takes events and answers questions."""

    status: str
    version: str


class CountView(View, frozen=True, kw_only=True):
    """How many there are."""

    count: int


class PackageCount(View, frozen=True, kw_only=True):
    """How many packages there are; those of `sealed_jobs` many sealed jobs were not searched."""

    count: int
    sealed_jobs: int


class CountsView(View, frozen=True, kw_only=True):
    """How many packages stand in each state, with those of which nothing was heard; dropped ones count only there."""

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
    """Who may do what beside the owner."""

    principal: str
    rights: list[str]


class JobView(View, frozen=True, kw_only=True):
    """A job as it stands; times are seconds since 1970, UTC, and `url` is where it is asked for again.

    `targets` are the files that it is run for, or patterns of them; none: everything that it makes.
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


class StageView(View, frozen=True, kw_only=True):
    """A stage of a job; a late one is not known yet, and one that is left out is needed by none of the targets."""

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
    """When a phase of an attempt began and how long it took."""

    phase: str
    started_at: float
    seconds: float


class BinaryView(View, frozen=True, kw_only=True):
    """When a binary of an attempt began, how long it ran, and how it ended; without a reason it did what it should."""

    number: int
    name: str | None = None
    started_at: float
    seconds: float
    exit_status: int | None = None
    signal: int | None = None
    reason: str | None = None


class FileView(View, frozen=True, kw_only=True):
    """One file that an attempt made."""

    name: str
    size_bytes: int
    sha256: str


class AttemptView(View, frozen=True, kw_only=True):
    """One try at a package: where, when, how it ended, and what it made."""

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


class PackageView(View, frozen=True, kw_only=True):
    """A package as it stands; exit code, message and reason are those of its granted or last attempt."""

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
    words: PackageWords | None  # its name, parameters and command; in lists where they are asked for
    binaries: list[BinaryView] | None  # of its granted or last attempt, if there are several; in lists where asked for
    url: str


class PackageDetail(View, frozen=True, kw_only=True):
    """A package with every attempt at it."""

    package: PackageView
    attempts: list[AttemptView]


class EventView(View, frozen=True, kw_only=True):
    """An event as it was sent, with its place in the book, when it was received, and whether its clock was wrong."""

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
    """An agent process at a site, with the last lines it wrote."""

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
    """A computer, as it described itself."""

    node: str
    site: str | None
    cores: int
    memory_bytes: int
    system: str
    software: dict[str, str]
    environment: dict[str, str]
    updated_at: float


class JobsPage(View, frozen=True, kw_only=True):
    """Some jobs in the order of their ids; `next` is the cursor of the next page, where there is one."""

    jobs: list[JobView]
    next: str | None


class StagesPage(View, frozen=True, kw_only=True):
    """Some stages of a job, in order; `more` says that others follow behind the last one."""

    stages: list[StageView]
    more: bool


class PackagesPage(View, frozen=True, kw_only=True):
    """Some packages in the order of their jobs and places; `next` is the cursor of the next page, where there is one.

    Those of `sealed_jobs` many sealed jobs were not searched: they are found by a query that names their job.
    """

    packages: list[PackageView]
    next: str | None
    sealed_jobs: int = 0


class EventsPage(View, frozen=True, kw_only=True):
    """Some events in the order of their positions; `next` is the cursor of the next page, where there is one."""

    events: list[EventView]
    next: str | None


class EventsAfter(View, frozen=True, kw_only=True):
    """Events behind a position; ask again with `after` for what comes next. `more` says that there is more already."""

    events: list[EventView]
    after: int
    more: bool


class FlowsView(View, frozen=True, kw_only=True):
    """How work flows over a window that ends now, for each site and activity."""

    window: str
    flows: list[Flow]


class PilotsPage(View, frozen=True, kw_only=True):
    """Some pilots by name; `next` is the name to ask behind, where there may be more."""

    pilots: list[PilotView]
    next: str | None


class NodesPage(View, frozen=True, kw_only=True):
    """Some nodes by name; `next` is the name to ask behind, where there may be more."""

    nodes: list[NodeView]
    next: str | None


# Sites as whoever asks is shown them: as their file has them, and as they stand. No engine is needed to say it.


class KeptSites(msgspec.Struct, frozen=True, kw_only=True):
    """The sites as they are kept: their file, what is written of each, and what is wrong with the file."""

    file: str = ""
    entries: dict[str, SiteEntry | None] = {}
    fault: str = ""


class SiteReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one stage of the choice says of a site; the first that does not pass is why nothing goes there."""

    stage: str  # filter, status, score, room, pick; or pilots, where it is about starting them
    code: str
    message: str
    passes: bool = True
    since: float | None = None
    until: float | None = None


class SiteStand(msgspec.Struct, frozen=True, kw_only=True):
    """A site as the engine sees it now."""

    status: str
    score: float | None = None  # None: nothing was learned yet
    tscore: float | None = None
    queue_seconds: float | None = None  # the median of the latest
    pilots_queued: int = 0
    pilots_live: int = 0
    slots: int = 0
    used: int = 0
    dead_starts: int = 0
    closed: str = ""  # why nothing more is submitted there now
    next_try_at: float | None = None  # when a pilot is tried there again, at the earliest; None: no time is set
    unheard: str = ""  # what does not begin there, or runs and does not speak
    noticed: tuple[Noticed, ...] = ()  # the same, one by one
    reasons: tuple[SiteReason, ...] = ()
