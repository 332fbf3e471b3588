"""Explains for every package why it is not running, where it runs or how it ended, from the engine and the book."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from pilotage.book.rows.rows import PackageFacts
from pilotage.engine.decisions.job_lifecycle import why_it_ended
from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.holding import explain_lacks
from pilotage.engine.files.queries import explain_files
from pilotage.engine.package_times import expected_package_times
from pilotage.engine.placement import unmet
from pilotage.engine.retry.policy import lacked_input
from pilotage.engine.selection.candidates import CANDIDATE, HIBERNATED, OVERLOADED, SelectionSnapshot
from pilotage.engine.selection.filters import Requirements, allows, names_text, refusals, requirements_of
from pilotage.engine.selection.site_profile import SiteProfile
from pilotage.engine.state.job_queries import is_stopped, may_act, status_of
from pilotage.engine.state.jobs import STATUS_NAMES, ActivePackage, JobState, PackageStatus, QueueClass, template_of
from pilotage.engine.state.sites import AttemptState, BatchGroup, SiteState, silent_batch_jobs
from pilotage.engine.transitions.queue_classes import queue_of
from pilotage.model.answers import Explanation, Why
from pilotage.model.jobs.plan import Template
from pilotage.model.texts import after_a_stop, words_of_failure

# Why a site was chosen. For active packages the engine keeps a snapshot of the sites at the time of the choice.
#
# A snapshot is taken for a class at most every few seconds and shared by all packages bound meanwhile, so it costs a
# package only a reference. No event contains it: for a finished package, the book tells the site, and the other sites are
# described as they are now.

_SHOWN_MAX = 20


def explain_live_site(state: EngineState, attempt: AttemptState) -> Iterator[Why]:
    """Why an active attempt is at its site and not at another one; nothing if there is no other site."""
    note, site, number = attempt.choice, attempt.site, attempt.ref.attempt
    if not _is_choice(state, site.name):
        return
    went = f"attempt {number} went to {site.name}"
    if note is None:
        message = f"{went}; the state of the sites at that time is not known: it was the only site, or the service was restarted since"
        yield Why(code="chosen", message=message, subject=site.name, since=attempt.created_at)
        return
    candidates, choice = note.status.count(CANDIDATE), _how(state, note, site.index)
    yield Why(code="chosen", message=f"{went}: {choice}", subject=site.name, count=candidates, since=note.at)
    others = [
        profile for profile in state.selection.sites.profiles if profile is not None and profile.index != site.index
    ]
    for profile in others[:_SHOWN_MAX]:
        if profile.index < len(note.status):  # else the site was added later
            yield Why(code="not-chosen", message=_why_not(state, profile, note), subject=profile.name)


def _is_choice(state: EngineState, site: str) -> bool:
    """Whether there is any other site."""
    return any(name != site for name in state.selection.sites.by_name)


def _how(state: EngineState, note: SelectionSnapshot, index: int) -> str:
    policy, candidates = state.settings.selection.policy, note.status.count(CANDIDATE)
    if note.how == "idle":
        return "its pilots were idle, and it could not start where it was reserved"
    if note.how == "filled":
        return "more packages were ready than all sites had room for"
    if index >= len(note.status) or note.status[index] != CANDIDATE:
        return "it had just got room again"
    if candidates == 1:
        return f"no other site could be picked (score {note.scores[index]:.2f})"
    if policy == "best":
        return f"it had the best score of {candidates} candidates (score {note.scores[index]:.2f})"
    if policy == "first":
        return f"it was the first of {candidates} candidates"
    return f"{policy} drew it from {candidates} candidates ({_weighed(state, note, index)})"


def _weighed(state: EngineState, note: SelectionSnapshot, index: int) -> str:
    """The score of a candidate, and its share of the weight if the policy draws by weight."""
    score, settings = f"score {note.scores[index]:.2f}", state.settings.selection
    if settings.policy == "thompson" and note.status.count(CANDIDATE) <= settings.thompson_looked_at:
        return score
    return f"{score}, {note.share(index):.0%} of the weight"


def _why_not(state: EngineState, profile: SiteProfile, note: SelectionSnapshot) -> str:
    index, name = profile.index, profile.name
    status = note.status[index]
    if status == CANDIDATE and note.how == "filled":
        return f"{name} was filled up, too"
    if status == CANDIDATE:
        return f"{name} could have been chosen as well ({_weighed(state, note, index)})"
    if status == HIBERNATED:
        return f"{name} hibernated"
    if status == OVERLOADED:
        return f"{name} had no room"
    reasons = "; ".join(each.message for each in refusals(profile.description, note.requirements))
    return f"{name} could not run it" + (f": {reasons}" if reasons else "")


def explain_finished_site(state: EngineState, job: JobState, number: int, facts: PackageFacts) -> Iterator[Why]:
    """For a finished package: the site of its granted attempt, from the book, and how the sites compare now for an equal package."""
    known = facts.attempts.get(job.granted[number])
    if known is None or not known.site or not _is_choice(state, known.site):
        return
    message = f"attempt {job.granted[number]} went to {known.site}: the state of the sites is kept only while it runs"
    yield Why(code="chosen", message=message, subject=known.site, since=known.created_at)
    template = template_of(job, number)
    requirements, shape = _current_requirements(state, job, template), state.shapes.number_of(template.demand)
    pool = state.selection.pool(requirements, shape)
    choice = state.selection.explain_choice(now=state.clock.wall_time, requirements=requirements, shape=shape)
    if not pool.users:
        state.selection.forget(requirements, shape)
    for each in choice.sites:
        reason = next((stage.message for stage in each.stages if not stage.passes), each.stages[-1].message)
        summary = f"now {each.site} is {each.status} for an equal package (score {each.score:.2f}): {reason}"
        yield Why(code="site-now", message=summary, subject=each.site)


def _current_requirements(state: EngineState, job: JobState, template: Template) -> Requirements:
    """The requirements of one more package of a template; its estimate counts only if some site lasts that long, as in a queue."""
    requirements = requirements_of(job.owner, template, demand=template.demand, run_seconds=template.run_seconds)
    profiles = [profile for profile in state.selection.sites.profiles if profile is not None]
    lasts = any(allows(profile.description, requirements) for profile in profiles)
    return requirements if lasts else msgspec.structs.replace(requirements, run_seconds=0.0)


# Batch jobs that do not start, or run without contacting the service.
#
# This decides nothing: a pilot that makes contact late is as good as any, and one that never does has a wall time.
LINES_SHOWN = 2
LINE_MAX = 200
_STAMP = re.compile(r"^[0-9T:+-]+ pilotage-agent: ")


def silence_summary(site: SiteState, *keys: str) -> tuple[str, str]:
    """Two texts about silent batch jobs of a site (of `keys`, if given): what is wrong, and the output; empty if nothing is."""
    found = [each for each in silent_batch_jobs(site) if not keys or each.key in keys]
    if not found:
        return "", ""
    state = found[0].state
    count = sum(each.state == state for each in found)
    words = next((each.words for each in found if each.state == state and each.words), "")
    lines = [_STAMP.sub("", line.strip())[:LINE_MAX] for line in words.strip().splitlines()[-LINES_SHOWN:]]
    printed = " / ".join(lines)
    if state == "held":
        what = "a batch job" if count == 1 else f"{count} batch jobs"
        verb = "is" if count == 1 else "are"
        return (
            f"{what} at {site.name} {verb} held by the batch system",
            f"the batch system says {printed}" if printed else "",
        )
    what = "a pilot runs" if count == 1 else f"{count} pilots run"
    none = "it has" if count == 1 else "they have"
    return f"{what} at {site.name} without contacting the service", printed or f"{none} printed nothing"


def silence_text(site: SiteState, *keys: str) -> str:
    """The same as one sentence."""
    return ": ".join(filter(None, silence_summary(site, *keys)))


_PACKAGES_SHOWN_MAX = 5


def explain(state: EngineState, job: JobState, number: int, facts: PackageFacts | None = None) -> Explanation:
    """The reasons for the state of a package; `facts`, from the book, describe finished attempts."""
    status = status_of(job, number)
    reasons = [*_job_reasons(job)]
    if status == job.status[number]:  # else its job is over, and so is every package that had not begun
        reasons += _REASONS[status](state, job, number, facts)
    if (
        status in (PackageStatus.BLOCKED, PackageStatus.READY, PackageStatus.DELAYED, PackageStatus.RESERVED)
        and number in job.work
    ):
        reasons += _attempts(job.work[number])
    reasons += _history(job, number, facts)
    times = expected_package_times(state, job, number)
    return Explanation(
        job=job.id,
        package=job.dotted(number),
        epoch=job.epoch_of(number),
        standing=STATUS_NAMES[status],
        reasons=tuple(reasons),
        expected_start_at=times.start_at,
        expected_end_at=times.end_at,
    )


def _job_reasons(job: JobState) -> Iterator[Why]:
    """Reasons that hold for the whole job."""
    if not job.accepted:
        yield Why(code="not-accepted", message="its job is not accepted yet", subject=job.id)
    if job.cancelled:
        yield Why(code="job-cancelled", message="its job was killed", subject=job.id, next_step="restart the job")
    if job.aborted:
        yield Why(code="job-aborted", message="its job was given up", subject=job.id, next_step="restart the job")
    if job.held:
        message = f"its job is held: {job.held_why}" if job.held_why else "its job is held"
        yield Why(code="job-held", message=message, subject=job.id, next_step=f"release it: pilotage release {job.id}")


def _final_package(job: JobState, number: int) -> Iterator[Why]:
    """What a final package waits for."""
    if job.ending or not job.plan.templates[job.kinds[number]].final:
        return
    if others := job.others:
        message = f"it is a final package: {others} other {'package is' if others == 1 else 'packages are'} not over"
        yield Why(code="runs-last", message=message, count=others)
    else:
        stages = ", ".join(map(str, sorted(job.late)))
        yield Why(code="runs-last", message=f"it is a final package: stage {stages} is not expanded yet")


def _blocked(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    yield from _final_package(job, number)
    missing = [other for other in job.awaited(number) if not job.satisfied[other]]
    lacked = (tried := job.work.get(number)) is not None and lacked_input(tried.failures)
    for other in missing[:_PACKAGES_SHOWN_MAX]:
        name = job.dotted(other)
        status = STATUS_NAMES[job.status[other]]
        message = f"it needs the outputs of {name}, which is {status}"
        if lacked:
            message = f"an input from {name} was missing and is made again; {name} is {status}"
        yield Why(code="waits-for-package", message=message, subject=name, count=len(missing))
    work = tried
    if work is not None and work.early_failed:
        message = (
            "an attempt that had started early failed, which does not count: it waits until its inputs are complete"
        )
        yield Why(code="early-failed", message=message)
    if number in job.acting or (work is not None and may_act(job, work)):
        message = "it has side effects: no further attempt starts before an abandoned one is known to have stopped"
        yield Why(code="suspect", message=message, count=job.acting.get(number, 1))
    for stage in job.plan.late_waits.get(int(job.plan.template_of[number]), ()):
        late = job.late.get(stage)
        left = late.pending if late is not None else 0
        message = f"stage {stage} is expanded when {left} more packages are done"
        yield Why(code="waits-for-stage", message=message, subject=f"stage {stage}", count=left)


def _ready(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    queue = queue_of(state, job, number)
    limit = job.plan.limits.get(queue.category)
    running = job.running_in.get(queue.category, 0)
    if limit is not None and running >= limit:
        message = f"{running} packages of category {queue.category} run, and the limit is {limit}"
        yield Why(code="category-limit", message=message, subject=queue.category, count=running)
    quota, busy = state.settings.owner_running_max, state.jobs.busy_by_owner.get(job.owner, 0)
    if quota and busy >= quota:
        message = f"{busy} packages of {job.owner} run, and the limit is {quota}"
        yield Why(code="owner-quota", message=message, subject=job.owner, count=busy)
    there = [site for site in state.sites.by_name.values() if not site.removed]
    if not there:
        yield Why(code="no-site", message="there is no site", next_step="add a site")
    for site in there:
        yield _at_site(state, queue, site)
        if state.placement.able(site, queue):
            yield from _silent(site)
    yield from _jobs_ahead(state, job)


def _jobs_ahead(state: EngineState, job: JobState) -> Iterator[Why]:
    """Which other job goes first, and why."""
    if (found := state.fairness.ahead(job)) is not None:
        count, first = found
        others = "" if count == 1 else f", and {count - 1} more"
        message = f"{first.id} of {first.owner} goes before its job{others}: {state.fairness.why_before(first, job)}"
        yield Why(code="after-others", message=message, subject=first.id, count=count)


def _at_site(state: EngineState, queue: QueueClass, site: SiteState) -> Why:
    name, shape = site.name, queue.shape
    if not state.placement.able(site, queue):
        reasons = [each.message for each in refusals(site.profile.description, queue.requirements)]
        lacks = unmet(site, queue.demand)
        return Why(code="site-unable", message="; ".join(lacks or reasons or ["the site was removed"]), subject=name)
    if not site.known:
        return Why(code="site-unknown", message=f"{name} does not answer", subject=name)
    if (sleep := site.profile.sleep) is not None:
        message = f"{name} hibernates ({sleep.reason}): {sleep.message}"
        return Why(code="site-hibernated", message=message, subject=name, since=sleep.since)
    if name in queue.avoid and site not in state.placement.open_sites(queue):
        return Why(
            code="site-avoided", message=f"it failed at {name} or runs there, and there are other sites", subject=name
        )
    if site.index in queue.unfit:
        message = f"{name} had no {_slot(queue)} for {state.settings.unfit_seconds:.0f} s"
        return Why(code="site-closed", message=message, subject=name)
    if not state.placement.has_room(site, shape):
        used, room = site.used[shape], site.profile.room(shape)
        message = f"{name} has room for {room.limit} such packages; {used} are reserved or running"
        if room.rule in ("canary", "trial"):
            message = f"{name}: {room.describe(used)}"
        return Why(code="site-full", message=message, subject=name, count=used)
    return Why(code="next", message=f"{name} has room for it; it is among the next", subject=name)


def _delayed(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    work = job.work[number]
    message = "its next attempt is delayed"
    if work.verdict is not None:
        message = f"{work.verdict.message} ({work.verdict.rule})"
    if work.failures:
        message += words_of_failure(work.failures[max(work.failures)].message)
    yield Why(code="waits-for-time", message=message, until=_wall_time(state, work.delayed_until))
    if lacked_input(work.failures):
        yield _input(job, number)


def _input(job: JobState, number: int) -> Why:
    """How a missing input can come back: a package makes it again, or only time helps."""
    makers = list(job.producers(number))
    if not makers:
        message = "an input was missing that no package of its job makes: it is checked again, with growing pauses"
        return Why(code="waits-for-input", message=message, next_step="bring the input back")
    names = ", ".join(job.dotted(each) for each in makers[:_PACKAGES_SHOWN_MAX])
    message = (
        f"an input was missing: if it is gone from the folder of the job, {names} makes it again at once, "
        "or else it is checked later"
    )
    next_step = f"restart {job.dotted(makers[0])}, if its outputs are lost"
    return Why(
        code="waits-for-input", message=message, subject=job.dotted(makers[0]), count=len(makers), next_step=next_step
    )


def _wall_time(state: EngineState, time: float) -> float:
    """A time of the engine as wall-clock time; the clock may have been set."""
    return time + (state.clock.wall_time - state.clock.now)


def _reserved(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    work = job.work[number]
    site = work.bound
    assert site is not None
    since = _wall_time(state, work.bound_at)
    yield Why(code="reserved", message=f"it is reserved for {site.name}", subject=site.name, since=since)
    if work.lacks:
        yield from explain_files(state, work, site)
        return
    queue = queue_of(state, job, number)
    slots = site.slots[queue.shape]
    if not slots:
        message = f"no pilot at {site.name} can run it; {site.expected} are requested"
        if queue.demand.node_restriction:
            message = f"{site.name} has no {_slot(queue)}; {len(site.pilots)} run on other nodes, {site.expected} are requested"
        yield Why(code="no-slot", message=message, subject=site.name, count=site.expected)
        yield from _silent(site)
    else:
        yield Why(code="no-slot", message=f"all {slots} slots at {site.name} are taken", subject=site.name, count=slots)
    yield from _jobs_ahead(state, job)


def _slot(queue: QueueClass) -> str:
    """The slot that a class needs at a site, in words."""
    if names := queue.demand.node_restriction:
        return f"pilot on {names_text(names)}, the only nodes where it may run"
    return "slot that fits"


def _live(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    work = job.work[number]
    yield from _attempts(work)
    for attempt in work.attempts.values():
        if attempt.trusted:
            yield from explain_live_site(state, attempt)
    for tried, ties in sorted(work.ties.items()):
        for other, _ in ties[:_PACKAGES_SHOWN_MAX]:
            if not job.granted[other]:
                yield _started_early(job, tried, other, count=len(ties))
    for candidate in sorted(work.candidates):
        yield Why(code="waits-for-grant", message=f"attempt {candidate} succeeded and waits for its grant")


def _started_early(job: JobState, tried: int, producer: int, *, count: int) -> Why:
    name = job.dotted(producer)
    message = f"attempt {tried} started early: it reads the outputs of {name}, which are not granted yet, and is granted after it"
    return Why(code="started-early", message=message, subject=name, count=count)


def _attempts(work: ActivePackage) -> Iterator[Why]:
    for attempt in work.attempts.values():
        yield _attempt(attempt)
        if (group := attempt.site.groups.get(attempt.group)) is not None and not attempt.lost:
            yield _sharing(attempt, group)
        if attempt.key and not attempt.leased:
            yield from _silent(attempt.site, attempt.batch_key)


def _sharing(attempt: AttemptState, group: BatchGroup) -> Why:
    """Its batch job runs other packages, too, one after another."""
    count = len(group.members) - 1
    message = f"attempt {attempt.ref.attempt} has its batch job for itself"
    if count:
        other = "one other package" if count == 1 else f"{count} other packages"
        message = f"attempt {attempt.ref.attempt} shares a batch job with {other}, which run one after another"
    if count and not attempt.leased:
        before = list(group.members).index(attempt)
        message += f"; {before} of them before it"
    return Why(code="shares-batch-job", message=message, subject=attempt.site.name, count=count)


def _attempt(attempt: AttemptState) -> Why:
    number, where = attempt.ref.attempt, attempt.site.name
    if attempt.lost:
        message = f"attempt {number} at {where} counts as lost ({attempt.lost_reason}); if it comes back, its result may still count"
        return Why(code="lost", message=message, subject=attempt.pilot or where, since=attempt.created_at)
    if attempt.suspect:
        message = f"attempt {number} at {where} is silent; another attempt may start"
        return Why(code="suspect", message=message, subject=attempt.pilot or where, since=attempt.created_at)
    if not attempt.leased:
        verb = "is in the queue of" if attempt.queued else "is being submitted to"
        return Why(code="queued", message=f"attempt {number} {verb} {where}", subject=where, since=attempt.created_at)
    message = f"attempt {number} runs at {where} in {attempt.pilot}"
    return Why(code="running", message=message, subject=attempt.pilot, since=attempt.created_at)


def _silent(site: SiteState, *keys: str) -> Iterator[Why]:
    """Silent batch jobs at a site (of `keys`, if given); an active pilot answers for the others."""
    if (message := silence_text(site, *keys)) and (keys or not site.pilots):
        yield Why(code="unheard", message=message, subject=site.name, next_step=f"pilotage site test {site.name}")


def _held(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    refused = job.work[number].refused
    if job.files is not None:
        yield from explain_lacks(state, job, number)  # what to mend comes before the release
    yield Why(code="held", message=f"it is held: {refused}" if refused else "it is held", next_step="release it")
    yield from _attempts(job.work[number])
    yield from _blocked(state, job, number, facts)


def _dropped(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    yield Why(code="dropped", message="its line was dropped from the job", next_step="restore the line")


def _done(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    message = f"attempt {job.granted[number]} was granted"
    if facts is not None and facts.site is not None:
        message += f"; it ran at {facts.site}"
    yield Why(code="done", message=message, since=facts.done_at if facts is not None else None)
    if facts is not None:
        yield from explain_finished_site(state, job, number, facts)


def _aborted(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    message, since, next_step = "it was given up", None, "restart it, or drop its line"
    if is_stopped(job, number):
        next_step = after_a_stop(job.id, template_of(job, number).activity)
    if facts is not None:
        message = f"it was given up: {facts.cause}" + (f" ({facts.cause_message})" if facts.cause_message else "")
        since = facts.aborted_at
    yield Why(code="aborted", message=message, since=since, next_step=next_step)


def _upstream(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    dead = [other for other in job.awaited(number) if job.is_dead(other)]
    for other in dead[:_PACKAGES_SHOWN_MAX]:
        name = job.dotted(other)
        message = f"it was given up because it needs the outputs of {name}, which is {STATUS_NAMES[job.status[other]]}"
        yield Why(
            code="aborted",
            message=message,
            subject=name,
            count=len(dead),
            next_step=f"restart {name}, or drop its line",
        )
    if not dead:
        yield Why(
            code="aborted",
            message="it was given up because a package that it needs was",
            next_step="restart what failed",
        )


def _cancelled(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    since = facts.cancelled_at if facts is not None else None
    message, next_step = "it was cancelled on request", "restart it"
    if job.ended_by:
        message, next_step = f"it was cancelled: {why_it_ended(job)}", "restart the job"
    yield Why(code="cancelled", message=message, since=since, next_step=next_step)


def _history(job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    """The failed attempts: from the book if `facts` are given, else as far as the engine remembers."""
    if facts is None:
        work = job.work.get(number)
        for failure in work.failures.values() if work is not None else ():
            yield Why(
                code="failed",
                message=f"attempt {failure.attempt} failed at {failure.site}: {failure.reason}{words_of_failure(failure.message)}",
                subject=failure.site,
            )
        return
    for attempt, known in sorted(facts.attempts.items()):
        if known.finished_at is not None and known.exit_code != "SUCCESS":
            words = words_of_failure(known.exit_message or "")
            message = f"attempt {attempt} failed at {known.site}: {known.reason or known.exit_code}{words}"
            yield Why(code="failed", message=message, subject=known.site or "", since=known.finished_at)


_REASONS = {
    PackageStatus.BLOCKED: _blocked,
    PackageStatus.READY: _ready,
    PackageStatus.DELAYED: _delayed,
    PackageStatus.RESERVED: _reserved,
    PackageStatus.LIVE: _live,
    PackageStatus.HELD: _held,
    PackageStatus.DROPPED: _dropped,
    PackageStatus.DONE: _done,
    PackageStatus.ABORTED: _aborted,
    PackageStatus.CANCELLED: _cancelled,
    PackageStatus.UPSTREAM: _upstream,
}
