"""Planted bugs in what is recorded of the latencies of pilots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from pilotage.engine.state import latencies
from pilotage.engine.state.latencies import PilotLatencies
from pilotage.engine.state.sites import SiteState
from pilotage.forecast.history import LatencyHistory
from pilotage.forecast.pilot_records import PilotRecord, learn_from
from pilotage.model.events.payloads import SiteLatencies
from tests.simulation.mutants import Patch, mutant


@mutant(first_seed=5, by="latencies")
def queued_pilots_count_as_answered(patch: Patch) -> None:
    """A record names none of the pilots that are still queued: a restarted engine never learns of them."""
    made = PilotLatencies.record_of

    def record_of(self: PilotLatencies, name: str, site: SiteState | None, *, through: int) -> SiteLatencies:
        return msgspec.structs.replace(made(self, name, site, through=through), unanswered=())

    patch.setattr(PilotLatencies, "record_of", record_of)


@mutant(first_seed=8, by="latencies")
def a_restart_counts_recorded_pilots_again(patch: Patch) -> None:
    """Every row of a pilot teaches again whenever an engine starts."""

    def learn(history: LatencyHistory, rows: Iterable[PilotRecord], **more: Any) -> int:
        return learn_from(history, rows, **{**more, "through": 0})

    patch.setattr(latencies, "learn_from", learn)
