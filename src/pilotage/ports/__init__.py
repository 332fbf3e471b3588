"""Defines what pilotage needs of the world, as protocols: every adapter passes the conformance suite of its port."""

from __future__ import annotations

from pilotage.ports.clock import (
    Clock,
)
from pilotage.ports.job_tree import (
    InTheWay,
    JobTree,
    Mark,
    NotOurs,
    Rival,
    StoredFile,
    StoreError,
)
from pilotage.ports.journal import (
    FoundEvent,
    FoundPackage,
    Journal,
    JournalAdapter,
    JournalBusy,
    JournalError,
    JournalFull,
    JournalLost,
    JournalUnavailable,
    Page,
    SealedLost,
)
from pilotage.ports.logs import (
    AttemptLogs,
)
from pilotage.ports.notifying import (
    BadAddress,
    DeliveryRefused,
    Letter,
    Mailer,
    MakesNotifier,
    NotDelivered,
    Notifier,
)
from pilotage.ports.results_index import (
    MadeFile,
    MadeWork,
    MeasuredRun,
    ResultsIndex,
    RunKind,
    SeenFile,
    WorkFields,
)
from pilotage.ports.sites import (
    MakesSiteAccess,
    SeenAtSite,
    SiteAccess,
    SiteBusy,
    SiteContext,
    SiteUnreachable,
    SubmissionRefused,
)
from pilotage.ports.store import (
    AlreadyInStore,
    NotInStore,
    Store,
    StoreObject,
)

__all__ = [
    "AlreadyInStore",
    "AttemptLogs",
    "BadAddress",
    "Clock",
    "DeliveryRefused",
    "FoundEvent",
    "FoundPackage",
    "InTheWay",
    "JobTree",
    "Journal",
    "JournalAdapter",
    "JournalBusy",
    "JournalError",
    "JournalFull",
    "JournalLost",
    "JournalUnavailable",
    "Letter",
    "MadeFile",
    "MadeWork",
    "Mailer",
    "MakesNotifier",
    "MakesSiteAccess",
    "Mark",
    "MeasuredRun",
    "NotDelivered",
    "NotInStore",
    "NotOurs",
    "Notifier",
    "Page",
    "ResultsIndex",
    "Rival",
    "RunKind",
    "SealedLost",
    "SeenAtSite",
    "SeenFile",
    "SiteAccess",
    "SiteBusy",
    "SiteContext",
    "SiteUnreachable",
    "Store",
    "StoreError",
    "StoreObject",
    "StoredFile",
    "SubmissionRefused",
    "WorkFields",
]
