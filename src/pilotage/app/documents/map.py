"""`pilotage map`: one command over many items, as a job without a document.

The replacement strings are those of GNU parallel. The command is split into words once, and the words are passed on as
they are; an item never reaches a shell unless one is requested, and then it is quoted.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pilotage.language import DiskFolder, LoadedJob, RecordingLists, Report, expand
from pilotage.language.parsing.records import shell_words
from pilotage.language.text.names import tidy_name, why_outside
from pilotage.language.text.patterns import literal
from pilotage.language.text.templates import part_of_name
from pilotage.model.errors import DocumentError, PilotageError
from pilotage.model.jobs.definition import (
    Binary,
    Combination,
    Definition,
    InputFile,
    Iteration,
    Line,
    OutputFile,
    Package,
    Source,
    Stage,
)

NAME_DEFAULT = "map"
EVERYTHING = "(?s:.*)"
"""By default, every file that a command leaves behind is an output."""

_REPLACEMENTS = {
    "{}": "{item}",
    "{.}": "{bare}",
    "{/}": "{item.name}",
    "{//}": "{item.parent}",
    "{/.}": "{item.stem}",
    "{#}": "{number}",
}
_BRACES = re.compile(r"\{(?:\.|/|//|/\.|#)?\}|[{}]")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._+-]+")


class MapRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A mapping: a command over items; or, without a command, items that are commands themselves."""

    command: str | None = None
    items: tuple[str, ...]
    job: str = ""
    outputs: tuple[str, ...] = ()
    shell: bool = False


def map_job(request: MapRequest, *, folder: Path) -> LoadedJob:
    """The job of a mapping, checked and expanded; raises `PilotageError` if it is empty or faulty."""
    definition = definition_of(request, folder=folder)
    report = Report("map")
    expansion = expand(definition, RecordingLists(DiskFolder(folder)), report)
    if expansion is None or report.errors:
        raise DocumentError(report.errors)
    return LoadedJob(definition, expansion, (), (), "yaml")


def definition_of(request: MapRequest, *, folder: Path) -> Definition:
    """The definition: one stage, with a package for each item."""
    if not request.items:
        raise PilotageError("there are no items to run the command for", next_step="name files or other items")
    command = request.command
    lines = _commands(request, folder) if command is None else _over_items(request, command, folder)
    first = request.items[0] if command is None else command
    return Definition(job=request.job or _job_name(first), stages=(Stage(name=NAME_DEFAULT, lines=tuple(lines)),))


# --- one command over items -------------------------------------------------------------------------------------------


def _over_items(request: MapRequest, command: str, folder: Path) -> list[Line]:
    if not command.strip():
        raise PilotageError("the command is empty", next_step="say what to run, such as: pilotage map 'wc {}' *.txt")
    command = command if _replaced(command) != _protected(command) else f"{command} {{}}"
    # The number of an item is its place in the list, whichever line it is in.
    found = [(number, *_placed(item, folder)) for number, item in enumerate(request.items, 1)]
    parts = ([each for each in found if each[2]], [each for each in found if not each[2]])
    return [_line(request, command, part, folder=folder, takes=part[0][2]) for part in parts if part]


def _line(
    request: MapRequest, command: str, part: Sequence[tuple[int, str, bool]], *, folder: Path, takes: bool
) -> Line:
    values = tuple(item for _, item, _ in part)
    inputs = ((InputFile(name="{item}"),) if takes else ()) + _named_in(command, folder)
    outputs = tuple(OutputFile(name=_replaced(name)) for name in request.outputs) or (
        OutputFile(expression=EVERYTHING),
    )
    if request.shell:
        binary = Binary(shell=_replaced(command), inputs=inputs, outputs=outputs)
    else:
        binary = Binary(run=tuple(map(_replaced, _words(command))), inputs=inputs, outputs=outputs)
    return Line(each=_each(values, tuple(str(number) for number, _, _ in part), binary), packages=(_package(binary),))


