"""Why is it not running, where does it run, how did it end: answered for every package, from the engine and the book."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from pilotage.book.rows.rows import PackageFacts
from pilotage.engine.decisions.job_lifecycle import why_it_ended
from pilotage.engine.engine_state import EngineState
from pilotage.engine.placement import unmet
from pilotage.engine.retry.policy import lacked_input
from pilotage.engine.selection.candidates import CANDIDATE, HIBERNATED, OVERLOADED, SelectionSnapshot
from pilotage.engine.selection.filters import Asked, allows, asked_of, refusals, told_names
from pilotage.engine.selection.site_profile import SiteProfile
from pilotage.engine.state.job_queries import may_act, status_of
from pilotage.engine.state.jobs import STATUS_NAMES, ActivePackage, JobState, PackageStatus, QueueClass, template_of
from pilotage.engine.state.sites import AttemptState, SiteState, silent_batch_jobs
from pilotage.engine.transitions.queue_classes import queue_of
from pilotage.model.answers import Explanation, Why
from pilotage.model.jobs.plan import Template
from pilotage.model.texts import words_of_failure

# Why a site was chosen: how the sites stood is noted for what is under way, and told when somebody asks.
#
# A note is taken for a class at most every few seconds and shared by all that was bound meanwhile, so it costs a
# package nothing but its place. It is in no event: of what is over the book tells where it was, and the sites are
# told as they stand now.

_SHOWN_MAX = 20


def explain_live_site(state: EngineState, attempt: AttemptState) -> Iterator[Why]:
    """Why an attempt that is under way is where it is, and not at another site; nothing where there is no other."""
    note, site, number = attempt.choice, attempt.site, attempt.ref.attempt
    if not _is_choice(state, site.name):
        return
    went = f"attempt {number} went to {site.name}"
    if note is None:
        told = f"{went}, which was alone then, or the service was restarted since: how the sites stood is not known"
        yield Why(code="chosen", message=told, subject=site.name, since=attempt.created_at)
        return
    candidates, told = note.status.count(CANDIDATE), _how(state, note, site.index)
    yield Why(code="chosen", message=f"{went}: {told}", subject=site.name, count=candidates, since=note.at)
    others = [place for place in state.selection.sites.places if place is not None and place.index != site.index]
    for place in others[:_SHOWN_MAX]:
        if place.index < len(note.status):  # else it came later
            yield Why(code="not-chosen", message=_why_not(state, place, note), subject=place.name)


def _is_choice(state: EngineState, site: str) -> bool:
    """Whether there is any site but this one."""
    return any(name != site for name in state.selection.sites.by_name)


def _how(state: EngineState, note: SelectionSnapshot, index: int) -> str:
    policy, candidates = state.settings.selection.policy, note.status.count(CANDIDATE)
    if note.how == "idle":
        return "its pilots had nothing to do, and where it was reserved it could not begin"
    if note.how == "filled":
        return "more was ready than all sites had room for"
    if index >= len(note.status) or note.status[index] != CANDIDATE:
        return "a moment before it had no room, and then it had"
    if candidates == 1:
        return f"no other site could be picked (score {note.scores[index]:.2f})"
    if policy == "best":
        return f"it had the best score of {candidates} candidates (score {note.scores[index]:.2f})"
    if policy == "first":
        return f"it stood first of {candidates} candidates"
    return f"{policy} drew it from {candidates} candidates ({_weighed(state, note, index)})"


def _weighed(state: EngineState, note: SelectionSnapshot, index: int) -> str:
    """The score of a candidate, and its share of the weight where anything is drawn by that."""
    score, settings = f"score {note.scores[index]:.2f}", state.settings.selection
    if settings.policy == "thompson" and note.status.count(CANDIDATE) <= settings.thompson_looked_at:
        return score
    return f"{score}, {note.share(index):.0%} of the weight"


def _why_not(state: EngineState, place: SiteProfile, note: SelectionSnapshot) -> str:
    index, name = place.index, place.name
    status = note.status[index]
    if status == CANDIDATE and note.how == "filled":
        return f"{name} was given as much as it had room for, too"
    if status == CANDIDATE:
        return f"{name} could have been picked ({_weighed(state, note, index)})"
    if status == HIBERNATED:
        return f"{name} slept"
    if status == OVERLOADED:
        return f"{name} had no room"
    told = "; ".join(each.message for each in refusals(place.description, note.asked))
    return f"{name} could not run it" + (f": {told}" if told else "")


def explain_finished_site(state: EngineState, job: JobState, number: int, facts: PackageFacts) -> Iterator[Why]:
    """Of a package that is over: where its granted attempt was, by the book, and how the sites stand now for one like it."""
    known = facts.attempts.get(job.granted[number])
    if known is None or not known.site or not _is_choice(state, known.site):
        return
    message = f"attempt {job.granted[number]} went to {known.site}: how the sites stood is kept only while it runs"
    yield Why(code="chosen", message=message, subject=known.site, since=known.created_at)
    template = template_of(job, number)
    asked, shape = _asked_now(state, job, template), state.shapes.number_of(template.demand)
    pool = state.selection.pool(asked, shape)
    choice = state.selection.explain_choice(now=state.clock.wall_time, asked=asked, shape=shape)
    if not pool.users:
        state.selection.forget(asked, shape)
    for each in choice.sites:
        reason = next((stage.message for stage in each.stages if not stage.passes), each.stages[-1].message)
        told = f"now {each.site} is {each.status} for one like it (score {each.score:.2f}): {reason}"
        yield Why(code="site-now", message=told, subject=each.site)


def _asked_now(state: EngineState, job: JobState, template: Template) -> Asked:
    """What one more of a template would ask: its estimate counts only where some site lasts so long, as for what waits."""
    asked = asked_of(job.owner, template, demand=template.demand, run_seconds=template.run_seconds)
    places = [place for place in state.selection.sites.places if place is not None]
    lasts = any(allows(place.description, asked) for place in places)
    return asked if lasts else msgspec.structs.replace(asked, run_seconds=0.0)


# What was noticed at a site of things that do not begin, or run and do not speak: told to whoever waits for them.
#
# It decides nothing: a pilot that speaks late is as good as any, and one that never does has a wall time.
LINES_TOLD = 2
LINE_MAX = 200
_STAMP = re.compile(r"^[0-9T:+-]+ pilotage-agent: ")


def silence_summary(site: SiteState, *keys: str) -> tuple[str, str]:
    """The same in some words, of some keys where they are named, and what was said there; nothing where all is well."""
    found = [each for each in silent_batch_jobs(site) if not keys or each.key in keys]
    if not found:
        return "", ""
    state = found[0].state
    count = sum(each.state == state for each in found)
    words = next((each.words for each in found if each.state == state and each.words), "")
    lines = [_STAMP.sub("", line.strip())[:LINE_MAX] for line in words.strip().splitlines()[-LINES_TOLD:]]
    said = " / ".join(lines)
    if state == "held":
        what = "a batch job does not" if count == 1 else f"{count} batch jobs do not"
        return f"{what} begin at {site.name} without somebody's help", f"the batch system says {said}" if said else ""
    what = "a pilot runs" if count == 1 else f"{count} pilots run"
    none = "it has" if count == 1 else "they have"
    return f"{what} at {site.name} and cannot be heard", said or f"{none} printed nothing"


def silence_text(site: SiteState, *keys: str) -> str:
    """The same in one sentence."""
    return ": ".join(filter(None, silence_summary(site, *keys)))


_PACKAGES_SHOWN_MAX = 5


def explain(state: EngineState, job: JobState, number: int, facts: PackageFacts | None = None) -> Explanation:
    """The reasons for where a package is; `facts`, from the book, tell of attempts that are over."""
    status = status_of(job, number)
    reasons = [*_outer(job)]
    if status == job.status[number]:  # else its job is over, and with it all that was not begun
        reasons += _REASONS[status](state, job, number, facts)
    if (
        status in (PackageStatus.BLOCKED, PackageStatus.READY, PackageStatus.DELAYED, PackageStatus.RESERVED)
        and number in job.work
    ):
        reasons += _attempts(job.work[number])
    reasons += _history(job, number, facts)
    return Explanation(
        job=job.id,
        package=job.dotted(number),
        epoch=job.epoch_of(number),
        standing=STATUS_NAMES[status],
        reasons=tuple(reasons),
    )


def _outer(job: JobState) -> Iterator[Why]:
    """What holds for the whole job."""
    if not job.accepted:
        yield Why(code="not-accepted", message="its job is not accepted yet", subject=job.id)
    if job.cancelled:
        yield Why(code="job-cancelled", message="its job was killed", subject=job.id, next_step="restart the job")
    if job.aborted:
        yield Why(code="job-aborted", message="its job was given up", subject=job.id, next_step="restart the job")
    if job.held:
        message = f"its job is held: {job.held_why}" if job.held_why else "its job is held"
        yield Why(code="job-held", message=message, subject=job.id, next_step=f"release it: pilotage release {job.id}")


def _last(job: JobState, number: int) -> Iterator[Why]:
    """What a package waits for that runs last."""
    if job.ending or not job.plan.templates[job.kinds[number]].final:
        return
    if others := job.others:
        message = f"it runs last: {others} other {'package is' if others == 1 else 'packages are'} not over"
        yield Why(code="runs-last", message=message, count=others)
    else:
        stages = ", ".join(map(str, sorted(job.late)))
        yield Why(code="runs-last", message=f"it runs last: what stage {stages} has to do is not known yet")


def _blocked(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    yield from _last(job, number)
    missing = [other for other in job.awaited(number) if not job.satisfied[other]]
    lacked = (tried := job.work.get(number)) is not None and lacked_input(tried.failures)
    for other in missing[:_PACKAGES_SHOWN_MAX]:
        name = job.dotted(other)
        status = STATUS_NAMES[job.status[other]]
        message = f"it needs what {name} makes, which is {status}"
        if lacked:
            message = f"what it takes from {name} was missing and is made anew; that is {status}"
        yield Why(code="waits-for-package", message=message, subject=name, count=len(missing))
    work = job.work.get(number)
    if number in job.acting or (work is not None and may_act(job, work)):
        message = "it acts on the outside: no other attempt starts before one that nobody waits for is known to be over"
        yield Why(code="suspect", message=message, count=job.acting.get(number, 1))
    for stage in job.plan.late_waits.get(int(job.plan.template_of[number]), ()):
        late = job.late.get(stage)
        left = late.pending if late is not None else 0
        message = f"what stage {stage} has to do is not known before {left} more packages are done"
        yield Why(code="waits-for-stage", message=message, subject=f"stage {stage}", count=left)


def _ready(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    queue = queue_of(state, job, number)
    limit = job.plan.limits.get(queue.category)
    running = job.running_in.get(queue.category, 0)
    if limit is not None and running >= limit:
        message = f"{running} of category {queue.category} run, and {limit} may"
        yield Why(code="category-limit", message=message, subject=queue.category, count=running)
    quota, busy = state.settings.owner_running_max, state.jobs.busy_by_owner.get(job.owner, 0)
    if quota and busy >= quota:
        message = f"{busy} packages of {job.owner} run, and {quota} may"
        yield Why(code="owner-quota", message=message, subject=job.owner, count=busy)
    there = [site for site in state.sites.by_name.values() if not site.removed]
    if not there:
        yield Why(code="no-site", message="there is no site", next_step="add a site")
    for site in there:
        yield _at_site(state, queue, site)
        if state.placement.able(site, queue):
            yield from _unheard(site)
    yield from _turn(state, job)


def _turn(state: EngineState, job: JobState) -> Iterator[Why]:
    """Which other job goes before it, and why."""
    if (found := state.fairness.ahead(job)) is not None:
        count, first = found
        others = "" if count == 1 else f", and {count - 1} more"
        message = f"{first.id} of {first.owner} goes before its job{others}: {state.fairness.why_before(first, job)}"
        yield Why(code="after-others", message=message, subject=first.id, count=count)


def _at_site(state: EngineState, queue: QueueClass, site: SiteState) -> Why:
    name, shape = site.name, queue.shape
    if not state.placement.able(site, queue):
        told = [each.message for each in refusals(site.place.description, queue.asked)]
        lacks = unmet(site, queue.demand)
        return Why(code="site-unable", message="; ".join(lacks or told or ["it is no site any more"]), subject=name)
    if not site.known:
        return Why(code="site-unknown", message=f"{name} does not answer", subject=name)
    if (sleep := site.place.sleep) is not None:
        message = f"{name} hibernates ({sleep.reason}): {sleep.message}"
        return Why(code="site-hibernated", message=message, subject=name, since=sleep.since)
    if name in queue.avoid and site not in state.placement.open_sites(queue):
        return Why(code="site-avoided", message=f"it failed or runs at {name}, and there are other sites", subject=name)
    if site.index in queue.unfit:
        message = f"{name} had no {_slot(queue)} for {state.settings.unfit_seconds:.0f} s"
        return Why(code="site-closed", message=message, subject=name)
    if not state.placement.has_room(site, shape):
        used, room = site.used[shape], site.place.room(shape)
        message = f"{name} has room for {room.limit} like it, and {used} are reserved or run"
        if room.rule in ("canary", "trial"):
            message = f"{name}: {room.tell(used)}"
        return Why(code="site-full", message=message, subject=name, count=used)
    return Why(code="next", message=f"{name} has room for it; it is among the next", subject=name)


def _delayed(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    work = job.work[number]
    message = "its next attempt waits for its time"
    if work.verdict is not None:
        message = f"{work.verdict.message} ({work.verdict.rule})"
    if work.failures:
        message += words_of_failure(work.failures[max(work.failures)].message)
    yield Why(code="waits-for-time", message=message, until=_by_the_clock(state, work.delayed_until))
    if lacked_input(work.failures):
        yield _input(job, number)


def _input(job: JobState, number: int) -> Why:
    """What can bring an input back that was missing: the package that makes it, or only time."""
    makers = list(job.producers(number))
    if not makers:
        message = "an input was missing that nothing in its job makes: it is looked for again, later each time"
        return Why(code="waits-for-input", message=message, next_step="bring the input back")
    names = ", ".join(job.dotted(each) for each in makers[:_PACKAGES_SHOWN_MAX])
    message = f"an input was missing: it goes on at once when {names} has made it anew, else it is looked for later"
    next_step = f"restart {job.dotted(makers[0])}, if what it made is lost"
    return Why(
        code="waits-for-input", message=message, subject=job.dotted(makers[0]), count=len(makers), next_step=next_step
    )


def _by_the_clock(state: EngineState, time: float) -> float:
    """A time of the engine as the clock shows it, which somebody may have set."""
    return time + (state.clock.wall_time - state.clock.now)


def _reserved(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    work = job.work[number]
    site = work.bound
    assert site is not None
    since = _by_the_clock(state, work.bound_at)
    yield Why(code="reserved", message=f"it is reserved for {site.name}", subject=site.name, since=since)
    queue = queue_of(state, job, number)
    slots = site.slots[queue.shape]
    if not slots:
        message = f"no pilot at {site.name} could run it; {site.expected} are on their way"
        if queue.demand.node_restriction:
            message = (
                f"{site.name} has no {_slot(queue)}; {len(site.pilots)} run elsewhere, {site.expected} are on their way"
            )
        yield Why(code="no-slot", message=message, subject=site.name, count=site.expected)
        yield from _unheard(site)
    else:
        yield Why(code="no-slot", message=f"the {slots} slots at {site.name} are taken", subject=site.name, count=slots)
    yield from _turn(state, job)


def _slot(queue: QueueClass) -> str:
    """What a site must have for a class, in words."""
    if names := queue.demand.node_restriction:
        return f"pilot on {told_names(names)}, where alone it may run"
    return "slot that fits"


def _live(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    work = job.work[number]
    yield from _attempts(work)
    for attempt in work.attempts.values():
        if attempt.trusted:
            yield from explain_live_site(state, attempt)
    for candidate in sorted(work.candidates):
        yield Why(code="waits-for-grant", message=f"attempt {candidate} succeeded and waits for its grant")


def _attempts(work: ActivePackage) -> Iterator[Why]:
    for attempt in work.attempts.values():
        yield _attempt(attempt)
        if attempt.key and not attempt.leased:
            yield from _unheard(attempt.site, attempt.key)


def _attempt(attempt: AttemptState) -> Why:
    number, where = attempt.ref.attempt, attempt.site.name
    if attempt.lost:
        message = f"attempt {number} at {where} counts as lost ({attempt.lost_reason}); should it come back, it may win"
        return Why(code="lost", message=message, subject=attempt.pilot or where, since=attempt.created_at)
    if attempt.suspect:
        message = f"attempt {number} at {where} is not heard of; another may start"
        return Why(code="suspect", message=message, subject=attempt.pilot or where, since=attempt.created_at)
    if not attempt.leased:
        told = "is in the queue of" if attempt.queued else "is being submitted to"
        return Why(code="queued", message=f"attempt {number} {told} {where}", subject=where, since=attempt.created_at)
    message = f"attempt {number} runs at {where} in {attempt.pilot}"
    return Why(code="running", message=message, subject=attempt.pilot, since=attempt.created_at)


def _unheard(site: SiteState, *keys: str) -> Iterator[Why]:
    """What should have spoken at a site and has not, of some keys where they are named; a live pilot speaks for the others."""
    if (told := silence_text(site, *keys)) and (keys or not site.pilots):
        yield Why(code="unheard", message=told, subject=site.name, next_step=f"pilotage site test {site.name}")


def _held(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    refused = job.work[number].refused
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
    message, since = "it was given up", None
    if facts is not None:
        message = f"it was given up: {facts.cause}" + (f" ({facts.cause_message})" if facts.cause_message else "")
        since = facts.aborted_at
    yield Why(code="aborted", message=message, since=since, next_step="restart it, or drop its line")


def _upstream(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    dead = [other for other in job.awaited(number) if job.is_dead(other)]
    for other in dead[:_PACKAGES_SHOWN_MAX]:
        name = job.dotted(other)
        message = f"it was given up because it needs what {name} makes, which is {STATUS_NAMES[job.status[other]]}"
        yield Why(
            code="aborted",
            message=message,
            subject=name,
            count=len(dead),
            next_step=f"restart {name}, or drop its line",
        )
    if not dead:
        yield Why(code="aborted", message="it was given up because of what it needs", next_step="restart what failed")


def _cancelled(state: EngineState, job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    since = facts.cancelled_at if facts is not None else None
    message, next_step = "it was cancelled on request", "restart it"
    if job.enders:
        message, next_step = f"it was cancelled: {why_it_ended(job)}", "restart the job"
    yield Why(code="cancelled", message=message, since=since, next_step=next_step)


def _history(job: JobState, number: int, facts: PackageFacts | None) -> Iterator[Why]:
    """The attempts that failed, from the book where it was asked, else as far as the engine remembers."""
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
            said = words_of_failure(known.exit_message or "")
            message = f"attempt {attempt} failed at {known.site}: {known.reason or known.exit_code}{said}"
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
