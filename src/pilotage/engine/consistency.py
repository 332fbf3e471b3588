"""Checks the whole state of an engine for contradictions, and extracts the part that must survive a restart."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from operator import attrgetter, sub
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pilotage.engine.decisions.provisioning import pilots_allowed
from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.caches import FILE_STATES, FileState, SiteCache
from pilotage.engine.state.job_files import JobFiles
from pilotage.engine.state.job_queries import closes, ends, is_under_way
from pilotage.engine.state.jobs import FINAL, STATUS_NAMES, ActivePackage, JobState, PackageStatus, QueueClass
from pilotage.engine.state.sites import AttemptState, SiteState
from pilotage.engine.transitions.queue_classes import queue_of
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.jobs.graph import Graph
from pilotage.model.resources import NAMES, amounts, slots_for


class InconsistentState(Exception):
    """The engine contradicts itself: a bug, reported with the objects concerned."""

    def __init__(self, what: str, *about: object) -> None:
        """Name the broken rule and the objects that break it."""
        super().__init__(f"{what}: {about}")


# The simulator checks the whole state after each step. So there is one pass over the active packages, messages are only
# built where a check fails, and a check of the same few values runs once.


def sanity_check(state: EngineState) -> None:
    """Check everything, slowly; raises `InconsistentState`."""
    totals = _Totals()
    for job in state.jobs.by_id.values():
        _check_job(state, job, totals)
    totals.count_attempts()
    for site in state.sites.by_name.values():
        _check_site(state, site, totals)
        _check_pilots(state, site)
    _check_active(state, totals)
    if state.files.caches or state.files.jobs:
        _check_files(state)
    owners = totals.owners
    for owner, count in state.jobs.busy_by_owner.items():
        if owners[owner] != count:
            raise InconsistentState("active packages of an owner", owner, owners[owner], count)
    quota = state.settings.owner_running_max
    if quota and any(count > quota for count in owners.values()):
        raise InconsistentState("the quota of an owner", dict(owners))


class _Totals:
    """Totals over the packages of all jobs, to compare with the counters of sites and owners."""

    __slots__ = ("counted", "live", "owners", "ready", "running", "used")

    def __init__(self) -> None:
        self.owners: dict[str, int] = defaultdict(int)  # active packages
        self.ready: list[QueueClass] = []  # classes with ready packages
        self.counted: list[AttemptState] = []  # attempts that occupy room
        self.used: dict[tuple[str, int], int] = defaultdict(int)  # by site name and shape
        self.live: dict[SiteState, int] = defaultdict(int)
        self.running: dict[SiteState, int] = defaultdict(int)

    def count_attempts(self) -> None:
        """Sum up the attempts that occupy room, by site and shape."""
        for (site, shape, leased), count in Counter(map(_room, self.counted)).items():
            self.used[site.name, shape] += count
            self.live[site] += count
            if leased:
                self.running[site] += count
        # Attempts that share a batch job take its room once.
        shared = Counter((each.site.name, each.shape, each.group) for each in self.counted if each.group)
        for (name, shape, _), count in shared.items():
            self.used[name, shape] -= count - 1


_room = attrgetter("site", "shape", "leased")  # the room that an attempt occupies


def _check_job(state: EngineState, job: JobState, totals: _Totals) -> None:
    reserved = sum([each.count for each in job.reservations.values()])
    if reserved != job.counts[PackageStatus.RESERVED]:
        raise InconsistentState("reservations of a job", job.id, reserved)
    if reserved and not job.open:
        raise InconsistentState("reserved in a job that is not open", job.id)
    if job.special and job.accepted and job.ending != ends(job):
        raise InconsistentState("whether all packages but the final ones are over", job.id)
    late_waits = job.plan.late_waits
    _check_packages(
        _Packages(
            job=job.id,
            graph=job.plan.graph,
            status=bytes(job.status),
            counts=tuple(job.counts),
            satisfied=bytes(job.satisfied),
            granted=job.granted.tobytes(),
            waits=job.waits.tobytes(),
            dropped=tuple([number for number, work in job.work.items() if work.dropped]),
            early=tuple([number for number, work in job.work.items() if work.early]) if job.starts_early else (),
            accepted=job.accepted,
            late_waits=tuple(late_waits.items()),
            kinds=job.plan.template_of.tobytes() if late_waits else b"",
            ending=job.ending,
            finals=job.finals,
            finals_left=job.finals_left,
            finals_made=job.finals_made,
        )
    )
    totals.owners[job.owner] += sum(job.busy)
    _check_queues(state, job, totals)
    for number, work in job.work.items():
        _check_work(job, number, work)
        if work.bound is not None:
            queue = queue_of(state, job, number)
            if number not in state.queues.at[work.bound].reserved.get(queue, ()):
                raise InconsistentState("a reservation at its site", job.id, number)
            totals.used[work.bound.name, queue.shape] += 1
    attempts = [attempt for work in job.work.values() for attempt in work.attempts.values()]
    if attempts:
        _check_attempts(state, attempts)
        totals.counted += [attempt for attempt in attempts if attempt.counted]


def _check_queues(state: EngineState, job: JobState, totals: _Totals) -> None:
    ready: dict[QueueClass, int] = {}
    queued: dict[QueueClass, set[int]] = {}
    number = job.status.find(PackageStatus.READY)
    while number >= 0:
        queue = queue_of(state, job, number)
        if queue not in queued:
            queued[queue] = set(queue.queue)
            ready[queue] = 0
        ready[queue] += 1
        if number not in queued[queue]:
            raise InconsistentState("a ready package is in its queue", job.id, number)
        number = job.status.find(PackageStatus.READY, number + 1)
    recorded = {queue: queue.ready for queue in job.classes.values() if queue.ready}
    if recorded != ready:
        raise InconsistentState(
            "ready packages of classes", job.id, *({each.index: of[each] for each in of} for of in (recorded, ready))
        )
    totals.ready += ready


def _check_active(state: EngineState, totals: _Totals) -> None:
    """Each class with ready packages of an open job is either tried or waits for room; no other class is."""
    active, stuck, wanted = state.queues.ready, state.queues.waiting, 0
    for queue in totals.ready:
        if queue.job.open:
            wanted += 1
            if (queue in active) == (queue in stuck):
                raise InconsistentState("a class with ready packages is tried", queue.job.id, queue.index)
    if wanted != len(active) + len(stuck):
        raise InconsistentState("classes without ready packages are tried", wanted, len(active), len(stuck))


def _check_work(job: JobState, number: int, work: ActivePackage) -> None:
    status = job.status[number]
    if not work.attempts and work.idle:
        raise InconsistentState("an active package without content", job.id, number)
    if (status == PackageStatus.RESERVED) != (work.bound is not None):
        raise InconsistentState("a reserved package is bound", job.id, number)
    if status >= FINAL:
        if work.attempts or work.candidates:
            raise InconsistentState("attempts of a package that is over", job.id, number)
    elif (status == PackageStatus.LIVE) != (not work.dropped and not work.refused and is_under_way(work)):
        raise InconsistentState("a live package has an attempt under way", job.id, number, STATUS_NAMES[status])


def _check_attempts(state: EngineState, attempts: Iterable[AttemptState]) -> None:
    pilots = state.pilots.by_name
    for attempt in attempts:
        key, counted = attempt.key, attempt.counted
        if counted == attempt.lost:
            raise InconsistentState("a lost attempt occupies no room", attempt.ref)
        if (attempt.site.bound.get(key) is attempt) != (counted and key != ""):
            raise InconsistentState("a bound attempt has its own batch job", attempt.ref)
        group = attempt.site.groups.get(attempt.group)
        if (group is not None and attempt in group.members) != (counted and attempt.group != ""):
            raise InconsistentState("an attempt in the group of its batch job", attempt.ref)
        if counted:
            pilot = pilots.get(attempt.pilot)
            if pilot is not None and pilot.assigned.get(attempt.ref) is not attempt:
                raise InconsistentState("a pilot knows its attempt", attempt.ref)


class _Packages(NamedTuple):
    """The state of all packages of a job, as immutable values."""

    job: str
    graph: Graph
    status: bytes
    counts: tuple[int, ...]  # by status
    satisfied: bytes
    granted: bytes
    waits: bytes
    dropped: tuple[int, ...]
    early: tuple[int, ...]  # these may start before their inputs are complete
    accepted: bool  # before that, packages wait for nothing yet
    late_waits: tuple[tuple[int, tuple[int, ...]], ...]  # the late stages that packages of a template wait for
    kinds: bytes  # template of each package, where a template waits for a late stage
    ending: bool
    finals: tuple[int, ...]
    finals_left: int
    finals_made: int


@functools.lru_cache(maxsize=16)
def _check_packages(known: _Packages) -> None:
    """Check what holds for each package on its own, for all at once: the simulator does this thousands of times.

    The result depends on the argument alone, so a check that passed is cached; one that raises is not.
    """
    job, status = known.job, known.status
    counts = tuple(status.count(each) for each in range(len(STATUS_NAMES)))
    if counts != known.counts:
        raise InconsistentState("packages by status", job, counts, known.counts)
    if known.finals_left != sum(status[number] < PackageStatus.DROPPED for number in known.finals):
        raise InconsistentState("final packages that are not over", job, known.finals_left)
    if known.finals_made != sum(
        status[number] in (PackageStatus.DONE, PackageStatus.ABORTED) for number in known.finals
    ):
        raise InconsistentState("final packages that have run", job, known.finals_made)
    stands = np.frombuffer(status, np.uint8)
    done = np.frombuffer(known.satisfied, np.uint8)
    is_granted = np.frombuffer(known.granted, np.intc) != 0
    waiting = np.frombuffer(known.waits, np.intc)
    is_dropped = np.zeros(len(status), np.bool_)
    is_dropped[list(known.dropped)] = True
    _must_all(done == (is_dropped | is_granted), "satisfied", job)
    _must_all((stands == PackageStatus.DONE) == is_granted, "a done package is granted", job)
    if known.accepted:
        missing = _missing(known, done)
        _must_all(waiting == missing, "the number of things a package waits for", job, missing, waiting)
    free = (stands == PackageStatus.READY) | (stands == PackageStatus.RESERVED) | (stands == PackageStatus.DELAYED)
    may_start = waiting == 0
    may_start[list(known.early)] = True
    _must_all(~free | may_start, "a ready package waits for nothing", job)


def _missing(known: _Packages, done: NDArray[np.uint8]) -> NDArray[np.int64]:
    """How many things each package waits for: producers, late stages and, for a final package, all the others."""
    consumers, producers = _awaited_edges(known.graph)
    missing = np.bincount(consumers[done[producers] == 0], minlength=len(known.status))
    for template, stages in known.late_waits:
        missing[np.frombuffer(known.kinds, np.uint32) == template] += len(stages)
    if not known.ending:
        missing[list(known.finals)] += 1
    return missing


@functools.lru_cache(maxsize=64)
def _awaited_edges(graph: Graph) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Consumers and producers over all edges; a graph never changes."""
    edges = [(consumer, producer) for producer, consumer, _ in graph.edges()]
    consumers, producers = np.array(edges, np.int32).reshape(-1, 2).T
    return consumers, producers


