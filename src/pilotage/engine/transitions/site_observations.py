"""How sites behave: the choice of sites is told what happens there, and what it learned is written down now and then."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pilotage.engine.engine_state import EngineState
from pilotage.engine.selection import LearnedState
from pilotage.engine.selection.scores import Operation
from pilotage.engine.state.clock import Due
from pilotage.engine.state.sites import AttemptState, PilotRequest, PilotState, SiteState
from pilotage.model.events import payloads
from pilotage.model.events.payloads import PhaseTimes
from pilotage.model.exchange.reports import Trouble
from pilotage.model.texts import clipped

SITE_GONE = "its site was removed"
"""Why a pilot is to leave, or nobody waits for an attempt."""

SITE_CHANGED = "its site has changed"
"""Why a pilot is to leave that has other slots than its site is to have."""

_DOUBLINGS_MAX = 60  # of a pause that is capped long before
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LearnedState).decode


# --- how it stands ---------------------------------------------------------------------------------------------------


def drain(state: EngineState, pilot: PilotState, message: str) -> None:
    """Give a pilot nothing more, and tell it to leave when it holds nothing."""
    pilot.draining = message
    pilot.site.waiting.pop(pilot.name, None)
    state.pilots.to_notify[pilot.name] = None


def encode_learned(site: SiteState) -> str:
    """What the choice knows of a site, as it is written down."""
    return _encode(site.place.learned_state()).decode()


def decode_learned(text: str) -> LearnedState | None:
    """The same as it was written down; None where it cannot be read."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, ValueError):
        return None


def schedule_site_record(state: EngineState, site: SiteState) -> None:
    """Something was learned of a site: it is written down in its time."""
    if not site.record_scheduled:
        site.record_scheduled = True
        soon = state.clock.now + state.settings.standing_seconds
        state.clock.timers.at(max(soon, _next_record_at(state, site)), Due.SITE_RECORD, site.name)


def _next_record_at(state: EngineState, site: SiteState) -> float:
    """From when on it may be written down again how a site stands: all of it stays in the book for ever."""
    settings = state.settings
    pause = settings.standing_seconds * 2.0 ** min(site.unchanged_records, _DOUBLINGS_MAX)
    return site.recorded_at + min(pause, settings.standing_seconds_max)


def write_site_record(state: EngineState, name: str) -> None:
    """Write down how a site stands, unless that was done meanwhile."""
    site = state.sites.by_name.get(name)
    if site is None or not site.record_scheduled or site.removed:
        return
    if state.clock.now < _next_record_at(state, site):
        site.record_scheduled = False
        schedule_site_record(state, site)
        return
    write_down(state, site)


def write_down(state: EngineState, site: SiteState) -> None:
    """Write down how a site stands, at once."""
    score = site.place.score.value
    state.log.write(
        payloads.SiteStanding(status=site.status, score=score, learned=encode_learned(site)), site=site.name
    )


# --- submissions ------------------------------------------------------------------------------------------------------


def submitting(state: EngineState, site: SiteState, what: PilotRequest | AttemptState) -> None:
    """Something is being submitted; asked for again, it is the same submission."""
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
    """It was, or was not, for a reason that a report gives."""
    if not what.submitting:
        return
    what.submitting = False
    took = None if seconds is None else max(0.0, seconds)
    state.selection.submission_ended(site.name, seconds=took, trouble=trouble)
    schedule_site_record(state, site)


def not_reached(state: EngineState, site: SiteState, trouble: Trouble) -> None:
    """There was no way to a site: that counts as a submission that failed so. What is to be submitted there waits."""
    state.selection.submission_began(site.name)
    state.selection.submission_ended(site.name, seconds=None, trouble=trouble)
    schedule_site_record(state, site)


def not_submitting(state: EngineState, site: SiteState, what: PilotRequest | AttemptState) -> None:
    """Nobody will hear how a submission went."""
    if what.submitting:
        what.submitting = False
        state.selection.operation_dropped(site.name, "submission")


