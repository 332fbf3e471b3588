"""Restores an engine from the rows of the book.

What the rows do not contain starts afresh: reservations, queues, delays, and leases, each with its full term.
All decisions stand; a decision whose effect was not confirmed is carried out again.

How long a job was held is in no row either; the few events about the job itself tell it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from pilotage.book.fold.finals import FinalPackage
from pilotage.book.rows.forecasts import read_forecast
from pilotage.book.rows.healing import read_healing
from pilotage.book.rows.registers import Register
from pilotage.book.rows.rows import (
    AttemptFacts,
    CachedFileRow,
    EventRow,
    JobRow,
    PackageFacts,
    PackageRow,
    PilotRow,
    SiteRow,
    StreamRow,
    keys_of,
)
from pilotage.book.rows.streams import highest_of
from pilotage.engine.decision_log import ENGINE_STREAM
from pilotage.engine.decisions.attempts import submit
from pilotage.engine.decisions.completion import judge
from pilotage.engine.decisions.job_lifecycle import retire_cleared_jobs
from pilotage.engine.decisions.provisioning import submit_pilot
from pilotage.engine.decisions.site_status import REMOVED_REASON, add_unmanaged, drain_unmanaged
from pilotage.engine.engine import Engine
from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.restoring import fetch_again, restore_files
from pilotage.engine.folds.on_attempts import demand_of, new_attempt, ties_in
from pilotage.engine.folds.on_jobs import check_job_end
from pilotage.engine.past_activities import count_final, count_unfinished, restore_activities, resume_stops
from pilotage.engine.past_pilots import EndedPilots, ended_pilots
from pilotage.engine.retry.policy import UNHEARD, failure_of
from pilotage.engine.state.clock import Due
from pilotage.engine.state.job_queries import is_over
from pilotage.engine.state.jobs import ActivePackage, JobState, PackageStatus, QueueClass, template_of
from pilotage.engine.state.sites import AttemptState, PilotRequest, PilotState
from pilotage.engine.transitions.file_needs import add_job
from pilotage.engine.transitions.forecast_timers import schedule_forecast
from pilotage.engine.transitions.occupancy import add_abandoned, expect_report, take_slot
from pilotage.engine.transitions.readiness import lay_out, move
from pilotage.engine.transitions.site_observations import (
    decode_learned,
    is_test_pilot,
    resume_phase,
    schedule_latency_record,
    watch_queue,
)
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.settings.engine import EngineSettings, SelectionSettings
from pilotage.model.site import Site
from pilotage.model.states import ExitCodeGasw

# How long a job was held, from the events of the book: that time never counts as waiting time.


class _HoldMessage(msgspec.Struct, frozen=True):
    message: str = ""


_hold_decoder = msgspec.json.Decoder(_HoldMessage)


class Hold(msgspec.Struct, frozen=True):
    """A job was held, or released, at a wall-clock time."""

    at: float
    held: bool
    why: str = ""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Total time a job was held until its last release, the time of that release, and since when it is held again, if it is."""

    seconds: float = 0.0
    released_at: float | None = None
    since: float | None = None
    why: str = ""  # the latest reason


def holds_in(job: JobRow, own_events: Callable[[JobRow], Iterable[EventRow]]) -> tuple[Hold, ...]:
    """When a job was held and released, from its own events; no events are read for a job that never was."""
    if Register.HOLD not in keys_of(job):
        return ()
    rows = [row for row in own_events(job) if row.type in ("Held", "Released")]
    return tuple(Hold(row.time, row.type == "Held", _hold_decoder.decode(row.data).message) for row in rows)


def held_time(holds: Sequence[Hold], *, after: float) -> Held:
    """The hold times of a job after a given time."""
    seconds, released_at, since, why = 0.0, None, None, ""
    for hold in holds:
        why = hold.why
        if hold.held:
            since = hold.at if since is None else since
        else:
            released_at = hold.at
            if since is not None:
                seconds += max(0.0, hold.at - max(since, after))
            since = None
    return Held(seconds=seconds, released_at=released_at, since=since, why=why)