def _must_all(holds: NDArray[np.bool_], what: str, job: str, *about: NDArray[Any]) -> None:
    if not holds.all():
        number = int(np.flatnonzero(~holds)[0])
        raise InconsistentState(what, job, number, *(int(each[number]) for each in about))


def _check_site(state: EngineState, site: SiteState, totals: _Totals) -> None:
    profile, removed = site.profile, site.removed
    if state.queues.at[site].reserved and (removed or site.asleep):
        raise InconsistentState("a removed site has reservations", site.name)
    settings = state.settings.selection
    if not settings.score_floor <= profile.score.value <= settings.score_ceiling:
        raise InconsistentState("the score of a site", site.name, profile.score.value)
    if not removed:
        _check_profile(state, site, totals)
    for shape, count in site.used.items():
        if count != totals.used[site.name, shape]:
            raise InconsistentState("the used room of a site", site.name, shape, count)
    for queue, numbers in state.queues.at[site].reserved.items():
        if not numbers:
            raise InconsistentState("an empty reservation", site.name)
        for number in numbers:
            work = queue.job.work.get(number)
            if work is None or work.bound is not site:
                raise InconsistentState("a reservation matches its package", site.name, number)
    _check_batch_jobs(site)


def _check_batch_jobs(site: SiteState) -> None:
    for key, group in site.groups.items():
        if not group.members or any(each.group != key for each in group.members):
            raise InconsistentState("the attempts of a batch job", site.name, key)
    for attempt in site.bound.values():
        if not attempt.counted or attempt.site is not site:
            raise InconsistentState("a bound attempt belongs to its site", site.name, attempt.ref)


