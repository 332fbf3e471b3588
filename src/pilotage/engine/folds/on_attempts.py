"""Folds of events about attempts.

Only the agent that holds the lease of an attempt may report on it; the stream of the event shows who did. Others are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from pilotage.engine.engine_state import EngineState
from pilotage.engine.folds.on_packages import forget_epoch
from pilotage.engine.retry.policy import Failure, failure_of
from pilotage.engine.selection.black_holes import cause_of
from pilotage.engine.state.job_queries import SERVED_MAX, learn, learn_failure, learn_start
from pilotage.engine.state.jobs import FINAL, ActivePackage, Address, JobState, PackageStatus, Ties, template_of
from pilotage.engine.state.sites import AttemptState, PilotState, SiteState
from pilotage.engine.transitions.occupancy import free_slot, hold, release_attempt, remove_abandoned, take_slot
from pilotage.engine.transitions.readiness import begin, count_busy, finish, move, reconsider, satisfy, unreserve
from pilotage.engine.transitions.site_observations import (
    bound_attempt_started,
    enter_phase,
    score_phases,
    submission_forgotten,
)
from pilotage.model.events import file_payloads, payloads
from pilotage.model.events.events import Event, parse_dotted
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.resources import Demand
from pilotage.model.states import NOBODYS_FAULT, ExitCodeGasw

# Module-level names: members of enumerations and classes are slow to look up.
_SUCCESS, _LIVE = ExitCodeGasw.SUCCESS, PackageStatus.LIVE


def on_attempt_created(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptCreated
) -> None:
    """An attempt is created: running at once with a lease, else on its way to the batch system of its site."""
    tried, status = event.attempt, job.status[number]
    assert tried is not None
    site = state.sites.by_name.get(data.site)
    if event.epoch != (job.epoch_of(number) if job.epochs else 1) or status >= FINAL or site is None:
        # A package with attempts is in another queue than an untried one: it leaves the queue before its number changes.
        queued = status in (PackageStatus.READY, PackageStatus.RESERVED)
        if queued:
            move(state, job, number, PackageStatus.BLOCKED)
        job.last_attempt[number] = max(job.last_attempt[number], tried)
        if queued:
            reconsider(state, job, number)
        return
    known = job.work.get(number)
    room: tuple[SiteState, int] | None = None  # the room of its reservation
    if known is not None and known.bound is not None:
        room = unreserve(state, known)
        work = known
    else:
        if status == PackageStatus.READY:
            # It was taken out of its queue; if a replica is wanted, it goes in again.
            move(state, job, number, PackageStatus.BLOCKED)
        work = job.work_of(number)
    package, address = work.named or job.named(number)
    ref = AttemptRef(job.id, package, tried)
    attempt = new_attempt(state, job, number, ref, address, site, event.epoch, event.time, data)
    if (work.failures or work.attempts) and not data.replica:
        job.run_times.add_repeat(job.kinds[number])
    work.add(tried, attempt)
    if data.early:
        work.tie(tried, _ties_of(job, data.early))
        work.early = None
    if data.replica:
        work.replicated += 1
        attempt.raced_at = event.time if work.heals else math.inf
    its_room = room is not None and room[0] is site and room[1] == attempt.shape
    if its_room and not attempt.group and not state.queues.at[site].waiting:
        hold(state, attempt)  # it uses the room of its reservation: the room left is unchanged
    else:
        if room is not None:
            state.placement.free(*room)
        take_slot(state, attempt)
    begin(state, job, number, work)
    # Not earlier: while it was queued, it was in the queue of its previous number.
    if tried > job.last_attempt[number]:
        job.last_attempt[number] = tried


def _ties_of(job: JobState, early: Sequence[payloads.EarlyInput]) -> Ties:
    return ties_in(job, {each.package: each.attempt for each in early})


def ties_in(job: JobState, early: Mapping[str, int]) -> Ties:
    """The attempts that an attempt depends on, from their packages' addresses."""
    places = ((parse_dotted(package), tried) for package, tried in early.items())
    numbers = ((job.number((at.stage, at.line, at.number)), tried) for at, tried in places if at is not None)
    return tuple((number, tried) for number, tried in numbers if number is not None)


