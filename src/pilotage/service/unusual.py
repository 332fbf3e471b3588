"""Of which jobs something durable was out of the ordinary: a package was tried again, found made before, or left files behind.

Most packages are tried once. How many of a job were not is seen only in the packages themselves, all of which must be looked
through to count them. So it is noted, as batches are joined, when one of these counts can have changed; between two notes
what was counted holds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from pilotage.book.join import Change, Joined
from pilotage.book.ledger import Ledger
from pilotage.model.outcomes import ADOPTED, MADE_BEFORE, UNDECLARED

REMEMBERED_MAX = 10_000

DONE = frozenset({"DONE", "CLEARED"})
_TOLD = frozenset({MADE_BEFORE, UNDECLARED})  # with a success
WAITING = frozenset({"SUBMITTED", "WAITING", "READY"})
UNDER_WAY = frozenset({"SCHEDULED", "RUNNING"})

Marks = tuple[int, int]
"""Of the packages of a job that are done, and of those that are not: another number where a count can be another."""


class Unusual:
    """Notes what is unusual in each transaction, and tells of it when it is durable."""

    def __init__(self) -> None:
        """Nothing was noted: what anybody counts from here on holds until something is."""
        self._guard = threading.Lock()
        self._last = 0
        self._marks: dict[str, Marks] = {}
        self._unmarked: Marks = (0, 0)  # of jobs that are not remembered
        self._pending: dict[str, tuple[bool, bool]] = {}  # noted, and perhaps not durable yet

    def note(self, joined: Joined, _: Ledger) -> None:
        """Look through what a batch changed; within its transaction. A short life is as usual as can be."""
        for change in joined.longer():
            done, live = concerns(change)
            if done or live:
                job = change.job.job
                with self._guard:
                    before = self._pending.get(job, (False, False))
                    self._pending[job] = (before[0] or done, before[1] or live)

    def committed(self, _: Iterable[str] = ()) -> None:
        """Whatever was noted is durable, or will never be: who counts from here on counts anew."""
        if not self._pending:
            return
        with self._guard:
            self._last += 1
            for job, (done, live) in self._pending.items():
                before = self._marks.get(job, self._unmarked)
                self._marks[job] = (self._last if done else before[0], self._last if live else before[1])
            self._pending.clear()
            if len(self._marks) > REMEMBERED_MAX:
                self._marks.clear()
                self._unmarked = (self._last, self._last)

    def marks(self, job: str) -> Marks | None:
        """By what to know whether a count holds: to be asked before counting. None where a change may be on its way."""
        with self._guard:
            return None if job in self._pending else self._marks.get(job, self._unmarked)


def concerns(change: Change) -> tuple[bool, bool]:
    """Whether a change can be one of which are done and were tried again, adopted or untidy; and of how many are not done yet."""
    package = change.package
    if package is None:
        return False, False
    facts, before = package.facts, change.state_before
    state, attempts = facts.state, len(facts.attempts)
    # Attempts are never fewer than before; all else may have been otherwise.
    done = before in DONE or (state in DONE and (attempts > 1 or facts.site == ADOPTED or facts.reason in _TOLD))
    live = (attempts > 0 and (state in WAITING or before in WAITING)) or (
        attempts > 1 and (state in UNDER_WAY or before in UNDER_WAY)
    )
    return done, live
