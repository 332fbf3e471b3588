"""Tells whether a job can still make progress, and if not, why, and what to do; asked of the engine."""

from __future__ import annotations

from collections import Counter

import msgspec

from pilotage.engine.decisions.job_lifecycle import result_of
from pilotage.engine.engine import Engine
from pilotage.engine.explain import explain, silence_text
from pilotage.engine.files.holding import explain_lacks
from pilotage.engine.files.queries import late_files
from pilotage.engine.state.jobs import JobState, PackageStatus, QueueClass
from pilotage.engine.state.sites import SiteState, silent_batch_jobs
from pilotage.model.texts import moment, words_of_failure
from pilotage.service.sites.status import next_try_at

NOT_STORED = "its outputs could not be stored"
"""How the engine begins to say that copies in stores are missing."""
_MOVING = (PackageStatus.DELAYED, PackageStatus.RESERVED, PackageStatus.LIVE)
_NAMED_MAX = 3
_MOVING_WHEN_HELD = (PackageStatus.LIVE,)  # package states in which a timer alone starts nothing


class JobStall(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a job in the engine: `stuck` says why it cannot continue, `trouble` what delays it."""

    slots: int = 0  # of live pilots
    running: dict[int, int] | None = None  # by stage: packages that occupy a slot; None: the book knows no less
    stuck: str = ""
    next_step: str = ""
    trouble: str = ""
    troubled_site: str = ""  # the site where pilots cannot start, if that is the trouble
    result: int | None = None  # the exit code of a job that a package ended


def stall_of(engine: Engine, job: str) -> JobStall:
    """The progress of a job; only the slots for a job that the engine does not know."""
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
            trouble=trouble or (_held(known) if known.held_why else _waits(engine, known)),
            troubled_site=site,
        )
    stuck, next_step = _stuck(engine, known)
    site, trouble = ("", "") if stuck else _trouble(engine, known)
    return JobStall(slots=slots, stuck=stuck, next_step=next_step, trouble=trouble, troubled_site=site)


def _running(engine: Engine, job: JobState) -> dict[int, int] | None:
    """How many packages of each stage occupy a slot; a pilot runs as many as fit, in order, and the others wait."""
    waiting: set[int] = set()
    running: set[int] = set()
    for pilot in engine.state.pilots.by_name.values():
        slots = pilot.count_running()
        for position, attempt in enumerate(pilot.assigned.values()):
            if attempt.ref.job == job.id:
                (running if position < slots else waiting).add(attempt.number)
    if len(waiting | running) != job.counts[PackageStatus.LIVE]:
        return None  # some are at a batch system, or on a pilot that has been silent
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
        return "", ""  # an abandoned attempt may still run: it will end
    if any(not late.pending for late in job.late.values()):
        return "", ""  # a stage is being expanded
    if job.counts[PackageStatus.HELD]:
        number = job.status.index(PackageStatus.HELD)
        held = job.counts[PackageStatus.HELD]
        if (why := job.work[number].refused) and why.startswith(NOT_STORED):
            return f"{job.dotted(number)}: {why}", f"when it can be: pilotage release {job.id}/{job.dotted(number)}"
        if why:
            cure = f"move that file away if both are wanted, or remove it, then: pilotage release {job.id}"
            return f"the outputs of {job.dotted(number)} cannot be published: {why}", f"{cure}/{job.dotted(number)}"
        what = f"{job.dotted(number)} is held" if held == 1 else f"{held} packages are held, {job.dotted(number)} first"
        step = f"pilotage release {job.id}/{job.dotted(number)}"
        if job.files is not None and (file := next(explain_lacks(engine.state, job, number), None)):
            return f"{what}: {file.message}", f"when it can be fetched: {step}"
        return f"{what}, and everything else waits for it", step
    if job.counts[PackageStatus.BLOCKED]:
        number = job.status.index(PackageStatus.BLOCKED)
        reasons = explain(engine.state, job, number).reasons
        why = reasons[0].message if reasons else "the reason is unknown"
        return f"{job.dotted(number)} waits: {why}", f"pilotage explain {job.id}/{job.dotted(number)}"
    return "", ""


def _nowhere(engine: Engine, job: JobState) -> tuple[str, str]:
    number = job.status.index(PackageStatus.READY)
    reasons = [why for why in explain(engine.state, job, number).reasons if why.code in ("site-unable", "no-site")]
    why = "; ".join(f"{each.subject}: {each.message}" if each.subject else each.message for each in reasons[:3])
    ready = job.counts[PackageStatus.READY]
    what = job.dotted(number) if ready == 1 else f"{ready} packages, {job.dotted(number)} first,"
    next_step = f"ask for less in the document, add a site that has it, or pilotage kill {job.id}"
    return f"no site can run {what} ({why})", next_step


def _waits(engine: Engine, job: JobState) -> str:
    """What the job waits for although nothing is wrong with a site: files that do not come, or the time of the next attempts."""
    return late_files(engine.state, job) or _waits_again(engine, job)


def _waits_again(engine: Engine, job: JobState) -> str:
    """Why the next attempts of failed packages wait, whatever else runs meanwhile."""
    waiting = job.counts[PackageStatus.DELAYED]
    if not waiting:
        return ""
    number = job.status.index(PackageStatus.DELAYED)
    why = next(
        (each.message for each in explain(engine.state, job, number).reasons if each.code == "waits-for-time"), ""
    )
    what = job.dotted(number) if waiting == 1 else f"{waiting} packages, {job.dotted(number)} first,"
    return f"{what} will be retried later: {why}"


def _last_failure(job: JobState) -> str:
    """The last error of the first failed package that waits; empty if there is none."""
    number = min((number for number, work in job.work.items() if work.failures), default=None)
    if number is None:
        return ""
    failures = job.work[number].failures
    last = failures[max(failures)]
    return f"; {job.dotted(number)} failed there: {last.reason}{words_of_failure(last.message)}"


def _trouble(engine: Engine, job: JobState) -> tuple[str, str]:
    """The site where pilots cannot start, and why; first a site that the job waits for, or one without live pilots.

    Sites that could run none of the waiting packages do not matter to the job.
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
        if (silence := silence_text(site)) and (waiting or _is_unheard(job, site)):
            return "", f"{silence}; next: pilotage site test {site.name}"
        if (died := _dead_starts(site)) and (waiting or site.name in needed):
            return site.name, f"no pilot could start at {site.name}: {died}{_tried_again(engine, [site])}"
        if waiting and (sleep := site.profile.sleep) is not None and sleep.reason == "probe-failed":
            message = f"no pilot started at {site.name} when it was probed: {sleep.message}"
            return "", f"{message}; next: pilotage site test {site.name}"
        if site.name in needed and site.asleep and _waits_for(engine, job, site):
            return "", f"site {site.name} hibernates: see pilotage site explain {site.name}"
    return "", ""


def _dead_starts(site: SiteState) -> str:
    """How many pilots died there before contacting the service; empty if none, or if an operator hibernated the site."""
    count, sleep = site.dead_starts, site.profile.sleep
    if sleep is not None and sleep.reason == "by-hand":
        return ""
    if not count:  # the count does not survive a restart
        return "its pilots died before contacting us" if sleep is not None and sleep.reason == "dead-starts" else ""
    return f"{count} died before contacting us"


def _is_unheard(job: JobState, site: SiteState) -> bool:
    """Whether a job has a batch job that does not start, or does not contact the service."""
    found = (site.bound.get(each.key) for each in silent_batch_jobs(site))
    return any(attempt is not None and attempt.ref.job == job.id for attempt in found)


def _all_asleep(engine: Engine, waiting: list[QueueClass]) -> str:
    """The message if all sites that could run a waiting package hibernate; else empty."""
    for queue in waiting:
        able = engine.state.placement.possible_sites(queue) if queue.ready else []
        asleep = [
            f"{site.name} ({sleep.reason.replace('-', ' ')}: {sleep.message})"
            for site in able
            if (sleep := site.profile.sleep) is not None
        ]
        if asleep and len(asleep) == len(able):
            names = " ".join(site.name for site in able[:_NAMED_MAX])
            more = f" and {len(asleep) - _NAMED_MAX} more" if len(asleep) > _NAMED_MAX else ""
            listed = ", ".join(asleep[:_NAMED_MAX])
            again = _tried_again(engine, able)
            return f"all sites that could run it hibernate: {listed}{more}{again}; next: pilotage site wake {names}"
    return ""


def _tried_again(engine: Engine, sites: list[SiteState]) -> str:
    """When the next pilot is tried at the first of some sites that has a time set; empty if none has."""
    times = [at for site in sites if (at := next_try_at(engine, site)) is not None]
    return f"; the next one is tried at {moment(min(times))}" if times else ""


def _waits_for(engine: Engine, job: JobState, site: SiteState) -> bool:
    """Whether a job has a reservation at a site, or packages that can run only there."""
    if any(queue.job is job for queue in engine.state.queues.at[site].reserved):
        return True
    return any(queue.ready and queue.requirements.executor == site.name for queue in job.classes.values())
