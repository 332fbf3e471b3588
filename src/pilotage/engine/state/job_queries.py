"""Queries on jobs, packages and attempts that change nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pilotage.engine.state.jobs import ActivePackage, JobState, PackageStatus, QueueClass, template_of
from pilotage.engine.state.run_times import LEARNED_MIN, ExpectedSeconds
from pilotage.engine.state.sites import AttemptState, PilotState, SiteState
from pilotage.engine.state.tables import JobTable
from pilotage.model.events.events import parse_dotted
from pilotage.model.events.payloads import PhaseTimes
from pilotage.model.exchange.exchange import AttemptRef


def is_stopped(job: JobState, number: int) -> bool:
    """Whether the activity of a package was stopped, so that it does not run before a person opens it again."""
    return bool(job.activities.stopped) and template_of(job, number).activity in job.activities.stopped


def packages_of(job: JobState, activity: str) -> list[int]:
    """The packages of an activity, by number."""
    kinds = [number for number, template in enumerate(job.plan.templates) if template.activity == activity]
    found: list[int] = np.flatnonzero(np.isin(job.plan.template_of, kinds)).tolist()
    return found


def lost_stages(job: JobState) -> dict[int, int]:
    """The late stages that cannot be expanded as things are, each with a package that is to blame."""
    lost: dict[int, int] = {}
    for number in sorted(job.failed_producers):
        for late in job.late.values():
            if late.stage not in lost and late.holds(number):
                lost[late.stage] = number
    while lost:
        further = [each for each in job.late.values() if each.stage not in lost and set(each.stages) & set(lost)]
        if not further:
            break
        for each in further:
            lost[each.stage] = next(lost[stage] for stage in each.stages if stage in lost)
    return lost


def ends(job: JobState) -> bool:
    """Whether all packages but the final ones are over, and no late stage is left to expand."""
    if job.others:
        return False
    if not job.late or job.ended_by:  # a job that a package has ended expands no more stages
        return True
    lost = lost_stages(job) if job.failed_producers else {}
    return all(stage in lost for stage in job.late)


def is_over(job: JobState) -> bool:
    """Whether no package of a job is active or will be, unless it is restarted."""
    if not (job.cancelled or job.aborted) and (job.unfinished or job.late):
        return False
    return not any(
        (work.candidates and not work.dropped) or any(not attempt.lost for attempt in work.attempts.values())
        for work in job.work.values()
    )


def status_of(job: JobState, number: int) -> int:
    """The status of a package; in a killed or aborted job every inactive package is over, as in the book."""
    status = job.status[number]
    if status >= PackageStatus.DROPPED or not (job.cancelled or job.aborted):
        return status
    work = job.work.get(number)
    if work is not None and (work.candidates or any(not attempt.lost for attempt in work.attempts.values())):
        return status
    return PackageStatus.CANCELLED if job.cancelled else PackageStatus.ABORTED


def closes(job: JobState) -> bool:
    """Whether a job is over and cleared: as a whole, or all of it that is not dropped."""
    if not job.cleared:
        if not job.cleared_packages or len(job.cleared_packages) < job.count - job.counts[PackageStatus.DROPPED]:
            return False
        kept = (number for number in range(job.count) if job.status[number] != PackageStatus.DROPPED)
        if not all(number in job.cleared_packages for number in kept):
            return False
    return is_over(job)


def may_act(job: JobState, work: ActivePackage) -> bool:
    """Whether an attempt of a package with side effects may still act: no other may start beside it."""
    if work.number in job.acting:
        return True
    return template_of(job, work.number).side_effects and any(each.suspect for each in work.attempts.values())


def is_under_way(work: ActivePackage) -> bool:
    """Whether a package needs no further attempt: one is trusted, or one succeeded and awaits its grant."""
    if work.candidates:
        return True
    if not work.attempts:
        return False
    if work.replicas > work.replicated and not is_spent(work):
        return False
    for attempt in work.attempts.values():  # noqa: SIM110 # a generator costs more than there are attempts
        if not (attempt.suspect or attempt.lost):
            return True
    return False


def is_spent(work: ActivePackage) -> bool:
    """Whether its failures allow no further attempt: the current one is the last."""
    return work.verdict is not None and work.verdict.action == "give-up"


def live_attempts(work: ActivePackage) -> int:
    """Attempts of a package that are not given up, and further ones that are wanted."""
    return sum(not each.lost for each in work.attempts.values()) + max(0, work.replicas - work.replicated)


Seconds = NDArray[np.float64]

_WORK = frozenset(("inputs", "application", "outputs"))  # phases that are work of a package

_START = frozenset(("setup", "inputs"))  # phases that take longer in a pilot that has just started


class KindWork(NamedTuple):
    """The work that is left of one kind of packages."""

    kind: int
    activity: str
    packages: int  # not over, running ones included
    running: int
    spent_seconds: float  # by the running ones together, on the standard platform
    expected: ExpectedSeconds


def learn(job: JobState, attempt: AttemptState, phases: tuple[PhaseTimes, ...], now: float) -> None:
    """Add the run time of a finished package to those of its kind."""
    if phases:
        seconds = 0.0
        for each in phases:
            if each.phase in _WORK:
                seconds += each.seconds
    else:
        seconds = max(0.0, now - attempt.began_at)
    job.run_times.add(job.kinds[attempt.number], seconds * attempt.site.site.speed)


def learn_failure(job: JobState, attempt: AttemptState, now: float) -> None:
    """Add the time of an attempt that failed or was lost after it had begun."""
    if attempt.leased:
        seconds = max(0.0, now - attempt.began_at)
        job.run_times.add_failed(job.kinds[attempt.number], seconds * attempt.site.site.speed)


SERVED_MAX = 3
"""Attempts of one pilot that start costs follow from: the first, and some later ones."""


def learn_start(job: JobState, pilot: PilotState, attempt: AttemptState, phases: tuple[PhaseTimes, ...]) -> None:
    """Add setup and inputs of an attempt to the start costs of its site: of the first one of its pilot, or of a later one."""
    costs, activity = attempt.site.start_costs, template_of(job, attempt.number).activity
    seconds = 0.0
    for each in phases:
        if each.phase in _START:
            seconds += each.seconds
    if pilot.served:
        costs.add_later(activity, seconds)
    else:
        costs.add_first(activity, seconds)
    pilot.served += 1


def usual_seconds(queue: QueueClass) -> float:
    """Run time of a package of a class; 0 if unknown."""
    known = queue.job.run_times.by_kind.get(queue.kind)
    if known is None or (known[0] < LEARNED_MIN and queue.run_seconds):
        return queue.run_seconds
    return known[1] / known[0]


def learned_seconds(queue: QueueClass) -> float:
    """Mean run time of a class; 0 while few of its packages are done."""
    known = queue.job.run_times.by_kind.get(queue.kind)
    return 0.0 if known is None or known[0] < LEARNED_MIN else known[1] / known[0]


def seconds_of(job: JobState) -> Seconds:
    """Run time of a package of each kind; nan if unknown."""
    found = np.array([each.run_seconds or np.nan for each in job.plan.templates], np.float64)
    for kind, (count, seconds, _) in job.run_times.by_kind.items():
        if count >= LEARNED_MIN or np.isnan(found[kind]):
            found[kind] = max(seconds / count, 1e-3)
    return found


ACTIVE_MAX = 512
"""Active packages of a job of which each is looked at; of more, some stand for all."""


class RunningPackages(NamedTuple):
    """How long running packages of a job run on the standard platform, by kind and site; each stands for `each` of them."""

    spent_seconds: dict[tuple[int, SiteState], list[float]]
    each: float


def running_packages(job: JobState, now: float) -> RunningPackages:
    """The packages that run at the wall-clock time `now`, as far as is known."""
    kinds = job.kinds
    began: dict[SiteState, dict[int, list[float]]] = {}
    step = 1 + len(job.work) // (ACTIVE_MAX + 1)
    for number, work in islice(job.work.items(), step // 2, None, step):
        for attempt in work.attempts.values():
            if attempt.leased and attempt.counted and not (attempt.suspect or attempt.lost):
                here = began.get(attempt.site)
                if here is None:
                    here = began[attempt.site] = {}
                alike = here.get(kinds[number])
                if alike is None:
                    alike = here[kinds[number]] = []
                alike.append(attempt.began_at)
    found = {}
    for site, by_kind in began.items():
        speed = site.site.speed
        for kind, times in by_kind.items():
            found[kind, site] = [(now - at) * speed if at < now else 0.0 for at in times]
    return RunningPackages(found, float(step))


def work_left(job: JobState, now: float, running: RunningPackages | None = None) -> list[KindWork]:
    """The packages that are not over, by kind, and what the running ones have spent by the wall-clock time `now`."""
    expected = job.run_times.expected(job.plan)
    counted: dict[int, tuple[int, float]] = {}
    known = running_packages(job, now) if running is None else running
    for (kind, _), spent in known.spent_seconds.items():
        count, total = counted.get(kind, (0, 0.0))
        counted[kind] = count + round(known.each * len(spent)), total + known.each * sum(spent)
    templates = job.plan.templates
    return [
        KindWork(kind, templates[kind].activity, count, *counted.get(kind, (0, 0.0)), expected[kind])
        for kind, count in enumerate(_packages_left(job))
        if count
    ]


def _packages_left(job: JobState) -> list[int]:
    """How many packages of each kind are not over."""
    kinds = len(job.plan.templates)
    if kinds == 1:
        return [sum(job.counts[: PackageStatus.DROPPED])]
    under_way = np.frombuffer(job.status, np.uint8) < PackageStatus.DROPPED
    found: list[int] = np.bincount(job.plan.template_of[under_way], minlength=kinds).tolist()
    return found


def find_attempt(jobs: JobTable, ref: AttemptRef) -> AttemptState | None:
    """An attempt that is not over."""
    job, place = jobs.by_id.get(ref.job), parse_dotted(ref.package)
    if job is None or place is None:
        return None
    number = job.number((place.stage, place.line, place.number))
    work = job.work.get(number) if number is not None else None
    return work.attempts.get(ref.attempt) if work is not None else None


_ATTEMPT = re.compile("[1-9][0-9]{0,8}")


def ref_of_key(key: str) -> AttemptRef | None:
    """The attempt that a bound attempt's key names."""
    parts = key.rsplit(":", 2)
    if len(parts) != 3 or not _ATTEMPT.fullmatch(parts[2]) or parts[1].count(".") != 2:
        return None
    return AttemptRef(parts[0], parts[1], int(parts[2]))


def bound_attempt(jobs: JobTable, key: str) -> AttemptState | None:
    """The bound attempt with this key, which is that of its batch job unless it shares one."""
    ref = ref_of_key(key)
    return find_attempt(jobs, ref) if ref is not None else None


def attempts_of(key: str, *, jobs: JobTable, sites: Iterable[SiteState]) -> list[AttemptState]:
    """The attempts of the batch job that was submitted with a key, as far as they are not over."""
    for site in sites:
        if (group := site.groups.get(key)) is not None:
            return list(group.members)
    found = bound_attempt(jobs, key)
    return [found] if found is not None and not found.group else []
