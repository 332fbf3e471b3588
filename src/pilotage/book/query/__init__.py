"""The query language of the book: parses text or JSON into a checked query, independent of storage."""

from pilotage.book.query.attributes import (
    ATTRIBUTES,
    EXIT_CODES,
    SOURCES,
    STATES,
    Attribute,
    Kind,
    Target,
    default_indexed,
    find_attribute,
    indexed_names,
)
from pilotage.book.query.check import Named, Plan, check_target, served_by
from pilotage.book.query.conditions import (
    CONDITIONS_MAX,
    EVERYTHING,
    LENGTH_BYTES_MAX,
    VALUES_MAX,
    Clause,
    Condition,
    Operator,
    Query,
    canonical,
    holds,
    matches,
    resolve,
)
from pilotage.book.query.cursor import Cursor, decode_cursor, encode_cursor
from pilotage.book.query.errors import CursorError, QueryError, QueryTooBroad
from pilotage.book.query.parse import from_json, parse, to_json
from pilotage.book.query.values import Ago, Value

__all__ = [
    "ATTRIBUTES",
    "CONDITIONS_MAX",
    "EVERYTHING",
    "EXIT_CODES",
    "LENGTH_BYTES_MAX",
    "SOURCES",
    "STATES",
    "VALUES_MAX",
    "Ago",
    "Attribute",
    "Clause",
    "Condition",
    "Cursor",
    "CursorError",
    "Kind",
    "Named",
    "Operator",
    "Plan",
    "Query",
    "QueryError",
    "QueryTooBroad",
    "Target",
    "Value",
    "canonical",
    "check_target",
    "decode_cursor",
    "default_indexed",
    "encode_cursor",
    "find_attribute",
    "from_json",
    "holds",
    "indexed_names",
    "matches",
    "parse",
    "resolve",
    "served_by",
    "to_json",
]
