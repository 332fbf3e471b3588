"""The rows of the book, as people query them. The names of tables and columns are part of the interface.

A row holds the values of its registers as columns, and in `keys` the event that last set each register. Rows are
working values of one transaction: loaded, joined with events, and written back whole.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

StoredKey = tuple[int, int, int, int, str]
Keys = dict[int, StoredKey]
"""The key of the event that last set each register; registers are numbered in `book/rows/registers.py`."""
AttemptKeys = dict[int, StoredKey | int]
"""The same for an attempt; the number of another register in place of a key means that one event set both."""

_keys_decoder = msgspec.msgpack.Decoder(dict[int, tuple[int, int, int, int, str]])
_encode = msgspec.msgpack.Encoder().encode


def keys_of(row: JobRow | StageRow | PilotRow | NodeRow | SiteRow | CachedFileRow | KnowledgeRow) -> Keys:
    """The keys of a row's registers."""
    return _keys_decoder.decode(row.keys) if row.keys else {}


def packed(keys: Keys) -> bytes:
    """Encode keys, sorted, so that equal facts have equal bytes."""
    return _encode(dict(sorted(keys.items())) if len(keys) > 1 else keys)


class Row(msgspec.Struct, gc=False):
    """One row of a table."""


class StreamRow(Row, kw_only=True, gc=False):
    """The received numbers of one stream: all up to `watermark`, and the ranges `ahead` of it."""

    stream_id: int
    source: str
    stream: str
    watermark: int = 0
    ahead: str = "[]"  # JSON: [[first, last], …]


class StateHistogram(Row, kw_only=True, gc=False):
    """The number of packages in each state; packages without events count in the state of their job."""

    expected: int = 0  # packages of the shape
    touched: int = 0  # those of them with a row
    submitted: int = 0
    waiting: int = 0
    ready: int = 0
    scheduled: int = 0
    running: int = 0
    done: int = 0
    aborted: int = 0
    cancelled: int = 0
    cleared: int = 0
    dropped: int = 0
    started: int = 0  # packages with any started attempt
    succeeded: int = 0  # granted in their epoch, cleared or not


class JobRow(StateHistogram, kw_only=True, gc=False):
    """A job, its registers, and the histogram of its packages."""

    job_id: int
    job: str
    name: str = ""
    owner: str = ""
    parent: str | None = None
    state: str = "SUBMITTED"
    epoch: int = 1
    place: str = "live"  # live, sealed or purged
    stages: int = 0
    late: int = 0  # stages that are not expanded yet
    held: int = 0
    failed: int = 0  # aborted or cancelled packages
    definition: str | None = None
    expander_version: int = 0
    lists: str = "{}"
    growth: str = "[]"
    access: str = "[]"
    tags: str = "{}"
    submitted_at: float | None = None
    accepted_at: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    cancelled_at: float | None = None
    aborted_at: float | None = None
    cause: str | None = None
    cause_message: str | None = None
    cleared_at: float | None = None
    cleared_by: str | None = None
    opened_at: float | None = None
    entered_at: float | None = None
    updated_at: float = 0.0
    heard_at: float = 0.0  # when its last event was received, by the service's clock
    purged_at: float | None = None
    keys: bytes = b""
    # Since version 6 of the schema: last, as in a migrated book.
    forecast: str = ""  # the last `ForecastMade` and when it was made, as JSON; empty once the job is over
    # Since version 9.
    healing: str = ""  # the last `HealingLearned` and when it was recorded, as JSON; empty once the job is purged
    # Since version 10.
    activities: str = ""  # those that were stopped or opened again, as JSON; empty once the job is purged


class StageRow(StateHistogram, kw_only=True, gc=False):
    """A stage: its shape and the histogram of its packages."""

    job_id: int
    stage: int
    late: int = 0
    shape: str = "{}"
    keys: bytes = b""


