"""One batch of events joined with what the book knows: load what they touch, set registers, settle, write each row once.

The order within a batch does not matter, nor how events are cut into batches, except to positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from pilotage.book import facts, tally
from pilotage.book.codec import Checked, Codec, Refusal
from pilotage.book.handlers import (
    ATTEMPT_HANDLERS,
    JOB_EPOCH_HANDLERS,
    JOB_HANDLERS,
    PACKAGE_HANDLERS,
    STANDING_HANDLERS,
)
from pilotage.book.intake import Intake
from pilotage.book.ledger import Changes, Ledger, PackageKey
from pilotage.book.rows import (
    AttemptFacts,
    JobRow,
    Keys,
    NodeRow,
    PackageFacts,
    PackageRow,
    PilotRow,
    SiteRow,
    StoredKey,
    TagRow,
    keys_of,
    packed,
)
from pilotage.book.settle import settle, settle_job
from pilotage.book.statistics import Observations, observe_job, observe_now
from pilotage.book.working import PackageWork, Working
from pilotage.model import payloads
from pilotage.model.events import SOURCE_RANKS, Event

_encode = msgspec.json.Encoder().encode

SKEW_SECONDS = 300.0
"""An event further than this ahead of the clock that received it is flagged, unless a setting says otherwise."""

_ENDS = (payloads.CancelAccepted, payloads.Aborted)
_STARTS = (
    payloads.AttemptStarted,
    payloads.AttemptSuspected,
    payloads.PhaseEntered,
    payloads.OutputsStaged,
    payloads.AttemptFinished,
    payloads.CommitGranted,
)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch. Everything that is not refused is kept."""

    position: int
    kept: int
    repeated: int
    parked: int
    refused: list[Refusal]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A package or a job that a batch moved, for those who want to be told: what it was, and its rows now."""

    job: JobRow
    package: PackageRow | None
    state_before: str | None


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """The rows to write, the receipt to give once they are durable, and what moved."""

    changes: Changes
    receipt: Receipt
    moved: Callable[[], Iterator[Change]]


def join(
    ledger: Ledger, checked: Sequence[Checked], *, received: float, codec: Codec, skew_seconds: float = SKEW_SECONDS
) -> Joined:
    """Join a batch with the book; the ledger is read, nothing is written yet."""
    return Join(ledger, checked, received=received, codec=codec, skew_seconds=skew_seconds).result()


class Join:
    """One batch on its way into the book."""

    def __init__(
        self, ledger: Ledger, checked: Sequence[Checked], *, received: float, codec: Codec, skew_seconds: float
    ) -> None:
        """Sort the batch and load what it touches."""
        self._skew_seconds = skew_seconds
        self._ledger = ledger
        self._received = received
        self._intake = Intake(ledger, checked, received=received, codec=codec)
        self._jobs = self._intake.jobs
        self._job_keys: dict[int, Keys] = {row.job_id: keys_of(row) for row in self._jobs.values()}
        new = set(self._intake.unparked)
        self._jobs_before = {
            row.job_id: (row.state, _standing_facts(row)) for row in self._jobs.values() if row.job not in new
        }
        self._touched_jobs = {one.event.job for one, _, _, _ in self._intake.fresh if one.event.job is not None}
        self._reshaped: set[tuple[int, int]] = set()
        self._tags: dict[tuple[int, int, int, int, str], TagRow] = {}
        self._changes = Changes(received=received)
        self._position = ledger.position()
        self._told_jobs: set[int] = set()
        self._job_tags: dict[int, dict[str, tuple[str, StoredKey]]] = {}
        self._moves: dict[tuple[tuple[int, int], tally.Standing | None, tally.Standing | None], int] = {}
        self._working = Working(ledger, self._jobs)
        self._pilots: dict[str, tuple[PilotRow, Keys]] = {}
        self._nodes: dict[str, tuple[NodeRow, Keys]] = {}
        self._sites: dict[str, tuple[SiteRow, Keys]] = {}
        self._load()

    def _load(self) -> None:
        fresh = self._intake.fresh
        packages = {key for _, _, _, key in fresh if key is not None}
        others = [one for one, _, _, key in fresh if key is None or one.event.type == "NodeDescribed"]
        pilots = {one.event.pilot for one in others if one.event.pilot is not None}
        sites = {one.event.site for one in others if one.event.site is not None}
        nodes = {one.data.node for one in others if isinstance(one.data, payloads.NodeDescribed)}
        self._working.load_packages(packages)
        if pilots:
            self._pilots = {row.pilot: (row, keys_of(row)) for row in self._ledger.pilots(pilots)}
        if sites:
            self._sites = {row.site: (row, keys_of(row)) for row in self._ledger.sites(sites)}
        if nodes:
            self._nodes = {row.node: (row, keys_of(row)) for row in self._ledger.nodes(nodes)}

    def result(self) -> Joined:
        """Join every event and settle what they touched."""
        self._join_all()
        self._settle()
        intake, changes = self._intake, self._changes
        changes.streams = intake.streams
        changes.parked = intake.parked
        changes.unparked = intake.unparked
        changes.tags = list(self._tags.values())
        changes.pilots = [_with_keys(row, keys) for row, keys in self._pilots.values()]
        changes.nodes = [_with_keys(row, keys) for row, keys in self._nodes.values()]
        changes.sites = [_with_keys(row, keys) for row, keys in self._sites.values()]
        receipt = Receipt(
            position=self._position,
            kept=len(intake.fresh),
            repeated=intake.repeated,
            parked=intake.parked_now,
            refused=intake.refused,
        )
        return Joined(changes=changes, receipt=receipt, moved=self._moved_ones)

    def _join_all(self) -> None:
        """Every event, once: stored, and its facts added. This runs for each event there is, so it is written flat."""
        jobs, packages, store = self._jobs, self._working.packages, self._changes.events.append
        position, skew = self._position, self._skew_seconds
        for one, stream_id, received, package in self._intake.fresh:
            event, data = one.event, one.data
            position += 1
            job = jobs[event.job] if event.job is not None else None
            job_id: int | None
            if package is not None:
                job_id, stage, line, number = package
            else:
                job_id, stage, line, number = (job.job_id if job is not None else None), 0, 0, 0
            time = event.time
            skewed = 1 if time > received + skew else 0
            store((
                # in the order of the columns of EventRow
                position, stream_id, event.n, event.type, event.version, time, received, skewed, event.epoch, event.seen,
                job_id, stage, line, number, event.attempt or 0, event.pilot, event.site, str(event.data, "utf-8"),
            ))  # fmt: skip
            key = (event.epoch, event.seen, SOURCE_RANKS[event.source], event.n, event.stream)
            if job is None:
                self._on_other(one.kind, event, data, key)
                continue
            if time > job.updated_at:
                job.updated_at = time
            if package is None:
                self._on_job(event, data, key, job)
                continue
            row = packages[package].facts
            if time > row.updated_at:
                row.updated_at = time
            row.positions.append(position)
            handler = ATTEMPT_HANDLERS.get(type(data))
            if handler is None or event.attempt is None:
                self._on_package(event, data, key, job, package, row)
                continue
            attempt = row.attempts.get(event.attempt)
            if attempt is None:
                attempt = row.attempts[event.attempt] = AttemptFacts(epoch=event.epoch)
            if event.epoch == attempt.epoch or self._in_epoch(row, attempt, event):
                handler(row.attempts[event.attempt], key, event, data, position)
            if event.epoch != row.epoch:
                facts.open_epoch(row, event.epoch)
            if job.started_at is None or time < job.started_at or type(data) is payloads.CommitGranted:
                _job_times(job, event, data)
        self._position = position

    def _in_epoch(self, row: PackageFacts, attempt: AttemptFacts, event: Event) -> bool:
        """Whether an event speaks of an attempt's own epoch; a number that was used in a lower one begins anew."""
        attempt.reused = 1
        if event.epoch < attempt.epoch:
            return False
        assert event.attempt is not None
        row.attempts[event.attempt] = AttemptFacts(epoch=event.epoch, reused=1)
        return True

    def _on_other(self, kind: str, event: Event, data: payloads.Payload, key: StoredKey) -> None:
        if kind == "pilot":
            self._on_pilot(event, key, data)
        elif kind == "site":
            self._on_site(event, key, data)
        if isinstance(data, payloads.NodeDescribed):
            self._on_node(event, key, data)

    def _on_node(self, event: Event, key: StoredKey, data: payloads.NodeDescribed) -> None:
        row, keys = self._nodes.setdefault(data.node, (NodeRow(node=data.node), {}))
        row.updated_at = max(row.updated_at, event.time)
        facts.on_node_described(row, keys, key, event, data)

    def _on_package(
        self, event: Event, data: payloads.Payload, key: StoredKey, job: JobRow, package: PackageKey, row: PackageFacts
    ) -> None:
        kind = type(data)
        if (handler := PACKAGE_HANDLERS.get(kind)) is not None:
            if facts.open_epoch(row, event.epoch):
                handler(row, key, event, data)
            if kind in _ENDS:
                job.finished_at = event.time if job.finished_at is None else max(job.finished_at, event.time)
        elif (handler := STANDING_HANDLERS.get(kind)) is not None:
            handler(row, key, event, data)
        elif isinstance(data, payloads.Tagged):
            if facts.on_tagged(row.tags, key, data.name, data.value):
                self._tag(package, data.name, data.value)
        elif isinstance(data, payloads.NodeDescribed):
            self._on_node(event, key, data)

    def _on_job(self, event: Event, data: payloads.Payload, key: StoredKey, job: JobRow) -> None:
        keys = self._job_keys.setdefault(job.job_id, {})
        self._told_jobs.add(job.job_id)
        kind = type(data)
        if (handler := JOB_EPOCH_HANDLERS.get(kind)) is not None:
            if facts.open_job_epoch(job, keys, event.epoch):
                handler(job, keys, key, event, data)
        elif (handler := JOB_HANDLERS.get(kind)) is not None:
            handler(job, keys, key, event, data)
        if isinstance(data, payloads.Tagged):
            self._tag_job(job, key, data.name, data.value)
        elif isinstance(data, payloads.JobRegistered):
            for name, value in data.tags.items():
                self._tag_job(job, key, name, value)
            self._working.load_stages({(job.job_id, stage) for stage in range(1, len(data.stages) + 1)})
            job.stages = max(job.stages, len(data.stages))
            for stage, shape in enumerate(data.stages, 1):
                self._reshape(job, stage, shape, key)
        elif isinstance(data, payloads.StageExpanded):
            self._working.load_stages({(job.job_id, data.stage)})
            job.stages = max(job.stages, data.stage)
            self._reshape(job, data.stage, data.shape, key)

    def _reshape(self, job: JobRow, stage: int, shape: payloads.StageShape, key: StoredKey) -> None:
        work = self._working.stages[job.job_id, stage]
        if facts.takes(work.keys, facts.Register.SHAPE, key):
            work.expect(_encode(shape).decode())
            self._reshaped.add((job.job_id, stage))

    def _tag_job(self, job: JobRow, key: StoredKey, name: str, value: str) -> None:
        tags = self._job_tags.get(job.job_id)
        if tags is None:
            tags = self._job_tags[job.job_id] = facts.read_tags(job.tags)
        if facts.on_tagged(tags, key, name, value):
            self._tag((job.job_id, 0, 0, 0), name, value)

    def _tag(self, package: PackageKey, name: str, value: str) -> None:
        self._tags[*package, name] = TagRow(*package, name, value)

    def _on_pilot(self, event: Event, key: StoredKey, data: payloads.Payload) -> None:
        assert event.pilot is not None
        row, keys = self._pilots.setdefault(event.pilot, (PilotRow(pilot=event.pilot), {}))
        row.updated_at = max(row.updated_at, event.time)
        facts.on_pilot(row, keys, key, event, data)

    def _on_site(self, event: Event, key: StoredKey, data: payloads.Payload) -> None:
        assert event.site is not None
        row, keys = self._sites.setdefault(event.site, (SiteRow(site=event.site), {}))
        row.updated_at = max(row.updated_at, event.time)
        if isinstance(data, payloads.SiteDescribed):
            facts.on_site_described(row, keys, key, event, data)

    def _settle(self) -> None:
        self._reach_further()
        observations = Observations()
        for key, work in self._working.packages.items():
            self._settle_package(key, work, observations)
        for (place, before, after), count in self._moves.items():
            if before is not None:
                self._working.stages[place].count(before, -count)
            if after is not None:
                self._working.stages[place].count(after, count)
        for stage in self._working.stages.values():
            stage.close()
            if stage.is_rumour:
                continue
            stage.row.keys = packed(stage.keys)
            self._changes.stages.append(stage.row)
        for name in sorted(self._touched_jobs):
            job = self._jobs[name]
            settle_job(job)
            if (tags := self._job_tags.get(job.job_id)) is not None:
                job.tags = _encode(dict(sorted(tags.items()))).decode()
            job.heard_at = max(job.heard_at, self._received)
            job.keys = packed(self._job_keys.get(job.job_id, {}))
            self._changes.jobs.append(job)
        for name in self._touched_jobs:
            job = self._jobs[name]
            known = self._jobs_before.get(job.job_id)
            shapes = (stage.shape for stage in self._working.stages.values() if stage.job is job)
            observe_job(observations, job, before=known[1] if known is not None else (None, None), shapes=shapes)
        self._changes.statistics = observations.rows(self._ledger, now=self._received)

    def _moved_ones(self) -> Iterator[Change]:
        """What moved, made only as far as somebody asks."""
        told = {key for _, _, _, key in self._intake.fresh if key is not None}
        for key, work in self._working.packages.items():
            before = work.before[0] if work.before is not None else None
            if key in told or before != work.facts.state:
                yield Change(job=work.job, package=work.row, state_before=before)
        for name in sorted(self._touched_jobs):
            job = self._jobs[name]
            known = self._jobs_before.get(job.job_id)
            if known is None or known[0] != job.state or job.job_id in self._told_jobs:
                yield Change(job=job, package=None, state_before=known[0] if known is not None else None)

    def _reach_further(self) -> None:
        """Rows that no event is about, but whose state follows from what was said about their job or stage."""
        for name in self._touched_jobs:
            job = self._jobs[name]
            before = self._jobs_before.get(job.job_id)
            if before is not None and before[1] != _standing_facts(job):
                self._working.load_stages_of(job.job_id)
                self._working.load_rows(self._ledger.idle_packages(job.job_id))
        for job_id, stage in self._reshaped:
            self._working.load_rows(self._ledger.packages_of(job_id, stage=stage))

    def _settle_package(self, key: PackageKey, work: PackageWork, observations: Observations) -> None:
        row, job = work.facts, work.job
        stage = self._working.stages[key[0], key[1]]
        if work.new or not row.shaped or key[:2] in self._reshaped:
            activity = stage.shape.activity(key[2], key[3]) if stage.row.expected else None
            row.shaped = int(activity is not None)
            row.activity = activity if activity is not None else row.registered_activity
        settle(row, job)
        after = tally.standing(row)
        if after != work.before:
            moves = (key[:2], work.before, after)
            self._moves[moves] = self._moves.get(moves, 0) + 1
        if row.shaped != work.shaped_before:
            stage.touch(row.shaped - work.shaped_before)
        seen = observe_now(row, job)
        if seen != work.observed:
            observations.observe_all(before=work.observed, after=seen)
        work.row.counted, work.row.observed = after, seen
        self._changes.packages.append(work.row)


def _job_times(job: JobRow, event: Event, data: payloads.Payload) -> None:
    """When the job first ran and last ended, as far as this event tells: a minimum and a maximum, whatever the order."""
    runs = isinstance(data, _STARTS) or (isinstance(data, payloads.AttemptCreated) and data.lease_seconds is not None)
    if runs and (job.started_at is None or event.time < job.started_at):
        job.started_at = event.time
    if isinstance(data, payloads.CommitGranted) and (job.finished_at is None or event.time > job.finished_at):
        job.finished_at = event.time


def _standing_facts(job: JobRow) -> tuple[float | str | None, ...]:
    """The facts of a job that packages without any of their own take their state from."""
    return job.submitted_at, job.accepted_at, job.cancelled_at, job.aborted_at, job.cause, job.cause_message, job.epoch


def _with_keys(row: Any, keys: Keys) -> Any:
    row.keys = packed(keys)
    return row
