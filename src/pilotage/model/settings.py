"""The settings of pilotage that a document may override for one package, by `environment: {setting: {…}}`.

The release, its infrastructure, its execution, the job, the package and the binary are levels; the inner one wins.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SettingKind = Literal["text", "count", "bytes", "seconds", "yes-no"]


class PackageSetting(msgspec.Struct, frozen=True):
    """One setting: what kind of value it takes, and what it does."""

    kind: SettingKind
    description: str


PACKAGE_SETTINGS: dict[str, PackageSetting] = {
    "account": PackageSetting(
        "text", "The account a batch system charges; refused so far: the entry of a site says it."
    ),
    "attempts_max": PackageSetting("count", "The cap on counted attempts."),
    "cores": PackageSetting("count", "Cores, instead of the document's."),
    "interval_seconds": PackageSetting("seconds", "How often a running attempt reports; refused so far."),
    "keep_failed": PackageSetting("yes-no", "Keep the scratch folder of a failed attempt."),
    "memory_bytes": PackageSetting("bytes", "Memory, instead of the document's."),
    "queue": PackageSetting(
        "text", "The queue or partition of a batch system; refused so far: the entry of a site says it."
    ),
    "replicas_max": PackageSetting(
        "count", "Live attempts of the package, for whatever reason, instead of `selection.max_replicas`."
    ),
    "wall_time_seconds": PackageSetting("seconds", "Wall time, instead of the document's."),
}
