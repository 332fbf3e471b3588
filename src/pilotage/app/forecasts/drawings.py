"""What `pilotage forecast plot` draws."""

from __future__ import annotations

import numpy as np

from pilotage.app.forecasts.answers import estimated_pilots, fitted_runs
from pilotage.app.forecasts.charts import makespans_chart, pilots_chart, times_of
from pilotage.app.forecasts.source import Model, Source
from pilotage.app.forecasts.tables import read_measured
from pilotage.forecast.fit import model_error
from pilotage.reading.latencies import SiteLatencyView


def draw_pilots(
    latencies: str | SiteLatencyView,
    *,
    pilots: int | None,
    measured: str | None,
    until_seconds: float | None,
    sequential: bool,
    work_seconds: float | None,
    model: Model,
) -> str:
    """Available pilots over time, with what was measured beside them, as an SVG."""
    source = Source(latencies, sequential=sequential)
    samples = None if measured is None else read_measured(measured)
    if pilots is None:
        assert samples is not None
        pilots = estimated_pilots(samples, source.fault_ratio)
    if until_seconds is None:
        until_seconds = source.settled_seconds(pilots=pilots, work_seconds=work_seconds)
        if samples is not None:
            until_seconds = max(until_seconds, float(samples.at_seconds.max()))
    times = times_of(until_seconds=until_seconds)
    curve = source.curve(pilots=pilots, at_seconds=times, work_seconds=work_seconds, model=model)
    error = None
    if samples is not None:
        inside = samples.at_seconds <= times[-1]
        beside = source.curve(pilots=pilots, at_seconds=samples.at_seconds, work_seconds=work_seconds, model=model)
        error = model_error(modelled=beside.mean, measured=samples.available, pilots=curve.submitted)
        samples = samples.kept(np.flatnonzero(inside))
    return pilots_chart(curve, observations=source.observations, measured=samples, error=error)


def draw_makespans(runs: str, *, latencies: str | SiteLatencyView | None, sequential: bool) -> str:
    """Measured and modelled makespans beside the number of pilots, as an SVG."""
    return makespans_chart(fitted_runs(runs, latencies=latencies, sequential=sequential))
