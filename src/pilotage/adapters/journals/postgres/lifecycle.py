"""Operations on whole jobs in PostgreSQL: seal, unseal, dump, load, purge, rebuild."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Literal

from pilotage.adapters.journals.dump import load_lines
from pilotage.adapters.journals.postgres.connection import Connection
from pilotage.adapters.journals.postgres.ledger import PostgresLedger, insert, record_of
from pilotage.adapters.journals.postgres.reader import PostgresReading, everywhere, used_contents
from pilotage.adapters.journals.postgres.schema import SEALED_TABLES, Schemas, columns_of
from pilotage.book.rows import rows
from pilotage.model.jobs.layout import PackageId
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import JournalError

# Moves the rows of a job between the live and the sealed tables, or deletes them, one slice per transaction.
#
# The destination is recorded before the first row moves and removed with the last: an interrupted move is resumed when
# the book is opened. Meanwhile nothing is missing, since a named job is read in both places.

JobPlace = Literal["live", "sealed", "purged"]
Transactions = Callable[[], AbstractContextManager[Connection]]

SLICE_ROWS = 5000
"""Rows of each table per transaction: few enough that other writes do not wait long."""


class Mover:
    """Moves jobs of one book."""

    def __init__(self, transactions: Transactions, schemas: Schemas, *, slice_rows: int = SLICE_ROWS) -> None:
        self._transactions = transactions
        self._schemas = schemas
        self._slice_rows = slice_rows

    def seal(self, job: str) -> None:
        """Move an ended job out of the live tables; it counts as sealed at once."""
        with self._transactions() as connection:
            job_id, place, state = _row(connection, job)
            if place != "live":
                return
            if state not in FINAL_NAMES:
                raise JournalError(
                    "only a job that has ended can be sealed",
                    subject=f"job {job}",
                    expected=" or ".join(sorted(FINAL_NAMES)),
                    got=state,
                    next_step="wait for its end, or cancel it",
                )
            connection.execute("UPDATE jobs SET place = 'sealed' WHERE job_id = %s", (job_id,))
            self._note(connection, job_id, "sealed")
        self._go_on(job_id, "sealed")

    def unseal(self, jobs: Collection[str]) -> None:
        """Move jobs back; they count as live when all of their rows are."""
        for job in jobs:
            with self._transactions() as connection:
                job_id, place, _ = _row(connection, job)
                if place != "sealed":
                    continue
                self._note(connection, job_id, "live")
            self._go_on(job_id, "live")

    def purge(self, job: str, *, at: float) -> None:
        """Delete all rows of a job except its own, which records when, and contents that no other job refers to."""
        with self._transactions() as connection:
            job_id, place, _ = _row(connection, job)
            if place == "purged":
                return
            self._forget_contents(connection, job_id)
            connection.execute(
                "UPDATE jobs SET place = 'purged', purged_at = %s, definition = NULL, lists = '{}', growth = '[]',"
                " tags = '{}', healing = '', activities = '', keys = '' WHERE job_id = %s",
                (at, job_id),
            )
            self._note(connection, job_id, "purged")
        self._go_on(job_id, "purged")

    def take_up(self) -> None:
        """Resume interrupted moves."""
        with self._transactions() as connection:
            broken_off = connection.execute("SELECT job_id, place FROM moves ORDER BY job_id").fetchall()
        for job_id, place in broken_off:
            self._go_on(job_id, place)

    def _note(self, connection: Connection, job_id: int, place: JobPlace) -> None:
        connection.execute(
            "INSERT INTO moves (job_id, place) VALUES (%s, %s) ON CONFLICT (job_id) DO UPDATE SET place = excluded.place",
            (job_id, place),
        )

    def _go_on(self, job_id: int, place: JobPlace) -> None:
        while self._step(job_id, place):
            pass

    def _step(self, job_id: int, place: JobPlace) -> bool:
        """Move one slice; returns whether there are more."""
        with self._transactions() as connection:
            found = connection.execute("SELECT place FROM moves WHERE job_id = %s", (job_id,)).fetchone()
            if found is None or found[0] != place:
                return False  # another destination was requested meanwhile, and has taken over
            if self._slice(connection, job_id, place):
                return True
            if place == "live":
                connection.execute("UPDATE jobs SET place = 'live' WHERE job_id = %s", (job_id,))
            connection.execute("DELETE FROM moves WHERE job_id = %s", (job_id,))
            return False

    def _slice(self, connection: Connection, job_id: int, place: JobPlace) -> int:
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
        # Jobs are found by their tags, sealed or not; tags of packages move with them.
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


def _row(connection: Connection, job: str) -> tuple[int, str, str]:
    found = connection.execute("SELECT job_id, place, state FROM jobs WHERE job = %s", (job,)).fetchone()
    if found is None:
        raise JournalError("no such job", subject=f"job {job}")
    return found[0], found[1], found[2]


ROWS_AT_ONCE = 5000


class PostgresLifecycle(PostgresReading, ABC):
    """The journal's operations on whole jobs, besides reading and writing batches."""

    _mover: Mover

    @abstractmethod
    def transaction(self) -> AbstractContextManager[PostgresLedger]:
        """One durable transaction."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]:
        """The same, for writes without a ledger."""

    def put_content(self, content: bytes) -> str:
        """Store bytes and return their sha256."""
        return self.put_contents((content,))[0]

    def put_contents(self, contents: Collection[bytes]) -> list[str]:
        """Store bytes in one transaction and return their sha256, in order."""
        named = [(hashlib.sha256(each).hexdigest(), each) for each in contents]
        names = [sha256 for sha256, _ in named]
        known = {found[0] for found in self._ask("SELECT sha256 FROM contents WHERE sha256 = ANY(%s)", (names,))}
        new = [each for each in named if each[0] not in known]
        if new:
            with self._transaction() as connection:
                for each in new:
                    connection.execute("INSERT INTO contents VALUES (%s, %s) ON CONFLICT DO NOTHING", each)
        return names

    def seal(self, job: str) -> None:
        """Move an ended job out of the live tables, in slices; its row stays."""
        self._mover.seal(job)

    def unseal(self, jobs: Collection[str]) -> None:
        """Move sealed jobs back into the live tables."""
        self._mover.unseal(jobs)

    def purge(self, job: str, *, at: float) -> None:
        """Delete a job except its row, which records that it was purged."""
        self._mover.purge(job, at=at)

    def load(self, lines: Iterable[bytes]) -> str:
        """Load a dumped job and return its id. The job must be unknown here."""
        return load_lines(self, lines)

    def count_parked(self, *, before: float) -> int:
        """Number of events parked since before a time."""
        return int(self._ask("SELECT count(*) FROM parked WHERE received < %s", (before,))[0][0])

    def drop_parked(self, *, before: float) -> int:
        """Delete events parked since before a time; returns their number."""
        with self._transaction() as connection:
            dropped = connection.execute("DELETE FROM parked WHERE received < %s", (before,)).rowcount
            connection.execute("UPDATE counters SET value = value + %s WHERE name = 'forgotten'", (dropped,))
            return dropped

    def forgotten(self) -> int:
        """Number of events that were received and deleted: those of purged jobs, and dropped parked ones."""
        return int(self._ask("SELECT value FROM counters WHERE name = 'forgotten'")[0][0])

    # --- repair ---

    def replace_job(
        self,
        job: rows.JobRow,
        *,
        stages: Iterable[rows.StageRow],
        packages: Iterable[rows.PackageRow],
        tags: Iterable[rows.TagRow],
    ) -> None:
        """Replace all rows derived from the events of a live job, in one transaction."""
        with self._transaction() as connection:
            for table in ("stages", "package_facts", "tags"):
                connection.execute(f"DELETE FROM {table} WHERE job_id = %s".encode(), (job.job_id,))
            insert(connection, [job])
            for several in (stages, map(record_of, packages), tags):
                _insert_all(connection, several)

    def mislabelled(self, job: rows.JobRow) -> list[PackageId]:
        """The packages of a job whose columns differ from their facts."""
        found = self._ask(
            f"{everywhere(self._schemas)}SELECT p.stage, p.line, p.number FROM package_facts AS p WHERE p.job_id = %s"
            " AND (p.state IS DISTINCT FROM p.facts ->> 'state' OR p.site IS DISTINCT FROM p.facts ->> 'site')"
            " ORDER BY p.stage, p.line, p.number",
            (job.job_id,),
        )
        return [PackageId(*place) for place in found]

    def orphans(self) -> list[int]:
        """Ids of jobs that have events but no row."""
        found = self._ask(
            f"{everywhere(self._schemas)}SELECT DISTINCT e.job_id FROM events AS e WHERE e.job_id IS NOT NULL"
            " AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.job_id = e.job_id) ORDER BY e.job_id"
        )
        return [job_id for (job_id,) in found]


def _insert_all(connection: Connection, several: Iterable[rows.Row]) -> None:
    some: list[rows.Row] = []
    for row in several:
        some.append(row)
        if len(some) == ROWS_AT_ONCE:
            insert(connection, some)
            some.clear()
    insert(connection, some)
