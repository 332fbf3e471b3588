"""Puts the program together, for the command line and for Python.

`documents` understands jobs and is offered here; `book` opens, serves and looks after the book.
Everything heavy is imported where it is used, so that small commands are quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pilotage.app.documents.documents import (
    GZIP_MAGIC,
    NOT_WRITTEN,
    SOURCE_BYTES_MAX,
    STANDARD_INPUT,
    CheckResult,
    Converted,
    SidedLoss,
    check,
    check_json,
    convert,
    document_schema,
    draw,
    examine,
    find_document,
    first_document,
    json_text,
    load,
    missing_file_hint,
    read_source,
    shell_words,
    shown_name,
    software_command,
    table_columns,
    text_cells,
    text_of,
)

if TYPE_CHECKING:
    # The command line uses these, too, and knows the language only through this package.
    from pilotage.app.documents.documents import Drawing as Drawing  # offered on
    from pilotage.app.documents.documents import Format as Format  # offered on
    from pilotage.app.documents.documents import LoadedJob as LoadedJob  # offered on
    from pilotage.app.documents.documents import LoadResult as LoadResult  # offered on

__all__ = [
    "GZIP_MAGIC",
    "NOT_WRITTEN",
    "SOURCE_BYTES_MAX",
    "STANDARD_INPUT",
    "CheckResult",
    "Converted",
    "SidedLoss",
    "check",
    "check_json",
    "convert",
    "document_schema",
    "draw",
    "examine",
    "find_document",
    "first_document",
    "json_text",
    "load",
    "missing_file_hint",
    "read_source",
    "shell_words",
    "shown_name",
    "software_command",
    "table_columns",
    "text_cells",
    "text_of",
]
