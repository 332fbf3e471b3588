"""What is heard of sites: from their batch systems, not from agents. A report is a word, and may be late or come twice."""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.model.exchange.operations import CancelSubmitted, SubmitAttempt, SubmitPilot
from pilotage.model.sites.entry import SiteEntry

Trouble = Literal["failed", "connection-refused", "connection-timed-out"]
"""How something that was asked of a site can go wrong."""


class SiteReport(msgspec.Struct, frozen=True, kw_only=True, tag_field="report", omit_defaults=True):
    """The base of what is heard of a site: from its batch system, not from agents."""

    site: str


class Submitted(SiteReport, frozen=True, kw_only=True, tag="submitted"):
    """The batch system took what was submitted under our key, and calls it so."""

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
    """A listing that succeeded does not have our key any more, or says how it ended; never said of an unknown answer."""

    key: str
    reason: str
    stderr: str = ""


class SiteSeen(SiteReport, frozen=True, kw_only=True, tag="seen"):
    """Whether the batch system answers; it may do so and say why things wait."""

    answers: bool
    message: str = ""
    trouble: Trouble | None = None  # why it does not answer, where that is known


class Noticed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something of ours that is at a site, and of which nothing was heard as it should be."""

    key: str
    state: Literal["running", "held"]  # it runs and does not speak, or will not begin by itself
    words: str = ""  # the last that it printed, or what the batch system says


class SiteNoticed(SiteReport, frozen=True, kw_only=True, tag="noticed"):
    """Everything of that kind at a site, instead of what was noticed there before."""

    things: tuple[Noticed, ...] = ()


AnyReport = Submitted | SubmissionFailed | Gone | SiteSeen | SiteNoticed


# The exchange between a service and the agent of a site, which submits pilots there: what is wanted down, what is
# seen up.
#
# Either side says everything that matters each time, and both know things by their keys, so that a message that is
# lost or comes twice does no harm.

SiteEffect = SubmitPilot | SubmitAttempt | CancelSubmitted
"""What can be wanted at a site."""


class SiteSays(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the agent of a site says."""

    site: str
    agent: str  # which process of it
    sequence: int  # of this message
    service: str = ""  # which service it last heard
    heard: int = 0  # the number of the last effect that it has from that service
    version: str = ""
    scheduler: str = ""  # what it drives
    started_as: str = ""  # what the service that started it called this start; none: somebody else started it
    token_until: float = 0.0  # when the token of its pilots ends; 0: they have none
    reports: tuple[AnyReport, ...] = ()
    there: tuple[str, ...] = ()  # the keys of what is there, and of which the service has not spoken


class SiteHears(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What it is answered."""

    site: str
    agent: str
    sequence: int
    service: str  # another one after each start
    number: int = 0  # of the last effect
    effects: tuple[SiteEffect, ...] = ()  # everything of which nothing was heard yet, in order
    expected: tuple[str, ...] = ()  # the keys of what should be there
    unheard: tuple[str, ...] = ()  # those of them that have not spoken
    entry: SiteEntry | None = None
    prefix: str = ""  # which tells what is ours at the site from others'
    token: str = ""  # for its pilots
    interval_seconds: float = 10.0
    leave: str = ""  # why it is to end, where it is: another is started as the entry says now
