"""The copies that a service put into stores for attempts that are not granted yet, in the database of a state folder."""

from __future__ import annotations

from collections.abc import Iterable

from pilotage.adapters.stores.work_database import WorkTables, retried_if_damaged
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.ports.put_copies import PutCopy


class SqlitePutCopies(WorkTables):
    """The copies of a state folder; safe for threads."""

    @retried_if_damaged
    def note(self, copy: PutCopy) -> None:
        """Remember a copy, before it is put."""
        with self._database.writing() as book:
            book.execute(
                "INSERT INTO put_copies VALUES (?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET sha256 = excluded.sha256, put = max(put, excluded.put)",
                (copy.ref.job, copy.ref.package, copy.ref.attempt, copy.locator, copy.sha256, copy.owner, copy.put),
            )

    @retried_if_damaged
    def noted(self) -> list[PutCopy]:
        """All that are remembered."""
        with self._database.reading() as book:
            rows = book.execute("SELECT * FROM put_copies ORDER BY job, package, attempt, locator").fetchall()
        return [
            PutCopy(ref=AttemptRef(job, package, attempt), locator=locator, sha256=sha256, owner=owner, put=bool(put))
            for job, package, attempt, locator, sha256, owner, put in rows
        ]

    @retried_if_damaged
    def forget(self, copies: Iterable[PutCopy]) -> None:
        """Forget copies."""
        with self._database.writing() as book:
            book.executemany(
                "DELETE FROM put_copies WHERE job = ? AND package = ? AND attempt = ? AND locator = ?",
                [(each.ref.job, each.ref.package, each.ref.attempt, each.locator) for each in copies],
            )
