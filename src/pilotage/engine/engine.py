"""The engine: applies events and makes decisions; every decision is itself an event, already applied when it is returned.

`apply` folds an event. `decide` runs the table of decisions until none is left, and returns their events. The modules are
functions over the state, in folders: `folds` apply events, `decisions` decide, `inbound` handles exchanges, reports and
operations, `transitions` hold what folds and decisions share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pilotage.book.codec import Checked
from pilotage.book.rows.rows import PackageFacts
from pilotage.engine.consistency import durable_state, sanity_check
from pilotage.engine.decision_log import ENGINE_STREAM, Fold, Folds
from pilotage.engine.decisions import lost_pilots
from pilotage.engine.decisions.binding import bind, submit_prefetched
from pilotage.engine.decisions.completion import (
    abort_consumers,
    apply_retry_rules,
    discard_untied,
    grant_succeeded,
    revive_consumers,
)
from pilotage.engine.decisions.due_timers import run_due_timers, watch_waiting
from pilotage.engine.decisions.forecasts import forecast_jobs
from pilotage.engine.decisions.healing import heal_jobs
from pilotage.engine.decisions.job_lifecycle import (
    apply_job_endings,
    cancel_failing_jobs,
    expand_late_stages,
    retire_cleared_jobs,
)
from pilotage.engine.decisions.provisioning import request_pilots
from pilotage.engine.decisions.pulling import pull
from pilotage.engine.decisions.site_status import apply_site_changes, end_requests
from pilotage.engine.decisions.stopped_activities import abort_stopped, stop_failing_activities
from pilotage.engine.engine_state import EngineState
from pilotage.engine.explain import explain
from pilotage.engine.files import fold_files
from pilotage.engine.files.disposal import dispose_outputs, remake_disposed
from pilotage.engine.files.eviction import remove_unneeded
from pilotage.engine.files.holding import hold_without_files
from pilotage.engine.files.prefetch import order_fetches, record_file_reports
from pilotage.engine.files.storing import on_outputs_stored
from pilotage.engine.folds import on_attempts, on_jobs, on_packages, on_sites
from pilotage.engine.folds.on_jobs import check_job_end
from pilotage.engine.folds.on_sites import on_site_described, on_site_latencies, on_site_stands
from pilotage.engine.state.jobs import JobState
from pilotage.engine.transitions.readiness import reconsider_early
from pilotage.model.answers import Explanation
from pilotage.model.events import file_payloads, healing_payloads, payloads
from pilotage.model.events.events import parse_dotted
from pilotage.model.events.payloads import Payload
from pilotage.model.exchange.operations import Effect
from pilotage.model.jobs.plan import JobPlan
from pilotage.model.settings.engine import EngineSettings
from pilotage.model.site import Site

# The tables of the engine: the fold of each event, and the decisions in their order.

_OTHER: dict[type[Payload], Fold] = {
    payloads.PilotRequested: on_sites.on_pilot_requested,
    payloads.PilotStarted: on_sites.on_pilot_started,
    payloads.PilotEnded: on_sites.on_pilot_ended,
    payloads.SiteDescribed: on_site_described,
    payloads.SiteHibernated: on_site_stands,
    payloads.SiteWoken: on_site_stands,
    payloads.SiteStanding: on_site_stands,
    payloads.SiteLatencies: on_site_latencies,
    file_payloads.FetchesOrdered: fold_files.on_fetches_ordered,
    file_payloads.FilesFetched: fold_files.on_files_fetched,
    file_payloads.FetchesFailed: fold_files.on_fetches_failed,
    file_payloads.RetentionSet: fold_files.on_retention_set,
    file_payloads.RemovalsOrdered: fold_files.on_removals_ordered,
    file_payloads.CachedFilesRemoved: fold_files.on_cached_files_removed,
}
_JOB: dict[type[Payload], Fold] = {
    payloads.JobRegistered: on_jobs.on_job_registered,
    payloads.JobAccepted: on_jobs.on_job_accepted,
    payloads.StageExpanded: on_jobs.on_stage_expanded,
    payloads.Held: on_jobs.on_held,
    payloads.Released: on_jobs.on_held,
    payloads.CancelAccepted: on_jobs.on_job_cancelled,
    payloads.Aborted: on_jobs.on_job_aborted,
    payloads.Cleared: on_jobs.on_job_cleared,
    payloads.Restarted: on_jobs.on_job_restarted,
    payloads.ForecastMade: on_jobs.on_forecast_made,
    healing_payloads.ActivityGrouped: on_jobs.on_activity_grouped,
    payloads.ForecastScored: on_jobs.on_forecast_scored,
    healing_payloads.ActivityStopped: on_jobs.on_activity_stopped,
    healing_payloads.ActivityReopened: on_jobs.on_activity_reopened,
}
_PACKAGE: dict[type[Payload], Fold] = {
    payloads.Held: on_packages.on_package_held,
    payloads.Released: on_packages.on_package_held,
    payloads.CancelAccepted: on_packages.on_package_cancelled,
    payloads.Aborted: on_packages.on_package_aborted,
    payloads.Cleared: on_packages.on_package_cleared,
    payloads.Restarted: on_packages.on_package_restarted,
    payloads.Dropped: on_packages.on_dropped,
    payloads.Restored: on_packages.on_restored,
    payloads.ReplicaWanted: on_packages.on_replica_wanted,
    payloads.AttemptCreated: on_attempts.on_attempt_created,
    payloads.AttemptQueued: on_attempts.on_attempt_queued,
    payloads.AttemptStarted: on_attempts.on_attempt_started,
    payloads.AttemptSuspected: on_attempts.on_attempt_suspected,
    payloads.AttemptRecovered: on_attempts.on_attempt_recovered,
    payloads.AttemptLost: on_attempts.on_attempt_lost,
    payloads.PhaseEntered: on_attempts.on_phase_entered,
    payloads.OutputsStaged: on_attempts.on_outputs_staged,
    payloads.AttemptFinished: on_attempts.on_attempt_finished,
    payloads.CommitGranted: on_attempts.on_commit_granted,
    file_payloads.OutputsStored: on_outputs_stored,
    file_payloads.OutputsDisposed: on_attempts.on_outputs_disposed,
}


def _after(state: EngineState, job: JobState, number: int | None) -> None:
    """An event of a watched job was folded: its end may have come, and packages that start early may be concerned."""
    if job.special:
        check_job_end(state, job)
    if job.starts_early and number is not None:
        reconsider_early(state, job, number)


FOLDS = Folds(package=_PACKAGE, job=_JOB, other=_OTHER, after=_after)

DECISIONS: tuple[Callable[[EngineState], None], ...] = (
    # No decision leaves work for an earlier one, except where `decide` runs another round.
    run_due_timers,
    record_file_reports,
    lost_pilots.end_lost_pilots,
    end_requests,
    discard_untied,
    grant_succeeded,
    apply_retry_rules,
    stop_failing_activities,
    cancel_failing_jobs,
    apply_job_endings,
    abort_consumers,
    revive_consumers,
    remake_disposed,
    dispose_outputs,
    expand_late_stages,
    apply_site_changes,
    hold_without_files,
    remove_unneeded,
    heal_jobs,
    abort_stopped,
    bind,
    submit_prefetched,
    pull,
    order_fetches,
    request_pilots,
    watch_waiting,
    forecast_jobs,
)


class Engine:
    """The state of the engine, with `apply` and `decide`."""

    __slots__ = ("state",)

    def __init__(
        self,
        *,
        sites: Sequence[Site],
        settings: EngineSettings,
        now: float = 0.0,
        observed_queue_seconds: Sequence[float] = (),
    ) -> None:
        """Start with sites and no job. Queue times of earlier runs set the limit on queueing until there are newer ones."""
        self.state = EngineState(folds=FOLDS, settings=settings, now=now, observed_queue_seconds=observed_queue_seconds)
        for site in sites:
            self.state.add_site(site)

    def bring_plan(self, job: str, plan: JobPlan) -> None:
        """Store a plan for the `JobRegistered` or `StageExpanded` event that will use it."""
        self.state.jobs.plans.setdefault(job, deque()).append(plan)

    def apply(self, one: Checked) -> None:
        """Fold an event. One with an unknown subject is ignored here; the book stores it all the same."""
        event, log = one.event, self.state.log
        if event.source == "service" and event.stream == ENGINE_STREAM and event.n >= log.next_number:
            log.next_number = event.n + 1
        job = self.state.jobs.by_id.get(event.job) if event.job is not None else None
        number = None
        if one.place is not None:
            number = job.number(one.place) if job is not None else None
            if number is None:
                return
        log.fold(event, one.data, job, number)

    def apply_to(self, number: int, one: Checked) -> None:
        """As `apply`, for an event of an agent about a package whose number is known."""
        event, data, state = one.event, one.data, self.state
        job = state.jobs.by_id[event.job or ""]
        if (fold := FOLDS.package.get(type(data))) is not None:
            fold(state, job, number, event, data)
            if job.watched:
                FOLDS.after(state, job, number)

    def decide(self, now: float) -> list[Checked]:
        """Make all decisions that are due, and return them as applied events; their effects wait in `effects`."""
        state = self.state
        state.clock.now = now
        pending, going = state.pending, True
        while going:
            for decision in DECISIONS:
                decision(state)
            going = bool(pending) or state.files.pending
        if state.jobs.retirable:
            retire_cleared_jobs(state)
        return self.take_decided()

    def take_decided(self) -> list[Checked]:
        """The decisions since the last call."""
        log = self.state.log
        decided, log.unsent = log.unsent, []
        return decided

    def take_effects(self) -> list[Effect]:
        """The effects since the last call."""
        log = self.state.log
        effects, log.effects = log.effects, []
        return effects

    def explain(self, job: str, package: str, facts: PackageFacts | None = None) -> Explanation | None:
        """Why a package (`stage.line.n`) is in its state; None if this engine does not know the package."""
        known, place = self.state.jobs.by_id.get(job), parse_dotted(package)
        number = (
            known.number((place.stage, place.line, place.number)) if known is not None and place is not None else None
        )
        return explain(self.state, known, number, facts) if known is not None and number is not None else None

    def sanity_check(self) -> None:
        """Check the whole state, slowly; raises `InconsistentState` if it contradicts itself."""
        sanity_check(self.state)

    def durable_state(self) -> dict[str, Any]:
        """The state that follows from events alone, as plain values."""
        return durable_state(self.state)
