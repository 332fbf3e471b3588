"""How storages feed indexes: a storage extracts the attributes that an index wants of the records that its query finds.

A change of a record gives the whole entry of its job again, as it is now. So entries may be taken in any order and more than once,
and an index that was killed goes on from the position that it had reached.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta

from pilotage.model.errors import PilotageError
from pilotage.model.records import Annotation, JobRecord
from pilotage.ports.record_index import IndexedAttributes, IndexQuery, RecordEntry, RecordIndex
from pilotage.ports.records import DamagedPart, RecordStore, StoredRecord, sound_record, sound_revisions
from pilotage.provenance.index.attributes import FileFact, LifeLogFacts, attributes_of, chosen_attributes
from pilotage.provenance.index.query import matches, parse
from pilotage.provenance.script_results import result_object, result_values
from pilotage.reading.access import ANY_OWNER, Principal, may_use_record

log = logging.getLogger(__name__)

CHANGES_MAX = 500
"""Changes of one batch."""
BATCH_VALUES_MAX = 20_000
"""Values after which a batch ends: a job may have a hundred thousand files."""
BATCH_SECONDS_MAX = 2.0
"""Time after which a batch ends, so that a storage is not kept busy for long."""

_OF_LIFE_LOGS = (
    "activity", "attempts", "consumed", "consumed.sha256", "custom", "exit_code", "packages", "produced", "produced.sha256", "reason",
    "software",
)  # fmt: skip


class FeedRegistration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an index registers with a storage: its name, the attributes that it keeps, and which records it wants."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", description="The name of the index.")]
    attributes: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...],
        Meta(max_length=1000, description="The attributes that it keeps; `tag` means every tag. None: all."),
    ] = ()
    query: Annotated[
        str, Meta(max_length=16_384, description="Only records that this query finds; all without it.")
    ] = ""


class FeedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of one batch; the index has then read the storage up to `position`."""

    entries: tuple[RecordEntry, ...]
    position: int
    end: bool  # nothing more was there
    restart: bool = False  # the storage has less than the index read of it: forget all, and begin anew
    # Jobs whose records cannot be read: they are left out, and told again when they come anew.
    damaged: tuple[str, ...] = ()


class CheckedFeed(msgspec.Struct, frozen=True, kw_only=True):
    """A registration with its attributes and its query checked."""

    name: str
    attributes: IndexedAttributes
    query: IndexQuery


def check_feed(registration: FeedRegistration) -> CheckedFeed:
    """Check a registration. Raises `UnknownAttribute` and `QueryError`."""
    attributes = chosen_attributes(registration.attributes or None)
    query = parse(registration.query, now=None) if registration.query.strip() else IndexQuery()
    return CheckedFeed(name=registration.name, attributes=attributes, query=query)


def feed_batch(
    store: RecordStore,
    feed: CheckedFeed,
    *,
    principal: Principal | None,
    after: int,
    limit: int = CHANGES_MAX,
    could_read: Callable[[str], bool] = lambda _: False,
) -> FeedBatch:
    """What changed after a position, of the records that a feed wants and its principal may read (None: all).

    `could_read` says whether the principal may read a job of the book whose record was deleted: of a deletion only those are told
    who could read the record or may read its job.
    """
    changes = store.changes(after=after, limit=limit)
    if not changes:
        behind = after > 0 and not store.changes(after=after - 1, limit=1)
        return FeedBatch(entries=(), position=after, end=not behind, restart=behind)
    last = {each.job: each.position for each in changes}
    deleted = {each.job for each in changes if each.change == "deletion"}
    entries: list[RecordEntry] = []
    damaged: list[str] = []
    values, begun = 0, time.monotonic()
    for each in changes:
        if each.position != last[each.job]:
            continue
        if _is_damaged(store, each):
            log.warning(
                "the record of job %s is damaged, and no index has it: see `pilotage provenance fsck`", each.job
            )
            if _is_free(principal) or (principal is not None and _could_read_earlier(store, principal, each.job)):
                damaged.append(each.job)
            continue
        entry = _entry(store, feed, principal, change=each, was_deleted=each.job in deleted, could_read=could_read)
        if entry is not None:
            entries.append(entry)
            values += sum(map(len, entry.values.values()))
        if each is not changes[-1] and (values >= BATCH_VALUES_MAX or time.monotonic() - begun > BATCH_SECONDS_MAX):
            return FeedBatch(entries=tuple(entries), position=each.position, end=False, damaged=tuple(damaged))
    end = len(changes) < limit
    return FeedBatch(entries=tuple(entries), position=changes[-1].position, end=end, damaged=tuple(damaged))


