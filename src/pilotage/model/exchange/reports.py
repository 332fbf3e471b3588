"""Reports on sites, from their batch systems and not from agents. A report may be late or repeated."""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.model.events.file_payloads import FailedCopy, StoredCopy
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.exchange.operations import CancelSubmitted, FetchFile, RemoveFile, SubmitAttempt, SubmitPilot
from pilotage.model.sites.entry import SiteEntry

Trouble = Literal["failed", "connection-refused", "connection-timed-out"]
"""How a request to a site can go wrong."""


class SiteReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="report", omit_defaults=True):
    """The base of reports on a site: from its batch system, not from agents."""

    site: str


class Submitted(SiteReport, frozen=True, kw_only=True, tag="submitted"):
    """The batch system accepted a submission with our key; `native_id` is its own id."""

    key: str
    native_id: str
    seconds: float | None = None  # that the submission took


class SubmissionFailed(SiteReport, frozen=True, kw_only=True, tag="submission-failed"):
    """The batch system refused it; nothing was queued."""

    key: str
    reason: str
    message: str = ""
    seconds: float | None = None
    trouble: Trouble = "failed"


class Gone(SiteReport, frozen=True, kw_only=True, tag="gone"):
    """A successful listing no longer has our key, or says how the job ended; never reported after a failed listing."""

    key: str
    reason: str
    stderr: str = ""


class SiteSeen(SiteReport, frozen=True, kw_only=True, tag="seen"):
    """Whether the batch system answers; if it does, `message` may say why jobs wait."""

    answers: bool
    message: str = ""
    trouble: Trouble | None = None  # why it does not answer, if known


class Noticed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch job of ours that does not start, or runs without contacting the service."""

    key: str
    state: Literal["running", "held"]  # it runs silently, or is held by the batch system
    words: str = ""  # its last output, or the explanation of the batch system


class SiteNoticed(SiteReport, frozen=True, kw_only=True, tag="noticed"):
    """All such batch jobs at a site; replaces the previous report."""

    things: tuple[Noticed, ...] = ()


class FileArrived(SiteReport, frozen=True, kw_only=True, tag="file-arrived"):
    """A file is in the cache of the site, and was verified."""

    key: str
    size_bytes: int
    sha256: str
    version: str = ""  # what its store said of it
    seconds: float = 0.0


class FileNotFetched(SiteReport, frozen=True, kw_only=True, tag="file-not-fetched"):
    """A file could not be brought to the site, after the retries of the transfer."""

    key: str
    reason: str
    message: str = ""
    seconds: float = 0.0


class FileGone(SiteReport, frozen=True, kw_only=True, tag="file-gone"):
    """A file is not in the cache of the site any more; `key` is that of the order to remove it, or to fetch it, or its name."""

    key: str


AnyReport = Submitted | SubmissionFailed | Gone | SiteSeen | SiteNoticed | FileArrived | FileNotFetched | FileGone


class OutputsCopied(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the service's own transfers to `StoreOutputs`; never from an agent."""

    ref: AttemptRef
    copies: tuple[StoredCopy, ...] = ()
    failed: tuple[FailedCopy, ...] = ()


# The exchange between a service and a site agent, which submits pilots there: requests go down, reports go up.
#
# Each side states everything that matters each time, and both identify things by their keys, so that a lost or repeated
# message does no harm.

SiteEffect = SubmitPilot | SubmitAttempt | CancelSubmitted | FetchFile | RemoveFile
"""Effects that a site can be asked for."""


class SiteAgentMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The message of a site agent."""

    site: str
    agent: str  # its process
    sequence: int  # of this message
    service: str = ""  # the last service that it heard from
    heard: int = 0  # number of the last effect from that service
    version: str = ""
    scheduler: str = ""  # the batch system that it uses
    scheduler_version: str = ""
    started_as: str = ""  # the service's name for this start; empty: it was started by other means
    token_until: float = 0.0  # when its pilots' token expires; 0: they have none
    reports: tuple[AnyReport, ...] = ()
    there: tuple[str, ...] = ()  # keys of batch jobs there that the service has not mentioned
    cache: str = ""  # the folder that it brings files to; empty: an agent of an earlier release, which brings none


class SiteAgentReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reply to a site agent."""

    site: str
    agent: str
    sequence: int
    service: str  # changes with each start
    number: int = 0  # of the last effect
    effects: tuple[SiteEffect, ...] = ()  # all effects without a report so far, in order
    expected: tuple[str, ...] = ()  # keys of the batch jobs that should be there
    unheard: tuple[str, ...] = ()  # those of them that have not made contact
    entry: SiteEntry | None = None
    prefix: str = ""  # marks our batch jobs at the site
    token: str = ""  # for its pilots
    interval_seconds: float = 10.0
    leave: str = ""  # why it must end, if so: another one is started with the current entry
