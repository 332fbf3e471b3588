"""The files that the packages of a job name: programs and scripts in their commands, inputs, and outputs.

Only words that are the same for every package of a template are examined; of a program or script that varies, only its few
different values: a million packages cost no more than one.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from pilotage.language.expansion.blocks import Block, BlockColumns
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import files_key
from pilotage.language.expansion.producers import general_pattern
from pilotage.language.expansion.software import find_software, ways_of
from pilotage.language.file_plan import brought_files
from pilotage.language.package_inputs import (
    ManifestOf,
    concrete,
    is_brought,
    left_out_names,
    open_patterns,
    staged_names,
)
from pilotage.language.text.names import tidy_name, tidy_names, why_outside
from pilotage.language.text.patterns import is_pattern, matches
from pilotage.language.text.programs import script_position
from pilotage.language.text.templates import (
    Placeholder,
    Template,
    literal_text,
    parse_template,
    part_of_name,
    render_column,
)
from pilotage.model.events.payloads import OutputFile as MadeFile
from pilotage.model.jobs.definition import Binary, Definition, OutputFile

SCRIPTS_MAX = 1000
"""The most values of a varying program or script to examine."""

_GAP = "\0"  # stands for a part that varies: no word that contains it can be a file name
_LOOKED_AT_MAX = 100_000  # inputs of one template to look for; beyond it they are too many to be captured anyway


def blocks_of(expansion: Expansion) -> Iterator[Block]:
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
    position = script_position(words)
    found = words[position] if position is not None else ""
    return tidy_name(found) if _may_be_a_name(found) else ""


class Differing(NamedTuple):
    """A program or script that varies between the packages of a block: its names, by the values of one variable."""

    variable: str
    names: dict[str, str]


def differing_of(block: Block, definition: Definition) -> list[Differing]:
    """The programs and scripts of a block that vary with one variable of few values."""
    found: list[Differing] = []
    for words in _word_lists(block, definition):
        templates = [block.bound(text) for text in words]
        position = script_position([_constant(template) for template in templates])
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


def named_by(block: Block, definition: Definition) -> Iterator[str]:
    """All file names in the commands of a block and the scripts beside them."""
    yield from words_of(block, definition)
    scripts = block.package.scripts
    for script in (scripts.pre, scripts.post):
        if script is not None and (name := script_file([_constant(block.bound(text)) for text in script.run])):
            yield name
    if definition.provenance.script and (name := script_file(definition.provenance.script)):
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
    for block in blocks_of(expansion):
        for _, given in block.inputs():
            template = block.bound(given.name)
            if (
                given.acquisition == "self"
                or is_brought(given)
                or any(block.is_list(p.name) for p in template.placeholders)
            ):
                continue
            if is_pattern(literal_text(template)):
                if not template.placeholders:
                    yield from expansion.resolved.lists.get(files_key(tidy_name(literal_text(template))), ())
            elif not template.placeholders:
                yield tidy_name(literal_text(template))
            elif block.count <= _LOOKED_AT_MAX:
                yield from tidy_names(render_column(template, BlockColumns(block), block.count))


def names_read(expansion: Expansion) -> Iterator[str]:
    """The names of all files that packages read, as far as they are known before the job runs; some may be made by it.

    Packages that are left out read nothing. Of a late stage, only inputs that are the same for all its packages are known.
    """
    for block in expansion.blocks:
        columns = _plain_columns(block)
        if columns is not None:
            for names in columns:
                yield from (
                    name
                    for name, number in zip(names, block.packages(), strict=True)
                    if number not in expansion.left_out
                )
            continue
        for number in block.packages():
            if number not in expansion.left_out:
                package = concrete(expansion, number, granted=(), manifest_of=lambda _: None)
                fetched = {
                    name for each in package.binaries for given in each.inputs if given.locator for name in given.names
                }
                inside = open_patterns(package, block)
                for name in staged_names(package):
                    if name not in fetched and not any(matches(pattern, name) for pattern in inside):
                        yield name
    for block in expansion.late_blocks:
        for _, given in block.inputs():
            template = block.bound(given.name)
            if given.acquisition == "self" or given.locator or template.placeholders:
                continue
            text = tidy_name(literal_text(template))
            yield from expansion.resolved.lists.get(files_key(text), ()) if is_pattern(text) else (text,)


def _plain_columns(block: Block) -> list[list[str]] | None:
    """The input names of all packages of a block; None if each package has to be written to know them."""
    if len(block.package.binaries) != 1 or block.package.binaries[0].stdin:
        return None
    columns: list[list[str]] = []
    for _, given in block.inputs():
        template = block.bound(given.name)
        if given.acquisition == "self" or given.locator:
            continue
        if is_pattern(literal_text(template)) or any(block.is_list(each.name) for each in template.placeholders):
            return None
        if template.placeholders:
            columns.append(list(tidy_names(render_column(template, BlockColumns(block), block.count))))
        else:
            columns.append([tidy_name(literal_text(template))] * block.count)
    return columns


class NamesMade:
    """The outputs of the job itself: never captured, even if an earlier run left them."""

    def __init__(self, expansion: Expansion) -> None:
        """Take the names from the expansion of a job."""
        outputs = [(block, output) for block in blocks_of(expansion) for _, output in block.outputs()]
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


# What one package reads, once its producers are granted.


class ConsumedFile(NamedTuple):
    """A file that a package reads: a granted output of its job, a file that came with the job, or any other."""

    name: str
    producer: int | None = None  # the number of the package that made it
    made: MadeFile | None = None  # as that package was granted it
    locator: str = ""  # from where its command fetches it, or it is brought to the site


def consumed_by(
    expansion: Expansion, number: int, *, captured: Collection[str], granted: Collection[int], manifest_of: ManifestOf
) -> list[ConsumedFile]:
    """The files that a package reads, with programs and scripts that came with the job; `granted` are its producers."""
    block, position = expansion.locate(number)
    if block.package.noop or block.package.done:
        return []
    found = {name: ConsumedFile(name) for name in words_of(block, expansion.definition) if name in captured}
    for each in differing_of(block, expansion.definition):
        column = block.column(each.variable)
        value = column.value(position) if column is not None else ""
        name = each.names.get(value, "") if isinstance(value, str) else ""
        if name in captured:
            found[name] = ConsumedFile(name)
    left_out = left_out_names(expansion, number, granted)
    package = concrete(expansion, number, granted=granted, left_out=left_out, manifest_of=manifest_of)
    inside = open_patterns(package, block)
    made = {file.name: (maker, file) for maker in granted for file in manifest_of(maker) or ()}
    for name in staged_names(package):
        if name in made:
            found[name] = ConsumedFile(name, *made[name])
        elif name not in found and not any(matches(pattern, name) for pattern in inside):
            found[name] = ConsumedFile(name)
    for binary in package.binaries:
        for given in binary.inputs:
            if given.declared.acquisition == "self":
                located = zip(given.names, given.locators or ("",) * len(given.names), strict=True)
                found.update({name: ConsumedFile(name, locator=locator) for name, locator in located})
    found.update(
        {each.name: ConsumedFile(each.name, locator=each.locator) for each in brought_files(expansion, number)}
    )
    return list(found.values())