def _is_damaged(store: RecordStore, change: StoredRecord) -> bool:
    """Whether the newest record of a job is known to be damaged. Raises what else keeps it from being read."""
    return sound_record(store, change.job) is None and bool(store.revisions(change.job))


def _entry(
    store: RecordStore,
    feed: CheckedFeed,
    principal: Principal | None,
    *,
    change: StoredRecord,
    was_deleted: bool,
    could_read: Callable[[str], bool],
) -> RecordEntry | None:
    """The entry of a job as it is now; None for one that the index does not want and cannot have."""
    record = store.record(change.job)
    removal = RecordEntry(job=change.job, position=change.position, removed=True)
    if record is None:
        may_know = _is_free(principal) or _could_read(store, principal, change.job) or could_read(change.job)
        return removal if may_know else None
    annotations = _annotations(store, record)
    if principal is None or may_use_record(principal, "read", record):
        entry = entry_of(record, annotations, position=change.position, read_part=store.content, feed=feed)
        if entry is not None:
            return entry
        # An earlier revision may have been wanted.
        return removal if was_deleted or annotations or record.revision > 1 else None
    was_readable = _could_read_earlier(store, principal, change.job)
    if was_readable or (was_deleted and (_could_read(store, principal, change.job) or could_read(change.job))):
        return removal
    return None


def _is_free(principal: Principal | None) -> bool:
    """Whether nothing is hidden from a principal."""
    return principal is None or (ANY_OWNER in principal.scopes and not principal.is_bound)


def _could_read_earlier(store: RecordStore, principal: Principal, job: str) -> bool:
    """Whether a principal may read a revision of the record of a job, as far as they can be read."""
    return any(may_use_record(principal, "read", each) for each in sound_revisions(store, job))


def _annotations(store: RecordStore, record: JobRecord) -> list[Annotation]:
    """What was added to a record; nothing where it is damaged."""
    try:
        return store.annotations(record.job)
    except DamagedPart as fault:
        log.warning("annotations of job %s are not indexed: %s", record.job, fault)
        return []


def _could_read(store: RecordStore, principal: Principal | None, job: str) -> bool:
    """Whether a principal could read the record of a job that was deleted last."""
    deletion = store.deletion(job)
    return deletion is not None and principal is not None and may_use_record(principal, "read", deletion)


def entry_of(
    record: JobRecord,
    annotations: Sequence[Annotation],
    *,
    position: int,
    read_part: Callable[[str], bytes],
    feed: CheckedFeed,
) -> RecordEntry | None:
    """The entry of a record with the attributes that a feed wants; None if its query does not find it."""
    wanted = {each.attribute for clause in feed.query.clauses for each in clause}
    named = {*feed.attributes.queryable, *wanted}
    reads_log = not named.isdisjoint(_OF_LIFE_LOGS) or any(name.startswith("custom.") for name in named)
    facts = facts_of(record, read_part) if reads_log else LifeLogFacts()
    both = record.tags.keys() & {each.name for each in annotations if each.text is not None}
    tagged_at = _tag_times(record, both, read_part) if both else {}
    values = attributes_of(record, annotations, facts, tagged_at)
    if not matches(feed.query, values):
        return None
    return RecordEntry(
        job=record.job,
        position=position,
        revision=record.revision,
        owner=record.owner,
        access=record.access,
        name=record.name,
        state=record.state,
        submitted_at=record.submitted_at,
        values={name: found for name, found in values.items() if feed.attributes.keeps(name)},
    )


def _tag_times(record: JobRecord, names: Collection[str], read_part: Callable[[str], bytes]) -> dict[str, float]:
    """The times of tags; none where the life log is damaged: then annotations count."""
    try:
        return tag_times(record, names, read_part)
    except DamagedPart as fault:
        log.warning("times of tags of job %s are not known: %s", record.job, fault)
        return {}


