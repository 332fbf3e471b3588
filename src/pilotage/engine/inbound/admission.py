"""Admission: rejects a job that no site can run, or that exceeds its owner's quota."""

from __future__ import annotations

from pilotage.engine.engine_state import EngineState
from pilotage.engine.placement import unmet
from pilotage.engine.selection.filters import Requirements, execution, refusals, requirements_of, wall_time
from pilotage.engine.state.sites import SiteState
from pilotage.model.errors import near_name
from pilotage.model.events.events import JOB_ID
from pilotage.model.exchange.operations import Refused
from pilotage.model.jobs.plan import JobPlan, Template


def admit(state: EngineState, job: str, plan: JobPlan, *, owner: str, taken: bool = False) -> Refused | None:
    """Why a job is rejected, or None; `taken` means that the book has a job of this id."""
    if JOB_ID.fullmatch(job) is None:
        return Refused(code="bad-id", message=f"{job[:80]!r} is not a valid job id", subject=job[:80])
    if taken or job in state.jobs.by_id or job in state.jobs.retired:
        return Refused(code="known-job", message=f"a job {job!r} exists already", subject=job)
    refused = _beyond_quota(state, plan, owner=owner, unfinished=_unfinished(state, owner), subject=job)
    return refused or impossible(state, plan, owner=owner)


def impossible(state: EngineState, plan: JobPlan, *, owner: str) -> Refused | None:
    """Why no current site can run some package of a job, or None."""
    if all(site.removed for site in state.sites.by_name.values()):
        return None  # a site may be added; until then `explain` says that there is none
    for template in plan.templates:
        refused = _satisfiable(state, template, owner)
        if refused is not None:
            return refused
    return None


def consider(state: EngineState, plan: JobPlan, *, owner: str, unfinished: int) -> Refused | tuple[str, ...]:
    """Why a job would be rejected; if it would not, which sites are excluded for missing software.

    `unfinished` is the number of unfinished packages in the owner's other jobs.
    """
    refused = _beyond_quota(state, plan, owner=owner, unfinished=unfinished, subject="")
    refused = refused or impossible(state, plan, owner=owner)
    if refused is not None:
        return refused
    notes: dict[str, None] = {}
    for template in plan.templates:
        for site in state.sites.by_name.values() if template.starts else ():
            about = requirements_of(owner, template, demand=template.demand)
            if not site.removed and (why := execution(site.profile.description, about)):
                notes[f"{site.name} is not used for {template.activity}: {why}"] = None
    return tuple(notes)


def over_quota(state: EngineState, owner: str, packages: int) -> bool:
    """Whether this many more packages exceed the limit of an owner."""
    quota = state.settings.owner_packages_max
    return 0 < quota < packages + _unfinished(state, owner)


def _unfinished(state: EngineState, owner: str) -> int:
    """The number of unfinished packages in an owner's jobs."""
    jobs = [job for job in state.jobs.by_id.values() if job.owner == owner and not (job.cancelled or job.aborted)]
    return sum(job.unfinished for job in jobs)


def _beyond_quota(state: EngineState, plan: JobPlan, *, owner: str, unfinished: int, subject: str) -> Refused | None:
    """Why the packages of a job exceed the limit of an owner with `unfinished` other ones, or None."""
    quota = state.settings.owner_packages_max
    if not 0 < quota < plan.count + unfinished:
        return None
    message = f"{plan.count} more packages would exceed the limit of {quota:,} for {owner}"
    next_step = "wait until other jobs end, or submit fewer packages"
    return Refused(code="quota", message=message, subject=subject, next_step=next_step)


def _satisfiable(state: EngineState, template: Template, owner: str) -> Refused | None:
    there = [site for site in state.sites.by_name.values() if not site.removed]
    named = [site for site in there if template.executor in ("", site.name, site.site.kind)]
    if not named:
        names = sorted(site.name for site in there)
        near = near_name(template.executor, names)
        hint = f"there is: {', '.join(names)}" + (f"; did you mean {near!r}?" if near else "")
        message = f"{template.activity} asks for the site or kind of site {template.executor!r}"
        return Refused(code="unknown-site", message=message, subject=template.executor, next_step=hint)
    lacks = {site.name: unmet(site, template.demand) or _refused(site, template, owner) for site in named}
    if any(not each for each in lacks.values()):
        return None
    # An estimate alone rejects nothing; but a site whose wall time is too short counts as further away.
    for site in named:
        lacks[site.name] += _too_short(site, template)
    nearest = min(lacks, key=lambda name: (len(lacks[name]), name))
    message = f"no site can run {template.activity}: " + "; ".join(lacks[nearest])
    next_step = f"the nearest is {nearest}: ask for no more than it has, or name another site"
    return Refused(code="unsatisfiable", message=message, subject=template.activity, next_step=next_step)


def _too_short(site: SiteState, template: Template) -> list[str]:
    """The reason if a site's wall time is shorter than the estimate of a package."""
    reason = wall_time(site.profile.description, Requirements(demand=template.demand, run_seconds=template.run_seconds))
    return [reason] if reason and not wall_time(site.profile.description, Requirements(demand=template.demand)) else []


def _refused(site: SiteState, template: Template, owner: str) -> list[str]:
    requirements = requirements_of(owner, template, demand=template.demand)
    return [each.message for each in refusals(site.profile.description, requirements)]
