"""Colours of activities: light grounds with dark lines, so that black text on any of them is easy to read.

The hues keep apart for the common kinds of colour blindness (after Okabe and Ito); a job with more activities than
colours uses them again.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Colour(msgspec.Struct, frozen=True):
    """The ground of a box and the line around it."""

    fill: str
    line: str


COLOURS = (
    Colour(fill="#d6eaf8", line="#0072b2"),
    Colour(fill="#fdebd0", line="#b96a00"),
    Colour(fill="#d5f5e3", line="#00795a"),
    Colour(fill="#f9dfee", line="#a8437c"),
    Colour(fill="#fcf6c8", line="#8a7a00"),
    Colour(fill="#e4e0f7", line="#5b4bb0"),
    Colour(fill="#fde0d5", line="#b8440e"),
    Colour(fill="#d8f3f5", line="#1b7f8c"),
    Colour(fill="#e8e8e8", line="#5c5c5c"),
)


def colour_of_activities(activities: Iterable[str]) -> dict[str, Colour]:
    """A colour for each activity, in the order in which they appear."""
    distinct = dict.fromkeys(activities)
    return {activity: COLOURS[i % len(COLOURS)] for i, activity in enumerate(distinct)}
