"""Reports events at sites to the selection, and records from time to time what it has learned."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pilotage.engine.engine_state import EngineState
from pilotage.engine.selection import LearnedState
from pilotage.engine.selection.scores import Operation
from pilotage.engine.state.clock import Due
from pilotage.engine.state.latencies import RECORD_SECONDS
from pilotage.engine.state.sites import AttemptState, PilotRequest, PilotState, SiteState
from pilotage.model.events import payloads
from pilotage.model.events.payloads import PhaseTimes
from pilotage.model.exchange.reports import Trouble
from pilotage.model.texts import clipped

SITE_GONE = "its site was removed"
"""Why a pilot leaves, or an attempt is given up."""

SITE_CHANGED = "its site has changed"
"""Why a pilot leaves whose slots differ from the site's configuration."""

_DOUBLINGS_MAX = 60  # of a pause that reaches its cap long before
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LearnedState).decode


# --- status ----------------------------------------------------------------------------------------------------------


def drain(state: EngineState, pilot: PilotState, message: str) -> None:
    """Give a pilot no more work, and tell it to leave when idle."""
    pilot.draining = message
    pilot.site.waiting.pop(pilot.name, None)
    state.pilots.to_notify[pilot.name] = None


def encode_learned(site: SiteState) -> str:
    """What the selection knows of a site, encoded for the book."""
    return _encode(site.profile.learned_state()).decode()


