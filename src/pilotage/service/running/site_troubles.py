"""What kind of trouble a site is in that does not answer, as far as its own words tell: the score of the site follows from it."""

from __future__ import annotations

import re

from pilotage.model.reports import Trouble

_WORDS: tuple[tuple[Trouble, re.Pattern[str]], ...] = (
    # ssh and the batch systems pass on what the kernel says; the second of each is Slurm's own.
    ("connection-refused", re.compile(r"connection refused|connect failure", re.IGNORECASE)),
    ("connection-timed-out", re.compile(r"timed out|no answer within", re.IGNORECASE)),
)


def trouble_of(message: str) -> Trouble | None:
    """The trouble that a message tells of; None where it is another, or nobody can say."""
    return next((trouble for trouble, words in _WORDS if words.search(message)), None)
