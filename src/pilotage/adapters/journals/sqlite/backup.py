"""A copy of a SQLite book that is whole, made beside whoever writes it.

A plain copy of the file is not: what was committed last lies in another file beside it, and both change while they are read.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec

from pilotage.adapters.journals.sqlite.connections import make_private, told
from pilotage.adapters.journals.sqlite.locations import BOOK, FOLDER, sealed_path
from pilotage.ports import JournalError

TRIES = 5
"""So often a copy is made anew because a sealed job came back, or was purged, while it was made."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy of a book holds."""

    jobs: int
    sealed: int  # of them in files of their own
    position: int  # of its last event


def copy_book(folder: Path, into: Path) -> Copied:
    """Copy the book of a folder into another that is empty: the live book at one moment, and the file of every job that it has sealed."""
    missing = ""
    for _ in range(TRIES):
        copy_database(folder / BOOK, into / BOOK)
        with closing(sqlite3.connect(into / BOOK)) as book:
            sealed = [job for (job,) in book.execute("SELECT job FROM jobs WHERE place = 'sealed'")]
            jobs = book.execute("SELECT count(*) FROM jobs WHERE place <> 'purged'").fetchone()[0]
            position = book.execute("SELECT value FROM counters WHERE name = 'position'").fetchone()[0]
        missing = _copy_sealed(sealed, folder=folder, into=into)
        if not missing:
            return Copied(jobs=jobs, sealed=len(sealed), position=position)
        (into / BOOK).unlink()
    raise JournalError(
        "a sealed job has no file of its own",
        subject=f"job {missing}",
        next_step=f"bring it back into {folder / FOLDER}, or purge the job",
    )


def _copy_sealed(jobs: list[str], *, folder: Path, into: Path) -> str:
    """Copy the files of sealed jobs, which never change; the first job that has none, or nothing."""
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
    """Copy a database as it is at one moment, while others may write it; raises `JournalError` where it is damaged."""
    make_private(target)
    try:
        # All pages in one go: a copy in pieces begins anew whenever somebody writes in between.
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as book,
            closing(sqlite3.connect(target)) as copy,
        ):
            book.backup(copy)
            (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as fault:
        raise told(fault, source) from fault
    if found != "ok":
        raise JournalError(
            f"it is damaged: {found}",
            subject=str(source),
            next_step="`pilotage book check` says more; keep the last good copy",
        )
    sync(target)


def sync(path: Path) -> None:
    """See that a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
