"""Can anything of a job still move? Asked of the engine: where nothing can, somebody must be told, and what to do."""

from __future__ import annotations

from collections import Counter

import msgspec

from pilotage.engine.decisions.job_lifecycle import result_of
from pilotage.engine.engine import Engine
from pilotage.engine.explain import explain, silence_text
from pilotage.engine.state.jobs import JobState, PackageStatus, QueueClass
from pilotage.engine.state.sites import SiteState, silent_batch_jobs
from pilotage.model.texts import moment, words_of_failure
from pilotage.service.sites.status import next_try_at

_MOVING = (PackageStatus.DELAYED, PackageStatus.RESERVED, PackageStatus.LIVE)
_NAMED_MAX = 3
_MOVING_WHEN_HELD = (PackageStatus.LIVE,)  # what waits for its time begins nothing then


class JobStall(msgspec.Struct, frozen=True, kw_only=True):
    """How a job stands in the engine: `stuck` says why nothing can move, `trouble` what keeps things from moving now."""

    slots: int = 0  # that live pilots offer
    running: dict[int, int] | None = (
        None  # by stage: packages that have a slot; None: nobody knows better than the book
    )
    stuck: str = ""
    next_step: str = ""
    trouble: str = ""
    troubled_site: str = ""  # where no pilot can start, if that is the trouble
    result: int | None = None  # the exit code of a job that a package has ended


