"""The tables of the PostgreSQL journal, made from the book's list, with views that show facts as columns.

The names of tables, views and columns are the same as in SQLite, and part of the interface. Rows of sealed jobs are in
tables and views of the same names, in a schema of their own.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence

import msgspec
from psycopg import sql

from pilotage.adapters.journals.postgres.connection import Connection, schema_of
from pilotage.book.query import ATTRIBUTES
from pilotage.book.rows.rows import (
    AttemptFacts,
    CachedFileRow,
    JobRow,
    KnowledgeRow,
    NodeRow,
    PackageFacts,
    PilotRow,
    Row,
    SiteRow,
)
from pilotage.book.rows.tables import PACKAGE_KEY, TABLE_BY_ROW, TABLES, Index, Table
from pilotage.ports import JournalError

_KEY = ", ".join(PACKAGE_KEY)
_HIDDEN = {"keys", "positions", "attempts", "tags", "registered_activity", "counted_with", "early", "group"}
# The operating system may report larger numbers than ours.
_UNBOUNDED = {"exit_status", "signal"}
_KINDS = {int: "bigint", float: "double precision", str: 'text COLLATE "C"', bytes: "bytea"}

# Columns of a view that identify a package: its numbers, and the names for people. Rows of jobs stay in the live schema
# when they are sealed.
_PLACE = (
    "p.job_id, (SELECT j.job FROM {schema}.jobs AS j WHERE j.job_id = p.job_id) AS job,"
    " (p.stage || '.' || p.line || '.' || p.number) COLLATE \"C\" AS package, p.stage, p.line, p.number"
)

JSON_COLUMNS = {
    "streams": {"ahead"},
    "jobs": {"lists", "growth", "access", "tags"},
    "stages": {"shape"},
    "nodes": {"software", "environment"},
    "events": {"data"},
    "parked": {"event"},
    "package_facts": {"facts"},
}
"""JSON columns. As `json`, which keeps the text as written; `jsonb` would rewrite numbers."""

JOB_INDEXES = (
    Index(columns=("entered_at", "job"), attribute="entered"),
    Index(columns=("cause", "job"), attribute="cause"),
)
PACKAGE_EXPRESSIONS = {
    "node": "facts ->> 'node'",
    "exit_code": "facts ->> 'exit_code'",
    "activity": "facts ->> 'activity'",
    "reason": "facts ->> 'reason'",
    "cause": "facts ->> 'cause'",
    "entered": "(facts ->> 'entered_at')::double precision",
    "updated": "COALESCE((facts ->> 'updated_at')::double precision, 0.0)",
    "attempts": "{schema}.attempts_of(facts)",
}
"""Attributes that can have an index if a setting asks for it, besides the book's list; queries use the same text."""

SEALED_TABLES = ("package_facts", "events", "tags", "stages")
"""The tables whose rows move with their job when it is sealed."""


class PackageRecord(Row, gc=False):
    """A row of `package_facts`, with the two facts that are columns because they are indexed."""

    job_id: int
    stage: int
    line: int
    number: int
    state: str
    site: str | None
    facts: str


PACKAGE_FACTS = Table(name="package_facts", row=PackageRecord, key=PACKAGE_KEY)


class Migration(msgspec.Struct, frozen=True):
    """The step to a schema version from the one before; `{schema}` and `{sealed}` stand for the two schemas."""

    version: int
    statements: tuple[str, ...]


def column_types(table: Table) -> dict[str, str]:
    """The type of each column, with NOT NULL if it always has a value."""
    hints = typing.get_type_hints(table.row)
    json = JSON_COLUMNS.get(table.name, set())
    types = {}
    for column in table.columns:
        plain, optional = _plain(hints[column])
        types[column] = ("json" if column in json else _KINDS[plain]) + ("" if optional else " NOT NULL")
    return types


def _plain(hint: object) -> tuple[type, bool]:
    members = typing.get_args(hint)
    plain = next((member for member in members if member is not type(None)), hint)
    return typing.cast("type", plain), type(None) in members


def _table(table: Table, *, schema: str) -> str:
    columns = ", ".join(f"{name} {kind}" for name, kind in column_types(table).items())
    return f"CREATE TABLE {schema}.{table.name} ({columns}, PRIMARY KEY ({', '.join(table.key)}))"


