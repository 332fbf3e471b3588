"""How sites behave: the choice of sites is told what happens there, and what it learned is written down now and then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from pilotage.engine.parts import AttemptState
from pilotage.engine.places import PilotRequest, PilotState, SiteState
from pilotage.engine.selection import Standing
from pilotage.engine.selection.scores import Operation
from pilotage.engine.timers import Due
from pilotage.model import payloads
from pilotage.model.events import Event
from pilotage.model.payloads import PhaseTimes
from pilotage.model.reports import Trouble
from pilotage.model.texts import clipped

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine

SITE_GONE = "its site was removed"
"""Why a pilot is to leave, or nobody waits for an attempt."""

SITE_CHANGED = "its site has changed"
"""Why a pilot is to leave that has other slots than its site is to have."""

_DOUBLINGS_MAX = 60  # of a pause that is capped long before
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Standing).decode


# --- how it stands ---------------------------------------------------------------------------------------------------


def drain(engine: Engine, pilot: PilotState, message: str) -> None:
    """Give a pilot nothing more, and tell it to leave when it holds nothing."""
    pilot.draining = message
    pilot.site.waiting.pop(pilot.name, None)
    engine.told[pilot.name] = None


def learned(site: SiteState) -> str:
    """What the choice knows of a site, as it is written down."""
    return _encode(site.place.standing()).decode()


def told(text: str) -> Standing | None:
    """The same as it was written down; None where it cannot be read."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, ValueError):
        return None


def unsettle(engine: Engine, site: SiteState) -> None:
    """Something was learned of a site: it is written down in its time."""
    if not site.restless:
        site.restless = True
        soon = engine.now + engine.settings.standing_seconds
        engine.timers.at(max(soon, _next_standing_at(engine, site)), Due.STANDING, site.name)


def _next_standing_at(engine: Engine, site: SiteState) -> float:
    """From when on it may be written down again how a site stands: all of it stays in the book for ever."""
    settings = engine.settings
    pause = settings.standing_seconds * 2.0 ** min(site.standings, _DOUBLINGS_MAX)
    return site.standing_at + min(pause, settings.standing_seconds_max)


def write_standing(engine: Engine, name: str) -> None:
    """Write down how a site stands, unless that was done meanwhile."""
    site = engine.sites.get(name)
    if site is None or not site.restless or site.removed:
        return
    if engine.now < _next_standing_at(engine, site):
        site.restless = False
        unsettle(engine, site)
        return
    write_down(engine, site)


def write_down(engine: Engine, site: SiteState) -> None:
    """Write down how a site stands, at once."""
    score = site.place.score.value
    engine.write(payloads.SiteStanding(status=site.status, score=score, learned=learned(site)), site=site.name)


def on_site_described(engine: Engine, event: Event, data: payloads.SiteDescribed) -> None:
    """It is written down what a site is, or that nothing more goes there."""
    site = engine.sites.get(event.site or "")
    if site is not None and event.source == "service":
        site.described = True
        site.removed = data.status == "removed"


def on_site_stands(
    engine: Engine, event: Event, data: payloads.SiteHibernated | payloads.SiteWoken | payloads.SiteStanding
) -> None:
    """It is written down how a site stands."""
    site = engine.sites.get(event.site or "")
    if site is None:
        return
    match data:
        case payloads.SiteHibernated():
            site.status, site.standings = "hibernated", 0
        case payloads.SiteWoken():
            site.status, site.standings = "candidate", 0
        case payloads.SiteStanding():
            site.status = data.status
            site.standings += 1
    site.restless = False
    site.standing_at = engine.now


# --- submissions ------------------------------------------------------------------------------------------------------


def submitting(engine: Engine, site: SiteState, what: PilotRequest | AttemptState) -> None:
    """Something is being submitted; asked for again, it is the same submission."""
    if not what.submitting:
        what.submitting = True
        engine.selection.submission_began(site.name)


