"""Settings of the engine: restarts, patience, and the site selection (section `[selection]`), with every default.

Names and defaults of the scores and of TScore are Swift's (swift-site-selection, "Scoring mechanism" and "Some Controlling
and Tuning Parameters"); the source leaves the rest open, and each line says what it is for.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

FreezeOn = Literal["platform-failure", "any-failure"]
Policy = Literal["weighted-random", "best", "thompson", "uniform", "first"]

Number = Annotated[float, Meta(ge=-1e9, le=1e9)]
NotNegative = Annotated[float, Meta(ge=0, le=1e9)]
Above = Annotated[float, Meta(ge=1e-6, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0, le=10**9)]
Positive = Annotated[int, Meta(ge=1, le=10**9)]


def _doc(text: str) -> Meta:
    return Meta(description=text)


class SelectionSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How sites are scored, hibernated, woken, filled and chosen: see [site selection](../explanation/site-selection.md)."""

    policy: Annotated[Policy, _doc("How one of the candidates is chosen.")] = "thompson"

    # --- score: amounts added to it -----------------------------------------------------------------------------------
    job_submission_load: Annotated[
        Number, _doc("jobSubmissionTaskLoadFactor: added to the score during a submission.")
    ] = -0.2
    transfer_load: Annotated[Number, _doc("transferTaskLoadFactor: during a transfer of files.")] = -0.2
    file_operation_load: Annotated[
        Number, _doc("fileOperationTaskLoadFactor: during the preparation of a scratch folder.")
    ] = -0.01
    success: Annotated[NotNegative, _doc("successFactor: for each successful attempt and operation.")] = 0.1
    failure: Annotated[Number, _doc("failureFactor: for each failed one, unless its site is hibernated for it.")] = -0.5
    freeze_on: Annotated[
        FreezeOn,
        _doc("Which failures of an attempt hibernate its site: those of the platform, or any, as in Swift's paper."),
    ] = "platform-failure"
    connection_refused: Annotated[Number, _doc("Added if a connection was refused.")] = -10.0
    connection_timed_out: Annotated[Number, _doc("Added if a connection timed out.")] = -20.0
    submission_seconds_max: Annotated[
        Above, _doc("maxSubmissionTime: a submission of this duration costs as much as one success earns.")
    ] = 20.0
    submission_seconds_base: Annotated[
        NotNegative, _doc("BASE_SUBMISSION_TIME: a submission of this duration changes nothing.")
    ] = 0.1
    queue_time_factor: Annotated[
        Number,
        _doc("queueTimeFactor: for a site whose replica lost because it queued longer; as much as a submission."),
    ] = -0.2
    initial_score: Annotated[Number, _doc("Score of a new site without one of its own.")] = 0.0
    woken_score: Annotated[Number, _doc("Score of a woken site (2a).")] = 0.0
    recovered_score: Annotated[Number, _doc("Score of a hibernated site that finished another attempt (2b).")] = 1.0
    score_floor: Annotated[Number, _doc("The lowest score.")] = -10.0
    score_ceiling: Annotated[
        Number,
        _doc("The highest score: TScore 75 of at most 100; a hundred failures outweigh the best past."),
    ] = 50.0

    # --- TScore: exp(B · ln(scoreHighCap) / π · arctan(C · score)) -------------------------------------------------------
    tscore_b: Annotated[Above, _doc("B of TScore.")] = 2.0
    tscore_c: Annotated[Above, _doc("C of TScore.")] = 0.2
    score_high_cap: Annotated[Above, _doc("scoreHighCap: TScore lies between this and its inverse.")] = 100.0

    # --- room: the jobThrottle is a site's own, `job_throttle` of sites.yaml ---------------------------------------------
    slots_factor: Annotated[NotNegative, _doc("Packages reserved for each live slot.")] = 1.25
    # Otherwise a black hole with many slots would swallow one package for each of them before it is recognised.
    trial_room: Annotated[
        Count,
        _doc(
            "Packages of one shape at a new site beside others, until one has succeeded or run for a while; 0: no trial."
        ),
    ] = 8
    trial_seconds: Annotated[NotNegative, _doc("Duration of that trial, without a failure.")] = 5.0

    # --- queue times --------------------------------------------------------------------------------------------------
    queue_time_margin_seconds: Annotated[
        NotNegative,
        _doc("c of queueTimeThrottle = average queue time + c: a smaller excess does not hibernate a site."),
    ] = 300.0
    queue_time_quantile: Annotated[
        Share, _doc("Quantile of the queue times of earlier runs in the book: the initial throttle.")
    ] = 0.95
    queue_time_first_seconds: Annotated[NotNegative, _doc("The initial throttle without earlier runs.")] = 3600.0
    queue_time_samples_min: Annotated[
        Count, _doc("Number of queue times of this run after which their average is used.")
    ] = 10

    # --- hibernation: without a pause, a site that fails at once would be woken whenever the good ones are full -----------
    hibernation_seconds: Annotated[NotNegative, _doc("Shortest hibernation of a site while another one is awake.")] = (
        10.0
    )
    hibernation_growth: Annotated[
        Annotated[float, Meta(ge=1, le=1e6)], _doc("Factor by which the pause grows after each failed wake-up.")
    ] = 2.0
    hibernation_seconds_max: Annotated[NotNegative, _doc("Longest pause.")] = 3600.0
    hibernation_seconds_max_alone: Annotated[
        NotNegative, _doc("Longest pause if every other site is hibernated, too.")
    ] = 60.0

    # --- black holes --------------------------------------------------------------------------------------------------
    black_hole_streak: Annotated[
        Positive, _doc("Platform failures in a row after which a pilot, or a node, gets no more work.")
    ] = 3
    black_hole_failures: Annotated[Positive, _doc("Minimum number of recent failures for a black hole.")] = 5
    black_hole_share: Annotated[Share, _doc("Minimum share of failures among the recent attempts of a black hole.")] = (
        0.5
    )
    black_hole_factor: Annotated[
        NotNegative, _doc("How many times the failures of other sites in the same slot time make a black hole.")
    ] = 3.0

    # --- replicas -----------------------------------------------------------------------------------------------------
    replication_min_queue_seconds: Annotated[
        NotNegative, _doc("replication.min.queue.time: an attempt that is queued longer may get a replica elsewhere.")
    ] = 60.0
    replication_limit: Annotated[Count, _doc("replication.limit: replicas of one package; 0: none.")] = 3
    replication_medians: Annotated[
        NotNegative, _doc("A replica also waits for this many median queue times of the site.")
    ] = 3.0
    max_replicas: Annotated[Positive, _doc("Live attempts of one package, for any reason.")] = 3

    # --- Thompson sampling ----------------------------------------------------------------------------------------------
    thompson_half_life_seconds: Annotated[
        Above, _doc("Evidence of this age counts half, so that the choice follows drift.")
    ] = 3600.0
    thompson_prior_seconds: Annotated[Above, _doc("Assumed time of one success at an unknown site.")] = 60.0
    thompson_looked_at: Annotated[
        Positive, _doc("How many candidates are compared; if there are more, two are drawn by weight.")
    ] = 6
    thompson_activities_max: Annotated[
        Positive, _doc("Activities with evidence at each site: the most recently used.")
    ] = 32

    def __post_init__(self) -> None:
        """Refuse values that make the formulas meaningless."""
        if self.submission_seconds_max <= self.submission_seconds_base:
            raise ValueError("submission_seconds_max must be more than submission_seconds_base")
        if not self.score_floor < self.score_ceiling:
            raise ValueError("score_floor must be less than score_ceiling")
        if self.score_high_cap <= 1 or self.tscore_b <= 0 or self.tscore_c <= 0:
            raise ValueError("score_high_cap must be more than 1, tscore_b and tscore_c more than 0")
        if not 0 <= self.queue_time_quantile <= 1:
            raise ValueError("queue_time_quantile must be from 0 to 1")
        if min(self.hibernation_seconds, self.hibernation_seconds_max, self.hibernation_seconds_max_alone) < 0:
            raise ValueError("the hibernation times must not be negative")
        if self.hibernation_growth < 1:
            raise ValueError("hibernation_growth must be at least 1")
        if self.trial_room < 0 or self.trial_seconds < 0:
            raise ValueError("trial_room and trial_seconds must not be negative")
        if min(self.black_hole_streak, self.black_hole_failures, self.thompson_looked_at) < 1:
            raise ValueError("black_hole_streak, black_hole_failures and thompson_looked_at must be at least 1")
        if self.thompson_half_life_seconds <= 0 or self.thompson_prior_seconds <= 0 or self.thompson_activities_max < 1:
            raise ValueError("the settings of thompson must be more than 0")

    @property
    def submission_factor(self) -> float:
        """The submissionTimeFactor: what each second of a submission adds."""
        return -self.success / (self.submission_seconds_max - self.submission_seconds_base)