class AttemptFacts(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The facts of one attempt. Numbers continue over all epochs: a repeated number sets `reused`."""

    epoch: int = 1
    reused: int = 0
    site: str | None = None
    pilot: str | None = None
    node: str | None = None
    native_id: str | None = None
    lease_seconds: float | None = None
    replaces: int | None = None
    replica: int = 0
    remaining_seconds: float | None = None
    memory_bytes: int | None = None  # its limit, if that is more than was asked for
    wall_seconds: float | None = None
    drop_revision: int = 0
    created_at: float | None = None
    queued_at: float | None = None
    started_at: float | None = None
    suspected_at: float | None = None  # only the latest of these three is set
    recovered_at: float | None = None
    lost_at: float | None = None
    lost_reason: str | None = None
    phase: str | None = None
    phase_at: float | None = None
    staged_at: float | None = None
    staged_position: int | None = None  # of the event with the manifest
    finished_at: float | None = None
    finished_position: int | None = None  # of the event with the phases
    granted_at: float | None = None
    stored_at: float | None = None  # when copies of its outputs were last written to stores
    copies: int = 0  # of its outputs in stores, verified
    failed_copies: int = 0
    disposed_at: float | None = None  # when its deletable outputs were found to be of no more use
    exit_code: str | None = None
    exit_message: str | None = None
    reason: str | None = None
    exit_status: int | None = None
    signal: int | None = None
    peak_memory_bytes: int | None = None
    peak_memory_below_bytes: int | None = None
    cpu_seconds: float | None = None
    cpu_user_seconds: float | None = None
    cpu_system_seconds: float | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    early: dict[str, int] = {}  # the attempts, by package, beside which it started early
    group: str | None = None  # the key of the batch job that it shares with other attempts
    keys: AttemptKeys = {}


class PackageFacts(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The facts of a package and its attempts, and the values derived from them; stored as JSON, shown through views."""

    state: str = ""
    epoch: int = 1
    activity: str = ""
    registered_activity: str = ""  # from its registration; the shape of the job takes precedence
    site: str | None = None
    node: str | None = None
    attempt: int | None = None  # the attempt whose outcome is shown: the granted one, or else the last
    exit_code: str | None = None
    exit_message: str | None = None
    reason: str | None = None
    cause: str | None = None  # why it was aborted
    cause_message: str | None = None
    upstream: str | None = None  # the package whose failure caused it
    cleared_by: str | None = None
    held: int = 0
    dropped: int = 0
    replicas: int = 0  # attempts to run beside the first one
    started: int = 0
    conflict: int = 0  # contradictory facts in one epoch
    shaped: int = 0  # whether it is in the shape of the job
    inferred: str = ""  # implied events that are missing
    bound_site: str | None = None
    registered_at: float | None = None
    opened_at: float | None = None
    hold_set_at: float | None = None  # when it was last held or released; None: never, or not recorded
    bound_at: float | None = None
    cancelled_at: float | None = None
    aborted_at: float | None = None
    cleared_at: float | None = None
    ready_at: float | None = None
    scheduled_at: float | None = None
    running_at: float | None = None
    done_at: float | None = None
    entered_at: float | None = None
    updated_at: float = 0.0
    counted_with: tuple[float, float] | None = None  # when its job was submitted and accepted, as used by statistics
    tags: dict[str, tuple[str, StoredKey]] = {}
    attempts: dict[int, AttemptFacts] = {}
    positions: list[int] = []  # of its events, in the order of arrival
    keys: Keys = {}


class PackageRow(msgspec.Struct, gc=False):
    """A package with events; one without has no row.

    How it was last counted, and the state and site that are stored, are kept with the row in memory, and not stored.
    """

    job_id: int
    stage: int
    line: int
    number: int
    facts: PackageFacts
    counted: tuple[str, int, int, int] | None = None
    observed: dict[int, tuple[tuple[float, ...], str, str]] | None = None
    stored: tuple[str, str | None] | None = None


_facts_decoder = msgspec.json.Decoder(PackageFacts)
_facts_encoder = msgspec.json.Encoder()


def read_facts(text: str | bytes) -> PackageFacts:
    """Decode stored facts."""
    return _facts_decoder.decode(text)


def written_facts(facts: PackageFacts, buffer: bytearray | None = None) -> str:
    """Encode facts; a caller that writes many passes a buffer for reuse."""
    if buffer is None:
        return _facts_encoder.encode(facts).decode()
    _facts_encoder.encode_into(facts, buffer)
    return buffer.decode()


KeyedRow = TypeVar("KeyedRow", "PilotRow", "NodeRow", "SiteRow", "CachedFileRow", "KnowledgeRow")


def with_keys(row: KeyedRow, keys: Keys) -> KeyedRow:
    """Store the current keys of its registers in a row."""
    row.keys = packed(keys)
    return row


class PilotRow(Row, kw_only=True, gc=False):
    """An agent process at a site."""

    pilot: str
    site: str | None = None
    node: str | None = None
    request: str | None = None
    native_id: str | None = None
    slots: int = 0
    requested_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    reason: str | None = None
    stderr: str | None = None
    updated_at: float = 0.0
    keys: bytes = b""
    # Since version 5 of the schema.
    submitted_at: float | None = None  # when its native id was known


class NodeRow(Row, kw_only=True, gc=False):
    """A computer, as its agent described it."""

    node: str
    site: str | None = None
    cores: int = 0
    memory_bytes: int = 0
    system: str = ""
    software: str = "{}"
    environment: str = "{}"
    updated_at: float = 0.0
    keys: bytes = b""
    # Since version 7 of the schema: last, as in a migrated book.
    os_release: str = ""
    kernel: str = ""
    cpu_model: str = ""
    libc: str = ""


class SiteRow(Row, kw_only=True, gc=False):
    """A place that runs attempts."""

    site: str
    kind: str = ""
    status: str = ""
    message: str = ""
    updated_at: float = 0.0
    keys: bytes = b""
    # Since version 2 of the schema: last, as in a migrated book.
    reason: str = ""
    score: float | None = None
    since: float | None = None  # when it got its current status
    learned: str = ""  # the learned statistics for site selection, as JSON
    probed_at: float | None = None
    probe: str = ""  # its result, in words
    # Since version 5.
    latencies: str = ""  # the last `SiteLatencies`, as JSON


class CachedFileRow(Row, kw_only=True, gc=False):
    """A file in the cache of a site: on its way, there, failed, being removed, or removed. Since version 8 of the schema."""

    site: str
    digest: str  # sha256 of the locator, which may be too long for an index
    locator: str = ""
    state: str = ""  # ordered, present, failed, removing or removed
    name: str = ""  # in the cache folder
    wish: str = ""  # the greatest of all owners
    pinned: int = 0  # by how many persons
    software: int = 0
    stale: int = 0  # its store has another content now
    expected_bytes: int = 0  # before it came; 0: unknown
    size_bytes: int = 0
    sha256: str = ""
    version: str = ""  # what its store said of it
    fetch_key: str = ""  # of the last order to fetch it
    removal_key: str = ""
    cause: str = ""  # of its last removal
    failures: int = 0  # in a row, at the last one
    reason: str = ""  # of the last failure
    message: str = ""
    ordered_at: float | None = None
    fetched_at: float | None = None
    used_at: float | None = None  # when a job last asked for it for the first time
    failed_at: float | None = None
    removal_at: float | None = None
    removed_at: float | None = None
    updated_at: float = 0.0
    wishes: str = "{}"  # JSON: owner → number of the wish, or -1, and the key of its event
    pins: str = "{}"  # JSON: person → 1 or 0, and the key of its event
    keys: bytes = b""


INCIDENTS = "incidents"
"""The name of what `IncidentsLearned` says."""


class KnowledgeRow(Row, kw_only=True, gc=False):
    """What the service learned from all jobs, and when it was recorded. Since version 9 of the schema."""

    name: str
    at: float = 0.0
    learned: str = ""  # a text that only the engine reads
    keys: bytes = b""


class TagRow(Row, gc=False):
    """A user's tag, of a job (stage, line and number are 0) or of a package."""

    job_id: int
    stage: int
    line: int
    number: int
    name: str
    value: str


class EventRow(Row, kw_only=True, gc=False):
    """A stored event: its position, identity, subject, clock and payload."""

    position: int
    stream_id: int
    n: int
    type: str
    version: int
    time: float
    received: float
    skewed: int
    epoch: int
    seen: int
    job_id: int | None
    stage: int
    line: int
    number: int
    attempt: int
    pilot: str | None
    site: str | None
    data: str


class ParkedRow(Row, kw_only=True, gc=False):
    """An event of a job that is not registered yet, as received."""

    job: str
    stream_id: int
    n: int
    received: float
    event: str


class StatisticRow(Row, kw_only=True, gc=False):
    """One slice of time at one site in one activity: entries into states and times between states."""

    width_seconds: int
    slice: int  # the number of the slice since 1970
    site: str
    activity: str
    sketch: bytes
