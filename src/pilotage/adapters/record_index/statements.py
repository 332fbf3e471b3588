"""The SQL of finding records, for SQLite and PostgreSQL: finds what `provenance.index.query.matches` says.

One row of `index_terms` is one value of an attribute of a record: `term` is its text (or the digest of a long one), `number` that by
which it is ordered, and `at` when the job was submitted. A search starts from the rarest clause if that has few records. Otherwise it reads an index in
its order, latest first, and ends as soon as a page is full: that of a clause with one `=`, that of a range, or that of all records.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pilotage.book.query import Operator
from pilotage.book.query.errors import CursorError
from pilotage.ports.record_index import IndexClause, IndexCondition, IndexQuery, Value

FEW = 4096
"""Records of a clause from which a search may start; more are not counted."""
TERM_BYTES_MAX = 255
"""Longer texts are compared by their digests: an index of PostgreSQL has no room for them."""

RECORD = "e.entry, s.name, e.job, e.revision, e.position, e.owner, e.access, e.name, e.state, e.submitted_at"

_CURSOR = re.compile(r"(?:([0-9]{1,4})/)?(-?[0-9.]{1,40}(?:e[+-]?[0-9]{1,3})?)/([0-9]{1,18})")


class Sql(NamedTuple):
    """A piece of SQL, and the values of its placeholders in order."""

    text: str
    values: tuple[Any, ...] = ()


class Start(NamedTuple):
    """Where a search starts: from the few records of a clause, from one `=`, from the range of a clause; else from all records."""

    few: IndexClause | None = None
    equal: IndexCondition | None = None
    range_clause: int | None = None


class Cursor(NamedTuple):
    """Where a page ended: the time or number by which records are ordered, and the record; and the clause of that number, if it is one."""

    order: float
    entry: int
    range_clause: int | None = None

    def __str__(self) -> str:
        """The text of the cursor."""
        prefix = "" if self.range_clause is None else f"{self.range_clause}/"
        return f"{prefix}{self.order!r}/{self.entry}"


def read_cursor(text: str, query: IndexQuery) -> Cursor:
    """The cursor of a text; raises `CursorError`."""
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise CursorError("this is no cursor of this index", got=text[:40], next_step="ask again without one")
    clause = None if found[1] is None else int(found[1])
    if clause is not None and not (clause < len(query.clauses) and is_range(query.clauses[clause])):
        raise CursorError("this cursor is of another query", got=text[:40], next_step="ask again without one")
    try:
        return Cursor(float(found[2]), int(found[3]), clause)
    except ValueError:
        raise CursorError("this is no cursor of this index", got=text[:40]) from None


def term_of(value: Value) -> str:
    """What a value is compared by."""
    if not isinstance(value, str):
        return repr(float(value) + 0.0)  # zero has two signs
    encoded = value.encode()
    return value if len(encoded) <= TERM_BYTES_MAX else hashlib.sha256(encoded).hexdigest()


def is_equal(clause: IndexClause) -> bool:
    """Whether an index has the records of an indexed clause in the order of time."""
    return len(clause) == 1 and clause[0].operator is Operator.EQUAL


def is_range(clause: IndexClause) -> bool:
    """Whether an index has the records of an indexed clause in the order of a number."""
    return len(clause) == 1 and clause[0].operator.orders


def count_few(clause: IndexClause) -> Sql:
    """How many values of an indexed clause there are, up to `FEW`."""
    found = _candidates(clause)
    return Sql(f"SELECT count(*) FROM (SELECT 1 FROM ({found.text}) AS found LIMIT {FEW}) AS counted", found.values)


def find(query: IndexQuery, *, start: Start, owner: str | None, after: Cursor | None, limit: int, contains: str) -> Sql:
    """Records that match, the latest ones first; the first column is that which orders them.

    `owner` leaves out what is neither theirs nor shared; `contains` is the database's function that finds a text in another.
    """
    joined, order = "index_entries e", "e.at"
    conditions, values = ["e.removed = 0"], list[Any]()
    driver: IndexCondition | None = start.equal
    if start.range_clause is not None:
        [driver] = query.clauses[start.range_clause]
    if driver is not None:
        joined, order = "index_terms d CROSS JOIN index_entries e", "d.at" if driver is start.equal else "d.number"
        compared = _compared(driver, "d.", contains)
        conditions += ["e.entry = d.entry", f"d.indexed = 1 AND d.attribute = {_NUMBER}{compared.text}"]
        values += [driver.attribute, *compared.values]
    if start.equal is not None:
        for bound in _submitted(query):
            conditions.append(bound.text)
            values += bound.values
    if start.range_clause is not None and driver is not None:
        # Of several values of a record within the range, the greatest stands for it.
        greater = _compared(driver, "g.", contains)
        conditions.append(
            f"NOT EXISTS (SELECT 1 FROM index_terms g WHERE g.entry = d.entry AND g.attribute = d.attribute{greater.text}"
            " AND (g.number > d.number OR (g.number = d.number AND g.term > d.term)))"
        )
        values += greater.values
    if start.few is not None:
        found = _candidates(start.few)
        conditions.append(f"e.entry IN ({found.text})")
        values += found.values
    entry = "e.entry" if driver is None else "d.entry"
    if after is not None:
        conditions.append(f"({order}, {entry}) < (?, ?)")
        values += [after.order, after.entry]
    if owner is not None:
        conditions.append("(e.owner = ? OR e.access <> '[]')")
        values.append(owner)
    for clause in query.clauses:
        tests = [_test(each, contains) for each in clause if each is not driver]
        if tests:
            conditions.append(f"({' OR '.join(each.text for each in tests)})")
            values += [value for each in tests for value in each.values]
    # Another storage may have a later revision of the same job.
    conditions.append(
        "NOT EXISTS (SELECT 1 FROM index_entries o WHERE o.job = e.job AND o.removed = 0 AND o.revision > e.revision)"
    )
    return Sql(
        f"SELECT {order}, {RECORD} FROM {joined} CROSS JOIN index_storages s"
        f" WHERE s.storage = e.storage AND {' AND '.join(conditions)} ORDER BY {order} DESC, {entry} DESC LIMIT {limit}",
        tuple(values),
    )


_NUMBER = "(SELECT attribute FROM index_attributes WHERE name = ?)"


def _submitted(query: IndexQuery) -> Iterator[Sql]:
    """What clauses say of the time of submission, for the index that has it."""
    for clause in query.clauses:
        if is_range(clause) and clause[0].attribute == "submitted":
            compared = _compared(clause[0], "d.", "")
            yield Sql(compared.text.removeprefix(" AND ").replace("d.number", "d.at"), compared.values)


def _candidates(clause: IndexClause) -> Sql:
    """The records of an indexed clause."""
    arms: list[str] = []
    values: list[Any] = []
    for each in clause:
        compared = _compared(each, "", "")
        arms.append(f"SELECT entry FROM index_terms WHERE indexed = 1 AND attribute = {_NUMBER}{compared.text}")
        values += [each.attribute, *compared.values]
    return Sql(" UNION ALL ".join(arms), tuple(values))


def _test(condition: IndexCondition, contains: str) -> Sql:
    """Whether a condition holds for the record `e`."""
    compared = _compared(condition, "t.", contains)
    text = f"EXISTS (SELECT 1 FROM index_terms t WHERE t.entry = e.entry AND t.attribute = {_NUMBER}{compared.text})"
    return Sql(f"NOT {text}" if condition.operator.denies else text, (condition.attribute, *compared.values))


def _compared(condition: IndexCondition, table: str, contains: str) -> Sql:
    values = condition.values
    match condition.operator:
        case Operator.EXISTS | Operator.NOT_EXISTS:
            return Sql("")
        case Operator.EQUAL | Operator.NOT_EQUAL:
            return Sql(f" AND {table}term = ?", (term_of(values[0]),))
        case Operator.IN | Operator.NOT_IN:
            return Sql(f" AND {table}term IN ({_marks(values)})", tuple(map(term_of, values)))
        case Operator.CONTAINS:
            found = f"{contains}(coalesce({table}long_text, {table}term), ?)"
            return Sql(f" AND {table}is_number = 0 AND {found} > 0", values)
        case Operator.WITHIN:
            return Sql(f" AND {table}number >= ? AND {table}number < ?", tuple(map(float, values)))
        case order:
            return Sql(f" AND {table}number {order} ?", (float(values[0]),))


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
