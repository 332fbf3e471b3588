"""What becomes of the outputs of a package, by their dispositions: copies in stores, removal, and a place in the cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from pilotage.agent.expressions import compile_expression
from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.producers import general_pattern
from pilotage.language.text.locators import CONTENT, is_folder, locator_of
from pilotage.language.text.names import tidy_name
from pilotage.language.text.patterns import can_both_match, is_pattern, literal, matches
from pilotage.language.text.templates import Values, literal_text, render, render_arguments
from pilotage.model.jobs.definition import InputFile, OutputFile
from pilotage.model.jobs.file_plan import Wish


class HandledOutput(NamedTuple):
    """An output of a package, and what is done with it besides handing it on."""

    name: str
    copies: tuple[str, ...] = ()  # locators in different stores, in order; none: it is not stored
    named: str = ""  # the one of them that the document names
    replicas: int = 0  # copies that the document asks for: more than there are locators if stores are missing
    disposed: bool = False  # removed from the job's tree after its last consumer, once all copies are there
    spares: tuple[str, ...] = ()  # locators in further archive stores, for copies that cannot be had in theirs
    retained: Wish | None = None  # kept in the cache of the site where it is made


def handled_outputs(
    expansion: Expansion, package: int, names: Iterable[str], *, job: str, archives: Sequence[str]
) -> list[HandledOutput]:
    """What is done with each output of a package, by name; `archives` are the URLs of the archive stores, in order.

    Copies in archive stores are called `JOB/NAME`; `job` is the id of the job.
    """
    block, position = expansion.locate(package)
    values = block.values(position)
    declared = [(output, block.written_output(output, values)) for _, output in block.outputs()]
    readers = list(_readers(expansion, package))
    return [
        _handled(name, _declaration(name, declared, block, values), block, values, job, archives, readers)
        for name in names
    ]


def _handled(
    name: str,
    output: OutputFile | None,
    block: Block,
    values: Values,
    job: str,
    archives: Sequence[str],
    readers: Sequence[_Reader],
) -> HandledOutput:
    if output is None:
        return HandledOutput(name)
    copies: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    locator = ""
    if output.stored:
        locator = locator_of(render(block.bound(output.locator), values), name) if output.locator else ""
        places = list(_places(name, locator, job=job, archives=archives))
        copies, spares = tuple(places[: output.replicas]), tuple(places[output.replicas :])
    wishes = [_WISHES[word] for word in output.dispositions if word in _WISHES]
    wishes += [reader.wish for reader in readers if reader.reads(name)]
    wish = max(wishes, default=None)
    return HandledOutput(
        name=name,
        copies=copies,
        named=locator,
        replicas=output.replicas if output.stored else 0,
        disposed=wish == Wish.DELETABLE,
        spares=spares,
        retained=wish if wish != Wish.DELETABLE else None,
    )


_WISHES = {
    "deletable": Wish.DELETABLE,
    "retain-temporarily": Wish.RETAIN_TEMPORARILY,
    "retain-indefinitely": Wish.RETAIN_INDEFINITELY,
}


def _declaration(
    name: str, declared: Sequence[tuple[OutputFile, str]], block: Block, values: Values
) -> OutputFile | None:
    """The output that a name belongs to: one of that name, else of a pattern, else of an expression."""
    ranked: list[tuple[int, OutputFile]] = []
    for output, written in declared:
        if output.expression:
            if _fits(name, output, block, values):
                ranked.append((2, output))
        elif block.makes_pattern(output):
            if matches(written, name):
                ranked.append((1, output))
        elif written == name:
            ranked.append((0, output))
    return min(ranked, key=lambda each: each[0])[1] if ranked else None


def _fits(name: str, output: OutputFile, block: Block, values: Values) -> bool:
    folder = tidy_name(render(block.bound(output.folder), values)) if output.folder else "."
    prefix = "" if folder == "." else f"{folder}/"
    return name.startswith(prefix) and bool(compile_expression(output.expression).fullmatch(name[len(prefix) :]))


def _places(name: str, locator: str, *, job: str, archives: Sequence[str]) -> Iterator[str]:
    """The locators of all copies that there may be: the one of the document, then those in the archive stores."""
    if locator:
        yield locator
    for archive in archives_beside(locator, archives):
        yield locator_of(archive if is_folder(archive) else f"{archive}/", f"{job}/{name}")


def archives_beside(locator: str, archives: Sequence[str]) -> list[str]:
    """The archive stores that can hold a further copy: each once, and none that has the locator itself."""
    different = {archive.rstrip("/"): archive for archive in reversed(archives)}
    return [archive for bare, archive in reversed(different.items()) if not _is_in(locator, bare)]


def _is_in(locator: str, archive: str) -> bool:
    return locator.startswith(CONTENT) if archive == CONTENT else f"{locator}/".startswith(f"{archive}/")


# What the packages that read an output wish for it: the greatest wish holds, their own or that of its maker.


class _Reader(NamedTuple):
    """An input of a package that says how long an output of an earlier one is to be kept."""

    wish: Wish
    names: frozenset[str]
    pattern: str  # empty: it has names

    def reads(self, name: str) -> bool:
        return matches(self.pattern, name) if self.pattern else name in self.names


def _readers(expansion: Expansion, package: int) -> Iterator[_Reader]:
    """The inputs with wishes of all packages that read outputs of a package."""
    wishing = _wishing(expansion)
    for segment in expansion.graph.segments if wishing else ():
        for consumer in segment.successors.few(package):
            block, position = expansion.locate(consumer)
            values = block.values(position) if block in wishing else {}
            yield from (_reader(given, block, values) for given in wishing.get(block, ()))


_wishing_blocks: WeakKeyDictionary[Expansion, dict[Block, list[InputFile]]] = WeakKeyDictionary()


def _wishing(expansion: Expansion) -> dict[Block, list[InputFile]]:
    """The inputs that have a wish for files of the job's tree, by their blocks; found once, since a job may have many blocks."""
    found = _wishing_blocks.get(expansion)
    if found is None:
        found = {}
        for block in expansion.blocks:
            given = [each for _, each in block.inputs() if not each.locator and each.disposition in _WISHES]
            if given:
                found[block] = given
        _wishing_blocks[expansion] = found
    return found


