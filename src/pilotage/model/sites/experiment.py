"""The experiment of Glatard and Camarasu-Pop, *Modelling pilot-job applications on production grids*, as it can be run again."""

from __future__ import annotations

import math

import msgspec

from pilotage.model.sites.world import FaultBurst, Times


class PilotExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one application on pilots of one grid, each with probes of the latency in the hour before.

    The latency is a least time and a log-normal one on top. Where `submission_seconds` is not 0, pilots and probes are submitted
    one after the other, each for an exponential time with this mean. `burst_runs` of the runs, the last ones, have a burst of
    faults among their probes that is over when their pilots start.
    """

    pilots: tuple[int, ...]
    work_seconds: float
    packages: int
    probes: int
    probe_window_seconds: float
    latency_least_seconds: float
    latency_rest_mean_seconds: float
    latency_rest_sd_seconds: float
    fault_ratio: float
    submission_seconds: float = 0.0
    burst_runs: int = 0
    burst: FaultBurst = FaultBurst(begins_seconds=1500.0, lasts_seconds=600.0, probability=0.6)

    @property
    def latency(self) -> Times:
        """The distribution of the latency after the submission, as a world has it."""
        variance = math.log1p((self.latency_rest_sd_seconds / self.latency_rest_mean_seconds) ** 2)
        return Times(
            distribution="log-normal",
            offset_seconds=self.latency_least_seconds,
            median_seconds=self.latency_rest_mean_seconds * math.exp(-variance / 2.0),
            sigma=math.sqrt(variance),
        )

    @property
    def submission(self) -> Times:
        """The distribution of the time of one submission, as a world has it."""
        if not self.submission_seconds:
            return Times(value_seconds=0.0)
        return Times(distribution="exponential", mean_seconds=self.submission_seconds)

    def probes_of(self, run: int) -> int:
        """How many of the probes are those of a run, by its number from 0 on."""
        share, more = divmod(self.probes, len(self.pilots))
        return share + (run < more)

    def has_burst(self, run: int) -> bool:
        """Whether faults burst among the probes of a run."""
        return run >= len(self.pilots) - self.burst_runs


PAPER_EXPERIMENT = PilotExperiment(
    pilots=tuple(round(25 + 125 * run / 18) for run in range(19)),
    work_seconds=39_600.0,
    packages=450,
    probes=1093,
    probe_window_seconds=3600.0,
    latency_least_seconds=150.0,
    latency_rest_mean_seconds=617.0,
    latency_rest_sd_seconds=766.0,
    fault_ratio=0.068,
)
"""Nineteen runs; the least latency is that of the 1,093 probes, whose mean was 767 s and standard deviation 766 s."""
