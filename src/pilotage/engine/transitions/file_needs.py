"""Which packages need which files: reserved ones wait for files that their site lacks, and files are kept while one needs them."""

from __future__ import annotations

from collections import deque

from pilotage.engine.engine_state import EngineState
from pilotage.engine.placement import is_bound
from pilotage.engine.state.caches import FileState, SiteCache, covers
from pilotage.engine.state.job_files import JobFiles
from pilotage.engine.state.jobs import ActivePackage, JobState, template_of
from pilotage.engine.state.sites import SiteState

_PRESENT = FileState.PRESENT


def files_of(job: JobState) -> JobFiles:
    """The files of a job that has some."""
    assert job.files is not None
    return job.files


# --- packages that wait ---------------------------------------------------------------------------------------------


def need_files(state: EngineState, work: ActivePackage, site: SiteState, reserved: deque[int]) -> None:
    """A package was reserved for a site: it waits for the files that are missing there.

    `reserved` are the packages of its class there. Those that have their files come first.
    """
    job, files, cache = work.job, files_of(work.job), state.files.at(site.name)
    entries, limit, owner = cache.entries, site.site.cache_bytes, work.job.owner
    total_bytes = 0
    for file in files.needed(work.number, site.site):
        locator = files.locator(file)
        entry = entries.get(locator)
        wish = files.wish(file)
        if limit is not None:
            total_bytes += (entry.size_bytes if entry is not None else 0) or files.size_bytes(file) or 0
        if files.must_be_present(file) and (entry is None or entry.state not in (_PRESENT, FileState.ORDERED)):
            state.files.to_hold[work] = locator
        elif entry is None:
            _want(cache, locator, job, file)
        else:
            if not covers(entry.wishes, owner, wish):
                cache.to_retain[locator, owner] = max(wish, cache.to_retain.get((locator, owner), 0))
            if entry.state == _PRESENT:
                if files.accepts(file, entry.sha256):
                    continue
                cache.to_replace[locator] = None
            if entry.state == FileState.FAILED:
                _need_failed(state, work, cache, locator, file)
        work.lacks += 1
        cache.waiting.setdefault(locator, {})[work] = None
    if limit is not None and work.lacks:
        cache.line[work] = None
        if total_bytes > limit:
            state.files.to_hold[work] = ""
    if not work.lacks and len(reserved) > 1:
        _put_in_front(job, work.number, reserved)


def _want(cache: SiteCache, locator: str, job: JobState, file: int) -> None:
    """A package needs a file that is not there: it is ordered for the first job that does."""
    first, _ = cache.wanted.setdefault(locator, (job, file))
    if first is not job:  # its order carries the wish of that job alone
        wish = max(files_of(job).wish(file), cache.to_retain.get((locator, job.owner), 0))
        cache.to_retain[locator, job.owner] = wish


def _need_failed(state: EngineState, work: ActivePackage, cache: SiteCache, locator: str, file: int) -> None:
    """A package needs a file that could not be fetched: it is held if the file was given up, or the file tried again in time."""
    fault = cache.faults.get(locator)
    if fault is not None and fault.given_up:
        state.files.to_hold[work] = locator
    elif fault is None or fault.retry_at <= state.clock.now:
        cache.wanted.setdefault(locator, (work.job, file))


def stop_waiting(state: EngineState, work: ActivePackage, site: SiteState) -> None:
    """A reservation ended: its package waits for no file there. Files on their way still come."""
    state.files.to_hold.pop(work, None)
    state.files.to_submit.pop(work, None)
    if not work.lacks:
        return
    work.lacks = 0
    files, cache = files_of(work.job), state.files.at(site.name)
    cache.line.pop(work, None)
    admitted = cache.admitted.pop(work, work) is None
    for file in files.of(work.number):
        locator = files.locator(file)
        waiting = cache.waiting.get(locator)
        if waiting is not None and waiting.pop(work, work) is None and not waiting:
            del cache.waiting[locator]
            cache.wanted.pop(locator, None)
        if admitted and locator in cache.claimed and not cache.has_admitted_waiter(locator):
            cache.unclaim(locator)


def file_came(state: EngineState, cache: SiteCache, locator: str) -> None:
    """A file is at a site: the packages that waited for it alone may start."""
    sha256 = cache.entries[locator].sha256
    others: dict[ActivePackage, None] = {}
    for work in cache.waiting.pop(locator, ()):
        if not _accepts(work.job, locator, sha256):
            others[work] = None
            continue
        work.lacks -= 1
        if not work.lacks:
            cache.line.pop(work, None)
            cache.admitted.pop(work, None)
            _files_are_there(state, work)
    if others:
        cache.waiting[locator] = others
        cache.to_replace[locator] = None


def _accepts(job: JobState, locator: str, sha256: str) -> bool:
    files = files_of(job)
    if files.plan.checksums is None:
        return True
    file = files.find(locator)
    return file is None or files.accepts(file, sha256)


def _files_are_there(state: EngineState, work: ActivePackage) -> None:
    site, queue = work.bound, work.bound_as
    assert site is not None
    assert queue is not None
    _put_in_front(work.job, work.number, state.queues.at[site].reserved[queue])
    if is_bound(site, queue):
        state.files.to_submit[work] = None
    else:
        state.queues.sites_to_serve[site] = None