# Since when packages are ready, from the book: a limit on waiting time also counts the time before a restart.
#
# The book does not record when a package became ready, but what had to happen first: its job was accepted or reopened,
# its producers were granted, it was released, its last attempt ended. The latest of these is the time. A cause without a
# recorded time (a drop) counts as just now: the package gets its full term again, so none is given up too early. No event
# says whether a package was reserved meanwhile; it is ready again after a restart, and has the length of a lease to be
# reserved as before.


def ready_after(facts: PackageFacts, now: float) -> float:
    """Earliest time at which an unfinished package was ready, as far as its own facts show."""
    was_held = Register.HOLD in facts.keys
    if facts.dropped or facts.held or Register.DROP in facts.keys or (was_held and facts.hold_set_at is None):
        return now
    times = [facts.opened_at, facts.hold_set_at]
    for attempt in facts.attempts.values():
        times += [attempt.created_at, attempt.finished_at, attempt.lost_at, attempt.suspected_at]
    return max((time for time in times if time is not None), default=0.0)


def restore_waiting_times(
    state: EngineState, job: JobState, row: JobRow, *, done_at: Mapping[int, float], own: Mapping[int, float]
) -> None:
    """Continue the waiting times of ready packages; `done_at` and `own` hold known times by package."""
    limit = state.settings.waiting_seconds_max
    now = state.clock.now
    if not limit or not job.accepted:
        return
    new_attempt = now if job.held else max(row.accepted_at or 0.0, row.opened_at or 0.0, job.released_at)
    # Late stages were expanded after their producers were done, and other packages may have waited for that.
    new_attempt = max(
        new_attempt, _latest(job, (number for late in job.plan.laid_out for number in late.packages), done_at, now)
    )
    for queue in job.classes.values():
        since = {
            number: min(now, max(new_attempt, own.get(number, 0.0), _latest(job, job.awaited(number), done_at, now)))
            for number in queue.queue
        }
        since |= {
            number: now for number in job.finals if number in since
        }  # the end of the other packages is not recorded
        _refill(queue, since)
        if since:
            queue.watched = True
            first = max(now + state.settings.lease_seconds, min(since.values()) + limit)
            state.clock.timers.at(first, Due.WAITING, job.id, queue.index)


def _latest(job: JobState, numbers: Iterable[int], done_at: Mapping[int, float], now: float) -> float:
    """When the last of some packages was granted; now, if one was dropped."""
    return max((done_at.get(number, now) if job.satisfied[number] else now for number in numbers), default=0.0)


def _refill(queue: QueueClass, since: Mapping[int, float]) -> None:
    """Refill a queue, the package that was ready first in front."""
    queue.queue.clear()
    for number in sorted(since, key=lambda number: (since[number], number)):
        queue.queue.push(number, since[number])
        queue.job.ready_since[number] = since[number]


OBSERVED_MAX = 1000
"""How many queue times of earlier runs count: the latest."""


class JobSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the book: its row, its plan, and its packages, finished or not."""

    row: JobRow
    plan: JobPlan
    finals: Iterable[FinalPackage]
    unfinished: Iterable[PackageRow]
    holds: Sequence[Hold] = ()  # when it was held and released


def next_number(streams: Iterable[StreamRow]) -> int:
    """The number of the next decision: above all numbers of an engine's stream, including those of imported jobs.

    The stream of decisions may have gaps: an imported job brings its own numbers, and not the others.
    """
    own = (highest_of(row) for row in streams if row.source == "service" and is_of_engine(row.stream))
    return max(own, default=0) + 1


def is_of_engine(stream: str) -> bool:
    """Whether a stream holds decisions of an engine: the one of this book, or one whose jobs were imported under another name."""
    return stream == ENGINE_STREAM or stream.startswith(f"{ENGINE_STREAM}@")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine starts from."""

    jobs: Sequence[JobSnapshot] = ()
    pilots: Iterable[PilotRow] = ()
    sites: Iterable[SiteRow] = ()
    cached_files: Iterable[CachedFileRow] = ()
    incidents: str = ""  # the history of incidents, as last recorded
    next_n: int = 1  # of the stream of decisions
    position: int = 0


