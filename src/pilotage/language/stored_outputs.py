"""What becomes of the outputs of a package, by their dispositions: copies in stores, removal, and a place in the cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pilotage.agent.expressions import compile_expression
from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.text.locators import CONTENT, is_folder, locator_of
from pilotage.language.text.names import tidy_name
from pilotage.language.text.patterns import matches
from pilotage.language.text.templates import Values, render
from pilotage.model.jobs.definition import OutputFile
from pilotage.model.jobs.file_plan import Wish


class HandledOutput(NamedTuple):
    """An output of a package, and what is done with it besides handing it on."""

    name: str
    copies: tuple[str, ...] = ()  # locators in different stores, in order; none: it is not stored
    replicas: int = 0  # copies that the document asks for: more than there are locators if stores are missing
    disposed: bool = False  # removed from the job's tree after its last consumer, once all copies are there
    retained: Wish | None = None  # explicitly kept in the cache of the site


def handled_outputs(
    expansion: Expansion, package: int, names: Iterable[str], *, job: str, archives: Sequence[str]
) -> list[HandledOutput]:
    """What is done with each output of a package, by name; `archives` are the URLs of the archive stores, in order.

    Copies in archive stores are called `JOB/NAME`; `job` is the id of the job.
    """
    block, position = expansion.locate(package)
    values = block.values(position)
    declared = [(output, block.written_output(output, values)) for _, output in block.outputs()]
    return [_handled(name, _declaration(name, declared, block, values), block, values, job, archives) for name in names]


def _handled(
    name: str, output: OutputFile | None, block: Block, values: Values, job: str, archives: Sequence[str]
) -> HandledOutput:
    if output is None:
        return HandledOutput(name)
    copies: tuple[str, ...] = ()
    if output.stored:
        locator = locator_of(render(block.bound(output.locator), values), name) if output.locator else ""
        copies = tuple(_copies(name, locator, output.replicas, job=job, archives=archives))
    retained = next((wish for word, wish in _RETAINED if word in output.dispositions), None)
    return HandledOutput(
        name=name,
        copies=copies,
        replicas=output.replicas if output.stored else 0,
        disposed="deletable" in output.dispositions,
        retained=retained,
    )


_RETAINED = (
    ("retain-indefinitely", Wish.RETAIN_INDEFINITELY),
    ("retain-temporarily", Wish.RETAIN_TEMPORARILY),
)


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


def _copies(name: str, locator: str, replicas: int, *, job: str, archives: Sequence[str]) -> Iterator[str]:
    """The locators of the copies: the one of the document, then those in the archive stores."""
    if locator:
        yield locator
    beside = archives_beside(locator, archives)
    for archive in beside[: replicas - bool(locator)]:
        yield locator_of(archive if is_folder(archive) else f"{archive}/", f"{job}/{name}")


def archives_beside(locator: str, archives: Sequence[str]) -> list[str]:
    """The archive stores that can hold a further copy: each once, and none that has the locator itself."""
    different = {archive.rstrip("/"): archive for archive in reversed(archives)}
    return [archive for bare, archive in reversed(different.items()) if not _is_in(locator, bare)]


def _is_in(locator: str, archive: str) -> bool:
    return locator.startswith(CONTENT) if archive == CONTENT else f"{locator}/".startswith(f"{archive}/")