def _tables(*, schema: str, names: Iterable[str] | None = None) -> list[str]:
    wanted = None if names is None else set(names)
    return [
        _table(table, schema=schema) for table in (*TABLES, PACKAGE_FACTS) if wanted is None or table.name in wanted
    ]


def _views(schema: str) -> list[str]:
    return [
        _packages_view(schema),
        _attempts_view(schema),
        _inner_view(
            schema, name="phases", position="finished_position", columns={"started_at": float, "seconds": float}
        ),
        _inner_view(
            schema, name="files", position="staged_position", columns={"name": str, "size_bytes": int, "sha256": str}
        ),
    ]


def _packages_view(schema: str) -> str:
    columns = _shown("p.facts", PackageFacts, without={*_HIDDEN, "state", "site"})
    tags = (
        "COALESCE((SELECT json_object_agg(t.key, t.value ->> 0) FROM json_each(p.facts -> 'tags') AS t),"
        " '{{}}'::json) AS tags"
    )
    attempts = "(SELECT count(*) FROM json_object_keys(p.facts -> 'attempts')) AS attempts"
    return (
        f"CREATE VIEW {schema}.packages AS SELECT {_PLACE}, p.state, p.site, "
        f"{', '.join(columns)}, {attempts}, {tags} FROM {schema}.package_facts AS p"
    )


def _attempts_view(schema: str) -> str:
    columns = _shown("a.value", AttemptFacts, without=_HIDDEN)
    return (
        f"CREATE VIEW {schema}.attempts AS SELECT {_PLACE}, a.key::bigint AS attempt, "
        f"{', '.join(columns)} FROM {schema}.package_facts AS p, json_each(p.facts -> 'attempts') AS a"
    )


def _inner_view(schema: str, *, name: str, position: str, columns: dict[str, type]) -> str:
    """A view of a list in the payload of the event that an attempt refers to."""
    inner, first = ("phases", ["i.value ->> 'phase' AS phase"]) if name == "phases" else ("manifest", ["a.granted_at"])
    shown = [*first, *(f"{_cast('i.value', column, kind)} AS {column}" for column, kind in columns.items())]
    inside = f"e.data -> '{inner}'"
    return (
        f"CREATE VIEW {schema}.{name} AS SELECT a.job_id, a.job, a.package, a.stage, a.line, a.number, a.attempt,"
        f" {', '.join(shown)}"
        f" FROM {schema}.attempts AS a JOIN {schema}.events AS e ON e.position = a.{position},"
        f" json_array_elements(CASE WHEN json_typeof({inside}) = 'array' THEN {inside} END) AS i"
    )


def _shown(source: str, facts: type[PackageFacts | AttemptFacts], *, without: set[str]) -> list[str]:
    blank, hints = facts(), typing.get_type_hints(facts)
    columns = []
    for name in facts.__struct_fields__:
        if name in without:
            continue
        found = _cast(source, name, _plain(hints[name])[0])
        default = getattr(blank, name)
        columns.append(f"{found if default is None else f'COALESCE({found}, {default!r})'} AS {name}")
    return columns


def _cast(source: str, name: str, kind: type) -> str:
    plain = f"{source} ->> '{name}'"
    if kind is str:
        return f'({plain}) COLLATE "C"'
    return f"({plain})::{'numeric' if name in _UNBOUNDED else _KINDS[kind]}"


def _first_version() -> tuple[str, ...]:
    return (
        *_tables(schema="{schema}"),
        "CREATE TABLE {schema}.counters (name text PRIMARY KEY, value bigint NOT NULL)",
        "INSERT INTO {schema}.counters VALUES ('position', 0), ('job_id', 0), ('stream_id', 0), ('forgotten', 0)",
        "CREATE TABLE {schema}.contents (sha256 text PRIMARY KEY, content bytea NOT NULL)",
        "ALTER TABLE {schema}.contents ALTER COLUMN content SET STORAGE EXTERNAL",
        # Jobs on their way between the schemas, so that an interrupted move is resumed.
        "CREATE TABLE {schema}.moves (job_id bigint PRIMARY KEY, place text NOT NULL)",
        # Wider than in the book's list: here the events of a job need an index, also to move them.
        "CREATE INDEX events_job_id ON {schema}.events (job_id, position) WHERE job_id IS NOT NULL",
        *_views("{schema}"),
        "CREATE SCHEMA IF NOT EXISTS {sealed}",
        *_tables(schema="{sealed}", names=SEALED_TABLES),
        "CREATE INDEX events_job_id ON {sealed}.events (job_id, position)",
        "CREATE INDEX events_of_jobs ON {sealed}.events (job_id, position) WHERE stage = 0",
        *_views("{sealed}"),
    )


