"""The rows of the book: facts as people query them. The names of tables and columns are part of the interface.

A row holds the values of its registers as columns, and `keys`, which says for each register what it was last set by. Rows
are working values of one transaction: loaded, joined with events, written back whole.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

StoredKey = tuple[int, int, int, int, str]
Keys = dict[int, StoredKey]
"""The total key of the event that each register was set by; registers are numbered in `book/rows/registers.py`."""
AttemptKeys = dict[int, StoredKey | int]
"""The same of an attempt; the number of another register in place of a key says that one event set both."""

_keys_decoder = msgspec.msgpack.Decoder(dict[int, tuple[int, int, int, int, str]])
_encode = msgspec.msgpack.Encoder().encode


def keys_of(row: JobRow | StageRow | PilotRow | NodeRow | SiteRow) -> Keys:
    """The keys of a row's registers."""
    return _keys_decoder.decode(row.keys) if row.keys else {}


def packed(keys: Keys) -> bytes:
    """Keys as they are stored; sorted, so that equal facts are equal bytes."""
    return _encode(dict(sorted(keys.items())) if len(keys) > 1 else keys)


class Row(msgspec.Struct, gc=False):
    """One row of a table."""


class StreamRow(Row, kw_only=True, gc=False):
    """How far one counting source was heard: everything up to `watermark`, and the ranges `ahead` of it."""

    stream_id: int
    source: str
    stream: str
    watermark: int = 0
    ahead: str = "[]"  # JSON: [[first, last], …]


class Counted(Row, kw_only=True, gc=False):
    """How many packages stand in each state; packages that nothing was heard of count where their job puts them."""

    expected: int = 0  # packages that the shape tells of
    touched: int = 0  # those of them that have a row
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
    started: int = 0  # packages that ever held a lease
    succeeded: int = 0  # granted in their epoch, cleared or not


class JobRow(Counted, kw_only=True, gc=False):
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
    late: int = 0  # stages that are not known yet
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
    heard_at: float = 0.0  # by the clock that received its last event, which the clocks of its events cannot move
    purged_at: float | None = None
    keys: bytes = b""


class StageRow(Counted, kw_only=True, gc=False):
    """A stage: its shape and the histogram of its packages."""

    job_id: int
    stage: int
    late: int = 0
    shape: str = "{}"
    keys: bytes = b""


class AttemptFacts(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What is known of one try at a package. Numbers go on over all epochs: one that comes again is told by `reused`."""

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
    memory_bytes: int | None = None  # what it may take, where that is more than was asked for
    wall_seconds: float | None = None
    drop_revision: int = 0
    created_at: float | None = None
    queued_at: float | None = None
    started_at: float | None = None
    suspected_at: float | None = None  # of these three only the one that was said last stands
    recovered_at: float | None = None
    lost_at: float | None = None
    lost_reason: str | None = None
    phase: str | None = None
    phase_at: float | None = None
    staged_at: float | None = None
    staged_position: int | None = None  # of the event that holds the manifest
    finished_at: float | None = None
    finished_position: int | None = None  # of the event that holds the phases
    granted_at: float | None = None
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
    keys: AttemptKeys = {}


class PackageFacts(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What is known of a package and its attempts, and what follows from it; stored as JSON, shown through views."""

    state: str = ""
    epoch: int = 1
    activity: str = ""
    registered_activity: str = ""  # with its registration; the shape of the job knows better
    site: str | None = None
    node: str | None = None
    attempt: int | None = None  # the one whose outcome is shown: the granted, or else the last
    exit_code: str | None = None
    exit_message: str | None = None
    reason: str | None = None
    cause: str | None = None  # why it was given up
    cause_message: str | None = None
    upstream: str | None = None  # the package whose failure it follows from
    cleared_by: str | None = None
    held: int = 0
    dropped: int = 0
    replicas: int = 0  # attempts that are to run beside the first one
    started: int = 0
    conflict: int = 0  # facts that exclude each other stand for one epoch
    shaped: int = 0  # the shape of the job tells of it
    inferred: str = ""  # events that must have been, but were not seen
    bound_site: str | None = None
    registered_at: float | None = None
    opened_at: float | None = None
    hold_set_at: float | None = None  # when it was last held or released; none: never, or nobody noted it
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
    counted_with: tuple[float, float] | None = None  # when its job was submitted and accepted, as statistics took it
    tags: dict[str, tuple[str, StoredKey]] = {}
    attempts: dict[int, AttemptFacts] = {}
    positions: list[int] = []  # of the events about it, as they came
    keys: Keys = {}


class PackageRow(msgspec.Struct, gc=False):
    """A package of which something was heard; what nothing was heard of has no row.

    What it was last counted as, and with which state and site it is stored, is remembered with the row as long as the
    row is in memory, and not stored.
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
    """Facts from the text that is stored."""
    return _facts_decoder.decode(text)


def written_facts(facts: PackageFacts, buffer: bytearray | None = None) -> str:
    """Facts as they are stored; who writes many brings a buffer that is used for each in turn."""
    if buffer is None:
        return _facts_encoder.encode(facts).decode()
    _facts_encoder.encode_into(facts, buffer)
    return buffer.decode()


KeyedRow = TypeVar("KeyedRow", "PilotRow", "NodeRow", "SiteRow")


def with_keys(row: KeyedRow, keys: Keys) -> KeyedRow:
    """A row with the keys of its registers as they are now."""
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


class NodeRow(Row, kw_only=True, gc=False):
    """A computer, as it described itself."""

    node: str
    site: str | None = None
    cores: int = 0
    memory_bytes: int = 0
    system: str = ""
    software: str = "{}"
    environment: str = "{}"
    updated_at: float = 0.0
    keys: bytes = b""


class SiteRow(Row, kw_only=True, gc=False):
    """A place that runs attempts."""

    site: str
    kind: str = ""
    status: str = ""
    message: str = ""
    updated_at: float = 0.0
    keys: bytes = b""
    # Since version 2 of the schema: behind the others, as in a book that was migrated.
    reason: str = ""
    score: float | None = None
    since: float | None = None  # when it came to stand as it does
    learned: str = ""  # what the choice of sites knows of it, as JSON
    probed_at: float | None = None
    probe: str = ""  # what came of it, in words


class TagRow(Row, gc=False):
    """A user's tag, of a job (stage, line and number are 0) or of a package."""

    job_id: int
    stage: int
    line: int
    number: int
    name: str
    value: str


class EventRow(Row, kw_only=True, gc=False):
    """An event as it is stored: its place in the book, its identity, subject, clock and payload."""

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
    """An event of a job that is not registered yet, whole as it came."""

    job: str
    stream_id: int
    n: int
    received: float
    event: str


class StatisticRow(Row, kw_only=True, gc=False):
    """What happened in one slice of time at one site in one activity: entries into states and times between states."""

    width_seconds: int
    slice: int  # the number of the slice since 1970
    site: str
    activity: str
    sketch: bytes
