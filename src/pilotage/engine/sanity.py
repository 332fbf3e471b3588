"""Whether the whole state of an engine makes sense, and what of it must survive a restart."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pilotage.engine.classes import queue_of
from pilotage.engine.growth import ends
from pilotage.engine.jobs import JobState
from pilotage.engine.leaving import closes
from pilotage.engine.parts import FINAL, STANDINGS, AttemptState, PackageWork, Standing
from pilotage.engine.places import PilotState, SiteState
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
    seen = _Seen()
    for job in engine.jobs.values():
        _check_job(engine, job, seen)
    for site in engine.sites.values():
        _check_site(engine, site, seen)
    owners, ready = seen.owners, seen.ready
    for owner, count in engine.owners.items():
        _must(owners[owner] == count, "packages of an owner under way", owner, owners[owner], count)
    for job in engine.jobs.values():
        for queue in job.classes.values():
            _must(queue.ready == ready[id(queue)], "ready packages of a class", job.id, queue.index, queue.ready)
            looked_at = (queue in engine.active) + (queue in engine.stuck)
            _must(looked_at == bool(queue.ready and job.open), "a class is looked at", job.id)
    quota = engine.settings.owner_running_max
    _must(not quota or all(count <= quota for count in owners.values()), "the quota of an owner", dict(owners))


class _Seen:
    """What the packages of all jobs come to, for what others say of them."""

    __slots__ = ("counted", "owners", "ready", "used")

    def __init__(self) -> None:
        self.used: Counter[tuple[str, int]] = Counter()  # by site and shape
        self.owners: Counter[str] = Counter()  # packages under way
        self.ready: Counter[int] = Counter()  # by the identity of a class
        self.counted: dict[int, list[AttemptState]] = {}  # attempts that take room, by the identity of their site


def _check_job(engine: Engine, job: JobState, seen: _Seen) -> None:
    standing = bytes(job.standing)
    counts = [standing.count(each) for each in range(len(STANDINGS))]
    _must(counts == job.counts, "counts of standings", job.id, counts, job.counts)
    reserved = sum(each.count for each in job.reservations.values())
    _must(reserved == job.counts[Standing.RESERVED], "reservations of a job", job.id, reserved)
    _must(job.open or not job.counts[Standing.RESERVED], "reserved in a job that is not open", job.id)
    looked = job.special and job.accepted
    _must(not looked or job.ending == ends(job), "whether everything but what runs last is over", job.id)
    left = sum(standing[number] < Standing.DROPPED for number in job.finals)
    _must(job.finals_left == left, "what runs last and is not over", job.id, job.finals_left)
    made = sum(standing[number] in (Standing.DONE, Standing.ABORTED) for number in job.finals)
    _must(job.finals_made == made, "what runs last and has run", job.id, job.finals_made)
    _check_packages(
        job.id,
        job.plan.graph,
        standing=standing,
        satisfied=bytes(job.satisfied),
        granted=job.granted.tobytes(),
        waits=job.waits.tobytes(),
        dropped=tuple([number for number, work in job.work.items() if work.dropped]),
        besides=_awaited_besides(job) if job.accepted else None,
    )
    seen.owners[job.owner] += sum(job.busy)
    _check_queues(engine, job, seen)
    for number, work in job.work.items():
        _check_work(engine, job, number, work)
        if work.bound is not None:
            seen.used[work.bound.name, queue_of(engine, job, number).shape] += 1
        for attempt in work.attempts.values():
            _check_attempt(engine, attempt)
            if attempt.counted:
                seen.used[attempt.site.name, attempt.shape] += 1
                seen.counted.setdefault(id(attempt.site), []).append(attempt)


def _check_queues(engine: Engine, job: JobState, seen: _Seen) -> None:
    queued: dict[int, set[int]] = {}
    number = job.standing.find(Standing.READY)
    while number >= 0:
        queue = queue_of(engine, job, number)
        seen.ready[id(queue)] += 1
        if id(queue) not in queued:
            queued[id(queue)] = set(queue.queue)
        _must(number in queued[id(queue)], "a ready package is in its queue", job.id, number)
        number = job.standing.find(Standing.READY, number + 1)


def _check_work(engine: Engine, job: JobState, number: int, work: PackageWork) -> None:
    standing = job.standing[number]
    _must(not work.idle, "work with nothing to remember", job.id, number)
    _must((standing == Standing.RESERVED) == (work.bound is not None), "reserved is bound", job.id, number)
    if work.bound is not None:
        queue = queue_of(engine, job, number)
        _must(number in work.bound.reserved.get(queue, ()), "a reservation at its site", job.id, number)
    if standing >= FINAL:
        _must(not work.attempts and not work.candidates, "attempts of what is over", job.id, number)
    else:
        live = not work.dropped and not work.refused and is_under_way(work)
        _must((standing == Standing.LIVE) == live, "live is under way", job.id, number, STANDINGS[standing])


def _check_attempt(engine: Engine, attempt: AttemptState) -> None:
    _must(attempt.counted == (not attempt.lost), "a lost attempt takes nothing", attempt.ref)
    has_job = attempt.site.bound.get(attempt.key) is attempt
    _must(has_job == (attempt.counted and bool(attempt.key)), "a batch job of its own", attempt.ref)
    pilot = engine.pilots.get(attempt.pilot)
    if attempt.counted and pilot is not None:
        _must(pilot.assigned.get(attempt.ref) is attempt, "an attempt is with its pilot", attempt.ref)


def _awaited_besides(job: JobState) -> bytes:
    """How many things each package of a job waits for besides its producers, as the numbers of an array."""
    waits_for_all = () if job.ending else job.finals
    if not job.plan.late_waits and not waits_for_all:
        return bytes(job.waits.itemsize * job.count)
    besides = np.zeros(job.count, np.intc)
    for template, stages in job.plan.late_waits.items():
        besides[job.plan.template_of == template] += len(stages)
    besides[list(waits_for_all)] += 1
    return besides.tobytes()


@functools.lru_cache(maxsize=16)
def _check_packages(
    job: str,
    graph: Graph,
    *,
    standing: bytes,
    satisfied: bytes,
    granted: bytes,
    waits: bytes,
    dropped: tuple[int, ...],
    besides: bytes | None,
) -> None:
    """What holds for each package by itself, for all of them at once: a world looks at this thousands of times.

    All that it looks at are its arguments, none of which can change: what held of them once holds of them again, and what
    does not is not remembered. `besides` is None where nothing is waited for yet.
    """
    stands = np.frombuffer(standing, np.uint8)
    done = np.frombuffer(satisfied, np.uint8)
    is_granted = np.frombuffer(granted, np.intc) != 0
    waiting = np.frombuffer(waits, np.intc)
    is_dropped = np.zeros(len(standing), np.bool_)
    is_dropped[list(dropped)] = True
    _must_all(done == (is_dropped | is_granted), "satisfied", job)
    _must_all((stands == Standing.DONE) == is_granted, "done is granted", job)
    if besides is not None:
        consumers, producers = _awaited_edges(graph)
        missing = np.bincount(consumers[done[producers] == 0], minlength=len(standing))
        missing += np.frombuffer(besides, np.intc)
        _must_all(waiting == missing, "what a package waits for", job, missing, waiting)
    free = (stands == Standing.READY) | (stands == Standing.RESERVED) | (stands == Standing.DELAYED)
    _must_all(~free | (waiting == 0), "ready with something missing", job)


@functools.lru_cache(maxsize=64)
def _awaited_edges(graph: Graph) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Who waits and for whom, over all edges that must be waited for; a graph never changes."""
    edges = [(consumer, producer) for producer, consumer, kind in graph.edges() if EdgeKind.AWAITED in kind]
    consumers, producers = np.array(edges, np.int32).reshape(-1, 2).T
    return consumers, producers


