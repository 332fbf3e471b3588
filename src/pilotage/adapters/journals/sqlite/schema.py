"""The tables of the SQLite journal, made from the book's list, with views that show facts as columns.

The names of tables, views and columns are part of the interface: users may open the file with `sqlite3` or DuckDB.
"""

from __future__ import annotations

import hashlib
import sqlite3
import typing
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

from pilotage.adapters.journals.queries import UNINDEXED_STATES
from pilotage.book.rows.rows import AttemptFacts, PackageFacts
from pilotage.book.rows.tables import TABLES, Index, Table

# The number of attempts of each package, in an indexed table of its own: only if a setting asks for it.
#
# An index cannot count entries in a text. Triggers maintain the table when packages are written.

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
    """The statement that makes the index."""
    return f"CREATE INDEX {INDEX} ON {TABLE} (attempts, {_COLUMNS})"


def count_attempts(connection: sqlite3.Connection) -> None:
    """Make the table from the existing packages; within a transaction."""
    named = "SELECT sql FROM sqlite_master WHERE tbl_name IN (?, 'package_facts') AND type IN ('table', 'trigger')"
    found = {made for (made,) in connection.execute(named, (TABLE,))}
    if not found.issuperset((_MADE, *_TRIGGERS)):
        forget_attempts(connection)
        for statement in (_MADE, _FILLED, *_TRIGGERS):
            connection.execute(statement)


def forget_attempts(connection: sqlite3.Connection) -> None:
    """Drop the table; within a transaction. An attached book is left alone."""
    for name in ("made", "changed", "gone"):
        connection.execute(f"DROP TRIGGER IF EXISTS main.{TABLE}_{name}")
    connection.execute(f"DROP TABLE IF EXISTS main.{TABLE}")


SCHEMA_VERSION = 10
APPLICATION_ID = 0x70696C6F  # "pilo", by which `file` recognises it

_PACKAGE_KEY = "job_id, stage, line, number"
_HIDDEN = {"keys", "positions", "attempts", "tags", "registered_activity", "counted_with", "early", "group"}

# Columns of a view that identify a package: its numbers, and the names for people.
_PLACE = (
    "p.job_id, (SELECT j.job FROM jobs AS j WHERE j.job_id = p.job_id) AS job,"
    " p.stage || '.' || p.line || '.' || p.number AS package, p.stage, p.line, p.number"
)

PACKAGE_FACTS = f"""CREATE TABLE package_facts (
    job_id INTEGER NOT NULL, stage INTEGER NOT NULL, line INTEGER NOT NULL, number INTEGER NOT NULL,
    state TEXT NOT NULL, site TEXT, facts TEXT NOT NULL, PRIMARY KEY ({_PACKAGE_KEY}))"""
# Rows are stored in the order of insertion, with the key in an index: facts are long, and a tree of them by key would be
# deep, split large pages in its middle, and be searched twice per written row. Older books with such a tree use the same
# statements.
PACKAGE_PLACES = "sqlite_autoindex_package_facts_1"
"""SQLite's name of that index."""


JOB_INDEXES = (
    Index(columns=("entered_at", "job"), attribute="entered"),
    Index(columns=("cause", "job"), attribute="cause"),
)
"""Indexes of jobs made only if a setting asks for them, besides those of the book's list."""

PACKAGE_EXPRESSIONS = {
    "node": "facts ->> 'node'",
    "exit_code": "facts ->> 'exit_code'",
    "activity": "facts ->> 'activity'",
    "reason": "facts ->> 'reason'",
    "cause": "facts ->> 'cause'",
    "entered": "facts ->> 'entered_at'",
    "updated": "COALESCE(facts ->> 'updated_at', 0.0)",
}
"""Facts of packages that can have an index; a query must use the same text."""

UNENDED = f"state NOT IN ({', '.join(repr(state) for state in UNINDEXED_STATES)})"
"""The condition of the index of package states; a query must use the same text."""

LIVE = "place = 'live'"
SEALED = "place = 'sealed'"

SEALED_INDEXED = frozenset({"state"})
"""Attributes with an index in a sealed job's own file: people look for the few packages that are not done."""
SEALED_INDEXES = frozenset({"events_job_id_position", "package_facts_state"})
_LIVE_ONLY = frozenset(
    {"cached_files", "knowledge", "parked", "statistics", "subscriptions", "notices", "watched", "failures", "mails"}
)
"""Tables that have no rows of a sealed job: its file does without, as whoever opens it reads the statements of all tables."""