def stall_of(engine: Engine, job: str) -> JobStall:
    """How a job stands; of one that the engine does not have, nothing is said but the slots there are."""
    slots = sum(pilot.capacity.cores_hundredths // 100 for pilot in engine.state.pilots.by_name.values())
    known = engine.state.jobs.by_id.get(job)
    if known is None or not known.accepted or known.cancelled or known.aborted:
        return JobStall(slots=slots, result=result_of(known) if known is not None else None)
    if not known.unfinished and not known.late:
        return JobStall(slots=slots, result=result_of(known))
    if any(known.counts[each] for each in (_MOVING if not known.held else _MOVING_WHEN_HELD)):
        site, trouble = _trouble(engine, known)
        return JobStall(
            slots=slots,
            running=_running(engine, known),
            trouble=trouble or (_held(known) if known.held_why else _waits_again(engine, known)),
            troubled_site=site,
        )
    stuck, next_step = _stuck(engine, known)
    site, trouble = ("", "") if stuck else _trouble(engine, known)
    return JobStall(slots=slots, stuck=stuck, next_step=next_step, trouble=trouble, troubled_site=site)


def _running(engine: Engine, job: JobState) -> dict[int, int] | None:
    """How many packages of each stage have a slot of a pilot, which runs in order as many as fit; the others wait there."""
    waiting: set[int] = set()
    running: set[int] = set()
    for pilot in engine.state.pilots.by_name.values():
        slots = pilot.count_running()
        for position, attempt in enumerate(pilot.assigned.values()):
            if attempt.ref.job == job.id:
                (running if position < slots else waiting).add(attempt.number)
    if len(waiting | running) != job.counts[PackageStatus.LIVE]:
        return None  # some are at a batch system, or with somebody who was not heard of for a while
    return dict(Counter(job.named(number)[1][0] for number in running))


def _held(job: JobState) -> str:
    return f"the job is held: {job.held_why}" if job.held_why else "the job is held"


def _stuck(engine: Engine, job: JobState) -> tuple[str, str]:
    if job.held:
        return _held(job), f"pilotage release {job.id}"
    ready = [queue for queue in job.classes.values() if queue.ready]
    if ready:
        nowhere = not engine.state.sites.by_name or all(engine.state.placement.is_impossible(queue) for queue in ready)
        return _nowhere(engine, job) if nowhere else ("", "")
    if job.acting:
        return "", ""  # an attempt that nobody waits for may still act: it is over one day
    if any(not late.pending for late in job.late.values()):
        return "", ""  # a stage is being laid out
    if job.counts[PackageStatus.HELD]:
        number = job.status.index(PackageStatus.HELD)
        held = job.counts[PackageStatus.HELD]
        if why := job.work[number].refused:
            cure = f"move that file away if both are wanted, or remove it, then: pilotage release {job.id}"
            return f"what {job.dotted(number)} made cannot be published: {why}", f"{cure}/{job.dotted(number)}"
        what = f"{job.dotted(number)} is held" if held == 1 else f"{held} packages are held, {job.dotted(number)} first"
        return f"{what}, and everything else waits for that", f"pilotage release {job.id}/{job.dotted(number)}"
    if job.counts[PackageStatus.BLOCKED]:
        number = job.status.index(PackageStatus.BLOCKED)
        reasons = explain(engine.state, job, number).reasons
        why = reasons[0].message if reasons else "nobody knows for what"
        return f"{job.dotted(number)} waits: {why}", f"pilotage explain {job.id}/{job.dotted(number)}"
    return "", ""


def _nowhere(engine: Engine, job: JobState) -> tuple[str, str]:
    number = job.status.index(PackageStatus.READY)
    told = [why for why in explain(engine.state, job, number).reasons if why.code in ("site-unable", "no-site")]
    why = "; ".join(f"{each.subject}: {each.message}" if each.subject else each.message for each in told[:3])
    ready = job.counts[PackageStatus.READY]
    what = job.dotted(number) if ready == 1 else f"{ready} packages, {job.dotted(number)} first,"
    next_step = f"ask for less in the document, add a site that has it, or pilotage kill {job.id}"
    return f"no site can run {what} ({why})", next_step


def _waits_again(engine: Engine, job: JobState) -> str:
    """Why the next attempts of what failed wait, whatever else runs meanwhile."""
    waiting = job.counts[PackageStatus.DELAYED]
    if not waiting:
        return ""
    number = job.status.index(PackageStatus.DELAYED)
    why = next(
        (each.message for each in explain(engine.state, job, number).reasons if each.code == "waits-for-time"), ""
    )
    what = job.dotted(number) if waiting == 1 else f"{waiting} packages, {job.dotted(number)} first,"
    return f"{what} is tried later: {why}" if waiting == 1 else f"{what} are tried later: {why}"


def _last_failure(job: JobState) -> str:
    """What the first package said that failed and waits, in words; empty where none did."""
    number = min((number for number, work in job.work.items() if work.failures), default=None)
    if number is None:
        return ""
    failures = job.work[number].failures
    last = failures[max(failures)]
    return f"; {job.dotted(number)} failed there: {last.reason}{words_of_failure(last.message)}"


def _trouble(engine: Engine, job: JobState) -> tuple[str, str]:
    """The site that keeps pilots from starting, and how: where the job waits for it, or where none lives, before any other.

    Sites that could run nothing of what waits are nothing to the job, whatever their trouble.
    """
    reserved = {queue for each in engine.state.queues.at.values() for queue in each.reserved if queue.job is job}
    waiting = [queue for queue in job.classes.values() if queue.ready or queue in reserved]
    if asleep := _all_asleep(engine, waiting):
        return "", asleep + _last_failure(job)
    idle = [site for site in engine.state.sites.by_name.values() if not site.pilots]
    needed = {site.name for site in idle if not engine.state.pilots.by_name or _waits_for(engine, job, site)}
    for site in sorted(idle, key=lambda each: each.name not in needed):
        if waiting and not any(engine.state.placement.able(site, queue) for queue in waiting):
            continue
        if site.name in needed and not site.answers:
            return site.name, f"site {site.name} does not answer"
        if (told := silence_text(site)) and (waiting or _is_unheard(job, site)):
            return "", f"{told}; next: pilotage site test {site.name}"
        if (died := _dead_starts(site)) and (waiting or site.name in needed):
            return site.name, f"no pilot could start at {site.name}: {died}{_tried_again(engine, [site])}"
        if waiting and (sleep := site.place.sleep) is not None and sleep.reason == "probe-failed":
            told = f"no pilot came up at {site.name} when it was probed: {sleep.message}"
            return "", f"{told}; next: pilotage site test {site.name}"
        if site.name in needed and site.asleep and _waits_for(engine, job, site):
            return "", f"site {site.name} hibernates: see pilotage site explain {site.name}"
    return "", ""


def _dead_starts(site: SiteState) -> str:
    """How many pilots did not come to speak there, in words; empty where none, or where somebody put the site to sleep."""
    count, sleep = site.dead_starts, site.place.sleep
    if sleep is not None and sleep.reason == "by-hand":
        return ""
    if not count:  # not counted over a restart
        return "its pilots died before they spoke" if sleep is not None and sleep.reason == "dead-starts" else ""
    return f"{count} died before {'it' if count == 1 else 'they'} spoke"


def _is_unheard(job: JobState, site: SiteState) -> bool:
    """Whether something of a job has a batch job of its own that does not begin, or is not heard."""
    found = (site.bound.get(each.key) for each in silent_batch_jobs(site))
    return any(attempt is not None and attempt.ref.job == job.id for attempt in found)


def _all_asleep(engine: Engine, waiting: list[QueueClass]) -> str:
    """What is told where all sites sleep that could run something which waits; empty where one of them does not."""
    for queue in waiting:
        able = engine.state.placement.possible_sites(queue) if queue.ready else []
        told = [
            f"{site.name} ({sleep.reason.replace('-', ' ')}: {sleep.message})"
            for site in able
            if (sleep := site.place.sleep) is not None
        ]
        if told and len(told) == len(able):
            names = " ".join(site.name for site in able[:_NAMED_MAX])
            more = f" and {len(told) - _NAMED_MAX} more" if len(told) > _NAMED_MAX else ""
            listed = ", ".join(told[:_NAMED_MAX])
            again = _tried_again(engine, able)
            return f"all sites that could run it sleep: {listed}{more}{again}; next: pilotage site wake {names}"
    return ""


def _tried_again(engine: Engine, sites: list[SiteState]) -> str:
    """When the next pilot is tried at the first of some sites for which a time is set, in words; empty where there is none."""
    times = [at for site in sites if (at := next_try_at(engine, site)) is not None]
    return f"; the next one is tried at {moment(min(times))}" if times else ""


def _waits_for(engine: Engine, job: JobState, site: SiteState) -> bool:
    """Whether something of a job is reserved for a site, or may run nowhere else."""
    if any(queue.job is job for queue in engine.state.queues.at[site].reserved):
        return True
    return any(queue.ready and queue.asked.executor == site.name for queue in job.classes.values())
