"""The row of a package with a short life: begun once with a lease, then ended well; or not ended yet.

It has only the fields that can say something of such a package, in the order in which `PackageFacts` has them: the text
that is stored is the same.
"""

from __future__ import annotations

import msgspec

from pilotage.book.rows import AttemptKeys, PackageRow, read_facts

_encode = msgspec.json.Encoder().encode


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
    counted_with: tuple[float, float] | None = None
    attempts: dict[int, ShortAttempt] = {}
    positions: list[int] = []


class ShortRow(msgspec.Struct, frozen=True, gc=False):
    """A package with a short life; `stored` says that there is a row of it already, in which only its end is missing."""

    job_id: int
    stage: int
    line: int
    number: int
    facts: ShortFacts
    stored: bool = False

    def whole(self) -> PackageRow:
        """The same as any other package, for whoever wants to look at it or to add what a short life does not have."""
        facts = read_facts(_encode(self.facts))
        return PackageRow(self.job_id, self.stage, self.line, self.number, facts, stored=(facts.state, facts.site))
