"""The payloads of events. A change of a payload raises its version in `model/events/events.py` and adds an upcaster.

A new field with a default does not: what was written without it reads the same.
The class docstring is the line of the reference page; unknown fields are refused, so that a misspelt one is reported.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pilotage.model.states import AbortCause, ClearedBy, ExitCodeGasw, KeptReason, LossReason, Phase, RestartCause
from pilotage.model.texts import NAME_MAX, REASON_MAX, REPLICAS_MAX, TEXT_MAX, check_sha256

Count = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Position = Annotated[int, Meta(ge=1, le=999_999_999)]  # a stage, a line, a package, an attempt
Amount = Annotated[float, Meta(ge=0)]
Status = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
SiteName = Annotated[str, Meta(min_length=1, max_length=128)]
ReasonName = Annotated[str, Meta(min_length=1, max_length=REASON_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
TagName = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[A-Za-z_][A-Za-z0-9_.-]*$")]
Learned = Annotated[str, Meta(max_length=1_000_000)]  # what was learned of a site, as JSON
Custom = Annotated[str, Meta(max_length=65_536)]
Sha256 = Annotated[str, Meta(extra_json_schema={"pattern": "^[0-9a-f]{64}$"})]  # its users call `check_sha256`


class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The content of an event beyond its type, subject and time."""


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A value inside a payload."""


class TemplateShape(Part, frozen=True, kw_only=True):
    """A line template of a stage: lines per item of the stage, and the activity of each package of such a line."""

    lines: Annotated[int, Meta(ge=0, le=20_000_000)]
    activities: Annotated[tuple[Name, ...], Meta(max_length=100_000)]


class StageShape(Part, frozen=True, kw_only=True):
    """How many packages a stage has and where; those of a late stage are known when its producers are committed."""

    items: Annotated[int, Meta(ge=0, le=20_000_000)] = 1
    templates: Annotated[tuple[TemplateShape, ...], Meta(max_length=100_000)] = ()
    late: bool = False

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return self.items * sum(each.lines for each in self.templates)

    @property
    def packages(self) -> int:
        """How many packages there are."""
        return self.items * sum(each.lines * len(each.activities) for each in self.templates)


class OutputFile(Part, frozen=True, kw_only=True):
    """One file that an attempt staged."""

    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    size_bytes: Count
    sha256: Sha256

    def __post_init__(self) -> None:
        """Check what the types cannot express."""
        check_sha256(self.sha256)


Manifest = Annotated[tuple[OutputFile, ...], Meta(max_length=100_000)]


FileNames = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...], Meta(max_length=100_000)]


class PhaseTimes(Part, frozen=True, kw_only=True):
    """When a phase began and how long it took."""

    phase: Phase
    started_at: Amount
    seconds: Amount


BINARIES_MAX = 1000
"""How many binaries of one package have a record."""


class BinaryEnd(Part, frozen=True, kw_only=True):
    """When a binary of a package began, how long it ran, and how it ended; without a reason it succeeded."""

    number: Annotated[int, Meta(ge=1, le=2**53 - 1)]
    name: Name | None = None  # where the document gives it one
    started_at: Amount
    seconds: Amount
    exit_status: Status | None = None
    signal: Status | None = None
    reason: ReasonName | None = None


InputOrigin = Literal["folder", "job"]
"""Where an input in place came from: a file of the document's folder, or one that another job made there."""


class InputInPlace(Part, frozen=True, kw_only=True):
    """An input that was read where it lies; without a checksum it was changed or removed before it could be read again."""

    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    size_bytes: Count | None = None
    sha256: Sha256 | None = None
    origin: InputOrigin = "folder"
    job: Name | None = None  # that made it
    locator: Annotated[str, Meta(max_length=8192)] = ""  # from where it was brought to the site

    def __post_init__(self) -> None:
        """Check what the types cannot express."""
        if self.sha256 is not None:
            check_sha256(self.sha256)


