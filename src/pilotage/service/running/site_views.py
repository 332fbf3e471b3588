"""Sites as whoever asks is shown them: as their file has them, and as they stand. No engine is needed to say it."""

from __future__ import annotations

import msgspec

from pilotage.model.reports import Noticed
from pilotage.model.site_entry import SiteEntry


class KeptSites(msgspec.Struct, frozen=True, kw_only=True):
    """The sites as they are kept: their file, what is written of each, and what is wrong with the file."""

    file: str = ""
    entries: dict[str, SiteEntry | None] = {}
    fault: str = ""


class SiteReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one stage of the choice says of a site; the first that does not pass is why nothing goes there."""

    stage: str  # filter, status, score, room, pick; or pilots, where it is about starting them
    code: str
    message: str
    passes: bool = True
    since: float | None = None
    until: float | None = None


class SiteStand(msgspec.Struct, frozen=True, kw_only=True):
    """A site as the engine sees it now."""

    status: str
    score: float | None = None  # None: nothing was learned yet
    tscore: float | None = None
    queue_seconds: float | None = None  # the median of the latest
    pilots_queued: int = 0
    pilots_live: int = 0
    slots: int = 0
    used: int = 0
    dead_starts: int = 0
    closed: str = ""  # why nothing more is submitted there now
    next_try_at: float | None = None  # when a pilot is tried there again, at the earliest; None: no time is set
    unheard: str = ""  # what does not begin there, or runs and does not speak
    noticed: tuple[Noticed, ...] = ()  # the same, one by one
    reasons: tuple[SiteReason, ...] = ()