# Files of sealed jobs of earlier versions get these tables, too, and leave them empty.
_CACHED_FILES = (
    "CREATE TABLE IF NOT EXISTS cached_files (site TEXT NOT NULL, digest TEXT NOT NULL, locator TEXT NOT NULL,"
    " state TEXT NOT NULL, name TEXT NOT NULL, wish TEXT NOT NULL, pinned INTEGER NOT NULL, software INTEGER NOT NULL,"
    " stale INTEGER NOT NULL, expected_bytes INTEGER NOT NULL, size_bytes INTEGER NOT NULL, sha256 TEXT NOT NULL,"
    " version TEXT NOT NULL, fetch_key TEXT NOT NULL, removal_key TEXT NOT NULL, cause TEXT NOT NULL,"
    " failures INTEGER NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL, ordered_at REAL, fetched_at REAL,"
    " used_at REAL, failed_at REAL, removal_at REAL, removed_at REAL, updated_at REAL NOT NULL, wishes TEXT NOT NULL,"
    " pins TEXT NOT NULL, keys BLOB NOT NULL, PRIMARY KEY (site, digest)) WITHOUT ROWID"
)
_KNOWLEDGE = (
    "CREATE TABLE IF NOT EXISTS knowledge (name TEXT NOT NULL, at REAL NOT NULL, learned TEXT NOT NULL,"
    " keys BLOB NOT NULL, PRIMARY KEY (name)) WITHOUT ROWID"
)
Migration = Sequence[str]
MIGRATIONS: Mapping[int, Migration] = {
    1: (
        "ALTER TABLE sites ADD COLUMN reason TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE sites ADD COLUMN score REAL",
        "ALTER TABLE sites ADD COLUMN since REAL",
        "ALTER TABLE sites ADD COLUMN learned TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE sites ADD COLUMN probed_at REAL",
        "ALTER TABLE sites ADD COLUMN probe TEXT NOT NULL DEFAULT ''",
    ),
    2: (),  # packages stay in their tree
    3: (),  # keys stay; from here on some are omitted, which an older version would not restore
    4: (
        "ALTER TABLE pilots ADD COLUMN submitted_at REAL",
        "ALTER TABLE sites ADD COLUMN latencies TEXT NOT NULL DEFAULT ''",
    ),
    5: ("ALTER TABLE jobs ADD COLUMN forecast TEXT NOT NULL DEFAULT ''",),
    6: tuple(
        f"ALTER TABLE nodes ADD COLUMN {name} TEXT NOT NULL DEFAULT ''"
        for name in ("os_release", "kernel", "cpu_model", "libc")
    ),
    7: (_CACHED_FILES,),
    8: (
        "ALTER TABLE jobs ADD COLUMN healing TEXT NOT NULL DEFAULT ''",
        _KNOWLEDGE,
    ),
    9: ("ALTER TABLE jobs ADD COLUMN activities TEXT NOT NULL DEFAULT ''",),
}
"""For each version but the last, the statements that lead to the next; for the live book and sealed jobs alike.

A statement about a table that files of sealed jobs do without must do without it, too.
"""


def statements(*, sealed: bool = False) -> list[str]:
    """The statements that make an empty book, or the file of a sealed job, except the indexes."""
    made = [_table(table) for table in TABLES if not (sealed and table.name in _LIVE_ONLY)]
    made.append(PACKAGE_FACTS)
    made.append("CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID")
    made.append("INSERT INTO counters VALUES ('position', 0), ('job_id', 0), ('stream_id', 0), ('forgotten', 0)")
    made.append("CREATE TABLE contents (sha256 TEXT PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID")
    if not sealed:
        made.append("CREATE TABLE sealed_contents (sha256 TEXT, job TEXT, PRIMARY KEY (sha256, job)) WITHOUT ROWID")
        # Jobs on their way between the live book and their own file, so that an interrupted move is resumed.
        made.append("CREATE TABLE moves (job TEXT PRIMARY KEY, step TEXT NOT NULL) WITHOUT ROWID")
    return made + list(_views().values())