class JobRegistered(Payload, frozen=True, kw_only=True):
    """A job exists: who owns it and which packages it has. Its definition and lists are named by their content."""

    owner: Name
    name: Name
    stages: Annotated[tuple[StageShape, ...], Meta(max_length=100_000)] = ()
    definition: Sha256 | None = None
    lists: dict[str, Sha256] = {}
    growth: tuple[Position, ...] = ()
    expander_version: Count = 0
    parent: Name | None = None
    tags: dict[TagName, str] = {}

    def __post_init__(self) -> None:
        """Check what the types cannot express."""
        for named in (*self.lists.values(), *([] if self.definition is None else [self.definition])):
            check_sha256(named)


class JobAccepted(Payload, frozen=True, kw_only=True):
    """The job was checked and accepted: its packages are WAITING."""


class StageExpanded(Payload, frozen=True, kw_only=True):
    """A late stage was expanded."""

    stage: Position
    shape: StageShape
    lists: dict[str, Sha256] = {}

    def __post_init__(self) -> None:
        """Check what the types cannot express."""
        for named in self.lists.values():
            check_sha256(named)


class InputsDescribed(Payload, frozen=True, kw_only=True):
    """Inputs of the job that neither came with it nor were made by it, each once for every content that it had."""

    files: Annotated[tuple[InputInPlace, ...], Meta(max_length=100_000)]


class OwnerSet(Payload, frozen=True, kw_only=True):
    """The job has another owner."""

    owner: Name


class AccessRule(Part, frozen=True, kw_only=True):
    """Who may do what beside the owner: a user or a group, and `read`, `modify` or `cancel`."""

    principal: Name
    rights: tuple[Annotated[str, Meta(pattern="^(read|modify|cancel)$")], ...]


class AccessSet(Payload, frozen=True, kw_only=True):
    """The access list of the job, as a whole."""

    rules: Annotated[tuple[AccessRule, ...], Meta(max_length=1000)]


class Held(Payload, frozen=True, kw_only=True):
    """Nothing more of it starts until it is released; `operation` was assigned on acceptance."""

    operation: Count
    message: Text = ""


class Released(Payload, frozen=True, kw_only=True):
    """It continues."""

    operation: Count


class CancelAccepted(Payload, frozen=True, kw_only=True):
    """It will not be done: accepted once, and never beside a grant of the same epoch."""

    message: Text = ""


class Aborted(Payload, frozen=True, kw_only=True):
    """It was given up, for a cause."""

    cause: AbortCause
    message: Text = ""
    upstream: Name | None = None  # the package whose failure this follows from


class Cleared(Payload, frozen=True, kw_only=True):
    """Outputs were handed over to the user, or removed when their time was up."""

    by: ClearedBy


class EarlyInput(Part, frozen=True, kw_only=True):
    """A running attempt of the same job whose outputs another one reads while they grow."""

    package: Name
    attempt: Position


class Restarted(Payload, frozen=True, kw_only=True):
    """A new epoch begins: that of the event."""

    cause: RestartCause
    message: Text = ""
    lost_input: EarlyInput | None = None  # it had started early beside this attempt, which does not make the result


class Tagged(Payload, frozen=True, kw_only=True):
    """A name and value of the user, before, during or after the run."""

    name: TagName
    value: str


class Noted(Payload, frozen=True, kw_only=True):
    """A remark that changes no state."""

    text: Text


class ActivityRunTimes(Part, frozen=True, kw_only=True):
    """Run times of the packages of one activity: how many were observed, their mean, and their standard deviation."""

    activity: Annotated[str, Meta(max_length=256)]
    count: Amount
    mean_seconds: Amount
    sd_seconds: Amount


ForecastBasis = Literal["observed", "document", "mixed", "assumed"]
"""Where the run times of a forecast are from; `assumed`: some kinds of packages are taken for like the others."""


class ForecastMade(Payload, frozen=True, kw_only=True):
    """When the job is expected to be over: median, mean, and an interval that holds nine of ten such forecasts."""

    median_at: Amount
    low_at: Amount
    high_at: Amount
    mean_at: Amount
    packages: Count  # that are left
    number: Position = 1  # of this forecast, since the job was last over
    basis: ForecastBasis = "observed"
    run_times: Annotated[
        tuple[ActivityRunTimes, ...], Meta(max_length=64)
    ] = ()  # so far: a new engine starts from them


