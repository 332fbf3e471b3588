"""Captures the files that a job brings along: executables, scripts and small inputs, stored once by content.

This runs where the document is, before submission. It examines only words that are the same for every package of a
template; for a program or script that varies, only its few different values: a million packages cost no more than one.
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
"""A larger input is not captured: it is read in place."""
INPUTS_MAX = 1000
INPUTS_BYTES_MAX = 16 * 2**20
"""The most inputs, and the most bytes of them, to capture; the others are read in place."""
PROGRAM_BYTES_MAX = 16 * 2**20
"""A larger program or script is identified by its checksum, and read from its folder."""
SCRIPTS_MAX = 1000
SCRIPTS_BYTES_MAX = 64 * 2**20
"""The most values of a varying program or script to examine, and the most bytes of them to capture."""

_INTERPRETER = re.compile(r"(?:ba|da|k|z)?(sh|python|perl|ruby|Rscript|node)[0-9.]*\Z")
_TEXTS = {  # by interpreter: options followed by a text or a module name, not by a file
    "sh": frozenset("c"),
    "python": frozenset("cm"),
    "perl": frozenset("eE"),
    "ruby": frozenset("e"),
    "Rscript": frozenset("e"),
    "node": frozenset("ep"),
}
_GAP = "\0"  # stands for a part that varies: no word that contains it can be a file name
_LOOKED_AT_MAX = 100_000  # inputs of one template to look for; beyond it they are too many to be captured anyway


class FoundFile(msgspec.Struct, frozen=True, kw_only=True):
    """A regular file below the document's folder."""

    size_bytes: int
    executable: bool


class Files(Protocol):
    """The document's folder, for capturing files."""

    def find(self, name: str) -> FoundFile | None:
        """A regular file by its name in the tree; None if there is none, or it leads out of the folder."""
        ...

    def pieces(self, name: str) -> Iterator[bytes]:
        """The content of a file, in pieces."""
        ...


class DiskFiles:
    """The document's folder on disk."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def find(self, name: str) -> FoundFile | None:
        """A regular file; a link is read as the file it leads to."""
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
"""Stores bytes and returns their sha256."""


def capture(expansion: Expansion, files: Files, keep: Keep) -> dict[str, Captured]:
    """Store the files that a job brings along, with `keep`; returns their descriptions by name."""
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
    """Every template of a job; late stages have no packages yet, but name files."""
    yield from expansion.blocks
    yield from expansion.late_blocks


def words_of(block: Block, definition: Definition) -> list[str]:
    """The file names in the commands of a block that are the same for all its packages, relative to the tree."""
    names: dict[str, None] = {}
    for word in _words(block, definition):
        for part in (word, word.partition("=")[2]):  # `--config=settings.ini` names a file, too
            if _may_be_a_name(part):
                names[tidy_name(part)] = None
    return list(names)


def script_file(words: Sequence[str]) -> str:
    """The file of a script: its program, or what its interpreter reads; empty if there is none.

    Its other words do not matter: it runs in the document's folder, and may write to the files they name.
    """
    position = _script_position(words)
    found = words[position] if position is not None else ""
    return tidy_name(found) if _may_be_a_name(found) else ""


def _script_position(words: Sequence[str]) -> int | None:
    """The index of a command's program, or of the file that its interpreter reads."""
    program = _INTERPRETER.match(words[0].rpartition("/")[2]) if words else None
    if program is None:
        return 0 if words else None
    options = list(takewhile(lambda word: word.startswith("-"), words[1:]))
    texts = [word for word in options if not word.startswith("--") and not _TEXTS[program[1]].isdisjoint(word)]
    return len(options) + 1 if not texts and len(options) + 1 < len(words) else None


class Differing(NamedTuple):
    """A program or script that varies between the packages of a block: its names, by the values of one variable."""

    variable: str
    names: dict[str, str]


def differing_of(block: Block, definition: Definition) -> list[Differing]:
    """The programs and scripts of a block that vary with one variable of few values."""
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
                assert isinstance(value, str)  # a column of lists does not count
                values[value] = _written(template, value)
        named = {value: tidy_name(name) for value, name in values.items() if _may_be_a_name(name)}
        if named:
            found.append(Differing(template.placeholders[0].name, named))
    return found


def _differing(block: Block, definition: Definition) -> Iterator[str]:
    for each in differing_of(block, definition):
        yield from each.names.values()


def _word_lists(block: Block, definition: Definition) -> Iterator[tuple[str, ...]]:
    """The commands of a block as words; a shell command has none before it runs."""
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
    """All file names in the commands of a block and the scripts beside them."""
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

    The site determines which of several is started, so the files of all of them are captured.
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
    """The words of a shell script, as far as they are known without running it."""
    scanner = shlex.shlex(text, posix=True, punctuation_chars=True)
    scanner.whitespace_split = True
    scanner.commenters = ""
    try:
        return list(scanner)
    except ValueError:  # an open quote: the shell will report it
        return text.split()


def input_names(expansion: Expansion) -> Iterator[str]:
    """The names of inputs by template; for lists and patterns, those found at submission."""
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
    """The outputs of the job itself: never captured, even if an earlier run left them."""

    def __init__(self, expansion: Expansion) -> None:
        """Take the names from the expansion of a job."""
        outputs = [(block, output) for block in _blocks(expansion) for _, output in block.outputs()]
        self._outputs = [
            (tidy_name(general_pattern(block.output_template(output))), block, output) for block, output in outputs
        ]
        self._names: dict[int, frozenset[str]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether some package makes it; names are computed only for outputs that may match."""
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
    """The names of one output of all packages of a block; not for patterns."""
    template = block.output_template(output)
    if not template.placeholders:
        return [tidy_name(literal_text(template))]
    return tidy_names(render_column(template, BlockColumns(block), block.count))


def wanted_column(expansion: Expansion, block: Block, output: OutputFile) -> list[str]:
    """The same, without packages that are left out."""
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
