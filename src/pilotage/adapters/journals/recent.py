"""What the one writer remembers between transactions: rows it will soon need again, and where there are surely none.

Of packages only those that are not final are kept, and of all rows a bounded number, and none that is large: memory does
not grow with the book.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from pilotage.book.ledger import PackageKey
from pilotage.book.rows import JobRow, PackageRow, Row, StageRow, StatisticRow, StreamRow
from pilotage.book.short_rows import Begun
from pilotage.model.states import FINAL_NAMES

ROWS_MAX = 8192
TEXT_MAX = 4096  # a row with more text than this is read again when it is needed
STAGES_MAX = 4096
KEPT_MAX = 1024  # rows of each of the tables in `KEPT`

AnyRow = TypeVar("AnyRow", bound=Row)

KEPT: dict[type[Row], tuple[str, ...]] = {
    JobRow: ("job",),
    StageRow: ("job_id", "stage"),
    StreamRow: ("source", "stream"),
    StatisticRow: ("width_seconds", "slice", "site", "activity"),
}
"""The rows that batch after batch asks for and changes, and the columns that they are asked for by."""
_key_of: dict[type[Row], Callable[[Row], Any]] = {kind: attrgetter(*by) for kind, by in KEPT.items()}
_long_of: dict[type[Row], Callable[[Row], tuple[str | bytes, ...]]] = {
    JobRow: attrgetter("lists", "growth", "access", "tags", "keys"),
    StageRow: attrgetter("shape", "keys"),
    StreamRow: attrgetter("stream", "ahead"),
    StatisticRow: attrgetter("activity", "sketch"),
}


class Recent:
    """Rows of packages in flight, those that every batch changes, and for some stages the last place that has a row."""

    def __init__(self, *, rows_max: int = ROWS_MAX) -> None:
        """Begin with nothing."""
        self._rows_max = rows_max
        self._rows: dict[PackageKey, PackageRow] = {}
        self.begun: dict[PackageKey, Begun] = {}  # short lives that have not ended
        self._last: dict[tuple[int, int], tuple[int, int]] = {}
        self._kept: dict[type[Row], dict[Any, Row]] = {kind: {} for kind in KEPT}
        self.position: int | None = None  # of the last event, if it is known
        self.oldest: dict[int, int] = {}  # the first slice of each width before which there are none

    def kept(self, kind: type[AnyRow], keys: Collection[tuple[Any, ...]]) -> tuple[list[AnyRow], list[tuple[Any, ...]]]:
        """Those rows of a table in `KEPT` that are here, for one who may change them, and the keys of the others."""
        here, wanted = self._kept[kind], []
        found: list[Any] = []
        for key in keys:
            row = here.get(key if len(key) > 1 else key[0])
            if row is None:
                wanted.append(key)
            else:
                found.append(msgspec.structs.replace(row))
        return found, wanted

    def before(self, row: Row) -> Row | None:
        """A row of a table in `KEPT` as it is stored, if it is here."""
        kind = type(row)
        return self._kept[kind].get(_key_of[kind](row))

    def keep(self, changed: Iterable[Row]) -> None:
        """Remember rows that were written, of a table in `KEPT`, unless they are large; nobody changes them any more."""
        for row in changed:
            kind = type(row)
            here, key = self._kept[kind], _key_of[kind](row)
            if sum(map(len, _long_of[kind](row))) > TEXT_MAX:
                here.pop(key, None)
                continue
            if len(here) >= KEPT_MAX:
                here.clear()
            here[key] = row

    def forget(self, kind: type[Row]) -> None:
        """Forget the rows of a table: some may be gone."""
        if kind in self._kept:
            self._kept[kind].clear()

    def split(
        self, keys: Collection[PackageKey], last_of: Callable[[int, int], tuple[int, int]]
    ) -> tuple[list[PackageRow], list[PackageKey]]:
        """The rows that are here, and the keys that must be looked for; what is beyond the last row cannot be found."""
        here, wanted = [], []
        rows, last = self._rows, self._last
        where, last_line, last_number = (0, 0), 0, 0
        for key in keys:
            if rows and (row := rows.get(key)) is not None:
                here.append(row)
                continue
            job_id, stage, line, number = key
            if stage != where[1] or job_id != where[0]:
                where = (job_id, stage)
                end = last.get(where)
                if end is None:
                    if len(last) >= STAGES_MAX:
                        last.clear()
                    end = last[where] = last_of(job_id, stage)
                last_line, last_number = end
            if line < last_line or (line == last_line and number <= last_number):
                wanted.append(key)
        return here, wanted

    def written(self, changed: Iterable[PackageRow], lengths: Iterable[int]) -> None:
        """Remember rows that were written, with the length of their facts; those that are final or large are let go."""
        rows, begun, last = self._rows, self.begun, self._last
        for row, length in zip(changed, lengths, strict=True):
            key = (row.job_id, row.stage, row.line, row.number)
            if length > TEXT_MAX or row.facts.state in FINAL_NAMES:
                rows.pop(key, None)
            else:
                rows[key] = row
            begun.pop(key, None)
            if (end := last.get(key[:2])) is not None and key[2:] > end:
                last[key[:2]] = key[2:]
        self._let_go(rows)

    def written_short(
        self, begun: Mapping[PackageKey, Begun], lived: Iterable[PackageKey], ended: Iterable[PackageKey]
    ) -> None:
        """The same of short lives: those with a row that is new, begun or lived at once, and those that ended."""
        last, where, end = self._last, (0, 0), None
        for job_id, stage, line, number in chain(begun, lived):  # of which many in a row are of one stage
            if stage != where[1] or job_id != where[0]:
                where = (job_id, stage)
                end = last.get(where)
            if end is not None and (line > end[0] or (line == end[0] and number > end[1])):
                end = last[where] = (line, number)
        let_go = self.begun.pop
        for key in ended:
            let_go(key, None)
        self.begun |= begun
        self._let_go(self.begun)

    def _let_go(self, rows: dict[PackageKey, PackageRow] | dict[PackageKey, Begun]) -> None:
        if len(rows) > self._rows_max:
            for key in list(rows)[: len(rows) - self._rows_max]:
                del rows[key]

    def clear(self) -> None:
        """Forget everything: a transaction was undone, or rows moved otherwise."""
        self._rows.clear()
        self.begun.clear()
        self._last.clear()
        self.oldest.clear()
        for here in self._kept.values():
            here.clear()
        self.position = None