class Created(Protocol):
    """What was decided when an attempt was created: the event's payload, or the book's record of it."""

    @property
    def pilot(self) -> str | None:
        """The agent that runs it."""

    @property
    def lease_seconds(self) -> float | None:
        """None: it went to a batch system."""

    @property
    def memory_bytes(self) -> int | None:
        """The memory it may use, if not the declared one."""

    @property
    def wall_seconds(self) -> float | None:
        """Likewise."""

    @property
    def remaining_seconds(self) -> float | None:
        """Of the wall time of its pilot."""

    @property
    def drop_revision(self) -> int:
        """The last operation whose drops it has seen."""

    @property
    def group(self) -> str | None:
        """The key of the batch job that it shares."""


def new_attempt(
    state: EngineState,
    job: JobState,
    number: int,
    ref: AttemptRef,
    address: Address,
    site: SiteState,
    epoch: int,
    created_at: float,
    data: Created,
) -> AttemptState:
    """The attempt of a package as it starts; it occupies nothing yet."""
    template = job.plan.templates[job.kinds[number]]
    demand = template.demand
    if data.memory_bytes is not None or data.wall_seconds is not None:
        demand = demand_of(job, number, memory_bytes=data.memory_bytes, wall_seconds=data.wall_seconds)
    latest, shape = state.shapes.last_found
    if demand is not latest:
        shape = state.shapes.number_of(demand)
    leased = data.lease_seconds is not None
    return AttemptState(
        ref,
        number,
        address,
        epoch,
        site,
        demand,
        shape,
        created_at,
        created_at,
        template.activity if state.selection.samples else "",
        data.pilot or "",
        "" if leased else attempt_key(ref),
        leased,
        data.drop_revision,
        data.remaining_seconds,
        group="" if leased else data.group or "",
    )


def attempt_key(ref: AttemptRef) -> str:
    """The key under which a bound attempt is submitted."""
    return f"{ref.job}:{ref.package}:{ref.attempt}"


def demand_of(job: JobState, number: int, *, memory_bytes: int | None, wall_seconds: float | None) -> Demand:
    """The resources of an attempt: those of its template, or as raised after earlier failures."""
    demand = template_of(job, number).demand
    if memory_bytes is None and wall_seconds is None:
        return demand
    return msgspec.structs.replace(
        demand,
        memory_bytes=demand.memory_bytes if memory_bytes is None else memory_bytes,
        wall_seconds=demand.wall_seconds if wall_seconds is None else wall_seconds,
    )


def _reported_attempt(job: JobState, number: int, event: Event) -> tuple[ActivePackage, AttemptState] | None:
    """The attempt of an event, if it is of the current epoch, not over, and the sender may report on it."""
    work = job.work.get(number)
    if work is None:
        return None
    attempt = work.attempts.get(event.attempt or 0)
    if attempt is None or attempt.epoch != event.epoch:
        return None
    if event.source == "agent" and event.stream != attempt.pilot:
        return None
    return work, attempt


def on_attempt_queued(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptQueued
) -> None:
    """The batch system has accepted it."""
    if (found := _reported_attempt(job, number, event)) is not None:
        found[1].queued = True
        found[1].queued_at = found[1].queued_at or event.time


def on_attempt_started(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptStarted
) -> None:
    """A bound attempt got its lease; the first agent that asked holds it."""
    found = _reported_attempt(job, number, event)
    if found is None or event.source != "service" or found[1].leased:
        return
    attempt = found[1]
    attempt.leased = True
    attempt.pilot = data.pilot or ""
    attempt.began_at = event.time
    if (group := attempt.site.groups.get(attempt.group)) is not None and attempt in group.members:
        attempt.follows = group.began_at < math.inf
        group.began_at = min(group.began_at, event.time)
    if attempt.counted and state.healing.enabled:
        state.healing.began(attempt)
    if attempt.counted and attempt.follows:
        state.selection.began_at(attempt.site.profile, event.time)
    elif attempt.counted:
        queued = max(0.0, event.time - attempt.created_at)
        state.selection.began_at(attempt.site.profile, event.time, queued)
        bound_attempt_started(state, attempt, owner=job.owner, at=event.time)
    submission_forgotten(state, attempt.site, attempt)
    pilot = state.pilots.by_name.get(attempt.pilot)
    if pilot is not None:
        pilot.take(attempt)
        state.pilots.to_notify[attempt.pilot] = None


