"""What can be set about the decisions of the engine, as one frozen value."""

from __future__ import annotations

from typing import Literal

import msgspec

from pilotage.book.join import SKEW_SECONDS
from pilotage.engine.restart import RestartSettings
from pilotage.engine.selection.settings import SelectionSettings

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
