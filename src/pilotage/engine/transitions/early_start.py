"""Early start: a package begins while the attempts that make its inputs still run, at their site.

Its attempt is tied to these attempts: it is granted only after every one of them, and if one of them does not make the result
of its package, what was read from it is void. So a tie is to one attempt, and its package gets no replica meanwhile.

No deadlock: a package starts early only beside attempts whose applications run already, so it never takes a slot that they
need. An attempt that started early and fails by itself has cost nothing but time: its package then waits for complete inputs.
"""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.state.jobs import FINAL, ActivePackage, JobState, Ties, template_of
from pilotage.engine.state.sites import AttemptState, SiteState
from pilotage.engine.transitions.queue_classes import early_class

PRODUCERS_MAX = 100
"""A package that reads from more running ones waits for them: every event of each would concern it."""


def early_site(state: EngineState, job: JobState, number: int) -> SiteState | None:
    """The site where a package may start before its inputs are complete; None: it waits for them, or for nothing."""
    missing = job.waits[number]
    if not missing or missing > PRODUCERS_MAX or not _is_untried(job.work.get(number)):
        return None
    if template_of(job, number).side_effects:
        return None  # what it does outside could not be discarded
    running = [_running(job, other) for other in job.early_producers(number) if not job.satisfied[other]]
    if len(running) != missing or running[0] is None:  # it waits for others, too
        return None
    site = running[0].site
    if any(each is None or each.site is not site for each in running) or site.removed:
        return None
    return site if state.placement.able(site, early_class(state, job, number, site.name)) else None


def _is_untried(work: ActivePackage | None) -> bool:
    """Whether a package has no history in this epoch: it starts early at most once."""
    return work is None or not (
        work.attempts or work.failures or work.candidates or work.early_failed or work.dropped or work.held
    )


def _running(job: JobState, number: int) -> AttemptState | None:
    """The one attempt of a package that runs, if its application is known to run and no other is to start beside it."""
    work = job.work.get(number)
    if work is None or work.dropped or work.candidates or work.replicas > work.replicated:
        return None
    live = [attempt for attempt in work.attempts.values() if not attempt.lost]
    return live[0] if len(live) == 1 and live[0].applying and live[0].trusted else None


def ties_now(job: JobState, number: int) -> Ties:
    """The attempts that an attempt depends on which starts early now."""
    running = ((other, _running(job, other)) for other in job.early_producers(number) if not job.satisfied[other])
    return tuple((other, attempt.ref.attempt) for other, attempt in running if attempt is not None)


def is_read_early(job: JobState, number: int) -> int | None:
    """A package that reads the outputs of a running attempt of this one; None if there is none."""
    for other in job.early_consumers(number) if job.starts_early else ():
        work = job.work.get(other)
        if work is not None and any(tied == number for ties in work.ties.values() for tied, _ in ties):
            return other
    return None


def grantable(job: JobState, work: ActivePackage) -> tuple[int, ...]:
    """The candidates of a package that depend on no attempt that is not granted."""
    return tuple(
        each for each in work.candidates if all(job.granted[other] == tried for other, tried in work.ties.get(each, ()))
    )


def lost_input(job: JobState, work: ActivePackage) -> tuple[int, int, str] | None:
    """A package and its attempt whose outputs were read early and are void, with the reason; None: they are not."""
    for ties in work.ties.values():
        for other, tried in ties:
            if why := _why_void(job, other, tried):
                return other, tried, why
    return None


def _why_void(job: JobState, number: int, tried: int) -> str:
    if job.granted[number]:
        return "" if job.granted[number] == tried else f"is not the one that was granted ({job.granted[number]})"
    work = job.work.get(number)
    if job.status[number] >= FINAL or work is None:
        return "is over"
    if work.dropped:
        return "was left out with its line"
    if tried in work.candidates:
        return ""
    attempt = work.attempts.get(tried)
    if attempt is None:
        return "failed"
    return "was lost" if attempt.lost else ""
