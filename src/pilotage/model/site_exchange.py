"""The exchange between a service and the agent of a site, which submits pilots there: what is wanted down, what is seen up.

Either side says everything that matters each time, and both know things by their keys, so that a message that is lost or
comes twice does no harm.
"""

from __future__ import annotations

import msgspec

from pilotage.model.effects import CancelSubmitted, SubmitAttempt, SubmitPilot
from pilotage.model.reports import AnyReport
from pilotage.model.site_entry import SiteEntry

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
