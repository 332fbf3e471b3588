"""Makes a consistent copy of a SQLite book while it is being written.

Copying the file does not: the last commits are in another file beside it, and both change meanwhile.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from pilotage.adapters.journals.sqlite.connections import journal_error, make_private
from pilotage.adapters.journals.sqlite.locations import BOOK, FOLDER, sealed_path
from pilotage.ports import JournalError

TRIES = 5
"""How often the copy starts over because a sealed job was unsealed or purged meanwhile."""


class BookCopy(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a copied book."""

    jobs: int
    sealed: int  # jobs in files of their own
    position: int  # of its last event


def copy_book(folder: Path, into: Path) -> BookCopy:
    """Copy a folder's book to an empty folder: a snapshot of the live book, and the files of its sealed jobs."""
    missing = ""
    for _ in range(TRIES):
        copy_database(folder / BOOK, into / BOOK)
        with closing(sqlite3.connect(into / BOOK)) as book:
            sealed = [job for (job,) in book.execute("SELECT job FROM jobs WHERE place = 'sealed'")]
            jobs = book.execute("SELECT count(*) FROM jobs WHERE place <> 'purged'").fetchone()[0]
            position = book.execute("SELECT value FROM counters WHERE name = 'position'").fetchone()[0]
        missing = _copy_sealed(sealed, folder=folder, into=into)
        if not missing:
            return BookCopy(jobs=jobs, sealed=len(sealed), position=position)
        (into / BOOK).unlink()
    raise JournalError(
        "the file of a sealed job is missing",
        subject=f"job {missing}",
        next_step=f"restore it to {folder / FOLDER}, or purge the job",
    )


def _copy_sealed(jobs: list[str], *, folder: Path, into: Path) -> str:
    """Copy the files of sealed jobs, which never change; returns the first job without one, or empty."""
    (into / FOLDER).mkdir(mode=0o700, exist_ok=True)
    for job in jobs:
        target = sealed_path(into, job)
        make_private(target)
        try:
            shutil.copyfile(sealed_path(folder, job), target)
        except FileNotFoundError:
            target.unlink()
            return job
        sync(target)
    sync(into / FOLDER)
    return ""


def copy_database(source: Path, target: Path) -> None:
    """Copy a snapshot of a database that others may be writing; raises `JournalError` if it is damaged."""
    make_private(target)
    try:
        # All pages at once: a copy in steps starts over at every write in between.
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as book,
            closing(sqlite3.connect(target)) as copy,
        ):
            book.backup(copy)
            (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as fault:
        raise journal_error(fault, source) from fault
    if found != "ok":
        raise JournalError(
            f"the book is damaged: {found}",
            subject=str(source),
            next_step="`pilotage book check` says more; keep the last good copy",
        )
    sync(target)


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
