"""Submitting a document again: an unfinished job with the same content resumes, a different one is superseded."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from pilotage.book.fold.facts import read_tags, tags_of
from pilotage.book.fold.finals import FinalPackage
from pilotage.book.query import parse
from pilotage.book.rows.rows import JobRow
from pilotage.engine.engine import Engine
from pilotage.engine.files.holding import HELD_FOR_FILES
from pilotage.language import Expansion
from pilotage.language.text.names import tidy_name
from pilotage.language.text.patterns import matches
from pilotage.model.events.events import Event, parse_dotted
from pilotage.model.events.payloads import Held, JobRegistered, Tagged
from pilotage.model.exchange.operations import Release
from pilotage.model.jobs.graph import EdgeKind
from pilotage.model.jobs.layout import PackageId
from pilotage.model.jobs.submission import (
    CAPTURED,
    CHANGED,
    CUSTOM,
    ORIGIN,
    RESOLVED,
    SUPERSEDED,
    TARGETS,
    Captured,
    Origin,
    ResolvedLists,
    Submission,
)
from pilotage.model.states import FINAL_NAMES
from pilotage.ports import JobTree, Journal, NotOurs
from pilotage.service.jobs.submission import Prepared, SubmissionError, plain_outputs

ANEW, REPLACED = "to run everything again", "to replace files that pilotage did not make"
FOR_ALL, FOR_SOME, FOR_OTHERS = "for all of its files", "for some of its files only", "for other files of it"
"""How a document runs again whose earlier job is unfinished."""

_HELD = parse("type = Held")
_EVENTS_AT_ONCE = 1000

_lists = msgspec.json.Decoder(dict[str, str])
_held = msgspec.json.Decoder(Held)
_origin = msgspec.json.Decoder(Origin)
_resolved = msgspec.json.Decoder(ResolvedLists)
_captured = msgspec.json.Decoder(dict[str, Captured])

Result = TypeVar("Result")


class EarlierRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Unfinished jobs of the same document: the one that is the same in everything, and the others."""

    same: str = ""
    others: dict[str, str] = {}  # with how each runs again


def earlier_runs(
    journal: Journal, submission: Submission, prepared: Prepared, *, unpublished: Collection[str] = ()
) -> EarlierRuns:
    """The owner's unfinished jobs of a submission's document.

    The `unpublished` ones have unpublished results: the same job resumes with them, even if everything else is done.
    """
    same, others = "", {}
    for row in journal.live_jobs():
        is_over = row.state in FINAL_NAMES
        if is_over and not (row.state == "DONE" and row.job in unpublished):
            continue
        if row.name != prepared.registered.name or row.owner != prepared.registered.owner:
            continue
        if row.cancelled_at is not None or row.aborted_at is not None:
            continue  # it is being retired
        origin = origin_of(journal, row)
        if origin is None or (origin.folder, origin.document) != (submission.folder, submission.document):
            continue
        anew = submission.fresh or prepared.in_the_way  # files to be replaced may have been granted to it
        if not same and not anew and is_same(row, prepared, origin):
            same = row.job
        elif not is_over:
            others[row.job] = _how(journal, row, submission, prepared, origin)
    return EarlierRuns(same=same, others=others)


def unfinished_besides(journal: Journal, submission: Submission, *, owner: str) -> int:
    """Count the unfinished packages of an owner's unfinished jobs, without runs of a submission's document.

    Such a run resumes if it is the same, and is killed if it differs.
    """
    document = submission.folder, submission.document
    count = 0
    for row in journal.live_jobs():
        if row.owner != owner or row.state in FINAL_NAMES or row.cancelled_at is not None or row.aborted_at is not None:
            continue
        origin = origin_of(journal, row)
        if origin is None or (origin.folder, origin.document) != document:
            count += row.expected - (row.done + row.aborted + row.cancelled + row.cleared + row.dropped)
    return count


def _how(journal: Journal, row: JobRow, submission: Submission, prepared: Prepared, origin: Origin) -> str:
    """How the document of an earlier job runs again."""
    if submission.fresh:
        return ANEW
    if prepared.in_the_way:
        return REPLACED
    before, now = _lists.decode(row.lists), prepared.registered.lists
    if before.get(TARGETS) == now.get(TARGETS) or not _is_same_but_for_targets(journal, row, prepared, origin):
        return CHANGED
    return FOR_ALL if TARGETS not in now else FOR_OTHERS if TARGETS in before else FOR_SOME


def _is_same_but_for_targets(journal: Journal, row: JobRow, prepared: Prepared, origin: Origin) -> bool:
    """Whether a job was submitted with the same definition, lists and files, for whatever targets."""
    if row.definition != prepared.registered.definition or origin.format != prepared.origin.format:
        return False
    before = _read(journal, row, RESOLVED, _resolved)
    captured = _read(journal, row, CAPTURED, _captured)
    if before is None or captured is None:
        return False
    now = prepared.expansion.resolved.lists
    if any(now.get(name, names) != names for name, names in before.lists.items() if name != TARGETS):
        return False
    # Packages that are left out bring no files along.
    return all(captured.get(name, file) == file for name, file in prepared.origin.captured.items())