def _added_columns(row: type[Row], *added: str) -> tuple[str, ...]:
    """Columns that were added to a table; a new schema has them from the beginning."""
    table = TABLE_BY_ROW[row]
    kinds = column_types(table)
    return tuple(
        f"ALTER TABLE {{schema}}.{table.name} ADD COLUMN IF NOT EXISTS {name} {kinds[name]}"
        + (" DEFAULT ''" if kinds[name].endswith("NOT NULL") else "")
        for name in added
    )


def _added_table(row: type[Row]) -> str:
    """A table that was added; a new schema has it from the beginning."""
    return _table(TABLE_BY_ROW[row], schema="{schema}").replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1)


def _views_anew() -> tuple[str, ...]:
    """The current views, with all facts."""
    schemas, names = ("{schema}", "{sealed}"), ("files", "phases", "attempts", "packages")
    gone = [f"DROP VIEW IF EXISTS {schema}.{name}" for schema in schemas for name in names]
    return (*gone, *(view for schema in schemas for view in _views(schema)))


MIGRATIONS: Sequence[Migration] = (
    Migration(1, _first_version()),
    Migration(2, _added_columns(SiteRow, "reason", "score", "since", "learned", "probed_at", "probe")),
    Migration(3, _views_anew()),
    Migration(4, ()),  # from here on facts omit some keys, which an older version would not restore
    Migration(5, (*_added_columns(PilotRow, "submitted_at"), *_added_columns(SiteRow, "latencies"))),
    Migration(6, _added_columns(JobRow, "forecast")),
    Migration(7, _added_columns(NodeRow, "os_release", "kernel", "cpu_model", "libc")),
    Migration(8, (_added_table(CachedFileRow), *_views_anew())),
    Migration(9, (*_added_columns(JobRow, "healing"), _added_table(KnowledgeRow))),
    Migration(10, _added_columns(JobRow, "activities")),
)
SCHEMA_VERSION = MIGRATIONS[-1].version


def wanted_indexes(indexed: frozenset[str]) -> dict[str, str]:
    """The wanted indexes besides the keys, by name; a setting chooses the attributes."""
    tags_too = any(name.startswith("tag.") for name in indexed)
    found = {"jobs_sealed": "CREATE INDEX jobs_sealed ON {schema}.jobs (job_id) WHERE place = 'sealed'"}
    for table in TABLES:
        for index in (*table.indexes, *(JOB_INDEXES if table.name == "jobs" else ())):
            by = index.attribute
            if not by or by in indexed or (by == "tag" and tags_too):
                name = f"{table.name}_{'_'.join(index.columns)}"
                found[name] = _index(table, index, name=name)
    if "state" in indexed:
        # Nearly all packages are done, and are looked up by job; people search for the others.
        where = "state NOT IN ('DONE', 'CLEARED')"
        found["package_facts_state"] = (
            f"CREATE INDEX package_facts_state ON {{schema}}.package_facts (state, {_KEY}) WHERE {where}"
        )
    if "site" in indexed:
        found["package_facts_site"] = f"CREATE INDEX package_facts_site ON {{schema}}.package_facts (site, {_KEY})"
    for attribute in sorted(indexed & PACKAGE_EXPRESSIONS.keys()):
        fact, name = PACKAGE_EXPRESSIONS[attribute], f"package_facts_{attribute}"
        found[name] = f"CREATE INDEX {name} ON {{schema}}.package_facts (({fact}), {_KEY}) WHERE ({fact}) IS NOT NULL"
    return found


ATTEMPTS_OF = "{schema}.attempts_of(json)"
"""Counts the attempts of a package; an index needs a function for that. Made if that index is wanted."""
MAKE_ATTEMPTS_OF = (
    f"CREATE FUNCTION {ATTEMPTS_OF} RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE"
    " AS 'SELECT count(*) FROM pg_catalog.json_object_keys($1 -> ''attempts'')'"
)


TAG_INDEXED_LENGTH = 400
"""An index entry has at most 2,704 bytes, a tag's value may have many more: its prefix is indexed."""


