"""Whether a book in a folder was ever used: one that a service made for nothing can go without a loss."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from pilotage.adapters.journals.sqlite_connections import connect_reader
from pilotage.adapters.journals.sqlite_places import BOOK

_ANYTHING = """
SELECT EXISTS (SELECT 1 FROM counters WHERE name = 'job_id' AND value > 0)
    OR EXISTS (SELECT 1 FROM streams WHERE source <> 'service')
    OR EXISTS (SELECT 1 FROM subscriptions)
"""


def is_unused(folder: Path) -> bool:
    """Whether there is a book that has heard of no job, and of nobody but its own service, and that nobody subscribed to."""
    if not (folder / BOOK).is_file():
        return False
    try:
        with closing(connect_reader(folder / BOOK)) as book:
            return not book.execute(_ANYTHING).fetchone()[0]
    except sqlite3.Error:
        return False
