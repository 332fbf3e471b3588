"""What can be set about the choice of sites: one table, with every default.

Names and defaults of the first two groups are Swift's (swift-site-selection, "Scoring mechanism" and "Some Controlling and
Tuning Parameters"); the rest the source leaves open, and each line says why it is what it is.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Policy = Literal["weighted-random", "best", "thompson", "uniform", "first"]


class SelectionSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How sites are scored, put to sleep, woken, filled and chosen."""

    policy: Policy = "weighted-random"

    # --- score: what is added to it ---------------------------------------------------------------------------------
    job_submission_load: float = -0.2  # jobSubmissionTaskLoadFactor: as long as a submission is under way
    transfer_load: float = -0.2  # transferTaskLoadFactor
    file_operation_load: float = -0.01  # fileOperationTaskLoadFactor
    success: float = 0.1  # successFactor: for each operation that ended well, and each attempt
    failure: float = -0.5  # failureFactor: for each that did not, where the site is not hibernated for it
    connection_refused: float = -10.0
    connection_timed_out: float = -20.0
    submission_seconds_max: float = 20.0  # maxSubmissionTime: a submission that takes as long is worth one success less
    submission_seconds_base: float = 0.1  # BASE_SUBMISSION_TIME: one that takes as long changes nothing
    queue_time_factor: float = -0.2  # lost the race of replicas by queueing longer: as much as the submission was worth
    initial_score: float = 0.0
    woken_score: float = 0.0  # of a site that gets a new chance (2a)
    recovered_score: float = 1.0  # of one that finished another of its attempts while it slept (2b)
    score_floor: float = -10.0
    score_ceiling: float = 50.0  # TScore 75 of at most 100; a hundred failures in a row make up for the best of pasts

    # --- TScore: exp(B · ln(scoreHighCap) / π · arctan(C · score)) -------------------------------------------------------
    tscore_b: float = 2.0
    tscore_c: float = 0.2
    score_high_cap: float = 100.0

    # --- room -------------------------------------------------------------------------------------------------------
    # The jobThrottle is a site's own, `Site.job_throttle`, Swift's 2 where it does not say another.
    slots_factor: float = 1.25  # reservations for each live slot
    # A new site beside others is on trial until an attempt there succeeded, or ran for a while without one failing: a hole with
    # many slots would otherwise swallow one package for each of them before anybody could know.
    trial_room: int = 8  # of each shape; 0: no trial
    trial_seconds: float = 5.0

    # --- queue times --------------------------------------------------------------------------------------------------
    queue_time_margin_seconds: float = (
        300.0  # c of queueTimeThrottle: below this no site is worth being left for another
    )
    queue_time_quantile: float = 0.95  # of the queue times observed before: the first value of the throttle
    queue_time_first_seconds: float = 3600.0  # the first value where none were observed: an hour is long anywhere
    queue_time_samples_min: int = 10  # so many of this time, and the average takes over

    # --- hibernation ----------------------------------------------------------------------------------------------------
    # "A new chance after an amount of time": without one, a site that fails at once is woken each time the good ones are full.
    hibernation_seconds: float = 10.0
    hibernation_growth: float = 2.0  # for each time that it was woken in vain
    hibernation_seconds_max: float = 3600.0
    hibernation_seconds_max_alone: float = 60.0  # where every other site sleeps too, nothing is lost by trying

    # --- black holes --------------------------------------------------------------------------------------------------
    black_hole_streak: int = 3  # k platform failures in a row: the pilot or node is drained
    black_hole_failures: int = 5  # of the latest ends: fewer say nothing about a rate
    black_hole_share: float = (
        0.5  # at least so much of the latest ends failed: a site that also finishes work is no hole
    )
    black_hole_factor: float = 3.0  # times as many failures as other sites would have had in the same slot time

    # --- replicas -----------------------------------------------------------------------------------------------------
    replication_min_queue_seconds: float = 60.0  # replication.min.queue.time, Swift's default
    replication_limit: int = 3  # replication.limit: queue replicas of one package
    replication_medians: float = 3.0  # and not before so many medians of the site's own queue times
    max_replicas: int = 3  # live attempts of one package, for whatever reason

    # --- Thompson sampling ----------------------------------------------------------------------------------------------
    thompson_half_life_seconds: float = 3600.0  # evidence of an hour ago counts half, so that drift is followed
    thompson_prior_seconds: float = 60.0  # a site that nothing is known of is thought to take so long, once
    thompson_looked_at: int = 16  # of more candidates than this, so many are drawn by weight and compared
    thompson_activities_max: int = 32  # remembered for each site: the ones used latest

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
