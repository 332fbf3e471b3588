"""`pilotage convert`: a document in another format, and a list of what that format cannot say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilotage.cli.options import FORMATS, chosen_format, document_argument, format_option, load_document, output_option
from pilotage.cli.output import emit, say_to_reader, shown, write_files

if TYPE_CHECKING:
    from pilotage.app import SidedLoss

_KEYWORDS_SHOWN_MAX = 6


@click.command()
@document_argument
@format_option
@click.option("--to", "target", type=click.Choice(FORMATS), required=True, help="The format to write.")
@output_option
@click.option(
    "--report",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="Write what was lost on the way to this file, as a JSON array.",
)
def convert(file: str | None, source_format: str, target: str, output: str, report: str | None) -> None:
    """Write a document in another format, or in the canonical form of our own.

    DAGMan takes several files: with -o DIR/NAME.dag its submit files go beside NAME.dag; without -o all are printed,
    each under a line with its name.
    """
    from pilotage import app

    loaded = load_document(file, source_format)
    converted = app.convert(loaded, chosen_format(target) or "yaml")
    if output == "-":
        emit(_printed(converted.files))
    else:
        write_files(_placed(converted.files, output))
    if report is not None:
        emit([app.json_text(converted.losses)], output=report)
    # From our own form to our own form nothing can be lost, and nobody asks.
    if converted.losses or (loaded.format, target) != ("yaml", "yaml"):
        say_to_reader(_summary(converted.losses, reported=report is not None))


def _printed(files: Mapping[str, str]) -> Iterator[str]:
    for name, text in files.items():
        if len(files) > 1:
            yield f"==> {shown(name)} <==\n"
        yield text


def _placed(files: Mapping[str, str], output: str) -> dict[str, Iterable[str]]:
    """Each file with its place: the main one where it was asked for, the others beside it."""
    main, *others = files
    folder = Path(output).parent
    return {output: [files[main]], **{str(folder / name): [files[name]] for name in others}}


def _summary(losses: tuple[SidedLoss, ...], *, reported: bool) -> str:
    if not losses:
        return "nothing was lost"
    counted = Counter(loss.keyword for loss in losses).most_common()
    shown = ", ".join(f"{word} ({count:,})" if count > 1 else word for word, count in counted[:_KEYWORDS_SHOWN_MAX])
    more = ", …" if len(counted) > _KEYWORDS_SHOWN_MAX else ""
    where = "" if reported else "; --report FILE lists them"
    return f"{len(losses):,} thing{' was' if len(losses) == 1 else 's were'} lost: {shown}{more}{where}"