def submitted(
    engine: Engine,
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
    engine.selection.submission_ended(site.name, seconds=took, trouble=trouble)
    unsettle(engine, site)


def not_reached(engine: Engine, site: SiteState, trouble: Trouble) -> None:
    """There was no way to a site: that counts as a submission that failed so. What is to be submitted there waits."""
    engine.selection.submission_began(site.name)
    engine.selection.submission_ended(site.name, seconds=None, trouble=trouble)
    unsettle(engine, site)


def not_submitting(engine: Engine, site: SiteState, what: PilotRequest | AttemptState) -> None:
    """Nobody will hear how a submission went."""
    if what.submitting:
        what.submitting = False
        engine.selection.operation_dropped(site.name, "submission")


# --- phases -----------------------------------------------------------------------------------------------------------

_OPERATIONS: dict[str, Operation] = {"setup": "file-operation", "inputs": "transfer", "outputs": "transfer"}
"""The phases that are scored operations. An agent enters those in which it has something to do."""


_SCORED_BEFORE = {"inputs": 1, "application": 2, "outputs": 2}  # operations at most, before each phase


def enter_phase(engine: Engine, attempt: AttemptState, phase: str) -> None:
    """An attempt is in a phase for long by now, and whatever was before it went well."""
    leave_phase(engine, attempt, succeeded=True)
    operation = _OPERATIONS.get(phase)
    if operation is not None:
        attempt.operation = operation
        engine.selection.operation_began(attempt.site.name, operation)


def resume_phase(engine: Engine, attempt: AttemptState, phase: str) -> None:
    """An attempt that the engine finds in the book is in a phase for long; what came before it is taken for scored."""
    enter_phase(engine, attempt, phase)
    attempt.operations_scored = _SCORED_BEFORE.get(phase, 0)


def leave_phase(engine: Engine, attempt: AttemptState, *, succeeded: bool) -> None:
    """A long phase is over; where that is not known to be well, its load is returned and no more."""
    operation = attempt.operation
    if operation is None:
        return
    attempt.operation = None
    if succeeded:
        attempt.operations_scored += 1
        engine.selection.operation_ended(attempt.site.name, operation)
    else:
        engine.selection.operation_dropped(attempt.site.name, operation)


def score_phases(engine: Engine, attempt: AttemptState, phases: Sequence[PhaseTimes], *, succeeded: bool) -> None:
    """An attempt is over: score what it brought there and back, but for what was scored as a long phase of it.

    Of one that failed, the phase that it failed in has not been completed.
    """
    if not attempt.counted:
        return
    leave_phase(engine, attempt, succeeded=succeeded)
    entered = [each.phase for each in phases if each.phase != "cleaning"]
    completed = entered if succeeded else entered[:-1]
    count = sum(phase in _OPERATIONS for phase in completed) - attempt.operations_scored
    if count > 0:
        engine.selection.operations_completed(attempt.site.name, count)


# --- queues -----------------------------------------------------------------------------------------------------------


def watch_queue(engine: Engine, key: str, since: float) -> None:
    """Look at what is in the queue of a site when it is there for too long."""
    left = since + engine.selection.queue_throttle_seconds - engine.stamp
    engine.timers.at(engine.now + max(1.0, left + 0.01), Due.QUEUED, key)


def check_queue(engine: Engine, site: SiteState, key: str, since: float) -> None:
    """Something is in the queue of a site for long; one whose pilots speak is not left because more of them are queued."""
    waited = engine.stamp - since
    if not site.pilots and not site.removed:
        engine.changes += engine.selection.still_queued(site.name, queued_seconds=waited, at=engine.stamp)
    if waited > engine.selection.queue_throttle_seconds:
        since = engine.stamp  # it is looked at again after as long
    watch_queue(engine, key, since)


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


def probed(engine: Engine, site: SiteState, *, passed: bool, seconds: float, message: str = "") -> None:
    """What came of a probe."""
    told = payloads.SiteProbed(passed=passed, seconds=max(0.0, seconds), message=clipped(message))
    engine.write(told, site=site.name)
    score = _first_score(engine, site, seconds) if passed else None
    engine.changes += engine.selection.probe_told(
        site.name, passed=passed, at=engine.stamp, score=score, message=message
    )
    unsettle(engine, site)


def _first_score(engine: Engine, site: SiteState, seconds: float) -> float | None:
    """What a probe thinks of a new site of which nobody said what it is worth: the sooner it came, the more."""
    if site.site.initial_score is not None or site.place.live or site.place.ends.latest:
        return None
    selection = engine.selection
    return selection.settings.recovered_score * max(0.0, 1.0 - seconds / selection.queue_throttle_seconds)
