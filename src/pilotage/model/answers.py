"""How far a job is and what went wrong with it: the answer to `GET /v1/jobs/{id}/progress`, read by all who watch a job.

It is made of counts, whatever the size of the job: a bar for each stage, and failures grouped by their cause with one of
each kind as a card. `stuck` is the promise that nobody waits in vain: where nothing can move any more, it says why.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.model.events.payloads import BinaryEnd, OutputFile
from pilotage.model.jobs.submission import Submission

# What people call a package: its name, what it was given to work on, and its command, instead of `1.37.1`.

PARAMETERS_SHOWN_MAX = 8
VALUE_CHARACTERS_MAX = 60


class PackageWords(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A package in its owner's words."""

    name: str = ""
    parameters: dict[
        str, str
    ] = {}  # the values that its iterations give it, by the names that its document has for them
    command: str = ""  # on one line, cut where it is very long


def parameters_text(parameters: dict[str, str]) -> str:
    """Parameters on one line: `temp=0.8 field=16`; long values are cut, and of very many the first are told."""
    shown = [f"{name}={_cut(value)}" for name, value in list(parameters.items())[:PARAMETERS_SHOWN_MAX]]
    more = ["…"] if len(parameters) > PARAMETERS_SHOWN_MAX else []
    return " ".join([*shown, *more])


def _cut(value: str) -> str:
    value = " ".join(value.split())
    return value if len(value) <= VALUE_CHARACTERS_MAX else f"{value[: VALUE_CHARACTERS_MAX - 1]}…"


CARDS_MAX = 20
"""So many groups of failures are told, the largest first."""

UNDECLARED_MAX = 5
"""So many packages that left undeclared files behind are told of."""


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base: what has its default is left out."""


class FailureCard(Told, frozen=True, kw_only=True):
    """One package that failed, as its owner wants to read of it: the last attempt, and what follows."""

    package: str  # dotted: 1.2.1
    path: str = ""
    words: PackageWords | None = None  # its name, parameters and command
    attempt: int | None = None
    cause: str = ""  # why it was given up: retries-exhausted, permanent-failure, upstream …; empty while it was not
    reason: str = ""  # of the attempt: out-of-memory, missing-output …
    exit_code: str = ""  # GASW's
    exit_message: str = ""  # a line for people, and the last lines of its standard error
    exit_status: int | None = None
    signal: int | None = None
    peak_memory_bytes: int | None = None
    peak_memory_below_bytes: int | None = None  # where no more is known than that it was less
    site: str = ""
    node: str = ""
    again: bool = False  # it will be tried again by itself
    again_at: float | None = None
    next_step: str = ""


class FailureGroup(Told, frozen=True, kw_only=True):
    """Packages that failed for the same cause, and one of them."""

    count: int
    card: FailureCard


class UndeclaredFiles(Told, frozen=True, kw_only=True):
    """Files that a package of an activity left behind, and that are gone, since no output declares them."""

    package: str  # dotted: 1.2.1
    activity: str = ""
    words: PackageWords | None = None
    message: str = ""
    keep: str = ""  # the `outputs` of its template with these files among them


class StageProgress(Told, frozen=True, kw_only=True):
    """How far a stage is; a late one is not known yet."""

    stage: int
    name: str = ""
    late: bool = False
    packages: int = 0  # without the dropped ones
    done: int = 0
    running: int = 0
    failed: int = 0  # given up, those that wait for one of them in vain included
    cancelled: int = 0
    dropped: int = 0


class UnmadeTarget(Told, frozen=True, kw_only=True):
    """A file that a job is run for and that it has not made, or a pattern of which it has made nothing."""

    target: str
    why: str = ""


class Progress(Told, frozen=True, kw_only=True):
    """How far a job is. What is neither done, running, failed nor cancelled waits."""

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
    adopted: int = 0  # of the done: made by an earlier run
    healed: int = 0  # of the done: after an attempt that failed or was lost
    retrying: int = 0  # of the waiting and running: an attempt failed, and they are tried again
    unpublished: int = 0  # of the done: their files are on the way to their names
    stages: tuple[StageProgress, ...] = ()
    failures: tuple[FailureGroup, ...] = ()  # the largest first, at most CARDS_MAX
    undeclared: tuple[UndeclaredFiles, ...] = ()  # one for each kind, at most UNDECLARED_MAX
    targets: tuple[str, ...] = ()  # the files that it is run for, or patterns of them; none: everything that it makes
    unmade: tuple[UnmadeTarget, ...] = ()  # of the targets, when all is over
    submitted_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    now: float = 0.0  # of the service
    position: int = 0  # of the book, when this was told
    slots: int = 0  # that live pilots offer
    result: int | None = None  # the exit code of a job that a package has ended, by its `abort_on`
    given_up: str = ""  # why the job was given up as a whole, such as a late stage that cannot be laid out
    stuck: str = ""  # why nothing can move any more, or files get no names; empty while it can, and when all is over
    next_step: str = ""
    trouble: str = ""  # what keeps things from moving now, though they may later


# What a package left behind, as its owner is told of it: GASW's output object, and the files that were published.


class LogPlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where what a program wrote can be read: under a path of the service, whole or with a gap in the middle."""

    url: str
    size_bytes: int = 0
    dropped_bytes: int = 0  # in the middle: too much was written to keep it all