def _check_profile(state: EngineState, site: SiteState, totals: _Totals) -> None:
    """Check the profile of a site that may get work."""
    profile = site.profile
    if not state.pending.site_changes and (site.status == "hibernated") != site.asleep:
        raise InconsistentState("the recorded status of a site", site.name, site.status)
    if profile.answers != site.known:
        raise InconsistentState("whether a site is reachable", site.name)
    if profile.live != totals.live[site]:
        raise InconsistentState("live attempts in the profile of a site", site.name, profile.live)
    if profile.ends.running != totals.running[site]:
        raise InconsistentState("running attempts in the profile of a site", site.name)


def _check_files(state: EngineState) -> None:
    """Check the caches of all sites, the packages that wait for files, and the needs of jobs."""
    for job in state.files.jobs:
        if job.files is None or state.jobs.by_id.get(job.id) is not job:
            raise InconsistentState("a job with files is known", job.id)
        is_open = np.frombuffer(bytes(job.status), np.uint8) < PackageStatus.DROPPED
        if job.files.open_users != JobFiles(job.files.plan, is_open).open_users:
            raise InconsistentState("needs of a job", job.id)
    lacking: Counter[ActivePackage] = Counter()
    for cache in state.files.caches.values():
        _check_cache(cache)
        _check_waiting(cache, lacking)
    for job in state.files.jobs:
        for number, work in job.work.items():
            if work.lacks != lacking[work]:
                raise InconsistentState("files that a package lacks", job.id, number, work.lacks, lacking[work])
    for site, queues in state.queues.at.items():
        for queue, numbers in queues.reserved.items():
            lacks = [queue.job.work[number].lacks > 0 for number in numbers]
            if lacks != sorted(lacks):
                raise InconsistentState("packages that have their files come first", site.name, queue.index)


