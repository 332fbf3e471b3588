"""Why a site is or is not picked: what each stage says, in order, as values that programs read and people can be told."""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.engine.selection.candidates import CANDIDATE, HIBERNATED, NAMES, CandidateSet
from pilotage.engine.selection.filters import refusals
from pilotage.engine.selection.site_profile import SiteProfile
from pilotage.engine.selection.sites import Sites
from pilotage.engine.selection.status import wakes_at

Stage = Literal["filter", "status", "score", "room", "pick"]
_SHOWN_MAX = 20


class StageWhy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one stage says of a site."""

    stage: Stage
    code: str  # the filter that refused, the status, the rule of the room, the policy
    message: str
    passes: bool = True
    since: float | None = None
    until: float | None = None


class SiteWhy(msgspec.Struct, frozen=True, kw_only=True):
    """What every stage says of a site; the first that does not pass is the reason."""

    site: str
    status: str  # candidate, hibernated, overloaded; refused where it could not do what is asked
    score: float
    tscore: float
    share: float  # how probable it is to be picked next
    stages: tuple[StageWhy, ...]


class ChoiceWhy(msgspec.Struct, frozen=True, kw_only=True):
    """How the next choice stands: the sites, the most probable first, and how many are not told."""

    policy: str
    candidates: int
    hibernated: int
    overloaded: int
    refused: int
    sites: tuple[SiteWhy, ...]
    left_out: int = 0


def explain_site(sites: Sites, place: SiteProfile, pool: CandidateSet, *, now: float) -> SiteWhy:
    """Why a site is or is not picked for what is asked."""
    stages = [
        *_filter(place, pool),
        _status(sites, place, pool, now=now),
        _score(sites, place),
        _room(place, pool),
        _pick(sites, place, pool),
    ]
    return SiteWhy(
        site=place.name,
        status=NAMES[pool.status[place.index]] or "refused",
        score=place.score.value,
        tscore=place.score.tscore,
        share=_share(sites, place, pool),
        stages=tuple(stages),
    )


def explain_choice(sites: Sites, pool: CandidateSet, *, now: float) -> ChoiceWhy:
    """How the next choice for what is asked stands."""
    known = [place for place in sites.places if place is not None]
    shown = sorted(known, key=lambda place: _order(place, pool))
    told = tuple(explain_site(sites, place, pool, now=now) for place in shown[:_SHOWN_MAX])
    _, candidates, hibernated, overloaded = pool.counts
    return ChoiceWhy(
        policy=sites.settings.policy,
        candidates=candidates,
        hibernated=hibernated,
        overloaded=overloaded,
        refused=len(known) - candidates - hibernated - overloaded,
        sites=told,
        left_out=len(known) - len(told),
    )


def _share(sites: Sites, place: SiteProfile, pool: CandidateSet) -> float:
    """By weight, or all of it where the policy leaves no choice; of a draw by evidence it is what the weights would say."""
    if sites.settings.policy == "best":
        return float(pool.weights.best() == place.index)
    if sites.settings.policy == "first":
        return float(pool.weights.first() == place.index)
    return pool.weights[place.index] / pool.weights.total if pool.weights.total else 0.0


def _order(place: SiteProfile, pool: CandidateSet) -> tuple[int, int, float, int]:
    """The most probable first."""
    return -pool.weights[place.index], -pool.status[place.index], -place.score.value, place.index


def _filter(place: SiteProfile, pool: CandidateSet) -> list[StageWhy]:
    refused = [
        StageWhy(stage="filter", code=each.filter, message=each.message, passes=False)
        for each in refusals(place.description, pool.asked)
    ]
    return refused or [StageWhy(stage="filter", code="passed", message="it could do what is asked")]


def _status(sites: Sites, place: SiteProfile, pool: CandidateSet, *, now: float) -> StageWhy:
    sleep = place.sleep
    if sleep is None:
        full = pool.allowed(place.index) and not place.has_room(pool.shape)
        code = "overloaded" if full else "candidate"
        away = "it does not answer" if not place.answers else "it has as much as it may"
        message = away if full else "it may be picked"
        if place.canary:
            message += ", one canary at a time"
        return StageWhy(stage="status", code=code, message=message, passes=not full)
    until: float | None = None
    if sleep.reason == "by-hand":
        what_next = "it sleeps until somebody wakes it"
    elif sleep.reason == "dead-starts":
        until = wakes_at(sleep, place.times, sites.settings, alone=not pool.awake)
        what_next = (
            "nothing more is submitted there before somebody wakes it, a probe passes or its entry changes,"
            " or its time comes and no other site can be picked: then one pilot is tried"
        )
    else:
        until = wakes_at(sleep, place.times, sites.settings, alone=not pool.awake)
        behind = "its time has come" if until <= now else "its time comes"
        what_next = f"when no other site can be picked and {behind}, or when it finishes another attempt, it is woken"
    message = f"it hibernates ({sleep.reason}): {sleep.message}; {what_next}"
    return StageWhy(stage="status", code="hibernated", message=message, passes=False, since=sleep.since, until=until)


def _score(sites: Sites, place: SiteProfile) -> StageWhy:
    score = place.score
    message = (
        f"score {score.value:.3f} (earned {score.earned:.3f}, load {score.load + 0.0:.3f}), TScore {score.tscore:.3f}"
    )
    waited, throttle = place.median_wait_seconds, sites.queue_times.throttle_seconds
    if waited is not None:
        message += f"; its queue takes {waited:.0f} s in the middle, and more than {throttle:.0f} s would be too long"
    return StageWhy(stage="score", code="scored", message=message)


def _room(place: SiteProfile, pool: CandidateSet) -> StageWhy:
    room, used = place.room(pool.shape), place.used.get(pool.shape, 0)
    message = room.tell(used)
    if place.canary and not place.placed:
        message = f"it was woken: one canary may go there beside the {used} that are reserved or run"
    elif room.rule == "pilots" and place.backlog:
        message += f"; {place.backlog} of them are the backlog of its pilots"
    return StageWhy(stage="room", code=room.rule, message=message, passes=used < room.limit)


def _pick(sites: Sites, place: SiteProfile, pool: CandidateSet) -> StageWhy:
    policy = sites.settings.policy
    if pool.status[place.index] != CANDIDATE:
        asleep = pool.status[place.index] == HIBERNATED
        message = "it sleeps" if asleep else "it is not among the candidates"
        return StageWhy(stage="pick", code=policy, message=message, passes=False)
    if policy in ("weighted-random", "uniform"):
        message = f"it is picked next with probability {_share(sites, place, pool):.3g} among {pool.counts[CANDIDATE]}"
    elif policy == "best":
        first = pool.weights.best() == place.index
        message = "it has the best score" if first else "another has a better score, or the same and came before it"
    elif policy == "first":
        first = pool.weights.first() == place.index
        message = "it stands first" if first else "another stands before it"
    else:
        message = f"it is compared with the {pool.counts[CANDIDATE]} candidates by a draw from what is believed of each"
        message += _beliefs(place)
    return StageWhy(stage="pick", code=policy, message=message)


def _beliefs(place: SiteProfile) -> str:
    """What is known of the activity that was tried there latest."""
    known = place.arms.evidence()
    if not known or not known[-1].successes + known[-1].failures:
        return "; nothing ended there yet"
    latest = known[-1]
    share = latest.successes / (latest.successes + latest.failures)
    told = f"; of {latest.activity or 'what ran there'}, {100 * share:.0f} % succeeded"
    return told + (f", one in {latest.seconds / latest.successes:.0f} s" if latest.successes else "")
