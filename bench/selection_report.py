"""The figures of `bench.selection` as tables and as one drawing: each variant beside the first, with the same seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from pilotage.simulator.runs.comparison import Difference, Summary, difference_of

Found = Mapping[tuple[str, str, str, str], Summary]
"""By world, job, mode and variant."""

_COLOURS = {
    "best": "#b8860b",
    "thompson": "#1f6f4a",
    "uniform": "#a33a5b",
    "first": "#2b5c9e",
    "any-failure": "#6f6f6f",
}
_STYLE = (
    "text{font-family:'DejaVu Sans','Liberation Sans',Helvetica,Arial,sans-serif;font-size:12px;fill:#1c1c1c}"
    ".title{font-size:13px;font-weight:bold}.small{font-size:10.5px;fill:#555}"
    ".grid{stroke:#e3e6ea}.zero{stroke:#5b6b7f;stroke-width:1.5}"
)
_WIDTH, _HEIGHT = 900, 988
_PANEL_WIDTH, _PANEL_HEIGHT = 316, 440
_LEFT, _TOP = 110, 66
_ACROSS, _DOWN = 450, 470
_TICK = 20  # percent
_MINUS = "\N{MINUS SIGN}"


class Beside:
    """A variant beside the first one, in hundredths of the first one's mean; of one run there is no confidence interval."""

    def __init__(self, difference: Difference, first: Summary) -> None:
        """Take how the two differ."""
        mean, longer = first.makespan.mean_seconds, difference.mean_seconds
        assert mean is not None
        assert longer is not None
        low, high = difference.low_seconds, difference.high_seconds
        self.is_sure = low is not None and high is not None
        ends = (longer if low is None else low, longer if high is None else high)
        self.mean, self.low, self.high = (100.0 * each / mean for each in (longer, *ends))
        self.clear = difference.is_clear

    def __str__(self) -> str:
        text = f"{_signed(self.mean)} %"
        if self.is_sure:
            text += f" ({_signed(self.low)} to {_signed(self.high)})"
        return f"**{text}**" if self.clear else text


def names(found: Found, part: int) -> list[str]:
    """The worlds (0), jobs (1), modes (2) or variants (3), in their order."""
    return list(dict.fromkeys(key[part] for key in found))


def setups(found: Found) -> list[tuple[str, str]]:
    """Each job with a mode, in their order."""
    return list(dict.fromkeys((job, mode) for _, job, mode, _ in found))


def worlds_of(found: Found, job: str, mode: str) -> list[str]:
    """The worlds in which a job was run in a mode."""
    return [world for world in names(found, 0) if any(key[:3] == (world, job, mode) for key in found)]


def tables(found: Found) -> str:
    """Makespans of each job in each mode, and what was in vain."""
    first, *others = names(found, 3)
    pieces: list[str] = []
    for job, mode in setups(found):
        pieces += [f"**{job}, {mode}**: makespan", "", *_makespans(found, job, mode, first, others), ""]
    pieces += [
        "**Wasted attempts** (their result was not used), of all attempts, in cells with any; and their share of the core time",
        "",
    ]
    pieces += [*_wastes(found, [first, *others]), ""]
    return "\n".join(pieces)


def _makespans(found: Found, job: str, mode: str, first: str, others: list[str]) -> Iterator[str]:
    yield f"| world | {first} | {' | '.join(others)} |"
    yield "|---" * (2 + len(others)) + "|"
    for world in worlds_of(found, job, mode):
        base = found[world, job, mode, first]
        span = base.makespan
        assert span.mean_seconds is not None
        within = ""
        if span.mean_high_seconds is not None:
            within = f" ± {(span.mean_high_seconds - span.mean_seconds) / 60:.1f}"
        beside = (str(Beside(difference_of(base, found[world, job, mode, each]), base)) for each in others)
        yield f"| {world} | {span.mean_seconds / 60:.1f}{within} min | {' | '.join(beside)} |"


def _wastes(found: Found, variants: list[str]) -> Iterator[str]:
    yield f"| world | job, mode | {' | '.join(variants)} |"
    yield "|---" * (2 + len(variants)) + "|"
    for world, job, mode in sorted(
        dict.fromkeys(key[:3] for key in found), key=lambda key: names(found, 0).index(key[0])
    ):
        here = [found[world, job, mode, each] for each in variants]
        if max(each.attempts - each.packages_done for each in here) >= 0.5:
            yield f"| {world} | {job}, {mode} | {' | '.join(map(_waste, here))} |"


