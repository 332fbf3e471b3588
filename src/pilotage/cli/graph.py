"""`pilotage graph`: who waits for whom, as text, SVG, DOT or JSON."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

import click

from pilotage.cli.options import document_argument, format_option, load_document, output_option, parameter_options
from pilotage.cli.output import columns, emit

if TYPE_CHECKING:
    from pilotage.app import Drawing

DRAWINGS: tuple[Drawing, ...] = ("text", "dot", "json", "svg")


@click.command()
@document_argument
@format_option
@parameter_options
@click.option(
    "--format",
    "word",
    type=click.Choice(DRAWINGS),
    help="How to draw it; none: what the ending of OUT says, otherwise text.",
)
@output_option
def graph(file: str | None, source_format: str, word: str | None, output: str, *, parameters: dict[str, str]) -> None:
    """Draw the graph that a document's files imply.

    text and svg show every package of a small job and the activities of a large one; dot and json have every package
    and every edge.
    """
    from pilotage import app

    drawing = _drawing_for(word or PurePath(output).suffix.removeprefix(".").lower())
    loaded = load_document(file, source_format, parameters)
    emit(app.draw(loaded, drawing, columns=columns()), output=output)


def _drawing_for(word: str) -> Drawing:
    """The drawing that a word of `--format` or the ending of a file's name stands for."""
    if word in ("", "txt"):
        return "text"
    found = next((known for known in DRAWINGS if known == word), None)
    if found is None:
        raise click.UsageError(f"No drawing ends in .{word}: use .svg, .dot, .json or .txt, or say --format.")
    return found
