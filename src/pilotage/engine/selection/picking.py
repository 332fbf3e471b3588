"""The last stage: picks one of the candidates; if there is none, wakes the first hibernated site that is due."""

from __future__ import annotations

from collections.abc import Collection

from pilotage.engine.selection.candidates import CANDIDATE, HIBERNATED, REFUSED, CandidateSet
from pilotage.engine.selection.sampling import Draws
from pilotage.engine.selection.site_profile import SiteProfile
from pilotage.engine.selection.sites import Sites
from pilotage.engine.selection.status import Woken, wakes_at
from pilotage.engine.selection.thompson import is_quicker, sample


def choose(
    sites: Sites,
    pool: CandidateSet,
    draws: Draws,
    *,
    now: float,
    avoid: Collection[int],
    unfit: Collection[int],
    prefer: int,
    activity: str,
) -> tuple[SiteProfile, Woken | None, bool] | None:
    """Choose a candidate: the profile, whether it was woken for this, whether it was the preferred one; or None."""
    if prefer >= 0 and pool.status[prefer] == CANDIDATE and prefer not in unfit:
        profile = sites.profiles[prefer]
        assert profile is not None
        return profile, None, True
    left_out = left_out_of(pool, avoid=avoid, unfit=unfit) if avoid or unfit else ()
    index = _drawn(sites, pool, draws, now=now, left_out=left_out, activity=activity)
    if index is not None:
        profile = sites.profiles[index]
        assert profile is not None
        return profile, None, False
    woken = wake_for(sites, pool, now=now, left_out=left_out)
    # With any policy, the woken site is chosen: there is no other.
    return (sites.by_name[woken.site], woken, False) if woken is not None else None


def left_out_of(pool: CandidateSet, *, avoid: Collection[int], unfit: Collection[int]) -> set[int]:
    """Sites to leave out: the unfit, and the avoided if any other site fits."""
    left_out = set(unfit)
    avoided = left_out.union(avoid)
    could = len(pool.status) - pool.counts[REFUSED]
    return avoided if could > sum(pool.allowed(index) for index in avoided) else left_out


def _drawn(
    sites: Sites, pool: CandidateSet, draws: Draws, *, now: float, left_out: Collection[int], activity: str
) -> int | None:
    settings = sites.settings
    if settings.policy == "thompson":
        return _sampled(sites, pool, draws, now=now, left_out=left_out, activity=activity)
    with pool.weights.without(left_out) as weights:
        if settings.policy == "first":
            return weights.first()
        if settings.policy == "best":
            return weights.best()
        return weights.pick(draws.uniform())


def _sampled(
    sites: Sites, pool: CandidateSet, draws: Draws, *, now: float, left_out: Collection[int], activity: str
) -> int | None:
    settings, profiles = sites.settings, sites.profiles
    if pool.counts[CANDIDATE] <= settings.thompson_looked_at:
        compared = pool.candidates()
        if left_out:
            compared = [index for index in compared if index not in left_out]
        if len(compared) <= 1:
            return compared[0] if compared else None
        if len(compared) > 2:
            arms = [profile.arms.peek(activity) for index in compared if (profile := profiles[index]) is not None]
            return compared[sample(arms, now, draws, settings)]
        one, other = compared
        draw = draws.uniform()
    else:
        # Draw two of many by weight: the better of two is good enough.
        first = draws.uniform()
        second, draw = draws.halves()
        if left_out:
            with pool.weights.without(left_out) as weights:
                one, other = weights.pick_two(first, second)
        else:
            one, other = pool.weights.pick_two(first, second)
        if other < 0:
            return one if one >= 0 else None
    this, that = profiles[one], profiles[other]
    assert this is not None
    assert that is not None
    return one if is_quicker(this.arms.peek(activity), that.arms.peek(activity), now, draw, settings) else other


def wake_for(sites: Sites, pool: CandidateSet, *, now: float, left_out: Collection[int] = ()) -> Woken | None:
    """Wake the first hibernated site in the queue that fits and is due (condition 2a)."""
    if not pool.counts[HIBERNATED] or (not left_out and pool.asleep[0] <= now < pool.asleep[1]):
        return None
    first, earliest = _first_due(sites, pool, now=now, left_out=left_out)
    if first is None:
        if not left_out:
            pool.asleep = (now, earliest)
        return None
    message = "no other site can be chosen: it gets a new chance, with one canary"
    return sites.wake(first, "no-candidate", message, score=sites.settings.woken_score, canary=True)


def next_wake_at(sites: Sites, pool: CandidateSet, *, now: float, left_out: Collection[int] = ()) -> float | None:
    """When the next hibernated site of a pool may be woken; None if time wakes none."""
    if not pool.counts[HIBERNATED]:
        return None
    first, earliest = _first_due(sites, pool, now=now, left_out=left_out)
    if first is not None:
        return now
    return earliest if earliest < float("inf") else None


def _first_due(
    sites: Sites, pool: CandidateSet, *, now: float, left_out: Collection[int]
) -> tuple[SiteProfile | None, float]:
    """The first site in the queue that is due; else when the first one will be."""
    alone = pool.awake == sum(pool.is_awake(index) for index in left_out)
    score = sites.settings.woken_score
    earliest = float("inf")
    for index in sites.asleep:
        profile = sites.profiles[index]
        if profile is None or profile.sleep is None or not pool.allowed(index) or index in left_out:
            continue
        if profile.sleep.reason == "by-hand" or not profile.answers or not profile.has_room(pool.shape, score=score):
            continue
        due = wakes_at(profile.sleep, profile.times, sites.settings, alone=alone)
        if due <= now or now < profile.sleep.since:  # a clock that was set back keeps no site asleep
            return profile, due
        earliest = min(earliest, due)
    return None, earliest
