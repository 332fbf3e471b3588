"""Settings that a document may override for one package, by `environment: {setting: {…}}`.

The levels are release, infrastructure, execution, job, package and binary; the innermost wins. The table has a module of
its own because every command that reads a document needs it, and none of the service's settings.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SettingKind = Literal["text", "count", "bytes", "seconds", "yes-no"]


class PackageSetting(msgspec.Struct, frozen=True):
    """One setting: the kind of its value, and its effect."""

    kind: SettingKind
    description: str


PACKAGE_SETTINGS: dict[str, PackageSetting] = {
    "account": PackageSetting(
        "text", "The account a batch system charges; not supported yet: set it in the entry of the site."
    ),
    "attempts_max": PackageSetting("count", "The cap on counted attempts."),
    "cores": PackageSetting("count", "Cores, instead of the document's."),
    "interval_seconds": PackageSetting("seconds", "How often a running attempt reports; not supported yet."),
    "keep_failed": PackageSetting("yes-no", "Keep the scratch folder of a failed attempt."),
    "memory_bytes": PackageSetting("bytes", "Memory, instead of the document's."),
    "queue": PackageSetting(
        "text", "The queue or partition of a batch system; not supported yet: set it in the entry of the site."
    ),
    "replicas_max": PackageSetting(
        "count", "Live attempts of the package, for any reason, instead of `selection.max_replicas`."
    ),
    "wall_time_seconds": PackageSetting("seconds", "Wall time, instead of the document's."),
}
