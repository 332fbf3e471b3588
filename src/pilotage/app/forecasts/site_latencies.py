"""The latencies of a site, from the book of a service that runs or of one that does not."""

from __future__ import annotations

import msgspec
import numpy as np

from pilotage.client import Server
from pilotage.client.server import path_of
from pilotage.forecast.history import STARTS_MIN
from pilotage.forecast.latency import LatencyDistribution
from pilotage.forecast.sequential import SequentialSubmission
from pilotage.forecast.steps import StepFunction
from pilotage.model.errors import PilotageError
from pilotage.reading.latencies import SiteLatencyView, StepsView

__all__ = ["SiteLatencyView", "distribution_of", "site_latencies", "submission_of"]


def site_latencies(server: Server, site: str) -> SiteLatencyView:
    """The latencies of a site; raises `PilotageError` where too few pilots have started there."""
    found = msgspec.convert(server.get(path_of("sites", site, "latencies")), SiteLatencyView)
    if found.latency is None:
        raise PilotageError(
            "too few pilots have started there for a forecast",
            subject=f"site {site}",
            expected=f"at least {STARTS_MIN} starts in the book",
            got=f"{found.known_starts}",
            next_step="run more jobs there, or give latencies that you measured: --latencies FILE",
        )
    return found


def distribution_of(steps: StepsView, *, starts: int) -> LatencyDistribution:
    """The distribution behind an answer."""
    return LatencyDistribution(StepFunction(np.array(steps.seconds), np.array(steps.started)), observations=starts)


def submission_of(found: SiteLatencyView) -> SequentialSubmission | None:
    """S and G apart; None where the book knows too few submissions."""
    if found.submissions is None or found.rest is None:
        return None
    return SequentialSubmission(np.array(found.submissions), distribution_of(found.rest, starts=found.starts))