def _waste(summary: Summary) -> str:
    vain = summary.attempts - summary.packages_done
    return f"{vain:.1f} of {summary.attempts:.0f}; {100 * summary.wasted_share:.1f} %"


# --- the drawing ------------------------------------------------------------------------------------------------------


def drawing(found: Found) -> str:
    """A panel for each setup: by how much each variant is longer or shorter than the first one, with its confidence interval."""
    first, *others = names(found, 3)
    seeds = next(iter(found.values())).runs
    pieces = [
        _text(f"Makespan beside {first}", 24, 26, style="title"),
        _text(
            f"mean of {seeds} pairs of runs with the same seed, and its 95 % confidence interval", 24, 43, style="small"
        ),
    ]
    for number, variant in enumerate(others):
        x = _WIDTH - 96 * (len(others) - number)
        pieces.append(f'<circle cx="{x}" cy="22" r="4" fill="{_COLOURS[variant]}"/>')
        pieces.append(_text(variant, x + 9, 26))
    beside = {
        key: Beside(difference_of(found[*key[:3], first], summary), found[*key[:3], first])
        for key, summary in found.items()
        if key[3] != first
    }
    ticks = _ticks(beside.values())
    for number, (job, mode) in enumerate(setups(found)):
        row, column = divmod(number, 2)
        here = {(world, variant): each for (world, *about, variant), each in beside.items() if about == [job, mode]}
        pieces += _panel(f"{job}, {mode}", here, ticks, left=_LEFT + _ACROSS * column, top=_TOP + _DOWN * row)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="makespans of variants beside {first}">\n'
        f"<style>{_STYLE}</style>\n"
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(pieces) + "\n</svg>\n"
    )


def _ticks(shown: Iterable[Beside]) -> range:
    """The marks of the one scale that all panels have, so that they can be held against each other."""
    ends = [end for each in shown for end in (each.low, each.high)]
    low, high = math.floor(min(0.0, *ends) / _TICK), math.ceil(max(0.0, *ends) / _TICK)
    return range(_TICK * low, _TICK * max(high, low + 1) + 1, _TICK)


def _panel(
    title: str, beside: Mapping[tuple[str, str], Beside], ticks: range, *, left: float, top: float
) -> Iterator[str]:
    worlds, others = (list(dict.fromkeys(key[part] for key in beside)) for part in (0, 1))

    def across(percent: float) -> float:
        return left + _PANEL_WIDTH * (percent - ticks[0]) / (ticks[-1] - ticks[0])

    bottom = top + _PANEL_HEIGHT - 34
    yield _text(title, left, top + 12, style="title")
    for tick in ticks:
        x = across(tick)
        style = "grid" if tick else "zero"
        yield f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 20:.1f}" y2="{bottom:.1f}"/>'
        if not tick % (2 * _TICK):
            yield _text(f"{_whole(tick)} %", x, bottom + 15, style="small", anchor="middle")
    height = (bottom - top - 24) / len(worlds)
    for number, world in enumerate(worlds):
        middle = top + 24 + height * (number + 0.5)
        yield _text(world, left - 8, middle + 4, anchor="end")
        for place, variant in enumerate(others):
            about, y = beside[world, variant], middle + 10 * (place - (len(others) - 1) / 2)
            colour = _COLOURS[variant]
            ends = f'x1="{across(about.low):.1f}" x2="{across(about.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"'
            yield f'<line {ends} stroke="{colour}" stroke-width="2"/>'
            yield f'<circle cx="{across(about.mean):.1f}" cy="{y:.1f}" r="3.6" fill="{colour}"/>'


def _signed(value: float) -> str:
    return f"{_MINUS if value < 0 else '+'}{abs(value):.1f}"


def _whole(value: float) -> str:
    return "0" if not value else f"{_MINUS if value < 0 else '+'}{abs(value):.0f}"


def _text(text: str, x: float, y: float, *, style: str = "", anchor: str = "start") -> str:
    named = f' class="{style}"' if style else ""
    placed = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}"{placed}>{text}</text>'