class Measured(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt used, as far as its computer told: time and disk of its commands and the children they waited for."""

    peak_memory_bytes: int | None = None
    peak_memory_below_bytes: int | None = None  # where no more is known than that it was less
    cpu_seconds: float | None = None
    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    read_bytes: int | None = None  # from a disk: what the system had in memory is not read
    written_bytes: int | None = None


class PackageOutput(msgspec.Struct, frozen=True, kw_only=True):
    """GASW's output object: what became of a package, and where everything is that it wrote.

    All are those of the attempt that counts: the granted one, or else the last. The standard output and error are of
    everything that was run for it, the scripts around the package among them; the application's are of its binaries alone.
    Where the document gives these files of their own, they are among `outputs`.
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
    folder: str  # under which the outputs have their names
    outputs: tuple[OutputFile, ...]  # those that were granted
    measured: Measured = Measured()


class PublishedFile(OutputFile, frozen=True, kw_only=True):
    """A file of a job's results, and which package made it."""

    package: str


class OutputsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some files of a job's results, package by package; `next` is the cursor of the next page, where there is one."""

    folder: str
    files: tuple[PublishedFile, ...]
    next: str | None


# Why a package is where it is, as values that programs can read and people can be told.

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
    "waits-for-grant",
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
    "done",
    "aborted",
    "cancelled",
    "elsewhere",
]


class Why(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reason: what kind it is, what it is about, and a sentence for people."""

    code: WhyCode
    message: str
    subject: str = ""  # a package, a site, a stage, a pilot
    count: int = 0  # how many such there are, where only some are told
    since: float | None = None
    until: float | None = None
    next_step: str = ""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Everything there is to say about where a package is; the first reason is the one that matters most."""

    job: str
    package: str
    epoch: int
    standing: str
    reasons: tuple[Why, ...]
    words: PackageWords | None = None  # its name, parameters and command
    ended: int | None = None  # the last attempt that ended, if it ran several binaries
    binaries: tuple[BinaryEnd, ...] = ()  # how each of them ran


# What earlier runs of a document made and it no longer makes: what is asked, and what comes back.

StaysFor = Literal["changed", "link", "unfinished-job", "document", "other-document", "parameters"]
"""Why a file stays: somebody changed it; a link leads to it; a job that is not over uses it, or one that failed and can be
retried reads it; the document itself reads it; another document uses it; the document makes it with other parameters."""


class CleanRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `POST /v1/clean`: a document as it is now, and what is to be removed of what was shown."""

    submission: Submission
    read: tuple[str, ...] = ()  # files beside the document that it was read from
    remove: dict[str, str] = {}  # name → sha256, as they were shown; none: nothing is removed


class ObsoleteFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that an earlier run made and the document no longer makes."""

    name: str  # in the folder of the document
    size_bytes: int
    sha256: str
    modified_at: float
    job: str  # that made it, the last if several did


class StayingFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that the document no longer makes, and that stays all the same."""

    name: str
    reason: StaysFor
    message: str  # in words


class NotRemoved(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that was to be removed, and that the system did not let go of."""

    name: str
    message: str


class ObsoleteFiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What there was to remove, what stays and why, and what was removed."""

    job: str  # the short name
    folder: str
    files: tuple[ObsoleteFile, ...] = ()  # that can be removed, or just were
    kept: tuple[StayingFile, ...] = ()
    maybe_made: int = 0  # files that the document may make: of some outputs the names are not known before
    removed: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # that were left empty, and removed, too
    not_removed: tuple[NotRemoved, ...] = ()

    @property
    def size_bytes(self) -> int:
        """How large the files are together."""
        return sum(file.size_bytes for file in self.files)