def on_attempt_suspected(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptSuspected
) -> None:
    """Its lease expired: another attempt may start."""
    found = _reported_attempt(job, number, event)
    if found is not None and event.source == "service":
        found[1].suspect = True
        state.pending.to_judge[job, number] = None


def on_attempt_recovered(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptRecovered
) -> None:
    """Its pilot made contact again."""
    found = _reported_attempt(job, number, event)
    if found is None:
        return
    work, attempt = found
    attempt.suspect = attempt.lost = False
    attempt.lost_reason = ""
    if work.failures:
        work.failures = {each: failure for each, failure in work.failures.items() if each != attempt.ref.attempt}
    if not attempt.counted:
        take_slot(state, attempt)
    state.pending.to_judge[job, number] = None  # the verdict may differ now
    reconsider(state, job, number)


def on_attempt_lost(state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptLost) -> None:
    """It is lost; its result may still count if it comes back."""
    found = _reported_attempt(job, number, event)
    if found is None:
        return
    attempt = found[1]
    attempt.suspect = False
    attempt.lost = True
    attempt.lost_reason = data.reason
    if attempt.counted:
        learn_failure(job, attempt, state.clock.wall_time)
        if state.healing.enabled and attempt.leased and data.reason not in NOBODYS_FAULT:
            state.healing.failed(attempt)
    release_attempt(state, attempt)
    count_busy(state, job, number)
    state.pending.to_judge[job, number] = None


def on_phase_entered(state: EngineState, job: JobState, number: int, event: Event, data: payloads.PhaseEntered) -> None:
    """A phase of it is long; its transfers count as load of its site meanwhile."""
    found = _reported_attempt(job, number, event)
    if found is not None and found[1].counted and found[1].leased:
        enter_phase(state, found[1], data.phase)
        found[1].applying = data.phase == "application"
        if state.healing.enabled:
            state.healing.phase_entered(found[1], data.phase, event.time)


def on_outputs_staged(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.OutputsStaged
) -> None:
    """It has succeeded and awaits its grant; its slot is free."""
    if (found := _reported_attempt(job, number, event)) is not None:
        _inform_guard(state, found[1], data.manifest)
        if found[1].ref.attempt not in found[0].ties:  # it may have waited for its inputs
            learn(job, found[1], (), state.clock.wall_time)
        if job.retains:
            _inform_keeper(state, job, *found, data.manifest)
        _succeed(state, job, *found)


def _inform_guard(state: EngineState, attempt: AttemptState, manifest: Sequence[OutputFile] | None) -> None:
    contested = state.output_guard.contested
    if contested and attempt.ref.job in contested:
        state.output_guard.made(attempt.ref, manifest or ())


def _inform_keeper(
    state: EngineState, job: JobState, work: ActivePackage, attempt: AttemptState, manifest: Sequence[OutputFile] | None
) -> None:
    if template_of(job, attempt.number).retains_outputs:
        work.made_at = {**work.made_at, attempt.ref.attempt: attempt.site.name}
        state.output_keeper.made(attempt.ref, manifest or ())


def _succeed(state: EngineState, job: JobState, work: ActivePackage, attempt: AttemptState) -> None:
    tried, number = attempt.ref.attempt, attempt.number
    work.remove(tried)
    free_slot(state, attempt, "success")
    work.candidates += (tried,)
    job.activities.succeeded(template_of(job, number).activity)
    state.pending.to_commit.append((job, number))
    if job.status[number] != _LIVE:  # otherwise the status stays
        reconsider(state, job, number)


