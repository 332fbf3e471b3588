"""What events about attempts mean to the engine: one function for each.

Only the agent that holds an attempt's lease may speak for it, which its stream tells: what another says of it is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from pilotage.engine.engine_state import EngineState
from pilotage.engine.folds.on_packages import forget_epoch
from pilotage.engine.retry.policy import failure_of
from pilotage.engine.selection.black_holes import cause_of
from pilotage.engine.state.job_queries import learn
from pilotage.engine.state.jobs import FINAL, ActivePackage, JobState, PackageStatus, Place, template_of
from pilotage.engine.state.sites import AttemptState, SiteState
from pilotage.engine.transitions.occupancy import free_slot, hold, release_attempt, remove_abandoned, take_slot
from pilotage.engine.transitions.readiness import begin, count_busy, finish, move, reconsider, satisfy, unreserve
from pilotage.engine.transitions.site_observations import enter_phase, not_submitting, score_phases
from pilotage.model.events import payloads
from pilotage.model.events.events import Event
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.resources import Demand
from pilotage.model.states import ExitCodeGasw

# As names of this module: a member of an enumeration, or of a class, is slow to look up.
_SUCCESS, _LIVE = ExitCodeGasw.SUCCESS, PackageStatus.LIVE


def on_attempt_created(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptCreated
) -> None:
    """A try begins; with a lease it is under way at once, without one it goes to the batch system of its site."""
    tried, status = event.attempt, job.status[number]
    assert tried is not None
    site = state.sites.by_name.get(data.site)
    if event.epoch != (job.epoch_of(number) if job.epochs else 1) or status >= FINAL or site is None:
        # What was tried is in another queue than what never was: it must leave the one before its number says so.
        queued = status in (PackageStatus.READY, PackageStatus.RESERVED)
        if queued:
            move(state, job, number, PackageStatus.BLOCKED)
        job.last_attempt[number] = max(job.last_attempt[number], tried)
        if queued:
            reconsider(state, job, number)
        return
    known = job.work.get(number)
    room: tuple[SiteState, int] | None = None  # what its reservation took
    if known is not None and known.bound is not None:
        room = unreserve(state, known)
        work = known
    else:
        if status == PackageStatus.READY:
            # It was taken out of its queue; where a further attempt is wanted, it must go in again.
            move(state, job, number, PackageStatus.BLOCKED)
        work = job.work_of(number)
    package, place = work.named or job.named(number)
    ref = AttemptRef(job.id, package, tried)
    attempt = begun(state, job, number, ref, place, site, event.epoch, event.time, data)
    work.add(tried, attempt)
    if data.replica:
        work.replicated += 1
    if room is not None and room[0] is site and room[1] == attempt.shape and not state.queues.at[site].waiting:
        hold(state, attempt)  # what was reserved is used: nobody gets room by that, and nobody loses any
    else:
        if room is not None:
            state.placement.free(*room)
        take_slot(state, attempt)
    begin(state, job, number, work)
    # Only now: as long as it was in a queue, it was in that of its number before.
    if tried > job.last_attempt[number]:
        job.last_attempt[number] = tried


class Created(Protocol):
    """What was decided of an attempt when it was created: the payload that says so, or what the book has of it."""

    @property
    def pilot(self) -> str | None:
        """Who has it."""

    @property
    def lease_seconds(self) -> float | None:
        """None: it went to a batch system."""

    @property
    def memory_bytes(self) -> int | None:
        """What it may take, where that is not what was asked for."""

    @property
    def wall_seconds(self) -> float | None:
        """Likewise."""

    @property
    def remaining_seconds(self) -> float | None:
        """Of the time of its pilot."""

    @property
    def drop_revision(self) -> int:
        """What it has seen dropped."""


def begun(
    state: EngineState,
    job: JobState,
    number: int,
    ref: AttemptRef,
    place: Place,
    site: SiteState,
    epoch: int,
    created_at: float,
    data: Created,
) -> AttemptState:
    """An attempt of the package at a place as it begins, which takes nothing yet."""
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
        place,
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
    )


def attempt_key(ref: AttemptRef) -> str:
    """Under which a bound attempt is submitted."""
    return f"{ref.job}:{ref.package}:{ref.attempt}"


def demand_of(job: JobState, number: int, *, memory_bytes: int | None, wall_seconds: float | None) -> Demand:
    """What an attempt takes: what its template says, or what failures before it made of that."""
    demand = template_of(job, number).demand
    if memory_bytes is None and wall_seconds is None:
        return demand
    return msgspec.structs.replace(
        demand,
        memory_bytes=demand.memory_bytes if memory_bytes is None else memory_bytes,
        wall_seconds=demand.wall_seconds if wall_seconds is None else wall_seconds,
    )


def _spoken_for(job: JobState, number: int, event: Event) -> tuple[ActivePackage, AttemptState] | None:
    """The attempt an event speaks of, if it is of the current epoch, not over, and the event comes from who may say so."""
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
    """The batch system has it."""
    if (found := _spoken_for(job, number, event)) is not None:
        found[1].queued = True


def on_attempt_started(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptStarted
) -> None:
    """A bound attempt got its lease; the agent that asked first has it."""
    found = _spoken_for(job, number, event)
    if found is None or event.source != "service" or found[1].leased:
        return
    attempt = found[1]
    attempt.leased = True
    attempt.pilot = data.pilot or ""
    attempt.began_at = event.time
    if attempt.counted:
        queued = max(0.0, event.time - attempt.created_at)
        state.selection.began_at(attempt.site.place, event.time, queued)
    not_submitting(state, attempt.site, attempt)
    pilot = state.pilots.by_name.get(attempt.pilot)
    if pilot is not None:
        pilot.take(attempt)
        state.pilots.to_notify[attempt.pilot] = None


def on_attempt_suspected(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptSuspected
) -> None:
    """Its lease was lost: another may start."""
    found = _spoken_for(job, number, event)
    if found is not None and event.source == "service":
        found[1].suspect = True
        state.pending.to_judge[job, number] = None


def on_attempt_recovered(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptRecovered
) -> None:
    """Its pilot spoke again."""
    found = _spoken_for(job, number, event)
    if found is None:
        return
    work, attempt = found
    attempt.suspect = attempt.lost = False
    attempt.lost_reason = ""
    if work.failures:
        work.failures = {each: failure for each, failure in work.failures.items() if each != attempt.ref.attempt}
    if not attempt.counted:
        take_slot(state, attempt)
    state.pending.to_judge[job, number] = None  # the verdict is another now
    reconsider(state, job, number)


def on_attempt_lost(state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptLost) -> None:
    """Nobody waits for it any more; it may still win."""
    found = _spoken_for(job, number, event)
    if found is None:
        return
    attempt = found[1]
    attempt.suspect = False
    attempt.lost = True
    attempt.lost_reason = data.reason
    release_attempt(state, attempt)
    count_busy(state, job, number)
    state.pending.to_judge[job, number] = None


def on_phase_entered(state: EngineState, job: JobState, number: int, event: Event, data: payloads.PhaseEntered) -> None:
    """It is in a phase for long; what it brings to or from its site weighs on the site meanwhile."""
    found = _spoken_for(job, number, event)
    if found is not None and found[1].counted and found[1].leased:
        enter_phase(state, found[1], data.phase)


def on_outputs_staged(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.OutputsStaged
) -> None:
    """It has succeeded but for its grant; its slot is free."""
    if (found := _spoken_for(job, number, event)) is not None:
        _tell_guard(state, found[1], data.manifest)
        learn(job, found[1], (), state.clock.wall_time)
        _succeed(state, job, *found)


def _tell_guard(state: EngineState, attempt: AttemptState, manifest: Sequence[OutputFile] | None) -> None:
    contested = state.output_guard.contested
    if contested and attempt.ref.job in contested:
        state.output_guard.made(attempt.ref, manifest or ())


def _succeed(state: EngineState, job: JobState, work: ActivePackage, attempt: AttemptState) -> None:
    tried, number = attempt.ref.attempt, attempt.number
    work.remove(tried)
    free_slot(state, attempt, "success")
    work.candidates += (tried,)
    state.pending.to_commit.append((job, number))
    if job.status[number] != _LIVE:  # where it is, it stays
        reconsider(state, job, number)


def on_attempt_finished(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.AttemptFinished
) -> None:
    """It is over, well or not. One that was cancelled because nobody wanted it has not failed."""
    by_agent = event.source == "agent"
    found = _spoken_for(job, number, event)
    if found is None:
        if by_agent:
            _told_end(state, event.stream, AttemptRef(job.id, event.package or "", event.attempt or 0))
        return
    work, attempt = found
    if by_agent:
        attempt.told = True
        speaker = state.pilots.by_name.get(event.stream)
        if speaker is None or speaker.owed or state.abandoned.by_pilot:
            _told_end(state, event.stream, attempt.ref)
    if data.exit_code == _SUCCESS:
        if state.output_guard.contested:
            _tell_guard(state, attempt, data.manifest)
        phases = data.phases
        learn(job, attempt, phases, state.clock.wall_time)
        if len(phases) != 1 or phases[0].phase != "application":
            score_phases(state, attempt, phases, succeeded=True)
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
    score_phases(state, attempt, data.phases, succeeded=False)
    free_slot(state, attempt, "nobody" if failure is None else cause_of(failure.reason), data.node or "")
    if failure is not None:
        work.fail(attempt.ref.attempt, failure)
    state.pending.to_judge[job, number] = None


def _told_end(state: EngineState, pilot: str, ref: AttemptRef) -> None:
    if state.abandoned.by_pilot:
        remove_abandoned(state, pilot, ref)
    speaker = state.pilots.by_name.get(pilot)
    owed = speaker.owed if speaker is not None else state.pilots.unreported.get(pilot)
    if owed:
        owed.pop(ref, None)


def on_commit_granted(
    state: EngineState, job: JobState, number: int, event: Event, data: payloads.CommitGranted
) -> None:
    """The package is done; whoever waited for it need not."""
    if event.epoch != (job.epoch_of(number) if job.epochs else 1) or job.status[number] >= FINAL:
        return
    job.granted[number] = event.attempt or 0
    finish(state, job, number)
    forget_epoch(state, job, number)
    satisfy(state, job, number)
