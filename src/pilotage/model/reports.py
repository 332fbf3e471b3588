"""What is heard of sites: from their batch systems, not from agents. A report is a word, and may be late or come twice."""

from __future__ import annotations

from typing import Literal

import msgspec

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
