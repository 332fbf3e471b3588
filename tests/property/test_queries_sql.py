"""SQL finds exactly the rows that the meaning of the query language finds, whatever the query and the rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pilotage.adapters.journals.queries import SQLITE, Compiler, postgresql
from pilotage.adapters.journals.sqlite import schema
from pilotage.adapters.journals.sqlite.connections import _real_of
from pilotage.book.query import (
    ATTRIBUTES,
    BOOK_OPERATORS,
    EXIT_CODES,
    SOURCES,
    STATES,
    Attribute,
    Kind,
    Operator,
    Query,
    QueryError,
    Target,
    from_json,
    matches,
    resolve,
)
from pilotage.book.rows.rows import (
    AttemptFacts,
    EventRow,
    JobRow,
    PackageFacts,
    PackageRow,
    StreamRow,
    TagRow,
    written_facts,
)
from pilotage.book.rows.tables import TABLE_BY_ROW
from pilotage.model.jobs.layout import PackageId

# Few values, so that rows and queries meet; texts that look like numbers, patterns or other types do harm if anything does.
TEXTS = ["a", "b", "A", "1", "1.0", "%", "_", "a'b", 'a"b', "é", "null", "NULL", "\\", "true", "\U0001f600"]
texts = st.sampled_from(TEXTS)
names = st.sampled_from(["study", "a.b", "it's", "né", "%", '"'])
moments = st.one_of(
    st.sampled_from([0.0, 1.0, 1.5, 1_700_000_000.0, 1_700_000_000.123457]),
    st.floats(0, 2e9).map(lambda moment: round(moment, 6)),
)
counts = st.one_of(st.integers(0, 4), st.sampled_from([2**53, 2**63 - 1]))
places = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)).map(lambda parts: PackageId(*parts))
VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.TEXT: texts,
    Kind.STATE: st.sampled_from(STATES[:4]),
    Kind.EXIT_CODE: st.sampled_from(EXIT_CODES[:3]),
    Kind.SOURCE: st.sampled_from(SOURCES),
    Kind.REASON: texts,
    Kind.TIME: moments,
    Kind.COUNT: counts,
    Kind.FLAG: st.booleans(),
    Kind.JOB: st.sampled_from(["j1", "j2", "J1"]),
    Kind.PACKAGE: places.map(lambda place: place.dotted),
}
LISTS = (Operator.IN, Operator.NOT_IN)


@st.composite
def conditions(draw: st.DrawFn, attributes: list[Attribute]) -> dict[str, object]:
    attribute = draw(st.sampled_from(attributes))
    operator = draw(st.sampled_from([each for each in BOOK_OPERATORS if attribute.kind.ordered or not each.orders]))
    sizes = (1, 3) if operator in LISTS else (2, 2) if operator is Operator.WITHIN else (1, 1)
    values = draw(st.lists(VALUES[attribute.kind], min_size=sizes[0], max_size=sizes[1]))
    if operator is Operator.WITHIN:
        values = sorted(values)
    name = f"tag.{draw(names)}" if attribute.name == "tag" else attribute.name
    return {"attribute": name, "operator": str(operator), "values": values}


@st.composite
def queries(draw: st.DrawFn, target: Target) -> Query:
    attributes = [each for each in ATTRIBUTES.values() if target in each.targets]
    groups = st.lists(conditions(attributes), min_size=1, max_size=3).map(lambda group: {"any": group})
    try:
        return resolve(from_json({"all": draw(st.lists(groups, max_size=3))}), now=1.0)
    except QueryError as error:
        assume("this range is empty" not in error.what)
        raise


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


tags = st.dictionaries(names, texts, max_size=2)
jobs = st.builds(
    JobRow,
    job_id=st.just(1),
    job=VALUES[Kind.JOB],
    name=texts,
    owner=texts,
    parent=optional(texts),
    state=VALUES[Kind.STATE],
    held=st.integers(0, 1),
    cause=optional(texts),
    submitted_at=optional(moments),
    entered_at=optional(moments),
    updated_at=moments,
)
attempts = st.dictionaries(st.integers(1, 12), st.builds(AttemptFacts, pilot=optional(texts)), max_size=3)


@st.composite
def packages(draw: st.DrawFn) -> PackageRow:
    tried = draw(attempts)
    facts = PackageFacts(
        state=draw(VALUES[Kind.STATE]),
        site=draw(optional(texts)),
        node=draw(optional(texts)),
        activity=draw(st.one_of(st.just(""), texts)),
        exit_code=draw(optional(VALUES[Kind.EXIT_CODE])),
        reason=draw(optional(texts)),
        cause=draw(optional(texts)),
        held=draw(st.integers(0, 1)),
        dropped=draw(st.integers(0, 1)),
        entered_at=draw(optional(moments)),
        updated_at=draw(moments),
        attempts=tried,
        attempt=draw(st.sampled_from(sorted(tried))) if tried else None,
        tags={name: (value, (1, 0, 0, 1, "s")) for name, value in draw(tags).items()},
    )
    place = draw(places)
    return PackageRow(1, place.stage, place.line, place.number, facts)


@st.composite
def events(draw: st.DrawFn) -> EventRow:
    place = draw(optional(places)) or PackageId(0, 0, 0)
    return EventRow(
        position=draw(st.integers(1, 5)), stream_id=1, n=1, type=draw(texts), version=1, time=draw(moments), received=0.0,
        skewed=0, epoch=1, seen=0, job_id=draw(st.sampled_from([None, 1])), stage=place.stage, line=place.line,
        number=place.number, attempt=draw(st.integers(0, 3)), pilot=draw(optional(texts)), site=draw(optional(texts)),
        data="{}",
    )  # fmt: skip


@contextmanager
def book() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.create_function("real_of", 1, _real_of, deterministic=True)
        for statement in schema.statements():
            connection.execute(statement)
        yield connection


def put(connection: sqlite3.Connection, *rows: Any) -> None:
    for row in rows:
        table = TABLE_BY_ROW[type(row)]
        marks = ", ".join("?" * len(table.columns))
        connection.execute(f"INSERT INTO {table.name} VALUES ({marks})", msgspec.structs.astuple(row))


def found(connection: sqlite3.Connection, query: Query, target: Target, source: str) -> bool:
    fits = Compiler(SQLITE, target).filter(query)
    return connection.execute(f"SELECT 1 FROM {source} WHERE {fits.text}", fits.parameters).fetchone() is not None


def job_attributes(row: JobRow) -> dict[str, object]:
    return {
        "job": row.job, "name": row.name, "parent": row.parent, "owner": row.owner, "state": row.state,
        "held": bool(row.held), "cause": row.cause, "submitted": row.submitted_at, "entered": row.entered_at,
        "updated": row.updated_at,
    }  # fmt: skip


def package_attributes(job: JobRow, row: PackageRow) -> dict[str, object]:
    facts = row.facts
    shown = facts.attempts.get(facts.attempt) if facts.attempt is not None else None
    return {
        "job": job.job, "name": job.name, "parent": job.parent, "owner": job.owner, "submitted": job.submitted_at,
        "package": PackageId(row.stage, row.line, row.number).dotted, "state": facts.state, "site": facts.site,
        "node": facts.node, "pilot": shown.pilot if shown else None, "exit_code": facts.exit_code,
        "reason": facts.reason, "cause": facts.cause, "activity": facts.activity or None,
        "entered": facts.entered_at, "updated": facts.updated_at, "attempts": len(facts.attempts),
        "held": bool(facts.held), "dropped": bool(facts.dropped),
        "tags": {name: value for name, (value, _) in facts.tags.items()},
    }  # fmt: skip


@given(queries(Target.JOBS), jobs, tags)
def test_a_job_is_found_when_it_matches(query: Query, job: JobRow, own_tags: dict[str, str]) -> None:
    with book() as connection:
        put(connection, job, *(TagRow(1, 0, 0, 0, name, value) for name, value in own_tags.items()))
        put(connection, *(TagRow(1, 1, 1, 1, name, "of a package") for name in own_tags))
        expected = matches(query, {**job_attributes(job), "tags": own_tags})
        assert found(connection, query, Target.JOBS, "jobs AS j") is expected


@given(queries(Target.PACKAGES), jobs, packages())
@example(
    # A decimal that SQLite of some versions reads to the double beside the nearest one.
    query=from_json(
        {"all": [{"any": [{"attribute": "entered", "operator": "=", "values": [1_700_000_000.123457]}]}]},
        target=Target.PACKAGES,
    ),
    job=JobRow(job_id=1, job="j1"),
    row=PackageRow(1, 1, 1, 1, PackageFacts(entered_at=1_700_000_000.123457)),
)
def test_a_package_is_found_when_it_matches(query: Query, job: JobRow, row: PackageRow) -> None:
    facts = row.facts
    with book() as connection:
        put(connection, job)
        key = (row.job_id, row.stage, row.line, row.number)
        values = (*key, facts.state, facts.site, written_facts(facts))
        connection.execute("INSERT INTO package_facts VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        put(connection, *(TagRow(*key, name, value) for name, (value, _) in facts.tags.items()))
        put(connection, *(TagRow(1, 0, 0, 0, name, "of the job") for name in facts.tags))
        expected = matches(query, package_attributes(job, row))
        source = "package_facts AS p JOIN jobs AS j ON j.job_id = p.job_id"
        assert found(connection, query, Target.PACKAGES, source) is expected


@given(queries(Target.EVENTS), jobs, events(), VALUES[Kind.SOURCE], texts)
def test_an_event_is_found_when_it_matches(query: Query, job: JobRow, row: EventRow, source: str, stream: str) -> None:
    with book() as connection:
        put(connection, job, row, StreamRow(stream_id=1, source=source, stream=stream))
        attributes = {
            "job": job.job if row.job_id is not None else None, "position": row.position,
            "package": PackageId(row.stage, row.line, row.number).dotted if row.stage else None, "pilot": row.pilot,
            "site": row.site, "type": row.type, "source": source, "stream": stream, "attempt": row.attempt or None,
            "time": row.time,
        }  # fmt: skip
        tables = "events AS e LEFT JOIN jobs AS j ON j.job_id = e.job_id JOIN streams AS s ON s.stream_id = e.stream_id"
        assert found(connection, query, Target.EVENTS, tables) is matches(query, attributes)


@pytest.mark.parametrize("target", Target)
@given(data=st.data())
def test_every_placeholder_has_its_value_in_both_dialects(target: Target, data: st.DataObject) -> None:
    query = data.draw(queries(target))
    for dialect in (SQLITE, postgresql(lambda text: f"<{text}>")):
        fits = Compiler(dialect, target).filter(query)
        assert fits.text.count(dialect.placeholder) == len(fits.parameters)
        told = [value for value in fits.parameters if isinstance(value, str)]
        assert dialect is SQLITE or all(value.startswith("<") for value in told)
