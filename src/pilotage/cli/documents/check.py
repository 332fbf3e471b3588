"""`pilotage check`, `graph` and `convert`: check a document, draw its graph, convert it to another format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click

from pilotage.cli.shared.numpy_loader import import_numpy_quickly
from pilotage.cli.shared.options import (
    FORMATS,
    chosen_format,
    command_with,
    document_argument,
    format_option,
    load_document,
    output_option,
    parameter_options,
)
from pilotage.cli.shared.output import columns, duration, emit, plural, print_message, printable, write_files
from pilotage.model.exit_codes import ExitCode

if TYPE_CHECKING:
    from pilotage.app import CheckResult, Drawing, SidedLoss


@click.command()
@document_argument
@format_option
@parameter_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for other programs.")
def check(file: str | None, source_format: str, *, parameters: dict[str, str], as_json: bool) -> int:
    """Check a document and count its stages, packages and files.

    All errors are shown at once. Exit code 0: valid, also with warnings; 2: errors.
    """
    import_numpy_quickly()
    from pilotage import app
    from pilotage.cli.shared.problems import show_problems

    verdict = app.check(file, source_format=chosen_format(source_format), parameters=parameters)
    if as_json:
        emit([app.check_json(verdict)])
    else:
        show_problems(verdict.errors, severity="error")
        show_problems(verdict.warnings, severity="warning")
        emit(f"{printable(line)}\n" for line in _summary(verdict, file or verdict.file))
    return ExitCode.COMPLETE if verdict.valid else ExitCode.BAD_INPUT


def _summary(verdict: CheckResult, name: str) -> Iterator[str]:
    source = verdict.file
    problems = [plural(len(verdict.errors), "error"), plural(len(verdict.warnings), "warning")]
    if not verdict.valid:
        yield f"{source}: {', '.join(problems if verdict.warnings else problems[:1])}"
        return
    warned = f", {problems[1]}" if verdict.warnings else ""
    yield f"{source}: valid{warned}"
    counts = [
        plural(verdict.stages or 0, "stage"),
        plural(verdict.lines or 0, "line"),
        plural(verdict.packages or 0, "package"),
        plural(verdict.binaries or 0, "binary"),
        plural(verdict.files or 0, "file"),
        plural(verdict.edges or 0, "edge"),
    ]
    yield f"  {verdict.job}: {', '.join(counts)}"
    if verdict.moved:
        yield f"  {verdict.moved}"
    if verdict.critical_path_seconds is not None:
        known = " without late stages" if verdict.late else ""
        yield f"  critical path{known}: {duration(verdict.critical_path_seconds)}"
    for late in verdict.late:
        yield f"  stage {late.stage} ({late.name}) is late, over {', '.join(late.patterns)}: its packages are not known yet"
    if verdict.losses:
        things = f"{verdict.losses:,} thing{'' if verdict.losses == 1 else 's'}"
        yield f"  {things} in it {'has' if verdict.losses == 1 else 'have'} no meaning here; {command_with('pilotage convert', name)} --to yaml --report FILE lists them"


# `pilotage graph`: the dependency graph as text, SVG, DOT or JSON.

DRAWINGS: tuple[Drawing, ...] = ("text", "dot", "json", "svg")


@click.command()
@document_argument
@format_option
@parameter_options
@click.option(
    "--format",
    "word",
    type=click.Choice(DRAWINGS),
    help="Draw it in this format; without it, the one that the extension of OUT names, or else text.",
)
@output_option
def graph(file: str | None, source_format: str, word: str | None, output: str, *, parameters: dict[str, str]) -> None:
    """Draw the dependency graph of a document.

    text and svg show every package of a small job and the activities of a large one; dot and json have every package
    and every edge.
    """
    from pilotage import app

    drawing = _drawing_for(word or PurePath(output).suffix.removeprefix(".").lower())
    loaded = load_document(file, source_format, parameters)
    emit(app.draw(loaded, drawing, columns=columns()), output=output)


def _drawing_for(word: str) -> Drawing:
    """The drawing format that `--format` or the extension of a file names."""
    if word in ("", "txt"):
        return "text"
    found = next((known for known in DRAWINGS if known == word), None)
    if found is None:
        raise click.UsageError(
            f"No drawing format has the extension .{word}: use .svg, .dot, .json or .txt, or --format."
        )
    return found


# `pilotage convert`: a document in another format, and a list of what that format cannot express.

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
    help="Write what the conversion lost to FILE, as a JSON array.",
)
def convert(file: str | None, source_format: str, target: str, output: str, report: str | None) -> None:
    """Convert a document to another format, or to its canonical form.

    DAGMan needs several files: with -o DIR/NAME.dag the submit files are written beside NAME.dag; without -o all files are
    printed, each below a line with its name.
    """
    from pilotage import app

    loaded = load_document(file, source_format)
    converted = app.convert(loaded, chosen_format(target) or "yaml")
    if output == "-":
        emit(_printed(converted.files))
    else:
        write_files(_by_path(converted.files, output))
    if report is not None:
        emit([app.json_text(converted.losses)], output=report)
    # From YAML to YAML nothing can be lost, so nothing is reported.
    if converted.losses or (loaded.format, target) != ("yaml", "yaml"):
        print_message(_conversion_summary(converted.losses, reported=report is not None))


def _printed(files: Mapping[str, str]) -> Iterator[str]:
    for name, text in files.items():
        if len(files) > 1:
            yield f"==> {printable(name)} <==\n"
        yield text


def _by_path(files: Mapping[str, str], output: str) -> dict[str, Iterable[str]]:
    """The files by path: the main one as OUT says, the others beside it."""
    main, *others = files
    folder = Path(output).parent
    return {output: [files[main]], **{str(folder / name): [files[name]] for name in others}}


def _conversion_summary(losses: tuple[SidedLoss, ...], *, reported: bool) -> str:
    if not losses:
        return "nothing was lost"
    counted = Counter(loss.keyword for loss in losses).most_common()
    shown = ", ".join(f"{word} ({count:,})" if count > 1 else word for word, count in counted[:_KEYWORDS_SHOWN_MAX])
    more = ", …" if len(counted) > _KEYWORDS_SHOWN_MAX else ""
    where = "" if reported else "; --report FILE lists them"
    return f"{len(losses):,} thing{' was' if len(losses) == 1 else 's were'} lost: {shown}{more}{where}"
