"""Compares two contents of one output: identical, equal as the document declares, or different, with the first difference.

A comparison takes time linear in the contents, whatever they are: expressions of users are matched by the agent's own matcher,
and a word is read as a number only up to a limited length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import zip_longest
from typing import Literal

import msgspec

from pilotage.agent.expressions import compile_expression
from pilotage.language.text.patterns import matches
from pilotage.model.jobs.definition import Comparison

Verdict = Literal["identical", "equal", "different"]

_WORD = re.compile(r"[^\s,;:|=()\[\]{}<>\"']+|[,;:|=()\[\]{}<>\"']")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eEdD][+-]?[0-9]+)?")
_SPECIAL = re.compile(r"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_NUMBER_CHARACTERS_MAX = 400  # of a word that may be a number
_SHOWN_MAX = 60  # characters of a line in a message

Number = float | int


class Compared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How two contents compare; `difference` tells the first one, for equal contents that of their bytes is not told."""

    verdict: Verdict
    difference: str = ""


def comparison_for(name: str, comparisons: Iterable[Comparison]) -> Comparison | None:
    """The comparison that a document declares for an output: the first that matches; a pattern without `/` fits any folder."""
    for each in comparisons:
        for pattern in each.files:
            if matches(pattern, name if "/" in pattern else name.rpartition("/")[2]):
                return each
    return None


def compare(before: bytes, after: bytes, comparison: Comparison | None) -> Compared:
    """Compare two contents; without a comparison they must be identical."""
    if before == after:
        return Compared(verdict="identical")
    if comparison is None or comparison.compared_as == "identical":
        return Compared(verdict="different", difference=_first_byte(before, after))
    for first, second in zip_longest(_lines(before, comparison), _lines(after, comparison)):
        if first is None:
            return Compared(verdict="different", difference=f"line {second[0]} is new: {_shown(second[1])}")
        if second is None:
            return Compared(verdict="different", difference=f"line {first[0]} is missing: {_shown(first[1])}")
        if first[1] != second[1] and (what := _line_difference(first[1], second[1], comparison)):
            return Compared(verdict="different", difference=f"line {first[0]}: {what}")
    return Compared(verdict="equal")


def _first_byte(before: bytes, after: bytes) -> str:
    low, high = 0, min(len(before), len(after))
    while low < high:  # the length of the common beginning; slices compare much quicker than bytes one by one
        middle = (low + high + 1) // 2
        if before[low:middle] == after[low:middle]:
            low = middle
        else:
            high = middle - 1
    if low == min(len(before), len(after)):
        return f"{len(after):,} bytes instead of {len(before):,}"
    return f"from byte {low + 1:,} on"


def _lines(content: bytes, comparison: Comparison) -> Iterator[tuple[int, str]]:
    """The lines that count, with their numbers; however a line ends, it is the same."""
    ignored = [compile_expression(each) for each in comparison.ignore]
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        text = line.removesuffix("\r")
        if not any(each.search(text) for each in ignored):
            yield number, text


def _line_difference(before: str, after: str, comparison: Comparison) -> str:
    """What differs between two lines; empty if they are equal."""
    if comparison.compared_as == "text":
        return f"{_shown(after)} instead of {_shown(before)}"
    for first, second in zip_longest(_WORD.findall(before), _WORD.findall(after), fillvalue=""):
        if first != second and not _is_near(first, second, comparison):
            return f"{_shown(second)} instead of {_shown(first)}"
    return ""


def _is_near(first: str, second: str, comparison: Comparison) -> bool:
    """Whether two words are numbers within the tolerances."""
    before, after = number_of(first), number_of(second)
    if before is None or after is None:
        return False
    if isinstance(before, int) and isinstance(after, int):  # exact, however large they are
        apart, larger = abs(before - after), max(abs(before), abs(after))
        relative, absolute = Fraction(comparison.tolerance), Fraction(comparison.absolute_tolerance)
        return apart <= max(relative * larger, absolute)
    first_value, second_value = _float(before), _float(after)
    if math.isnan(first_value) or math.isnan(second_value):
        return math.isnan(first_value) and math.isnan(second_value)
    if math.isinf(first_value) or math.isinf(second_value):
        return first_value == second_value
    most = max(abs(first_value), abs(second_value))
    return abs(first_value - second_value) <= max(comparison.tolerance * most, comparison.absolute_tolerance)


def number_of(word: str) -> Number | None:
    """A word as a number, also with an exponent of Fortran; None if it is none, or too large for double precision."""
    if len(word) > _NUMBER_CHARACTERS_MAX:
        return None
    if _INTEGER.fullmatch(word):
        return int(word)
    if _SPECIAL.fullmatch(word):
        return float(word)
    if not _DECIMAL.fullmatch(word):
        return None
    value = float(word.lower().replace("d", "e"))
    return None if math.isinf(value) else value


def _float(value: Number) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _shown(text: str) -> str:
    if not text:
        return "nothing"
    return ascii(text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…")