def decode_learned(text: str) -> LearnedState | None:
    """Decode what was recorded of a site; None if it cannot be read."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, ValueError):
        return None


def schedule_site_record(state: EngineState, site: SiteState) -> None:
    """Set a timer to record what was learned of a site."""
    if not site.record_scheduled:
        site.record_scheduled = True
        soon = state.clock.now + state.settings.standing_seconds
        state.clock.timers.at(max(soon, _next_record_at(state, site)), Due.SITE_RECORD, site.name)


def _next_record_at(state: EngineState, site: SiteState) -> float:
    """The earliest time for the next record of a site: every record stays in the book for ever."""
    settings = state.settings
    pause = settings.standing_seconds * 2.0 ** min(site.unchanged_records, _DOUBLINGS_MAX)
    return site.recorded_at + min(pause, settings.standing_seconds_max)


def write_site_record(state: EngineState, name: str) -> None:
    """Record the state of a site, unless that was done meanwhile."""
    site = state.sites.by_name.get(name)
    if site is None or not site.record_scheduled or site.removed:
        return
    if state.clock.now < _next_record_at(state, site):
        site.record_scheduled = False
        schedule_site_record(state, site)
        return
    record_site(state, site)


def record_site(state: EngineState, site: SiteState) -> None:
    """Record the state of a site now."""
    score = site.profile.score.value
    state.log.write(
        payloads.SiteStanding(status=site.status, score=score, learned=encode_learned(site)), site=site.name
    )


# --- submissions ------------------------------------------------------------------------------------------------------


def submitting(state: EngineState, site: SiteState, what: PilotRequest | AttemptState) -> None:
    """A submission starts; a repeated one is the same submission."""
    if not what.submitting:
        what.submitting = True
        state.selection.submission_began(site.name)


def submitted(
    state: EngineState,
    site: SiteState,
    what: PilotRequest | AttemptState,
    *,
    seconds: float | None,
    trouble: Trouble | None = None,
) -> None:
    """A submission succeeded, or failed with the trouble of a report."""
    if not what.submitting:
        return
    what.submitting = False
    took = None if seconds is None else max(0.0, seconds)
    state.selection.submission_ended(site.name, seconds=took, trouble=trouble)
    schedule_site_record(state, site)


def note_unreachable(state: EngineState, site: SiteState, trouble: Trouble) -> None:
    """A site is unreachable: that counts as a failed submission. Its submissions wait."""
    state.selection.submission_began(site.name)
    state.selection.submission_ended(site.name, seconds=None, trouble=trouble)
    schedule_site_record(state, site)


def submission_forgotten(state: EngineState, site: SiteState, what: PilotRequest | AttemptState) -> None:
    """The result of a submission will not be known."""
    if what.submitting:
        what.submitting = False
        state.selection.operation_dropped(site.name, "submission")


# --- phases -----------------------------------------------------------------------------------------------------------

_OPERATIONS: dict[str, Operation] = {"setup": "file-operation", "inputs": "transfer", "outputs": "transfer"}
"""The phases that are scored operations. An agent enters a phase only if it has something to do there."""


_SCORED_BEFORE = {"inputs": 1, "application": 2, "outputs": 2}  # maximum number of operations before each phase


def enter_phase(state: EngineState, attempt: AttemptState, phase: str) -> None:
    """An attempt has been in a phase for long; the earlier phases succeeded."""
    leave_phase(state, attempt, succeeded=True)
    operation = _OPERATIONS.get(phase)
    if operation is not None:
        attempt.operation = operation
        state.selection.operation_began(attempt.site.name, operation)


def resume_phase(state: EngineState, attempt: AttemptState, phase: str) -> None:
    """An attempt restored from the book is in a long phase; the earlier phases count as scored."""
    enter_phase(state, attempt, phase)
    attempt.operations_scored = _SCORED_BEFORE.get(phase, 0)


def leave_phase(state: EngineState, attempt: AttemptState, *, succeeded: bool) -> None:
    """A long phase ended; if its success is not known, only its load is returned."""
    operation = attempt.operation
    if operation is None:
        return
    attempt.operation = None
    if succeeded:
        attempt.operations_scored += 1
        state.selection.operation_ended(attempt.site.name, operation)
    else:
        state.selection.operation_dropped(attempt.site.name, operation)


def score_phases(state: EngineState, attempt: AttemptState, phases: Sequence[PhaseTimes], *, succeeded: bool) -> None:
    """An attempt ended: score its transfers, except those scored as a long phase.

    The phase in which an attempt failed was not completed.
    """
    if not attempt.counted:
        return
    leave_phase(state, attempt, succeeded=succeeded)
    entered = [each.phase for each in phases if each.phase != "cleaning"]
    completed = entered if succeeded else entered[:-1]
    count = sum(phase in _OPERATIONS for phase in completed) - attempt.operations_scored
    if count > 0:
        state.selection.operations_completed(attempt.site.name, count)


# --- queues -----------------------------------------------------------------------------------------------------------


def watch_queue(state: EngineState, key: str, since: float) -> None:
    """Set a timer for a queued batch job, for when it is there for too long."""
    left = since + state.selection.queue_throttle_seconds - state.clock.wall_time
    state.clock.timers.at(state.clock.now + max(1.0, left + 0.01), Due.QUEUED, key)


def check_queue(state: EngineState, site: SiteState, key: str, since: float) -> None:
    """A batch job is queued for long; a site with active pilots is not hibernated because further ones are queued."""
    waited = state.clock.wall_time - since
    if not site.pilots and not site.removed:
        state.pending.site_changes += state.selection.still_queued(
            site.name, queued_seconds=waited, at=state.clock.wall_time
        )
    if waited > state.selection.queue_throttle_seconds:
        since = state.clock.wall_time  # checked again after the same time
    watch_queue(state, key, since)


# --- latencies --------------------------------------------------------------------------------------------------------


def pilot_started(state: EngineState, site: SiteState, request: PilotRequest) -> None:
    """A requested pilot made contact for the first time: its latency is known."""
    state.latencies.pilot_started(site, request, at=state.clock.wall_time)
    schedule_latency_record(state, site.name)


def pilot_never_started(state: EngineState, request: PilotRequest, reason: str) -> None:
    """A requested pilot ended without contact: a fault, unless it was withdrawn."""
    state.latencies.pilot_ended(request.site, request, reason=reason, at=state.clock.wall_time)
    schedule_latency_record(state, request.site.name)


def bound_attempt_started(state: EngineState, attempt: AttemptState, *, owner: str, at: float) -> None:
    """The batch job of a bound attempt made contact: its latency is known."""
    state.latencies.attempt_started(attempt, owner=owner, at=at)
    schedule_latency_record(state, attempt.site.name)


def bound_attempt_ended(state: EngineState, attempt: AttemptState, *, owner: str, is_fault: bool) -> None:
    """The batch job of a bound attempt ended, or was withdrawn, without contact."""
    state.latencies.attempt_ended(attempt, owner=owner, at=state.clock.wall_time, is_fault=is_fault)
    schedule_latency_record(state, attempt.site.name)


def schedule_latency_record(state: EngineState, name: str) -> None:
    """Set a timer to record the latencies of a site."""
    known = state.latencies.at(name)
    if not known.record_scheduled:
        known.record_scheduled = True
        soon = state.clock.now + RECORD_SECONDS
        state.clock.timers.at(max(soon, known.next_record_at), Due.LATENCIES, name)


def record_latencies(state: EngineState, name: str) -> None:
    """Record the latencies of a site now, unless nothing is new."""
    if state.latencies.at(name).record_scheduled:
        site = state.sites.by_name.get(name)
        state.log.write(state.latencies.record_of(name, site, through=state.log.next_number), site=name)


# --- probes -----------------------------------------------------------------------------------------------------------


def probe_key(site: str, number: int) -> str:
    """The key of a pilot that is started only as a test of the site."""
    return f"{site}-probe-{number}"


def is_probe(key: str, *, site: str) -> bool:
    """Whether a pilot is a probe of its site, which is judged by it. The end of a key does not tell: it may be a site's name."""
    return key.startswith(f"{site}-probe-")


def trial_key(site: str, number: int) -> str:
    """The key of a test pilot for a person who watches it: the site is not judged by it."""
    return f"{site}-trial-{number}"


def is_test_pilot(key: str, *, site: str) -> bool:
    """Whether a pilot of a site is a test, as a probe or for a person who watches: it gets no work."""
    return is_probe(key, site=site) or key.startswith(f"{site}-trial-")


def probed(state: EngineState, site: SiteState, *, passed: bool, seconds: float, message: str = "") -> None:
    """Record the result of a probe."""
    decode_learned = payloads.SiteProbed(passed=passed, seconds=max(0.0, seconds), message=clipped(message))
    state.log.write(decode_learned, site=site.name)
    score = _first_score(state, site, seconds) if passed else None
    state.pending.site_changes += state.selection.probe_finished(
        site.name, passed=passed, at=state.clock.wall_time, score=score, message=message
    )
    schedule_site_record(state, site)


def _first_score(state: EngineState, site: SiteState, seconds: float) -> float | None:
    """The score for a new site without a configured one: the sooner the probe started, the better."""
    if site.site.initial_score is not None or site.profile.live or site.profile.ends.latest:
        return None
    selection = state.selection
    return selection.settings.recovered_score * max(0.0, 1.0 - seconds / selection.queue_throttle_seconds)
