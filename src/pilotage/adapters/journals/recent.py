"""What the one writer remembers between transactions: rows it will soon need again, and where there are surely none.

Only packages that are not final are kept, and a bounded number of them: memory does not grow with the book.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from pilotage.book.ledger import PackageKey
from pilotage.book.rows import PackageRow
from pilotage.model.states import FINAL_STATES

ROWS_MAX = 8192
STAGES_MAX = 4096

_FINAL = frozenset(state.value for state in FINAL_STATES)


class Recent:
    """Rows of packages in flight, and for some stages the last place that has a row."""

    def __init__(self, *, rows_max: int = ROWS_MAX) -> None:
        """Begin with nothing."""
        self._rows_max = rows_max
        self._rows: dict[PackageKey, PackageRow] = {}
        self._last: dict[tuple[int, int], tuple[int, int]] = {}

    def split(
        self, keys: Collection[PackageKey], last_of: Callable[[int, int], tuple[int, int]]
    ) -> tuple[list[PackageRow], list[PackageKey]]:
        """The rows that are here, and the keys that must be looked for; what is beyond the last row cannot be found."""
        here, wanted = [], []
        rows, last = self._rows, self._last
        for key in keys:
            row = rows.get(key)
            if row is not None:
                here.append(row)
                continue
            stage = key[:2]
            end = last.get(stage)
            if end is None:
                if len(last) >= STAGES_MAX:
                    last.clear()
                end = last[stage] = last_of(*stage)
            if key[2:] <= end:
                wanted.append(key)
        return here, wanted

    def written(self, changed: Iterable[PackageRow]) -> None:
        """Remember rows that were written; those that are final are let go."""
        rows, last = self._rows, self._last
        for row in changed:
            key = (row.job_id, row.stage, row.line, row.number)
            if row.facts.state in _FINAL:
                rows.pop(key, None)
            else:
                rows[key] = row
            end = last.get(key[:2])
            if end is not None and key[2:] > end:
                last[key[:2]] = key[2:]
        if len(rows) > self._rows_max:
            for key in list(rows)[: len(rows) - self._rows_max]:
                del rows[key]

    def clear(self) -> None:
        """Forget everything: a transaction was undone, or rows moved otherwise."""
        self._rows.clear()
        self._last.clear()