def restore(snapshot: Snapshot, *, sites: Sequence[Site], settings: EngineSettings, now: float) -> Engine:
    """The engine as the events behind these rows have made it."""
    pilots = list(snapshot.pilots)
    rows = list(snapshot.sites)
    observed = observed_queue_seconds(rows, pilots, settings.selection)
    engine = Engine(sites=sites, settings=settings, now=now, observed_queue_seconds=observed)
    state = engine.state
    state.log.next_number = snapshot.next_n
    state.log.book_position = state.log.start_position = snapshot.position
    _restore_site_records(state, rows)
    restore_files(state, snapshot.cached_files)
    if snapshot.incidents:
        state.healing.restore(snapshot.incidents)
    _restore_pilots(state, pilots)
    _restore_latencies(state, rows, pilots)
    gone = ended_pilots(pilots)
    for each in snapshot.jobs:
        _restore_job(state, each, gone)
    drain_unmanaged(state, rows)
    retire_cleared_jobs(state)
    fetch_again(state)
    return engine


def observed_queue_seconds(
    sites: Iterable[SiteRow], pilots: Sequence[PilotRow], settings: SelectionSettings
) -> list[float]:
    """Queue times of the latest pilots, and of attempts at bound sites, from the book.

    Removed sites count, too: the initial throttle is about queues in general (swift-site-selection, switching condition
    1b). This computer has no queue. Too few values say nothing; and no site is left for less than the margin.
    """
    rows = [row for row in sites if row.kind != "local"]
    requested = {row.pilot: row.requested_at for row in pilots if row.requested_at is not None}
    found: dict[str, list[tuple[float, float]]] = {row.site: [] for row in rows}
    for row in pilots:
        asked_at, waits = requested.get(row.request or ""), found.get(row.site or "")
        if waits is not None and row.started_at is not None and asked_at is not None:
            waits.append((row.started_at, row.started_at - asked_at))
    for site in rows:
        if not found[site.site] and (learned := decode_learned(site.learned) if site.learned else None) is not None:
            found[site.site] += [(site.updated_at, each / 1e6) for each in learned.waits]
    latest = heapq.nlargest(OBSERVED_MAX, (each for waits in found.values() for each in waits))
    if len(latest) < settings.queue_time_samples_min:
        return []
    return [max(seconds, settings.queue_time_margin_seconds) for _, seconds in latest]


def _restore_site_records(state: EngineState, rows: Iterable[SiteRow]) -> None:
    """Restore what was last recorded of each site."""
    for row in rows:
        site = state.sites.by_name.get(row.site)
        if site is None:
            continue
        site.described = row.kind == site.site.kind and row.status != "removed"
        site.status = row.status if row.status in ("candidate", "hibernated") else "candidate"
        learned = decode_learned(row.learned) if row.learned else None
        if learned is not None and learned.site == site.name:
            state.selection.restore(msgspec.structs.replace(learned, placed=0))  # active attempts are counted again


def _restore_latencies(state: EngineState, rows: Iterable[SiteRow], pilots: Iterable[PilotRow]) -> None:
    """Restore the latencies last recorded of each site, and add the pilots after the record."""
    for row in rows:
        state.latencies.restore(row.site, row.latencies)
    by_site: dict[str, list[PilotRow]] = {}
    for pilot in pilots:
        by_site.setdefault(pilot.site or "", []).append(pilot)
    for name, known in by_site.items():
        site = state.sites.by_name.get(name)
        if name and state.latencies.restore_pilots(name, site.site if site is not None else None, known):
            schedule_latency_record(state, name)


