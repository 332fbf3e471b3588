"""An index of job records: their attributes, fed from storages in any order, and which records a query finds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from pilotage.book.query.conditions import Operator
from pilotage.book.query.values import write_text, write_time
from pilotage.model.errors import PilotageError
from pilotage.model.events.payloads import AccessRule

FOUND_MAX = 10_000
"""Records of one answer."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?")
_CALENDAR = re.compile(
    r"([0-9]{4})-([0-9]{2})(?:-([0-9]{2})(?:[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)([Zz]|[+-][0-9]{2}:[0-9]{2})?)?)?"
)


class RecordIndexError(PilotageError):
    """The index of records cannot be read or written."""


class OtherAttributes(RecordIndexError):
    """The index was made for other attributes: make it again with `--rebuild`."""


class UnknownAttribute(PilotageError):
    """No record has such an attribute."""


class UnknownFeed(PilotageError):
    """No index of this name is registered here: register it first."""


Value = str | float
"""The value of an attribute: a text, or a number or time (seconds since 1970)."""


class RecordEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an index knows of a job's record in one storage, as it was at a position; or that it is there no more."""

    job: str
    position: int
    removed: bool = False
    revision: int = 0
    owner: str = ""
    access: tuple[AccessRule, ...] = ()
    name: str = ""
    state: str = ""
    submitted_at: float | None = None
    values: dict[str, tuple[Value, ...]] = {}


class IndexCondition(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison. All its values are texts, or all are numbers; those of a range are its start and its exclusive end."""

    attribute: str
    operator: Operator
    values: tuple[Value, ...] = ()
    is_time: bool = False  # its numbers are written as times

    def __str__(self) -> str:
        """The canonical text of the condition."""
        texts = [self._text(value) for value in self.values]
        match self.operator:
            case Operator.IN | Operator.NOT_IN:
                return f"{_written(self.attribute)} {self.operator} ({', '.join(texts)})"
            case Operator.WITHIN:
                return f"{_written(self.attribute)} within {'..'.join(texts)}"
            case Operator.EXISTS | Operator.NOT_EXISTS:
                return f"{_written(self.attribute)} {self.operator}"
            case _:
                return f"{_written(self.attribute)}{self.operator}{texts[0]}"

    def _text(self, value: Value) -> str:
        if isinstance(value, str):
            return write_text(value)
        return write_time(value) if self.is_time else repr(float(value))


def _written(attribute: str) -> str:
    """The name of an attribute, its last part quoted where it must be."""
    bare = write_text(attribute)
    if not bare.startswith('"'):
        return attribute
    for prefix in PREFIXES:
        if attribute.startswith(prefix):
            return prefix + write_text(attribute.removeprefix(prefix))
    return attribute


PREFIXES = ("tag.", "custom.", "node.software.", "node.variable.")
"""Families of attributes whose names users choose."""

IndexClause = tuple[IndexCondition, ...]
"""Alternatives: one of them must hold."""


class IndexQuery(msgspec.Struct, frozen=True):
    """Clauses that must all hold; without any, everything matches."""

    clauses: tuple[IndexClause, ...] = ()

    def __str__(self) -> str:
        """The canonical text: parsing it gives an equal query."""
        return " and ".join(
            f"({' or '.join(map(str, clause))})" if len(clause) > 1 else str(clause[0]) for clause in self.clauses
        )


class IndexedAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes that an index keeps, and those of them that a query may be served by.

    `tag` means every tag, `tag.NAME` only that one; likewise `custom`, `node.software` and `node.variable`.
    """

    queryable: tuple[str, ...]
    indexed: tuple[str, ...]

    def keeps(self, attribute: str) -> bool:
        """Whether the index has an attribute."""
        return _is_named(attribute, self.queryable)

    def serves(self, attribute: str) -> bool:
        """Whether the index finds records by an attribute."""
        return attribute == "job" or (_is_named(attribute, self.indexed) and self.keeps(attribute))

    def serve(self, clause: IndexClause) -> bool:
        """Whether the index finds the records of a clause: each alternative compares an indexed attribute with values."""
        return all(
            self.serves(each.attribute) and not each.operator.denies and each.operator is not Operator.CONTAINS
            for each in clause
        )


def _is_named(attribute: str, names: Sequence[str]) -> bool:
    return attribute in names or any(
        attribute.startswith(prefix) and prefix.removesuffix(".") in names for prefix in PREFIXES
    )


class Readable(msgspec.Struct, frozen=True, kw_only=True):
    """Which records an asker may read: their own, and shared ones that a function lets them read."""

    owner: str
    may: Callable[[str, tuple[AccessRule, ...]], bool]  # of the owner and the access list


class FoundRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record that a query found, and the storage where it lies."""

    storage: str
    job: str
    revision: int
    position: int
    owner: str
    name: str
    state: str
    submitted_at: float | None = None


class FoundRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the records that a query found, the latest ones first; `next` is set if there are more."""

    records: tuple[FoundRecord, ...]
    next: str | None = None


class RecordIndex(Protocol):
    """An index of records of one or more storages. Every method raises `RecordIndexError`."""

    @property
    def attributes(self) -> IndexedAttributes:
        """The attributes of this index."""
        ...

    def position(self, storage: str) -> int:
        """How far a storage was read; 0: not at all."""
        ...

    def storages(self) -> Mapping[str, int]:
        """How far each storage was read."""
        ...

    def take(self, storage: str, entries: Sequence[RecordEntry], *, position: int = 0) -> None:
        """Take entries, in any order and any number of times: of each job the one with the highest position counts.

        With a position, the storage was read up to there. All is durable on return, or nothing was taken.
        """
        ...

    def forget(self, storage: str) -> None:
        """Remove all of a storage."""
        ...

    def find(
        self, query: IndexQuery, *, readable: Readable | None, limit: int, after: str | None = None
    ) -> FoundRecords:
        """The newest revisions that match, of those that may be read (None: all); `after` is the `next` of the page before."""
        ...

    def contents(self) -> Iterator[tuple[str, RecordEntry]]:
        """Every record of the index with its storage, ordered by storage and job."""
        ...

    def close(self) -> None:
        """Close the index."""
        ...


def number_of(text: str) -> float | None:
    """The number by which a text is ordered: its own, or that of a time of the calendar; None if it is neither."""
    if _NUMBER.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else None
    span = calendar_span(text)
    return None if span is None else span[0]


def calendar_span(text: str) -> tuple[float, float] | None:
    """The start and the end of a month, a day or a moment, in seconds since 1970; None for other texts."""
    found = _CALENDAR.fullmatch(text)
    if found is None:
        return None
    year, month, day, clock, zone = found.groups()
    try:
        if day is None:
            start = datetime(int(year), int(month), 1, tzinfo=UTC)
            end = datetime(int(year) + (month == "12"), int(month) % 12 + 1, 1, tzinfo=UTC)
            return start.timestamp(), end.timestamp()
        moment = datetime.fromisoformat(
            f"{year}-{month}-{day}T{clock or '00:00'}{(zone or 'Z').upper().replace('Z', '+00:00')}"
        )
    except (ValueError, OverflowError):
        return None
    seconds = moment.timestamp()
    return (seconds, seconds + 86_400.0) if clock is None else (seconds, seconds)
