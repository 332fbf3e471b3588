"""Reads the PostgreSQL journal: rows by name, pages of queries, counts. Every answer is a consistent snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from pilotage.adapters.journals.dump import StoredJob, dump_lines, dump_parts, dumped_event
from pilotage.adapters.journals.postgres.connection import Connection, Readers, loaded_text, stored_text
from pilotage.adapters.journals.postgres.ledger import PACKAGE_COLUMNS, loaded_row, package_of
from pilotage.adapters.journals.postgres.schema import (
    SCHEMA_VERSION,
    SEALED_TABLES,
    TAG_INDEXED_LENGTH,
    Schemas,
    columns_of,
    table_of,
)
from pilotage.adapters.journals.queries import Compiler, Sql, bounds, named_jobs, postgresql, serving_clause
from pilotage.book.fold.finals import FINAL_ORDER, SURELY_OVER, FinalPackage, is_over, read_finals
from pilotage.book.query import EVERYTHING, Condition, Query, Target
from pilotage.book.query.attributes import TAG
from pilotage.book.rows import rows, shapes
from pilotage.book.rows.tables import PACKAGE_KEY
from pilotage.model.jobs.layout import PackageId
from pilotage.ports import DumpParts, FoundEvent, FoundPackage, JournalError, Page


def used_contents(connection: Connection, schemas: Schemas, job_id: int) -> list[str]:
    """The hashes of the contents that a job refers to: its definition, and the lists of its stages."""
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


# A query of the book as one SQL statement, over the live tables, or over all tables for named jobs, sealed or not.

_ALWAYS = Sql("TRUE")
_DIALECT = postgresql(stored_text)
_COUNTS = Compiler(msgspec.structs.replace(_DIALECT, attempts="attempts_of(p.facts)"), Target.PACKAGES)
_COMPILERS = {target: Compiler(_DIALECT, target) for target in Target}
_ROWS = {Target.JOBS: "j", Target.PACKAGES: "p", Target.EVENTS: "e"}
_FROM = {
    Target.JOBS: "jobs AS j",
    Target.PACKAGES: "package_facts AS p JOIN jobs AS j ON j.job_id = p.job_id",
    Target.EVENTS: "events AS e JOIN streams AS s ON s.stream_id = e.stream_id LEFT JOIN jobs AS j ON j.job_id = e.job_id",
}


class Question(msgspec.Struct, frozen=True):
    """The text before SELECT, after FROM and after WHERE, with the values in that order."""

    with_: str
    source: str
    where: Sql

    def select(self, columns: str, *, also: Sql = _ALWAYS, order: str = "") -> tuple[bytes, tuple[Any, ...]]:
        """The whole statement, and its values."""
        text = f"{self.with_}SELECT {columns} FROM {self.source} WHERE {self.where.text} AND {also.text}{order}"
        return text.encode(), (*self.where.parameters, *also.parameters)


def question(
    query: Query, target: Target, *, schemas: Schemas, indexed: frozenset[str], job_ids: Sequence[int] | None = None
) -> Question:
    """A query as SQL: for some jobs wherever they are stored, or for all live ones. Raises `QueryTooBroad`."""
    parts = [_COMPILERS[target].filter(query)]
    row = _ROWS[target]
    if job_ids is not None:
        parts.append(_among(f"{row}.job_id", job_ids))
        return Question(everywhere(schemas), _FROM[target], _all(parts))
    clause = serving_clause(query, target, indexed=indexed)
    if clause is not None and target is not Target.EVENTS:
        parts.append(_any([_served(condition, target) for condition in clause]))
        if target is Target.PACKAGES and all(condition.attribute == "state" for condition in clause):
            parts.append(Sql("p.state NOT IN ('DONE', 'CLEARED')"))  # the condition of the partial index
    if target is Target.PACKAGES:
        parts.append(Sql("j.place = 'live'"))
    if target is Target.EVENTS:
        parts.append(Sql("e.job_id IS NULL OR j.place = 'live'"))
    return Question("", _FROM[target], _all(parts))


def everywhere(schemas: Schemas) -> str:
    """Subqueries that unite the live and the sealed tables under their usual names; for named jobs only."""
    tables = []
    for table in SEALED_TABLES:
        columns = ", ".join(columns_of(table))
        # Without a condition of their own: only then does PostgreSQL use the indexes and their order.
        each = (f"SELECT {columns} FROM {schema}.{table}" for schema in (schemas.live, schemas.sealed))
        tables.append(f"{table} AS NOT MATERIALIZED ({' UNION ALL '.join(each)})")
    return f"WITH {', '.join(tables)} "


def _among(column: str, job_ids: Sequence[int]) -> Sql:
    # With `=` PostgreSQL knows that the keys of one job are in index order; with `ANY` it does not.
    return Sql(f"{column} = %s", tuple(job_ids)) if len(job_ids) == 1 else Sql(f"{column} = ANY(%s)", (list(job_ids),))


def jobs_named(query: Query) -> tuple[str, ...] | None:
    """The jobs that a query names; these may be sealed."""
    return named_jobs(query)


def _served(condition: Condition, target: Target) -> Sql:
    """A condition in the form of its index: a tag is looked up among tags, by the prefix of its value.

    Attempts are counted by the function of their index.
    """
    if condition.attribute == "attempts":
        return _COUNTS.condition(condition)
    if condition.attribute != TAG:
        return _COMPILERS[target].condition(condition)
    values = [stored_text(str(value)) for value in condition.values]
    key, where = ("j.job_id", "t.stage = 0 AND ") if target is Target.JOBS else (_package("p"), "")
    found = "t.job_id" if target is Target.JOBS else _package("t")
    text = (
        f"({key}) IN (SELECT {found} FROM tags AS t WHERE {where}t.name = %s"
        f" AND left(t.value, {TAG_INDEXED_LENGTH}) = ANY(%s) AND t.value = ANY(%s))"
    )
    return Sql(text, (stored_text(condition.tag), [value[:TAG_INDEXED_LENGTH] for value in values], values))


def _package(row: str) -> str:
    return ", ".join(f"{row}.{column}" for column in PACKAGE_KEY)


def _all(parts: Sequence[Sql]) -> Sql:
    text = " AND ".join(f"({part.text})" for part in parts)
    return Sql(text, tuple(value for part in parts for value in part.parameters))


def _any(parts: Sequence[Sql]) -> Sql:
    text = " OR ".join(f"({part.text})" for part in parts)
    return Sql(text, tuple(value for part in parts for value in part.parameters))


AnyRow = TypeVar("AnyRow", bound=rows.Row)

_PACKAGE = ", ".join(f"p.{column}" for column in PACKAGE_COLUMNS)
_KEY = "p.job_id, p.stage, p.line, p.number"
# PostgreSQL cannot estimate how many rows follow a key. It guesses few, and would sort them all, though an index has them
# in order and only one page is needed.
_IN_ORDER = b"SET LOCAL enable_sort = off"
_FINAL = f"p.state IN ({', '.join(repr(state) for state in FINAL_ORDER)})"
_MAY_GO_ON = f"p.state NOT IN ({', '.join(repr(state) for state in SURELY_OVER)})"
_ROWS_AT_ONCE = 5_000
_EVENTS_AT_ONCE = 5_000


class PostgresReading:
    """The queries of the port `Journal`. Each is one statement, so that it sees whole commits only."""

    _readers: Readers
    _schemas: Schemas
    _indexed: frozenset[str]

    def position(self) -> int:
        """The position of the last event."""
        return int(self._ask("SELECT value FROM counters WHERE name = 'position'")[0][0])

    def job(self, job: str) -> rows.JobRow | None:
        """A job, also a sealed or a purged one."""
        found = self._rows(rows.JobRow, "WHERE t.job = %s", (stored_text(job),))
        return found[0] if found else None

    def stages(self, job: rows.JobRow) -> list[rows.StageRow]:
        """The stages of a job, in order."""
        return self._rows(
            rows.StageRow, "WHERE t.job_id = %s ORDER BY t.stage", (job.job_id,), within=everywhere(self._schemas)
        )

    def package(self, job: rows.JobRow, place: PackageId) -> rows.PackageRow | None:
        """A package, if it has a row."""
        found = self._ask(
            f"{everywhere(self._schemas)}SELECT {_PACKAGE} FROM package_facts AS p"
            " WHERE p.job_id = %s AND p.stage = %s AND p.line = %s AND p.number = %s",
            (job.job_id, place.stage, place.line, place.number),
        )
        return package_of(found[0]) if found else None

    def line_counts(self, job: rows.JobRow, *, stage: int, line: int) -> rows.StateHistogram:
        """The histogram of the packages of a line that have a row."""
        found = self._ask(
            f"{everywhere(self._schemas)}SELECT {_PACKAGE} FROM package_facts AS p"
            " WHERE p.job_id = %s AND p.stage = %s AND p.line = %s",
            (job.job_id, stage, line),
        )
        counted = rows.StateHistogram()
        for facts in (package_of(each).facts for each in found):
            standing = shapes.counted_as(facts)
            if standing is not None:
                shapes.count(counted, standing, 1)
            counted.touched += facts.shaped
        return counted

    def dump(self, job: str) -> Iterator[bytes]:
        """Everything about a job up to now, as lines of JSON; meanwhile it may be sealed, and may go on."""
        yield from dump_lines(job, self._stored(self._present(job)), schema=SCHEMA_VERSION)

    @contextmanager
    def dump_parts(self, job: rows.JobRow) -> Iterator[DumpParts]:
        """The same before it is encoded as one text."""
        yield dump_parts(job.job, self._stored(job), schema=SCHEMA_VERSION)

    def _stored(self, row: rows.JobRow) -> StoredJob:
        last = self.position()
        hashes = self._readers.read_snapshot(lambda reader: used_contents(reader, self._schemas, row.job_id))
        found = ((sha256, self.content(sha256)) for sha256 in hashes)
        contents = ((sha256, content) for sha256, content in found if content is not None)
        return StoredJob(contents, map(dumped_event, self._events_of(row, last=last)))

    def _events_of(self, job: rows.JobRow, *, last: int) -> Iterator[FoundEvent]:
        after, more = 0, True
        while more:
            page = self.find_events(EVERYTHING, after=after, limit=_EVENTS_AT_ONCE, job=job)
            for found in page.items:
                if found.row.position > last:
                    break
                yield found
            more = page.more and page.items[-1].row.position < last
            after = page.items[-1].row.position if page.items else after
        self._present(job.job)  # fail if it was purged meanwhile, rather than return half a dump

    def _present(self, job: str) -> rows.JobRow:
        row = self.job(job)
        if row is None:
            raise JournalError("no such job", subject=f"job {job}")
        if row.place == "purged":
            raise JournalError("the job was purged: there is nothing left to dump", subject=f"job {job}")
        return row

    def find_jobs(self, query: Query, *, after: str | None, limit: int) -> Page[rows.JobRow]:
        """Jobs in the order of their ids, after one."""
        columns = ", ".join(f"j.{column}" for column in table_of(rows.JobRow).columns)
        asked = question(query, Target.JOBS, schemas=self._schemas, indexed=self._indexed)
        further = Sql("TRUE") if after is None else Sql("j.job > %s", (stored_text(after),))
        found = self._readers.read(
            lambda reader: _fetch(reader, asked.select(columns, also=further, order=_page("j.job", limit)))
        )
        return Page(items=[loaded_row(rows.JobRow, each) for each in found[:limit]], more=len(found) > limit)

    def find_packages(
        self, query: Query, *, after: tuple[str, PackageId] | None, limit: int, job: rows.JobRow | None = None
    ) -> Page[FoundPackage]:
        """Packages that have a row, in the order of job and place, after one."""

        def read(reader: Connection) -> list[tuple[Any, ...]]:
            job_ids = self._job_ids(reader, query, job)
            asked = question(query, Target.PACKAGES, schemas=self._schemas, indexed=self._indexed, job_ids=job_ids)
            further = Sql("TRUE")
            if after is not None:
                last = reader.execute("SELECT job_id FROM jobs WHERE job = %s", (stored_text(after[0]),)).fetchone()
                place = after[1]
                mark = (last[0] if last else 0, place.stage, place.line, place.number)
                further = Sql(f"({_KEY}) > (%s, %s, %s, %s)", mark)
            if job_ids is not None and len(job_ids) == 1:
                reader.execute(_IN_ORDER)
            return _fetch(reader, asked.select(f"j.job, j.owner, {_PACKAGE}", also=further, order=_page(_KEY, limit)))

        found = self._readers.read_snapshot(read)
        items = [
            FoundPackage(job=loaded_text(name), owner=loaded_text(owner), row=package_of(rest))
            for name, owner, *rest in found[:limit]
        ]
        return Page(items=items, more=len(found) > limit)

    def find_events(
        self,
        query: Query,
        *,
        after: int,
        limit: int,
        job: rows.JobRow | None = None,
        place: PackageId | None = None,
    ) -> Page[FoundEvent]:
        """Events in the order of their positions, after one; of one job or package if given."""
        first, last = bounds(query, after=after)
        columns = ", ".join(f"e.{column}" for column in table_of(rows.EventRow).columns)

        def read(reader: Connection) -> list[tuple[Any, ...]]:
            job_ids = self._job_ids(reader, query, job)
            asked = question(query, Target.EVENTS, schemas=self._schemas, indexed=self._indexed, job_ids=job_ids)
            further = [Sql("e.position > %s", (first,))]
            if last is not None:
                further.append(Sql("e.position <= %s", (last,)))
            if place is not None:
                # A package stores the positions of its events; there is no index for them.
                further.append(
                    Sql(
                        "e.position = ANY(ARRAY(SELECT json_array_elements_text(p.facts -> 'positions')::bigint"
                        " FROM package_facts AS p"
                        " WHERE p.job_id = ANY(%s) AND p.stage = %s AND p.line = %s AND p.number = %s))",
                        (job_ids or [], place.stage, place.line, place.number),
                    )
                )
            else:
                reader.execute(_IN_ORDER)
            also = Sql(
                " AND ".join(part.text for part in further),
                tuple(value for part in further for value in part.parameters),
            )
            order = _page("e.position", limit)
            return _fetch(reader, asked.select(f"j.job, s.source, s.stream, {columns}", also=also, order=order))

        found = self._readers.read_snapshot(read)
        items = [
            FoundEvent(job=name, source=source, stream=stream, row=loaded_row(rows.EventRow, rest))
            for name, source, stream, *rest in found[:limit]
        ]
        return Page(items=items, more=len(found) > limit)

    def count_jobs(self, query: Query) -> int:
        """Number of jobs that match."""
        asked = question(query, Target.JOBS, schemas=self._schemas, indexed=self._indexed)
        return int(self._readers.read(lambda reader: _fetch(reader, asked.select("count(*)")))[0][0])

    def count_packages(self, query: Query, *, job: rows.JobRow | None = None) -> int:
        """Number of packages with a row that match."""

        def read(reader: Connection) -> int:
            job_ids = self._job_ids(reader, query, job)
            asked = question(query, Target.PACKAGES, schemas=self._schemas, indexed=self._indexed, job_ids=job_ids)
            return int(_fetch(reader, asked.select("count(*)"))[0][0])

        return self._readers.read_snapshot(read)

    def count_sealed(self) -> int:
        """Number of sealed jobs."""
        return int(self._ask("SELECT count(*) FROM jobs WHERE place = 'sealed'")[0][0])

    def live_jobs(self) -> list[rows.JobRow]:
        """The jobs of the live book that are not cleared, in the order of registration."""
        return self._rows(rows.JobRow, "WHERE t.place = 'live' AND t.state <> 'CLEARED' ORDER BY t.job_id", ())

    def own_events(self, job: rows.JobRow) -> list[rows.EventRow]:
        """The events about a job itself, not about its packages, in the order of their positions."""
        where = "WHERE t.job_id = %s AND t.job_id IS NOT NULL AND t.stage = 0 ORDER BY t.position"
        return self._rows(rows.EventRow, where, (job.job_id,), within=everywhere(self._schemas))

    def finals(self, job: rows.JobRow) -> Iterator[FinalPackage]:
        """The packages of a job that have ended by facts of their own, in the order of place."""
        # The facts that are read here contain no encoded text.
        found = self._in_place(job, "p.stage, p.line, p.number, p.state, p.facts", _FINAL)
        return read_finals((stage, line, number, state, facts) for stage, line, number, state, facts in found)

    def unfinished(self, job: rows.JobRow) -> Iterator[rows.PackageRow]:
        """The other packages of a job that have a row, in the order of place."""
        found = map(package_of, self._in_place(job, _PACKAGE, _MAY_GO_ON))
        yield from (row for row in found if not is_over(row.facts))

    def _in_place(self, job: rows.JobRow, columns: str, where: str) -> Iterator[tuple[Any, ...]]:
        statement = (
            f"{everywhere(self._schemas)}SELECT {columns} FROM package_facts AS p"
            f" WHERE p.job_id = %s AND {where} ORDER BY {_KEY}"
        )
        return self._stream(statement, (job.job_id,))

    def stream(self, source: str, stream: str) -> rows.StreamRow | None:
        """A stream, if it is known."""
        columns = ", ".join(table_of(rows.StreamRow).columns)
        statement = f"SELECT {columns} FROM streams WHERE source = %s AND stream = %s"
        found = self._ask(statement, (stored_text(source), stored_text(stream)))
        return loaded_row(rows.StreamRow, found[0]) if found else None

    def streams(self, source: str) -> Iterator[rows.StreamRow]:
        """All streams of a source, by name."""
        columns = ", ".join(table_of(rows.StreamRow).columns)
        statement = f"SELECT {columns} FROM streams WHERE source = %s ORDER BY stream"
        for found in self._stream(statement, (stored_text(source),)):
            yield loaded_row(rows.StreamRow, found)

    def _stream(self, statement: str, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        """Rows of a server-side cursor, some thousand at a time."""
        with self._readers.snapshot() as reader:
            reader.execute(_IN_ORDER)
            with reader.cursor(name="pilotage") as cursor:
                cursor.itersize = _ROWS_AT_ONCE
                yield from cursor.execute(statement.encode(), values)

    def statistics(self, *, width_seconds: int, slices: range) -> list[rows.StatisticRow]:
        """The existing slices of statistics in a range."""
        return self._rows(
            rows.StatisticRow,
            "WHERE t.width_seconds = %s AND t.slice >= %s AND t.slice < %s ORDER BY t.slice, t.site, t.activity",
            (width_seconds, slices.start, slices.stop),
        )

    def pilot(self, name: str) -> rows.PilotRow | None:
        """A pilot, or its request, if known."""
        return next(iter(self._rows(rows.PilotRow, "WHERE t.pilot = %s", (stored_text(name),))), None)

    def pilots(self, *, after: str, limit: int) -> list[rows.PilotRow]:
        """Pilots by name."""
        return self._rows(rows.PilotRow, "WHERE t.pilot > %s ORDER BY t.pilot LIMIT %s", (stored_text(after), limit))

    def latest_pilots(self, site: str, *, limit: int) -> list[rows.PilotRow]:
        """The most recently updated pilots of a site, the latest first."""
        which = "WHERE t.site = %s ORDER BY t.updated_at DESC, t.pilot LIMIT %s"
        return self._rows(rows.PilotRow, which, (stored_text(site), limit))

    def node(self, name: str) -> rows.NodeRow | None:
        """A node, if known."""
        return next(iter(self._rows(rows.NodeRow, "WHERE t.node = %s", (stored_text(name),))), None)

    def nodes_named(self, names: Collection[str]) -> list[rows.NodeRow]:
        """The known ones among some nodes, by name."""
        found = self._rows(rows.NodeRow, "WHERE t.node = ANY(%s)", ([stored_text(name) for name in names],))
        return sorted(found, key=lambda row: row.node)

    def nodes(self, *, after: str, limit: int) -> list[rows.NodeRow]:
        """Nodes by name."""
        return self._rows(rows.NodeRow, "WHERE t.node > %s ORDER BY t.node LIMIT %s", (stored_text(after), limit))

    def sites(self) -> list[rows.SiteRow]:
        """All sites."""
        return self._rows(rows.SiteRow, "ORDER BY t.site", ())

    def cached_files(self, site: str, *, after: str, limit: int) -> list[rows.CachedFileRow]:
        """Files of the cache of a site, by digest."""
        which = "WHERE t.site = %s AND t.digest > %s ORDER BY t.digest LIMIT %s"
        return self._rows(rows.CachedFileRow, which, (stored_text(site), stored_text(after), limit))

    def knowledge(self, name: str) -> rows.KnowledgeRow | None:
        """What the service learned from all jobs, by its name."""
        return next(iter(self._rows(rows.KnowledgeRow, "WHERE t.name = %s", (stored_text(name),))), None)

    def tags(self, job: rows.JobRow, *, after: tuple[int, int, int, str], limit: int) -> list[rows.TagRow]:
        """The tags of a job and its packages, in the order of place and name, after one."""
        return self._rows(
            rows.TagRow,
            "WHERE t.job_id = %s AND (t.stage, t.line, t.number, t.name) > (%s, %s, %s, %s)"
            " ORDER BY t.stage, t.line, t.number, t.name LIMIT %s",
            (job.job_id, *after[:3], stored_text(after[3]), limit),
            within=everywhere(self._schemas),
        )

    def content(self, sha256: str) -> bytes | None:
        """Stored bytes."""
        found = self._ask("SELECT content FROM contents WHERE sha256 = %s", (stored_text(sha256),))
        return bytes(found[0][0]) if found else None

    def _job_ids(self, reader: Connection, query: Query, job: rows.JobRow | None) -> list[int] | None:
        """The ids of the jobs that are given, or named in the query."""
        if job is not None:
            return [job.job_id]
        named = jobs_named(query)
        if named is None:
            return None
        found = reader.execute("SELECT job_id FROM jobs WHERE job = ANY(%s)", ([stored_text(name) for name in named],))
        return [job_id for (job_id,) in found]

    def _ask(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._readers.read(lambda reader: _fetch(reader, (statement.encode(), values)))

    def _rows(
        self,
        row: type[AnyRow],
        rest: str,
        values: Sequence[Any],
        *,
        within: str = "",
    ) -> list[AnyRow]:
        table = table_of(row)
        columns = ", ".join(f"t.{column}" for column in table.columns)
        statement = f"{within}SELECT {columns} FROM {table.name} AS t {rest}"
        return [loaded_row(row, found) for found in self._ask(statement, values)]


def _fetch(reader: Connection, statement: tuple[bytes, Sequence[Any]]) -> list[tuple[Any, ...]]:
    return reader.execute(*statement).fetchall()


def _page(key: str, limit: int) -> str:
    return f" ORDER BY {key} LIMIT {limit + 1}"
