"""Progress and failures of a job: the answer to `GET /v1/jobs/{id}/progress`, read by every client that watches a job.

It consists of counts, whatever the size of the job: a bar for each stage, and failures grouped by cause, with one example
of each. `stuck` says why no package can make progress, so that users do not wait in vain.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.model.events.healing_payloads import ActivityPhases, Treated
from pilotage.model.events.payloads import BinaryEnd, OutputFile
from pilotage.model.jobs.submission import Submission

# How people name a package: its name, its parameters and its command, instead of `1.37.1`.

PARAMETERS_SHOWN_MAX = 8
VALUE_CHARACTERS_MAX = 60


class PackageWords(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A package in its owner's words."""

    name: str = ""
    parameters: dict[str, str] = {}  # the values of its iterations, by their names in the document
    command: str = ""  # on one line, cut if very long


def parameters_text(parameters: dict[str, str]) -> str:
    """Parameters on one line: `temp=0.8 field=16`; long values are cut, and only the first ones are shown."""
    shown = [f"{name}={_cut(value)}" for name, value in list(parameters.items())[:PARAMETERS_SHOWN_MAX]]
    more = ["…"] if len(parameters) > PARAMETERS_SHOWN_MAX else []
    return " ".join([*shown, *more])


def _cut(value: str) -> str:
    value = " ".join(value.split())
    return value if len(value) <= VALUE_CHARACTERS_MAX else f"{value[: VALUE_CHARACTERS_MAX - 1]}…"


CARDS_MAX = 20
"""How many groups of failures are shown, the largest first."""

STALE_MAX = 100
"""The stale results that the progress of a job names; all of them are counted."""
UNDECLARED_MAX = 5
"""How many packages with undeclared files are shown."""


