"""What it costs to find records in an index of a million: the CPU time of a query, beside that of the bare SQL statement.

Rows go straight into the tables of SQLite. A query is read from its text, checked, planned and answered with a hundred records; the floor is
the one statement that its answer comes from, prepared and with its values.
"""

from __future__ import annotations

import hashlib
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from pilotage.adapters.record_index import statements
from pilotage.adapters.record_index.sqlite import SqliteRecordIndex
from pilotage.adapters.record_index.tables import term_row
from pilotage.ports.record_index import Value
from pilotage.provenance.index.attributes import chosen_attributes
from pilotage.provenance.index.query import parse, require_index
from pilotage.provenance.index.search import readable_by
from pilotage.reading.access import READ, Principal

COUNT = 1_000_000
FOUND = 100
ROUNDS = 20
FIRST_AT, YEAR_SECONDS = 1_767_225_600.0, 365 * 86_400.0
ATTRIBUTES = ("job", "owner", "state", "site", "submitted", "node.cpu_model", "tag", "produced.sha256")
QUERIES = {
    "a file by its digest": "produced.sha256={sha256}",
    "a tag, a model and three months": "tag.patient_group=B7 and node.cpu_model~Xeon and submitted within 2026-01..2026-03",
    "an owner and a day": "owner=user-17 and submitted within 2026-06-05",
    "one of ten, and one of three": "site=site-3 and state=DONE",
    "half a year": "submitted within 2026-03..2026-08",
    "many of another owner": "state=DONE and owner=user-900",
}


def digest(number: int) -> str:
    """The digest of a file of a job."""
    return hashlib.sha256(b"%d" % number).hexdigest()


def values_of(number: int, chance: random.Random, count: int) -> dict[str, Value]:
    """The attributes of a record; a thousand users, a thousand groups of patients, ten sites."""
    return {
        "job": f"job-{number:07}",
        "owner": f"user-{chance.randrange(1000)}",
        "state": chance.choice(("DONE", "DONE", "ABORTED")),
        "site": f"site-{chance.randrange(10)}",
        "submitted": FIRST_AT + number / count * YEAR_SECONDS,
        "node.cpu_model": chance.choice(("Intel(R) Xeon(R) Gold 6248R", "AMD EPYC 7742")),
        "tag.patient_group": f"B{chance.randrange(1000)}",
        "produced.sha256": digest(number),
    }


def fill(file: Path, count: int) -> SqliteRecordIndex:
    """An index with so many records."""
    attributes = chosen_attributes(ATTRIBUTES)
    index = SqliteRecordIndex(file, attributes=attributes)
    chance = random.Random(5)
    numbers: dict[str, int] = {}
    with sqlite3.connect(file, isolation_level=None) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA cache_size=-400000")
        # Indexes are made in the end, which is quicker.
        named = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        made_later = dict(connection.execute(named))
        for each in made_later:
            connection.execute(f"DROP INDEX {each}")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO index_storages VALUES (1, 'bench', ?)", (count,))
        for name in values_of(0, chance, count):
            numbers[name] = len(numbers) + 1
            connection.execute("INSERT INTO index_attributes VALUES (?, ?)", (numbers[name], name))
        rows = ((number, values_of(number, chance, count)) for number in range(1, count + 1))

        def terms() -> Iterator[tuple[object, ...]]:
            for number, values in rows:
                entries.append(
                    (
                        number,
                        number,
                        values["job"],
                        values["owner"],
                        values["job"],
                        values["state"],
                        values["submitted"],
                    )
                )
                for name, value in values.items():
                    yield number, numbers[name], *term_row(value), 1, values["submitted"]

        entries: list[tuple[object, ...]] = []
        connection.executemany("INSERT INTO index_terms VALUES (?, ?, ?, ?, ?, ?, ?, ?)", terms())
        connection.executemany(
            "INSERT INTO index_entries (entry, storage, job, position, removed, revision, owner, access, name, state, submitted_at, at)"
            " VALUES (?1, 1, ?3, ?2, 0, 1, ?4, '[]', ?5, ?6, ?7, ?7)",
            entries,
        )
        for each in made_later.values():
            connection.execute(each)
        connection.execute("COMMIT")
    connection.close()
    return index


def measure(file: Path, count: int) -> dict[str, tuple[float, float, int]]:
    """For each query: CPU milliseconds, those of its bare statement, and how many records were found."""
    index = fill(file, count)
    found: dict[str, tuple[float, float, int]] = {}
    bare = sqlite3.connect(file)
    asker = readable_by(Principal(user="user-17", scopes=frozenset({READ})))
    for name, template in QUERIES.items():
        text = template.format(sha256=digest(count // 2))
        readable = asker if "owner=user-17" in text else None

        def ask() -> int:
            query = parse(text, attributes=index.attributes, now=FIRST_AT)  # noqa: B023 # called at once
            require_index(query, index.attributes)
            return len(index.find(query, readable=readable, limit=FOUND).records)  # noqa: B023

        records = ask()
        query = parse(text, attributes=index.attributes, now=FIRST_AT)
        with index.reading() as connection:
            start = index.start_of(connection, query, None)
        sql = statements.find(query, start=start, owner=None, after=None, limit=FOUND + 1, contains="instr")
        found[name] = (_milliseconds(ask), _milliseconds(lambda: bare.execute(*sql).fetchall()), records)  # noqa: B023
    bare.close()
    index.close()
    return found


def _milliseconds(work: object) -> float:
    times = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        work()  # type: ignore[operator]
        times.append(time.process_time() - begun)
    return sorted(times)[ROUNDS // 2] * 1000