def _each(values: tuple[str, ...], numbers: tuple[str, ...], binary: Binary) -> Iteration:
    """The items, with those derived values of each that the command uses."""
    text = " ".join([*binary.run, binary.shell, *(output.name for output in binary.outputs)])
    sources = [Source(variable="item", values=values)]
    if "{bare}" in text:
        sources.append(Source(variable="bare", values=tuple(map(_bare, values))))
    if "{number}" in text:
        sources.append(Source(variable="number", values=numbers))
    return sources[0] if len(sources) == 1 else Combination(operator="dot", of=tuple(sources))


def _bare(item: str) -> str:
    """An item without its last extension: `a/b.tar.gz` is `a/b.tar`."""
    return item.removesuffix(part_of_name(item, "suffix"))


def _package(binary: Binary) -> Package:
    return Package(binaries=(binary,))


def _placed(item: str, folder: Path) -> tuple[str, bool]:
    """An item as a command in another folder can use it, and whether it is a required file of this folder.

    Files elsewhere, and folders, get their absolute path.
    """
    if not item or "\0" in item or not os.path.lexists(path := folder / item):
        return item, False
    if not why_outside(item) and path.is_file():
        return item, True
    return os.path.abspath(path), False  # noqa: PTH100 # links stay as they are


# --- commands, one on each line ---------------------------------------------------------------------------------------


def _commands(request: MapRequest, folder: Path) -> list[Line]:
    if request.outputs:
        raise PilotageError(
            "different commands make different files", subject="--output", next_step="leave it out: all are taken"
        )
    return [Line(packages=(_package(_own_command(command, request, folder)),)) for command in request.items]


def _own_command(command: str, request: MapRequest, folder: Path) -> Binary:
    inputs, outputs = _named_in(command, folder), (OutputFile(expression=EVERYTHING),)
    if request.shell:
        return Binary(shell=_protected(command), inputs=inputs, outputs=outputs)
    return Binary(run=tuple(map(_protected, _words(command))), inputs=inputs, outputs=outputs)


# --- words ------------------------------------------------------------------------------------------------------------


def _words(command: str) -> list[str]:
    """The words of a command; raises `PilotageError` for syntax that only a shell understands."""
    bare = _BRACES.sub("_", command)
    needs = shell_words(bare)
    if needs:
        raise PilotageError(
            f"only a shell understands {needs[0]!r}",
            subject=command,
            next_step="use --shell to run it in one, or quote it to use it as it is",
        )
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise PilotageError(f"the quotes do not match: {str(error).lower()}", subject=command) from None
    if not words or not words[0]:
        raise PilotageError("the command is empty")
    return words


def _named_in(command: str, folder: Path) -> tuple[InputFile, ...]:
    """The files of the folder that a command names, such as its script: they are required, too."""
    scanner = shlex.shlex(command, posix=True, punctuation_chars=True)
    scanner.whitespace_split = True
    scanner.commenters = ""
    try:
        words = dict.fromkeys(scanner)
    except ValueError:
        return ()  # parsing the command reports the fault
    named = [tidy_name(word) for word in words if not _BRACES.search(word) and _placed(word, folder)[1]]
    return tuple(InputFile(name=_protected(literal(name))) for name in dict.fromkeys(named))


def _replaced(text: str) -> str:
    """A text of the command line as a template of the language."""
    return _BRACES.sub(lambda found: _REPLACEMENTS.get(found[0]) or found[0] * 2, text)


def _protected(text: str) -> str:
    """A text with everything special escaped."""
    return text.replace("{", "{{").replace("}", "}}")


def _job_name(command: str) -> str:
    first = next(iter(command.split(maxsplit=1)), "")
    return _NOT_IN_A_NAME.sub("-", part_of_name(first, "name")).strip("-._+")[:100] or NAME_DEFAULT
