"""What happens to a job as a whole in PostgreSQL: sealed, brought back, dumped, loaded, purged, folded anew."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager

from pilotage.adapters.journals.dump import load_lines
from pilotage.adapters.journals.postgres_connection import Connection
from pilotage.adapters.journals.postgres_ledger import PostgresLedger
from pilotage.adapters.journals.postgres_moving import Mover
from pilotage.adapters.journals.postgres_queries import everywhere
from pilotage.adapters.journals.postgres_reading import PostgresReading
from pilotage.adapters.journals.postgres_rows import insert, record_of
from pilotage.book import rows
from pilotage.model.layout import PackageId

ROWS_AT_ONCE = 5000


class PostgresKeeping(PostgresReading, ABC):
    """The side of the journal that keeps jobs, beside the one that reads and the one that writes batches."""

    _mover: Mover

    @abstractmethod
    def transaction(self) -> AbstractContextManager[PostgresLedger]:
        """One durable transaction."""

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Connection]:
        """The same, for what is written past the ledger."""

    def put_content(self, content: bytes) -> str:
        """Keep bytes by their sha256, which is returned."""
        sha256 = hashlib.sha256(content).hexdigest()
        if not self._ask("SELECT 1 FROM contents WHERE sha256 = %s", (sha256,)):
            with self._transaction() as connection:
                connection.execute("INSERT INTO contents VALUES (%s, %s) ON CONFLICT DO NOTHING", (sha256, content))
        return sha256

    def seal(self, job: str) -> None:
        """Move a finished job out of the live tables, in slices; its row stays."""
        self._mover.seal(job)

    def unseal(self, jobs: Collection[str]) -> None:
        """Bring sealed jobs back into the live tables."""
        self._mover.unseal(jobs)

    def purge(self, job: str, *, at: float) -> None:
        """Forget a job but for its row, which says that it was purged."""
        self._mover.purge(job, at=at)

    def load(self, lines: Iterable[bytes]) -> str:
        """Take a dumped job in; its id is returned. The job must be unknown here."""
        return load_lines(self, lines)

    def count_parked(self, *, before: float) -> int:
        """How many events have waited for their job since before a time."""
        return int(self._ask("SELECT count(*) FROM parked WHERE received < %s", (before,))[0][0])

    def drop_parked(self, *, before: float) -> int:
        """Forget events that have waited for their job since before a time; how many they were."""
        with self._transaction() as connection:
            dropped = connection.execute("DELETE FROM parked WHERE received < %s", (before,)).rowcount
            connection.execute("UPDATE counters SET value = value + %s WHERE name = 'forgotten'", (dropped,))
            return dropped

    def forgotten(self) -> int:
        """How many events were heard that are kept no more: those of purged jobs, and parked ones that were dropped."""
        return int(self._ask("SELECT value FROM counters WHERE name = 'forgotten'")[0][0])

    # --- mending ---

    def replace_job(
        self,
        job: rows.JobRow,
        *,
        stages: Iterable[rows.StageRow],
        packages: Iterable[rows.PackageRow],
        tags: Iterable[rows.TagRow],
    ) -> None:
        """Put these rows in the place of all that are derived from the events of a live job, in one transaction."""
        with self._transaction() as connection:
            for table in ("stages", "package_facts", "tags"):
                connection.execute(f"DELETE FROM {table} WHERE job_id = %s".encode(), (job.job_id,))
            insert(connection, [job])
            for several in (stages, map(record_of, packages), tags):
                _insert_all(connection, several)

    def mislabelled(self, job: rows.JobRow) -> list[PackageId]:
        """The packages of a job whose columns are not what their facts say."""
        found = self._ask(
            f"{everywhere(self._schemas)}SELECT p.stage, p.line, p.number FROM package_facts AS p WHERE p.job_id = %s"
            " AND (p.state IS DISTINCT FROM p.facts ->> 'state' OR p.site IS DISTINCT FROM p.facts ->> 'site')"
            " ORDER BY p.stage, p.line, p.number",
            (job.job_id,),
        )
        return [PackageId(*place) for place in found]

    def orphans(self) -> list[int]:
        """The numbers of jobs that events are about and that have no row."""
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
