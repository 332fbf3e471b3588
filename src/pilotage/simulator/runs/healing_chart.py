"""The runs of the experiment of figure 8 as a self-contained SVG: a panel for each world and activity, a bar for each run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pilotage.model.svg import round_ticks, sheet, text_at
from pilotage.simulator.runs.healing import HealingRun, Policy

_COLOURS: dict[Policy, str] = {
    "off": "#8a94a3",
    "paper": "#3d6ea5",
    "predictive": "#1f7a4d",
    "slower-than-mean": "#c98a1b",
    "late": "#a33a5b",
}
_STYLE = (
    "text{font-family:'DejaVu Sans','Liberation Sans',Helvetica,Arial,sans-serif;font-size:12px;fill:#1c1c1c}"
    ".title{font-size:14px;font-weight:bold}.small{font-size:10.5px;fill:#555}"
    ".grid{stroke:#e3e6ea}.base{stroke:#5b6b7f}"
)
_SHOWN = 5  # repetitions
_PANEL_WIDTH, _PANEL_HEIGHT = 400.0, 230.0
_LEFT, _TOP, _GAP = 58.0, 84.0, 74.0
_HOUR = 3600.0


def chart_of(runs: Sequence[HealingRun]) -> str:
    """The makespans of the first five repetitions, in hours."""
    worlds = list(dict.fromkeys(run.world for run in runs))
    activities = list(dict.fromkeys(run.activity for run in runs))
    seeds = sorted({run.seed for run in runs})[:_SHOWN]
    width = _LEFT + len(activities) * (_PANEL_WIDTH + _GAP)
    height = _TOP + len(worlds) * (_PANEL_HEIGHT + _GAP)
    pieces = [text_at("Makespan with and without healing", x=24, y=28, style="title")]
    x = 24.0
    for policy, colour in _COLOURS.items():
        pieces.append(f'<rect x="{x:.1f}" y="41" width="11" height="11" fill="{colour}"/>')
        pieces.append(text_at(policy, x=x + 17, y=51))
        x += 40 + 7.2 * len(policy)
    for row, world in enumerate(worlds):
        for column, activity in enumerate(activities):
            here = [run for run in runs if (run.world, run.activity) == (world, activity) and run.seed in seeds]
            left, top = _LEFT + column * (_PANEL_WIDTH + _GAP), _TOP + row * (_PANEL_HEIGHT + _GAP)
            pieces += _panel(f"{world}, {activity} packages", here, seeds, left=left, top=top)
    return sheet(pieces, width=width, height=height, style=_STYLE, label="makespans with and without healing")


def _panel(title: str, runs: Sequence[HealingRun], seeds: Sequence[int], *, left: float, top: float) -> Iterator[str]:
    policies = [policy for policy in _COLOURS if any(run.policy == policy for run in runs)]
    most = max(run.makespan_seconds for run in runs) / _HOUR
    base = top + _PANEL_HEIGHT
    yield text_at(title, x=left, y=top - 8, style="title")
    for hours in round_ticks(0.0, most):
        y = base - (_PANEL_HEIGHT - 10) * hours / most
        yield f'<line class="grid" x1="{left:.1f}" x2="{left + _PANEL_WIDTH:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield text_at(f"{hours:g} h", x=left - 6, y=y + 4, style="small", anchor="end")
    group = _PANEL_WIDTH / len(seeds)
    bar = 0.8 * group / len(policies)
    for run in runs:
        height = (_PANEL_HEIGHT - 10) * run.makespan_seconds / _HOUR / most
        x = left + group * (seeds.index(run.seed) + 0.1) + bar * policies.index(run.policy)
        yield (
            f'<rect x="{x:.1f}" y="{base - height:.1f}" width="{bar - 1:.1f}" height="{height:.1f}"'
            f' fill="{_COLOURS[run.policy]}"/>'
        )
    yield f'<line class="base" x1="{left:.1f}" x2="{left + _PANEL_WIDTH:.1f}" y1="{base:.1f}" y2="{base:.1f}"/>'
    for number in range(len(seeds)):
        middle = left + group * (number + 0.5)
        yield text_at(f"repetition {number + 1}", x=middle, y=base + 15, style="small", anchor="middle")
