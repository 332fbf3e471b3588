"""What can be set about the choice of sites: one table, with every default, which the section `[selection]` of the settings is.

Names and defaults of the scores and of TScore are Swift's (swift-site-selection, "Scoring mechanism" and "Some Controlling
and Tuning Parameters"); the rest the source leaves open, and each line says what it is for.
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
    """How sites are scored, put to sleep, woken, filled and chosen: see [site selection](../explanation/site-selection.md)."""

    policy: Annotated[Policy, _doc("How one of the candidates is picked.")] = "thompson"

    # --- score: what is added to it ---------------------------------------------------------------------------------
    job_submission_load: Annotated[
        Number, _doc("jobSubmissionTaskLoadFactor: on the score as long as a submission is under way.")
    ] = -0.2
    transfer_load: Annotated[Number, _doc("transferTaskLoadFactor: as long as files are brought there or back.")] = -0.2
    file_operation_load: Annotated[
        Number, _doc("fileOperationTaskLoadFactor: as long as a scratch folder is made ready.")
    ] = -0.01
    success: Annotated[NotNegative, _doc("successFactor: for each attempt and each operation that ended well.")] = 0.1
    failure: Annotated[
        Number, _doc("failureFactor: for each that did not, where its site is not hibernated for it.")
    ] = -0.5
    freeze_on: Annotated[
        FreezeOn,
        _doc("After which failures of an attempt its site sleeps: the platform's, or any, as in Swift's paper."),
    ] = "platform-failure"
    connection_refused: Annotated[Number, _doc("Besides, where a connection was refused.")] = -10.0
    connection_timed_out: Annotated[Number, _doc("Besides, where one timed out.")] = -20.0
    submission_seconds_max: Annotated[
        Above, _doc("maxSubmissionTime: a submission that takes as long is worth one success less.")
    ] = 20.0
    submission_seconds_base: Annotated[
        NotNegative, _doc("BASE_SUBMISSION_TIME: one that takes as long changes nothing.")
    ] = 0.1
    queue_time_factor: Annotated[
        Number,
        _doc("queueTimeFactor: for a site where a replica lost because it queued longer; as much as a submission."),
    ] = -0.2
    initial_score: Annotated[Number, _doc("Of a site that does not say its own.")] = 0.0
    woken_score: Annotated[Number, _doc("Of a site that gets a new chance (2a).")] = 0.0
    recovered_score: Annotated[Number, _doc("Of one that finished another of its attempts while it slept (2b).")] = 1.0
    score_floor: Annotated[Number, _doc("No score is less.")] = -10.0
    score_ceiling: Annotated[
        Number,
        _doc("No score is more: TScore 75 of at most 100, and a hundred failures make up for the best of pasts."),
    ] = 50.0

    # --- TScore: exp(B · ln(scoreHighCap) / π · arctan(C · score)) -------------------------------------------------------
    tscore_b: Annotated[Above, _doc("B of TScore.")] = 2.0
    tscore_c: Annotated[Above, _doc("C of TScore.")] = 0.2
    score_high_cap: Annotated[Above, _doc("scoreHighCap: TScore lies between this and its inverse.")] = 100.0

    # --- room: the jobThrottle is a site's own, `job_throttle` of sites.yaml ---------------------------------------------
    slots_factor: Annotated[NotNegative, _doc("Packages that are reserved for each live slot.")] = 1.25
    # A hole with many slots would otherwise swallow one package for each of them before anybody could know.
    trial_room: Annotated[
        Count,
        _doc("Packages of one shape at a new site beside others, until one succeeded or ran for a while; 0: no trial."),
    ] = 8
    trial_seconds: Annotated[NotNegative, _doc("That while, without any failing.")] = 5.0

    # --- queue times --------------------------------------------------------------------------------------------------
    queue_time_margin_seconds: Annotated[
        NotNegative, _doc("c of queueTimeThrottle = average queue time + c: for less, no site is worth leaving.")
    ] = 300.0
    queue_time_quantile: Annotated[
        Share, _doc("Of the queue times of earlier runs in the book: the first value of the throttle.")
    ] = 0.95
    queue_time_first_seconds: Annotated[NotNegative, _doc("The first value where none were observed.")] = 3600.0
    queue_time_samples_min: Annotated[Count, _doc("So many of this time, and the average takes over.")] = 10

    # --- hibernation: without a time, a site that fails at once would be woken each time the good ones are full -----------
    hibernation_seconds: Annotated[NotNegative, _doc("A site sleeps at least so long while another is awake.")] = 10.0
    hibernation_growth: Annotated[
        Annotated[float, Meta(ge=1, le=1e6)], _doc("So many times longer each time that it was woken in vain.")
    ] = 2.0
    hibernation_seconds_max: Annotated[NotNegative, _doc("And at most so long.")] = 3600.0
    hibernation_seconds_max_alone: Annotated[
        NotNegative, _doc("Where every other site sleeps too: nothing is lost by trying.")
    ] = 60.0

    # --- black holes --------------------------------------------------------------------------------------------------
    black_hole_streak: Annotated[
        Positive, _doc("Platform failures in a row after which a pilot, or a node, is given nothing more.")
    ] = 3
    black_hole_failures: Annotated[Positive, _doc("Fewer of a site's latest ends say nothing about a rate.")] = 5
    black_hole_share: Annotated[
        Share, _doc("At least so much of its latest ends failed: a site that also finishes work is no hole.")
    ] = 0.5
    black_hole_factor: Annotated[
        NotNegative, _doc("And it has so many times the failures that others would have had in the same slot time.")
    ] = 3.0

    # --- replicas -----------------------------------------------------------------------------------------------------
    replication_min_queue_seconds: Annotated[
        NotNegative, _doc("replication.min.queue.time: what is queued longer may be queued elsewhere as well.")
    ] = 60.0
    replication_limit: Annotated[Count, _doc("replication.limit: so many times for one package; 0: never.")] = 3
    replication_medians: Annotated[
        NotNegative, _doc("And not before so many medians of the queue times of the site.")
    ] = 3.0
    max_replicas: Annotated[Positive, _doc("Live attempts of one package, for whatever reason.")] = 3

    # --- Thompson sampling ----------------------------------------------------------------------------------------------
    thompson_half_life_seconds: Annotated[Above, _doc("Evidence so old counts half, so that drift is followed.")] = (
        3600.0
    )
    thompson_prior_seconds: Annotated[
        Above, _doc("A site that nothing is known of is thought to take so long, once.")
    ] = 60.0
    thompson_looked_at: Annotated[
        Positive, _doc("So many candidates are compared; of more, only two that are drawn by weight.")
    ] = 6
    thompson_activities_max: Annotated[
        Positive, _doc("Activities of which something is remembered at each site: the ones used latest.")
    ] = 32

    def __post_init__(self) -> None:
        """Refuse what would make the formulas senseless."""
        if self.submission_seconds_max <= self.submission_seconds_base:
            raise ValueError("submission_seconds_max must be more than submission_seconds_base")
        if not self.score_floor < self.score_ceiling:
            raise ValueError("score_floor must be less than score_ceiling")
        if self.score_high_cap <= 1 or self.tscore_b <= 0 or self.tscore_c <= 0:
            raise ValueError("score_high_cap must be more than 1, tscore_b and tscore_c more than 0")
        if not 0 <= self.queue_time_quantile <= 1:
            raise ValueError("queue_time_quantile must be from 0 to 1")
        if min(self.hibernation_seconds, self.hibernation_seconds_max, self.hibernation_seconds_max_alone) < 0:
            raise ValueError("hibernation lasts no negative time")
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


# What can be set about the choice of sites; the table is with the other settings of the program, in the model.

__all__ = ["Policy", "SelectionSettings"]

SKEW_SECONDS = 300.0
"""Further than this off the clock that received it, an event or its sender is flagged, unless a setting says otherwise."""


class RestartSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of restarting. A number of failures includes the last one, which is not answered by a restart."""

    attempts_max: int = 5  # counted attempts
    application_errors_max: int = 3
    commands_not_found_max: int = 2
    platform_failures_max: int = 20
    missing_inputs_max: int = 20
    preemptions_max: int = 100
    memory_doublings_max: int = 2
    limit_doublings_max: int = 2  # of the time limit of what loops
    pilot_kills_max: int = 2
    delay_seconds: float = 10.0  # the first time that something is tried later
    delay_growth: float = 2.0
    delay_seconds_max: float = 3600.0


