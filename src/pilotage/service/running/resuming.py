"""The same document again: the job that is not over goes on, and one of another content takes the place of the earlier."""

from __future__ import annotations

import msgspec

from pilotage.book.rows import JobRow
from pilotage.model.states import FINAL_NAMES
from pilotage.model.submission import Origin, Submission
from pilotage.ports import Journal
from pilotage.service.running.submission import Prepared

_lists = msgspec.json.Decoder(dict[str, str])
_origin = msgspec.json.Decoder(Origin)


class Earlier(msgspec.Struct, frozen=True, kw_only=True):
    """What is not over of the same document: the job that is the same in everything, and those that are not."""

    same: str = ""
    others: tuple[str, ...] = ()


def earlier_runs(journal: Journal, submission: Submission, prepared: Prepared) -> Earlier:
    """The unfinished jobs of the document of a submission, its owner's alone."""
    same, others = "", []
    for row in journal.live_jobs():
        if row.state in FINAL_NAMES or row.name != prepared.registered.name or row.owner != prepared.registered.owner:
            continue
        if row.cancelled_at is not None or row.aborted_at is not None:
            continue  # it is on its way out
        origin = _origin_of(journal, row)
        if origin is None or (origin.folder, origin.document) != (submission.folder, submission.document):
            continue
        if not same and not submission.fresh and is_same(row, prepared):
            same = row.job
        else:
            others.append(row.job)
    return Earlier(same=same, others=tuple(others))


def is_same(row: JobRow, prepared: Prepared) -> bool:
    """Whether a job was submitted with the same definition, lists and files."""
    lists = _lists.decode(row.lists)
    # A job that has grown has more lists than it was submitted with.
    return row.definition == prepared.registered.definition and all(
        lists.get(name) == sha256 for name, sha256 in prepared.registered.lists.items()
    )


def _origin_of(journal: Journal, row: JobRow) -> Origin | None:
    sha256 = _lists.decode(row.lists).get("origin")
    content = journal.content(sha256) if sha256 else None
    return _origin.decode(content) if content is not None else None


def superseded_by(job: str) -> str:
    """What is said of a job whose document was run again with another content."""
    return f"superseded by {job}: its document was run again with another content"
