"""Whether the whole state of an engine makes sense, and what of it must survive a restart."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pilotage.engine.classes import queue_of
from pilotage.engine.growth import ends
from pilotage.engine.jobs import JobState
from pilotage.engine.leaving import closes
from pilotage.engine.parts import FINAL, STANDINGS, AttemptState, Standing
from pilotage.engine.places import SiteState
from pilotage.engine.provisioning import spare
from pilotage.engine.readiness import is_under_way
from pilotage.model.graph import EdgeKind, Graph

if TYPE_CHECKING:
    from pilotage.engine.engine import Engine


class Insane(Exception):
    """The engine contradicts itself: a bug of its own, told with what it is about."""


def _must(condition: object, what: str, *about: object) -> None:
    if not condition:
        raise Insane(f"{what}: {about}")


def sanity_check(engine: Engine) -> None:
    """Look at everything, slowly; raises `Insane`."""
    used: Counter[tuple[str, int]] = Counter()
    owners: Counter[str] = Counter()
    ready: Counter[int] = Counter()
    for job in engine.jobs.values():
        _check_job(engine, job, used, owners, ready)
    own: dict[int, list[AttemptState]] = {}
    for job in engine.jobs.values():
        for _, attempt in job.attempts():
            if attempt.counted:
                own.setdefault(id(attempt.site), []).append(attempt)
    for site in engine.sites.values():
        _check_site(engine, site, used, own)
    for owner, count in engine.owners.items():
        _must(owners[owner] == count, "packages of an owner under way", owner, owners[owner], count)
    for job in engine.jobs.values():
        for queue in job.classes.values():
            _must(queue.ready == ready[id(queue)], "ready packages of a class", job.id, queue.index, queue.ready)
            looked_at = (queue in engine.active) + (queue in engine.stuck)
            _must(looked_at == bool(queue.ready and job.open), "a class is looked at", job.id)
    quota = engine.settings.owner_running_max
    _must(not quota or all(count <= quota for count in owners.values()), "the quota of an owner", dict(owners))


def _check_job(
    engine: Engine,
    job: JobState,
    used: Counter[tuple[str, int]],
    owners: Counter[str],
    ready: Counter[int],
) -> None:
    counts = Counter(job.standing)
    queued: dict[int, set[int]] = {}
    _must(
        all(counts[each] == job.counts[each] for each in range(len(STANDINGS))),
        "counts of standings",
        job.id,
        job.counts,
    )
    reserved = sum(each.count for each in job.reservations.values())
    _must(reserved == job.counts[Standing.RESERVED], "reservations of a job", job.id, reserved)
    finals = set(job.finals)
    looked = job.special and job.accepted
    _must(not looked or job.ending == ends(job), "whether everything but what runs last is over", job.id)
    left = sum(job.standing[number] < Standing.DROPPED for number in finals)
    _must(job.finals_left == left, "what runs last and is not over", job.id, job.finals_left)
    made = sum(job.standing[number] in (Standing.DONE, Standing.ABORTED) for number in finals)
    _must(job.finals_made == made, "what runs last and has run", job.id, job.finals_made)
    _check_packages(job, finals)
    for number, standing in enumerate(job.standing):
        if standing == Standing.READY:
            queue = queue_of(engine, job, number)
            ready[id(queue)] += 1
            if id(queue) not in queued:
                queued[id(queue)] = set(queue.queue)
            _must(number in queued[id(queue)], "a ready package is in its queue", job.id, number)
    owners[job.owner] += sum(job.busy)
    for number, work in job.work.items():
        standing = job.standing[number]
        _must(not work.idle, "work with nothing to remember", job.id, number)
        _must((standing == Standing.RESERVED) == (work.bound is not None), "reserved is bound", job.id, number)
        if work.bound is not None:
            queue = queue_of(engine, job, number)
            _must(number in work.bound.reserved.get(queue, ()), "a reservation at its site", job.id, number)
            used[work.bound.name, queue.shape] += 1
        if standing >= FINAL:
            _must(not work.attempts and not work.candidates, "attempts of what is over", job.id, number)
        else:
            live = not work.dropped and not work.refused and is_under_way(work)
            _must((standing == Standing.LIVE) == live, "live is under way", job.id, number, STANDINGS[standing])
        for attempt in work.attempts.values():
            _must(attempt.counted == (not attempt.lost), "a lost attempt takes nothing", attempt.ref)
            has_job = attempt.site.bound.get(attempt.key) is attempt
            _must(has_job == (attempt.counted and bool(attempt.key)), "a batch job of its own", attempt.ref)
            used[attempt.site.name, attempt.shape] += attempt.counted
            pilot = engine.pilots.get(attempt.pilot)
            if attempt.counted and pilot is not None:
                _must(pilot.assigned.get(attempt.ref) is attempt, "an attempt is with its pilot", attempt.ref)


def _check_packages(job: JobState, finals: set[int]) -> None:
    """What holds for each package by itself, for all of them at once: a world looks at this thousands of times."""
    # Copies: as long as somebody looks at an array itself, no package can be added to it.
    standing = np.frombuffer(bytes(job.standing), np.uint8)
    satisfied = np.frombuffer(bytes(job.satisfied), np.uint8)
    granted = np.frombuffer(job.granted.tobytes(), np.intc) != 0
    waits = np.frombuffer(job.waits.tobytes(), np.intc)
    dropped = np.zeros(job.count, np.bool_)
    dropped[[number for number, work in job.work.items() if work.dropped]] = True
    _must_all(satisfied == (dropped | granted), "satisfied", job)
    _must_all((standing == Standing.DONE) == granted, "done is granted", job)
    if job.accepted:
        consumers, producers = _awaited_edges(job.plan.graph)
        missing = np.bincount(consumers[satisfied[producers] == 0], minlength=job.count)
        for template, stages in job.plan.late_waits.items():
            missing[job.plan.template_of == template] += len(stages)
        if not job.ending:
            missing[list(finals)] += 1
        _must_all(waits == missing, "what a package waits for", job, missing, waits)
    free = (standing == Standing.READY) | (standing == Standing.RESERVED) | (standing == Standing.DELAYED)
    _must_all(~free | (waits == 0), "ready with something missing", job)
    _must(job.open or not job.counts[Standing.RESERVED], "reserved in a job that is not open", job.id)


@functools.lru_cache(maxsize=64)
def _awaited_edges(graph: Graph) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Who waits and for whom, over all edges that must be waited for; a graph never changes."""
    edges = [(consumer, producer) for producer, consumer, kind in graph.edges() if EdgeKind.AWAITED in kind]
    consumers, producers = np.array(edges, np.int32).reshape(-1, 2).T
    return consumers, producers


