"""Checks of locators that need their values, and what a job moves, in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from pilotage.language.expansion.blocks import Block
from pilotage.language.expansion.expansion import Expansion
from pilotage.language.expansion.lists import RangeTexts
from pilotage.language.expansion.packages import list_in, located_files
from pilotage.language.file_plan import locator_digests, locators_in_parts
from pilotage.language.parsing.kinds import FieldPath
from pilotage.language.parsing.rules import MarkOf, values_in
from pilotage.language.text.locators import (
    SCHEMES,
    InstalledSchemes,
    LocatorFault,
    input_fault,
    is_folder,
    scheme_of,
    shown_locator,
    target_fault,
)
from pilotage.language.text.names import plural
from pilotage.language.text.templates import literal_text, parse_template
from pilotage.language.text.tree import Report
from pilotage.model.errors import near_name
from pilotage.model.jobs.definition import Archive, Definition, InputFile, OutputFile
from pilotage.model.jobs.file_plan import FilePlan
from pilotage.model.texts import size_text

# Most locators are plain: only others are worth a closer look.
_PLAIN = re.compile(r"(?:[a-z][a-z0-9+-]*://[A-Za-z0-9_.-]+(?::[0-9]+)?)?/[^?#%\x00-\x1f\x7f]*")


def check_locators(expansion: Expansion, report: Report, mark: MarkOf) -> None:
    """Report locators with faulty values, and two outputs that would be stored at the same locator."""
    stored: dict[bytes, str] = {}
    for block in expansion.blocks:
        for place, given in block.inputs():
            if given.locator and given.brought and parse_template(given.locator).placeholders:
                _check_values(block, place, given, report, mark)
            if given.locator and given.brought and list_in(block, [block.bound(given.name)]):
                _check_names(block, place, given, report, mark)
        for place, output in block.outputs():
            if output.locator and block.count:
                if parse_template(output.locator).placeholders:
                    _check_values(block, place, output, report, mark)
                _check_targets(block, place, output, stored, report, mark)


def scheme_fault(locator: str, installed: InstalledSchemes) -> LocatorFault | None:
    """Whether no store has the scheme of a locator, built in or installed; a scheme that a value brings is not known yet."""
    first = next(iter(parse_template(locator).parts), "")
    scheme = scheme_of(first) if isinstance(first, str) else ""
    if not scheme or scheme in SCHEMES:
        return None
    known = [f"{each}:" for each in sorted({*SCHEMES, *installed()})]
    if f"{scheme}:" in known:
        return None
    message = f"no store has the locator {shown_locator(locator)!r}"
    near = near_name(f"{scheme}:", known)
    return LocatorFault(
        "no-store", message, f"did you mean {near!r}?" if near else f"these are known: {', '.join(known)}"
    )


def check_schemes(definition: Definition, report: Report, mark: MarkOf, *, installed: InstalledSchemes) -> None:
    """Report locators that no installed store has."""
    for place, value in values_in(definition):
        if isinstance(value, InputFile) and not value.brought:
            continue
        if isinstance(value, InputFile | OutputFile | Archive) and value.locator:
            fault = scheme_fault(value.locator, installed)
            if fault is not None:
                report.error(fault.code, fault.message, mark((*place, "locator")), hint=fault.hint)


def _check_values(block: Block, place: FieldPath, file: InputFile | OutputFile, report: Report, mark: MarkOf) -> None:
    """Report the first locator whose values make it faulty; numbers are all alike."""
    gaps = block.bound(file.locator).placeholders
    check = input_fault if isinstance(file, InputFile) else target_fault
    alike = all(_is_number(block, gap.name) for gap in gaps)
    for locator in islice(_locators(block, file), 1 if alike else None):
        if _PLAIN.fullmatch(locator) and ".." not in locator:
            continue
        fault = check(locator)
        if fault is not None:
            report.error(fault.code, fault.message, mark((*place, "locator")), hint=fault.hint)
            return


def _check_names(block: Block, place: FieldPath, given: InputFile, report: Report, mark: MarkOf) -> None:
    """Report two files of one package that would have the same name, as files of one name in two folders would."""
    for position in range(block.count):
        named: dict[str, str] = {}
        for each in located_files(block, given, block.values(position)):
            other = named.setdefault(each.name, each.locator)
            if other != each.locator:
                one, two = shown_locator(other), shown_locator(each.locator)
                message = f"two files of {block.package_name(position)} would be called {each.name!r}: {one} and {two}"
                report.error("two-files", message, mark((*place, "name")), hint="take fewer of them at a time")
                return


def _is_number(block: Block, name: str) -> bool:
    column = block.line_items.columns.get(name) or block.items.columns.get(name)
    return name in ("tag", "package") if column is None else isinstance(column.values, RangeTexts)


def _locators(block: Block, file: InputFile | OutputFile) -> Iterator[str]:
    for part in locators_in_parts(block, file):
        yield from part


def _check_targets(
    block: Block, place: FieldPath, output: OutputFile, stored: dict[bytes, str], report: Report, mark: MarkOf
) -> None:
    """Report a copy at a locator that another output has too."""
    locator = block.bound(output.locator)
    if is_folder(output.locator) and block.makes_pattern(output):
        return  # no two packages make files of the same name
    name = block.output_template(output)
    varying = bool(locator.placeholders) or (is_folder(literal_text(locator)) and bool(name.placeholders))
    found: list[str] | None = None
    if not varying and block.count > 1:
        found = [literal_text(locator)]
    else:
        for part in locators_in_parts(block, output):
            digests = locator_digests(part)
            for position, digest in enumerate(map(bytes, digests)):
                if digest in stored:
                    found = [part[position]]
                    break
                stored[digest] = ""
            if found:
                break
    if found:
        message = f"two outputs would be stored at {shown_locator(found[0])!r}"
        hint = "end the locator with / to name a folder, or put a variable into it"
        report.error("same-locator", message, mark((*place, "locator")), hint=hint)


# What a job moves.


def files_summary(expansion: Expansion, plan: FilePlan | None, *, running: NDArray[np.bool_] | None = None) -> str:
    """What is brought to sites and stored, such as `12 files, 3.4 GB, are brought to the site; 5 outputs are stored`.

    Only the packages that are `running` count, if given.
    """
    if running is None:
        running = np.ones(expansion.count, np.bool_)
        running[sorted(expansion.left_out)] = False
    parts = [_brought(plan, running)] if plan is not None else []
    return "; ".join(filter(None, [*parts, *_stored(expansion, running)]))


def _brought(plan: FilePlan, running: NDArray[np.bool_]) -> str:
    owners = np.repeat(np.arange(len(plan.needs.indptr) - 1) + plan.needs.first, np.diff(plan.needs.indptr))
    used = np.unique(plan.needs.others[running[owners]])
    if not len(used):
        return ""
    known = int(plan.sizes_bytes[used].sum())
    unknown = int((plan.sizes_bytes[used] == 0).sum())
    size = f", {size_text(known)}" + (" or more" if unknown else "") + "," if known else ""
    return f"{plural(len(used), 'file')}{size} {'is' if len(used) == 1 else 'are'} brought to the site"


def _stored(expansion: Expansion, running: NDArray[np.bool_]) -> Iterable[str]:
    counts: dict[int, int] = {}
    open_ended = False
    for block in expansion.blocks:
        for _, output in block.outputs():
            if output.stored and not block.package.noop and not block.package.done:
                counts[output.replicas] = counts.get(output.replicas, 0) + int(running[block.package_array()].sum())
                open_ended = open_ended or block.makes_pattern(output)
    more = " or more" if open_ended else ""
    for replicas, count in sorted(counts.items()):
        if count:
            what = "output is" if count == 1 and not more else "outputs are"
            times = {1: "", 2: " twice"}.get(replicas, f" {replicas} times")
            yield f"{count:,}{more} {what} stored{times}"