def _check_waiting(cache: SiteCache, lacking: Counter[ActivePackage]) -> None:
    """Check the packages that wait for files, and count the files that each lacks."""
    for locator, waiting in cache.waiting.items():
        entry = cache.entries.get(locator)
        if not waiting or (entry is not None and entry.state == FileState.PRESENT):
            raise InconsistentState("packages wait for a missing file", cache.name, locator)
        if (
            entry is None
            and locator not in cache.wanted
            and not any(_is_not_brought(work, locator) for work in waiting)
        ):
            raise InconsistentState("a missing file is wanted", cache.name, locator)
        for work in waiting:
            lacking[work] += 1
            if work.bound is None or work.bound.name != cache.name:
                raise InconsistentState("a package waits for files where it is reserved", cache.name, work.number)
    for locator in cache.wanted:
        if locator not in cache.waiting:
            raise InconsistentState("a reserved package wants a file", cache.name, locator)


def _is_not_brought(work: ActivePackage, locator: str) -> bool:
    files = work.job.files
    file = files.find(locator) if files is not None else None
    return files is not None and file is not None and files.must_be_present(file)


def _check_claims(cache: SiteCache) -> None:
    """Check the space that is kept for files of admitted packages."""
    if cache.claimed_bytes != sum(cache.claimed.values()):
        raise InconsistentState("space that is kept for files", cache.name, cache.claimed_bytes)
    for locator in cache.claimed:
        if not cache.has_admitted_waiter(locator):
            raise InconsistentState("an admitted package waits for a file with space", cache.name, locator)
    for locator, waiting in cache.waiting.items():
        entry = cache.entries.get(locator)
        comes = entry is not None and entry.state == FileState.ORDERED
        if not comes and locator not in cache.claimed and any(work in cache.admitted for work in waiting):
            raise InconsistentState("an admitted package has space for its files", cache.name, locator)
    for work in (*cache.line, *cache.admitted):
        if not work.lacks or work.bound is None or work.bound.name != cache.name:
            raise InconsistentState("a package in line waits for files", cache.name, work.number)


def _check_cache(cache: SiteCache) -> None:
    _check_claims(cache)
    entries = cache.entries.values()
    used_bytes = sum(each.size_bytes for each in entries if each.state in (FileState.PRESENT, FileState.REMOVING))
    ordered = [each for each in entries if each.state == FileState.ORDERED]
    counted = (cache.used_bytes, cache.ordered_bytes, cache.unsized)
    if counted != (used_bytes, sum(each.size_bytes for each in ordered), sum(not each.size_bytes for each in ordered)):
        raise InconsistentState("space in the cache of a site", cache.name, counted)
    if cache.removing_bytes != sum(each.size_bytes for each in entries if each.state == FileState.REMOVING):
        raise InconsistentState("space of files that are being removed", cache.name, cache.removing_bytes)
    open_orders = {each.key: each.locator for each in entries if each.state in (FileState.ORDERED, FileState.REMOVING)}
    if cache.by_key != open_orders:
        raise InconsistentState("open orders of a cache", cache.name)
    for locator in cache.faults:
        if locator not in cache.entries:
            raise InconsistentState("a fault is of a known file", cache.name, locator)


