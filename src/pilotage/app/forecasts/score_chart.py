"""The drawing of scores: calibration on the left, errors of medians by the time left on the right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pilotage.model.svg import sheet, text_at

_WIDTH, _HEIGHT = 940.0, 440.0
_TOP, _BOTTOM = 92.0, 56.0
_LEFT = (64.0, 404.0)  # the two edges of the left panel
_RIGHT = (520.0, 916.0)
_ERROR_MAX = 1.0
_STYLE = (
    "text{font-family:'DejaVu Sans','Liberation Sans',Helvetica,Arial,sans-serif;font-size:12px;fill:#1c1c1c}"
    ".title{font-size:15px;font-weight:bold}.small{font-size:11px;fill:#555}.grid{stroke:#e3e6ea}"
    ".axis{stroke:#5b6b7f;stroke-width:1.2}.ideal{stroke:#8a97a6;stroke-width:1.4;stroke-dasharray:6 4;fill:none}"
    ".observed{stroke:#1f4fbf;stroke-width:2;fill:none}.dot{fill:#1f4fbf}.inside{fill:#1f8a4c}.outside{fill:#c0392b}"
)
_UNITS = ((1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"), (600.0, "10 min"), (3600.0, "1 h"), (36000.0, "10 h"))
_DAYS = ((86400.0, "1 d"), (864000.0, "10 d"))

Coverage = Sequence[tuple[float, float]]
Errors = Sequence[tuple[float, float, bool]]


def scores_chart(*, coverage: Coverage, errors: Errors, title: str) -> str:
    """Both panels under one title; errors beyond 100 % are triangles at the edge."""
    pieces = [text_at(title, x=_LEFT[0], y=28, style="title"), *_coverage(coverage), *_errors(errors)]
    return sheet(pieces, width=_WIDTH, height=_HEIGHT, style=_STYLE, label=f"forecasts of ends of jobs: {title}")


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share


def _frame(edges: tuple[float, float], heading: str, x_label: str) -> Iterator[str]:
    left, right = edges
    yield text_at(heading, x=left, y=_TOP - 36, style="")
    yield f'<line class="axis" x1="{left:.1f}" x2="{right:.1f}" y1="{_y(0):.1f}" y2="{_y(0):.1f}"/>'
    yield f'<line class="axis" x1="{left:.1f}" x2="{left:.1f}" y1="{_y(1):.1f}" y2="{_y(0):.1f}"/>'
    yield text_at(x_label, x=(left + right) / 2, y=_HEIGHT - 16, style="small", anchor="middle")


def _coverage(points: Coverage) -> Iterator[str]:
    left, right = _LEFT

    def x(share: float) -> float:
        return left + (right - left) * share

    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        yield f'<line class="grid" x1="{x(share):.1f}" x2="{x(share):.1f}" y1="{_y(1):.1f}" y2="{_y(0):.1f}"/>'
        yield f'<line class="grid" x1="{left:.1f}" x2="{right:.1f}" y1="{_y(share):.1f}" y2="{_y(share):.1f}"/>'
        yield text_at(f"{100 * share:.0f} %", x=x(share), y=_y(0) + 17, style="small", anchor="middle")
        yield text_at(f"{100 * share:.0f} %", x=left - 8, y=_y(share) + 4, style="small", anchor="end")
    yield from _frame(_LEFT, "Calibration: intervals that held the end", "nominal coverage of the interval")
    yield text_at("observed", x=left, y=_TOP - 14, style="small")
    yield f'<polyline class="ideal" points="{x(0):.1f},{_y(0):.1f} {x(1):.1f},{_y(1):.1f}"/>'
    if points:
        line = " ".join(f"{x(nominal):.1f},{_y(observed):.1f}" for nominal, observed in points)
        yield f'<polyline class="observed" points="{line}"/>'
        for nominal, observed in points:
            yield f'<circle class="dot" cx="{x(nominal):.1f}" cy="{_y(observed):.1f}" r="2.6"/>'


def _errors(errors: Errors) -> Iterator[str]:
    left, right = _RIGHT
    low = math.log(max(min((each[0] for each in errors), default=1.0), 1e-3) / 1.3)
    high = math.log(max((each[0] for each in errors), default=100.0) * 1.3)

    def x(seconds: float) -> float:
        return left + (right - left) * (math.log(seconds) - low) / max(high - low, 1e-9)

    def y(error: float) -> float:
        return _y(0.5 + 0.5 * min(max(error, -_ERROR_MAX), _ERROR_MAX) / _ERROR_MAX)

    for seconds, name in (*_UNITS, *_DAYS):
        if low <= math.log(seconds) <= high:
            yield f'<line class="grid" x1="{x(seconds):.1f}" x2="{x(seconds):.1f}" y1="{_y(1):.1f}" y2="{_y(0):.1f}"/>'
            yield text_at(name, x=x(seconds), y=_y(0) + 17, style="small", anchor="middle")
    for error in (-1.0, -0.5, 0.0, 0.5, 1.0):
        style = "ideal" if error == 0.0 else "grid"
        yield f'<line class="{style}" x1="{left:.1f}" x2="{right:.1f}" y1="{y(error):.1f}" y2="{y(error):.1f}"/>'
        name = f"{100 * error:+.0f} %" if error else "0 %"
        yield text_at(name, x=left - 8, y=y(error) + 4, style="small", anchor="end")
    yield from _frame(_RIGHT, "Error of the median, by the time that was left", "time left when the forecast was made")
    for at, (style, name) in enumerate((("inside", "inside its interval"), ("outside", "outside"))):
        yield f'<circle class="{style}" cx="{left + 6 + 150 * at:.1f}" cy="{_TOP - 18:.1f}" r="3.2"/>'
        yield text_at(name, x=left + 16 + 150 * at, y=_TOP - 14, style="small")
    for seconds, error, inside in errors:
        style = "inside" if inside else "outside"
        across, up = x(max(seconds, 1e-3)), y(error)
        if abs(error) > _ERROR_MAX:  # it is further away than the panel shows
            tip = up + math.copysign(7.0, -error)
            yield f'<path class="{style}" d="M{across - 4:.1f} {up:.1f}h8L{across:.1f} {tip:.1f}z"/>'
        else:
            yield f'<circle class="{style}" cx="{across:.1f}" cy="{up:.1f}" r="3.2"/>'