def _reader(given: InputFile, block: Block, values: Values) -> _Reader:
    template, wish = block.bound(given.name), _WISHES[given.disposition]
    lists = [gap for gap in template.placeholders if isinstance(values.get(gap.name), tuple)]
    if lists:
        return _Reader(wish, frozenset(map(tidy_name, render_arguments((str(lists[0]),), values))), "")
    if is_pattern(literal_text(template)):
        return _Reader(wish, frozenset(), tidy_name(render(template, values, quote=literal)))
    return _Reader(wish, frozenset((tidy_name(render(template, values)),)), "")


def disposes_outputs(expansion: Expansion, block: Block) -> bool:
    """Whether some outputs of a block go after their last consumer."""
    return any(
        "deletable" in output.dispositions
        or (not _WISHES.keys() & set(output.dispositions) and _is_read_with(expansion, block, output, "deletable"))
        for _, output in block.outputs()
    )


def retains_outputs(expansion: Expansion, block: Block) -> bool:
    """Whether some outputs of a block may be kept in the cache of the site where they are made."""
    words = ("retain-indefinitely", "retain-temporarily")
    return any(
        bool(set(words) & set(output.dispositions)) or _is_read_with(expansion, block, output, *words)
        for _, output in block.outputs()
    )


def _is_read_with(expansion: Expansion, block: Block, output: OutputFile, *words: str) -> bool:
    """Whether an input that may be this output has one of these dispositions."""
    made = general_pattern(block.output_template(output))
    return any(
        given.disposition in words and can_both_match(made, general_pattern(other.bound(given.name)))
        for other, wishing in _wishing(expansion).items()
        for given in wishing
    )
