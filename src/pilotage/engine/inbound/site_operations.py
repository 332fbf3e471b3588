"""Operations on sites: adds, changes and removes them while the engine runs; people hibernate, wake and probe them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from pilotage.engine.decisions.lost_pilots import mark_lost
from pilotage.engine.decisions.provisioning import submit_pilot, withdraw
from pilotage.engine.decisions.site_status import apply_site_changes, retire_site
from pilotage.engine.engine_state import EngineState
from pilotage.engine.files.purging import operate_files
from pilotage.engine.selection import Underway
from pilotage.engine.selection.filters import described
from pilotage.engine.selection.scores import Operation
from pilotage.engine.state.clock import Due
from pilotage.engine.state.sites import SiteState
from pilotage.engine.transitions.readiness import release_estimated, release_site
from pilotage.engine.transitions.site_observations import (
    SITE_CHANGED,
    SITE_GONE,
    drain,
    is_probe,
    probe_key,
    record_latencies,
    record_site,
    trial_key,
)
from pilotage.model.errors import did_you_mean
from pilotage.model.events import payloads
from pilotage.model.exchange.operations import (
    Accepted,
    AnySiteOperation,
    CancelSubmitted,
    HibernateSite,
    PinFiles,
    ProbeSite,
    PurgeFiles,
    Refused,
    TrySite,
    UnpinFiles,
    WakeSite,
)
from pilotage.model.resources import AMOUNT_UNKNOWN
from pilotage.model.site import Site
from pilotage.model.texts import clipped


def change_sites(
    state: EngineState, sites: Sequence[Site], *, rewritten: Collection[str] = (), renewed: Collection[str] = ()
) -> None:
    """Use these sites from now on: add new ones, update changed ones, drain missing ones.

    Entries of `rewritten` sites changed in parts that the engine does not use, such as how pilots are started.
    Pilots of `renewed` sites are drained and replaced.
    """
    _forget_removed(state)
    for site in sites:
        known = state.sites.by_name.get(site.name)
        if known is None:
            known = state.add_site(site)
        elif known.removed:
            _bring_back(state, known, site)
        elif known.site != site:
            if (known.site.capacity, known.site.mode) != (site.capacity, site.mode):
                _renew(state, known)
            known.site = site
            known.full = False
            state.selection.add(described(site))
            state.placement.site_changed(known)
            release_site(state, known)  # what it can no longer run must go elsewhere
        elif known.described:
            continue
        release_estimated(state, known)
        state.placement.offer(known)
        _describe(state, known)
    _retry_changed(state, rewritten=rewritten, renewed=renewed)
    apply_site_changes(state)
    names = {site.name for site in sites}
    for name, known in list(state.sites.by_name.items()):
        if name not in names and not known.removed:
            _remove(state, known)
        elif name not in names and known in state.sites.unmanaged:
            retire_site(state, known)


def _retry_changed(state: EngineState, *, rewritten: Collection[str], renewed: Collection[str]) -> None:
    """Drain pilots of outdated entries, and wake sites where pilots failed to start."""
    for known in [known for known in state.sites.by_name.values() if not known.removed]:
        if known.name in renewed:
            _renew(state, known)
        if known.name in rewritten and _could_not_start(known):
            _wake(state, known, "its entry has changed")


def _could_not_start(site: SiteState) -> bool:
    """Whether a site is paused because pilots do not start there, and not by hand."""
    sleep = site.profile.sleep
    return bool(site.dead_starts) if sleep is None else sleep.reason in ("dead-starts", "probe-failed")


def _describe(state: EngineState, site: SiteState) -> None:
    about = site.site
    memory = about.capacity.memory_bytes
    site.described = True
    state.log.write(
        payloads.SiteDescribed(
            kind=about.kind,
            status=site.status,
            mode=about.mode,
            platform=clipped(about.platform),
            cores=about.capacity.cores_hundredths // 100,
            memory_bytes=None if memory == AMOUNT_UNKNOWN else memory,
            wall_seconds=about.wall_seconds or None,
            pilots_max=about.pilots_max,
        ),
        site=site.name,
    )
    record_site(state, site)


def _remove(state: EngineState, site: SiteState) -> None:
    """Remove a site: running attempts go on, its reservations go elsewhere, and its pilots leave when idle."""
    site.removed = True
    release_site(state, site)
    state.selection.remove(site.name)
    state.placement.remove_site(site)
    for pilot in site.pilots.values():
        drain(state, pilot, pilot.draining or SITE_GONE)
    for request in site.requests.values():
        if not request.contacted:
            state.log.effects.append(CancelSubmitted(site=site.name, key=request.key))
    for attempt in list(site.bound.values()):
        if not attempt.leased:  # an attempt in its queue may wait for ever
            mark_lost(state, attempt, reason="rescheduled", message=SITE_GONE)
    gone = payloads.SiteDescribed(kind=site.site.kind, status="removed", mode=site.site.mode)
    state.log.write(gone, site=site.name)


def _renew(state: EngineState, site: SiteState) -> None:
    """Replace the pilots of a site: running attempts go on, and new pilots follow."""
    for pilot in site.pilots.values():
        if not pilot.draining:
            drain(state, pilot, SITE_CHANGED)
    withdraw(state, site)
    for attempt in list(site.bound.values()):
        if not attempt.leased:  # it waits for a batch job that is no longer wanted
            mark_lost(state, attempt, reason="rescheduled", message=SITE_CHANGED)


def _bring_back(state: EngineState, known: SiteState, site: Site) -> None:
    sleep = known.profile.sleep
    known.site = site
    known.full = False
    known.removed = False
    state.sites.unmanaged.pop(known, None)
    known.status = "candidate"
    state.selection.add(described(site))
    known.move_to(state.selection.profile(site.name))
    _recount(state, known)
    state.placement.add_site(known)
    for pilot in known.pilots.values():
        if pilot.draining == SITE_GONE:
            pilot.draining = ""
    if sleep is not None and sleep.reason == "by-hand":  # it was hibernated by hand and not woken since
        state.pending.site_changes += state.selection.hibernate(known.name, at=sleep.since, message=sleep.message)


def _recount(state: EngineState, site: SiteState) -> None:
    """Count the active attempts of a site for its new profile."""
    jobs = state.jobs.by_id.values()
    attempts = [each for job in jobs for _, each in job.attempts() if each.counted and each.site is site]
    operations: Counter[Operation] = Counter(each.operation for each in attempts if each.operation is not None)
    submitting = sum(each.submitting for each in attempts) + sum(each.submitting for each in site.requests.values())
    operations["submission"] += submitting
    state.selection.recount(
        site.name,
        attempts=[
            Underway(
                activity=each.activity,
                created_at=each.created_at,
                began_at=each.began_at if each.leased else None,
            )
            for each in attempts
        ],
        used=dict(site.used),
        operations=operations,
    )


def _forget_removed(state: EngineState) -> None:
    for name, site in list(state.sites.by_name.items()):
        sleep = site.profile.sleep
        if sleep is not None and sleep.reason == "by-hand":
            continue  # needed if the site comes back
        if site.removed and not site.pilots and not site.requests and not any(site.used.values()):
            del state.sites.by_name[name]
            del state.queues.at[site]
            state.sites.unmanaged.pop(site, None)
            state.provisioning.forget(site)


def stop_requesting_pilots(state: EngineState) -> Accepted:
    """The service is stopping: cancel queued pilots, request no more, and record what was learned of sites."""
    first, state.provisioning.stopping = state.log.next_number, True
    for site in state.sites.by_name.values():
        withdraw(state, site)
        if site.record_scheduled and not site.removed:
            record_site(state, site)
        record_latencies(state, site.name)
    return Accepted(operation=first, events=state.log.next_number - first)


# --- operations of people -----------------------------------------------------------------------------------------------


def operate_site(state: EngineState, operation: AnySiteOperation) -> Accepted | Refused:
    """Carry out an operation on a site as decisions, or refuse it."""
    first, name = state.log.next_number, operation.site
    site = state.sites.by_name.get(name)
    if site is None or site.removed:
        known = [each.name for each in state.sites.by_name.values() if not each.removed]
        hint = did_you_mean(name, known) or f"there is: {', '.join(sorted(known)) or 'none'}"
        return Refused(code="unknown-site", message=f"no site is called {name!r}", subject=name, next_step=hint)
    if isinstance(operation, PinFiles | UnpinFiles | PurgeFiles):
        return operate_files(state, operation)
    match operation:
        case HibernateSite():
            sleep = site.profile.sleep
            if sleep is not None and sleep.reason == "by-hand":
                message, hint = f"{name} hibernates already: {sleep.message}", f"wake it: pilotage site wake {name}"
                return Refused(code="hibernated", message=message, subject=name, next_step=hint)
            message = clipped(operation.message)
            state.pending.site_changes += state.selection.hibernate(name, at=state.clock.wall_time, message=message)
        case WakeSite():
            cleared = state.selection.clear(name)
            if not site.asleep and not site.dead_starts and not cleared:
                message = f"{name} does not hibernate, and nothing counts against it"
                hint = f"see its status: pilotage site explain {name}"
                return Refused(code="not-hibernated", message=message, subject=name, next_step=hint)
            _wake(state, site, clipped(operation.message))
        case ProbeSite():
            if any(is_probe(key, site=name) for key in site.requests):
                message, hint = f"{name} is being probed", f"see whether its pilot starts: pilotage site show {name}"
                return Refused(code="probing", message=message, subject=name, next_step=hint)
            _start_probe(state, site, probe_key(name, first))
        case TrySite():
            if site.site.mode != "pilots":
                return Refused(
                    code="no-pilots", message=f"{name} has no pilots: each package is a batch job", subject=name
                )
            _start_probe(state, site, trial_key(name, first))
    apply_site_changes(state)
    return Accepted(operation=first, events=state.log.next_number - first)


def _wake(state: EngineState, site: SiteState, message: str) -> None:
    """Give a site a new chance that is hibernated, has a bad score, or is paused because pilots failed to start."""
    if site.asleep:
        state.pending.site_changes += state.selection.wake(site.name, message=message)
        return
    site.dead_starts, site.quiet_until = 0, 0.0
    state.placement.site_changed(site)
    record_site(state, site)


def _start_probe(state: EngineState, site: SiteState, key: str) -> None:
    """Request one pilot in any case: the answer is whether it starts."""
    state.log.write(payloads.PilotRequested(site=site.name), pilot=key)
    submit_pilot(state, site, key)
    state.clock.timers.at(state.clock.now + state.settings.probe_timeout_seconds, Due.PROBE, key)
