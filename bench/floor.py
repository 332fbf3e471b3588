"""The floor under the book: bare SQLite."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from pilotage.adapters.journals.sqlite import schema
from pilotage.book.rows.rows import EventRow


def bare(folder: Path, rows: list[list[tuple[Any, ...]]]) -> tuple[float, float]:
    """The floor: the same rows into the same table by `executemany`, durable, a thousand at a time. Wall and CPU seconds."""
    connection = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    connection.execute("PRAGMA page_size = 8192")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(next(each for each in schema.statements() if "TABLE events (" in each))
    places = ", ".join("?" * len(EventRow.__struct_fields__))
    wall, cpu = time.perf_counter(), time.process_time()
    for some in rows:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(f"INSERT INTO events VALUES ({places})", some)
        connection.execute("COMMIT")
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    connection.close()
    return seconds
