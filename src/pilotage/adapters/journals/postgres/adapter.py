"""How a book in PostgreSQL is opened; its driver is an extra of this distribution."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from pilotage.model.errors import extra
from pilotage.model.settings.settings import JournalAddress
from pilotage.ports import Journal


def open_journal(address: JournalAddress, *, indexed: Collection[str]) -> Journal:
    """The book of a database, for writing; raises `JournalBusy` where another process writes it."""
    with extra("postgres", purpose="to keep the book in PostgreSQL"):
        from pilotage.adapters.journals.postgres.journal import PostgresJournal

    return PostgresJournal(address.url, indexed=frozenset(indexed))


def open_reader(address: JournalAddress, *, indexed: Collection[str]) -> Journal | None:
    """The book of a database, to be read."""
    with extra("postgres", purpose="to read the book in PostgreSQL"):
        from pilotage.adapters.journals.postgres.journal import PostgresReader

    return cast("Journal", PostgresReader(address.url, indexed=frozenset(indexed)))
