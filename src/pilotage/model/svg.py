"""The parts that every drawing in SVG has: the sheet, texts, and round numbers along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable

_STEPS = (1.0, 2.0, 5.0, 10.0)


def sheet(pieces: Iterable[str], *, width: float, height: float, style: str, label: str) -> str:
    """A self-contained drawing on white; `label` says what it shows to whoever cannot see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escaped(label)}">\n'
        f"<style>{style}</style>\n"
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(pieces) + "\n</svg>\n"
    )


def text_at(text: str, *, x: float, y: float, style: str = "", anchor: str = "start") -> str:
    """A text that begins, has its middle or ends at a place."""
    named = f' class="{style}"' if style else ""
    placed = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}"{placed}>{escaped(text)}</text>'


def round_ticks(low: float, high: float) -> list[float]:
    """About five round numbers from `low` to `high`."""
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / 5))
    step = next(power * each for each in _STEPS if power * each >= span / 6)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def escaped(text: str) -> str:
    """A text that XML may hold."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
