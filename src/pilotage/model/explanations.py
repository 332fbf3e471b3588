"""Why a package is where it is, as values that programs can read and people can be told."""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.model.package_words import PackageWords
from pilotage.model.payloads import BinaryEnd

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