def _restore_pilots(state: EngineState, rows: list[PilotRow]) -> None:
    answered = {(row.request, row.site) for row in rows if row.started_at is not None}
    # A request that was written off with its site says nothing of the pilot that it started.
    over = {
        row.pilot: row.reason or "ended" for row in rows if row.ended_at is not None and row.reason != REMOVED_REASON
    }
    for row in rows:
        if not row.site or row.ended_at is not None:
            continue
        site = state.sites.by_name.get(row.site) or add_unmanaged(state, row.site)
        if row.started_at is not None:
            pilot = PilotState(row.pilot, site, request=row.request or "", heard_at=state.clock.now)
            state.pilots.by_name[row.pilot] = pilot
            site.add_pilot(pilot)
            pilot.gone = over.get(pilot.request, "")  # its batch system no longer lists it
            pilot.node = row.node or ""
            pilot.taken_over = True
            if is_test_pilot(pilot.request, site=site.name):
                pilot.draining = "probe finished: the pilot started"
            elif site.profile.pilots.is_due(row.pilot):
                pilot.draining = "attempts in a row failed there because of the platform"
            state.clock.timers.at(state.clock.now + state.settings.lease_seconds, Due.LEASE, row.pilot)
        elif row.requested_at is not None:
            request = PilotRequest(row.pilot, site)
            state.pilots.requests[row.pilot] = site.requests[row.pilot] = request
            request.native_id = row.native_id or ""
            request.contacted = (row.pilot, row.site) in answered
            request.requested_at, request.submitted_at = row.requested_at, row.submitted_at
            site.expected += not request.contacted
            if request.contacted or site in state.sites.unmanaged:
                continue
            watch_queue(state, row.pilot, row.requested_at)
            if is_test_pilot(row.pilot, site=site.name):
                left = row.requested_at + state.settings.probe_timeout_seconds - state.clock.wall_time
                state.clock.timers.at(state.clock.now + max(0.0, left), Due.PROBE, row.pilot)
            if not request.native_id:
                submit_pilot(state, site, row.pilot)


def restore_job(state: EngineState, snapshot: JobSnapshot, *, gone: EndedPilots) -> None:
    """Restore a job that the engine does not know."""
    _restore_job(state, snapshot, gone)
    drain_unmanaged(state)


def _restore_job(state: EngineState, snapshot: JobSnapshot, gone: EndedPilots) -> None:
    row = snapshot.row
    came = max(row.submitted_at or 0.0, row.opened_at or 0.0)
    behind = state.clock.wall_time - state.clock.now
    held = held_time(snapshot.holds, after=came)
    since = min(state.clock.now, came - behind + held.seconds)
    job = JobState(row.job, owner=row.owner, plan=snapshot.plan, order=state.jobs.next_order(), since=since)
    state.jobs.by_id[job.id] = job
    add_job(state, job)
    state.jobs.retired.pop(job.id, None)
    job.epoch = row.epoch
    job.held = bool(row.held)
    job.held_why = held.why if job.held else ""
    job.held_since = min(state.clock.now, held.since - behind) if held.since is not None else since
    job.released_at = min(state.clock.now, held.released_at - behind) if held.released_at is not None else 0.0
    job.cancelled = row.cancelled_at is not None
    job.aborted = row.aborted_at is not None
    job.cleared = row.cleared_at is not None
    job.drop_revision = state.log.next_number - 1  # no operation was later
    _restore_healing(state, row)
    restore_activities(job, row)
    limited = state.settings.waiting_seconds_max > 0
    done_at: dict[int, float] = {}
    own: dict[int, float] = {}
    for final in snapshot.finals:
        number = _restore_final(state, job, final, gone)
        count_final(job, number, final)
        if limited and number is not None and final.granted:
            done_at[number] = final.done_at
    for package in snapshot.unfinished:
        number = job.number((package.stage, package.line, package.number))
        if number is not None:
            _restore_package(state, job, number, package.facts, gone)
            count_unfinished(job, number, package.facts)
            if limited:
                own[number] = ready_after(package.facts, state.clock.now)
    if row.accepted_at is not None:
        job.accepted = True
        lay_out(state, job)
        _restore_forecast(state, job, row)
        restore_waiting_times(state, job, row, done_at=done_at, own=own)
    if job.cleared or job.cleared_packages:
        state.jobs.retirable[job] = None
    for number in range(job.count) if any(job.counts[PackageStatus.ABORTED :]) else ():
        if job.is_dead(number):
            state.pending.to_abort_consumers.append((job, number))
            if job.feeds_late[number]:
                job.failed_producers.add(number)
    if job.special:
        check_job_end(state, job)
    resume_stops(state, job)


