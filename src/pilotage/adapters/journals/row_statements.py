"""SQL for rows that are found and removed by the key of their table: the same text for SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilotage.book.rows import Row
from pilotage.book.tables import TABLE_BY_ROW

Statement = tuple[str, list[Any]]
"""A text and its parameters."""


def find_statement(
    row: type[Row],
    *,
    having: Mapping[str, str | int],
    after: tuple[str | int, ...],
    limit: int | None,
    mark: str,
) -> Statement:
    """Select rows with some values in the order of their key, behind a key; `mark` stands for a parameter."""
    table = TABLE_BY_ROW[row]
    where, parameters = _where(row, having, key=after, order=">", mark=mark)
    text = f"SELECT {', '.join(table.columns)} FROM {table.name}{where} ORDER BY {', '.join(table.key)}"
    return (text, parameters) if limit is None else (f"{text} LIMIT {mark}", [*parameters, limit])


def remove_statement(
    row: type[Row], *, having: Mapping[str, str | int], through: tuple[str | int, ...], mark: str
) -> Statement:
    """Delete rows with some values, up to a key where one is given."""
    where, parameters = _where(row, having, key=through, order="<=", mark=mark)
    return f"DELETE FROM {TABLE_BY_ROW[row].name}{where}", parameters


def _where(
    row: type[Row], having: Mapping[str, str | int], *, key: tuple[str | int, ...], order: str, mark: str
) -> Statement:
    conditions = [f"{column} = {mark}" for column in having]
    if key:
        columns = TABLE_BY_ROW[row].key
        conditions.append(f"({', '.join(columns)}) {order} ({', '.join([mark] * len(columns))})")
    return f" WHERE {' AND '.join(conditions)}" if conditions else "", [*having.values(), *key]
