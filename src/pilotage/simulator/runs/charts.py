"""A comparison as a self-contained SVG: for each variant a row with every run, its quartiles, its median and its mean."""

from __future__ import annotations

from collections.abc import Sequence

from pilotage.model.svg import round_ticks, sheet, text_at
from pilotage.simulator.runs.comparison import Difference, Summary
from pilotage.simulator.world.randomness import Keyed

_WIDTH = 860.0
_MARGIN = 24.0
_HEAD = 78.0
_ROW = 62.0
_AXIS = 48.0
_CHARACTER = 7.25
_SMALL_CHARACTER = 6.1
_RIGHT = 220.0  # for the figures as text
_LABEL_MAX = 34
_DOTS_MAX = 400
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
_MINUS = "\N{MINUS SIGN}"

_STYLE = (
    "text{font-family:'DejaVu Sans Mono','Liberation Mono',Menlo,Consolas,monospace;font-size:12px;fill:#1c1c1c}"
    ".job{font-size:16px;font-weight:bold}"
    ".small{font-size:10px;fill:#555}"
    ".grid{stroke:#e3e6ea;stroke-width:1}"
    ".whisker{stroke:#5b6b7f;stroke-width:1.6}"
    ".box{fill:#cfe0f3;stroke:#3d6ea5;stroke-width:1.3}"
    ".median{stroke:#123f73;stroke-width:3}"
    ".mean{fill:#fff;stroke:#b03a2e;stroke-width:1.6}"
    ".error{stroke:#b03a2e;stroke-width:1.6}"
    ".run{fill:#3d6ea5;fill-opacity:.28}"
)


def chart_of(job: str, summaries: Sequence[Summary], differences: Sequence[Difference]) -> str:
    """The whole drawing: the first variant on top, the others below it."""
    labels = [_shortened(each.variant) for each in summaries]
    left = _MARGIN + max(len(label) for label in labels) * _CHARACTER + 18
    width = left + _WIDTH
    scale = _Scale(summaries, left=left, right=width - _RIGHT - _MARGIN)
    height = _HEAD + _ROW * len(summaries) + _AXIS
    beside = {each.variant: each for each in differences}
    pieces = _head(job, summaries[0]) + _axis(scale, height)
    for position, summary in enumerate(summaries):
        middle = _HEAD + _ROW * (position + 0.5)
        pieces.append(text_at(labels[position], x=left - 12, y=middle + 4, anchor="end"))
        pieces += _row(summary, scale, middle)
        words = _words(summary, beside.get(summary.variant))
        for line, text in enumerate(words):
            top = middle - 6 * (len(words) - 1) + 13 * line + 3
            pieces.append(text_at(text, x=scale.right + 18, y=top, style="small"))
    return sheet(pieces, width=width, height=height, style=_STYLE, label=f"makespans of {job}")


class _Scale:
    """Maps a time to a position on the sheet."""

    def __init__(self, summaries: Sequence[Summary], *, left: float, right: float) -> None:
        makespans = [each for summary in summaries for each in summary.makespans if each is not None] or [0.0, 1.0]
        low, high = min(makespans), max(makespans)
        room = max(high - low, 0.02 * high, 1e-3) * 0.04
        self.left, self.right = left, right
        self._low = max(0.0, low - room)
        self._high = max(high + room, self._low + 1e-3)
        self.size, self.unit = next((each for each in _UNITS if self._high >= 2 * each[0]), _UNITS[-1])

    def x(self, seconds: float) -> float:
        return self.left + (self.right - self.left) * (seconds - self._low) / (self._high - self._low)

    def ticks(self) -> list[tuple[float, str]]:
        """About five round times, each with its text."""
        found = round_ticks(self._low / self.size, self._high / self.size)
        return [(number * self.size, f"{number:.6g} {self.unit}") for number in found]