def _check_pilots(state: EngineState, site: SiteState) -> None:
    if site.full and pilots_allowed(site) > 0:
        raise InconsistentState("whether a site may have more pilots", site.name)
    if site.expected != sum([not each.contacted for each in site.requests.values()]):
        raise InconsistentState("pilots expected", site.name)
    _check_slots(state, site)
    for pilot in site.pilots.values():
        if state.pilots.by_name.get(pilot.name) is not pilot:
            raise InconsistentState("a pilot belongs to its site", pilot.name)
        given = zip(*(amounts(attempt.demand) for attempt in pilot.assigned.values()), strict=True)
        taken = list(map(sum, given)) or [0] * len(NAMES)
        left = tuple(map(sub, amounts(pilot.capacity), taken))
        if left != amounts(pilot.free):
            raise InconsistentState("free resources of a pilot", pilot.name, *left)


def _check_slots(state: EngineState, site: SiteState) -> None:
    """Check how many of each shape the pilots of a site hold at once, and their backlog."""
    slots = dict.fromkeys(state.shapes.by_number, 0)
    for pilot in site.pilots.values():
        for shape, demand in state.shapes.by_number.items():
            if shape not in pilot.barred:
                slots[shape] += slots_for(demand, pilot.capacity)
    if not site.removed and site.slots != slots:
        raise InconsistentState("slots of the pilots of a site", site.name, dict(site.slots), slots)
    backlog = sum([pilot.backlog for pilot in site.pilots.values()])
    if site.profile.backlog != backlog:
        raise InconsistentState("the backlog of the pilots of a site", site.name, site.profile.backlog, backlog)


def abandoned_attempts(state: EngineState) -> dict[AttemptRef, str]:
    """Attempts that were given up but may still act outside, with their pilots: no attempt may start beside them.

    An exchange alone may show that one has stopped. So an engine that starts from the book may know more of them than the
    engine before it, but none that the events do not show.
    """
    return {ref: pilot for pilot, acting in state.abandoned.by_pilot.items() for ref in acting}


def durable_state(state: EngineState) -> dict[str, Any]:
    """The state that follows from events alone, as plain values: equal for two engines that know the same."""
    return {
        "next": state.log.next_number,
        "jobs": {job.id: _durable_job(job) for job in state.jobs.by_id.values() if not closes(job)},
        "pilots": sorted(
            (each.name, each.site.name, each.request, each.node) for each in state.pilots.by_name.values()
        ),
        "sites": sorted((site.name, site.status) for site in state.sites.by_name.values() if not site.removed),
        "latencies": state.latencies.durable(),
        "files": sorted(_durable_files(state)),
        "requests": sorted(
            (each.key, each.site.name, each.native_id, each.contacted) for each in state.pilots.requests.values()
        ),
    }


def _durable_files(state: EngineState) -> Iterator[tuple[Any, ...]]:
    for cache in state.files.caches.values():
        for each in cache.entries.values():
            kept = (each.wishes, each.pins, each.software, each.stale)
            fault = cache.faults.get(each.locator)
            failed = (fault.reason, fault.message) if fault is not None else ()
            content = (each.size_bytes, each.sha256, each.version)
            yield (cache.name, each.locator, FILE_STATES[each.state], each.key, each.name, *content, kept, failed)
        for locator, wished in cache.wished.items():
            if locator not in cache.entries:
                yield (cache.name, locator, "wished", wished.size_bytes, wished.wishes)


def _durable_job(job: JobState) -> dict[str, Any]:
    flags = (job.owner, job.epoch, job.accepted, job.held, job.cancelled, job.aborted, job.cleared)
    return {
        "flags": flags,
        "packages": job.count,
        "late": sorted(job.late),
        "ended_by": sorted(job.ended_by),
        "held_why": job.held_why,
        "forecast": job.forecast,
        "over": [(n, s, job.granted[n]) for n, s in enumerate(job.status) if s >= FINAL],
        "waits": job.waits.tolist() if job.accepted else [],
        "attempts": job.last_attempt.tolist(),
        "epochs": sorted(job.epochs.items()),
        "disposed": [n for n, gone in enumerate(job.disposed) if gone],
        "stopped": sorted(job.activities.stopped.items()),
        "stopped_packages": sorted(job.stopped_packages),
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
            each.group,
            msgspec.to_builtins(each.demand),
        )
        for each in work.attempts.values()
    )
    failures = [msgspec.to_builtins(work.failures[each]) for each in sorted(work.failures)]
    ties = (sorted(work.ties.items()), work.early_failed)
    candidates = (sorted(work.candidates), work.stored, sorted(work.made_at.items()), *ties)
    return number, work.held, work.dropped, work.replicas, work.replicated, candidates, attempts, failures