class _Tagging(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    package: str | None = None
    data: dict[str, Any] = {}


class _TagLine(msgspec.Struct, frozen=True, kw_only=True):
    event: _Tagging
    received: float = 0.0


_tag_line = msgspec.json.Decoder(_TagLine).decode


def tag_times(record: JobRecord, names: Collection[str], read_part: Callable[[str], bytes]) -> dict[str, float]:
    """When the service heard of the present values of tags; those that came with the job are left out."""
    found: dict[str, float] = {}
    for part in record.parts:
        if part.kind == "life-log":
            for line in read_part(part.sha256).splitlines():
                if b'"type":"Tagged"' not in line:
                    continue
                tagged = _tag_line(line)
                name, value = str(tagged.event.data.get("name")), tagged.event.data.get("value")
                if tagged.event.package is None and name in names and record.tags[name] == value:
                    found[name] = max(found.get(name, 0.0), tagged.received)
    return found


def facts_of(record: JobRecord, read_part: Callable[[str], bytes]) -> LifeLogFacts:
    """What the life log and the definition of a record say of its packages and files; nothing if they cannot be read."""
    # It expands the definition, and brings along numpy, which an idle service does without.
    from pilotage.provenance.history import history_of

    activities: set[str] = set()
    software: set[str] = set()
    exit_codes: set[str] = set()
    reasons: set[str] = set()
    script_values: set[tuple[str, str]] = set()
    files: dict[str, set[tuple[str, str]]] = {"consumed": set(), "produced": set()}
    packages = attempts = 0
    try:
        for package in history_of(record, read_part).packages():
            packages += 1
            attempts += len(package.attempts)
            activities.add(package.activity)
            for command in package.commands:
                software.update((command.software, command.software.partition("@")[0]))
            for attempt in package.attempts:
                exit_codes.add(attempt.exit_code or "")
                reasons.add(attempt.reason or "")
                script_values.update(result_values(result_object(attempt.custom) or {}))
            for file in package.files:
                files[file.direction].add((file.name, file.sha256 or ""))
    except PilotageError as fault:
        log.warning("files and attempts of job %s are not indexed: %s", record.job, fault)
        return LifeLogFacts()
    return LifeLogFacts(
        activities=tuple(activities),
        software=tuple(software),
        packages=packages,
        attempts=attempts,
        exit_codes=tuple(exit_codes),
        reasons=tuple(reasons),
        consumed=tuple(FileFact(name=name, sha256=sha256) for name, sha256 in files["consumed"]),
        produced=tuple(FileFact(name=name, sha256=sha256) for name, sha256 in files["produced"]),
        script_values=tuple(sorted(script_values)),
    )


class FeedSource(Protocol):
    """A storage that feeds an index: this computer's, or one over HTTP."""

    def batch(self, *, after: int) -> FeedBatch:
        """What changed after a position."""
        ...


class StoreSource:
    """A storage that is open here."""

    def __init__(self, store: RecordStore, feed: CheckedFeed, *, principal: Principal | None = None) -> None:
        """Take the storage, what the index wants, and for whom (None: everything)."""
        self._store = store
        self._feed = feed
        self._principal = principal

    def batch(self, *, after: int) -> FeedBatch:
        """What changed after a position."""
        return feed_batch(self._store, self._feed, principal=self._principal, after=after)


def bring_up_to_date(
    index: RecordIndex, storage: str, source: FeedSource, *, stopping: Callable[[], bool] = lambda: False
) -> int:
    """Feed an index with all that a storage has and it has not, and return how many entries came."""
    taken = 0
    while not stopping():
        batch = source.batch(after=index.position(storage))
        if batch.restart:
            log.warning("%s has less than was read of it: it is read again from its beginning", storage)
            index.forget(storage)
            continue
        for job in batch.damaged:
            log.warning("the record of job %s in %s is damaged, and is not in the index", job, storage)
        if batch.entries or batch.position != index.position(storage):
            index.take(storage, batch.entries, position=batch.position)
        taken += len(batch.entries)
        if batch.end:
            break
    return taken