class Compact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base: fields with their default value are left out."""


class FailureCard(Compact, frozen=True, kw_only=True):
    """One failed package as its owner reads about it: the last attempt, and what follows."""

    package: str  # dotted: 1.2.1
    path: str = ""
    words: PackageWords | None = None  # its name, parameters and command
    attempt: int | None = None
    cause: str = ""  # why it was given up: retries-exhausted, permanent-failure, upstream …; empty if it was not
    reason: str = ""  # of the attempt: out-of-memory, missing-output …
    exit_code: str = ""  # GASW's
    exit_message: str = ""  # a line for people, and the last lines of its standard error
    exit_status: int | None = None
    signal: int | None = None
    peak_memory_bytes: int | None = None
    peak_memory_below_bytes: int | None = None  # an upper bound, if no more is known
    site: str = ""
    node: str = ""
    again: bool = False  # it will be retried automatically
    again_at: float | None = None
    next_step: str = ""


class FailureGroup(Compact, frozen=True, kw_only=True):
    """Packages that failed for the same cause, and one of them as an example."""

    count: int
    card: FailureCard


class UndeclaredFiles(Compact, frozen=True, kw_only=True):
    """Files that a package left behind and that were removed, since no output declares them."""

    package: str  # dotted: 1.2.1
    activity: str = ""
    words: PackageWords | None = None
    message: str = ""
    keep: str = ""  # the `outputs` of its template with these files added


class StaleResult(Compact, frozen=True, kw_only=True):
    """A finished package that read files which were made again since, with other contents."""

    package: str  # dotted: 1.2.1
    words: PackageWords | None = None
    files: tuple[str, ...] = ()  # the names of these files


class StageProgress(Compact, frozen=True, kw_only=True):
    """Progress of a stage; the packages of a late stage are not known yet."""

    stage: int
    name: str = ""
    late: bool = False
    packages: int = 0  # without the dropped ones
    done: int = 0
    running: int = 0
    failed: int = 0  # given up, including those that waited for one of them
    cancelled: int = 0
    dropped: int = 0


class UnmadeTarget(Compact, frozen=True, kw_only=True):
    """A target of a job that it has not made, or a pattern without a match."""

    target: str
    why: str = ""


class EndForecast(Compact, frozen=True, kw_only=True):
    """When an unfinished job is expected to be over, as times since 1970: nine of ten jobs end between low and high."""

    made_at: float
    median_at: float
    low_at: float
    high_at: float
    mean_at: float
    packages: int = 0  # that were left
    basis: str = ""  # of its run times: observed, document, mixed or assumed


class StoppedActivity(Compact, frozen=True, kw_only=True):
    """An activity of a job that was stopped since it cannot succeed, after so many failed attempts, and how to go on."""

    activity: str
    at: float
    failed_attempts: int = 0  # in the same way
    failed_packages: int = 0  # of these attempts
    message: str = ""
    next_step: str = ""


class Progress(Compact, frozen=True, kw_only=True):
    """Progress of a job. A package that is neither done, running, failed nor cancelled is waiting."""

    job: str
    name: str = ""
    state: str  # of the book: WAITING, RUNNING, DONE …
    held: bool = False
    packages: int = 0  # without the dropped ones
    done: int = 0
    running: int = 0
    failed: int = 0
    cancelled: int = 0
    dropped: int = 0
    adopted: int = 0  # of the done: taken from an earlier run
    healed: int = 0  # of the done: after an attempt that failed or was lost
    retrying: int = 0  # of the waiting and running: an attempt failed, and they are retried
    unpublished: int = 0  # of the done: their files are not published yet
    stages: tuple[StageProgress, ...] = ()
    failures: tuple[FailureGroup, ...] = ()  # the largest first, at most CARDS_MAX
    undeclared: tuple[UndeclaredFiles, ...] = ()  # one for each kind, at most UNDECLARED_MAX
    stale: int = 0  # of the done: their inputs were made again since, with other contents
    stale_results: tuple[StaleResult, ...] = ()  # the first of them, at most STALE_MAX
    targets: tuple[str, ...] = ()  # the files that it is run for, or patterns of them; empty: all its outputs
    stopped: tuple[StoppedActivity, ...] = ()  # activities that cannot succeed
    unmade: tuple[UnmadeTarget, ...] = ()  # the targets that are missing when the job is over
    submitted_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    now: float = 0.0  # of the service
    position: int = 0  # position of the book at the time of the answer
    slots: int = 0  # of live pilots
    result: int | None = None  # the exit code of a job that a package has ended with its `abort_on`
    given_up: str = ""  # why the job was given up as a whole, such as a late stage that cannot be expanded
    stuck: str = ""  # why no package can make progress, or files cannot be published; empty otherwise
    next_step: str = ""
    trouble: str = ""  # what prevents progress at present
    moving: str = ""  # files of the job that have been on their way for some time: how many, and how far they are
    forecast: EndForecast | None = None  # the last one, from half a minute after the job began until it is over


# What healing saw in a job, what it drew, and what it did about it.


class SeenIncident(Compact, frozen=True, kw_only=True):
    """An incident that a decision was about, and its share of the wheel: the probability that it was drawn."""

    kind: str
    subject: str = ""  # the activity, the locator, the site
    degree: float
    level: int
    share: float = 0.0


class HealingDecision(Compact, frozen=True, kw_only=True):
    """One decision of healing. `drawn` and `instead` are places among its incidents, from 1; 0: none."""

    decision: int  # its number, which the events that follow from it name
    at: float
    incidents: tuple[SeenIncident, ...]
    drawn: int = 0
    instead: int = 0  # treated in its place, since an association rule says that it is the cause
    confidence: float = 0.0  # of that rule
    treated: tuple[Treated, ...] = ()
    more: int = 0  # treatments beyond those listed
    message: str = ""  # why nothing was done, or not more


class HealingHistory(Compact, frozen=True, kw_only=True):
    """The decisions of healing about a job, the newest last; the times that it knows, and what it cost."""

    job: str
    healing: str  # the setting: predictive, paper or off
    decisions: tuple[HealingDecision, ...] = ()
    before: int = 0  # where earlier ones continue, if there are `more`
    more: bool = False
    activities: tuple[ActivityPhases, ...] = ()  # median times of their phases
    learned_at: float | None = None  # when these were recorded
    slot_seconds: float = 0.0  # of all attempts that had ended by then
    healing_seconds: float = 0.0  # of these, of attempts without a grant since healing gave them a rival
    waste: float | None = None  # the share of these, unless no attempt has ended
    waste_max: float = 0.0  # the largest share that the settings allow
    why: str = ""  # why there is no decision
    stopped: tuple[StoppedActivity, ...] = ()  # activities that cannot succeed, also without a decision


class HealedStep(Compact, frozen=True, kw_only=True):
    """What healing did to one package, and by which decision: it wanted one more attempt, or gave up this one."""

    decision: int
    at: float
    attempt: int | None = None
    message: str = ""


# What a package left behind, as its owner sees it: GASW's output object, and the published files.


class LogPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a log can be read: a path of the service; the log may have a gap in the middle."""

    url: str
    size_bytes: int = 0
    dropped_bytes: int = 0  # in the middle, if the log was too long


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resources that an attempt used, as far as measured: time and disk of its commands and their awaited children."""

    peak_memory_bytes: int | None = None
    peak_memory_below_bytes: int | None = None  # an upper bound, if no more is known
    cpu_seconds: float | None = None
    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    read_bytes: int | None = None  # from a disk; reads from the page cache do not count
    written_bytes: int | None = None


class PackageOutput(msgspec.Struct, frozen=True, kw_only=True):
    """GASW's output object: the result of a package, and where its files and logs are.

    All fields describe the attempt that counts: the granted one, or else the last. Standard output and error include the
    scripts around the package; the application's contain its binaries alone. Files that the document assigns to them are among
    `outputs`.
    """

    id: str  # JOB/1.2.1
    path: str
    state: str
    attempt: int | None
    exit_code: str | None  # GASW's
    exit_message: str | None
    exit_status: int | None
    signal: int | None
    standard_output: LogPlace | None
    standard_error: LogPlace | None
    application_output: LogPlace | None
    application_error: LogPlace | None
    folder: str  # in which the outputs have their names
    outputs: tuple[OutputFile, ...]  # the granted ones
    measured: Measured = Measured()


class PublishedFile(OutputFile, frozen=True, kw_only=True):
    """A result file of a job, and the package that made it."""

    package: str


class OutputsPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of result files, by package; `next` is the cursor of the next page, if any."""

    folder: str
    files: tuple[PublishedFile, ...]
    next: str | None
    sent_from: str = ""  # the folder on another computer from which the inputs of the job were sent


