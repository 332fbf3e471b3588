"""How often examples that are made up reach what a property is about: one that its assertions seldom see holds nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

EXAMPLES = 200

Example = TypeVar("Example")


def share(examples: SearchStrategy[Example], reaches: Callable[[Example], object]) -> float:
    """The share of some examples, the same each time, for which something holds."""
    seen: list[bool] = []

    @settings(
        max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, suppress_health_check=[*HealthCheck]
    )
    @given(examples)
    def look(example: Example) -> None:
        seen.append(bool(reaches(example)))

    look()
    return sum(seen) / len(seen)
