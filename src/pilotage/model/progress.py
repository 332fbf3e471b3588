"""How far a job is and what went wrong with it: the answer to `GET /v1/jobs/{id}/progress`, read by all who watch a job.

It is made of counts, whatever the size of the job: a bar for each stage, and failures grouped by their cause with one of
each kind as a card. `stuck` is the promise that nobody waits in vain: where nothing can move any more, it says why.
"""

from __future__ import annotations

import msgspec

from pilotage.model.package_words import PackageWords

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
