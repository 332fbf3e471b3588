"""Opens a book in SQLite."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import cast

from pilotage.model.settings.settings import JournalAddress
from pilotage.ports import Journal


def open_journal(address: JournalAddress, *, indexed: Collection[str]) -> Journal:
    """Open the book of a folder for writing; raises `JournalBusy` if another process writes it."""
    from pilotage.adapters.journals.sqlite.journal import SqliteJournal

    return SqliteJournal(Path(address.folder), indexed=frozenset(indexed))


def open_reader(address: JournalAddress, *, indexed: Collection[str]) -> Journal | None:
    """Open the book of a folder for reading; None if an older version wrote it."""
    from pilotage.adapters.journals.sqlite.locations import BOOK
    from pilotage.adapters.journals.sqlite.reader import SqliteReader
    from pilotage.adapters.journals.sqlite.schema import is_current

    folder = Path(address.folder)
    if not is_current(folder / BOOK):
        return None
    return cast("Journal", SqliteReader(folder, indexed=frozenset(indexed)))
