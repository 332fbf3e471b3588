"""The same document again: the job that is not over goes on, and one of another content takes the place of the earlier."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from pilotage.book.rows import JobRow
from pilotage.model.states import FINAL_NAMES
from pilotage.model.submission import ORIGIN, SUPERSEDED, Origin, Submission
from pilotage.ports import Journal
from pilotage.service.running.submission import Prepared

ANEW, CHANGED, REPLACED = "to start everything anew", "with another content", "to replace files that are not ours"
FOR_TARGETS = "for some of its files"
"""How a document is run again whose earlier job is not over."""

_lists = msgspec.json.Decoder(dict[str, str])
_origin = msgspec.json.Decoder(Origin)


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """What is not over of the same document: the job that is the same in everything, and those that are not."""

    same: str = ""
    others: tuple[str, ...] = ()


def earlier_runs(
    journal: Journal, submission: Submission, prepared: Prepared, *, unpublished: Collection[str] = ()
) -> Earlier:
    """The unfinished jobs of the document of a submission, its owner's alone.

    Of those `unpublished` something is done and has no name yet: the same job goes on with that, also where all is done.
    """
    same, others = "", []
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
            others.append(row.job)
    return Earlier(same=same, others=tuple(others))


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
    sha256 = _lists.decode(row.lists).get(ORIGIN)
    content = journal.content(sha256) if sha256 else None
    return _origin.decode(content) if content is not None else None


def superseded_by(job: str, *, how: str) -> str:
    """What is said of a job whose document was run again, with another content or to start anew."""
    return f"{SUPERSEDED} {job}: its document was run again {how}"
