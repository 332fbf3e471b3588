"""What people ask of a running service, as values: the core accepts each with an operation number, or refuses it."""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.model.events.payloads import KeptFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.resources import Demand
from pilotage.model.states import ClearedBy


class Operation(msgspec.Struct, frozen=True, kw_only=True, tag_field="operation", omit_defaults=True):
    """The base: which job. Who asks was checked before; the event that follows names them in its message."""

    job: str


class Kill(Operation, frozen=True, kw_only=True, tag="kill"):
    """Cancel a job, or one package or one line of it."""

    package: str = ""
    stage: int = 0  # of a line; 0: no line is meant
    line: int = 0
    message: str = ""


class Hold(Operation, frozen=True, kw_only=True, tag="hold"):
    """Start nothing more of a job or a package."""

    package: str = ""
    message: str = ""


class HoldResults(Hold, frozen=True, kw_only=True, tag="hold-results"):
    """Hold a job whose results cannot get their names, also where nothing is left to start; the service alone asks for it."""


class Release(Operation, frozen=True, kw_only=True, tag="release"):
    """Go on with what was held."""

    package: str = ""


class Drop(Operation, frozen=True, kw_only=True, tag="drop"):
    """Leave a line out of the job, and what it would have made out of every list of inputs."""

    stage: int
    line: int
    force: bool = False  # also where others have read what it made
    remove_files: bool = False  # what it made goes, where nobody else has or reads it; of a dropped line too


class DropFiles(Drop, frozen=True, kw_only=True, tag="drop-files"):
    """The same with files to be removed, as the service asks for it."""

    by: str = ""  # who wants it
    fileless: tuple[str, ...] = ()  # packages of the line that make no files: what they did stays done


class Restore(Operation, frozen=True, kw_only=True, tag="restore"):
    """Take a dropped line back in, as long as no consumer has started without it."""

    stage: int
    line: int


class Restart(Operation, frozen=True, kw_only=True, tag="restart"):
    """Begin a package anew in a new epoch; without one, everything of the job that failed or was cancelled."""

    package: str = ""
    message: str = ""


class Reschedule(Operation, frozen=True, kw_only=True, tag="reschedule"):
    """Give up the live attempts of a package and try it again, elsewhere if there is an elsewhere."""

    package: str
    message: str = ""


class Replicate(Operation, frozen=True, kw_only=True, tag="replicate"):
    """Start one more attempt of a running package beside those it has."""

    package: str


class Clear(Operation, frozen=True, kw_only=True, tag="clear"):
    """Let go of a job that is over: its outputs were taken, or their time is over."""

    by: ClearedBy = "user"


class SiteOperation(msgspec.Struct, frozen=True, kw_only=True, tag_field="operation", omit_defaults=True):
    """The base of what is asked of a site."""

    site: str


class HibernateSite(SiteOperation, frozen=True, kw_only=True, tag="hibernate-site"):
    """Let nothing more go to a site until somebody wakes it; what runs there goes on."""

    message: str = ""


class WakeSite(SiteOperation, frozen=True, kw_only=True, tag="wake-site"):
    """Make a site that hibernates a candidate again."""

    message: str = ""


class ProbeSite(SiteOperation, frozen=True, kw_only=True, tag="probe-site"):
    """Have one pilot started at a site, to see whether it comes."""


class TrySite(SiteOperation, frozen=True, kw_only=True, tag="try-site"):
    """The same for somebody who watches it: nothing follows from it for the site."""


class LineFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the files of a line that was dropped: how many, and the first of them by name."""

    removed: int = 0
    removed_bytes: int = 0
    gone: int = 0  # were not there any more
    kept: int = 0
    removed_names: tuple[str, ...] = ()
    kept_files: tuple[KeptFile, ...] = ()  # with why; none where nobody asked for their removal


class Accepted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The operation was accepted; its events are durable when this is told."""

    operation: int
    events: int
    files: LineFiles | None = None  # where a line was dropped


RefusedCode = Literal[
    "bad-id",
    "cleared",
    "consumer-started",
    "files-read",
    "line-over",
    "dropped",
    "hibernated",
    "job-over",
    "job-unfinished",
    "known-job",
    "malformed",
    "no-pilots",
    "not-dropped",
    "not-held",
    "not-hibernated",
    "not-running",
    "nothing-failed",
    "package-over",
    "package-unfinished",
    "probing",
    "producer-over",
    "quota",
    "side-effects",
    "spent",
    "stage-laid-out",
    "too-many",
    "unknown-job",
    "unknown-line",
    "unknown-package",
    "unknown-site",
    "unsatisfiable",
]
"""Why something that was asked for is not done, for programs."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The operation was not done, and why; `subject` is the job or package that stands in its way."""

    code: RefusedCode
    message: str
    subject: str = ""
    next_step: str = ""


AnyOperation = Kill | Hold | Release | Drop | Restore | Restart | Reschedule | Replicate | Clear
AnySiteOperation = HibernateSite | WakeSite | ProbeSite | TrySite
SiteDeed = Literal["hibernate", "wake", "probe", "try"]


class OperationOn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation on everything that a query finds: jobs, packages, or the lines of packages."""

    operation: str  # kill, hold, release, drop, restore, restart, reschedule or replicate
    where: str
    target: str = "packages"  # or jobs
    job: str = ""  # of this job only
    message: str = ""


class NotDone(msgspec.Struct, frozen=True, kw_only=True):
    """One of many that an operation was refused for."""

    subject: str
    code: str
    message: str


class OperatedOn(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an operation on many: what was not done is told one by one as far as it is not too much."""

    found: int
    done: int
    refused: int
    told: tuple[NotDone, ...]


# What the core wants done in the world, as values. Each follows from a durable decision and may be done again.
#
# An effect is known by its key: whoever carries it out looks first whether it was done already. What came of it
# comes back as a site report, an exchange, or a grown plan; until then the core may ask for it again.


class SubmitPilot(msgspec.Struct, frozen=True, kw_only=True, tag="submit-pilot"):
    """Submit a pilot to the batch system of a site under our key."""

    site: str
    key: str


class SubmitAttempt(msgspec.Struct, frozen=True, kw_only=True, tag="submit-attempt"):
    """Submit one bound attempt to the batch system of a site under our key; its agent will ask for it."""

    site: str
    key: str
    ref: AttemptRef
    demand: Demand


class CancelSubmitted(msgspec.Struct, frozen=True, kw_only=True, tag="cancel-submitted"):
    """Take what was submitted under our key out of the batch system of a site; what is not there is reported as gone."""

    site: str
    key: str


class ExpandStage(msgspec.Struct, frozen=True, kw_only=True, tag="expand-stage"):
    """Lay out a late stage over the granted outputs of its producers; the answer is a grown plan."""

    job: str
    stage: int
    revision: int = 0  # of what its producers made: an answer to an earlier one is out of date


Effect = SubmitPilot | SubmitAttempt | CancelSubmitted | ExpandStage
