"""What becomes of outputs: the copies that stores get before a grant, those that are deletable, and those deleted on purpose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from pilotage.book.query import parse
from pilotage.language import Expansion
from pilotage.language.file_plan import locators_with
from pilotage.language.stored_outputs import handled_outputs
from pilotage.model.events.events import parse_dotted
from pilotage.model.events.file_payloads import OutputsStored
from pilotage.model.events.payloads import OutputFile
from pilotage.model.exchange.exchange import AttemptRef
from pilotage.model.locators import CONTENT
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import JobTree, Journal, MadeWork, ResultsIndex, StoreError
from pilotage.service.transfers.leftover_copies import Standing
from pilotage.service.transfers.storing import OutputCopy

_EVENTS_AT_ONCE = 1000
_STORED = parse("type = OutputsStored")
_stored = msgspec.json.Decoder(OutputsStored).decode


def owed_copies(
    ref: AttemptRef,
    *,
    expansion: Expansion,
    number: int,
    manifest: Sequence[OutputFile],
    source: Callable[[int], str],
    archives: Sequence[str],
    earlier: Mapping[str, frozenset[str]],
    owner: str,
) -> list[OutputCopy]:
    """The copies of the outputs of an attempt; `source` is the path of a staged file by its number in the manifest.

    `earlier` has the checksums of copies that the package stored before, by locator. Raises `StoreError` if fewer stores
    are configured than the document asks for.
    """
    names = [file.name for file in manifest]
    found = []
    handled = handled_outputs(expansion, number, names, job=ref.job, archives=archives)
    for position, (file, output) in enumerate(zip(manifest, handled, strict=True)):
        if output.replicas > len(output.copies):
            raise StoreError(
                f"{output.replicas} copies of it must be stored, and there are stores for {len(output.copies)}",
                subject=file.name,
                next_step="name more stores in the setting files.archive, start the service again, and release the package",
            )
        copies = [
            OutputCopy(
                name=file.name,
                source=source(position),
                size_bytes=file.size_bytes,
                sha256=file.sha256,
                locator=locator,
                replaceable=earlier.get(locator, frozenset()),
                owner=owner,
            )
            for locator in (_named_by_content(each, file.sha256) for each in (*output.copies, *output.spares))
        ]
        wanted, spares = copies[: len(output.copies)], tuple(copies[len(output.copies) :])
        # Where the document itself says where a copy goes, no other place will do.
        found += [each if each.locator == output.named else replace(each, spares=spares) for each in wanted]
    return found


def contents_named(expansion: Expansion) -> frozenset[str]:
    """The contents of the service's own store that packages of a job name as inputs, by sha256."""
    return frozenset(each.removeprefix(CONTENT) for each in locators_with("store", expansion))


def _named_by_content(locator: str, sha256: str) -> str:
    return f"{CONTENT}{sha256}" if locator.startswith(CONTENT) else locator


def earlier_copies(journal: Journal, ref: AttemptRef) -> dict[str, frozenset[str]]:
    """The checksums of the copies that attempts of a package have stored, by locator."""
    row, place = journal.job(ref.job), parse_dotted(ref.package)
    found: dict[str, frozenset[str]] = {}
    after, more = 0, row is not None
    while more and row is not None:
        page = journal.find_events(_STORED, after=after, limit=_EVENTS_AT_ONCE, job=row, place=place)
        for event in (each.row for each in page.items):
            after = event.position
            for copy in _stored(event.data).copies:
                found[copy.locator] = found.get(copy.locator, frozenset()) | {copy.sha256}
        more = page.more
        after = page.scanned_to if page.scanned_to is not None else after
    return found


def standing_of(journal: Journal, ref: AttemptRef) -> Standing:
    """Whether an attempt was granted, may still be, or never will; unknown once its job was purged."""
    row, place = journal.job(ref.job), parse_dotted(ref.package)
    package = journal.package(row, place) if row is not None and place is not None else None
    if row is None or package is None:
        return "unknown"
    known = package.facts.attempts.get(ref.attempt)
    if known is not None and known.granted_at is not None:
        return "granted"
    over = row.state in FINAL_NAMES or package.facts.state in FINAL_NAMES
    return "never-granted" if over else "open"


def deletable_outputs(expansion: Expansion, number: int, manifest: Sequence[OutputFile]) -> list[OutputFile]:
    """The outputs of a package that its document lets go after their last consumer."""
    handled = handled_outputs(expansion, number, [file.name for file in manifest], job="", archives=())
    return [file for file, output in zip(manifest, handled, strict=True) if output.disposed]


def disposed_results(found: Collection[MadeWork], folder: str, *, tree: JobTree, index: ResultsIndex) -> frozenset[str]:
    """The keys of results whose missing files were all removed on purpose, and whose other files are unchanged."""
    names = {file.name for made in found for file in made.manifest}
    there = tree.look_up(folder, names)
    removed = index.disposed(folder, names - there.keys()) if len(there) < len(names) else {}
    if not removed:
        return frozenset()

    def counts(file: OutputFile) -> bool:
        if file.name in there:
            return there[file.name].size_bytes == file.size_bytes and tree.checksum(folder, file.name) == file.sha256
        return file.sha256 in removed.get(file.name, ())

    return frozenset(made.key for made in found if all(map(counts, made.manifest)))