# What can be set about the decisions of the engine, as one frozen value.

Order = Literal["slowdown", "first-come"]
"""Who goes first among jobs of equal priority: whoever is expected to be slowed down most, or whoever came first."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How patient the engine is, and where it draws lines."""

    interval_seconds: float = 10.0  # between the exchanges of an agent that has nothing to say
    lease_intervals: int = 6  # a lease is so many intervals long
    lost_after_leases: float = 3.0  # a suspect that stays silent for so many leases counts as lost
    unfit_seconds: float = 60.0  # a reservation at a site without a fitting slot is released after this
    submit_again_seconds: float = 120.0  # a submission that nothing was heard of is asked for again
    dead_start_seconds: float = 60.0  # after a pilot that never spoke, doubled for each that follows it
    dead_start_seconds_max: float = 3600.0
    dead_starts_max: int = 5  # so many pilots in a row that never spoke put their site to sleep; 0: none does
    standing_seconds: float = 60.0  # how a site stands is written down at most so often, besides when that changes
    standing_seconds_max: float = 900.0  # half as often each time that it has not changed, but no more seldom
    probe_timeout_seconds: float = 900.0  # a probe that did not come by then has failed
    waiting_seconds_max: float = 0.0  # a ready package that no site takes for so long is given up; 0: never
    owner_running_max: int = 0  # packages of one owner that are reserved or run at once; 0: no quota
    owner_packages_max: int = 0  # packages of all unfinished jobs of one owner; 0: no quota
    skew_seconds: float = SKEW_SECONDS  # further than this off, the clock of an agent is wrong, and its events say so
    fairness: Order = "slowdown"
    fairness_patience_seconds: float = 3600.0  # a job that nothing was bound of for so long goes before its equals
    flood_packages: int = 10  # permanent failures of one activity that hold the job; then twice as many, and so on
    restart: RestartSettings = RestartSettings()
    selection: SelectionSettings = SelectionSettings()
    seed: int = 0  # of the choice of sites: the same seed and the same events give the same choices

    @property
    def lease_seconds(self) -> float:
        """How long an attempt is believed to run after its pilot was last heard."""
        return self.interval_seconds * self.lease_intervals
