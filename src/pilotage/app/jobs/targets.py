"""Tells documents from targets among the words of a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilotage.app.documents.documents import STANDARD_INPUT, examine, find_document, installed_schemes, named_from
from pilotage.app.jobs.submit import Source, document_source
from pilotage.model.errors import DocumentError

if TYPE_CHECKING:
    from pilotage.app.documents.documents import Format
    from pilotage.language.text.locators import InstalledSchemes

DOCUMENT_ENDINGS = (".yaml", ".yml", ".dag")
"""A first word with this ending is a document; to make an output of such a name, put the document before it."""


def source_for(
    words: Sequence[str],
    *,
    source_format: Format | None,
    schemes: InstalledSchemes | None = installed_schemes,
    parameters: Mapping[str, Any],
) -> Source:
    """The document that the words name, or the current folder's, with the other words as targets.

    `schemes` are those of the stores that the job can use; None: those of a service that may be elsewhere.

    Raises `DocumentError` if there is no document.
    """
    document, targets = _split_words(words, source_format=source_format, parameters=parameters)
    return document_source(
        document, source_format=source_format, schemes=schemes, parameters=parameters, targets=targets
    )


def _split_words(
    words: Sequence[str], *, source_format: Format | None, parameters: Mapping[str, Any]
) -> tuple[str | None, Sequence[str]]:
    """The document, None for the current folder's, and the targets."""
    if not words:
        return None, ()
    first = words[0]
    if not first or first == STANDARD_INPUT or first.endswith(DOCUMENT_ENDINGS):
        return first, words[1:]
    try:
        here = find_document()
    except DocumentError:
        return first, words[1:]
    there = Path(first)
    if not there.exists():
        return (None, words) if not first.endswith("/") else (first, words[1:])
    if not there.is_file() or there.samefile(here):
        return first, words[1:]
    # A file of any name may be a document, or an output of an earlier run: the document here decides.
    wanted = named_from(Path().absolute(), first)
    found = examine(None, source_format=source_format, parameters=parameters, targets=wanted)
    if any(problem.code == "unknown-target" for problem in found.report.errors):
        return first, words[1:]
    return None, words