def _must_all(holds: NDArray[np.bool_], what: str, job: str, *about: NDArray[Any]) -> None:
    if not holds.all():
        number = int(np.flatnonzero(~holds)[0])
        raise Insane(f"{what}: {(job, number, *(int(each[number]) for each in about))}")


def _check_site(engine: Engine, site: SiteState, seen: _Seen) -> None:
    if not engine.changes and not site.removed:
        _must((site.status == "hibernated") == site.asleep, "how a site stands is written down", site.name, site.status)
    _must(not ((site.asleep or site.removed) and site.reserved), "something is reserved where nothing goes", site.name)
    score = site.place.score.value
    settings = engine.settings.selection
    _must(settings.score_floor <= score <= settings.score_ceiling, "the score of a site", site.name, score)
    _must(site.removed or site.place.answers == site.known, "whether a site can be reached", site.name)
    for shape, count in site.used.items():
        _must(count == seen.used[site.name, shape], "what is used of a site", site.name, shape, count)
    if not site.removed:
        counted = seen.counted.get(id(site), ())
        _must(site.place.live == len(counted), "attempts that the choice of sites knows", site.name, site.place.live)
        _must(site.place.ends.running == sum([each.leased for each in counted]), "those of them that run", site.name)
    _must(not site.full or spare(site) <= 0, "a site that is full of pilots", site.name)
    _must(site.expected == sum([not each.spoke for each in site.requests.values()]), "pilots expected", site.name)
    for queue, numbers in site.reserved.items():
        _must(numbers, "an empty reservation", site.name)
        for number in numbers:
            work = queue.job.work.get(number)
            _must(work is not None and work.bound is site, "a reservation of a package bound here", site.name, number)
    for attempt in site.bound.values():
        _must(attempt.counted and attempt.site is site, "a bound attempt of its site", site.name, attempt.ref)
    for pilot in site.pilots.values():
        _must(engine.pilots.get(pilot.name) is pilot, "a pilot of its site", pilot.name)
        left = _left_of(pilot)
        free = [pilot.free_cores_hundredths, pilot.free_memory_bytes, pilot.free_gpus, pilot.free_scratch_bytes]
        _must(left == free, "what is left of a pilot", pilot.name, left, free)


def _left_of(pilot: PilotState) -> list[int]:
    """What a pilot has, less what the attempts take that it was given."""
    whole = pilot.capacity
    cores, memory, gpus, scratch = whole.cores_hundredths, whole.memory_bytes, whole.gpus, whole.scratch_bytes
    for attempt in pilot.assigned.values():
        demand = attempt.demand
        cores -= demand.cores_hundredths
        memory -= demand.memory_bytes
        gpus -= demand.gpus
        scratch -= demand.scratch_bytes
    return [cores, memory, gpus, scratch]


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
