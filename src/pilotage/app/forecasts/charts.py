"""Drawings like the paper's figures: available pilots over time, and makespans beside the number of pilots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from pilotage.app.forecasts.answers import Fitted
from pilotage.app.forecasts.source import Curve
from pilotage.app.forecasts.tables import Measured
from pilotage.model.svg import round_ticks, sheet, text_at

_WIDTH, _HEIGHT = 720.0, 460.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 24.0, 76.0, 52.0
_POINTS_MAX = 600
_SIGMA, _RHO, _MINUS = "\N{GREEK SMALL LETTER SIGMA}", "\N{GREEK SMALL LETTER RHO}", "\N{MINUS SIGN}"
_STYLE = (
    "text{font-family:'DejaVu Sans','Liberation Sans',Helvetica,Arial,sans-serif;font-size:12px;fill:#1c1c1c}"
    ".title{font-size:15px;font-weight:bold}.small{font-size:11px;fill:#555}"
    ".grid{stroke:#e3e6ea}.axis{stroke:#5b6b7f;stroke-width:1.2}"
    "polyline{fill:none;stroke-width:1.6}"
    ".mean{stroke:#000;stroke-width:2}.sd{stroke:#1f8a4c}.sd3{stroke:#c0392b}"
    ".limit{stroke:#1f4fbf;stroke-width:1.6}.measured{stroke:#000;stroke-width:1.6;stroke-dasharray:6 4}"
    ".cross-measured{stroke:#1f8a4c;stroke-width:1.8}.cross-modelled{stroke:#c0392b;stroke-width:1.8}"
)


class _Axes:
    """Where values stand on the sheet, from 0 to the largest on both axes."""

    def __init__(self, *, x_max: float, y_max: float) -> None:
        self.x_max, self.y_max = max(x_max, 1e-9) * 1.03, max(y_max, 1e-9) * 1.06

    def x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / self.x_max

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / self.y_max

    def pieces(self, *, x_label: str, y_label: str) -> Iterator[str]:
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        for tick in round_ticks(0.0, self.x_max):
            x = self.x(tick)
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP:.1f}" y2="{bottom:.1f}"/>'
            yield text_at(f"{tick:,.6g}", x=x, y=bottom + 17, style="small", anchor="middle")
        for tick in round_ticks(0.0, self.y_max):
            y = self.y(tick)
            yield f'<line class="grid" x1="{_LEFT:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield text_at(f"{tick:,.6g}", x=_LEFT - 8, y=y + 4, style="small", anchor="end")
        yield f'<line class="axis" x1="{_LEFT:.1f}" x2="{right:.1f}" y1="{bottom:.1f}" y2="{bottom:.1f}"/>'
        yield f'<line class="axis" x1="{_LEFT:.1f}" x2="{_LEFT:.1f}" y1="{_TOP:.1f}" y2="{bottom:.1f}"/>'
        yield text_at(x_label, x=(_LEFT + right) / 2, y=_HEIGHT - 14, style="small", anchor="middle")
        yield text_at(y_label, x=_LEFT - 8, y=_TOP - 8, style="small")

    def steps(self, times: ArrayLike, values: ArrayLike, style: str) -> str:
        """A line that keeps each value until the next time."""
        pairs = list(zip(np.asarray(times, dtype=float), np.asarray(values, dtype=float), strict=True))
        points = [f"{self.x(pairs[0][0]):.1f},{self.y(pairs[0][1]):.1f}"]
        for (_, before), (time, value) in pairwise(pairs):
            x = self.x(time)
            points += [f"{x:.1f},{self.y(before):.1f}", f"{x:.1f},{self.y(value):.1f}"]
        return f'<polyline class="{style}" points="{" ".join(points)}"/>'

    def cross(self, x: float, y: float, style: str) -> str:
        """A small cross."""
        left, top = self.x(x), self.y(y)
        return f'<path class="{style}" d="M{left - 4:.1f} {top - 4:.1f}l8 8m0 -8l-8 8"/>'


def times_of(*, until_seconds: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The times at which a curve is drawn."""
    return np.linspace(0.0, until_seconds, _POINTS_MAX)