def on_attempt_finished(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptFinished
) -> None:
    """It is over. A cancelled attempt that was no longer wanted has not failed."""
    by_agent = event.source == "agent"
    found = _reported_attempt(job, number, event)
    if found is None:
        if by_agent:
            _note_reported_end(state, event.stream, AttemptRef(job.id, event.package or "", event.attempt or 0))
        return
    work, attempt = found
    speaker = None
    if by_agent:
        attempt.end_reported = True
        speaker = state.pilots.by_name.get(event.stream)
        if speaker is None or speaker.owed or state.abandoned.by_pilot:
            _note_reported_end(state, event.stream, attempt.ref)
    is_early = attempt.ref.attempt in work.ties  # its times are those of the attempts whose outputs it reads
    if data.exit_code == _SUCCESS:
        if state.output_guard.contested:
            _inform_guard(state, attempt, data.manifest)
        if not is_early:
            _learn_times(state, job, attempt, data.phases, speaker)
        if job.retains:
            _inform_keeper(state, job, work, attempt, data.manifest)
        _succeed(state, job, work, attempt)
        return
    work.remove(attempt.ref.attempt)
    lost = attempt.lost_reason if attempt.lost else None
    failure = failure_of(
        attempt.ref.attempt,
        site=attempt.site.name,
        demand=attempt.demand,
        remaining_seconds=attempt.remaining_seconds,
        lost_reason=lost,
        end=data,
    )
    if is_early:  # its inputs were not complete, which may be why: that is no failure, and next time they are
        work.tie(attempt.ref.attempt, ())
        work.early_failed, failure = True, None
    else:
        score_phases(state, attempt, data.phases, succeeded=False)
    free_slot(state, attempt, "neutral" if failure is None else cause_of(failure.reason), data.node or "")
    if failure is not None:
        work.fail(attempt.ref.attempt, failure)
        _count_equal(state, job, attempt, failure, event.time)
        if not attempt.lost:
            _learn_failure(state, job, attempt)
    state.pending.to_judge[job, number] = None


def _learn_failure(state: EngineState, job: JobState, attempt: AttemptState) -> None:
    learn_failure(job, attempt, state.clock.wall_time)
    if state.healing.enabled:
        state.healing.failed(attempt)


def _count_equal(state: EngineState, job: JobState, attempt: AttemptState, failure: Failure, at: float) -> None:
    """Count a failure of an activity that may not be able to succeed at all."""
    activity, bound = template_of(job, attempt.number).activity, state.settings.incidents.failing_attempts_max
    equal = job.activities.failed(activity, attempt.number, failure, max(0.0, at - attempt.began_at))
    if bound and equal is not None and equal.attempts >= max(bound, equal.ask_at):
        state.pending.failing_activities[job, activity] = None


def _learn_times(
    state: EngineState,
    job: JobState,
    attempt: AttemptState,
    phases: tuple[payloads.PhaseTimes, ...],
    speaker: PilotState | None,
) -> None:
    """Learn from the phases of a success; `speaker` is the pilot that ran it, if it is still known."""
    learn(job, attempt, phases, state.clock.wall_time)
    if attempt.counted and attempt.leased:
        attempt.phases = phases
    elif phases and state.healing.enabled:
        state.healing.finished(attempt, phases)
    if speaker is not None and phases and speaker.served < SERVED_MAX:
        learn_start(job, speaker, attempt, phases)
    if len(phases) != 1 or phases[0].phase != "application":
        score_phases(state, attempt, phases, succeeded=True)


def _note_reported_end(state: EngineState, pilot: str, ref: AttemptRef) -> None:
    if state.abandoned.by_pilot:
        remove_abandoned(state, pilot, ref)
    speaker = state.pilots.by_name.get(pilot)
    owed = speaker.owed if speaker is not None else state.pilots.unreported.get(pilot)
    if owed:
        owed.pop(ref, None)


def on_commit_granted(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.CommitGranted
) -> None:
    """The package is done; its consumers no longer wait for it."""
    if event.epoch != (job.epoch_of(number) if job.epochs else 1) or job.status[number] >= FINAL:
        return
    job.granted[number] = event.attempt or 0
    job.activities.succeeded(template_of(job, number).activity)
    if state.healing.enabled and (work := job.work.get(number)) is not None and work.failures:
        state.healing.cured(job, number, len(work.failures))
    finish(state, job, number)
    forget_epoch(state, job, number)
    satisfy(state, job, number)


def on_outputs_disposed(
    state: EngineState, job: JobState, number: int, event: Event, data: file_payloads.OutputsDisposed
) -> None:
    """The deletable outputs of the granted attempt are removed; they still count as made."""
    if job.disposed and event.attempt == job.granted[number] and event.epoch == job.epoch_of(number):
        job.disposed[number] = 1
