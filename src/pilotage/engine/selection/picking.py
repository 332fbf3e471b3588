"""The last stage: one of the candidates is picked; where there is none, the first that sleeps gets a new chance."""

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
    """One of the candidates of a pool: the place, whether it was woken for it, whether it was the preferred one; or None."""
    if prefer >= 0 and pool.status[prefer] == CANDIDATE and prefer not in unfit:
        place = sites.places[prefer]
        assert place is not None
        return place, None, True
    left_out = left_out_of(pool, avoid=avoid, unfit=unfit) if avoid or unfit else ()
    index = _drawn(sites, pool, draws, now=now, left_out=left_out, activity=activity)
    if index is not None:
        place = sites.places[index]
        assert place is not None
        return place, None, False
    woken = wake_for(sites, pool, now=now, left_out=left_out)
    # Whatever the policy, it is the one that was woken: there is no other.
    return (sites.by_name[woken.site], woken, False) if woken is not None else None


def left_out_of(pool: CandidateSet, *, avoid: Collection[int], unfit: Collection[int]) -> set[int]:
    """Who is left out: the unfit, and those to be avoided where any other site could do it."""
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
    settings, places = sites.settings, sites.places
    if pool.counts[CANDIDATE] <= settings.thompson_looked_at:
        compared = pool.candidates()
        if left_out:
            compared = [index for index in compared if index not in left_out]
        if len(compared) <= 1:
            return compared[0] if compared else None
        if len(compared) > 2:
            arms = [place.arms.look(activity) for index in compared if (place := places[index]) is not None]
            return compared[sample(arms, now, draws, settings)]
        one, other = compared
        draw = draws.uniform()
    else:
        # Two of many, drawn by weight: the better of two is good enough.
        first = draws.uniform()
        second, draw = draws.halves()
        if left_out:
            with pool.weights.without(left_out) as weights:
                one, other = weights.pick_two(first, second)
        else:
            one, other = pool.weights.pick_two(first, second)
        if other < 0:
            return one if one >= 0 else None
    this, that = places[one], places[other]
    assert this is not None
    assert that is not None
    return one if is_quicker(this.arms.look(activity), that.arms.look(activity), now, draw, settings) else other


def wake_for(sites: Sites, pool: CandidateSet, *, now: float, left_out: Collection[int] = ()) -> Woken | None:
    """Give the first of the queue a new chance that could do what is asked and whose time has come (2a)."""
    if not pool.counts[HIBERNATED] or (not left_out and pool.asleep[0] <= now < pool.asleep[1]):
        return None
    first, earliest = _first_due(sites, pool, now=now, left_out=left_out)
    if first is None:
        if not left_out:
            pool.asleep = (now, earliest)
        return None
    message = "no other site can be picked: it gets a new chance, with one canary"
    return sites.wake(first, "no-candidate", message, score=sites.settings.woken_score, canary=True)


def next_wake_at(sites: Sites, pool: CandidateSet, *, now: float, left_out: Collection[int] = ()) -> float | None:
    """When the next sleeping site of a pool may get a new chance; None where there is none that time would wake."""
    if not pool.counts[HIBERNATED]:
        return None
    first, earliest = _first_due(sites, pool, now=now, left_out=left_out)
    if first is not None:
        return now
    return earliest if earliest < float("inf") else None


def _first_due(
    sites: Sites, pool: CandidateSet, *, now: float, left_out: Collection[int]
) -> tuple[SiteProfile | None, float]:
    """The first in the queue whose time has come; else when the first time comes."""
    alone = pool.awake == sum(pool.is_awake(index) for index in left_out)
    score = sites.settings.woken_score
    earliest = float("inf")
    for index in sites.asleep:
        place = sites.places[index]
        if place is None or place.sleep is None or not pool.allowed(index) or index in left_out:
            continue
        if place.sleep.reason == "by-hand" or not place.answers or not place.has_room(pool.shape, score=score):
            continue
        due = wakes_at(place.sleep, place.times, sites.settings, alone=alone)
        if due <= now or now < place.sleep.since:  # a clock that was set back keeps nobody asleep
            return place, due
        earliest = min(earliest, due)
    return None, earliest
