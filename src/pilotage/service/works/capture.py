"""What a job brings along: the executables, scripts and small inputs that its document names, stored once by content.

This runs where the document is, before anything is sent. Only words that are the same for every package of a template
are looked at, and of those that differ the program or script itself, by the few different values that it has: a million
packages cost no more than one.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from pilotage.language import Expansion
from pilotage.language.expansion.blocks import Block, BlockColumns
from pilotage.language.expansion.lists import files_key
from pilotage.language.expansion.producers import general_pattern
from pilotage.language.expansion.software import find_software, ways_of
from pilotage.language.text.names import tidy_name, tidy_names, why_outside
from pilotage.language.text.patterns import is_pattern, matches
from pilotage.language.text.templates import (
    Placeholder,
    Template,
    literal_text,
    parse_template,
    part_of_name,
    render_column,
)
from pilotage.model.jobs.definition import Binary, Definition, OutputFile
from pilotage.model.jobs.submission import Captured

INPUT_BYTES_MAX = 64 * 2**10
"""An input larger than this is not captured: it is read where it is."""
INPUTS_MAX = 1000
INPUTS_BYTES_MAX = 16 * 2**20
"""So many inputs, and so many bytes of them in all, are captured; the others are read where they are."""
PROGRAM_BYTES_MAX = 16 * 2**20
"""A program or script larger than this is known by its checksum, and brought from its folder."""
SCRIPTS_MAX = 1000
SCRIPTS_BYTES_MAX = 64 * 2**20
"""Of a program or script that differs between packages so many values are looked at, and so many bytes captured in all."""

_INTERPRETER = re.compile(r"(?:ba|da|k|z)?(sh|python|perl|ruby|Rscript|node)[0-9.]*\Z")
_TEXTS = {  # by interpreter: options after which no file follows, but a text or the name of a module
    "sh": frozenset("c"),
    "python": frozenset("cm"),
    "perl": frozenset("eE"),
    "ruby": frozenset("e"),
    "Rscript": frozenset("e"),
    "node": frozenset("ep"),
}
_GAP = "\0"  # stands for what differs between packages: no word with it can be the name of a file
_LOOKED_AT_MAX = (
    100_000  # inputs of one template that are looked for; beyond it they are too many to be captured anyway
)


class FoundFile(msgspec.Struct, frozen=True, kw_only=True):
    """A regular file below the document's folder."""

    size_bytes: int
    executable: bool


