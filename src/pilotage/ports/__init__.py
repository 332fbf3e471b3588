"""Defines what pilotage needs of the world, as protocols: every adapter passes the conformance suite of its port."""

from __future__ import annotations

from pilotage.ports.clock import (
    Clock,
)
from pilotage.ports.files import (
    FileStore,
    InTheWay,
    MadeFile,
    MadeWork,
    Mark,
    NotOurs,
    Rival,
    SeenFile,
    StoredFile,
    StoreError,
    WorkFields,
    WorkIndex,
)
from pilotage.ports.journal import (
    FoundEvent,
    FoundPackage,
    Journal,
    JournalBusy,
    JournalError,
    JournalFull,
    JournalLost,
    JournalUnavailable,
    Page,
    SealedLost,
)
from pilotage.ports.notifying import (
    BadAddress,
    DeliveryRefused,
    Letter,
    Mailer,
    NotDelivered,
    Notifier,
)
from pilotage.ports.sites import (
    SeenAtSite,
    SiteAccess,
    SiteBusy,
    SiteUnreachable,
    SubmissionRefused,
)

__all__ = [
    "BadAddress",
    "Clock",
    "DeliveryRefused",
    "FileStore",
    "FoundEvent",
    "FoundPackage",
    "InTheWay",
    "Journal",
    "JournalBusy",
    "JournalError",
    "JournalFull",
    "JournalLost",
    "JournalUnavailable",
    "Letter",
    "MadeFile",
    "MadeWork",
    "Mailer",
    "Mark",
    "NotDelivered",
    "NotOurs",
    "Notifier",
    "Page",
    "Rival",
    "SealedLost",
    "SeenAtSite",
    "SeenFile",
    "SiteAccess",
    "SiteBusy",
    "SiteUnreachable",
    "StoreError",
    "StoredFile",
    "SubmissionRefused",
    "WorkFields",
    "WorkIndex",
]