def _restore_healing(state: EngineState, row: JobRow) -> None:
    """Continue from what healing last recorded of a job."""
    if state.healing.enabled and (known := read_healing(row.healing)) is not None:
        state.healing.of(row.job).restore(known.learned)


def _restore_forecast(state: EngineState, job: JobState, row: JobRow) -> None:
    """Restore the last forecast of a job, with the run times it was made from."""
    forecast = job.forecast = read_forecast(row.forecast)
    if forecast is not None:
        job.forecast_at = min(state.clock.now, forecast.made_at - (state.clock.wall_time - state.clock.now))
        job.run_times.restore(forecast.made.run_times)
        state.pending.to_score[job] = None  # it may have ended in the same moment
    if not is_over(job):
        schedule_forecast(state, job)


def _restore_final(state: EngineState, job: JobState, final: FinalPackage, gone: EndedPilots) -> int | None:
    number = job.number((final.stage, final.line, final.number))
    if number is None:
        return None
    job.last_attempt[number] = final.last_attempt
    if final.epoch > 1:
        job.epochs[number] = final.epoch
    if final.dropped:
        job.work_of(number).dropped = final.dropped
        job.satisfied[number] = 1
    if final.granted:
        job.granted[number] = final.granted
        job.satisfied[number] = 1
        if job.disposed:
            job.disposed[number] = final.disposed
        status = PackageStatus.DONE
    elif final.cause == "upstream":
        status = PackageStatus.UPSTREAM
    elif final.state == "ABORTED" or (final.state == "CLEARED" and final.cause is not None):
        status = PackageStatus.ABORTED
    else:
        status = PackageStatus.CANCELLED
    if final.state == "CLEARED":
        job.cleared_packages.add(number)
    if final.held:
        job.work_of(number).held = True
    job.note_cause(number, final.cause)
    move(state, job, number, status)
    for attempt, site, pilot, why in final.unended:
        ref = AttemptRef(job.id, job.dotted(number), attempt)
        expect_report(state, pilot, {ref: 0})
        if pilot not in gone:
            add_abandoned(state, ref, number, pilot=pilot, site=site, lost_reason=why)
    return number


def _restore_package(state: EngineState, job: JobState, number: int, facts: PackageFacts, gone: EndedPilots) -> None:
    if facts.epoch > 1:
        job.epochs[number] = facts.epoch
    job.last_attempt[number] = max(facts.attempts, default=0)
    work = job.work_of(number)
    work.held = bool(facts.held)
    work.replicas = facts.replicas
    if facts.dropped:
        work.dropped = facts.keys[Register.DROP][0]
        job.satisfied[number] = 1
    for attempt, known in facts.attempts.items():
        if known.epoch == facts.epoch:
            work.replicated += known.replica
            if known.early:
                if _has_failed(known):
                    work.early_failed = True
                    continue
                work.tie(attempt, ties_in(job, known.early))
            _restore_attempt(state, job, work, attempt, known)
    if facts.replicas and state.healing.enabled:
        _restore_race(state, work, facts)
    _restore_acting(state, job, number, facts, gone)
    if work.ties:
        state.pending.to_untie[job, number] = None
    work.verdict = judge(state, job, work)
    if work.candidates:
        state.pending.to_commit.append((job, number))
    job.forget_idle(number)


def _restore_race(state: EngineState, work: ActivePackage, facts: PackageFacts) -> None:
    """Who asked for further attempts is not known any more: they count as those of healing, since the first of them."""
    created = [
        known.created_at or 0.0 for known in facts.attempts.values() if known.replica and known.epoch == facts.epoch
    ]
    since = min(created, default=state.clock.wall_time)
    work.heals = True
    state.healing.of(work.job.id).committed[work.number] = 0.0
    for attempt in work.attempts.values():
        attempt.raced_at = max(since, attempt.began_at)