# --- phases -----------------------------------------------------------------------------------------------------------

_OPERATIONS: dict[str, Operation] = {"setup": "file-operation", "inputs": "transfer", "outputs": "transfer"}
"""The phases that are scored operations. An agent enters those in which it has something to do."""


_SCORED_BEFORE = {"inputs": 1, "application": 2, "outputs": 2}  # operations at most, before each phase


def enter_phase(state: EngineState, attempt: AttemptState, phase: str) -> None:
    """An attempt is in a phase for long by now, and whatever was before it went well."""
    leave_phase(state, attempt, succeeded=True)
    operation = _OPERATIONS.get(phase)
    if operation is not None:
        attempt.operation = operation
        state.selection.operation_began(attempt.site.name, operation)


def resume_phase(state: EngineState, attempt: AttemptState, phase: str) -> None:
    """An attempt that the engine finds in the book is in a phase for long; what came before it is taken for scored."""
    enter_phase(state, attempt, phase)
    attempt.operations_scored = _SCORED_BEFORE.get(phase, 0)


def leave_phase(state: EngineState, attempt: AttemptState, *, succeeded: bool) -> None:
    """A long phase is over; where that is not known to be well, its load is returned and no more."""
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
    """An attempt is over: score what it brought there and back, but for what was scored as a long phase of it.

    Of one that failed, the phase that it failed in has not been completed.
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
    """Look at what is in the queue of a site when it is there for too long."""
    left = since + state.selection.queue_throttle_seconds - state.clock.wall_time
    state.clock.timers.at(state.clock.now + max(1.0, left + 0.01), Due.QUEUED, key)


def check_queue(state: EngineState, site: SiteState, key: str, since: float) -> None:
    """Something is in the queue of a site for long; one whose pilots speak is not left because more of them are queued."""
    waited = state.clock.wall_time - since
    if not site.pilots and not site.removed:
        state.pending.site_changes += state.selection.still_queued(
            site.name, queued_seconds=waited, at=state.clock.wall_time
        )
    if waited > state.selection.queue_throttle_seconds:
        since = state.clock.wall_time  # it is looked at again after as long
    watch_queue(state, key, since)


# --- probes -----------------------------------------------------------------------------------------------------------


def probe_key(site: str, number: int) -> str:
    """The key of a pilot that is asked for only to see whether it comes."""
    return f"{site}-probe-{number}"


def is_probe(key: str, *, site: str) -> bool:
    """Whether a pilot of a site is a probe, by which the site is judged. The end of a key does not tell: it may be a site's name."""
    return key.startswith(f"{site}-probe-")


def trial_key(site: str, number: int) -> str:
    """The same of one that somebody watches: what comes of it is told to them alone."""
    return f"{site}-trial-{number}"


def is_to_show(key: str, *, site: str) -> bool:
    """Whether a pilot of a site is only to show that it comes, as a probe or for somebody who watches: it is given nothing."""
    return is_probe(key, site=site) or key.startswith(f"{site}-trial-")


def probed(state: EngineState, site: SiteState, *, passed: bool, seconds: float, message: str = "") -> None:
    """What came of a probe."""
    decode_learned = payloads.SiteProbed(passed=passed, seconds=max(0.0, seconds), message=clipped(message))
    state.log.write(decode_learned, site=site.name)
    score = _first_score(state, site, seconds) if passed else None
    state.pending.site_changes += state.selection.probe_told(
        site.name, passed=passed, at=state.clock.wall_time, score=score, message=message
    )
    schedule_site_record(state, site)


def _first_score(state: EngineState, site: SiteState, seconds: float) -> float | None:
    """What a probe thinks of a new site of which nobody said what it is worth: the sooner it came, the more."""
    if site.site.initial_score is not None or site.place.live or site.place.ends.latest:
        return None
    selection = state.selection
    return selection.settings.recovered_score * max(0.0, 1.0 - seconds / selection.queue_throttle_seconds)