def _views() -> dict[str, str]:
    """The current views, by name."""
    return {"packages": _packages_view(), "attempts": _attempts_view(), "phases": _PHASES_VIEW, "files": _FILES_VIEW}


def review(connection: sqlite3.Connection) -> None:
    """Update the views: those of a file from an earlier version lack some facts; within a transaction."""
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'view'").fetchall())
    for name, made in _views().items():
        if found.get(name) != made:
            connection.execute(f"DROP VIEW IF EXISTS {name}")
            connection.execute(made)


@cache
def sealed_file(page_bytes: int) -> bytes:
    """The file of a sealed job before any row is in it: the same for all, and made once."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        create(connection, indexed=SEALED_INDEXED, sealed=True)
        return connection.serialize()


def create(connection: sqlite3.Connection, *, indexed: frozenset[str], sealed: bool = False) -> None:
    """Make an empty book, or the file of a sealed job."""
    for statement in statements(sealed=sealed):
        connection.execute(statement)
    reindex(connection, indexed=indexed, sealed=sealed)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def version_of(connection: sqlite3.Connection) -> int:
    """The schema version of a file; 0 if it is empty."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def is_current(book: Path) -> bool:
    """Tell whether a file is a book that this version can read as it is; False if it cannot be opened."""
    try:
        with closing(sqlite3.connect(f"{book.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            return version_of(connection) == SCHEMA_VERSION
    except sqlite3.Error:
        return False


def migrate(connection: sqlite3.Connection, *, to: int, migrations: Mapping[int, Migration]) -> None:
    """Migrate a file of an older schema step by step; within a transaction."""
    for version in range(version_of(connection), to):
        for statement in migrations[version]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version + 1}")
    review(connection)


def wanted_indexes(indexed: frozenset[str]) -> dict[str, str]:
    """The wanted indexes besides the keys, by name; a setting chooses the attributes."""
    found = {
        "jobs_live": f"CREATE INDEX jobs_live ON jobs (job_id) WHERE {LIVE}",
        "jobs_sealed": f"CREATE INDEX jobs_sealed ON jobs (job_id) WHERE {SEALED}",
    }
    for table in TABLES:
        for index in (*table.indexes, *(JOB_INDEXES if table.name == "jobs" else ())):
            if not index.attribute or index.attribute in indexed:
                name = index_name(table.name, index)
                found[name] = _index(table, index, name=name)
    if "state" in indexed:
        # Nearly all packages are done, and are looked up by job; people search for the others.
        made = f"CREATE INDEX package_facts_state ON package_facts (state, {_PACKAGE_KEY}) WHERE {UNENDED}"
        found["package_facts_state"] = made
    if "site" in indexed:
        found["package_facts_site"] = f"CREATE INDEX package_facts_site ON package_facts (site, {_PACKAGE_KEY})"
    for attribute in sorted(indexed & PACKAGE_EXPRESSIONS.keys()):
        fact, name = PACKAGE_EXPRESSIONS[attribute], f"package_facts_{attribute}"
        found[name] = f"CREATE INDEX {name} ON package_facts ({fact}, {_PACKAGE_KEY}) WHERE {fact} IS NOT NULL"
    if "attempts" in indexed:
        found[INDEX] = index_statement()
    tags = sorted(name.removeprefix("tag.") for name in indexed if name.startswith("tag."))
    if tags or "tag" in indexed:
        # Tags of jobs are few among those of packages.
        found["tags_of_jobs"] = "CREATE INDEX tags_of_jobs ON tags (name, value, job_id) WHERE stage = 0"
    if "tag" not in indexed:
        for tag in tags:
            name = tag_index(tag)
            found[name] = f"CREATE INDEX {name} ON tags (value, {_PACKAGE_KEY}) WHERE name = {quoted(tag)}"
    return found


def index_name(table: str, index: Index) -> str:
    """The name of an index of the book's list."""
    return f"{table}_{'_'.join(index.columns)}"


def tag_index(tag: str) -> str:
    """The name of the index of one tag."""
    return f"tags_one_{hashlib.sha256(tag.encode()).hexdigest()[:16]}"


def quoted(text: str) -> str:
    """A text as an SQL literal; a partial index is used only if the query has the same text."""
    return "'" + text.replace("'", "''") + "'"


def reindex(connection: sqlite3.Connection, *, indexed: frozenset[str], sealed: bool = False) -> None:
    """Make the wanted indexes and drop the others; within a transaction."""
    wanted = wanted_indexes(indexed)
    if sealed:
        wanted = {name: made for name, made in wanted.items() if name in SEALED_INDEXES}
    if "attempts" in indexed:
        count_attempts(connection)
    else:
        forget_attempts(connection)
    found = dict(
        connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL").fetchall()
    )
    for name, made in found.items():
        if wanted.get(name) != made:
            connection.execute(f"DROP INDEX {name}")
    for name, made in wanted.items():
        if found.get(name) != made:
            connection.execute(made)


def _table(table: Table) -> str:
    hints = typing.get_type_hints(table.row)
    whole = len(table.key) == 1 and _kind(hints[table.key[0]])[0] == "INTEGER"
    columns = []
    for column in table.columns:
        kind, optional = _kind(hints[column])
        key = " PRIMARY KEY" if whole and column == table.key[0] else ""
        columns.append(f"{column} {kind}{key}{'' if optional or key else ' NOT NULL'}")
    if not whole:
        columns.append(f"PRIMARY KEY ({', '.join(table.key)})")
    return f"CREATE TABLE {table.name} ({', '.join(columns)}){'' if whole else ' WITHOUT ROWID'}"


def _index(table: Table, index: Index, *, name: str) -> str:
    unique = "UNIQUE " if index.unique else ""
    where = f" WHERE {index.where}" if index.where else ""
    return f"CREATE {unique}INDEX {name} ON {table.name} ({', '.join(index.columns)}){where}"


def _kind(hint: object) -> tuple[str, bool]:
    names = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}
    members = typing.get_args(hint)
    optional = type(None) in members
    plain = next((member for member in members if member is not type(None)), hint)
    return names[typing.cast("type", plain)], optional