def _head(job: str, first: Summary) -> list[str]:
    about = f"makespan of {first.runs:,} simulated runs each, with the same seeds"
    found = [
        text_at(_shortened(job, 60), x=_MARGIN, y=30, style="job"),
        text_at(about, x=_MARGIN, y=46, style="small"),
    ]
    x, y = _MARGIN, 63.0
    legend = (
        (f'<circle class="run" cx="{x + 5:.1f}" cy="{y - 3:.1f}" r="3"/>', "a run"),
        ('<line class="whisker" x1="{0:.1f}" x2="{1:.1f}" y1="{2:.1f}" y2="{2:.1f}"/>', "nine runs of ten"),
        ('<rect class="box" x="{0:.1f}" width="12" y="{3:.1f}" height="9"/>', "the middle half"),
        ('<line class="median" x1="{4:.1f}" x2="{4:.1f}" y1="{3:.1f}" y2="{5:.1f}"/>', "median"),
        ('<circle class="mean" cx="{4:.1f}" cy="{2:.1f}" r="3.5"/>', "mean and its 95 % confidence interval"),
    )
    for mark, words in legend:
        found.append(mark.format(x, x + 12, y - 3, y - 8, x + 6, y + 1))
        found.append(text_at(words, x=x + 18, y=y, style="small"))
        x += 18 + len(words) * _SMALL_CHARACTER + 18
    return found


def _axis(scale: _Scale, height: float) -> list[str]:
    bottom = height - _AXIS + 6
    found = []
    for seconds, text in scale.ticks():
        x = scale.x(seconds)
        found.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_HEAD:.1f}" y2="{bottom:.1f}"/>')
        found.append(text_at(text, x=x, y=bottom + 16, style="small", anchor="middle"))
    return found


def _row(summary: Summary, scale: _Scale, middle: float) -> list[str]:
    found = []
    shown = [each for each in summary.makespans if each is not None][:_DOTS_MAX]
    for number, seconds in enumerate(shown):
        y = middle + 13 + 10 * Keyed(f"dot/{number}").random()
        found.append(f'<circle class="run" cx="{scale.x(seconds):.1f}" cy="{y:.1f}" r="2.2"/>')
    makespan = summary.makespan
    top = middle - 12
    if makespan.low_seconds is not None:
        until = scale.right if makespan.high_seconds is None else scale.x(makespan.high_seconds)
        found.append(_level("whisker", scale.x(makespan.low_seconds), until, top + 9))
    if makespan.lower_quartile_seconds is not None:
        begin = scale.x(makespan.lower_quartile_seconds)
        until = scale.right if makespan.upper_quartile_seconds is None else scale.x(makespan.upper_quartile_seconds)
        found.append(
            f'<rect class="box" x="{begin:.1f}" width="{max(1.0, until - begin):.1f}" y="{top:.1f}" height="18" rx="2"/>'
        )
    if makespan.median_seconds is not None:
        x = scale.x(makespan.median_seconds)
        found.append(f'<line class="median" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{top + 18:.1f}"/>')
    if makespan.mean_seconds is not None:
        if makespan.mean_low_seconds is not None and makespan.mean_high_seconds is not None:
            ends = scale.x(makespan.mean_low_seconds), scale.x(makespan.mean_high_seconds)
            found.append(_level("error", *ends, top + 9))
        found.append(f'<circle class="mean" cx="{scale.x(makespan.mean_seconds):.1f}" cy="{top + 9:.1f}" r="3.5"/>')
    return found


def _level(style: str, begin: float, end: float, y: float) -> str:
    return f'<line class="{style}" x1="{begin:.1f}" x2="{end:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _words(summary: Summary, difference: Difference | None) -> list[str]:
    makespan = summary.makespan
    found = [
        f"median {_time(makespan.median_seconds)}, mean {_time(makespan.mean_seconds)}",
        f"{100 * summary.wasted_share:.1f} % of core time wasted",
    ]
    if difference is not None and difference.mean_seconds is not None:
        found.append(f"{_signed(difference.mean_seconds)} compared with the first")
        if difference.low_seconds is not None and difference.high_seconds is not None:
            found.append(f"({_signed(difference.low_seconds)} to {_signed(difference.high_seconds)})")
    if summary.finished < summary.runs:
        found.append(f"{summary.runs - summary.finished:,} of {summary.runs:,} runs not over")
    return found


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not known"
    size, unit = next((each for each in _UNITS if abs(seconds) >= each[0]), _UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def _signed(seconds: float) -> str:
    return f"{_MINUS if seconds < 0 else '+'}{_time(abs(seconds))}"


def _shortened(text: str, most: int = _LABEL_MAX) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
