"""Explains why a site is or is not chosen: the result of each stage, in order, for programs and for people."""

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
    """The result of one stage for a site."""

    stage: Stage
    code: str  # the filter that refused, the status, the rule of the room, the policy
    message: str
    passes: bool = True
    since: float | None = None
    until: float | None = None


class SiteWhy(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all stages for a site; the first that does not pass is the reason."""

    site: str
    status: str  # candidate, hibernated, overloaded; refused if it does not fit the requirements
    score: float
    tscore: float
    share: float  # probability of being chosen next
    stages: tuple[StageWhy, ...]


class ChoiceWhy(msgspec.Struct, frozen=True, kw_only=True):
    """The next choice: the sites, the most probable first, and how many are left out."""

    policy: str
    candidates: int
    hibernated: int
    overloaded: int
    refused: int
    sites: tuple[SiteWhy, ...]
    left_out: int = 0


def explain_site(sites: Sites, profile: SiteProfile, pool: CandidateSet, *, now: float) -> SiteWhy:
    """Why a site is or is not chosen for these requirements."""
    stages = [
        *_filter(profile, pool),
        _status(sites, profile, pool, now=now),
        _score(sites, profile),
        _room(profile, pool),
        _pick(sites, profile, pool),
    ]
    return SiteWhy(
        site=profile.name,
        status=NAMES[pool.status[profile.index]] or "refused",
        score=profile.score.value,
        tscore=profile.score.tscore,
        share=_share(sites, profile, pool),
        stages=tuple(stages),
    )


def explain_choice(sites: Sites, pool: CandidateSet, *, now: float) -> ChoiceWhy:
    """How the next choice for these requirements would be made."""
    known = [profile for profile in sites.profiles if profile is not None]
    shown = sorted(known, key=lambda profile: _order(profile, pool))
    explained = tuple(explain_site(sites, profile, pool, now=now) for profile in shown[:_SHOWN_MAX])
    _, candidates, hibernated, overloaded = pool.counts
    return ChoiceWhy(
        policy=sites.settings.policy,
        candidates=candidates,
        hibernated=hibernated,
        overloaded=overloaded,
        refused=len(known) - candidates - hibernated - overloaded,
        sites=explained,
        left_out=len(known) - len(explained),
    )


def _share(sites: Sites, profile: SiteProfile, pool: CandidateSet) -> float:
    """The share by weight, or all if the policy leaves no choice; for Thompson sampling only what the weights suggest."""
    if sites.settings.policy == "best":
        return float(pool.weights.best() == profile.index)
    if sites.settings.policy == "first":
        return float(pool.weights.first() == profile.index)
    return pool.weights[profile.index] / pool.weights.total if pool.weights.total else 0.0


def _order(profile: SiteProfile, pool: CandidateSet) -> tuple[int, int, float, int]:
    """The most probable first."""
    return -pool.weights[profile.index], -pool.status[profile.index], -profile.score.value, profile.index


def _filter(profile: SiteProfile, pool: CandidateSet) -> list[StageWhy]:
    refused = [
        StageWhy(stage="filter", code=each.filter, message=each.message, passes=False)
        for each in refusals(profile.description, pool.requirements)
    ]
    return refused or [StageWhy(stage="filter", code="passed", message="it fits the requirements")]


def _status(sites: Sites, profile: SiteProfile, pool: CandidateSet, *, now: float) -> StageWhy:
    sleep = profile.sleep
    if sleep is None:
        full = pool.allowed(profile.index) and not profile.has_room(pool.shape)
        code = "overloaded" if full else "candidate"
        away = "it does not answer" if not profile.answers else "it is full"
        message = away if full else "it may be chosen"
        if profile.canary:
            message += ", one canary at a time"
        return StageWhy(stage="status", code=code, message=message, passes=not full)
    until: float | None = None
    if sleep.reason == "by-hand":
        what_next = "it hibernates until a person wakes it"
    elif sleep.reason == "dead-starts":
        until = wakes_at(sleep, profile.times, sites.settings, alone=not pool.awake)
        what_next = (
            "nothing more is submitted there until a person wakes it, a probe passes or its entry changes,"
            " or its pause is over and no other site can be chosen: then one pilot is tried"
        )
    else:
        until = wakes_at(sleep, profile.times, sites.settings, alone=not pool.awake)
        behind = "its pause is over" if until <= now else "its pause ends"
        what_next = f"it is woken when no other site can be chosen and {behind}, or when it finishes another attempt"
    message = f"it hibernates ({sleep.reason}): {sleep.message}; {what_next}"
    return StageWhy(stage="status", code="hibernated", message=message, passes=False, since=sleep.since, until=until)


def _score(sites: Sites, profile: SiteProfile) -> StageWhy:
    score = profile.score
    message = (
        f"score {score.value:.3f} (earned {score.earned:.3f}, load {score.load + 0.0:.3f}), TScore {score.tscore:.3f}"
    )
    waited, throttle = profile.median_wait_seconds, sites.queue_times.throttle_seconds
    if waited is not None:
        message += f"; its median queue time is {waited:.0f} s, and the limit is {throttle:.0f} s"
    return StageWhy(stage="score", code="scored", message=message)


def _room(profile: SiteProfile, pool: CandidateSet) -> StageWhy:
    room, used = profile.room(pool.shape), profile.used.get(pool.shape, 0)
    message = room.describe(used)
    if profile.canary and not profile.placed:
        message = f"it was woken: one canary may go there beside the {used} reserved or running"
    elif room.rule == "pilots" and profile.backlog:
        message += f"; {profile.backlog} of them are in the backlog of its pilots"
    return StageWhy(stage="room", code=room.rule, message=message, passes=used < room.limit)


def _pick(sites: Sites, profile: SiteProfile, pool: CandidateSet) -> StageWhy:
    policy = sites.settings.policy
    if pool.status[profile.index] != CANDIDATE:
        asleep = pool.status[profile.index] == HIBERNATED
        message = "it hibernates" if asleep else "it is not among the candidates"
        return StageWhy(stage="pick", code=policy, message=message, passes=False)
    if policy in ("weighted-random", "uniform"):
        message = (
            f"it is chosen next with probability {_share(sites, profile, pool):.3g} among {pool.counts[CANDIDATE]}"
        )
    elif policy == "best":
        first = pool.weights.best() == profile.index
        message = "it has the best score" if first else "another site has a better score, or the same and comes first"
    elif policy == "first":
        first = pool.weights.first() == profile.index
        message = "it comes first" if first else "another site comes first"
    else:
        message = f"Thompson sampling chooses among the {pool.counts[CANDIDATE]} candidates by their results so far"
        message += _beliefs(profile)
    return StageWhy(stage="pick", code=policy, message=message)


def _beliefs(profile: SiteProfile) -> str:
    """The evidence of the activity that was tried there latest."""
    known = profile.arms.evidence()
    if not known or not known[-1].successes + known[-1].failures:
        return "; no attempt has ended there yet"
    latest = known[-1]
    share = latest.successes / (latest.successes + latest.failures)
    text = f"; of {latest.activity or 'what ran there'}, {100 * share:.0f} % succeeded"
    return text + (f", one in {latest.seconds / latest.successes:.0f} s" if latest.successes else "")