def _read(journal: Journal, row: JobRow, name: str, decoder: msgspec.json.Decoder[Result]) -> Result | None:
    sha256 = _lists.decode(row.lists).get(name)
    content = journal.content(sha256) if sha256 else None
    return decoder.decode(content) if content is not None else None


def is_same(row: JobRow, prepared: Prepared, origin: Origin) -> bool:
    """Whether a job was submitted with the same definition, lists and files, fresh or not."""
    if row.definition != prepared.registered.definition or origin.format != prepared.origin.format:
        return False
    lists = _lists.decode(row.lists)
    # A job that has grown has more lists than at submission. Its origin also says whether it ran everything again.
    wanted = prepared.registered.lists.items()
    return all(lists.get(name) == sha256 for name, sha256 in wanted if name != ORIGIN and not name.startswith(CUSTOM))


def later_tags(row: JobRow, registered: JobRegistered, journal: Journal, *, now: float) -> list[Event]:
    """The events that tag an unfinished job as its document was submitted again. Raises `SubmissionError` for further files."""
    before = _lists.decode(row.lists)
    for name, sha256 in registered.lists.items():
        if name.startswith(CUSTOM) and before.get(name) != sha256:
            raise SubmissionError(
                "the job runs already, and takes no further files",
                subject=name[len(CUSTOM) :],
                next_step=f"add it to its record later: pilotage provenance annotate {row.job} NAME=@FILE",
            )
    known = tags_of(read_tags(row.tags))
    stream = f"tags-{secrets.token_hex(6)}"
    new = [(name, value) for name, value in registered.tags.items() if known.get(name) != value]
    return [
        Event(
            source="service",
            stream=stream,
            n=number,
            type=Tagged.__name__,
            time=now,
            epoch=row.epoch,
            seen=journal.position(),
            job=row.job,
            data=msgspec.Raw(msgspec.json.encode(Tagged(name=name, value=value))),
        )
        for number, (name, value) in enumerate(new, start=1)
    ]


def origin_of(journal: Journal, row: JobRow) -> Origin | None:
    """Where a job comes from; None for a job that does not run here."""
    return _read(journal, row, ORIGIN, _origin)


def folder_of(journal: Journal, row: JobRow) -> str | None:
    """The folder of a job that runs or ran here."""
    origin = origin_of(journal, row)
    return origin.folder if origin is not None else None


def superseded_by(job: str, *, how: str) -> str:
    """The message for a job whose document was submitted again."""
    return f"{SUPERSEDED} {job}: its document was submitted again {how}"


# Two jobs in one folder must not make the same file: the later one would replace the results of the other.

_SHOWN_MAX = 5


def refuse_contested_outputs(expansion: Expansion, folder: str, others: Iterable[tuple[str, Expansion]]) -> None:
    """Raise `NotOurs` for an output name that an unfinished job of the same folder makes as well.

    Only plain names are compared; conflicts of patterns are found when files are published.
    """
    made: set[str] | None = None
    for job, other in others:
        if made is None:
            made = set(plain_outputs(expansion))
        both = sorted(made.intersection(plain_outputs(other)))
        if both:
            more = f" and {len(both) - _SHOWN_MAX} more" if len(both) > _SHOWN_MAX else ""
            raise NotOurs(
                f"the unfinished job {job} makes the same files: {', '.join(both[:_SHOWN_MAX])}{more}",
                subject=folder,
                next_step=f"wait until it ends, or kill it: pilotage kill {job}",
            )


def unfinished_jobs(engine: Engine) -> set[str]:
    """The jobs that will still make something."""
    jobs = engine.state.jobs.by_id.values()
    return {job.id for job in jobs if (job.unfinished or job.late) and not (job.cancelled or job.aborted)}


def were_concurrent(journal: Journal, job: str, other: str) -> bool:
    """Whether a job must not replace outputs of another: both were unfinished at once.

    Outputs of a job that was over before may be replaced, and so may those of an earlier run of the same document.
    """
    row, before = journal.job(job), journal.job(other)
    if job == other or row is None or before is None:
        return False
    ended_at = max(at or 0.0 for at in (before.finished_at, before.cancelled_at, before.aborted_at))
    if before.state in FINAL_NAMES and ended_at <= (row.submitted_at or 0.0):
        return False
    if (row.name, row.owner) != (before.name, before.owner):
        return True
    mine, its = origin_of(journal, row), origin_of(journal, before)
    return mine is None or its is None or mine.document != its.document


# What was held because its files could not be had is tried again; what a person held alone stays held.