# The reasons for the state of a package, for programs and for people.

WhyCode = Literal[
    "not-accepted",
    "job-held",
    "held",
    "job-cancelled",
    "job-aborted",
    "waits-for-package",
    "waits-for-stage",
    "waits-for-time",
    "waits-for-input",
    "waits-for-file",
    "waits-for-grant",
    "started-early",
    "shares-batch-job",
    "early-failed",
    "runs-last",
    "no-site",
    "site-unable",
    "site-unknown",
    "site-full",
    "site-avoided",
    "site-closed",
    "site-hibernated",
    "no-slot",
    "unheard",
    "category-limit",
    "owner-quota",
    "after-others",
    "next",
    "reserved",
    "queued",
    "running",
    "chosen",
    "not-chosen",
    "site-now",
    "suspect",
    "lost",
    "dropped",
    "failed",
    "stale",
    "stored-elsewhere",
    "healed",
    "done",
    "aborted",
    "cancelled",
    "elsewhere",
]


class Why(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reason: its kind, its subject, and a sentence for people."""

    code: WhyCode
    message: str
    subject: str = ""  # a package, a site, a stage, a pilot
    count: int = 0  # how many there are, if only some are shown
    since: float | None = None
    until: float | None = None
    next_step: str = ""


class FileNeed(msgspec.Struct, frozen=True, kw_only=True):
    """A job with packages that may still run and need a cached file: how many, and the first ones."""

    job: str
    owner: str
    packages: int
    some: tuple[str, ...] = ()
    waiting: int = 0  # packages reserved at this site that wait for the file
    wish: str = ""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that explains the state of a package; the first reason matters most."""

    job: str
    package: str
    epoch: int
    standing: str
    reasons: tuple[Why, ...]
    words: PackageWords | None = None  # its name, parameters and command
    ended: int | None = None  # the last ended attempt, if it ran several binaries
    binaries: tuple[BinaryEnd, ...] = ()  # how each of them ran
    expected_start_at: float | None = None  # None: it has started, or too little is known
    expected_end_at: float | None = None
    started_at: float | None = None  # last
    ended_at: float | None = None
    utc_offset: str = ""  # of the clocks of its node: `+02:00`; empty if unknown


# Files of earlier runs that a document no longer makes: the request to remove them, and the answer.

StaysFor = Literal["changed", "link", "unfinished-job", "document", "other-document", "parameters"]
"""Why a file stays: it was changed by hand; a link leads to it; an unfinished job uses it, or a failed one that can be retried
reads it; the document itself reads it; another document uses it; the document makes it with other parameters.
"""


class CleanRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `POST /v1/clean`: a document as it is now, and which of the shown files to remove."""

    submission: Submission
    read: tuple[str, ...] = ()  # files beside the document that were read with it
    remove: dict[str, str] = {}  # name → sha256, as they were shown; empty: remove nothing


class ObsoleteFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that an earlier run made and the document no longer makes."""

    name: str  # in the folder of the document
    size_bytes: int
    sha256: str
    modified_at: float
    job: str  # that made it; the last one, if several did


class StayingFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that the document no longer makes, and that stays all the same."""

    name: str
    reason: StaysFor
    message: str  # in words


class NotRemoved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that could not be removed."""

    name: str
    message: str


class ObsoleteFiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Files to remove, files that stay and why, and files that were removed."""

    job: str  # the short name
    folder: str
    files: tuple[ObsoleteFile, ...] = ()  # that can be removed, or just were
    kept: tuple[StayingFile, ...] = ()
    maybe_made: int = 0  # files that the document may make: the names of some outputs are not known in advance
    removed: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # that became empty and were removed, too
    not_removed: tuple[NotRemoved, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Total size of the files."""
        return sum(file.size_bytes for file in self.files)