def _restore_acting(state: EngineState, job: JobState, number: int, facts: PackageFacts, gone: EndedPilots) -> None:
    """Restore an abandoned attempt: it stays with its pilot until the pilot reports otherwise, possibly its end."""
    for attempt, known in facts.attempts.items():
        if known.finished_at is None and known.pilot:
            expect_report(state, known.pilot, {AttemptRef(job.id, job.dotted(number), attempt): known.epoch})
        leased = known.lease_seconds is not None or known.started_at is not None
        given_up = known.lost_at is not None or known.epoch != facts.epoch
        if leased and given_up and known.finished_at is None and known.pilot and known.pilot not in gone:
            ref = AttemptRef(job.id, job.dotted(number), attempt)
            why, site = known.lost_reason or "", known.site or ""
            add_abandoned(state, ref, number, pilot=known.pilot, site=site, lost_reason=why)


def _has_failed(known: AttemptFacts) -> bool:
    return known.finished_at is not None and known.exit_code != ExitCodeGasw.SUCCESS and known.staged_at is None


def _restore_candidate(work: ActivePackage, number: int, known: AttemptFacts) -> None:
    """Restore a successful attempt, and whether its outputs are in their stores."""
    work.candidates += (number,)
    if work.job.retains and template_of(work.job, work.number).retains_outputs:
        work.made_at = {**work.made_at, number: known.site or ""}
    if known.stored_at is not None and not known.failed_copies:
        work.stored = number
    elif known.failed_copies and work.held:
        work.refused = f"{known.failed_copies} copies of its outputs could not be stored"


def _resume_phase(state: EngineState, attempt: AttemptState, phase: str, began_at: float) -> None:
    resume_phase(state, attempt, phase)
    attempt.applying = phase == "application"
    if state.healing.enabled:
        state.healing.phase_entered(attempt, phase, began_at)


def _restore_attempt(state: EngineState, job: JobState, work: ActivePackage, number: int, known: AttemptFacts) -> None:
    if known.exit_code == ExitCodeGasw.SUCCESS or known.staged_at is not None:
        _restore_candidate(work, number, known)
        return
    if known.finished_at is not None:
        demand = demand_of(job, work.number, memory_bytes=known.memory_bytes, wall_seconds=known.wall_seconds)
        failure = failure_of(
            number,
            site=known.site or "",
            demand=demand,
            remaining_seconds=known.remaining_seconds,
            lost_reason=(known.lost_reason or "") if known.lost_at is not None else None,
            end=known,
        )
        if failure is not None:
            work.fail(number, failure)
        return
    if not known.site:
        return
    site = state.sites.by_name.get(known.site) or add_unmanaged(state, known.site)
    dotted, address = job.named(work.number)
    ref = AttemptRef(job.id, dotted, number)
    created_at = known.created_at or 0.0
    attempt = new_attempt(state, job, work.number, ref, address, site, known.epoch, created_at, known)
    if known.started_at is not None and not attempt.leased:
        attempt.leased, attempt.began_at = True, known.started_at
    attempt.queued, attempt.queued_at = known.queued_at is not None, known.queued_at or 0.0
    attempt.suspect = known.suspected_at is not None
    attempt.lost = known.lost_at is not None
    attempt.lost_reason = known.lost_reason or ""
    work.add(number, attempt)
    if attempt.lost:
        return
    take_slot(state, attempt)
    if attempt.leased and attempt.pilot not in state.pilots.by_name:
        # Its job was imported from another book: its pilot will never contact this service.
        state.pending.lost_pilots.setdefault(attempt.pilot, (UNHEARD, [], 0))[1].append(attempt)
    if known.phase is not None and attempt.leased:
        _resume_phase(state, attempt, known.phase, known.phase_at or attempt.began_at)
    if attempt.suspect and attempt.pilot in state.pilots.by_name:
        state.pilots.by_name[attempt.pilot].suspect = True
    if not attempt.leased and site not in state.sites.unmanaged:
        _resume_queueing(state, attempt)


def _resume_queueing(state: EngineState, attempt: AttemptState) -> None:
    """An attempt restored from the book waits for its batch job, which is submitted again if that was not answered."""
    state.queues.just_submitted.append(attempt)
    if attempt.group:  # its batch job is submitted again once all that share it are there
        state.clock.timers.at(state.clock.now, Due.REQUEST, attempt.group)
    elif not attempt.queued:
        submit(state, attempt)
    watch_queue(state, attempt.batch_key, attempt.created_at)
