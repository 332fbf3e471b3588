"""A book that a service made for nothing: it can go without a loss, and nobody begins to write it meanwhile."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from pilotage.adapters.journals.sqlite import only_writer
from pilotage.adapters.journals.sqlite_connections import connect_reader
from pilotage.adapters.journals.sqlite_places import BOOK
from pilotage.ports import JournalError

_ANYTHING = """
SELECT EXISTS (SELECT 1 FROM counters WHERE name = 'job_id' AND value > 0)
    OR EXISTS (SELECT 1 FROM streams WHERE source <> 'service')
    OR EXISTS (SELECT 1 FROM subscriptions)
"""


def remove_unused(folder: Path) -> bool:
    """Remove a folder whose book has heard of no job and of nobody but its own service; whether that was so, and it is gone.

    Where somebody writes the book it stays. Whoever opens it at this moment finds the lock taken, or a folder that is new.
    """
    if not (folder / BOOK).is_file():
        return False
    try:
        lock = only_writer(folder)
    except JournalError:
        return False
    try:
        if not _is_unused(folder):
            return False
        aside = folder.with_name(f"{folder.name}-{os.getpid()}")
        with suppress(OSError):  # it takes some room, and nothing else
            folder.rename(aside)  # whoever looks meanwhile finds a whole folder, or none
            shutil.rmtree(aside)
        return not folder.exists()
    finally:
        os.close(lock)


def _is_unused(folder: Path) -> bool:
    try:
        with closing(connect_reader(folder / BOOK)) as book:
            return not book.execute(_ANYTHING).fetchone()[0]
    except sqlite3.Error:
        return False
