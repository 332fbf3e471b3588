"""Operations that people request of a service, as values: the core accepts each with an operation number, or refuses it."""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.model.events.payloads import KeptFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.resources import Demand
from pilotage.model.states import ClearedBy


class Operation(msgspec.Struct, frozen=True, kw_only=True, tag_field="operation", omit_defaults=True):
    """The base: the job. The caller was authorised before; the event that follows names the caller in its message."""

    job: str


class Kill(Operation, frozen=True, kw_only=True, tag="kill"):
    """Cancel a job, or one package or one line of it."""

    package: str = ""
    stage: int = 0  # of a line; 0: not a line
    line: int = 0
    message: str = ""


class Hold(Operation, frozen=True, kw_only=True, tag="hold"):
    """Start nothing more of a job or a package."""

    package: str = ""
    message: str = ""


class HoldResults(Hold, frozen=True, kw_only=True, tag="hold-results"):
    """Hold a job whose results cannot be published, even if nothing is left to start; only the service requests it."""


class Release(Operation, frozen=True, kw_only=True, tag="release"):
    """Continue what was held."""

    package: str = ""


class Drop(Operation, frozen=True, kw_only=True, tag="drop"):
    """Leave a line out of the job, and its outputs out of every list of inputs."""

    stage: int
    line: int
    force: bool = False  # even if other packages have read its outputs
    remove_files: bool = (
        False  # remove its outputs unless they are used elsewhere; also for a line that is dropped already
    )


class DropFiles(Drop, frozen=True, kw_only=True, tag="drop-files"):
    """As `Drop`, with files to remove, as the service requests it."""

    by: str = ""  # who asked for it
    fileless: tuple[str, ...] = ()  # packages of the line without files: their work stays done


class Restore(Operation, frozen=True, kw_only=True, tag="restore"):
    """Take a dropped line back, unless a consumer has started without it."""

    stage: int
    line: int


class Restart(Operation, frozen=True, kw_only=True, tag="restart"):
    """Restart a package in a new epoch; without one, every failed or cancelled package of the job.

    With an activity that was stopped: open it again, and restart its packages.
    """

    package: str = ""
    message: str = ""
    activity: str = ""


class Remake(Restart, frozen=True, kw_only=True, tag="remake"):
    """Run a package that is done again, since outputs of it that another one reads are gone; only the service requests it."""

    reader: str


class Reschedule(Operation, frozen=True, kw_only=True, tag="reschedule"):
    """Give up the live attempts of a package and retry it, at another site if there is one."""

    package: str
    message: str = ""


class Replicate(Operation, frozen=True, kw_only=True, tag="replicate"):
    """Start one more attempt of a running package beside those it has."""

    package: str


class Clear(Operation, frozen=True, kw_only=True, tag="clear"):
    """Release a finished job: its outputs were taken, or their time is up."""

    by: ClearedBy = "user"


class SiteOperation(msgspec.Struct, frozen=True, kw_only=True, tag_field="operation", omit_defaults=True):
    """The base of operations on a site."""

    site: str


class HibernateSite(SiteOperation, frozen=True, kw_only=True, tag="hibernate-site"):
    """Give a site no more work until it is woken; running attempts go on."""

    message: str = ""


class WakeSite(SiteOperation, frozen=True, kw_only=True, tag="wake-site"):
    """Make a hibernated site a candidate again."""

    message: str = ""


class ProbeSite(SiteOperation, frozen=True, kw_only=True, tag="probe-site"):
    """Start one pilot at a site, as a test."""


class TrySite(SiteOperation, frozen=True, kw_only=True, tag="try-site"):
    """As `ProbeSite`, for a person who watches: the site is not judged by it."""


class PinFiles(SiteOperation, frozen=True, kw_only=True, tag="pin-files"):
    """Keep cached files of a site until the same person unpins them."""

    locators: tuple[str, ...]
    by: str = ""


class UnpinFiles(SiteOperation, frozen=True, kw_only=True, tag="unpin-files"):
    """End the pins of a person."""

    locators: tuple[str, ...]
    by: str = ""


class PurgeFiles(SiteOperation, frozen=True, kw_only=True, tag="purge-files"):
    """Remove cached files of a site; without locators all that no package needs and nobody pins or wants to keep."""

    locators: tuple[str, ...] = ()
    software: bool = False  # archives of software only
    dry_run: bool = False  # only tell which ones would go


class PurgedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cached file that a purge removes, or keeps for a reason."""

    locator: str
    size_bytes: int
    kept: str = ""  # why; empty: it goes


class LineFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The result for the files of a dropped line: counts, and the first names."""

    removed: int = 0
    removed_bytes: int = 0
    gone: int = 0  # were missing already
    kept: int = 0
    removed_names: tuple[str, ...] = ()
    kept_files: tuple[KeptFile, ...] = ()  # with the reason; empty if no removal was requested


class Accepted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The operation was accepted; its events are durable by now."""

    operation: int
    events: int
    files: LineFiles | None = None  # where a line was dropped
    purged: tuple[PurgedFile, ...] = ()  # of a cache


RefusedCode = Literal[
    "activity-stopped",
    "bad-id",
    "cleared",
    "consumer-started",
    "file-needed",
    "file-pinned",
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
    "not-stopped",
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
    "unknown-activity",
    "unknown-file",
    "unknown-job",
    "unknown-line",
    "unknown-package",
    "unknown-site",
    "unsatisfiable",
]
"""Why an operation is refused, for programs."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """The operation was refused, and why; `subject` is the job or package that prevents it."""

    code: RefusedCode
    message: str
    subject: str = ""
    next_step: str = ""


AnyOperation = Kill | Hold | Release | Drop | Restore | Restart | Reschedule | Replicate | Clear
AnyFileOperation = PinFiles | UnpinFiles | PurgeFiles
AnySiteOperation = HibernateSite | WakeSite | ProbeSite | TrySite | AnyFileOperation
SiteDeed = Literal["hibernate", "wake", "probe", "try"]


class OperationOn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation on all results of a query: jobs, packages, or the lines of packages."""

    operation: str  # kill, hold, release, drop, restore, restart, reschedule or replicate
    where: str
    target: str = "packages"  # or jobs
    job: str = ""  # of this job only
    message: str = ""


class NotDone(msgspec.Struct, frozen=True, kw_only=True):
    """One subject for which an operation was refused."""

    subject: str
    code: str
    message: str


class OperatedOn(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an operation on many subjects; refusals are listed one by one, up to a limit."""

    found: int
    done: int
    refused: int
    told: tuple[NotDone, ...]


# Effects: actions that the core requests, as values. Each follows from a durable decision and may be repeated.
#
# An effect is identified by its key: its executor first checks whether it was done already. The result comes back as a
# site report, an exchange, or a grown plan; until then the core may request it again.


class SubmitPilot(msgspec.Struct, frozen=True, kw_only=True, tag="submit-pilot"):
    """Submit a pilot to the batch system of a site with our key."""

    site: str
    key: str


class SubmitAttempt(msgspec.Struct, frozen=True, kw_only=True, tag="submit-attempt"):
    """Submit one bound attempt to the batch system of a site with our key; its agent will ask for it."""

    site: str
    key: str
    ref: AttemptRef
    demand: Demand


class CancelSubmitted(msgspec.Struct, frozen=True, kw_only=True, tag="cancel-submitted"):
    """Cancel the batch job with our key at a site; a missing one is reported as gone."""

    site: str
    key: str


class ExpandStage(msgspec.Struct, frozen=True, kw_only=True, tag="expand-stage"):
    """Expand a late stage from the granted outputs of its producers; the answer is a grown plan."""

    job: str
    stage: int
    revision: int = 0  # of the outputs of its producers: an answer to an earlier one is outdated


class CachedCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A verified copy of a file in the cache of another site."""

    site: str
    name: str  # in its cache folder
    sha256: str
    version: str = ""  # what the store said of the file


class FetchFile(msgspec.Struct, frozen=True, kw_only=True, tag="fetch-file", omit_defaults=True):
    """Bring a file to the cache of a site under a name; reported as `FileArrived` or `FileNotFetched`."""

    site: str
    key: str
    locator: str
    name: str  # in the cache folder: never a user's text
    size_bytes: int | None = None
    sha256: str = ""  # that the documents of all jobs require that need it; empty: any
    copy: CachedCopy | None = None  # to be read in place of the store


class RemoveFile(msgspec.Struct, frozen=True, kw_only=True, tag="remove-file"):
    """Remove a file from the cache of a site; reported as `FileGone`, also if it was not there."""

    site: str
    key: str
    name: str


class StoreOutputs(msgspec.Struct, frozen=True, kw_only=True, tag="store-outputs"):
    """Copy the staged outputs of an attempt to their stores and verify them; reported as `OutputsCopied`."""

    ref: AttemptRef


FileEffect = FetchFile | RemoveFile | StoreOutputs
Effect = SubmitPilot | SubmitAttempt | CancelSubmitted | ExpandStage | FileEffect
