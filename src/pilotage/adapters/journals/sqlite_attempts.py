"""How many attempts each package has had, in a table of its own with an index: only where a setting asks for it.

An index cannot count what is in a text. The table is kept by triggers, so whoever writes packages writes it as well.
"""

from __future__ import annotations

import sqlite3

TABLE = "package_attempts"
INDEX = f"{TABLE}_attempts"

_KEY = ("job_id", "stage", "line", "number")
_COLUMNS = ", ".join(_KEY)
_MADE = (
    f"CREATE TABLE {TABLE} ({', '.join(f'{part} INTEGER NOT NULL' for part in (*_KEY, 'attempts'))},"
    f" PRIMARY KEY ({_COLUMNS})) WITHOUT ROWID"
)
_COUNTED = "(SELECT count(*) FROM json_each({row}.facts, '$.attempts'))"
_FILLED = f"INSERT INTO {TABLE} SELECT {_COLUMNS}, {_COUNTED.format(row='p')} FROM package_facts AS p"


def _trigger(name: str, when: str, what: str) -> str:
    return f"CREATE TRIGGER {TABLE}_{name} AFTER {when} ON package_facts BEGIN {what}; END"


def _is(row: str) -> str:
    return " AND ".join(f"{part} = {row}.{part}" for part in _KEY)


_NEW = _COUNTED.format(row="new")
_TRIGGERS = (
    _trigger("made", "INSERT", f"INSERT INTO {TABLE} VALUES ({', '.join(f'new.{part}' for part in _KEY)}, {_NEW})"),
    _trigger(
        "changed",
        "UPDATE OF facts",
        f"UPDATE {TABLE} SET attempts = {_NEW} WHERE {_is('new')} AND attempts <> {_NEW}",
    ),
    _trigger("gone", "DELETE", f"DELETE FROM {TABLE} WHERE {_is('old')}"),
)


def index_statement() -> str:
    """What makes the index."""
    return f"CREATE INDEX {INDEX} ON {TABLE} (attempts, {_COLUMNS})"


def count_attempts(connection: sqlite3.Connection) -> None:
    """Have the table, made from the packages that there are; within a transaction."""
    named = "SELECT sql FROM sqlite_master WHERE tbl_name IN (?, 'package_facts') AND type IN ('table', 'trigger')"
    found = {made for (made,) in connection.execute(named, (TABLE,))}
    if not found.issuperset((_MADE, *_TRIGGERS)):
        forget_attempts(connection)
        for statement in (_MADE, _FILLED, *_TRIGGERS):
            connection.execute(statement)


def forget_attempts(connection: sqlite3.Connection) -> None:
    """Have it no more; within a transaction. Another book that is attached is left alone."""
    for name in ("made", "changed", "gone"):
        connection.execute(f"DROP TRIGGER IF EXISTS main.{TABLE}_{name}")
    connection.execute(f"DROP TABLE IF EXISTS main.{TABLE}")