def releases(
    job: str, *, journal: Journal, ask: Callable[[Callable[[Engine], list[str]]], Future[list[str]]]
) -> list[Release]:
    """What to release so that a job goes on: itself, and its packages that were held for their files."""
    row, found = journal.job(job), [Release(job=job)]
    for package in ask(partial(_held_with_files, job)).result() if row is not None else ():
        place = parse_dotted(package)
        if row is not None and place is not None and _why_held(journal, row, place).startswith(HELD_FOR_FILES):
            found.append(Release(job=job, package=package))
    return found


def _held_with_files(job: str, engine: Engine) -> list[str]:
    state = engine.state.jobs.by_id.get(job)
    if state is None or state.files is None:
        return []
    return [state.dotted(number) for number, work in state.work.items() if work.held and not state.is_final(number)]


def _why_held(journal: Journal, row: JobRow, place: PackageId) -> str:
    """The message of the last hold of a package."""
    why, after = "", 0
    while True:
        page = journal.find_events(_HELD, after=after, limit=_EVENTS_AT_ONCE, job=row, place=place)
        for event in page.items:
            why, after = _held.decode(event.row.data).message, event.row.position
        if not page.more:
            return why
        after = page.scanned_to if page.scanned_to is not None else after


# Outputs of a resumed job that it needs and that are gone: their packages run again.

_FILES = int(EdgeKind.FILE | EdgeKind.PATTERN)


class PackageStatuses(msgspec.Struct, frozen=True, kw_only=True):
    """How far the packages of a job are, by number."""

    unfinished: tuple[int, ...]
    granted: frozenset[int]


def statuses_of(job: str, engine: Engine) -> PackageStatuses:
    """How far the packages of a job are; only within a query."""
    state = engine.state.jobs.by_id.get(job)
    if state is None:
        return PackageStatuses(unfinished=(), granted=frozenset())
    return PackageStatuses(
        unfinished=tuple(number for number in range(state.count) if not state.is_final(number)),
        granted=frozenset(number for number, attempt in enumerate(state.granted) if attempt),
    )


def lost(expansion: Expansion, statuses: PackageStatuses, *, folder: str, tree: JobTree) -> list[str]:
    """The packages, dotted, that lost a file needed by one that is unfinished or must run again.

    Producers come before their consumers. Files that are not needed any more may be gone.
    """
    found: list[str] = []
    looked_at: set[int] = set()
    readers: Sequence[int] = statuses.unfinished
    while readers:
        read = {each for number in readers for each in _producers(expansion, number)}
        makers = sorted((read & statuses.granted) - looked_at)
        looked_at.update(makers)
        readers = _without_their_files(expansion, makers, folder=folder, tree=tree)
        found = [*(expansion.id(number).dotted for number in readers), *found]
    return found


def _without_their_files(expansion: Expansion, makers: Iterable[int], *, folder: str, tree: JobTree) -> list[int]:
    names = {number: _named_outputs(expansion, number) for number in makers}
    there = tree.look_up(folder, {name for each in names.values() for name in each})
    return [number for number, each in names.items() if any(name not in there for name in each)]


def _named_outputs(expansion: Expansion, number: int) -> list[str]:
    """The files that a package must have made, as far as their names are known in advance."""
    block = expansion.block(number)
    if block.package.done:
        return []
    values = block.values(block.position(number))
    named = (each for _, each in block.outputs() if not each.expression and not block.makes_pattern(each))
    return [block.written_output(each, values) for each in named]


class RetryInputs(NamedTuple):
    """The files that packages of a job read when they run again: by name, or by a pattern of outputs."""

    names: set[str]
    patterns: set[str]

    def uses(self, name: str) -> bool:
        """Whether one of them reads a file, or may."""
        return name in self.names or any(matches(pattern, name) for pattern in self.patterns)

    def names_read(self) -> Collection[str]:
        """The known names of files that they read."""
        return self.names


def inputs_to_retry(expansion: Expansion, finals: Iterable[FinalPackage]) -> RetryInputs:
    """The inputs of packages that are neither done nor dropped; `finals` are all ended ones."""
    over: set[int] = set()
    for each in finals:
        layout = expansion.layouts.get(each.stage - 1)
        number = layout.number_at(line=each.line, number=each.number) if layout is not None else None
        if number is not None and (each.granted or each.dropped):
            over.add(number)
    found = RetryInputs(set(), set())
    for number in range(expansion.count):
        if number in over:
            continue
        package = expansion.package(number)
        found.names.update(package.needed)
        if package.container is not None:
            found.names.add(tidy_name(package.container.image))
        if package.awaited:  # names not known in advance
            made = (name for each in _producers(expansion, number) for name in expansion.outputs(each))
            found.patterns.update(made)
    return found


def _producers(expansion: Expansion, number: int) -> list[int]:
    found: list[int] = []
    for segment in expansion.graph.segments:
        start, end = segment.predecessors.span(number)
        numbers, kinds = segment.predecessors.numbers, segment.kind_numbers
        found += [numbers[at] for at in range(start, end) if kinds[at] & _FILES]
    return found