class ForecastScored(Payload, frozen=True, kw_only=True):
    """A job that had forecasts is over: when, and how; what was forecast for a cancelled or aborted job says nothing."""

    ended_at: Amount
    outcome: Literal["done", "failed", "cancelled", "aborted"]
    forecasts: Count  # since it was last over


class PackageRegistered(Payload, frozen=True, kw_only=True):
    """A package exists that is not in the shape of its job."""

    activity: Annotated[str, Meta(max_length=256)] = ""


class Bound(Payload, frozen=True, kw_only=True):
    """Reserved for a site."""

    site: SiteName


class Unbound(Payload, frozen=True, kw_only=True):
    """The reservation was released."""


class Dropped(Payload, frozen=True, kw_only=True):
    """Left out of the totals. To drop a line, each of its packages is dropped."""

    operation: Count


class Restored(Payload, frozen=True, kw_only=True):
    """Back in the totals."""

    operation: Count


class RemovalOrdered(Payload, frozen=True, kw_only=True):
    """The outputs of a granted attempt are to be removed, because its line was dropped with its files; they no longer count."""

    by: Annotated[str, Meta(max_length=256)] = ""


class KeptFile(Part, frozen=True, kw_only=True):
    """A file that stays although its removal was ordered, and why."""

    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    reason: KeptReason
    message: Text = ""


class FilesRemoved(Payload, frozen=True, kw_only=True):
    """The result of an ordered removal; files in `gone` were missing already."""

    by: Annotated[str, Meta(max_length=256)] = ""
    removed: FileNames = ()
    gone: FileNames = ()
    kept: Annotated[tuple[KeptFile, ...], Meta(max_length=100_000)] = ()
    more: bool = False  # the next such event continues


class ReplicaWanted(Payload, frozen=True, kw_only=True):
    """Total of further attempts requested in this epoch, each to run once beside a running one."""

    replicas: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]
    cause: Literal["by-hand", "queue", "healing"] = "by-hand"
    decision: Count = 0  # of healing, if it follows from one: the number of its event


class AttemptCreated(Payload, frozen=True, kw_only=True):
    """An attempt at a site; with a lease it is running from now on. `replaces` names an attempt that is over."""

    site: SiteName
    pilot: SiteName | None = None
    lease_seconds: Amount | None = None
    replaces: Position | None = None
    replica: bool = False  # beside a running one, because it was requested
    memory_bytes: Count | None = None  # what it may use, if earlier failures raised that above the declared amount
    wall_seconds: Amount | None = None  # likewise
    remaining_seconds: Amount | None = None  # of the wall time of its pilot, or of its batch job, if known
    drop_revision: Count = 0  # no operation that dropped or restored packages of its job before it was later than this
    early: tuple[EarlyInput, ...] = ()  # it started early beside these, at their site: it is granted only after them
    group: Name | None = None  # the key of the batch job that it shares with other attempts: of the first of them


class AttemptQueued(Payload, frozen=True, kw_only=True):
    """Submitted to the batch system of its site, or offered to its pilots."""

    native_id: Name | None = None


class AttemptStarted(Payload, frozen=True, kw_only=True):
    """It got a lease: it is running."""

    node: Name | None = None
    pilot: SiteName | None = None


class AttemptSuspected(Payload, frozen=True, kw_only=True):
    """Its lease expired; its result may still count."""

    message: Text = ""


class AttemptRecovered(Payload, frozen=True, kw_only=True):
    """Its pilot made contact again: it holds its lease as before."""


class AttemptLost(Payload, frozen=True, kw_only=True):
    """It was given up and counts as failed, for a reason; if it comes back, its result may still count."""

    reason: LossReason = "platform-failure"
    message: Text = ""
    decision: Count = 0  # of healing, if it follows from one


class PhaseEntered(Payload, frozen=True, kw_only=True):
    """A long phase has begun."""

    phase: Phase


class OutputsStaged(Payload, frozen=True, kw_only=True):
    """Its outputs lie under a key of its own and wait for a grant."""

    manifest: Manifest