class Files(Protocol):
    """The document's folder, as far as files to be captured are concerned."""

    def find(self, name: str) -> FoundFile | None:
        """A regular file by its name in the tree; None where there is none, or it leads out of the folder."""
        ...

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content of a file, piece by piece."""
        ...


class DiskFiles:
    """The document's folder on disk."""

    def __init__(self, folder: str | Path) -> None:
        """Look below this folder."""
        self._folder = Path(folder)

    def find(self, name: str) -> FoundFile | None:
        """A regular file, also through a link, which is read as what it leads to."""
        try:
            found = (self._folder / name).stat()
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return FoundFile(size_bytes=found.st_size, executable=bool(found.st_mode & 0o111))

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content, a mebibyte at a time."""
        with (self._folder / name).open("rb") as file:
            while piece := file.read(2**20):
                yield piece


Keep = Callable[[bytes], str]
"""Stores bytes by their sha256, which it gives back."""


def capture(expansion: Expansion, files: Files, keep: Keep) -> dict[str, Captured]:
    """Store what a job brings along, through `keep`, and say what it is, by name."""
    made = NamesMade(expansion)
    found: dict[str, Captured] = {}
    for name in dict.fromkeys(name for block in _blocks(expansion) for name in _named(block, expansion.definition)):
        file = files.find(name)
        if file is not None and name not in made:
            found[name] = _captured(name, file, files, keep, content=file.size_bytes <= PROGRAM_BYTES_MAX)
    size_bytes = 0
    for name in dict.fromkeys(name for block in _blocks(expansion) for name in _differing(block, expansion.definition)):
        file = files.find(name) if name not in found else None
        limit_bytes = min(PROGRAM_BYTES_MAX, SCRIPTS_BYTES_MAX - size_bytes)
        if file is not None and file.size_bytes <= limit_bytes and name not in made:
            found[name] = _captured(name, file, files, keep, content=True)
            size_bytes += file.size_bytes
    count, size_bytes = 0, 0
    for name in input_names(expansion):
        if count >= INPUTS_MAX or size_bytes >= INPUTS_BYTES_MAX:
            break
        file = files.find(name) if name not in found else None
        if file is None or file.size_bytes > min(INPUT_BYTES_MAX, INPUTS_BYTES_MAX - size_bytes) or name in made:
            continue
        found[name] = _captured(name, file, files, keep, content=True)
        count += 1
        size_bytes += file.size_bytes
    return found


def _blocks(expansion: Expansion) -> Iterator[Block]:
    """Every template of a job; those of late stages have no packages yet, but name what they bring along."""
    yield from expansion.blocks
    yield from expansion.late_blocks


def words_of(block: Block, definition: Definition) -> list[str]:
    """The names that the commands of a block speak of, the same for all its packages, as they would be in the tree."""
    names: dict[str, None] = {}
    for word in _words(block, definition):
        for part in (word, word.partition("=")[2]):  # `--config=settings.ini` names a file, too
            if _may_be_a_name(part):
                names[tidy_name(part)] = None
    return list(names)


def script_file(words: Sequence[str]) -> str:
    """The file that a script beside a package is: its program, or what it has an interpreter read; empty where none is told.

    Its other words are no matter: it runs in the document's folder, and may well write into what they name.
    """
    position = _script_position(words)
    found = words[position] if position is not None else ""
    return tidy_name(found) if _may_be_a_name(found) else ""


def _script_position(words: Sequence[str]) -> int | None:
    """Which word of a command is its program, or the file that it has an interpreter read."""
    program = _INTERPRETER.match(words[0].rpartition("/")[2]) if words else None
    if program is None:
        return 0 if words else None
    options = list(takewhile(lambda word: word.startswith("-"), words[1:]))
    texts = [word for word in options if not word.startswith("--") and not _TEXTS[program[1]].isdisjoint(word)]
    return len(options) + 1 if not texts and len(options) + 1 < len(words) else None


class Differing(NamedTuple):
    """A program or script that differs between the packages of a block: its name by the value of the variable that tells it."""

    variable: str
    names: dict[str, str]


def differing_of(block: Block, definition: Definition) -> list[Differing]:
    """The programs and scripts of a block that one variable tells apart, and that have few enough values."""
    found: list[Differing] = []
    for words in _word_lists(block, definition):
        templates = [block.bound(text) for text in words]
        position = _script_position([_constant(template) for template in templates])
        if position is None:
            continue
        template = templates[position]
        variables = {placeholder.name for placeholder in template.placeholders}
        column = block.column(variables.pop()) if len(variables) == 1 else None
        if column is None or column.is_list:
            continue
        values: dict[str, str] = {}
        for value in column.values:
            if value not in values:
                if len(values) == SCRIPTS_MAX:
                    values.clear()
                    break
                assert isinstance(value, str)  # no column of lists
                values[value] = _written(template, value)
        named = {value: tidy_name(name) for value, name in values.items() if _may_be_a_name(name)}
        if named:
            found.append(Differing(template.placeholders[0].name, named))
    return found


def _differing(block: Block, definition: Definition) -> Iterator[str]:
    for each in differing_of(block, definition):
        yield from each.names.values()


def _word_lists(block: Block, definition: Definition) -> Iterator[tuple[str, ...]]:
    """The commands of a block as words; those of a shell are no words before they are run."""
    package = block.package
    if package.startup_script:
        yield (package.startup_script, *package.startup_parameters)
    for binary in package.binaries:
        for run, _, _ in _commands(binary, block, definition):
            if run:
                yield (*run, *binary.arguments)


def _written(template: Template, value: str) -> str:
    parts = template.parts
    return "".join(part if isinstance(part, str) else part_of_name(value, part.attribute) for part in parts)


def _may_be_a_name(word: str) -> bool:
    return bool(word) and _GAP not in word and not word.startswith(("-", "/")) and not why_outside(word)


def _named(block: Block, definition: Definition) -> Iterator[str]:
    """The names of everything that the commands of a block speak of, and of the scripts beside them."""
    yield from words_of(block, definition)
    scripts = block.package.scripts
    for script in (scripts.pre, scripts.post):
        if script is not None and (name := script_file([_constant(block.bound(text)) for text in script.run])):
            yield name


def _words(block: Block, definition: Definition) -> Iterator[str]:
    package = block.package
    if package.startup_script:
        yield _constant(block.bound(package.startup_script))
        yield from (_constant(block.bound(text)) for text in package.startup_parameters)
    for binary in package.binaries:
        for run, shell, script in _commands(binary, block, definition):
            yield from (_constant(block.bound(text)) for text in (*run, script, *binary.arguments))
            if shell:
                yield from shell_words(_constant(_bound_shell(shell, block)))


def _commands(binary: Binary, block: Block, definition: Definition) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """The command of a binary, or every one of its software: arguments, shell script, invoking script.

    Which of several is started depends on the site: the files of all of them are brought along.
    """
    yield binary.run, binary.shell, binary.invoking_script
    software = find_software(definition, binary) if binary.software else None
    if software is None:
        return
    if software.boutiques is not None:
        line = software.boutiques.get("command-line")
        yield tuple(shell_words(line)) if isinstance(line, str) and "{" not in line else (), "", ""
        return
    for way in ways_of(definition, block.package, binary):
        yield way.execution.run, way.execution.shell, way.execution.invoking_script


def _bound_shell(shell: str, block: Block) -> Template:
    parts = parse_template(shell, "shell").parts
    known = block.constants
    return Template(tuple(known.get(p.name, p) if isinstance(p, Placeholder) and not p.attribute else p for p in parts))


def _constant(template: Template) -> str:
    return "".join(part if isinstance(part, str) else _GAP for part in template.parts)


def shell_words(text: str) -> list[str]:
    """The words of a shell script, as far as they can be told without running it."""
    scanner = shlex.shlex(text, posix=True, punctuation_chars=True)
    scanner.whitespace_split = True
    scanner.commenters = ""
    try:
        return list(scanner)
    except ValueError:  # an open quote: the shell will say so
        return text.split()


def input_names(expansion: Expansion) -> Iterator[str]:
    """The names of inputs, template by template; of lists and patterns those that were found at submission."""
    for block in _blocks(expansion):
        for _, given in block.inputs():
            template = block.bound(given.name)
            if given.acquisition == "self" or any(block.is_list(p.name) for p in template.placeholders):
                continue
            if is_pattern(literal_text(template)):
                if not template.placeholders:
                    yield from expansion.resolved.lists.get(files_key(tidy_name(literal_text(template))), ())
            elif not template.placeholders:
                yield tidy_name(literal_text(template))
            elif block.count <= _LOOKED_AT_MAX:
                yield from tidy_names(render_column(template, BlockColumns(block), block.count))


class NamesMade:
    """What the job itself makes: never captured, even where an earlier run left it."""

    def __init__(self, expansion: Expansion) -> None:
        """Take the names of a job as it is laid out."""
        outputs = [(block, output) for block in _blocks(expansion) for _, output in block.outputs()]
        self._outputs = [
            (tidy_name(general_pattern(block.output_template(output))), block, output) for block, output in outputs
        ]
        self._names: dict[int, frozenset[str]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether some package makes it; names are written out only for outputs that may be it."""
        for position, (pattern, block, output) in enumerate(self._outputs):
            if matches(pattern, name):
                if block.makes_pattern(output):
                    return True
                if position not in self._names:
                    self._names[position] = frozenset(output_column(block, output))
                if name in self._names[position]:
                    return True
        return False


def output_column(block: Block, output: OutputFile) -> list[str]:
    """The names that all packages of a block make of one output, which is no pattern."""
    template = block.output_template(output)
    if not template.placeholders:
        return [tidy_name(literal_text(template))]
    return tidy_names(render_column(template, BlockColumns(block), block.count))


def wanted_column(expansion: Expansion, block: Block, output: OutputFile) -> list[str]:
    """The same, without the names of packages that are left out."""
    names, left_out = output_column(block, output), expansion.left_out
    if not left_out:
        return names
    return [name for name, number in zip(names, block.packages(), strict=False) if number not in left_out]


def _captured(name: str, file: FoundFile, files: Files, keep: Keep, *, content: bool) -> Captured:
    if content:
        data = b"".join(files.pieces(name))
        return Captured(sha256=keep(data), size_bytes=len(data), executable=file.executable)
    hashed, size_bytes = hashlib.sha256(), 0
    for piece in files.pieces(name):
        hashed.update(piece)
        size_bytes += len(piece)
    return Captured(sha256=hashed.hexdigest(), size_bytes=size_bytes, executable=file.executable, content=False)