def _put_in_front(job: JobState, number: int, reserved: deque[int]) -> None:
    """Put a package behind those of its class that have their files, and before the others."""
    reserved.remove(number)
    at = 0
    for other in reserved:
        if job.work[other].lacks:
            break
        at += 1
    reserved.insert(at, number)


def file_went(state: EngineState, cache: SiteCache, locator: str, size_bytes: int) -> None:
    """A file is not at a site any more: packages reserved there that need it wait for it."""
    site = state.sites.by_name.get(cache.name)
    if site is None:
        return
    for queue, reserved in state.queues.at[site].reserved.items():
        job = queue.job
        if job.files is None or (file := job.files.find(locator)) is None:
            continue
        for number in list(reserved):
            work = job.work[number]
            if file in job.files.needed(number, site.site) and work not in cache.waiting.get(locator, {}):
                work.lacks += 1
                cache.waiting.setdefault(locator, {})[work] = None
                state.files.to_submit.pop(work, None)
                reserved.remove(number)
                reserved.append(number)
                if site.site.cache_bytes is not None and work not in cache.line:
                    cache.admitted[work] = None  # it had space for all its files
    claim_again(cache, locator, size_bytes)
    want_again(state, cache, locator)


def claim_again(cache: SiteCache, locator: str, size_bytes: int) -> None:
    """A file is neither there nor on its way: keep space for it if an admitted package waits for it."""
    if cache.admitted and cache.has_admitted_waiter(locator):
        cache.claim(locator, size_bytes or 1)


def want_again(state: EngineState, cache: SiteCache, locator: str) -> None:
    """Order a file again, if a reserved package waits for it."""
    for work in cache.waiting.get(locator, ()):
        files = files_of(work.job)
        file = files.find(locator)
        if file is not None and files.must_be_present(file):
            state.files.to_hold[work] = locator
        elif file is not None:
            cache.wanted.setdefault(locator, (work.job, file))
            return


def forgive(state: EngineState, job: JobState) -> None:
    """A job or package with files was released: files that were given up may be tried again."""
    if job.files is None:
        return
    for cache in state.files.caches.values():
        cache.crowded.pop(job.id, None)
        for locator, fault in cache.faults.items():
            if fault.given_up:
                if locator in cache.wished:
                    cache.to_bring[locator] = None
                fault.given_up, fault.failures, fault.retry_at = False, 0, state.clock.now
                fault.held = {}


# --- outputs that go after their last consumer ------------------------------------------------------------------------


def check_disposal(state: EngineState, job: JobState, number: int) -> None:
    """A package is done or dropped: outputs that it read, or its own, may be of no more use."""
    for producer in (number, *job.producers(number)):
        if template_of(job, producer).disposes_outputs:
            state.files.to_dispose[job, producer] = None


def check_all_disposal(state: EngineState, job: JobState) -> None:
    """A late stage was expanded: outputs that it might have read may be of no more use."""
    for number in range(job.count) if job.disposed else ():
        if job.satisfied[number] and template_of(job, number).disposes_outputs:
            state.files.to_dispose[job, number] = None


# --- needs ----------------------------------------------------------------------------------------------------------


def add_job(state: EngineState, job: JobState) -> None:
    """Count the needs of a job from now on, if it has files."""
    if job.files is not None:
        state.files.jobs[job] = None


def count_need(state: EngineState, job: JobState, number: int, *, is_open: bool) -> None:
    """A package is over, or may run again."""
    if is_open:
        files_of(job).open(number)
    else:
        close_needs(state, job, number)


def close_needs(state: EngineState, job: JobState, number: int) -> None:
    """A package is over: files that nobody needs any more may go."""
    for locator in files_of(job).close(number):
        for cache in state.files.caches.values():
            if locator in cache.entries:
                cache.to_check[locator] = None


def close_job(state: EngineState, job: JobState) -> None:
    """A job was killed or given up: check its files."""
    if job.files is None:
        return
    for cache in state.files.caches.values():
        for locator in cache.entries:
            if job.files.find(locator) is not None:
                cache.to_check[locator] = None


def is_needed(state: EngineState, locator: str) -> bool:
    """Whether a package that may still run needs a file, at any site."""
    return bool(needing_jobs(state, locator))


def needing_jobs(state: EngineState, locator: str) -> list[tuple[JobState, int]]:
    """The jobs with packages that may still run and need a file, and its number there."""
    found = []
    for job in state.files.jobs:
        files = files_of(job)
        file = files.find(locator)
        if file is not None and files.open_users[file] and (not (job.cancelled or job.aborted) or _runs(job, file)):
            found.append((job, file))
    return found


def accepting_jobs(state: EngineState, locator: str, sha256: str) -> list[JobState]:
    """The jobs with packages that may still run and can use this content of a file."""
    return [job for job, file in needing_jobs(state, locator) if files_of(job).accepts(file, sha256)]


def required_sha256(state: EngineState, locator: str) -> str:
    """The checksum that the documents of all jobs require that need a file; empty if one takes any, or they differ."""
    if all(job.files is None or job.files.plan.checksums is None for job in state.files.jobs):
        return ""
    required = {files_of(job).sha256(file) for job, file in needing_jobs(state, locator)}
    return required.pop() if len(required) == 1 else ""


def _runs(job: JobState, file: int) -> bool:
    """Whether an attempt of a job that was killed or given up may still read a file."""
    files = files_of(job)
    return any(
        file in files.of(number) and any(not attempt.lost for attempt in work.attempts.values())
        for number, work in job.work.items()
    )