# The settings of the site selection; the table is with the other settings of the program, in the model.

__all__ = ["Policy", "SelectionSettings"]

SKEW_SECONDS = 300.0
"""Default limit for the difference between the clock of a sender, or the time of an event, and ours; beyond it they are flagged."""


class RestartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of restarts. A number of failures includes the last one, which causes no restart."""

    attempts_max: int = 5  # counted attempts
    application_errors_max: int = 3
    commands_not_found_max: int = 2
    platform_failures_max: int = 20
    missing_inputs_max: int = 20
    preemptions_max: int = 100
    memory_doublings_max: int = 2
    limit_doublings_max: int = 2  # of the time limit of looping attempts
    pilot_kills_max: int = 2
    delay_seconds: float = 10.0  # before the first delayed retry
    delay_growth: float = 2.0
    delay_seconds_max: float = 3600.0


# The settings of the engine's decisions, as one frozen value.

Order = Literal["slowdown", "first-come"]
"""The order of jobs of equal priority: the largest expected slowdown first, or the earliest first."""

Provisioning = Literal["forecast", "all"]
"""How many pilots are requested: as few as finish the work nearly as early, or all that the work could use."""


Healing = Literal["predictive", "paper", "off"]
"""When a package gets a second attempt beside a running one: if that is expected to end sooner, as in VIP's paper, or never."""


class HealingSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How incidents are found and treated: see [healing](../explanation/healing.md)."""

    cycle_seconds: Annotated[Above, _doc("Incidents are looked for after this time, also without an event.")] = 60.0
    threshold: Annotated[
        Annotated[float, Meta(ge=0.5, lt=1)],
        _doc(
            "With `paper`: a package is late when its performance coefficient is above this; 2/3 is twice the median."
        ),
    ] = 2 / 3
    finished_min: Annotated[
        Positive, _doc("Packages of an activity that must have finished before their median times are trusted.")
    ] = 5
    waste_max: Annotated[
        Share,
        _doc("Largest share of slot time of attempts without a grant from the moment when healing gave them a rival."),
    ] = 0.2
    failing_attempts_max: Annotated[
        Count,
        _doc(
            "Attempts of an activity that failed in the same way, without a success, after which it is stopped, whatever"
            " `engine.healing` says; 0: never."
        ),
    ] = 20


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The time limits and thresholds of the engine."""

    interval_seconds: float = 10.0  # between exchanges of an idle agent
    lease_intervals: int = 6  # intervals of a lease
    lost_after_leases: float = 3.0  # leases after which a silent suspect counts as lost
    unfit_seconds: float = 60.0  # release of a reservation at a site without a suitable slot
    submit_again_seconds: float = 120.0  # repetition of a submission without a report
    dead_start_seconds: float = 60.0  # pause after a pilot that never made contact, doubled for each further one
    dead_start_seconds_max: float = 3600.0
    dead_starts_max: int = 5  # such pilots in a row that hibernate their site; 0: never
    standing_seconds: float = 60.0  # shortest time between two records of a site without a status change
    standing_seconds_max: float = 900.0  # this time doubles with each unchanged record, up to here
    probe_timeout_seconds: float = 900.0  # a probe without a pilot by then has failed
    waiting_seconds_max: float = 0.0  # a ready package without a site is given up after this; 0: never
    owner_running_max: int = 0  # reserved and running packages of one owner; 0: no limit
    owner_packages_max: int = 0  # packages of all unfinished jobs of one owner; 0: no limit
    skew_seconds: float = SKEW_SECONDS  # an agent's clock that is off by more is wrong, and its events are flagged
    fairness: Order = "slowdown"
    fairness_patience_seconds: float = 3600.0  # a job without a binding for this time goes before its equals
    provisioning: Provisioning = "forecast"
    provisioning_within: float = 0.1  # the work may take this share longer than with all pilots that it could use
    fetch_attempts_max: int = 5  # failed fetches of one file to one site that hold the packages that wait for it
    fetch_delay_seconds: float = 30.0  # before the next fetch of a file, doubled for each further failure
    fetch_delay_seconds_max: float = 1800.0
    healing: Healing = "predictive"
    group_packages_max: int = 100  # short packages that share a batch job in bound mode; 1: each has its own
    flood_packages: int = (
        10  # packages held for one file, or for space at one site, beyond which their job is held; 0: never
    )
    restart: RestartSettings = RestartSettings()
    selection: SelectionSettings = SelectionSettings()
    incidents: HealingSettings = HealingSettings()
    seed: int = 0  # of the site selection: equal seeds and events give equal choices

    @property
    def lease_seconds(self) -> float:
        """How long an attempt counts as running after the last contact of its pilot."""
        return self.interval_seconds * self.lease_intervals
