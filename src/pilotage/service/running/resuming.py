"""The same document again: the job that is not over goes on, and one of another content takes the place of the earlier."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import msgspec

from pilotage.book.rows import JobRow
from pilotage.model.resolved import ResolvedLists
from pilotage.model.states import FINAL_NAMES
from pilotage.model.submission import (
    CAPTURED,
    CHANGED,
    ORIGIN,
    RESOLVED,
    SUPERSEDED,
    TARGETS,
    Captured,
    Origin,
    Submission,
)
from pilotage.ports import Journal
from pilotage.service.running.submission import Prepared

ANEW, REPLACED = "to start everything anew", "to replace files that are not ours"
FOR_ALL, FOR_SOME, FOR_OTHERS = "for all of its files", "for some of its files alone", "for other files of it"
"""How a document is run again whose earlier job is not over."""

_lists = msgspec.json.Decoder(dict[str, str])
_origin = msgspec.json.Decoder(Origin)
_resolved = msgspec.json.Decoder(ResolvedLists)
_captured = msgspec.json.Decoder(dict[str, Captured])

Told = TypeVar("Told")


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """What is not over of the same document: the job that is the same in everything, and those that are not."""

    same: str = ""
    others: dict[str, str] = {}  # and how each is run again


def earlier_runs(
    journal: Journal, submission: Submission, prepared: Prepared, *, unpublished: Collection[str] = ()
) -> Earlier:
    """The unfinished jobs of the document of a submission, its owner's alone.

    Of those `unpublished` something is done and has no name yet: the same job goes on with that, also where all is done.
    """
    same, others = "", {}
    for row in journal.live_jobs():
        is_over = row.state in FINAL_NAMES
        if is_over and not (row.state == "DONE" and row.job in unpublished):
            continue
        if row.name != prepared.registered.name or row.owner != prepared.registered.owner:
            continue
        if row.cancelled_at is not None or row.aborted_at is not None:
            continue  # it is on its way out
        origin = origin_of(journal, row)
        if origin is None or (origin.folder, origin.document) != (submission.folder, submission.document):
            continue
        anew = submission.fresh or prepared.in_the_way  # what is to be replaced may have been granted to it
        if not same and not anew and is_same(row, prepared, origin):
            same = row.job
        elif not is_over:
            others[row.job] = _how(journal, row, submission, prepared, origin)
    return Earlier(same=same, others=others)


def _how(journal: Journal, row: JobRow, submission: Submission, prepared: Prepared, origin: Origin) -> str:
    """How the document of an earlier job is run again."""
    if submission.fresh:
        return ANEW
    if prepared.in_the_way:
        return REPLACED
    before, now = _lists.decode(row.lists), prepared.registered.lists
    if before.get(TARGETS) == now.get(TARGETS) or not _is_same_but_for_targets(journal, row, prepared, origin):
        return CHANGED
    return FOR_ALL if TARGETS not in now else FOR_OTHERS if TARGETS in before else FOR_SOME


def _is_same_but_for_targets(journal: Journal, row: JobRow, prepared: Prepared, origin: Origin) -> bool:
    """Whether a job of an origin was submitted with the same definition, lists and files, for whichever targets."""
    if row.definition != prepared.registered.definition or origin.format != prepared.origin.format:
        return False
    before = _read(journal, row, RESOLVED, _resolved)
    captured = _read(journal, row, CAPTURED, _captured)
    if before is None or captured is None:
        return False
    now = prepared.expansion.resolved.lists
    if any(now.get(name, names) != names for name, names in before.lists.items() if name != TARGETS):
        return False
    # What is left out brings nothing along.
    return all(captured.get(name, file) == file for name, file in prepared.origin.captured.items())


def _read(journal: Journal, row: JobRow, name: str, decoder: msgspec.json.Decoder[Told]) -> Told | None:
    sha256 = _lists.decode(row.lists).get(name)
    content = journal.content(sha256) if sha256 else None
    return decoder.decode(content) if content is not None else None


def is_same(row: JobRow, prepared: Prepared, origin: Origin) -> bool:
    """Whether a job of an origin was submitted with the same definition, lists and files, however it was to begin."""
    if row.definition != prepared.registered.definition or origin.format != prepared.origin.format:
        return False
    lists = _lists.decode(row.lists)
    # A job that has grown has more lists than it was submitted with. Its origin also says whether it was to begin anew.
    wanted = prepared.registered.lists.items()
    return all(lists.get(name) == sha256 for name, sha256 in wanted if name != ORIGIN)


def origin_of(journal: Journal, row: JobRow) -> Origin | None:
    """Where a job comes from; None of one that is not run here."""
    return _read(journal, row, ORIGIN, _origin)


def superseded_by(job: str, *, how: str) -> str:
    """What is said of a job whose document was run again, in one of the ways above."""
    return f"{SUPERSEDED} {job}: its document was run again {how}"