def _packages_view() -> str:
    columns = [
        f"{_extract('p.facts', name, default)} AS {name}"
        for name, default in _defaults(PackageFacts)
        if name not in {*_HIDDEN, "state", "site"}
    ]
    tags = "(SELECT json_group_object(t.key, t.value ->> 0) FROM json_each(p.facts, '$.tags') AS t) AS tags"
    attempts = "(SELECT count(*) FROM json_each(p.facts, '$.attempts')) AS attempts"
    return (
        f"CREATE VIEW packages AS SELECT {_PLACE}, p.state, p.site, "
        f"{', '.join(columns)}, {attempts}, {tags} FROM package_facts AS p"
    )


def _attempts_view() -> str:
    columns = [
        f"{_extract('a.value', name, default)} AS {name}"
        for name, default in _defaults(AttemptFacts)
        if name not in _HIDDEN
    ]
    return (
        f"CREATE VIEW attempts AS SELECT {_PLACE}, CAST(a.key AS INTEGER) AS attempt, "
        f"{', '.join(columns)} FROM package_facts AS p, json_each(p.facts, '$.attempts') AS a"
    )


_PHASES_VIEW = """CREATE VIEW phases AS
    SELECT a.job_id, a.job, a.package, a.stage, a.line, a.number, a.attempt, p.value ->> 'phase' AS phase,
           p.value ->> 'started_at' AS started_at, p.value ->> 'seconds' AS seconds
    FROM attempts AS a JOIN events AS e ON e.position = a.finished_position, json_each(e.data, '$.phases') AS p"""

_FILES_VIEW = """CREATE VIEW files AS
    SELECT a.job_id, a.job, a.package, a.stage, a.line, a.number, a.attempt, a.granted_at,
           f.value ->> 'name' AS name, f.value ->> 'size_bytes' AS size_bytes, f.value ->> 'sha256' AS sha256
    FROM attempts AS a JOIN events AS e ON e.position = a.staged_position, json_each(e.data, '$.manifest') AS f"""


def _extract(source: str, name: str, default: object) -> str:
    plain = f"{source} ->> '{name}'"
    if default is None:
        return plain
    return f"COALESCE({plain}, {default!r})"


def _defaults(facts: type[PackageFacts | AttemptFacts]) -> list[tuple[str, object]]:
    blank = facts()
    return [(name, getattr(blank, name)) for name in facts.__struct_fields__]
