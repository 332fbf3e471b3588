"""What is known of a package with a short life: begun once with a lease, then ended well; or not ended yet.

These have only the fields that can say something of such a package, in the order in which `PackageFacts` has them: the
text that is stored is the same.
"""

from __future__ import annotations

import msgspec

from pilotage.book.rows import AttemptKeys, PackageRow, read_facts


class ShortAttempt(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is known of its one attempt: some of `AttemptFacts`."""

    site: str
    pilot: str | None = None
    node: str | None = None
    lease_seconds: float | None = None
    remaining_seconds: float | None = None
    created_at: float = 0.0
    staged_at: float | None = None
    staged_position: int | None = None
    finished_at: float | None = None
    finished_position: int | None = None
    granted_at: float | None = None
    exit_code: str | None = None
    exit_status: int | None = None
    peak_memory_bytes: int | None = None
    peak_memory_below_bytes: int | None = None
    cpu_seconds: float | None = None
    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    keys: AttemptKeys = {}


class ShortFacts(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What is known of the package: some of `PackageFacts`."""

    state: str
    activity: str
    site: str
    node: str | None = None
    attempt: int = 0
    exit_code: str | None = None
    started: int = 0
    shaped: int = 0
    ready_at: float = 0.0
    running_at: float = 0.0
    done_at: float | None = None
    entered_at: float = 0.0
    updated_at: float = 0.0
    counted_with: msgspec.Raw | None = None  # which many have in common, as text
    attempts: dict[int, ShortAttempt] = {}
    positions: list[int] = []


class Begun(msgspec.Struct, frozen=True, gc=False):
    """What is remembered of a short life that has not ended: as much as its end must know of its beginning."""

    attempt: int
    site: str
    activity: str
    pilot: str | None
    lease_seconds: float | None
    remaining_seconds: float | None
    created_at: float
    position: int
    counted_with: tuple[float, float]


ShortRow = tuple[int, int, int, int, str, str, str]
"""A package as it is stored: its job_id, stage, line and number, its state and site, and the text of its facts."""


def whole_row(row: ShortRow) -> PackageRow:
    """The row of any other package, for whoever wants to look at it."""
    job_id, stage, line, number, state, site, text = row
    return PackageRow(job_id, stage, line, number, read_facts(text), stored=(state, site))
