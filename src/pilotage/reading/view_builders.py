"""Turns rows of the book into the views that the API returns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from pilotage.book.fold.facts import read_tags, tags_of
from pilotage.book.rows.activities import read_activities
from pilotage.book.rows.derived_states import compound_state, settle
from pilotage.book.rows.forecasts import read_forecast
from pilotage.book.rows.rows import AttemptFacts, JobRow, NodeRow, PackageFacts, PilotRow, StageRow, StateHistogram
from pilotage.model.answers import EndForecast, PackageWords, StoppedActivity
from pilotage.model.events.payloads import AccessRule
from pilotage.model.jobs.layout import PackageId
from pilotage.model.states import FINAL_NAMES
from pilotage.model.texts import after_a_stop
from pilotage.ports import FoundEvent
from pilotage.reading.views import (
    AccessView,
    AttemptView,
    BinaryView,
    CountsView,
    EventView,
    FileView,
    JobView,
    LineView,
    NodeView,
    PackageView,
    PhaseView,
    PilotView,
    StageView,
)

_json = msgspec.json.decode
_access = msgspec.json.Decoder(tuple[AccessRule, ...])


def _counts(row: StateHistogram) -> CountsView:
    return CountsView(**{name: getattr(row, name) for name in CountsView.__struct_fields__})


def _total(row: StateHistogram) -> int:
    return sum(getattr(row, name) for name in CountsView.__struct_fields__)


def job_view(row: JobRow, *, base_url: str, targets: Iterable[str] = ()) -> JobView:
    """The view of a job; `base_url` ends with a slash."""
    return JobView(
        id=row.job,
        name=row.name,
        owner=row.owner,
        state=row.state,
        held=bool(row.held),
        failed=row.aborted,
        packages=_total(row),
        counts=_counts(row),
        epoch=row.epoch,
        place=row.place,
        stages=row.stages,
        late_stages=row.late,
        parent=row.parent,
        cause=row.cause,
        cleared_by=row.cleared_by,
        submitted_at=row.submitted_at,
        accepted_at=row.accepted_at,
        started_at=row.started_at,
        # The last end of any package so far; the end of the job only if nothing of it runs.
        finished_at=row.finished_at if row.state in FINAL_NAMES else None,
        cancelled_at=row.cancelled_at,
        aborted_at=row.aborted_at,
        cleared_at=row.cleared_at,
        purged_at=row.purged_at,
        entered_at=row.entered_at,
        updated_at=row.updated_at,
        tags=tags_of(read_tags(row.tags)),
        access=[AccessView(principal=rule.principal, rights=list(rule.rights)) for rule in _access.decode(row.access)],
        definition=row.definition,
        targets=list(targets),
        url=f"{base_url}v1/jobs/{row.job}",
        forecast=end_forecast(row),
        stopped=stopped_activities(row),
    )


def stopped_activities(row: JobRow) -> list[StoppedActivity]:
    """The activities of a job that are stopped, and how to go on."""
    return [
        StoppedActivity(
            activity=name,
            at=known.at,
            failed_attempts=known.failed_attempts,
            failed_packages=known.failed_packages,
            message=known.message,
            next_step=after_a_stop(row.job, name),
        )
        for name, known in read_activities(row.activities).items()
        if known.stopped
    ]


def end_forecast(row: JobRow) -> EndForecast | None:
    """The last forecast of an unfinished job."""
    known = read_forecast(row.forecast) if row.state not in FINAL_NAMES else None
    if known is None:
        return None
    made = known.made
    return EndForecast(
        made_at=known.made_at,
        median_at=made.median_at,
        low_at=made.low_at,
        high_at=made.high_at,
        mean_at=made.mean_at,
        packages=made.packages,
        basis=made.basis,
    )


def stage_view(row: StageRow, job: JobRow, *, left_out: Collection[int] = ()) -> StageView:
    """The view of a stage; `left_out` are the stages of its job that the targets do not need."""
    return StageView(
        job=job.job,
        stage=row.stage,
        state=compound_state(row, job=job, late=row.late),
        late=bool(row.late),
        left_out=row.stage in left_out,
        packages=_total(row),
        counts=_counts(row),
    )


def line_view(counts: StateHistogram, job: JobRow, *, stage: int, line: int) -> LineView:
    """The view of a line."""
    return LineView(
        job=job.job,
        stage=stage,
        line=line,
        state=compound_state(counts, job=job, late=0),
        packages=_total(counts),
        counts=_counts(counts),
    )


def package_view(
    facts: PackageFacts | None,
    job: JobRow,
    place: PackageId,
    *,
    activity: str,
    base_url: str,
    words: PackageWords | None = None,
    binaries: list[BinaryView] | None = None,
) -> PackageView:
    """The view of a package; without facts it has no events, and its state follows from its job."""
    has_events = facts is not None
    row = facts if facts is not None else unheard(job, activity)
    return PackageView(
        id=place.dotted,
        path=place.path(job.name),
        job=job.job,
        state=row.state,
        heard=has_events,
        epoch=row.epoch,
        activity=row.activity,
        held=bool(row.held),
        dropped=bool(row.dropped),
        conflict=bool(row.conflict),
        inferred=row.inferred.split(),
        site=row.site,
        node=row.node,
        attempt=row.attempt,
        attempts=len(row.attempts),
        exit_code=row.exit_code,
        exit_message=row.exit_message,
        reason=row.reason,
        cause=row.cause,
        cleared_by=row.cleared_by,
        ready_at=row.ready_at,
        scheduled_at=row.scheduled_at,
        running_at=row.running_at,
        done_at=row.done_at,
        aborted_at=row.aborted_at,
        cancelled_at=row.cancelled_at,
        cleared_at=row.cleared_at,
        entered_at=row.entered_at,
        updated_at=row.updated_at if has_events else None,
        tags=tags_of(row.tags),
        words=words,
        binaries=binaries,
        url=f"{base_url}v1/jobs/{job.job}/packages/{place.dotted}",
    )


def unheard(job: JobRow, activity: str) -> PackageFacts:
    """Facts for a package without events: its state follows from its job."""
    facts = PackageFacts(activity=activity)
    settle(facts, job)
    return facts


def attempt_views(facts: PackageFacts | None, events: Iterable[FoundEvent]) -> list[AttemptView]:
    """The views of all attempts, with phases and manifests from the events that its row refers to."""
    by_position = {found.row.position: _json(found.row.data, type=dict[str, Any]) for found in events}
    attempts = sorted(facts.attempts.items()) if facts is not None else []
    return [_attempt_view(number, attempt, by_position) for number, attempt in attempts]


def binary_views(ended: FoundEvent | None) -> list[BinaryView]:
    """The binaries of an attempt, from the event of its end; empty if it had only one."""
    payload = _json(ended.row.data, type=dict[str, Any]) if ended is not None else {}
    return msgspec.convert(payload.get("binaries", []), list[BinaryView])


def outcome_positions(facts: PackageFacts) -> frozenset[int]:
    """The positions of the events that contain phases and manifests."""
    return frozenset(
        position
        for attempt in facts.attempts.values()
        for position in (attempt.staged_position, attempt.finished_position)
        if position is not None
    )


def _attempt_view(number: int, row: AttemptFacts, events: Mapping[int, Mapping[str, Any]]) -> AttemptView:
    finished = events.get(row.finished_position or 0, {})
    staged = events.get(row.staged_position or 0, finished)
    shared = {name: getattr(row, name) for name in AttemptView.__struct_fields__ if hasattr(row, name)}
    return AttemptView(
        **shared,
        attempt=number,
        granted=row.granted_at is not None,
        phases=msgspec.convert(finished.get("phases", []), list[PhaseView]),
        binaries=msgspec.convert(finished.get("binaries", []), list[BinaryView]),
        manifest=msgspec.convert(staged.get("manifest") or [], list[FileView]),
        container_digest=finished.get("container_digest"),
        custom=_json(finished["custom"]) if "custom" in finished else None,
        custom_fault=finished.get("custom_fault", ""),
        cores=msgspec.convert(finished.get("cores", []), list[FileView]),
    )


def event_view(found: FoundEvent) -> EventView:
    """The view of a stored event."""
    row = found.row
    return EventView(
        position=row.position,
        received=row.received,
        skewed=bool(row.skewed),
        source=found.source,
        stream=found.stream,
        n=row.n,
        type=row.type,
        version=row.version,
        time=row.time,
        epoch=row.epoch,
        seen=row.seen,
        job=found.job,
        package=PackageId(row.stage, row.line, row.number).dotted if row.stage else None,
        attempt=row.attempt or None,
        pilot=row.pilot,
        site=row.site,
        data=_json(row.data),
    )


def pilot_view(row: PilotRow) -> PilotView:
    """The view of a pilot."""
    return PilotView(**{name: getattr(row, name) for name in PilotView.__struct_fields__})


def node_view(row: NodeRow) -> NodeView:
    """The view of a node."""
    plain = {name: getattr(row, name) for name in NodeView.__struct_fields__}
    return NodeView(**{**plain, "software": _json(row.software), "environment": _json(row.environment)})
