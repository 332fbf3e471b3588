"""Which files a job makes and reads, by their names in its folder: also those whose names are not known before they are made."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pilotage.language import Expansion
from pilotage.language.expansion.blocks import Block, BlockColumns, bind
from pilotage.language.expansion.items import Column
from pilotage.language.expansion.makers import PatternIndex, general_pattern, late_outputs
from pilotage.language.reading.iterations import sources
from pilotage.language.text.paths import tidy_name, tidy_names
from pilotage.language.text.patterns import is_pattern, literal
from pilotage.language.text.templates import (
    Template,
    literal_text,
    parse_template,
    part_of_name,
    render,
    render_column,
)
from pilotage.model.definition import Definition, InputFile, Source
from pilotage.ports import FileStore, StoredFile, StoreError
from pilotage.service.running.capturing import differing_of, output_column

_ALL_STAGES = 1  # of an index in which everything is of stage 0


class FileUses:
    """The files of one job. Where it is not certain whether it uses one, it does."""

    def __init__(self, expansion: Expansion, brought: Collection[str] = ()) -> None:
        """Take the job as it is laid out, and the names of the files that it brought along."""
        self._made: set[str] = set()
        self._made_like = PatternIndex()
        self._read: set[str] = {*brought}
        self._read_like = PatternIndex()
        for block in expansion.blocks:
            self._add_outputs(block)
            self._add_inputs(block)
        for names in expansion.resolved.lists.values():  # what it was laid out over, whatever that is
            self._read.update(names)
        for block in (*expansion.blocks, *expansion.late_blocks):
            for each in differing_of(block, expansion.definition):
                self._read.update(each.names.values())
            self._add_image(block)
        for block in expansion.late_blocks:
            self._may_make(tidy_name(general_pattern(block.output_template(output))) for _, output in block.outputs())
            self._may_read(tidy_name(general_pattern(block.bound(given.name))) for given in _not_listed(block))
        for late in expansion.late:
            self._may_make(late_outputs(expansion.definition, late.stage - 1))
        for stage, source in _sources(expansion.definition):
            self._read.update(_written(name, expansion.definition) for name in (source.csv, source.lines) if name)
            if source.files and any(late.stage == stage for late in expansion.late):
                self._may_read([_written(source.files, expansion.definition)])

    def makes(self, name: str) -> bool:
        """Whether it makes a file, under a name that is known."""
        return name in self._made

    def may_make(self, name: str) -> bool:
        """Whether it may make a file, by a pattern, by a regular expression, or in a stage that is not laid out yet."""
        return bool(self._made_like.makers_of(literal(name), before_stage=_ALL_STAGES))

    def reads(self, name: str) -> bool:
        """Whether it reads a file, or may: as an input, a list, a program or a script."""
        return name in self._read or bool(self._read_like.makers_of(literal(name), before_stage=_ALL_STAGES))

    def names_read(self) -> Collection[str]:
        """The names under which it reads files, as far as they are known; some may be values of a list that are no files."""
        return self._read

    def uses(self, name: str) -> bool:
        """Whether it makes or reads a file, or may."""
        return self.makes(name) or self.may_make(name) or self.reads(name)

    def _add_outputs(self, block: Block) -> None:
        for _, output in block.outputs():
            if block.makes_pattern(output):
                self._may_make(_patterns(block, block.output_template(output)))
            else:
                self._made.update(output_column(block, output))

    def _add_inputs(self, block: Block) -> None:
        for _, given in block.inputs():
            template = block.bound(given.name)
            lists = [each for each in template.placeholders if block.is_list(each.name)]
            if lists:
                column = block.column(lists[0].name)
                self._read.update(_listed(column, lists[0].attribute) if column is not None else ())
            elif is_pattern(literal_text(template)):
                # What other stages make is theirs, and what was on disk is in the lists; but not what it takes by itself.
                self._may_read(_patterns(block, template) if _comes_by_itself(given) else ())
            elif template.placeholders:
                self._read.update(tidy_names(render_column(template, BlockColumns(block), block.count)))
            else:
                self._read.add(tidy_name(literal_text(template)))

    def _add_image(self, block: Block) -> None:
        if block.package.container is not None:  # an image that is no file is the name of none, either
            template = block.bound(block.package.container.image)
            if template.placeholders:
                self._may_read([tidy_name(general_pattern(template))])
            else:
                self._read.add(tidy_name(literal_text(template)))

    def _may_make(self, patterns: Collection[str] | Iterator[str]) -> None:
        self._made_like.add(((pattern, 0) for pattern in {*patterns}), stage=0)

    def _may_read(self, patterns: Collection[str] | Iterator[str]) -> None:
        # What says nothing is the name of an item; where these come from is said by the iteration.
        self._read_like.add(((pattern, 0) for pattern in {*patterns} if pattern.strip("*")), stage=0)


def files_there(store: FileStore, folder: str, names: Collection[str]) -> Iterator[StoredFile]:
    """The files of some names, as far as they can be looked at: what cannot be is read by nobody."""
    try:
        yield from store.look_up(folder, names).values()
    except StoreError:
        if len(names) > 1:
            for name in names:
                yield from files_there(store, folder, [name])


def identity(file: StoredFile) -> tuple[int, int]:
    """What a file is, under whatever name: a link leads to the same one."""
    return file.inode, file.changed_ns


def name_in(root: str, *, folder: str, name: str) -> str:
    """What a file of a folder is called from another one, above or below that; empty where it is not in there."""
    path, beginning = f"{folder}/{name}", f"{root}/"
    return path[len(beginning) :] if path.startswith(beginning) else ""


def _patterns(block: Block, template: Template) -> list[str]:
    """A pattern with its gaps filled in, for every package of a block."""
    if not template.placeholders:
        return [tidy_name(literal_text(template))]
    return [tidy_name(render(template, block.values(position), quote=literal)) for position in range(block.count)]


def _listed(column: Column, attribute: str) -> Iterator[str]:
    for group in column.values:
        yield from (tidy_name(part_of_name(value, attribute)) for value in group)


def _comes_by_itself(given: InputFile) -> bool:
    return given.acquisition == "self" or bool(given.locator)


def _not_listed(block: Block) -> Iterator[InputFile]:
    """The inputs of a block without packages that are no patterns: what matched one of these is in the lists."""
    for _, given in block.inputs():
        if _comes_by_itself(given) or not is_pattern(literal_text(block.bound(given.name))):
            yield given


def _sources(definition: Definition) -> Iterator[tuple[int, Source]]:
    """Every list that the stages, counted from 1, and lines of a job draw on."""
    for number, stage in enumerate(definition.stages, start=1):
        for iteration in (stage.each, *(line.each for line in stage.lines)):
            yield from ((number, source) for source in sources(iteration))


def _written(text: str, definition: Definition) -> str:
    """A name or pattern with the constants of a job filled in; another gap may be anything."""
    template = bind(parse_template(text), definition.constants)
    return tidy_name(general_pattern(template) if template.placeholders else literal_text(template))
