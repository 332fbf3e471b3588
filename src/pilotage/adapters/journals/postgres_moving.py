"""Moving the rows of a job between the live tables and those of sealed jobs, or away, a slice to a transaction.

Where a job is going is noted before its first row leaves and struck out with the last: a move that was broken off is
taken up again when the book is opened. Meanwhile nothing is missing, since a named job is read in both places.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Literal

import msgspec

from pilotage.adapters.journals.postgres_connection import Connection
from pilotage.adapters.journals.postgres_opening import Schemas
from pilotage.adapters.journals.postgres_schema import SEALED_TABLES, columns_of
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import JournalError

Place = Literal["live", "sealed", "purged"]
Transactions = Callable[[], AbstractContextManager[Connection]]

SLICE_ROWS = 5000
"""Rows of each table that one transaction moves: so many that it is quick, so few that nobody waits for it."""


class Mover:
    """Moves jobs of one book."""

    def __init__(self, transactions: Transactions, schemas: Schemas, *, slice_rows: int = SLICE_ROWS) -> None:
        """Move within transactions of the one writer."""
        self._transactions = transactions
        self._schemas = schemas
        self._slice_rows = slice_rows

    def seal(self, job: str) -> None:
        """Move a finished job out of the live tables; from the first moment on it counts as sealed."""
        with self._transactions() as connection:
            job_id, place, state = _row(connection, job)
            if place != "live":
                return
            if state not in FINAL_NAMES:
                raise JournalError(
                    "only a job that is over can be sealed",
                    subject=f"job {job}",
                    expected=" or ".join(sorted(FINAL_NAMES)),
                    got=state,
                    next_step="wait for its end, or cancel it",
                )
            connection.execute("UPDATE jobs SET place = 'sealed' WHERE job_id = %s", (job_id,))
            self._note(connection, job_id, "sealed")
        self._go_on(job_id, "sealed")

    def unseal(self, jobs: Collection[str]) -> None:
        """Bring jobs back; they count as live when all of their rows are."""
        for job in jobs:
            with self._transactions() as connection:
                job_id, place, _ = _row(connection, job)
                if place != "sealed":
                    continue
                self._note(connection, job_id, "live")
            self._go_on(job_id, "live")

    def purge(self, job: str, *, at: float) -> None:
        """Remove every row of a job but its own, which says when, and the contents that no other job speaks of."""
        with self._transactions() as connection:
            job_id, place, _ = _row(connection, job)
            if place == "purged":
                return
            self._forget_contents(connection, job_id)
            connection.execute(
                "UPDATE jobs SET place = 'purged', purged_at = %s, definition = NULL, lists = '{}', growth = '[]',"
                " tags = '{}', keys = '' WHERE job_id = %s",
                (at, job_id),
            )
            self._note(connection, job_id, "purged")
        self._go_on(job_id, "purged")

    def take_up(self) -> None:
        """Finish what was broken off."""
        with self._transactions() as connection:
            broken_off = connection.execute("SELECT job_id, place FROM moves ORDER BY job_id").fetchall()
        for job_id, place in broken_off:
            self._go_on(job_id, place)

    def _note(self, connection: Connection, job_id: int, place: Place) -> None:
        connection.execute(
            "INSERT INTO moves (job_id, place) VALUES (%s, %s) ON CONFLICT (job_id) DO UPDATE SET place = excluded.place",
            (job_id, place),
        )

    def _go_on(self, job_id: int, place: Place) -> None:
        while self._step(job_id, place):
            pass

    def _step(self, job_id: int, place: Place) -> bool:
        """Move one slice; whether there is more to do."""
        with self._transactions() as connection:
            found = connection.execute("SELECT place FROM moves WHERE job_id = %s", (job_id,)).fetchone()
            if found is None or found[0] != place:
                return False  # somebody wanted it elsewhere in the meantime, and has taken over
            if self._slice(connection, job_id, place):
                return True
            if place == "live":
                connection.execute("UPDATE jobs SET place = 'live' WHERE job_id = %s", (job_id,))
            connection.execute("DELETE FROM moves WHERE job_id = %s", (job_id,))
            return False

    def _slice(self, connection: Connection, job_id: int, place: Place) -> int:
        live, sealed = self._schemas.live, self._schemas.sealed
        match place:
            case "sealed":
                return sum(self._move(connection, job_id, table, live, sealed) for table in SEALED_TABLES)
            case "live":
                return sum(self._move(connection, job_id, table, sealed, live) for table in SEALED_TABLES)
            case "purged":
                removed = {
                    (table, schema): self._remove(connection, job_id, table, schema)
                    for table in SEALED_TABLES
                    for schema in (live, sealed)
                }
                events = removed["events", live] + removed["events", sealed]
                connection.execute("UPDATE counters SET value = value + %s WHERE name = 'forgotten'", (events,))
                return sum(removed.values())

    def _forget_contents(self, connection: Connection, job_id: int) -> None:
        wanted = used_contents(connection, self._schemas, job_id)
        everywhere = " UNION ALL ".join(
            f"SELECT job_id, data FROM {schema}.events WHERE stage = 0 AND job_id IS NOT NULL"
            " AND type IN ('JobRegistered', 'StageExpanded')"
            for schema in (self._schemas.live, self._schemas.sealed)
        )
        statement = (
            "DELETE FROM contents WHERE sha256 = ANY(%s) AND NOT EXISTS"
            f" (SELECT 1 FROM ({everywhere}) AS e WHERE e.job_id <> %s AND strpos(e.data::text, contents.sha256) > 0)"
        )
        connection.execute(statement.encode(), (wanted, job_id))

    def _move(self, connection: Connection, job_id: int, table: str, source: str, target: str) -> int:
        columns = ", ".join(columns_of(table))
        # A job is asked for by its tags, sealed or not; those of its packages leave with them.
        gone = self._gone(table, source, also=" AND stage > 0" if table == "tags" else "", returning=columns)
        statement = f"WITH gone AS ({gone}) INSERT INTO {target}.{table} ({columns}) SELECT {columns} FROM gone"
        return connection.execute(statement.encode(), (job_id, self._slice_rows)).rowcount

    def _remove(self, connection: Connection, job_id: int, table: str, schema: str) -> int:
        return connection.execute(self._gone(table, schema).encode(), (job_id, self._slice_rows)).rowcount

    def _gone(self, table: str, schema: str, *, also: str = "", returning: str = "") -> str:
        some = f"SELECT ctid FROM {schema}.{table} WHERE job_id = %s{also} LIMIT %s"
        return f"DELETE FROM {schema}.{table} WHERE ctid = ANY(ARRAY({some}))" + (
            f" RETURNING {returning}" if returning else ""
        )


def used_contents(connection: Connection, schemas: Schemas, job_id: int) -> list[str]:
    """The hashes of the contents that a job speaks of: its definition, and the lists of its stages."""
    found: set[str] = set()
    for schema in (schemas.live, schemas.sealed):
        statement = (
            f"SELECT data FROM {schema}.events WHERE job_id = %s AND job_id IS NOT NULL AND stage = 0"
            " AND type IN ('JobRegistered', 'StageExpanded')"
        )
        for (text,) in connection.execute(statement.encode(), (job_id,)):
            data = msgspec.json.decode(text)
            found.update(each for each in (data.get("definition"), *data.get("lists", {}).values()) if each)
    return sorted(found)


def _row(connection: Connection, job: str) -> tuple[int, str, str]:
    found = connection.execute("SELECT job_id, place, state FROM jobs WHERE job = %s", (job,)).fetchone()
    if found is None:
        raise JournalError("no such job is known here", subject=f"job {job}")
    return found[0], found[1], found[2]