def pilots_chart(
    curve: Curve, *, observations: int, measured: Measured | None = None, error: float | None = None
) -> str:
    """The number of available pilots over time, as in the paper's figure 1.

    The mean is black, the bands of one and three standard deviations are green and red, the asymptote n(1 - rho) is
    blue, and what was measured is dashed.
    """
    limit = curve.submitted * (1.0 - curve.fault_ratio)
    seen = [] if measured is None else [float(measured.available.max())]
    top = max(float((curve.mean + 3.0 * curve.sd).max()), limit, *seen)
    most = 1.05 * float(np.max([curve.submitted, *seen]))
    axes = _Axes(x_max=float(curve.at_seconds[-1]), y_max=min(top, most))
    title = f"n = {curve.submitted:,}, {observations:,} probes, {_RHO} = {100 * curve.fault_ratio:.1f} %"
    if error is not None:
        title += f", error {100 * error:.1f} %"
    pieces = [*_title(title, ("mean", "sd", "sd3", "limit", *(["measured"] if measured is not None else [])))]
    pieces += axes.pieces(x_label="time in seconds", y_label="available pilots")
    ends = curve.at_seconds[[0, -1]]
    pieces.append(axes.steps(ends, [limit, limit], "limit"))
    for factor, style in ((3.0, "sd3"), (1.0, "sd")):
        for side in (-factor, factor):
            inside = np.clip(curve.mean + side * curve.sd, 0.0, axes.y_max)
            pieces.append(axes.steps(curve.at_seconds, inside, style))
    pieces.append(axes.steps(curve.at_seconds, curve.mean, "mean"))
    if measured is not None:
        order = np.argsort(measured.at_seconds, kind="stable")
        pieces.append(axes.steps(measured.at_seconds[order], measured.available[order], "measured"))
    return sheet(pieces, width=_WIDTH, height=_HEIGHT, style=_STYLE, label=f"available pilots over time: {title}")


def makespans_chart(fitted: Fitted) -> str:
    """Measured and modelled makespans beside the number of pilots, as in the paper's figure 2."""
    modelled = fitted.work.makespans_seconds
    axes = _Axes(x_max=float(max(fitted.pilots)), y_max=max(*fitted.measured_seconds, float(modelled.max())))
    title = f"w0 = {fitted.work.work_seconds:,.0f} s, mean error {fitted.work.mean_error_seconds:,.0f} s"
    pieces = [*_title(title, ("cross-measured", "cross-modelled"))]
    pieces += axes.pieces(x_label="submitted pilots", y_label="makespan in seconds")
    for pilots, seconds, model in zip(fitted.pilots, fitted.measured_seconds, modelled, strict=True):
        pieces.append(axes.cross(pilots, seconds, "cross-measured"))
        pieces.append(axes.cross(pilots, float(model), "cross-modelled"))
    return sheet(pieces, width=_WIDTH, height=_HEIGHT, style=_STYLE, label=f"makespans: {title}")


_LEGEND = {
    "mean": "mean",
    "sd": f"± {_SIGMA}",
    "sd3": f"± 3{_SIGMA}",
    "limit": f"n(1 {_MINUS} {_RHO})",
    "measured": "measured",
    "cross-measured": "measured",
    "cross-modelled": "modelled",
}


def _title(title: str, legend: Sequence[str]) -> Iterator[str]:
    yield text_at(title, x=_LEFT, y=26, style="title")
    x = _LEFT
    for style in legend:
        if style.startswith("cross"):
            yield f'<path class="{style}" d="M{x + 8:.1f} 40l8 8m0 -8l-8 8"/>'
        else:
            yield f'<polyline class="{style}" points="{x:.1f},44 {x + 24:.1f},44"/>'
        yield text_at(_LEGEND[style], x=x + 30, y=48, style="small")
        x += 48 + 7.0 * len(_LEGEND[style])
