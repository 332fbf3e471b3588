"""Where the rows of a job are read: in the live book, or in a file of its own once it is sealed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pilotage.adapters.journals import sealed_copy
from pilotage.adapters.journals.sealed_files import FOLDER, sealed_path
from pilotage.adapters.journals.sqlite_connections import ReaderPool, told
from pilotage.book.rows import JobRow, Row
from pilotage.book.tables import TABLE_BY_ROW
from pilotage.ports import JournalUnavailable

BOOK = "book.sqlite"

_LOOKS_MAX = 20
AnyRow = TypeVar("AnyRow", bound=Row)
Answer = TypeVar("Answer")


class SqlitePlaces:
    """The live book and the files beside it, for reading."""

    def __init__(self, folder: Path) -> None:
        """Read the book of a folder."""
        self.folder = folder
        self._readers = ReaderPool(folder / BOOK)

    def close(self) -> None:
        """Close every connection."""
        self._readers.close()

    def live(self) -> AbstractContextManager[sqlite3.Connection]:
        """The live book, at one moment."""
        return self._readers.snapshot()

    @contextmanager
    def book_of(self, job_id: int) -> Iterator[sqlite3.Connection | None]:
        """The book that has the rows of a job; None where there is none any more."""
        with ExitStack() as stack:
            yield self._look(lambda: self._enter(stack, job_id), what=f"job {job_id}")

    def _enter(self, stack: ExitStack, job_id: int) -> sqlite3.Connection | None:
        with ExitStack() as live:
            book = live.enter_context(self.live())
            found = book.execute("SELECT job, place FROM jobs WHERE job_id = ?", (job_id,)).fetchone()
            if found is None or found[1] == "purged":
                return None
            if found[1] == "live":
                stack.enter_context(live.pop_all())
                return book
        return stack.enter_context(self._sealed(found[0]))

    def content(self, sha256: str) -> bytes | None:
        """Bytes that were kept, in the live book or with a sealed job."""
        return self._look(lambda: self._content(sha256), what=sha256)

    def _content(self, sha256: str) -> bytes | None:
        wanted = "SELECT content FROM contents WHERE sha256 = ?"
        with self.live() as book:
            found = book.execute(wanted, (sha256,)).fetchone()
            keeper = book.execute("SELECT job FROM sealed_contents WHERE sha256 = ?", (sha256,)).fetchone()
        if found is None and keeper is not None:
            with self._sealed(keeper[0]) as sealed:
                found = sealed.execute(wanted, (sha256,)).fetchone()
        return None if found is None else bytes(found[0])

    @contextmanager
    def _sealed(self, job: str) -> Iterator[sqlite3.Connection]:
        path = sealed_path(self.folder, job)
        try:
            with sealed_copy.opened(path) as book:
                yield book
        except sqlite3.Error as fault:
            raise told(fault, path) from fault

    def _look(self, look: Callable[[], Answer], *, what: str) -> Answer:
        """Look again where a job came back into the live book between the look at its row and that at its file."""
        for _ in range(_LOOKS_MAX):
            try:
                return look()
            except FileNotFoundError:
                continue
        raise JournalUnavailable(
            "a sealed job has no file of its own", subject=what, next_step=f"bring it back into {self.folder / FOLDER}"
        )


def select(book: sqlite3.Connection, row: type[AnyRow], rest: str = "", values: Sequence[Any] = ()) -> Iterator[AnyRow]:
    """Rows of a table."""
    table = TABLE_BY_ROW[row]
    for found in book.execute(f"SELECT {', '.join(table.columns)} FROM {table.name} {rest}", values):
        yield row(**dict(zip(table.columns, found, strict=True)))


def jobs_named(book: sqlite3.Connection, names: Sequence[str]) -> list[JobRow]:
    """The jobs of some ids that there are, in the order in which they were registered."""
    found = [row for name in names for row in select(book, JobRow, "WHERE job = ?", (name,))]
    return sorted(found, key=lambda row: row.job_id)
