"""Opens a book in PostgreSQL; the driver is an extra of this distribution."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from pilotage.model.errors import extra
from pilotage.model.settings.settings import JournalAddress
from pilotage.ports import Journal


def open_journal(address: JournalAddress, *, indexed: Collection[str]) -> Journal:
    """Open the book of a database for writing; raises `JournalBusy` if another process writes it."""
    with extra("postgres", purpose="to keep the book in PostgreSQL"):
        from pilotage.adapters.journals.postgres.journal import PostgresJournal

    return PostgresJournal(address.url, indexed=frozenset(indexed))


def open_reader(address: JournalAddress, *, indexed: Collection[str]) -> Journal | None:
    """Open the book of a database for reading."""
    with extra("postgres", purpose="to read the book in PostgreSQL"):
        from pilotage.adapters.journals.postgres.journal import PostgresReader

    return cast("Journal", PostgresReader(address.url, indexed=frozenset(indexed)))