class AttemptFinished(Payload, frozen=True, kw_only=True):
    """It is over: GASW's exit code, a message, our reason, and measurements."""

    exit_code: ExitCodeGasw
    exit_message: Text = ""
    reason: ReasonName | None = None
    exit_status: Status | None = None
    signal: Status | None = None
    node: Name | None = None
    phases: Annotated[tuple[PhaseTimes, ...], Meta(max_length=16)] = ()
    binaries: Annotated[tuple[BinaryEnd, ...], Meta(max_length=BINARIES_MAX)] = ()  # that ran, of several
    manifest: Manifest | None = None
    peak_memory_bytes: Count | None = None
    peak_memory_below_bytes: Count | None = None  # an upper bound, if no more is known
    cpu_seconds: Amount | None = None
    cpu_user_seconds: Amount | None = None
    cpu_system_seconds: Amount | None = None
    read_bytes: Count | None = None
    written_bytes: Count | None = None
    container_digest: Name | None = None  # of the image that it ran in
    custom: Custom | None = None  # the JSON object that the provenance script of the document printed
    custom_fault: Text = ""  # why there is none
    cores: Annotated[tuple[OutputFile, ...], Meta(max_length=16)] = ()  # core files, sent beside its logs


class CommitGranted(Payload, frozen=True, kw_only=True):
    """The outputs of this attempt are those of the package, for this epoch."""


class PilotRequested(Payload, frozen=True, kw_only=True):
    """A pilot was requested at a site."""

    site: SiteName
    slots: Count = 1
    native_id: Name | None = None


class PilotStarted(Payload, frozen=True, kw_only=True):
    """A pilot made contact. If a request was started more than once, each of its pilots names it."""

    site: SiteName
    node: Name | None = None
    slots: Count = 1
    request: SiteName | None = None


class PilotEnded(Payload, frozen=True, kw_only=True):
    """A pilot ended, with the last lines of its standard error."""

    reason: ReasonName
    stderr: Text = ""


class NodeDescribed(Payload, frozen=True, kw_only=True):
    """A computer at a site, described once and then referred to by name."""

    node: Name
    site: SiteName | None = None
    cores: Count = 0
    memory_bytes: Count = 0
    system: Text = ""
    software: dict[Name, Text] = {}  # by name, its version as it tells it
    environment: dict[Name, Text] = {}
    os_release: Text = ""
    kernel: Text = ""
    cpu_model: Text = ""
    libc: Text = ""


class SiteDescribed(Payload, frozen=True, kw_only=True):
    """A site that runs attempts, and its status; `removed` if it gets no more work."""

    kind: Name
    status: Name = "candidate"
    message: Text = ""
    mode: Name = "pilots"
    platform: Text = ""
    cores: Count = 0
    memory_bytes: Count | None = None
    wall_seconds: Amount | None = None
    pilots_max: Count | None = None


class SiteHibernated(Payload, frozen=True, kw_only=True):
    """A site was hibernated: it gets no more work until it is woken. `learned` is what the site selection knows of it."""

    reason: Name
    message: Text = ""
    score: float = 0.0
    learned: Learned = ""


class SiteWoken(Payload, frozen=True, kw_only=True):
    """A site may be chosen again, for a reason."""

    reason: Name
    message: Text = ""
    score: float = 0.0
    learned: Learned = ""


class SiteStanding(Payload, frozen=True, kw_only=True):
    """The state of a site, recorded from time to time: a new engine continues from it."""

    status: Name
    score: float = 0.0
    learned: Learned = ""


class SiteLatencies(Payload, frozen=True, kw_only=True):
    """The latencies of the pilots of a site so far, recorded from time to time: a new engine continues from them.

    Requests with a number below `through` are counted, except the unanswered ones.
    """

    starts: Count
    learned: Learned = ""
    through: Count = 0
    unanswered: tuple[Count, ...] = ()


class SiteDrained(Payload, frozen=True, kw_only=True):
    """A pilot or a node of a site gets no more work: too many attempts failed there in a row."""

    kind: Literal["pilot", "node"]
    name: Name
    message: Text = ""


class SiteProbed(Payload, frozen=True, kw_only=True):
    """A pilot was started at a site as a test: it started after this time, or did not, and why."""

    passed: bool
    seconds: Amount = 0.0
    message: Text = ""