def _index(table: Table, index: Index, *, name: str) -> str:
    unique = "UNIQUE " if index.unique else ""
    where = f" WHERE {index.where}" if index.where else ""
    columns = [
        f"left(value, {TAG_INDEXED_LENGTH})" if (table.name, column) == ("tags", "value") else column
        for column in index.columns
    ]
    return f"CREATE {unique}INDEX {name} ON {{schema}}.{table.name} ({', '.join(columns)}){where}"


def table_of(row: type[Row]) -> Table:
    """The table of a row type."""
    return PACKAGE_FACTS if row is PackageRecord else TABLE_BY_ROW[row]


def columns_of(table: str) -> tuple[str, ...]:
    """The columns of a table, by its name."""
    return next(each.columns for each in (*TABLES, PACKAGE_FACTS) if each.name == table)


# Opens a book in PostgreSQL: makes or migrates its schema, or refuses that of a newer pilotage.

SEALED = "sealed"


class Schemas(msgspec.Struct, frozen=True):
    """The two schemas of a book, quoted for SQL: for live jobs, and for sealed ones."""

    live: str
    sealed: str


def schemas_of(connection: Connection, *, where: str) -> Schemas:
    """The schemas of a connection's book. Beside `public` it is `sealed`, beside another `NAME_sealed`."""
    live = schema_of(connection, where=where)
    sealed = SEALED if live == "public" else f"{live}_{SEALED}"
    return Schemas(*(sql.Identifier(name).as_string(connection) for name in (live, sealed)))


def prepare(
    connection: Connection, schemas: Schemas, *, indexed: frozenset[str], migrations: Sequence[Migration], where: str
) -> None:
    """Migrate the schema to the newest version, within a transaction of the writer; make and drop indexes as wanted."""
    found = version_of(connection, schemas)
    newest = migrations[-1].version
    if found > newest:
        raise JournalError(
            "the book was written by a newer pilotage",
            subject=where,
            expected=f"schema {newest} or older",
            got=f"schema {found}",
            next_step="use the newer pilotage, or dump the jobs with it and load them here",
        )
    if found == 0:
        connection.execute(_made("CREATE TABLE {schema}.schema_version (version bigint NOT NULL)", schemas))
        connection.execute(_made("INSERT INTO {schema}.schema_version VALUES (0)", schemas))
    for migration in migrations:
        if migration.version > found:
            for statement in migration.statements:
                connection.execute(_made(statement, schemas))
            connection.execute(_made("UPDATE {schema}.schema_version SET version = %s", schemas), (migration.version,))
    _create_index(connection, schemas, indexed)


def version_of(connection: Connection, schemas: Schemas) -> int:
    """The schema version of a book; 0 if there is none."""
    exists = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{schemas.live}.schema_version",)).fetchone()
    if exists is None or not exists[0]:
        return 0
    found = connection.execute(_made("SELECT version FROM {schema}.schema_version", schemas)).fetchone()
    return int(found[0]) if found is not None else 0


def _create_index(connection: Connection, schemas: Schemas, indexed: frozenset[str]) -> None:
    possible = wanted_indexes(frozenset(ATTRIBUTES))
    wanted = wanted_indexes(indexed)
    named = connection.execute("SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()")
    existing = {name for (name,) in named}
    for name in sorted(existing & possible.keys() - wanted.keys()):
        connection.execute(_made(f"DROP INDEX {{schema}}.{name}", schemas))
    _count_attempts(connection, schemas, is_wanted="attempts" in indexed)
    for name in sorted(wanted.keys() - existing):
        connection.execute(_made(wanted[name], schemas))


def _count_attempts(connection: Connection, schemas: Schemas, *, is_wanted: bool) -> None:
    function = ATTEMPTS_OF.format(schema=schemas.live)
    found = connection.execute("SELECT to_regprocedure(%s) IS NOT NULL", (function,)).fetchone()
    is_there = found is not None and bool(found[0])
    if is_wanted and not is_there:
        connection.execute(_made(MAKE_ATTEMPTS_OF, schemas))
    elif is_there and not is_wanted:
        connection.execute(_made(f"DROP FUNCTION {ATTEMPTS_OF}", schemas))


def _made(statement: str, schemas: Schemas) -> bytes:
    return statement.format(schema=schemas.live, sealed=schemas.sealed).encode()