def _must_all(holds: NDArray[np.bool_], what: str, job: JobState, *about: NDArray[Any]) -> None:
    if not holds.all():
        number = int(np.flatnonzero(~holds)[0])
        raise Insane(f"{what}: {(job.id, number, *(int(each[number]) for each in about))}")


def _check_site(
    engine: Engine, site: SiteState, used: Counter[tuple[str, int]], own: Mapping[int, Sequence[AttemptState]]
) -> None:
    if not engine.changes and not site.removed:
        _must((site.status == "hibernated") == site.asleep, "how a site stands is written down", site.name, site.status)
    _must(not ((site.asleep or site.removed) and site.reserved), "something is reserved where nothing goes", site.name)
    score = site.place.score
    settings = engine.settings.selection
    _must(settings.score_floor <= score.value <= settings.score_ceiling, "the score of a site", site.name, score.value)
    _must(site.removed or site.place.answers == site.known, "whether a site can be reached", site.name)
    for shape, count in site.used.items():
        _must(count == used[site.name, shape], "what is used of a site", site.name, shape, count)
    if not site.removed:
        counted = own.get(id(site), ())
        _must(site.place.live == len(counted), "attempts that the choice of sites knows", site.name, site.place.live)
        _must(site.place.ends.running == sum(each.leased for each in counted), "those of them that run", site.name)
    _must(not site.full or spare(site) <= 0, "a site that is full of pilots", site.name)
    _must(site.expected == sum(not each.spoke for each in site.requests.values()), "pilots expected", site.name)
    for queue, numbers in site.reserved.items():
        _must(numbers, "an empty reservation", site.name)
        for number in numbers:
            work = queue.job.work.get(number)
            _must(work is not None and work.bound is site, "a reservation of a package bound here", site.name, number)
    for attempt in site.bound.values():
        _must(attempt.counted and attempt.site is site, "a bound attempt of its site", site.name, attempt.ref)
    for pilot in site.pilots.values():
        _must(engine.pilots.get(pilot.name) is pilot, "a pilot of its site", pilot.name)
        taken = [0, 0, 0, 0]
        for attempt in pilot.assigned.values():
            demand = attempt.demand
            for at, amount in enumerate(
                (demand.cores_hundredths, demand.memory_bytes, demand.gpus, demand.scratch_bytes)
            ):
                taken[at] += amount
        capacity = pilot.capacity
        whole = (capacity.cores_hundredths, capacity.memory_bytes, capacity.gpus, capacity.scratch_bytes)
        left = [all_of_it - part for all_of_it, part in zip(whole, taken, strict=True)]
        _must(left == pilot.free, "what is left of a pilot", pilot.name, left, pilot.free)


def durable_state(engine: Engine) -> dict[str, Any]:
    """Everything that follows from events alone, as plain values: two engines that know the same are equal in it."""
    return {
        "next": engine.next_n,
        "jobs": {job.id: _durable_job(job) for job in engine.jobs.values() if not closes(job)},
        "pilots": sorted((pilot.name, pilot.site.name, pilot.request) for pilot in engine.pilots.values()),
        "sites": sorted((site.name, site.status) for site in engine.sites.values() if not site.removed),
        "requests": sorted((each.key, each.site.name, each.native_id, each.spoke) for each in engine.requests.values()),
    }


def _durable_job(job: JobState) -> dict[str, Any]:
    flags = (job.owner, job.epoch, job.accepted, job.held, job.cancelled, job.aborted, job.cleared)
    return {
        "flags": flags,
        "packages": job.count,
        "late": sorted(job.late),
        "enders": sorted(job.enders),
        "over": [(n, s, job.granted[n]) for n, s in enumerate(job.standing) if s >= FINAL],
        "waits": job.waits.tolist() if job.accepted else [],
        "attempts": job.last_attempt.tolist(),
        "epochs": sorted(job.epochs.items()),
        "alike": sorted(job.failed_alike.items()),
        "work": [_durable_work(number, job) for number, work in sorted(job.work.items()) if work.durable],
    }


def _durable_work(number: int, job: JobState) -> tuple[Any, ...]:
    work = job.work[number]
    attempts = sorted(
        (
            each.ref.attempt,
            each.site.name,
            each.pilot,
            each.key,
            each.leased,
            each.queued,
            each.suspect,
            each.lost,
            each.lost_reason,
            each.drop_revision,
            msgspec.to_builtins(each.demand),
        )
        for each in work.attempts.values()
    )
    failures = [msgspec.to_builtins(work.failures[each]) for each in sorted(work.failures)]
    return number, work.held, work.dropped, work.replicas, work.replicated, sorted(work.candidates), attempts, failures
