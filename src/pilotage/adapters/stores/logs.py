"""The logs of attempts, in the database of a state folder."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from pilotage.adapters.stores.work_database import WorkTables, place_of, retried_if_damaged
from pilotage.model.events.events import parse_dotted
from pilotage.model.exchange.exchange import AttemptRef, LogText

# Texts in the database: compressed if that saves space, or if they contain characters that no text there may contain.

_PACKED_MIN = 200  # shorter texts are not compressed
_PAGE = 500  # logs that are read at once


def packed(text: str) -> str | bytes:
    """Encode a text for storage."""
    if len(text) < _PACKED_MIN and text.isascii():
        return text
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 1)


def unpacked(stored: str | bytes) -> str:
    """Decode a stored text."""
    return stored if isinstance(stored, str) else zlib.decompress(stored).decode("utf-8", "surrogatepass")


class SqliteLogs(WorkTables):
    """The logs of a state folder; safe for threads."""

    @retried_if_damaged
    def put(self, logs: Sequence[LogText]) -> None:
        """Store logs; they replace those of the same attempt and stream."""
        if not logs:
            return
        with self._database.writing() as book:
            book.executemany(
                "INSERT OR REPLACE INTO logs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (self._database.numbered(one.ref.job), *place_of(one.ref.package), one.ref.attempt, one.stream,
                     packed(one.head), packed(one.tail), one.dropped_bytes, one.final)
                    for one in logs if parse_dotted(one.ref.package) is not None  # without a package it could not be found
                ],
            )  # fmt: skip

    @retried_if_damaged
    def read(self, job: str, package: str) -> list[LogText]:
        """The logs of every attempt of a package, in order."""
        with self._database.reading() as book:
            number = self._database.number(job)
            if number is None:
                return []
            rows = book.execute(
                "SELECT attempt, stream, head, tail, dropped_bytes, final FROM logs"
                " WHERE job = ? AND stage = ? AND line = ? AND number = ? ORDER BY attempt, stream DESC",
                (number, *place_of(package)),
            ).fetchall()
        return [_log(job, (*place_of(package), *row)) for row in rows]

    def read_job(self, job: str) -> Iterator[LogText]:
        """The logs of all attempts of a job, by package, in order; a few at a time."""
        after: tuple[object, ...] = (0, 0, 0, 0, "")
        while rows := self._page(job, after):
            yield from (_log(job, row) for row in rows)
            after = rows[-1][:5]

    @retried_if_damaged
    def _page(self, job: str, after: tuple[object, ...]) -> list[tuple[Any, ...]]:
        with self._database.reading() as book:
            number = self._database.number(job)
            return book.execute(
                "SELECT stage, line, number, attempt, stream, head, tail, dropped_bytes, final FROM logs"
                " WHERE job = ? AND (stage, line, number, attempt, stream) > (?, ?, ?, ?, ?)"
                " ORDER BY stage, line, number, attempt, stream LIMIT ?",
                (-1 if number is None else number, *after, _PAGE),
            ).fetchall()

    @retried_if_damaged
    def forget(self, job: str) -> None:
        """Remove the logs of a job."""
        with self._database.writing() as book:
            number = self._database.number(job)
            if number is not None:
                book.execute("DELETE FROM logs WHERE job = ?", (number,))


def _log(job: str, row: tuple[Any, ...]) -> LogText:
    stage, line, number, attempt, stream, head, tail, dropped_bytes, final = row
    return LogText(
        ref=AttemptRef(job, f"{stage}.{line}.{number}", attempt),
        stream=stream,
        head=unpacked(head),
        tail=unpacked(tail),
        dropped_bytes=dropped_bytes,
        final=bool(final),
    )
